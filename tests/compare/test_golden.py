"""What may not move when results, compare and report are rebuilt: figures of every recorded run, in golden.json.

The recorded runs have one lane of each part and no KL, so one run beside them is written here. The functions that end
in ``_of`` are all that ask the code under test. ``pytest tests/compare/test_golden.py --update-golden`` writes what
they return now.
"""

import io
import json
from contextlib import redirect_stdout
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest

from harness.compare.__main__ import main
from harness.compare.experiment import member_of
from harness.compare.run_frame import TIMING, UNATTRIBUTED
from harness.core.trace import Stage
from harness.results.frames import load_results, read_table

REFERENCE = Path(__file__).parents[2] / "results/reference"
EXPERIMENTS = (
    "async_lag1", "course", "paced_overlap", "qwen_1_5b", "rdt_nixl", "sync_k", "sync_k1-vs-sync_k2",
    "transport_sweep",
)  # fmt: skip
FILE = Path(__file__).with_name("golden.json")
METRICS = (
    "grad_norm", "response_length", "clip_fraction", "loss", "reward/total",
    "sync/bytes", "sync/publish_s", "sync/transfer_s", "sync/load_s", "sync/verify_s",
)  # fmt: skip
INTERVAL = ("mean", "low", "high")


def verdicts_of(folders):
    """Return base, other, verdicts and reward difference of each comparison, by experiment, arm and name."""
    text = io.StringIO()
    with redirect_stdout(text):
        assert main([*map(str, folders), "--json"]) == 0
    tables = {}
    for experiment in json.loads(text.getvalue())["campaigns"]:
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


@cache
def _member(folder):
    return member_of(read_table(folder))


def _times(run):
    times = _member(run.folder).times
    return times


def lane_times_of(run):
    """Return the nanoseconds of each stage and wait of each lane and part in the measured window, and of none."""
    times = _times(run)
    return {
        lane: {stage.value: ns for stage, ns in account.stages_ns.items()} | {"none": account.unattributed_ns}
        for lane, account in (times.parts | times.lanes).items()
    }


def exposed_of(run):
    """Return the exposed nanoseconds of each stage in the measured window, and those of nobody."""
    exposed = _times(run).exposed
    return {"nobody" if name == UNATTRIBUTED else name: ns for name, ns in exposed.items()}


def overlap_of(run):
    """Return the nanoseconds that lanes worked, added up, at least one worked and at least two did."""
    times = _times(run)
    times_s = {"worked": times.worked_s, "busy": times.busy_s, "together": times.together_s}
    return {name: round(seconds * 1e9) for name, seconds in times_s.items()}


def figures_of(run):
    """Return a run's times, its measured window (warm-up, first and last step, steps) and its rewards."""
    figures = _member(run.folder).figures
    window = [figures.get(name) for name in ("warmup_steps", "first_measured", "last_measured", "measured_steps")]
    return {
        "step_s": figures.get("step_s"),
        "window": window if figures["measured_steps"] else None,
        "throughput": figures["tokens_per_s"],
        "rewards": [figures.get(f"reward_{name}") for name in ("first", "best", "last")],
        "stages_s": {stage.value: figures[TIMING + stage] for stage in Stage if TIMING + stage in figures},
    }


def curves_of(results):
    """Yield (run, name, points) of every curve of every run; points of shape [points, 2], in order."""
    whole = (results.steps, results.evaluations, results.syncs)
    by_run = [dict(iter(frame.groupby("run"))) if len(frame) else {} for frame in whole]
    for number, run in enumerate(results.runs):
        steps, evaluations, syncs = (frames.get(number, pd.DataFrame()) for frames in by_run)
        lags = _member(run.folder).table.lags
        trained = np.array([0, *accumulate(sum(step.values()) for step in lags)])
        if len(evaluations):
            evaluations = evaluations.assign(rollouts=trained[evaluations["step"]])
        validation = [(evaluations, x, "validation/reward") for x in ("step", "rollouts", "elapsed_s")]
        validation += [(evaluations, "step", "validation/response_length")]
        training = [(steps, "step", name) for name in steps if name in METRICS or name.startswith("kl/")]
        timed = [(syncs, "num_bytes", name) for name in syncs if name.endswith("_s")]
        for frame, x, y in [*validation, *training, *timed]:
            points = np.column_stack([frame[x], frame[y]]).astype("<f8") if y in frame else np.empty((0, 2))
            if len(points := points[~np.isnan(points[:, 1])]):
                yield run, y if x == "step" else f"{y} over {x}", points


LANES = {
    "generator1": ("generate", "weight_load", "weight_verify", "weight_transfer", "wait_for_weights", "evaluate"),
    "generator2": ("generate", "weight_load", "weight_verify", "weight_transfer", "wait_for_call"),
    "scorer1": ("score", "wait_for_rollouts", "evaluate"),
    "scorer2": ("score", "wait_for_rollouts"),
    "learner/0": ("update", "prepare_batch", "weight_publish", "wait_for_batch", "wait_for_recorder"),
    "learner/1": ("update", "prepare_batch", "wait_for_batch", "wait_for_recorder"),
}


def write_run(folder):
    """Write a run of six steps of 1 s whose spans are drawn: within each other, across each other and side by side.

    Two of them may begin at once. A profiler runs in step 3, so the measured window is in two parts, and an evaluation
    ends after the last step. KL is NaN in one step.
    """
    draw, ms, startup_ms = Random(37), 1_000_000, 2_000
    head = {"step": 0, "version": 0}
    spans = [head | {"lane": lane, "stage": "startup", "start_ns": 0, "end_ns": startup_ms * ms} for lane in LANES]
    for lane, stages in LANES.items():
        times = {(start := draw.randrange(startup_ms, 8_400, 50), start + draw.randrange(5, 300)) for _ in range(40)}
        for start, end in sorted(times, key=lambda time: (time[1], -time[0])):
            stage = draw.choice(stages)
            spans.append(head | {"lane": lane, "stage": stage, "start_ns": start * ms + 1, "end_ns": end * ms})
    rows = []
    for step in range(6):
        metrics = {f"kl/reference_{name}": {"mean": draw.random(), "count": 64} for name in ("k1", "k3")}
        times_s = {"wall_s": 1.0, "elapsed_s": step + 1.0, "optimizer_steps": 1, "lanes": {}, "stages_s": {}}
        row = {"kind": "step", "step": step, "version": step + 1, **times_s, "metrics": metrics, "lags": {"0": 64}}
        if step == 4:
            metrics["kl/reference_k3"]["mean"] = None
            row["non_finite"] = {"/metrics/kl~1reference_k3/mean": "nan"}
        rows.append(row | ({"profiled": True} if step == 3 else {}))
    rows.append({"kind": "tail", "wall_s": 0.4, "elapsed_s": 6.4, "lanes": {}, "stages_s": {"evaluate": 0.3}})
    manifest = {"scenario": "made", "experiment": folder.parent.name, "arm": folder.name, "status": "completed"}
    manifest |= {"seed": 0, "started_at": "2026-11-26T00:00:00.000Z"}
    manifest |= {"schema": "harness.manifest", "schema_version": 1}
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name, lines in (("spans", spans), ("steps", rows)):
        lines = [{"kind": "header", "schema": f"harness.{name}", "schema_version": 1}, *lines]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _digest(points):
    """Write how many points there are, the first and the last value, and the digest of all of them as doubles."""
    return f"{len(points)} {points[0, 1]:.4g} {points[-1, 1]:.4g} {sha256(points.tobytes()).hexdigest()[:8]}"


def _name(run):
    return f"{run.manifest.scenario}/{run.folder.name}"


def _today(made):
    results = [load_results(folder) for folder in (*(REFERENCE / name for name in EXPERIMENTS), made)]
    runs = {_name(run): run for item in results for run in item.runs}
    curves = {name: {} for name in runs}
    for item in results:
        for run, name, points in curves_of(item):
            curves[_name(run)][name] = _digest(points)
    recorded = {name: run for name, run in runs.items() if run.spans()}

    def table(read, over=recorded):
        return {name: read(run) for name, run in over.items()}

    return {
        "verdicts": verdicts_of([REFERENCE / name for name in EXPERIMENTS]),
        "lanes": table(lane_times_of),
        "exposed": table(exposed_of),
        "overlap": table(overlap_of),
        "figures": table(figures_of, {name: run for name, run in runs.items() if len(_member(run.folder).table)}),
        "curves": curves,
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


@pytest.fixture(scope="module")
def tables(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("results") / "made/20261126-000000/drawn"
    write_run(made)
    today = _today(made)
    if request.config.getoption("--update-golden"):
        _write(today)
    return json.loads(FILE.read_text(encoding="utf-8")), today


@pytest.mark.parametrize("name", ["verdicts", "lanes", "exposed", "overlap", "figures", "curves"])
def test_no_figure_of_a_recorded_run_moved(tables, name):
    """Floats may by rounding to the digits that are stored."""
    before, after = (dict(_flat(each[name])) for each in tables)
    known = {at: pytest.approx(it, rel=1e-11, abs=1e-14) if isinstance(it, float) else it for at, it in before.items()}
    moved = [at for at in {**before, **after} if after.get(at, "missing") != known.get(at, "missing")]
    assert [f"{at}: {before.get(at)!r} was, {after.get(at)!r} is" for at in moved[:20]] == []
