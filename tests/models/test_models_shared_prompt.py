"""Scoring responses with each prompt encoded once, against plain rows, one at a time."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.models import shared_prompt
from harness.models.decoder import DecoderLM
from harness.models.policy import policy_log_probs
from harness.models.scoring import ScoreRequest
from harness.models.shared_prompt import pack_batch
from tests.models.batches import (
    SHAPE,
    Operators,
    assert_equal,
    gradients,
    make_batch,
    padded_response_log_probs,
    row_by_row,
    spread,
)


def own_model(**changes):
    return spread(DecoderLM(dataclasses.replace(SHAPE, **changes)), alpha=0.3)


BATCHES = {
    "ragged": ([4, 7, 2], [5, 1, 3, 8, 2, 6], [0, 0, 1, 1, 2, 2]),
    "rows in any order": ([4, 7, 2], [5, 1, 3, 8, 2, 6], [2, 0, 1, 2, 0, 1]),
    "empty responses": ([4, 7], [5, 0, 0, 3], [0, 0, 1, 1]),
    "all responses empty": ([4, 7], [0, 0], [0, 1]),
    "one prompt with many rollouts": ([6], [3, 4, 5, 6, 7, 8, 9], [0] * 7),
    "one rollout for each prompt": ([6, 1, 3], [4, 4, 4], [0, 1, 2]),
    "uneven groups": ([3, 5], [4, 2, 6, 1], [1, 1, 1, 0]),
    "a prompt without rollouts": ([3, 5, 2], [4, 2], [2, 0]),
    "filled up, from 93 tokens to 96 and from 90 scored to 96": ([6, 9], [8] * 6 + [7] * 6, [0, 1] * 6),
    "one token each": ([1, 1], [1, 1, 1], [0, 1, 1]),
}


def assert_as_plain_rows(score, lengths, dtype, tolerance, **changes):
    """Values, entropies and gradients are those of one row after another."""
    model, batch = own_model(**changes).to(dtype), make_batch(*lengths)
    expected, expected_entropy = row_by_row(model, batch, temperature=0.7)
    log_probs, entropy = score(model, *batch, temperature=0.7, with_entropy=True)
    torch.testing.assert_close(log_probs, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(entropy, expected_entropy, rtol=tolerance, atol=tolerance)
    assert not entropy.requires_grad
    if batch[3].any():
        assert_equal(gradients(model, log_probs), gradients(model, expected), tolerance)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_values_and_gradients_equal_plain_rows(lengths):
    assert_as_plain_rows(policy_log_probs, lengths, torch.float64, 1e-12)
    assert_as_plain_rows(padded_response_log_probs, lengths, torch.float32, 1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_blocks_of_queries_change_nothing(size, monkeypatch):
    monkeypatch.setattr(shared_prompt, "queries_per_block", lambda device: size)
    for name in ("ragged", "rows in any order", "empty responses", "uneven groups", "a prompt without rollouts"):
        assert_as_plain_rows(policy_log_probs, BATCHES[name], torch.float64, 1e-12)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_values_equal_plain_rows_for_any_lengths(data):
    prompt_lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    row = st.tuples(st.integers(0, 9), st.integers(0, len(prompt_lengths) - 1))
    rows = data.draw(st.lists(row, min_size=1, max_size=8))
    lengths = prompt_lengths, *map(list, zip(*rows, strict=True))
    for score in (policy_log_probs, padded_response_log_probs):
        assert_as_plain_rows(score, lengths, torch.float64, 1e-11, tie_word_embeddings=False, num_key_value_heads=4)


def test_masked_positions_are_zero_and_padding_does_not_matter():
    model = own_model()
    prompts_PL, lengths_P, responses_BT, mask_BT, index_B = make_batch([4, 7], [5, 2, 3], [0, 1, 1], width=9)
    log_probs, entropy = policy_log_probs(
        model, prompts_PL, lengths_P, responses_BT, mask_BT, index_B, with_entropy=True
    )
    assert log_probs.dtype == entropy.dtype == torch.float32
    assert log_probs.shape == (3, 9)
    assert torch.equal(log_probs[~mask_BT], torch.zeros(27 - 10))
    assert (log_probs[mask_BT] < 0).all()
    others = prompts_PL.clone(), responses_BT.clone()
    others[0][0, 4:], others[1][~mask_BT] = 0, 0
    again, _ = policy_log_probs(model, others[0], lengths_P, others[1], mask_BT.long(), index_B)
    assert torch.equal(again, log_probs)


def test_only_distinct_tokens_are_run():
    batch = pack_batch(ScoreRequest(*make_batch([4, 7], [5, 0, 3, 1], [1, 0, 0, 1])))
    # prompts 4 + 7, responses without their last token 4 + 0 + 2 + 0: 17, filled up to 20; 9 scored, filled up to 12
    assert batch.token_ids_N.shape == (20,)
    assert batch.positions_N.tolist() == [*range(4), *range(7), 7, 8, 9, 10, 4, 5, 0, 0, 0]
    assert batch.scored_ids_M.shape == (12,)
    # row 0 starts at the last token of prompt 1 (slot 10), row 2 at that of prompt 0 (slot 3), row 3 at 10 again
    assert batch.scored_slots_M.tolist() == [10, 11, 12, 13, 14, 3, 15, 16, 10, 0, 0, 0]
    filled = pack_batch(ScoreRequest(*make_batch(*BATCHES["filled up, from 93 tokens to 96 and from 90 scored to 96"])))
    assert filled.token_ids_N.shape == filled.positions_N.shape == filled.attended_slots_N.shape == (96,)
    assert filled.scored_slots_M.shape == filled.scored_ids_M.shape == (96,)


def test_the_dispatcher_encodes_prompts_once_for_the_own_model_only():
    class Rows(torch.nn.Module):
        """An own model in a coat that the dispatcher does not know."""

        def __init__(self):
            super().__init__()
            self.inner, self.shapes = own_model(), []

        def forward(self, input_ids, attention_mask):
            self.shapes.append(tuple(input_ids.shape))
            return self.inner(input_ids, attention_mask)

    rows, batch = Rows(), make_batch([4, 7], [5, 2, 3], [0, 1, 1])
    expected, _ = policy_log_probs(rows.inner, *batch)
    assert rows.shapes == []
    log_probs, _ = policy_log_probs(rows, *batch)
    assert rows.shapes == [(3, 9)]  # longest row 7 + 3, without its last token
    torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=1e-5)


def test_autocast_multiplies_in_bfloat16_and_normalises_in_float32():
    model, batch = own_model(), make_batch(*BATCHES["ragged"])
    expected, _ = policy_log_probs(model, *batch)
    with Operators() as record:
        with torch.autocast("cpu", torch.bfloat16):
            log_probs, _ = policy_log_probs(model, *batch)
        log_probs.sum().backward()
    assert record.types["mm"] == {torch.bfloat16}
    for operator in ("_softmax", "amax", "bmm", "linalg_vector_norm"):
        assert record.types[operator] == {torch.float32}, operator
    assert log_probs.dtype == torch.float32
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    # bfloat16 keeps 8 bits: logits of size 8 are off by about 8 / 256
    assert 0 < (log_probs - expected).abs().max() < 0.25
    assert expected.abs().max() > 5


def test_a_malformed_batch_is_refused():
    good = make_batch([4, 7], [5, 2, 3], [0, 1, 1])
    for place, value, message in (
        (1, torch.tensor([4, 0]), "0 tokens, must be at least 1"),
        (1, torch.tensor([4, 9]), "9 tokens in 8 columns"),
        (1, torch.tensor([4]), r"prompt_lengths is \(1,\), not \(2,\)"),
        (3, torch.ones(3, 4), r"response_mask is \(3, 4\), response_ids \(3, 5\)"),
        (3, torch.tensor([[1, 1, 0, 1, 0]] * 3), "response_mask has a 1 after a 0"),
        (4, torch.tensor([0, 1, 2]), r"prompt_index \[2\] is outside 0..1"),
        (4, torch.tensor([0, 1]), r"prompt_index is \(2,\), not \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            ScoreRequest(*good[:place], value, *good[place + 1 :])
    with pytest.raises(ValueError, match="temperature is 0, must be above 0"):
        ScoreRequest(*good, temperature=0)
