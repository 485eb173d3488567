"""What runs have in common, what parts cost each other, and transports that only a sweep has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.simulate.calibrate.effects import costs_of_other_transports, fit_contention, run_correlation, run_speeds
from harness.simulate.calibrate.observations import Observation
from harness.simulate.features import sync_features
from tests.simulate.conftest import cost

STAGES = (cost("generate", row=0.001), cost("update", row=0.002))


def _seen(
    stage: str, rows: float, seconds: float, run: str = "a", others: float = 0.0, arm: str = "small"
) -> Observation:
    return Observation(stage, {}, "small", {"row": rows}, seconds, run, arm, 3, others)


def test_a_runs_speed_is_that_of_its_longer_spans() -> None:
    """100 and 200 ms were predicted, 120 and 210 took place: 330 / 300. 1 ms is too short to count."""
    seen = [_seen("generate", 100, 0.12), _seen("update", 100, 0.21), _seen("generate", 1, 0.5)]
    assert run_speeds(seen, STAGES) == pytest.approx({"a": 1.1})


@pytest.mark.parametrize(
    ("alone_s", "beside", "slowdown"),
    [
        # 100 ms of work, another part working for 80% of the 112 ms that it took:
        # p / y = 1 - f q: 1 - 100 / 112 = 0.107 = 0.8 q, so q = 0.134 and s = q / (1 - q) = 0.155
        (0.2, [_seen("generate", 100, 0.112, others=0.8)], 0.1546),
        # a run that takes 20% longer throughout: alone 240 ms for 200, overlapped 144 ms for 100: 144 / 120 = 1.2
        (0.24, [_seen("generate", 100, 0.144, others=1.0)], 0.2),
        # the way of a call is no work that contention slows
        (0.2, [_seen("call", 100, 0.01, others=1.0), _seen("generate", 100, 0.1, others=1.0)], 0.0),
    ],
)
def test_overlapped_spans_tell_the_slow_down(alone_s: float, beside: list[Observation], slowdown: float) -> None:
    stages = (*STAGES, cost("call", row=0.001))
    contention, said = fit_contention([_seen("update", 100, alone_s), *beside], stages, cores=2)
    assert contention.slowdown == pytest.approx(slowdown, rel=1e-3, abs=1e-9)
    # q = s / (1 + s), known to 0.05 at best from one run: ds = dq / (1 - q)^2 = 0.05 (1 + s)^2
    assert contention.slowdown_sd == pytest.approx(0.05 * (1 + slowdown) ** 2, rel=1e-3)
    assert "1 spans of 1 run" in said[0]


def test_spans_hardly_overlapped_and_those_with_more_at_work_than_cores_say_nothing() -> None:
    seen = [_seen("update", 100, 0.2), _seen("generate", 100, 0.5, others=0.3), _seen("generate", 100, 0.9, others=2)]
    contention, said = fit_contention(seen, STAGES, cores=2)
    assert contention.slowdown == 0.2
    assert "was assumed" in said[0]


def test_stages_that_are_slow_in_the_same_runs_hang_together() -> None:
    speeds = np.array([0.9, 1.0, 1.1, 1.2, 0.95, 1.05])
    seen = [_seen("generate", 100, 0.1 * speed, run=str(run)) for run, speed in enumerate(speeds)]
    together = [_seen("update", 100, 0.2 * speed, run=str(run)) for run, speed in enumerate(speeds)]
    assert run_correlation([*seen, *together], STAGES) == 0.95  # the most that is stated
    assert run_correlation([*seen[:4], *together[:4]], STAGES) == 0.5  # assumed: too few runs
    # deviations from the mean of logs, one stage against the other: hand-picked to be hardly correlated
    across = [1.0, 1.1, 1.0, 1.1, 1.1, 0.9]
    other = [_seen("update", 100, 0.2 * factor, run=str(run)) for run, factor in enumerate(across)]
    expected = float(np.corrcoef(np.log(speeds), np.log(across))[0, 1])
    assert 0 < expected < 0.95
    assert run_correlation([*seen, *other], STAGES) == pytest.approx(expected)
    against = [_seen("update", 100, 0.2 / speed, run=str(run)) for run, speed in enumerate(speeds)]
    assert run_correlation([*seen, *against], STAGES) == 0.0


def test_what_the_fit_misses_an_arm_by_is_no_slow_run() -> None:
    """In one arm generating takes 1.3 times as long as predicted, in the other one updating: runs are as slow as ever.

    Over all runs these effects go against each other; within the arms, each stage is as fast as its run.
    """
    speeds = {"0": 0.9, "1": 1.0, "2": 1.1, "3": 0.95, "4": 1.0, "5": 1.05}
    missed = {"a": {"generate": 1.3, "update": 1.0}, "b": {"generate": 1.0, "update": 1.3}}
    seen = [
        _seen(stage, 100, predicted * speed * missed[arm][stage], run=run, arm=arm)
        for run, speed in speeds.items()
        for arm in ["a" if int(run) < 3 else "b"]
        for stage, predicted in (("generate", 0.1), ("update", 0.2))
    ]
    assert run_correlation(seen, STAGES) == 0.95


GENERATORS_SHARE = cost("weight_verify", {"part": "generator"}, gb=0.05)


def _sync(stage: str, transport: str, gb: float, seconds: float, run: str = "sweep") -> Observation:
    units = sync_features(gb * 1e9, 10)
    return Observation(stage, {"transport": transport}, "", units, seconds, run, run, 1)


def _sweep(transport: str) -> list[Observation]:
    """Publishing costs 0.2 s a GB, travelling 0.4, and both verifications together 0.15."""
    costs = {"weight_publish": 0.2, "weight_transfer": 0.4, "weight_verify": 0.15}
    return [_sync(stage, transport, gb, each * gb) for gb in (0.01, 0.1) for stage, each in costs.items()]


def _in_training(transport: str) -> list[Observation]:
    return [_sync("weight_publish", transport, gb, 0.1 * gb, run="training") for gb in (0.02, 0.05)]


def test_a_transport_that_no_training_run_has_takes_over_how_those_that_have_it_relate() -> None:
    """In training, shared memory is published in half the time of isolated syncs: so is nixl's then."""
    slow = [replace(item, seconds=9 * item.seconds, others=1.0) for item in _sweep("nixl")]  # two receivers: no cost
    sweep = [*_sweep("nixl"), *slow, *_sweep("shared_memory")]
    costs, notes = costs_of_other_transports(sweep, _in_training("shared_memory"), (GENERATORS_SHARE,))
    told = {(each.stage, each.where.get("part"), each.where["transport"]): each.seconds for each in costs}
    assert told == {
        ("weight_publish", None, "nixl"): {"gb": pytest.approx(0.1, rel=1e-4)},
        ("weight_transfer", None, "nixl"): {"gb": pytest.approx(0.4, rel=1e-4)},
        ("weight_verify", "learner", "nixl"): {"gb": pytest.approx(0.1, rel=1e-4)},  # 0.15 less the Generator's 0.05
    }
    assert [each.run_log_sd for each in costs] == [0.15, 0.25, 0.25]
    assert "0.50 of shared_memory" in notes[0]


def test_stores_and_kept_memory_are_not_taken_for_each_other() -> None:
    sweep = [*_sweep("nixl"), *_sweep("object_store")]
    costs, notes = costs_of_other_transports(sweep, _in_training("object_store"), (GENERATORS_SHARE,))
    publish = next(each for each in costs if each.stage == "weight_publish")
    assert publish.seconds == {"gb": pytest.approx(0.2, rel=1e-4)}
    assert "publishing too, the rest as it was measured there" in notes[0]
