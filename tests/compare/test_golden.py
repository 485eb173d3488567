"""What may not move when results and compare are rebuilt: figures and verdicts of every recorded run, in golden.json.

The functions that end in ``_of`` are all that ask the code under test. ``pytest tests/compare/test_golden.py
--update-golden`` writes what they return now. How lanes share a step's time is counted in ``test_occupancy.py``.
"""

import json
from pathlib import Path

import pytest

from harness.compare.run_frame import TIMING
from harness.core.trace import Stage
from harness.report.as_json import comparison
from tests.compare.recorded import NAMES, recorded

FILE = Path(__file__).with_name("golden.json")
INTERVAL = ("mean", "low", "high")


def verdicts_of(experiments):
    """Return base, other, verdicts and reward difference of each comparison, by experiment, arm and name."""
    tables = {}
    for experiment in comparison(experiments, [])["campaigns"]:
        arms = {}
        for judged in experiment["verdicts"]:
            effects = [judged["endpoint"], judged["step"], *judged["stages"]]
            read = {
                item["name"]: [item[key] for key in ("ratio", "low", "high", "verdict")] for item in effects if item
            }
            arms[judged["other"]] = {"base": judged["base"], **read}
        for arm in experiment["variants"]:
            if arm["step_ratio"] is not None:
                reward = arm["reward_last_difference"]
                arms[arm["name"]]["step_ratio"] = arm["step_ratio"]
                arms[arm["name"]]["reward"] = reward and [reward["baseline"], *(reward[key] for key in INTERVAL)]
        tables[f"{experiment['scenario']}/{experiment['campaign']}"] = arms
    return tables


def figures_of(member):
    """Return a run's times, its measured window (warm-up, first and last step, steps) and its rewards."""
    figures = member.figures
    window = [figures.get(name) for name in ("warmup_steps", "first_measured", "last_measured", "measured_steps")]
    return {
        "step_s": figures.get("step_s"),
        "window": window if figures["measured_steps"] else None,
        "throughput": figures["tokens_per_s"],
        "rewards": [figures.get(f"reward_{name}") for name in ("first", "best", "last")],
        "stages_s": {stage.value: figures[TIMING + stage] for stage in Stage if TIMING + stage in figures},
    }


def _write(tables):
    """Write the tables with a line for each run or comparison, floats with 12 significant digits."""

    def line(item):
        rounded = json.loads(json.dumps(item), parse_float=lambda text: float(f"{float(text):.12g}"))
        return json.dumps(rounded, separators=(",", ":"))

    def object_of(items):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {text}" for key, text in items.items()) + "\n}"

    lines = {name: object_of({key: line(item) for key, item in table.items()}) for name, table in tables.items()}
    FILE.write_text(object_of(lines) + "\n", encoding="utf-8")


def _flat(value, place=""):
    """Yield everything in nested mappings and lists with its place."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _flat(item, f"{place} > {key}")
    if not isinstance(value, dict | list):
        yield place, value


def test_no_figure_of_a_recorded_run_moved(request):
    """Floats may by rounding to the digits that are stored."""
    experiments = [experiment for name in NAMES for experiment in recorded(name)]
    members = [member for experiment in experiments for member in experiment.members if len(member.table)]
    figures = {f"{member.manifest.scenario}/{member.run.folder.name}": figures_of(member) for member in members}
    today = json.loads(json.dumps({"verdicts": verdicts_of(experiments), "figures": figures}))
    if request.config.getoption("--update-golden"):
        _write(today)
    before, after = (dict(_flat(each)) for each in (json.loads(FILE.read_text(encoding="utf-8")), today))
    known = {at: pytest.approx(it, rel=1e-11, abs=1e-14) if isinstance(it, float) else it for at, it in before.items()}
    moved = [at for at in {**before, **after} if after.get(at, "missing") != known.get(at, "missing")]
    assert [f"{at}: {before.get(at)!r} was, {after.get(at)!r} is" for at in moved[:20]] == []
