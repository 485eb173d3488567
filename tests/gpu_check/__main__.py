"""The command ``python -m tests.gpu_check``; exit codes: 0 no phase failed, 1 one did, 2 bad usage, 130 interrupted."""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.core.terminal_text import silence_output
from tests.gpu_check.wheels import missing_packages, strip_ray, wheel_lines

_MODULE = "tests.gpu_check"
PHASES = {
    "probe": ("what the device can do, and whether its instruments tell the truth", "probe:run", 240),
    "parity": ("every branch that only a GPU takes, against the CPU", "parity:run", 300),
    "scenarios": ("small scenarios on both devices", "runs:scenarios", 540),
    "speed": ("decode step, draw, CUDA graph, microbatch, head, optimizer", "speed:run", 540),
    "shapes": ("batches of ever new lengths, by each kernel of attention", "training_shapes:shapes", 240),
    "pair": ("weights that another process reads in place", "training_shapes:pair", 240),
    "overlap": ("decoding beside training, with and without stream priority", "training_shapes:overlap", 240),
    "model": ("a folder with 1.5 billion random weights (CPU: a tiny model), made beside others", "runs:model", 300),
    "big": ("steps of that model: stages, memory plan, energy, kernels", "runs:big", 540),
    "profile": ("a profile of this machine for the simulator, from short runs of that model", "runs:profile", 300),
    "ray": ("actors, and the transports that Ray alone has", "runs:ray", 540),
    "nixl": ("weights by NIXL", "runs:nixl", 540),
    "transports": ("weight syncs alone, up to 1 GB (CPU: 10 MB)", "runs:transports", 540),
    "vllm": ("vLLM as the engine", "runs:vllm", 580),
    "nsys": ("a short capture by Nsight Systems", "runs:nsys", 300),
}
"""Name -> purpose, function, seconds after which the phase is ended; in the order in which they run."""
LEAN = ("probe", "parity", "shapes", "pair", "overlap", "model", "big", "speed", "profile", "ray")
"""What rented minutes are spent on, best first; ``model`` is made beside, and waited for before ``big``."""


def main(argv: Sequence[str] | None = None, missing: Sequence[str] | None = None) -> int:
    """Carry out one command line and return its exit code; ``missing`` are packages taken for not installed."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.wheels is not None:
        if options.wheels != Path() and not options.wheels.is_file():
            parser.error(f"--wheels: there is no file {options.wheels}; write it with `pip freeze` on that machine")
        try:
            print("\n".join(wheel_lines(options.wheels)), flush=True)
        except BrokenPipeError:  # the reader has left, as `| head` does
            silence_output()
        return 0
    if options.strip_ray is not None:
        if not options.strip_ray.is_file() or shutil.which("strip") is None:
            parser.error(f"--strip-ray: needs a wheel and the program strip; the wheel is {options.strip_ray}")
        small = strip_ray(options.strip_ray, options.strip_ray.parent / "stripped")
        print(f"{small}: {small.stat().st_size / 2**20:.1f} MiB")
        return 0
    if options.lean and (left_out := sorted(set(options.phase or ()) - set(LEAN))):
        parser.error(f"--phase: {', '.join(left_out)} is none of --lean, which has {', '.join(LEAN)}")
    missing = missing_packages() if missing is None else missing
    if missing:
        what = f"the harness needs {', '.join(missing)}; bring the wheels that `python -m {_MODULE} --wheels` lists"
        print(f"error: not installed here: {what} (docs/gpu_check.md)", file=sys.stderr)
        return 2
    from tests.gpu_check.runner import Phase, run_phases

    phases = [
        Phase(name, what, f"{_MODULE}.{target}", limit_s, beside=options.lean and name == "model")
        for name in (LEAN if options.lean else PHASES)
        for what, target, limit_s in (PHASES[name],)
    ]
    if options.list:
        print("\n".join(f"{phase.name:<11} {phase.purpose}; at most {phase.limit_s} s" for phase in phases))
        return 0
    chosen = [phase for phase in phases if phase.name in (options.phase or PHASES)]
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))  # a phase ends with us
    try:
        return run_phases(chosen, options.out.absolute(), lean=options.lean, budget_s=options.budget)
    except KeyboardInterrupt:
        print(f"interrupted; what was found is in {options.out}", file=sys.stderr)
        return 130


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}",
        description="Check a machine: is every number right, how fast is it, does everything run?",
        epilog="examples:\n  PYTHONPATH=. python3 -m tests.gpu_check --phase probe --phase parity --out build/check\n"
        "  PYTHONPATH=. python3 -m tests.gpu_check --lean --budget 555 --out build/check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = ", ".join(PHASES)
    parser.add_argument(
        "--phase", action="append", choices=PHASES, metavar="NAME", help=f"one of {names}; may be repeated"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/gpu_check"), metavar="FOLDER", help="default: %(default)s"
    )
    parser.add_argument(
        "--lean",
        action="store_true",
        help="for rented minutes: best phases first, CPU runs left out, the large model made beside other phases, "
        "and all that they leave in one archive in FOLDER",
    )
    parser.add_argument(
        "--budget", type=_seconds, default=math.inf, metavar="S", help="seconds for all phases (default: no limit)"
    )
    parser.add_argument("--list", action="store_true", help="show the phases and their time limits")
    parser.add_argument(
        "--wheels",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FREEZE",
        help="list what to bring to a machine, given its `pip freeze` in a file (default: this one)",
    )
    parser.add_argument(
        "--strip-ray",
        type=Path,
        metavar="WHEEL",
        help="write Ray's wheel again without what a run does not use, into the folder stripped/ beside it",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
