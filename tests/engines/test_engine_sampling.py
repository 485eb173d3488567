"""Random streams and drawing: numbers by hand, then by statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.types import SamplingParams
from harness.engines.rng import philox, pinned_lengths, row_uniforms
from harness.engines.sampling import draw, invert, invert_in_blocks, keep_nucleus

LARGEST_UNIFORM = 1 - 2.0**-24
LOGITS = st.lists(st.one_of(st.floats(-30, 30), st.just(-math.inf)), min_size=2, max_size=16)
LOGITS = LOGITS.filter(lambda values: max(values) > -math.inf)


def test_philox_gives_the_published_answers():
    """Known answers of the authors' own library, Random123 (file kat_vectors, philox4x32 with 10 rounds)."""
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    for counter, key, answer in (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ):
        words = tuple(np.array([value], dtype=np.uint64) for value in counter)
        assert tuple(int(word[0]) for word in philox(words, key)) == answer
    # seed 0, prompt 0, sample 0 has the first of them: the upper 24 bits over 2^24
    expected = [(word >> 8) / 2**24 for word in (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)]
    assert row_uniforms(0, [(0, 0)], 4)[:, 0].tolist() == expected


def test_a_row_has_the_same_stream_in_any_batch_and_a_longer_one_starts_alike():
    rows = [(0, 0), (0, 1), (1, 0), (7, 3)]
    together = row_uniforms(5, rows, 11)
    assert together.shape == (11, 4)
    for column, row in enumerate(rows):
        assert np.array_equal(row_uniforms(5, [row], 11)[:, 0], together[:, column])
    assert np.array_equal(row_uniforms(5, rows, 6), together[:6])
    keys = [(0, (0, 0)), (1, (0, 0)), (2**40, (0, 0)), (-1, (0, 0)), (0, (1, 0)), (0, (0, 1))]
    streams = {tuple(row_uniforms(seed, [row], 8)[:, 0].tolist()) for seed, row in keys}
    assert len(streams) == len(keys)


def logits_of(probabilities, rows=1):
    return torch.tensor([probabilities] * rows).log()


def test_the_token_is_where_the_cumulative_distribution_passes_the_uniform():
    # cumulative: 0.5, 0.75, 1
    uniforms = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, LARGEST_UNIFORM])
    tokens, log_probs = draw(logits_of([0.5, 0.25, 0.25], 6), SamplingParams(), uniforms)
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2]
    assert log_probs.tolist() == pytest.approx([math.log(p) for p in (0.5, 0.5, 0.25, 0.25, 0.25, 0.25)])
    # p^(1/2) normalised: sqrt(.64, .36) = .8, .6 -> 4/7, 3/7; at T = 2 a uniform of 0.6 is past 4/7 = 0.571
    tokens, log_probs = draw(logits_of([0.64, 0.36]), SamplingParams(temperature=2.0), torch.tensor([0.6]))
    assert (tokens.tolist(), log_probs.tolist()) == ([1], pytest.approx([math.log(3 / 7)]))
    # temperature 0 takes the likeliest and reports its log-prob at temperature 1
    tokens, log_probs = draw(logits_of([0.2, 0.5, 0.3]), SamplingParams(temperature=0.0), None)
    assert (tokens.tolist(), log_probs.tolist()) == ([1], pytest.approx([math.log(0.5)]))


def test_a_banned_token_is_never_drawn_and_the_others_share_its_mass():
    # without token 0: 0.3 / 0.5 and 0.2 / 0.5
    for temperature, uniform, token, prob in ((1.0, 0.59, 1, 0.6), (1.0, 0.61, 2, 0.4), (0.0, 0, 1, 0.6)):
        uniforms = torch.tensor([uniform]) if temperature else None
        tokens, log_probs = draw(logits_of([0.5, 0.3, 0.2]), SamplingParams(temperature), uniforms, banned=(0,))
        assert (tokens.tolist(), log_probs.tolist()) == ([token], pytest.approx([math.log(prob)]))


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p():
    """Tokens as likely as its last stay in it, and log-probs are of what is kept."""
    for before, top_p, kept in (
        ([0.4, 0.1, 0.3, 0.2], 0.3, [0.4, 0, 0, 0]),  # the likeliest alone reaches 0.3
        ([0.4, 0.1, 0.3, 0.2], 0.65, [0.4, 0, 0.3, 0]),  # 0.4 does not, 0.4 + 0.3 does
        ([0.4, 0.1, 0.3, 0.2], 0.85, [0.4, 0, 0.3, 0.2]),
        ([0.4, 0.1, 0.3, 0.2], 0.95, [0.4, 0.1, 0.3, 0.2]),
        ([0.25] * 4, 0.4, [0.25] * 4),
    ):
        probs = torch.tensor([before])
        keep_nucleus(probs, top_p)
        assert probs.tolist() == [pytest.approx(kept)], top_p
    # 0.65 keeps 0.4 and 0.3, that is 4/7 and 3/7
    uniforms = torch.tensor([0.57, 0.58])
    tokens, log_probs = draw(logits_of([0.4, 0.1, 0.3, 0.2], 2), SamplingParams(top_p=0.65), uniforms)
    assert tokens.tolist() == [0, 2]
    assert log_probs.tolist() == pytest.approx([math.log(4 / 7), math.log(3 / 7)])


def rounded_by(errors):
    """A scan whose sums are each off by a share of the total, as those of a parallel scan may be; others are exact."""

    def scan(masses, dim):
        off = torch.tensor(errors[: masses.shape[dim]] + [0.0] * (masses.shape[dim] - len(errors)))
        return masses.cumsum(dim) + off * masses.sum(dim, keepdim=True)

    return scan


def test_a_scan_that_rounds_never_draws_an_impossible_token():
    probs = torch.tensor([[0.5, 0.0, 0.0, 0.5, 0.0]])
    for errors, uniform, token in (
        ([0.0, 0.01, 0.01, 0.0, 0.0], 0.5, 0),  # the sum rises at tokens 1 and 2: the possible one before them
        ([0.0, 0.01, 0.0, 0.0, 0.0], LARGEST_UNIFORM, 3),
        ([0.0, 0.0, 0.0, -0.01, 0.0], LARGEST_UNIFORM, 3),  # it rises at the impossible last one
        ([0.0, 0.0, 0.0, 0.0, -0.01], LARGEST_UNIFORM, 3),  # it falls there
    ):
        tokens, log_probs = invert_in_blocks(probs, torch.tensor([uniform]), 8, rounded_by(errors))
        assert tokens.tolist() == [token], errors
        assert log_probs.tolist() == pytest.approx([math.log(0.5)], abs=0.011)  # the total is off too
    # before the first possible token the first is drawn, and other rows keep theirs
    two = torch.tensor([[0.0, 0.0, 0.25, 0.75], [0.5, 0.25, 0.25, 0.0]])
    tokens, _ = invert_in_blocks(two, torch.tensor([0.0, 0.6]), 4, rounded_by([0.0, 0.01, 0.0, 0.0]))
    assert tokens.tolist() == [2, 1]


def test_in_blocks_a_gpu_draws_what_a_cpu_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = (torch.randn(400, 1000, generator=generator) * 4).softmax(-1)
    probs[:, ::3] = 0.0
    uniforms = torch.randint(0, 2**24, (400,), generator=generator) / 2**24
    expected, expected_log_probs = invert(probs, uniforms)
    for block in (1, 3, 512):
        tokens, log_probs = invert_in_blocks(probs, uniforms, block)
        same = tokens == expected
        assert int((~same).sum()) <= 2  # rounding at a border draws the neighbour
        assert torch.allclose(log_probs[same], expected_log_probs[same], rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    logits=LOGITS,
    uniform=st.one_of(
        st.sampled_from([0.0, 2.0**-24, LARGEST_UNIFORM]), st.integers(0, 2**24 - 1).map(lambda word: word / 2**24)
    ),
    temperature=st.sampled_from([0.3, 1.0, 4.0]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    block=st.sampled_from([1, 2, 7, 64]),
    data=st.data(),
)
def test_whatever_the_logits_the_token_is_possible_and_its_log_prob_finite(
    logits, uniform, temperature, top_p, block, data
):
    """However a scan rounds, too."""
    rows, uniforms = torch.tensor([logits]), torch.tensor([uniform])
    tokens, log_probs = draw(rows, SamplingParams(temperature=temperature, top_p=top_p), uniforms)
    assert 0 <= int(tokens) < len(logits)
    assert logits[int(tokens)] > -math.inf
    assert -250 < float(log_probs) <= 1e-6
    probs = rows.softmax(-1)
    keep_nucleus(probs, top_p)
    errors = data.draw(st.lists(st.floats(-(2.0**-10), 2.0**-10, width=32), min_size=len(logits), max_size=len(logits)))
    tokens, log_probs = invert_in_blocks(probs, uniforms, block, rounded_by(errors))
    assert probs[0, int(tokens)] > 0
    assert math.isfinite(float(log_probs))


def test_pinned_lengths_are_uniform_over_their_bounds_both_included() -> None:
    rows = [(prompt, sample) for prompt in range(500) for sample in range(40)]
    lengths = pinned_lengths(7, rows, (4, 8))
    counts = np.bincount(lengths, minlength=9)[4:]
    assert (lengths.min(), lengths.max(), counts.sum()) == (4, 8, 20_000)
    # 20,000 draws over 5 lengths: 4,000 each, sd sqrt(20000 * 0.2 * 0.8) = 57; six of them
    assert np.abs(counts - 4_000).max() < 6 * 57
    assert pinned_lengths(7, rows[40:42], (4, 8)).tolist() == lengths[40:42].tolist()
    assert pinned_lengths(7, rows[:3], (5, 5)).tolist() == [5, 5, 5]
