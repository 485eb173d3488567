"""What runs have in common, what parts cost each other, and transports that only a sweep has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.simulate.calibrate.effects import costs_of_other_transports, fit_contention, run_correlation, run_speeds
from harness.simulate.calibrate.observations import Observation
from harness.simulate.features import sync_features
from harness.simulate.machine import StageCost

GENERATE = StageCost(stage="generate", seconds={"row": 0.001})
UPDATE = StageCost(stage="update", seconds={"row": 0.002})
STAGES = (GENERATE, UPDATE)


def _seen(
    stage: str, rows: float, seconds: float, run: str = "a", others: float = 0.0, arm: str = "small"
) -> Observation:
    return Observation(stage, {}, "small", {"row": rows}, seconds, run, arm, 3, others)


def test_a_runs_speed_is_that_of_its_longer_spans() -> None:
    """100 and 200 ms were predicted, 120 and 210 took place: 330 / 300. 1 ms is too short to count."""
    seen = [_seen("generate", 100, 0.12), _seen("update", 100, 0.21), _seen("generate", 1, 0.5)]
    assert run_speeds(seen, STAGES) == pytest.approx({"a": 1.1})


def test_overlapped_spans_tell_the_slow_down() -> None:
    """100 ms of work, another part working for 80% of the 112 ms that it took.

    p / y = 1 - f q: 1 - 100 / 112 = 0.107 = 0.8 q, so q = 0.134 and s = q / (1 - q) = 0.155.
    """
    seen = [_seen("generate", 100, 0.112, others=0.8), _seen("update", 100, 0.2)]
    contention, said = fit_contention(seen, STAGES, cores=2)
    q = (1 - 100 / 112) / 0.8
    assert contention.slowdown == pytest.approx(q / (1 - q), rel=1e-4)
    assert contention.slowdown_sd == pytest.approx(0.05 / (1 - q) ** 2, rel=1e-4)  # one run: the least that is stated
    assert said == [
        "contention: from 1 spans of 1 run in which another part worked at the same time, against the cost of the same "
        "work alone at that run's speed"
    ]


def test_a_slow_run_is_not_mistaken_for_contention() -> None:
    """The run takes 20% longer throughout: alone 240 ms for 200, overlapped 144 ms for 100. 144 / 120 = 1.2."""
    seen = [_seen("update", 100, 0.24), _seen("generate", 100, 0.144, others=1.0)]
    contention, _ = fit_contention(seen, STAGES, cores=2)
    assert contention.slowdown == pytest.approx(0.2, rel=1e-4)


def test_spans_hardly_overlapped_and_those_with_more_at_work_than_cores_say_nothing() -> None:
    seen = [_seen("update", 100, 0.2), _seen("generate", 100, 0.5, others=0.3), _seen("generate", 100, 0.9, others=2)]
    contention, said = fit_contention(seen, STAGES, cores=2)
    assert contention.slowdown == 0.2
    assert "was assumed" in said[0]


def test_the_way_of_a_call_is_no_work_that_contention_slows() -> None:
    call = StageCost(stage="call", seconds={"row": 0.001})
    seen = [_seen("update", 100, 0.2), _seen("call", 100, 0.01, others=1.0), _seen("generate", 100, 0.1, others=1.0)]
    contention, _ = fit_contention(seen, (*STAGES, call), cores=2)
    assert contention.slowdown == pytest.approx(0, abs=1e-9)  # of the generate alone
    assert contention.slowdown_sd == 0.05


def test_stages_that_are_slow_in_the_same_runs_hang_together() -> None:
    speeds = np.array([0.9, 1.0, 1.1, 1.2, 0.95, 1.05])
    seen = [_seen("generate", 100, 0.1 * speed, run=str(run)) for run, speed in enumerate(speeds)]
    together = [_seen("update", 100, 0.2 * speed, run=str(run)) for run, speed in enumerate(speeds)]
    assert run_correlation([*seen, *together], STAGES) == 0.95  # the most that is stated
    # deviations from the mean of logs, one stage against the other: hand-picked to be uncorrelated
    across = [1.0, 1.1, 1.0, 0.9, 1.1, 0.9]
    other = [_seen("update", 100, 0.2 * factor, run=str(run)) for run, factor in enumerate(across)]
    expected = float(np.corrcoef(np.log(speeds), np.log(across))[0, 1])
    assert run_correlation([*seen, *other], STAGES) == pytest.approx(max(0.0, expected))


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
    assert run_correlation(seen, STAGES) == 0.95  # the most that is stated


def test_with_few_runs_the_correlation_is_assumed() -> None:
    seen = [_seen(stage, 100, 0.2, run=run) for stage in ("generate", "update") for run in "abcd"]
    assert run_correlation(seen, STAGES) == 0.5


GENERATORS_SHARE = StageCost(stage="weight_verify", where={"part": "generator"}, seconds={"gb": 0.05})


def _sync(stage: str, transport: str, gb: float, seconds: float, run: str = "sweep") -> Observation:
    units = sync_features(gb * 1e9, 10)
    return Observation(stage, {"transport": transport}, "", units, seconds, run, run, 1)


def _sweep(transport: str) -> list[Observation]:
    """Publishing costs 0.2 s a GB, travelling 0.4, and both verifications together 0.15."""
    costs = {"weight_publish": 0.2, "weight_transfer": 0.4, "weight_verify": 0.15}
    return [_sync(stage, transport, gb, each * gb) for gb in (0.01, 0.1) for stage, each in costs.items()]


def test_a_transport_that_no_training_run_has_takes_over_how_those_that_have_it_relate() -> None:
    """In training, shared memory is published in half the time of isolated syncs: so is nixl's then."""
    training = [_sync("weight_publish", "shared_memory", gb, 0.1 * gb, run="training") for gb in (0.02, 0.05)]
    costs, notes = costs_of_other_transports([*_sweep("nixl"), *_sweep("shared_memory")], training, (GENERATORS_SHARE,))
    told = {(cost.stage, cost.where.get("part"), cost.where["transport"]): cost.seconds for cost in costs}
    assert told == {
        ("weight_publish", None, "nixl"): {"gb": pytest.approx(0.1, rel=1e-4)},
        ("weight_transfer", None, "nixl"): {"gb": pytest.approx(0.4, rel=1e-4)},
        ("weight_verify", "learner", "nixl"): {"gb": pytest.approx(0.1, rel=1e-4)},  # 0.15 less the Generator's 0.05
    }
    assert [cost.run_log_sd for cost in costs] == [0.15, 0.25, 0.25]
    assert notes == [
        "nixl: from isolated syncs; publishing times 0.50, as training runs relate to isolated syncs "
        "(0.50 of shared_memory), the rest as it was measured there"
    ]


def test_stores_and_kept_memory_are_not_taken_for_each_other() -> None:
    training = [_sync("weight_publish", "object_store", gb, 0.1 * gb, run="training") for gb in (0.02, 0.05)]
    costs, notes = costs_of_other_transports([*_sweep("nixl"), *_sweep("object_store")], training, (GENERATORS_SHARE,))
    publish = next(cost for cost in costs if cost.stage == "weight_publish")
    assert publish.seconds == {"gb": pytest.approx(0.2, rel=1e-4)}
    assert "publishing too, the rest as it was measured there" in notes[0]


def test_a_sync_with_two_receivers_is_no_cost_of_its_own() -> None:
    slow = [replace(item, seconds=9 * item.seconds, others=1.0) for item in _sweep("nixl")]
    costs, _ = costs_of_other_transports([*_sweep("nixl"), *slow], [], (GENERATORS_SHARE,))
    transfer = next(cost for cost in costs if cost.stage == "weight_transfer")
    assert transfer.seconds == {"gb": pytest.approx(0.4, rel=1e-4)}
