"""Stored baselines: what the file keeps, which occasions are taken, and what a list says of their spread."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, log, sqrt
from pathlib import Path
from typing import Any

import pytest

from harness.compare import gather
from harness.compare.baselines import (
    Entry,
    Occasions,
    add_occasion,
    baseline_cautions,
    baselines_table,
    load_baseline,
    occasions_needed,
    occasions_of,
    read_baselines,
    remove_baseline,
)
from harness.compare.experiments import Experiment
from harness.compare.gates import Judge, Named, read_name
from harness.compare.stats import Verdict
from harness.compare.verdicts import judge_against
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.results import RunFolder

Make = Callable[..., RunFolder]
SETTINGS = "steps: 6\nreward_target: 0.5\nmax_lag: 0\ngroup_size: 8\n"


def occasion(
    make_run: Make, tmp_path: Path, day: int, seconds: Sequence[float], arm: str = "a", **fields: Any
) -> Experiment:
    """Write an experiment of one arm, a block for each number of seconds that a step takes, and read it."""
    name = f"202611{day:02d}-080000"
    for block, step_s in enumerate(seconds):
        stages = (("generator", Stage.GENERATE, step_s / 2), ("learner", Stage.UPDATE, step_s / 2))
        plan = {"arm": arm, "block": block, "seed": block, "steps": 6, "stages": stages, "settings": SETTINGS}
        started_at = f"2026-11-{day:02d}T08:{block:02d}:00.000Z"
        make_run(**plan | {"experiment": name, "started_at": started_at} | fields)
    scenario = fields.get("scenario", "sync_k")
    (experiment,), damaged = gather([tmp_path / "results" / scenario / name])
    assert damaged == []
    return experiment


def test_each_occasion_is_kept_with_its_experiment(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    counts = [add_occasion(results, "main", occasion(make_run, tmp_path, day, [1.0] * 2)) for day in (1, 2, 3)]
    assert counts == [1, 2, 3]
    places = tuple(f"sync_k/202611{day:02d}-080000" for day in (1, 2, 3))
    assert read_baselines(results) == {"main": Entry("a", places)}
    baseline = load_baseline(results, "main")
    assert [item.name for item in baseline.occasions] == [f"202611{day:02d}-080000" for day in (1, 2, 3)]
    assert (baseline.experiment.name, baseline.variant.name) == ("20261103-080000", "a")
    assert len(baseline.runs_of("a")) == 6
    assert remove_baseline(results, "main") == 3
    assert read_baselines(results) == {}


def test_a_file_of_before_there_were_occasions_has_one(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    experiment = occasion(make_run, tmp_path, 1, [1.0] * 2)
    entry = {"campaign": "sync_k/20261101-080000", "arm": "a"}
    (results / "baselines.json").write_text(json.dumps({"schema_version": 1, "baselines": {"main": entry}}))
    assert load_baseline(results, "main").occasions == (experiment,)
    assert add_occasion(results, "main", occasion(make_run, tmp_path, 2, [1.0] * 2)) == 2
    saved = json.loads((results / "baselines.json").read_text())["baselines"]["main"]
    assert saved["campaign"] == "sync_k/20261102-080000"  # all that an older version reads
    assert (saved["arm"], len(saved["occasions"])) == ("a", 2)


def test_occasions_say_how_far_they_lie_apart(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    # the value of an occasion is the geometric mean of its blocks: 1, 1.02 and 1.04 s
    for day, step_s in ((1, 1.0), (2, 1.02), (5, 1.04)):
        add_occasion(results, "main", occasion(make_run, tmp_path, day, [step_s * 1.01, step_s / 1.01]))
    found = occasions_of(load_baseline(results, "main"))
    assert found.seconds_per_step == pytest.approx([1.0, 1.02, 1.04], rel=1e-6)
    logs = [0.0, log(1.02), log(1.04)]
    mean = sum(logs) / 3
    assert found.mean_s == pytest.approx(exp(mean), rel=1e-6)
    assert found.spread == pytest.approx(sqrt(sum((value - mean) ** 2 for value in logs) / 2), rel=1e-6)
    assert found.span_s == 4 * 24 * 3600
    assert baseline_cautions(found) == []
    (row,) = baselines_table(results).rows
    assert row[:6] == ("main", "a", "3", "2026-11-01 08:00", "2026-11-05 08:00", "1.02")
    assert row[6] == "1.96%"


def test_how_many_occasions_are_needed() -> None:
    """t_{K-1}(.975) * sd * sqrt(1 + 1 / K) has to be below log(1 + change), for sd 2%.

    t from https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm:
    5 occasions 2.776 * 0.02 * sqrt(6 / 5) = 0.0608, 10 occasions 2.262 * 0.02 * sqrt(11 / 10) = 0.0474,
    9 occasions 2.306 * 0.02 * sqrt(10 / 9) = 0.0486, 8 occasions 2.365 * 0.02 * sqrt(9 / 8) = 0.0502;
    3 occasions 4.303 * 0.02 * sqrt(4 / 3) = 0.0994, 2 occasions 12.706 * 0.02 * sqrt(3 / 2) = 0.311.
    """
    assert log(1.05) == pytest.approx(0.04879, abs=1e-5)
    assert occasions_needed(0.05, 0.02) == 9
    assert occasions_needed(0.10, 0.02) == 4  # log 1.1 is 0.0953; 4 occasions reach 3.182 * 0.02 * sqrt(5 / 4) = 0.0712
    assert occasions_needed(0.15, 0.02) == 3  # log 1.15 is 0.1398
    assert occasions_needed(0.05, 0.05) == inf  # 1.96 * 0.05 is beyond it with any number of occasions


@pytest.mark.parametrize(
    ("starts", "commits", "cautions"),
    [
        (["2026-11-20T08:00:00.000Z"], ["a"], 1),
        (["2026-11-20T08:00:00.000Z", "2026-11-20T08:59:00.000Z"], ["a"], 1),
        (["2026-11-20T08:00:00.000Z", "2026-11-20T09:01:00.000Z"], ["a"], 0),
        (["2026-11-20T08:00:00.000Z", "2026-11-21T08:00:00.000Z"], ["a", "b"], 1),
    ],
)
def test_what_keeps_a_spread_from_being_that_of_another_day(
    starts: list[str], commits: list[str], cautions: int
) -> None:
    found = Occasions(tuple(starts), tuple(1.0 for _ in starts), tuple(commits))
    assert len(baseline_cautions(found)) == cautions


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"settings": SETTINGS.replace("8", "4")}, "group_size (8, 4)"),
        ({"machine": {"fingerprint": "f" * 12}}, "machine"),
        ({"versions": {"python": "3.11.7", "torch": "2.14.0"}}, "torch 2.14.0"),
        ({"threads": 1}, "threads"),
        ({"scenario": "other"}, "scenarios sync_k and other"),
        ({"arm": "b"}, "'a'"),
        ({"status": "interrupted"}, "did not finish"),
    ],
)
def test_an_occasion_that_is_unlike_the_others_or_not_whole_is_refused(
    make_run: Make, tmp_path: Path, fields: dict[str, Any], word: str
) -> None:
    results = tmp_path / "results"
    add_occasion(results, "main", occasion(make_run, tmp_path, 1, [1.0] * 2))
    unlike = occasion(make_run, tmp_path, 2, [1.0] * 2, **fields)
    before = (results / "baselines.json").read_bytes()
    with pytest.raises(UserError) as refused:
        add_occasion(results, "main", unlike, unlike.variants[0].name)
    assert word in str(refused.value)
    assert (results / "baselines.json").read_bytes() == before


def test_an_occasion_is_taken_once(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    experiment = occasion(make_run, tmp_path, 1, [1.0] * 2)
    add_occasion(results, "main", experiment)
    with pytest.raises(UserError):
        add_occasion(results, "main", experiment)


def test_an_occasion_that_has_lost_a_run_is_no_baseline_any_more(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_occasion(results, "main", occasion(make_run, tmp_path, 1, [1.0] * 3))
    (results / "sync_k" / "20261101-080000" / "a,block=1" / "steps.jsonl").unlink()
    with pytest.raises(UserError) as refused:
        load_baseline(results, "main")
    assert "a,block=1" in str(refused.value)
    table = baselines_table(results)
    assert table.rows[0][:3] == ("main", "a", "1")
    assert "a,block=1" in table.notes[-1]


def test_a_baseline_is_set_against_a_later_experiment_without_pairing(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for day in (1, 2):
        add_occasion(results, "main", occasion(make_run, tmp_path, day, [1 + 0.001 * block for block in range(8)]))
    new = occasion(make_run, tmp_path, 9, [1.5 + 0.001 * block for block in range(8)])
    (found,) = judge_against(load_baseline(results, "main"), new, 0.03, ())
    assert found.step.ratio == pytest.approx(1.5035 / 1.0035, rel=1e-4)  # the geometric means are these to 1e-5
    assert (found.step.verdict, found.alternated) == (Verdict.DIFFERENT, None)


def test_a_judge_comes_to_verdicts_once_with_its_threshold(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for day in (1, 2):
        add_occasion(results, "main", occasion(make_run, tmp_path, day, [1.0] * 6))
    new = occasion(make_run, tmp_path, 9, [1.0] * 6)
    judge = Judge(results, Named("stored", "main"), threshold=0.2)
    (found,) = judge(new)
    assert (found.other, found.step.threshold) == ("a", 0.2)
    assert judge(new) is judge(new)


def test_an_experiment_without_the_arm_that_is_the_baseline_shows_its_first_one(make_run: Make, tmp_path: Path) -> None:
    occasion(make_run, tmp_path, 1, [1.0], arm="b")
    experiment = occasion(make_run, tmp_path, 1, [1.0], arm="d")
    (found,) = Judge(tmp_path / "results", Named("arm", "c"))(experiment)
    assert (found.base, found.other) == ("b", "d")


def test_a_baseline_of_another_scenario_is_not_comparable(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_occasion(results, "main", occasion(make_run, tmp_path, 1, [1.0] * 8, scenario="old"))
    new = occasion(make_run, tmp_path, 2, [1.0] * 8, scenario="new")
    (found,) = judge_against(load_baseline(results, "main"), new, 0.03, ())
    assert found.step.verdict is Verdict.NOT_COMPARABLE
    assert "they are runs of the scenarios old and new" in (found.step.reason or "")


def test_settings_that_were_not_saved_are_not_alike(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_occasion(results, "main", occasion(make_run, tmp_path, 1, [1.0] * 8))
    new = occasion(make_run, tmp_path, 2, [1.0] * 8)
    runs = tuple(replace(run, settings={}) for run in new.runs)
    unknown = replace(new, variants=(replace(new.variants[0], runs=runs),))
    (found,) = judge_against(load_baseline(results, "main"), unknown, 0.03, ())
    assert found.step.verdict is Verdict.NOT_COMPARABLE


def test_what_a_name_stands_for(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_occasion(results, "main", occasion(make_run, tmp_path, 1, [1.0] * 2))
    assert read_name("main", results, ["a", "b"]) == Named("stored", "main")
    assert read_name("a", results, ["a", "b"]) == Named("arm", "a")
    assert read_name("stored:main", results, ["main"]) == Named("stored", "main")
    assert read_name("arm:main", results, ["main"]) == Named("arm", "main")
    with pytest.raises(UserError):
        read_name("main", results, ["main"])
    for name in ("gone", "arm:main"):
        with pytest.raises(UserError, match=r"\(a, b\)"):
            read_name(name, results, ["a", "b"])


def test_baselines_that_are_not_there_or_damaged_are_said_so(make_run: Make, tmp_path: Path) -> None:
    results = tmp_path / "results"
    experiment = occasion(make_run, tmp_path, 1, [1.0])
    with pytest.raises(UserError):
        load_baseline(results, "main")
    with pytest.raises(UserError):
        remove_baseline(results, "main")
    with pytest.raises(UserError):
        add_occasion(tmp_path / "elsewhere", "main", experiment)
    with pytest.raises(UserError):
        add_occasion(results, "main", experiment, arm="z")
    add_occasion(results, "main", experiment)
    damaged = (
        "{",
        "[]",
        '{"schema_version": 1, "baselines": {"main": {"campaign": 3}}}',
        '{"schema_version": 1, "baselines": {"main": {"campaign": "x", "arm": "a", "occasions": []}}}',
        '{"baselines": {}}',
    )
    for text in damaged:
        (results / "baselines.json").write_text(text)
        with pytest.raises(UserError, match=r"baselines\.json"):
            load_baseline(results, "main")
        with pytest.raises(UserError, match=r"baselines\.json"):  # what cannot be read is not overwritten
            add_occasion(results, "other", experiment)
        assert (results / "baselines.json").read_text() == text
