"""What stages' times depend on, counted by hand, and which stages a scenario has."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.learner.make import trainer_options
from harness.models.config import ModelConfig, TransformersConfig
from harness.run.builders import mismatch_bound
from harness.run.memory.shape import shape_for
from harness.scenario.schema import Scenario
from harness.simulate.features import (
    Workload,
    batch_features,
    call_features,
    decode_steps,
    generate_features,
    pass_features,
    sync_features,
    update_features,
    weight_bytes,
    weight_tensors,
)
from harness.transports.catalogue import transport_kind

SHAPE = ModelConfig(
    100,
    8,
    16,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
)
LAYER = 2 * 8 * (8 + 4) + 3 * 8 * 16 + 2 * 8
"""592 weights: queries and output of 8 x 8, keys and values of 8 x 4, an MLP of three 8 x 16, two norms."""


def test_whole_groups_are_decoded_together_and_one_larger_than_a_batch_in_pieces() -> None:
    """5 rows at a time hold two groups of 2: the third group is not cut, as in ``engines.batch``."""
    groups = [(5, (2, 2)), (5, (2, 2)), (5, (9, 9))]
    assert generate_features(SHAPE, groups, max_batch=5)["decode_step"] == 1 + 8
    assert generate_features(SHAPE, groups, max_batch=6)["decode_step"] == 8
    units = generate_features(SHAPE, [(5, (2, 2, 4))], max_batch=2)
    assert units["decode_step"] == 1 + 3
    assert units["prompt_gflop"] == pytest.approx(2 * (10 * 3 * LAYER + 2 * 800) / 1e9)  # the prompt twice


@given(st.data())
def test_decoding_is_counted_as_if_token_by_token(data: st.DataObject) -> None:
    """Each step makes a token of every row that has not ended; its query sees the prompt and the tokens before."""
    size = data.draw(st.integers(1, 4))
    lengths = st.lists(st.integers(1, 12), min_size=size, max_size=size)
    groups = data.draw(st.lists(st.tuples(st.integers(1, 9), lengths), min_size=1, max_size=6))
    together = data.draw(st.integers(1, 4))
    steps = row_steps = context = 0
    for start in range(0, len(groups), together):
        rows = [(prompt, length) for prompt, row in groups[start : start + together] for length in row]
        tokens = 1  # of each row that goes on, the first one having come with the prompt
        while going := [prompt for prompt, length in rows if length > tokens]:
            steps, row_steps = steps + 1, row_steps + len(going)
            context += sum(prompt + tokens for prompt in going)
            tokens += 1
    units = generate_features(SHAPE, groups, max_batch=together * size)
    assert units == pytest.approx(
        {
            "call": 1,
            "response": size * len(groups),
            "prompt_gflop": 2 * (sum(prompt for prompt, _ in groups) * 3 * LAYER + len(groups) * 800) / 1e9,
            "decode_step": steps,
            "decode_layer": 3 * steps,
            "weight_gb": steps * 2584 * 2 / 1e9,
            "row_layer": 3 * row_steps,
            "row_gflop": row_steps * 2 * (3 * LAYER + 800) / 1e9,
            "context_gb": context * 2 * 3 * 4 * 4 / 1e9,
        }
    )


def test_a_pass_runs_each_prompt_once_and_each_response_without_its_last_token() -> None:
    """Two microbatches of 2 rows: prompts of 5, then of 5 and 6 tokens, and 2 + 3, then 1 + 8 response tokens."""
    groups = [(5, (3, 4, 2)), (6, (9,))]
    units = pass_features(SHAPE, groups, microbatch=2)
    assert units["microbatch"] == 2
    assert units["position_layer"] == 3 * (5 + 2 + 3 + 5 + 6 + 1 + 8)
    assert units["position_gflop"] == pytest.approx(2 * (30 * 3 * LAYER + 18 * 800) / 1e9)
    assert units["logit_gb"] == pytest.approx(18 * 100 * 4 / 1e9)
    first = 1 * 5**2 + 2 * 3 * (5 + 3)
    second = 2 * 6**2 + 2 * 8 * (6 + 8)
    assert units["pair_gb"] == pytest.approx((first + second) * 2 * 3 * 4 / 1e9)


def test_an_update_makes_an_optimizer_step_for_each_minibatch_of_each_pass() -> None:
    """k = 3 with 2 minibatches: 6 steps over 3 x 592 + 800 + 8 = 2584 weights of 4 bytes."""
    one, two = (pass_features(SHAPE, [(5, (3, 4))], 2, passes) for passes in (1, 2))
    assert two == pytest.approx({name: units if name == "call" else 2 * units for name, units in one.items()})
    units = update_features(SHAPE, [(5, (3, 4))], 1, epochs=3, minibatches=2)
    assert (units["optimizer_step"], units["microbatch"]) == (6, 3 * 2)
    assert units["parameter_gb"] == pytest.approx(6 * 2584 * 4 / 1e9)


def test_what_goes_by_rollouts_tokens_bytes_and_receivers() -> None:
    groups = [(5, (3, 4)), (6, (9, 1))]
    assert batch_features(groups) == {"call": 1, "group": 2, "response": 4, "token": 17}
    assert call_features(groups) == {"call": 1, "group": 2, "response": 4}
    assert call_features() == {"call": 1, "group": 0, "response": 0}
    usual = {"call": 1, "tensor": 30, "gb": 2}
    assert sync_features(2e9, 30, receivers=3) == usual | {"further_gb": 4, "first": 0, "first_gb": 0}
    assert sync_features(2e9, 30, first=True) == usual | {"further_gb": 0, "first": 1, "first_gb": 2}


def test_weights_of_a_model_are_counted_with_their_names() -> None:
    """9 tensors in each of 3 layers, the table and the last norm; untied, the output too; Qwen's biases and norms."""
    assert (weight_tensors(SHAPE), weight_bytes(SHAPE)) == (29, 2584 * 4)
    untied = TransformersConfig(
        100, 8, 16, 3, 2, 1, 4, 64, tie_word_embeddings=False, model_type="qwen3", other_biases=True
    )
    assert weight_tensors(untied) == 3 * (9 + 3 + 2) + 3


TINY = {"type": "preset", "preset": "tiny", "threads": 1}
GROUPS = ((12, (5, 7)), (10, (4, 9)))


def workload(**changes):
    return Workload(Scenario(**{"model": TINY, "rollout_batch_size": 4, "group_size": 2} | changes))


def test_continuous_batching_gives_a_place_to_the_next_one_at_once():
    # 2 places, responses of 5, 3, 4 and 2 tokens, so 4, 2, 3 and 1 steps: the second place is free after 2 steps and
    # takes the third response until 5; the first one is free after 4 and takes the last until 5
    assert [decode_steps([5, 3, 4, 2], slots) for slots in (2, 4, 1)] == [5, 4, 10]
    assert decode_steps([], slots=2) == 0


def test_the_native_engine_serves_batch_after_batch_and_vllm_continuously():
    native = workload(engine={"type": "native", "max_batch": 2})
    assert native.generate(GROUPS) == generate_features(native.shape, GROUPS, 2)
    assert native.generate(GROUPS)["decode_step"] == 6 + 8
    vllm = workload(engine={"type": "vllm", "max_batch": 2})
    # 4, 6, 3 and 8 steps on 2 places: 4 and 6; the third from 4 to 7; the last one from 6 to 14
    continuous = [vllm.generate(GROUPS)[name] for name in ("decode_step", "decode_layer", "weight_gb")]
    assert continuous == pytest.approx([14, 14 * 2, 14 * 557_696 * 2 / 1e9])
    assert vllm.generate(GROUPS)["response"] == native.generate(GROUPS)["response"]


def test_training_counts_microbatches_passes_and_optimizer_steps():
    work = workload(epochs_per_batch=3, minibatches_per_epoch=2)
    # 4 rows in 2 minibatches: 2 rows in each forward pass
    assert work.update(GROUPS) == update_features(work.shape, GROUPS, 2, 3, 2)
    assert work.update(GROUPS)["optimizer_step"] == 6
    assert work.log_probs(GROUPS) == pass_features(work.shape, GROUPS, 2)
    monitored = workload(loss={"kl": {"monitor": True}})
    assert monitored.reference_log_probs(GROUPS) == pass_features(work.shape, GROUPS, 4, 2)


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


def test_transports_that_are_sent_along_are_those_of_the_catalogue():
    for transport in ("object_store", "nixl", "gloo", "nccl", "cuda_ipc", "disk", "shared_memory"):
        assert workload(transport={"type": transport}).two_sided == transport_kind(transport).two_sided, transport
