"""What holds of every simulated run: no rollout is lost, no lane does two things, and bandwidth is never in the way."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.trace import Stage
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import Draw
from harness.simulate.machine import Contention, Device, MachineProfile, StageCost
from harness.simulate.simulated_run import simulate_run

LOADING = {Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD, Stage.WEIGHT_VERIFY}


def cost(stage, **seconds):
    return StageCost(stage=stage, seconds=seconds)


STAGES = (
    cost("generate", decode_step=1.0, response=0.1),
    cost("score", call=0.5),
    cost("prepare_batch", token=0.01),
    cost("old_logprobs", microbatch=0.7),
    cost("update", optimizer_step=2.0),
    cost("weight_publish", call=0.25, first=1.0),
    cost("weight_transfer", call=0.3),
    cost("weight_load", call=0.2),
    cost("weight_verify", call=0.05),
    cost("call", call=0.015),
    cost("record", call=0.125),
)


def machine(stages, contention=None):
    return MachineProfile(
        name="by hand",
        made="2026-11-21",
        device=Device(name="made up"),
        sources=("by hand",),
        stages=tuple(stages),
        contention=contention,
    )


def scenario(**changes):
    usual = {
        "model": {"type": "preset", "preset": "tiny", "threads": 1},
        "sampling": {"max_tokens": 5, "pinned_lengths": (5, 5)},
        "rollout_batch_size": 8,
        "group_size": 4,
        "evaluation": {"every": 100, "prompts": 2},
        "placement": {"colocated": False},
        "transport": {"type": "object_store"},
        "save_policy": False,
    }
    return Scenario(**usual | changes)


def bandwidth_machine(seconds_per_gb, fixed):
    moving = ("weight_publish", "weight_transfer", "weight_load")
    rest = [stage for stage in STAGES if stage.stage not in moving]
    return machine([*rest, *(cost(stage, call=fixed, gb=seconds_per_gb) for stage in moving)])


@settings(max_examples=60, deadline=None)
@given(
    slow=st.floats(0, 5000),
    gain=st.floats(0, 1),
    fixed=st.floats(0, 2),
    max_lag=st.integers(0, 3),
    k=st.integers(1, 3),
    replay=st.booleans(),
    preset=st.sampled_from(["tiny", "small"]),
)
def test_more_bandwidth_is_never_slower(slow, gain, fixed, max_lag, k, replay, preset):
    changes = {
        "max_lag": max_lag,
        "epochs_per_batch": k,
        "replay": {"capacity": 4} if replay else {},
        "model": {"type": "preset", "preset": preset, "threads": 1},
        "steps": 5,
    }
    before = simulate_run(scenario(**changes), bandwidth_machine(slow, fixed))
    after = simulate_run(scenario(**changes), bandwidth_machine(slow * gain, fixed))
    # Above lag 1 a Generator may find a version that it would not have waited for, and load it: once for each version
    # that it may be ahead by. That is all that more bandwidth can cost.
    one_load = 3 * max(span.end_ns - span.start_ns for span in after.spans if span.stage in LOADING) / 1e9 + 0.03
    assert after.seconds <= before.seconds + max(0, max_lag - 1) * one_load + 1e-6
    if max_lag == 0 and slow - slow * gain > 1:  # a second for a GB is a millisecond and more for these models
        assert after.seconds < before.seconds


@settings(max_examples=40, deadline=None)
@given(
    max_lag=st.integers(0, 3),
    lag_control=st.sampled_from(["wait", "drop", "in_flight"]),
    generators=st.integers(1, 2),
    capacity=st.sampled_from([0, 2, 6]),
    slowdown=st.sampled_from([None, 0.0, 0.4]),
    seed=st.integers(0, 3),
)
def test_no_rollout_is_lost_and_every_lane_does_one_thing_at_a_time(
    max_lag, lag_control, generators, capacity, slowdown, seed
):
    noisy = [stage.model_copy(update={"step_log_sd": 0.3, "run_log_sd": 0.2}) for stage in STAGES]
    contention = None if slowdown is None else Contention(cores=2, slowdown=slowdown)
    changes = {
        "max_lag": max_lag,
        "lag_control": lag_control if max_lag else "wait",
        "replay": {"capacity": capacity} if capacity else {},
        "placement": {"colocated": False, "generator": {"count": generators}},
        "sampling": {"max_tokens": 9, "pinned_lengths": (2, 9)},
        "steps": 6,
        "seed": seed,
    }
    run = simulate_run(scenario(**changes), machine(noisy, contention), draw=Draw(1, seed))
    ledger = run.ledger
    lost = ledger.failed + ledger.dropped + ledger.trained + ledger.unused
    assert lost == ledger.generated
    assert len(run.steps) == 6
    assert max(facts.step - group.min_version for facts in run.steps for group in facts.fresh) <= max_lag
    for lane in run.lanes:
        busy = sorted(
            (span.start_ns, span.end_ns)
            for span in run.spans
            if span.lane == lane
            and not span.stage.is_wait
            and not (lag_control == "in_flight" and span.stage in LOADING)
        )
        assert all(before[1] <= after[0] for before, after in pairwise(busy))
    assert max(span.end_ns for span in run.spans) / 1e9 <= run.seconds + 1e-9
