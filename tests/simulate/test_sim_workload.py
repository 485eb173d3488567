"""What the stages of a scenario count, and which of them there are."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.learner.make import trainer_options
from harness.run.builders import mismatch_bound
from harness.run.memory.shape import shape_for
from harness.scenario.schema import Scenario
from harness.simulate.features import Workload, decode_steps, generate_features, pass_features, update_features
from harness.transports.catalogue import transport_kind

TINY = {"type": "preset", "preset": "tiny", "threads": 1}
GROUPS = ((12, (5, 7)), (10, (4, 9)))


def workload(**changes):
    return Workload(Scenario(**{"model": TINY, "rollout_batch_size": 4, "group_size": 2} | changes))


def test_continuous_batching_gives_a_place_to_the_next_one_at_once():
    # 2 places, responses of 5, 3, 4 and 2 tokens, so 4, 2, 3 and 1 steps: the second place is free after 2 steps and
    # takes the third response until 5; the first one is free after 4 and takes the last until 5
    assert decode_steps([5, 3, 4, 2], slots=2) == 5
    assert decode_steps([5, 3, 4, 2], slots=4) == 4
    assert decode_steps([5, 3, 4, 2], slots=1) == 10
    assert decode_steps([], slots=2) == 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 8))
def test_more_places_never_take_more_steps_and_no_work_is_lost(lengths, slots):
    steps = decode_steps(lengths, slots)
    row_steps = sum(length - 1 for length in lengths)
    assert max(-(-row_steps // slots), max(lengths) - 1) <= steps <= row_steps
    assert decode_steps(lengths, len(lengths)) == max(lengths) - 1


def test_the_native_engine_serves_batch_after_batch_and_vllm_continuously():
    native = workload(engine={"type": "native", "max_batch": 2})
    assert native.generate(GROUPS) == generate_features(native.shape, GROUPS, 2)
    assert native.generate(GROUPS)["decode_step"] == 6 + 8
    vllm = workload(engine={"type": "vllm", "max_batch": 2})
    # 4, 6, 3 and 8 steps on 2 places: 4 and 6; the third from 4 to 7; the last one from 6 to 14
    assert vllm.generate(GROUPS)["decode_step"] == 14
    assert vllm.generate(GROUPS)["response"] == native.generate(GROUPS)["response"]


def test_training_counts_microbatches_passes_and_optimizer_steps():
    work = workload(epochs_per_batch=3, minibatches_per_epoch=2)
    # 4 rows in 2 minibatches: 2 rows in each forward pass
    assert work.update(GROUPS) == update_features(work.shape, GROUPS, 2, 3, 2)
    assert work.update(GROUPS)["optimizer_step"] == 6
    assert work.log_probs(GROUPS) == pass_features(work.shape, GROUPS, 2)
    monitored = workload(loss={"kl": {"monitor": True}})
    assert monitored.reference_log_probs(GROUPS) == pass_features(work.shape, GROUPS, 4, 2)


@pytest.mark.parametrize(
    ("changes", "old", "reference"),
    [
        ({}, False, False),
        ({"epochs_per_batch": 2}, True, False),
        ({"epochs_per_batch": 2, "max_lag": 1}, False, False),
        ({"epochs_per_batch": 2, "max_lag": 1, "loss": {"proximal": "recompute"}}, True, False),
        ({"loss": {"kl": {"monitor": True}}}, True, True),
        ({"loss": {"kl": {"coefficient": 0.1}}}, False, True),
    ],
)
def test_which_passes_a_step_has(changes, old, reference):
    work = workload(**changes)
    assert (work.has_old_log_probs, work.has_reference) == (old, reference)


def test_a_weight_sync_moves_the_models_bytes():
    work = workload()
    # 2 layers of 9 tensors, the embedding table and the last norm
    assert work.weight_bytes == 4 * work.shape.num_parameters
    assert work.weight_tensors == work.shape.num_hidden_layers * 9 + 2
    engines = {"engine": {"type": "native", "precision": "bfloat16"}, "transport": {"type": "nixl", "dtype": "engine"}}
    assert workload(**engines).weight_bytes == 2 * work.shape.num_parameters
    paced = workload(model={"type": "paced", "megabytes": 8, "tensors": 3}, engine={"type": "paced"})
    assert (paced.weight_bytes, paced.weight_tensors) == (8_000_000, 3)
    first, later = work.sync(first=True), work.sync(first=False)
    assert (first["first"], later["first"]) == (1, 0)
    assert first["gb"] == later["gb"] == work.weight_bytes / 1e9


def test_verifications_are_a_checksum_and_a_proof():
    assert workload().verifications == 0  # in one process
    assert workload(transport={"type": "disk"}).verifications == 1
    assert workload(transport={"type": "disk", "verify": False}).verifications == 0
    assert workload(transport={"type": "disk"}, engine={"type": "vllm"}).verifications == 2
    assert workload(engine={"type": "native", "mismatch_bound": 0.5}).verifications == 1


ENGINES = [{"type": "native"}, {"type": "native", "mismatch_bound": 0.1}, {"type": "vllm"}]
OLDER = [{}, {"max_lag": 1}, {"replay": {"capacity": 8}}]
LOSSES = [{}, {"proximal": "recompute"}, {"kl": {"monitor": True}}, {"kl": {"coefficient": 1.0}}]


def test_a_real_run_has_the_same_stages():
    for case in product(ENGINES, (1, 2), OLDER, LOSSES):
        engine, k, older, loss = case
        work = workload(engine=engine, epochs_per_batch=k, loss=loss, **older)
        options = trainer_options(work.scenario, shape_for(work.scenario)[0])
        assert work.has_old_log_probs == options.needs_old_log_probs, case
        assert work.has_reference == options.needs_reference, case
        assert work.proves == (mismatch_bound(work.scenario) is not None), case


@pytest.mark.parametrize("transport", ["object_store", "nixl", "gloo", "nccl", "cuda_ipc", "disk", "shared_memory"])
def test_transports_that_are_sent_along_are_those_of_the_catalogue(transport):
    assert workload(transport={"type": transport}).two_sided == transport_kind(transport).two_sided
