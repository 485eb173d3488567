"""Whole simulated runs: times worked out by hand, spans in the order of recorded runs, and what holds of every run."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.run.memory.learner import state_bytes
from harness.run.memory.shape import shape_for
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel, Draw
from harness.simulate.forecast import checkpoint_cost
from harness.simulate.machine import Contention, Device
from harness.simulate.simulated_run import simulate_run
from tests.simulate.conftest import cost, made

BY_HAND = (
    cost("generate", decode_step=1.0, response=0.1),
    cost("score", call=0.5),
    cost("prepare_batch", token=0.01),
    cost("old_logprobs", microbatch=0.7),
    cost("update", optimizer_step=2.0),
    cost("weight_publish", {"transport": "object_store"}, call=0.25, first=1.0),
    cost("weight_publish", {"transport": "shared_memory"}, call=0.1),
    cost("weight_transfer", {"transport": "object_store"}, call=0.3),
    cost("weight_transfer", {"transport": "shared_memory"}, call=0.05),
    cost("weight_load", call=0.2),
    cost("weight_verify", {"part": "learner"}, call=0.05),
    cost("weight_verify", {"part": "generator"}, call=0.15),
    cost("call", {"way": "there"}, call=0.01),
    cost("call", {"way": "back"}, call=0.02),
    cost("record", call=0.125),
)


def machine(*stages, **told):
    return made(*(stages or BY_HAND), **told)


def noisy(**spread):
    return machine(*(stage.model_copy(update=spread) for stage in BY_HAND))


def scenario(**changes):
    """8 responses of 5 tokens in 2 groups: 4 decode steps, so that a batch takes 4 + 0.8 s; 2 for an evaluation."""
    usual = {
        "model": {"type": "preset", "preset": "tiny", "threads": 1},
        "sampling": {"max_tokens": 5, "pinned_lengths": (5, 5)},
        "steps": 2,
        "rollout_batch_size": 8,
        "group_size": 4,
        "evaluation": {"every": 100, "prompts": 2},
        "placement": {"colocated": False},
        "transport": {"type": "object_store"},
        "save_policy": False,
    }
    return Scenario(**usual | changes)


def paced(update_s, generate_s, **changes):
    """A scenario of parts in one process that sleep, without weights to move."""
    model, engine = {"type": "paced", "update_s": update_s}, {"type": "paced", "generate_s": generate_s}
    usual = {"sampling": {"max_tokens": 8}, "transport": {"type": "in_process"}}
    return scenario(**{"model": model, "engine": engine} | usual | changes)


def free(*stages):
    return [cost(stage, call=0.0) for stage in stages]


def rows(run):
    return [
        (span.lane, span.stage.value, span.start_ns / 1e9, span.end_ns / 1e9, span.step, span.version)
        for span in run.spans
    ]


def same(found, expected):
    assert [row[:2] + row[4:] for row in found] == [row[:2] + row[4:] for row in expected]
    for row, by_hand in zip(found, expected, strict=True):
        assert row[2:4] == pytest.approx(by_hand[2:4], abs=1e-9), row


def test_a_synchronous_run():
    run = simulate_run(scenario(), machine())
    # First step. Publish with its checksum 0.01 + 1.25 + 0.05 + 0.02 = 1.33; load 0.01 + 0.3 + 0.2 + 0.15 + 0.02
    # = 0.68, until 2.01; evaluate 0.01 + 4.2 + 0.02 and score 0.01 + 0.5 + 0.02: until 6.77. Then
    # generate 4.83 (11.60), score 0.53 (12.13), update 0.01 + 0.4 + 2 + 0.02 (14.56), publish 0.33 (14.89),
    # load 0.68 (15.57), and the driver writes until 15.695.
    # Second step, from 15.57 on: generate until 20.40, score 20.93, update 23.36, publish 23.69.
    second = [row for row in rows(run) if row[2] > 15.55 and row[3] < 23.695]
    same(
        second,
        [
            ("learner", "wait_for_recorder", 15.57, 15.695, 0, 1),
            ("generator", "generate", 15.58, 20.38, 1, 1),
            ("generator", "wait_for_call", 15.57, 15.58, 1, 1),
            ("generator", "wait_for_call", 20.38, 20.40, 1, 1),
            ("scorer", "score", 20.41, 20.91, 1, 1),
            ("scorer", "wait_for_call", 20.40, 20.41, 1, 1),
            ("scorer", "wait_for_call", 20.91, 20.93, 1, 1),
            ("learner", "wait_for_batch", 15.695, 20.93, 1, 1),
            ("learner", "prepare_batch", 20.94, 21.34, 1, 1),
            ("learner", "update", 21.34, 23.34, 1, 1),
            ("learner", "wait_for_call", 20.93, 20.94, 1, 1),
            ("learner", "wait_for_call", 23.34, 23.36, 1, 1),
            ("learner", "weight_publish", 23.37, 23.62, 2, 2),
            ("learner", "weight_verify", 23.62, 23.67, 2, 2),
            ("learner", "wait_for_call", 23.36, 23.37, 2, 2),
            ("learner", "wait_for_call", 23.67, 23.69, 2, 2),
            ("generator", "wait_for_weights", 20.40, 23.69, 2, 1),
        ],
    )
    # the last version is loaded (24.37), evaluated (28.60) and scored (29.13); the driver writes (29.255); a call that
    # saves nothing (0.03)
    assert run.seconds == pytest.approx(29.285, abs=1e-9)
    assert run.ledger.generated.rollouts == run.ledger.trained.rollouts == 16
    assert run.ledger.trained.tokens == 80


def test_lag_1_with_two_passes_over_shared_memory():
    changes = {"max_lag": 1, "epochs_per_batch": 2, "transport": {"type": "shared_memory"}, "steps": 3}
    run = simulate_run(scenario(**changes), machine())
    # Publish 0.01 + 0.1 + 0.05 + 0.02 = 0.18; load 0.01 + 0.05 + 0.2 + 0.15 + 0.02 = 0.43; update 0.43 + 2 x 2.
    # The last token of batch 1 comes at 14.48, version 1 at 14.81; but the driver writes until 14.935 before the
    # Generator hears of it.
    same(
        [row for row in rows(run) if row[1] in ("generate", "update") or row[1:5:3] == ("evaluate", 3)],
        [
            ("generator", "generate", 4.85, 9.65, 0, 0),
            ("generator", "generate", 9.68, 14.48, 1, 0),
            ("learner", "update", 10.61, 14.61, 0, 0),
            ("learner", "update", 15.44, 19.44, 1, 1),
            ("generator", "generate", 15.375, 20.175, 2, 1),
            ("learner", "update", 21.135, 25.135, 2, 2),
            ("generator", "evaluate", 25.90, 30.10, 3, 3),
            ("scorer", "evaluate", 30.13, 30.63, 3, 3),
        ],
    )
    assert run.seconds == pytest.approx(30.68, abs=1e-9)
    assert not [row for row in rows(run) if row[1] == "old_logprobs"]  # the engine's own count, with lag


def test_replay_prices_what_is_trained_on():
    prices = [cost for cost in BY_HAND if cost.stage != "update"]
    prices.append(cost("update", microbatch=1.0))
    replay = {"capacity": 4, "sample_groups": 2}
    run = simulate_run(scenario(replay=replay, steps=3), machine(*prices))
    assert [len(facts.taken) for facts in run.steps] == [2, 2, 2]
    updates = [end - start for _, stage, start, end, _, _ in rows(run) if stage == "update"]
    assert updates == pytest.approx([1.0, 1.0, 1.0], abs=1e-9)
    assert all(group.rewards == (0.0,) * 4 for facts in run.steps for group in facts.groups)


def test_a_transport_that_is_sent_along_with_its_call_has_no_way_there():
    gloo = [cost(stage, {"transport": "gloo"}, call=0.3) for stage in ("weight_publish", "weight_transfer")]
    run = simulate_run(scenario(transport={"type": "gloo"}), machine(*BY_HAND, *gloo))
    loads = [row for row in rows(run) if row[0] == "generator" and row[4] == 1 and "weight" in row[1]]
    arrival = next(row for row in loads if row[1] == "weight_transfer")
    before = [row for row in rows(run) if row[1] == "wait_for_call" and row[0] == "generator" and row[3] == arrival[2]]
    assert before == []
    assert next(row for row in loads if row[1] == "weight_load")[2] == pytest.approx(arrival[2] + 0.3, abs=1e-9)


def test_paced_parts_of_one_process_take_just_the_seconds_of_the_scenario():
    sync = [cost("weight_publish", gb=1.0), cost("weight_transfer", call=0.0), cost("weight_load", tensor=0.01)]
    model = {"type": "paced", "update_s": 0.4, "megabytes": 8, "tensors": 2}
    asked = paced(0.4, 0.5, model=model, placement={"colocated": True}, steps=3, epochs_per_batch=2)
    run = simulate_run(asked, machine(*free("score", "prepare_batch"), *sync))
    # Publish 0.008, load 2 x 0.01; the evaluation's 2 prompts are a whole batch, 0.5; then three times generate 0.5,
    # update 2 x 0.4, publish and load 0.028; at the end the last evaluation, 0.5.
    assert run.seconds == pytest.approx(0.028 + 0.5 + 3 * (0.5 + 0.8 + 0.028) + 0.5, abs=1e-9)
    assert not [span for span in run.spans if span.stage is Stage.WAIT_FOR_CALL]
    updates = [(start, end) for _, stage, start, end, _, _ in rows(run) if stage == "update"]
    assert updates[0] == pytest.approx((0.028 + 0.5 + 0.5, 0.028 + 0.5 + 0.5 + 0.8), abs=1e-9)


def test_colocated_parts_of_one_process_take_turns_and_others_overlap():
    profile = machine(*free("score", "prepare_batch", "weight_publish", "weight_transfer", "weight_load"))
    seconds = {
        colocated: simulate_run(
            paced(4.0, 5.0, max_lag=1, steps=4, placement={"colocated": colocated}), profile
        ).seconds
        for colocated in (True, False)
    }
    # one thread does all of it: 2 evaluations of 5 s, 4 batches of 5 s, 4 updates of 4 s; apart, the first three
    # updates hide behind the next batch: only the last one shows
    assert seconds == pytest.approx({True: 10 + 20 + 16, False: 10 + 20 + 4}, abs=1e-9)


def test_a_publish_beside_the_next_batch_holds_no_training_up():
    """Updates of 2 x 4 s, 3 s to publish: 11 s a step in turns; beside the first 4 s of the next update 8 s."""
    profile = machine(
        *free("score", "prepare_batch", "weight_transfer", "weight_load"), cost("weight_publish", call=3.0)
    )
    found = {}
    for overlapped in (False, True):
        asked = paced(4.0, 1.0, max_lag=1, epochs_per_batch=2, steps=4, learner={"overlapped_publish": overlapped})
        run = simulate_run(asked, profile)
        found[overlapped] = run.seconds, sum(end - start for _, stage, start, end, *_ in rows(run) if stage == "update")
    # before the first step 3 s, an evaluation and a batch; after the last a publish and an evaluation
    assert found == {False: (5 + 3 * 11 + 8 + 3 + 1, 32.0), True: (5 + 4 * 8 + 3 + 1, 32.0)}


def test_injected_delays_are_simulated_too():
    longer = simulate_run(scenario(faults={"delays": {"update": 0.75}}), machine())
    assert longer.seconds == pytest.approx(29.285 + 2 * 0.75, abs=1e-9)


def test_generators_share_a_batch_and_the_cores():
    placement = {"colocated": False, "generator": {"count": 2, "cpus": 0.5, "threads": 1}}
    crowded = machine(contention=Contention(cores=2, slowdown=0.5))
    run = simulate_run(scenario(placement=placement), crowded)
    generated = sorted(row for row in rows(run) if row[1] == "generate" and row[4] == 1)
    # each has one group of 4: 4 + 0.4 s alone, 1.5 times that beside the other
    assert [row[0] for row in generated] == ["generator0", "generator1"]
    assert [end - start for _, _, start, end, _, _ in generated] == pytest.approx([6.6, 6.6], abs=1e-9)
    assert run.lanes == ("generator0", "generator1", "scorer", "learner")


def test_a_part_of_an_update_has_its_own_microbatches_and_the_last_one_the_optimizer_step():
    placement = {"colocated": False, "generator": {"count": 2, "cpus": 1}}
    stages = [each for each in BY_HAND if each.stage != "update"]
    priced = machine(*stages, cost("update", microbatch=0.25, optimizer_step=2.0))
    of_stream = {}
    for stream in (None, "in_order", "as_scored"):
        settings = {"placement": placement, "learner": {"stream": stream}, "gradient_accumulation_steps": 2}
        run = simulate_run(scenario(**settings), priced)
        learner = [row for row in rows(run) if row[0] == "learner" and row[1] in ("prepare_batch", "update")]
        of_stream[stream] = [(stage, round(end - start, 9)) for _, stage, start, end, step, _ in learner if step == 1]
        of_stream[stream].append(run.seconds)
    *whole, whole_s = of_stream[None]
    *parts, in_order_s = of_stream["in_order"]
    as_scored_s = of_stream["as_scored"][-1]
    assert whole == [("prepare_batch", 0.4), ("update", 2.5)]  # 8 responses of 5 tokens, in 2 microbatches
    assert parts == [("prepare_batch", 0.2), ("update", 0.25), ("prepare_batch", 0.2), ("update", 2.25)]
    # One shard is scored 0.53 s after the other, and the first part's 0.45 s and 0.03 s of its call fit in. At first
    # shard 0 comes last, since its Generator evaluates before: in order only the call is added.
    assert whole_s - as_scored_s == pytest.approx(0.45 + 0.45, abs=1e-9)
    assert whole_s - in_order_s == pytest.approx(-0.03 + 0.45, abs=1e-9)


def test_paced_parts_share_the_seconds_of_an_update():
    placement = {"colocated": False, "generator": {"count": 2, "cpus": 1}}
    stream = {"placement": placement, "rollout_batch_size": 12, "learner": {"stream": "in_order"}}
    run = simulate_run(paced(4.0, 5.0, transport={"type": "object_store"}, **stream), machine())
    updates = [end - start for _, stage, start, end, _, _ in rows(run) if stage == "update"]
    assert updates == pytest.approx([4 / 3, 8 / 3] * 2, abs=1e-9)  # 1 prompt of 3, and 2


def test_the_same_seed_gives_the_same_spans_and_a_draw_others():
    profile = noisy(step_log_sd=0.1, run_log_sd=0.05)
    runs = [simulate_run(scenario(), profile, draw=Draw(1, seed)) for seed in (0, 0, 1)]
    assert runs[0].spans == runs[1].spans
    assert runs[0].seconds != runs[2].seconds
    assert simulate_run(scenario(), profile).seconds == pytest.approx(29.285, abs=1e-9)
    # two scenarios share the noise of what they share
    more = scenario(evaluation={"every": 100, "prompts": 3})
    updates = [
        [row[3] - row[2] for row in rows(run) if row[1] == "update"]
        for run in (runs[0], simulate_run(more, profile, draw=Draw(1)))
    ]
    assert updates[0] == pytest.approx(updates[1], abs=1e-8)


def test_costs_that_are_asked_once_are_those_that_are_asked_each_time():
    class Asked(CostModel):
        """Costs that the parts do not know, so that they ask them for each call."""

    lengths = {"max_tokens": 9, "pinned_lengths": (3, 9)}
    found = scenario(sampling=lengths, max_lag=1, steps=4, replay={"capacity": 4, "sample_groups": 1})
    prices = [stage for stage in BY_HAND if stage.stage != "call"]
    profile = machine(*prices, cost("call", call=0.01, response=0.003, group=0.002))
    known, asked = simulate_run(found, profile), simulate_run(found, profile, costs=Asked(found, profile))
    assert known.spans == asked.spans


def test_what_the_profile_lacks_is_refused_with_what_it_has():
    disk = scenario(transport={"type": "disk"})
    run = simulate_run(disk, machine(), allow={"transport"})
    assert run.seconds == pytest.approx(29.285, abs=1e-9)
    assert "weight_publish: the profile by hand knows transport object_store in place of disk" in run.extrapolating
    workers = scenario(engine={"type": "vllm", "tensor_parallel": 2})
    sorting = scenario(model={"type": "sorting"}, task={"type": "sorting"})
    for asked, profile, said in (
        (disk, machine(), "weight_publish for transport disk; it has transport object_store; transport shared_memory"),
        (workers, machine(), "no cost of generate for engine vllm of 2 workers"),
        (scenario(checkpoint={"every": 1}), machine(), "no cost of checkpoint"),
        (sorting, machine(), "prices a model by its size"),
        (scenario(dynamic_sampling={"attempts": 2}), machine(), "dynamic_sampling.attempts is 2"),
    ):
        with pytest.raises(UserError, match=said):
            simulate_run(asked, profile)


SAVING = (
    cost("checkpoint", {"asynchronous": "false"}, call=2.0, gb=1000.0),
    cost("checkpoint", {"asynchronous": "true"}, call=0.5),
    cost("checkpoint_write", call=30.0),
)


def saved(run, stage):
    return [row[:4] + row[5:] for row in rows(run) if row[1] == stage]


def test_checkpoints_take_the_seconds_of_what_the_profile_says_and_are_written_in_a_lane_of_their_own():
    """After the first step's publish and load, at 15.57, and the driver's writing until 15.695; see above."""
    with_checkpoints = scenario(checkpoint={"every": 1})
    gb = state_bytes(with_checkpoints, shape_for(with_checkpoints)[0]) / 1e9
    first, second = saved(simulate_run(with_checkpoints, machine(*BY_HAND, *SAVING)), "checkpoint")
    assert first == pytest.approx(("learner", "checkpoint", 15.705, 15.705 + 2 + 1000 * gb, 1), abs=1e-6)
    assert second[-1] == 2
    run = simulate_run(scenario(checkpoint={"every": 1, "asynchronous": True}), machine(*BY_HAND, *SAVING))
    copied, _ = saved(run, "checkpoint")
    waited, _ = saved(run, "wait_for_checkpoint")
    first, second = saved(run, "checkpoint_write")
    assert copied[2:4] == pytest.approx((15.705, 16.205))
    assert first[2:4] == pytest.approx((16.225, 46.225))
    assert (waited[3], waited[-1]) == (first[3], 2)  # one is written at a time
    assert second[3] - second[2] == pytest.approx(30.0)  # the run ends when the last one is whole
    assert {row[0] for row in (first, second)} == {"checkpoint_writer"}


def test_what_a_checkpoint_makes_training_longer_by_is_what_nobody_samples_beside():
    """The next batch takes 0.01 + 4.8 + 0.02 s and 0.01 + 0.5 + 0.02 s, and was begun 0.125 s before."""
    dear = cost("checkpoint", {"asynchronous": "false"}, call=12.0)
    known = machine(*BY_HAND, dear)
    found = checkpoint_cost(scenario(steps=6, checkpoint={"every": 2}), known)
    assert (found.every, found.blocked_s) == pytest.approx((2, 12.03))
    assert found.exposed_s == pytest.approx((12.03 + 0.125 - 5.36) * 2 / 3 + 12.03 / 3)  # no batch comes after the last
    assert checkpoint_cost(scenario(), machine()) is None


def test_weights_swapped_in_the_middle_of_a_batch_count_by_their_share():
    lag = {"max_lag": 1, "lag_control": "in_flight", "steps": 3}
    asked = paced(4.0, 10.0, **lag, evaluation={"every": 100, "prompts": 1})  # half a batch: 5 s
    stages = free("score", "prepare_batch", "weight_publish", "weight_transfer")
    run = simulate_run(asked, machine(*stages, cost("weight_load", call=0.5)))
    # Version 0 is loaded until 0.5 s and evaluated until 5.5 s. Batch 0 is sampled until 15.5 s, batch 1 from then to
    # 25.5 s; version 1 comes at 19.5 s and is loaded at 20 s: 4.5 s of batch 1 are of version 0, 5.5 s of version 1.
    (first,), (second,) = ({(g.min_version, g.max_version, g.mean_version) for g in f.groups} for f in run.steps[:2])
    assert first == (0, 0, None)
    assert second == (0, 1, pytest.approx(0.55, abs=1e-9))


@pytest.mark.parametrize(("max_lag", "generators", "together"), [(0, 2, 0), (1, 1, 0), (1, 2, 3), (0, 3, 3)])
def test_more_parts_on_the_cores_than_were_measured_together_are_said(max_lag, generators, together):
    placement = {"colocated": False, "generator": {"count": generators}}
    changes = {"max_lag": max_lag, "placement": placement, "rollout_batch_size": 16}
    run = simulate_run(scenario(**changes), machine(contention=Contention(cores=2)))
    said = [sentence for sentence in run.extrapolating if sentence.startswith("contention")]
    expected = f"contention: {together} parts compute at the same time on 2 cores, and it was measured between two"
    assert said == ([expected] if together else [])
    assert not [
        sentence for sentence in simulate_run(scenario(**changes), machine()).extrapolating if "cores" in sentence
    ]


def test_parts_on_one_gpu_share_it_and_others_have_their_own():
    """Together the Learner's 0.4 s to prepare and 2 s of update lie within a batch of 4.8 s, at half of the GPU each.

    As actors its 0.25 s to publish and 0.05 s for the checksum do so too.
    """

    def seconds_of_a_batch(profile, **changes):
        run = simulate_run(scenario(max_lag=1, steps=3, **changes), profile)
        return next(end - start for _, stage, start, end, step, _ in rows(run) if (stage, step) == ("generate", 1))

    shares = {"device": "cuda", "generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}}
    actors = [seconds_of_a_batch(machine(), placement=shares | {"colocated": apart}) for apart in (False, True)]
    assert actors == pytest.approx([4.8, 4.8 + 0.4 + 2 + 0.25 + 0.05], abs=1e-9)
    in_one_process = [*BY_HAND, cost("weight_publish", {"transport": "in_process_copy"}), cost("weight_transfer")]
    threads = [
        seconds_of_a_batch(machine(*in_one_process, device=Device(name="made up", gpus=gpus)), transport=IN_PROCESS)
        for gpus in (0, 1)
    ]
    assert threads == pytest.approx([4.8, 4.8 + 0.4 + 2], abs=1e-9)


IN_PROCESS = {"type": "in_process"}
LOADING = {Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD, Stage.WEIGHT_VERIFY}


def bandwidth_machine(seconds_per_gb, fixed):
    moving = ("weight_publish", "weight_transfer", "weight_load")
    rest = [stage for stage in BY_HAND if stage.stage not in moving]
    return machine(*rest, *(cost(stage, call=fixed, gb=seconds_per_gb) for stage in moving))


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=25, deadline=None)
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
    profile = noisy(step_log_sd=0.3, run_log_sd=0.2).model_copy(update={"contention": contention})
    run = simulate_run(scenario(**changes), profile, draw=Draw(1, seed))
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


RECORDED = json.loads((Path(__file__).parents[1] / "data" / "simulator" / "span_order.json").read_text())["arms"]

# about what the stages took in these runs, in seconds
SECONDS = {
    "generate": 0.1,
    "score": 0.0005,
    "prepare_batch": 0.001,
    "old_logprobs": 0.075,
    "reference_logprobs": 0.05,
    "update": 0.2,
    "weight_publish": 0.015,
    "weight_transfer": 0.01,
    "weight_load": 0.009,
    "weight_verify": 0.001,
    "record": 0.0015,
}


MACHINE = made(
    *(cost(stage, call=seconds) for stage, seconds in SECONDS.items()),
    cost("call", {"placement": "actors"}, call=0.002),
    contention=Contention(cores=2, slowdown=0.2),
)


@pytest.mark.parametrize("arm", RECORDED)
def test_spans_come_in_the_order_of_a_recorded_run(arm):
    found = next(variant.scenario for variant in expand(load_scenario("calibration")) if variant.arm == arm)
    sampling = found.sampling.model_copy(update={"pinned_lengths": (8, 13)})
    run = simulate_run(found.model_copy(update={"sampling": sampling, "steps": 6}), MACHINE)
    spans = [[span.lane, span.stage.value, span.step, span.version] for span in run.spans]
    assert spans[: len(RECORDED[arm])] == RECORDED[arm]
