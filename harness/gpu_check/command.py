"""``python -m harness gpu-check``: its arguments, its phases, and what a bare machine is told."""

from __future__ import annotations

import argparse
import math
import shutil
from pathlib import Path

from harness.core.arguments import out_argument
from harness.core.errors import UserError
from harness.core.extras import program

PHASES = {
    "probe": ("what the device can do, and whether its instruments tell the truth", "probe:run", 240),
    "parity": ("every branch that only a GPU takes, against the CPU", "parity:run", 300),
    "scenarios": ("small scenarios on both devices", "runs:scenarios", 540),
    "speed": ("decode step, draw, CUDA graph, microbatch, head, optimizer", "speed:run", 540),
    "pair": ("weights that another process reads in place", "two_parts:pair", 240),
    "overlap": ("decoding beside training, with and without stream priority", "two_parts:overlap", 240),
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
LEAN = ("probe", "parity", "pair", "overlap", "model", "big", "speed", "profile", "ray")
"""What rented minutes are spent on, best first; ``model`` is made beside, and waited for before ``big``."""
DESCRIPTION = "Check a machine: is every number right, how fast is it, does everything run?"
EXAMPLES = """examples:
  python -m harness gpu-check --phase probe --phase parity
  python -m harness gpu-check --lean --budget 555 --out build/check

Exit codes: 0 no phase failed, 1 one did, 2 bad usage or missing packages."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    about = f"one of {', '.join(PHASES)}; may be repeated"
    parser.add_argument("--phase", action="append", choices=tuple(PHASES), metavar="NAME", help=about)
    out_argument(parser, Path("build/gpu_check"), "for figures and output of the phases (default: build/gpu_check)")
    lean = "for rented minutes: best phases first, CPU runs left out, what they leave in one archive in DIR"
    parser.add_argument("--lean", action="store_true", help=lean)
    parser.add_argument(
        "--budget", type=_seconds, default=math.inf, metavar="S", help="seconds for all phases (default: no limit)"
    )
    parser.add_argument("--list", action="store_true", help="show the phases and their time limits")
    wheels = "list what to bring to a machine, given its `pip freeze` in a file (default: this one)"
    parser.add_argument("--wheels", nargs="?", type=Path, const=Path(), metavar="FREEZE", help=wheels)
    strip = "write Ray's wheel again without what a run does not use, into the folder stripped/ beside it"
    parser.add_argument("--strip-ray", type=Path, metavar="WHEEL", help=strip)


def _seconds(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Run the chosen phases, or say what a bare machine lacks; return the exit code, 1 where a phase failed."""
    from harness.gpu_check.wheels import missing_packages, strip_ray, wheel_lines

    names = LEAN if options.lean else tuple(PHASES)
    if options.wheels is not None:
        if options.wheels != Path() and not options.wheels.is_file():
            raise UserError(f"there is no file {options.wheels}", "--wheels", "write it with `pip freeze` over there")
        print("\n".join(wheel_lines(options.wheels)))
        return 0
    if options.strip_ray is not None:
        if not options.strip_ray.is_file() or shutil.which("strip") is None:
            raise UserError(f"no wheel {options.strip_ray}, or no program `strip`", "--strip-ray", "both are needed")
        small = strip_ray(options.strip_ray, options.strip_ray.parent / "stripped")
        print(f"{small}: {small.stat().st_size / 2**20:.1f} MiB")
        return 0
    if left_out := sorted(set(options.phase or ()) - set(names)):
        raise UserError(f"{', '.join(left_out)} is none of --lean", "--phase", f"it has {', '.join(LEAN)}")
    if missing := missing_packages():
        fix = f"bring the wheels that `{program()} gpu-check --wheels` lists (docs/gpu_check.md)"
        raise UserError(f"not installed here: {', '.join(missing)}", None, fix)
    if options.list:
        print("\n".join(f"{name:<11} {PHASES[name][0]}; at most {PHASES[name][2]} s" for name in names))
        return 0
    from harness.gpu_check.runner import Phase, run_phases

    phases = []
    for name in (name for name in names if name in (options.phase or names)):
        purpose, target, limit_s = PHASES[name]
        beside = options.lean and name == "model"
        phases.append(Phase(name, purpose, f"harness.gpu_check.{target}", limit_s, beside))
    return run_phases(phases, options.out.absolute(), lean=options.lean, budget_s=options.budget)
