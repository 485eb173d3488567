"""What stages' times depend on, counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models.config import ModelConfig, TransformersConfig
from harness.simulate.features import (
    batch_features,
    call_features,
    generate_features,
    pass_features,
    sync_features,
    update_features,
    weight_bytes,
    weight_tensors,
)

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


def test_decoding_takes_as_many_steps_as_the_longest_row_of_each_batch() -> None:
    """Groups of 2 rows and 4 rows at a time: two groups in the first batch, one in the second: 8 + 1 steps."""
    groups = [(5, (3, 4)), (5, (2, 9)), (6, (2, 2))]
    units = generate_features(SHAPE, groups, max_batch=4)
    assert (units["decode_step"], units["decode_layer"]) == (9, 27)
    assert units["row_layer"] == 3 * (2 + 3 + 1 + 8 + 1 + 1)
    assert units["prompt_gflop"] == pytest.approx(2 * (16 * 3 * LAYER + 3 * 800) / 1e9)
    # queries see the prompt at each step, and the response so far: 0 + 1 + ... tokens
    context = (2 * 5 + 3) + (3 * 5 + 6) + (5 + 1) + (8 * 5 + 36) + (6 + 1) + (6 + 1)
    assert units["context_gb"] == pytest.approx(context * 2 * 3 * 4 * 4 / 1e9)


def test_whole_groups_are_decoded_together() -> None:
    """5 rows at a time hold two groups of 2: the third group is not cut, as in ``engines.batch``."""
    groups = [(5, (2, 2)), (5, (2, 2)), (5, (9, 9))]
    assert generate_features(SHAPE, groups, max_batch=5)["decode_step"] == 1 + 8
    assert generate_features(SHAPE, groups, max_batch=6)["decode_step"] == 8


def test_a_group_larger_than_a_batch_is_prefilled_for_each_piece_of_it() -> None:
    units = generate_features(SHAPE, [(5, (2, 2, 4))], max_batch=2)
    assert units["decode_step"] == 1 + 3
    assert units["prompt_gflop"] == pytest.approx(2 * (10 * 3 * LAYER + 2 * 800) / 1e9)


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
    assert (units["decode_step"], units["row_layer"], units["response"]) == (steps, 3 * row_steps, size * len(groups))
    assert units["row_gflop"] == pytest.approx(row_steps * 2 * (3 * LAYER + 800) / 1e9)
    assert units["context_gb"] == pytest.approx(context * 2 * 3 * 4 * 4 / 1e9)


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


def test_further_passes_are_counted_and_the_call_is_not() -> None:
    one, two = (pass_features(SHAPE, [(5, (3, 4))], 2, passes) for passes in (1, 2))
    assert two == pytest.approx({name: units if name == "call" else 2 * units for name, units in one.items()})


def test_an_update_makes_an_optimizer_step_for_each_minibatch_of_each_pass() -> None:
    """k = 3 with 2 minibatches: 6 steps over 3 x 592 + 800 + 8 = 2584 weights of 4 bytes."""
    units = update_features(SHAPE, [(5, (3, 4))], 1, epochs=3, minibatches=2)
    assert units["optimizer_step"] == 6
    assert units["parameter_gb"] == pytest.approx(6 * 2584 * 4 / 1e9)
    assert units["microbatch"] == 3 * 2


def test_what_goes_by_rollouts_and_tokens() -> None:
    groups = [(5, (3, 4)), (6, (9, 1))]
    assert batch_features(groups) == {"call": 1, "group": 2, "response": 4, "token": 17}
    assert call_features(groups) == {"call": 1, "group": 2, "response": 4}
    assert call_features() == {"call": 1, "group": 0, "response": 0}


def test_a_sync_counts_bytes_tensors_and_further_receivers() -> None:
    assert sync_features(2e9, 30, receivers=3) == {
        "call": 1,
        "tensor": 30,
        "gb": 2,
        "further_gb": 4,
        "first": 0,
        "first_gb": 0,
    }
    assert sync_features(2e9, 30, first=True)["first_gb"] == 2


def test_weights_of_a_model_are_counted_with_their_names() -> None:
    """9 tensors in each of 3 layers, the table and the last norm; untied, the output too; Qwen's biases and norms."""
    assert (weight_tensors(SHAPE), weight_bytes(SHAPE)) == (29, 2584 * 4)
    untied = TransformersConfig(
        100, 8, 16, 3, 2, 1, 4, 64, tie_word_embeddings=False, model_type="qwen3", other_biases=True
    )
    assert weight_tensors(untied) == 3 * (9 + 3 + 2) + 3
