"""What the release before this one had, and what to use instead: refused by name for one release."""

from __future__ import annotations

from harness.core.errors import UserError

_DEVICE = "leave it out: a GPU is taken if there is one, and an empty CUDA_VISIBLE_DEVICES hides it"
_PICTURE = "--out DIR: the picture is drawn there"
_BOUND = "name another run; from Python harness.simulate.whatif.answer.what_if takes a bound"
INSTEAD = {
    "baseline": "run the scenario once for each occasion; then python -m harness compare NEW --against FOLDER FOLDER",
    "--save-baseline": "a results folder is a baseline: python -m harness compare NEW --against FOLDER FOLDER",
    "stored:": "name the folders of the baseline's experiments: python -m harness compare NEW --against FOLDER FOLDER",
    "arm:": "name the arm alone: --baseline ARM",
    "--pareto": "python -m harness compare PATH --plots DIR draws scatter.png, of seconds per step and reward",
    "--devices": "leave it out: verl's logs hold the tokens of all devices",
    "evaluate --device": _DEVICE,
    "dataset --device": _DEVICE,
    "evaluate --min-tokens": "leave it out: a response may be as short as the model makes it",
    "evaluate --format": "--json",
    "dataset --top-p": "--temperature",
    "schema": "python -m harness validate --schema",
    "--stop-at-half-width": "--set stop_at_half_width=0.01",
    "--attempts": "leave it out: sweep starts a run that fails up to 3 times",
    "--retry-failed": "python -m harness run --resume FOLDER, with the sweep's folder, tries again what failed",
    "--fresh": "begin anew in another folder: --out DIR",
    "list --all": "leave it out: list shows all, and WORD those that have it",
    "compare --format": "--json, or --md",
    "report --out": "-o FILE",
    "trace --json": "leave it out: the file is JSON itself",
    "recompute": "python -m harness oracle RUN_FOLDER --step N",
    "import -o": "--out DIR",
    "calibrate --exclude-model": "name the runs to fit: --from FOLDER FOLDER",
    "calibrate --description": "edit `description` in the profile, which is a YAML file",
    "calibrate --precision": "--set model.precision=bfloat16 --set engine.precision=bfloat16",
    "calibrate --results": "--out DIR",
    "simulate --model": "--set model.type=folder --set model.path=Qwen/Qwen2.5-7B; or --sweep model=1.5b,7b",
    "simulate --generators": "--set placement.generator.count=N",
    "simulate --allow-other-versions": "--allow versions",
    "simulate --seed": "leave it out; from Python harness.simulate_scenario takes a seed",
    "simulate --steps": "--set steps=N",
    "simulate --processes": "leave it out: a sweep works on all cores",
    "simulate --no-run": "leave it out: runs are written only with --out DIR",
    "simulate --error-bound": _BOUND,
    "whatif --error-bound": _BOUND,
    "simulate -o": _PICTURE,
    "simulate --output": _PICTURE,
    "whatif -o": _PICTURE,
    "whatif --output": _PICTURE,
    ".json": "compare files of pytest-benchmark with: pytest-benchmark compare FILE FILE",
}
"""By a command, an option (of one command, behind its name), the beginning of a value or the end of a path."""


def removed(name: str, typed: str, where: str | None = None) -> UserError:
    """Return the refusal of what was typed, for a name of ``INSTEAD``."""
    return UserError(f"{typed!r} is no longer offered", where, INSTEAD[name])
