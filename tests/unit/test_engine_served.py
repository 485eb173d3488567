"""Rows that another maker's engine samples, and what vLLM asks of a machine: without any such engine."""

from types import SimpleNamespace

import numpy as np
import pytest

from harness.engines.served import ServedRow, to_completions
from harness.engines.stops import StopStrings
from harness.engines.vllm_machine import MOST_CACHE_BYTES, check_vllm_installed, kv_cache_bytes
from harness.errors import Diverged, UserError


class Letters:
    """One token for each letter; 0 is the end of sequence."""

    eos_token_id = 0

    def decode(self, token_ids, **options):
        return "".join(chr(token) for token in token_ids if token)


LETTERS = Letters()


def row_of(text, *, stop=(), min_tokens=0, finish=None, version=0):
    """A row after an engine has said these letters one by one, the last one with a reason to finish."""
    row = ServedRow((0, 0), min_tokens, StopStrings(LETTERS, stop, min_tokens))
    for place, letter in enumerate(text):
        row.take([ord(letter)], [-0.5], version, finish if place == len(text) - 1 else None)
    return row


def test_a_stop_string_ends_a_row_and_stays_in_it() -> None:
    row = row_of("a stop, and more", stop=("stop",))
    assert (row.is_done, row.was_cut, len(row.token_ids)) == (True, True, 6)
    (done,) = to_completions([row], 1, 0, LETTERS)[0]
    assert (done.text, done.finish_reason, done.token_ids.tolist()) == ("a stop", "stop", [ord(c) for c in "a stop"])
    assert done.versions is None


def test_a_stop_string_within_min_tokens_is_ignored() -> None:
    row = row_of("ab ab", stop=("ab",), min_tokens=3)
    assert len(row.token_ids) == 5  # the first one ends at token 2
    assert row.is_done


def test_the_engines_own_reasons() -> None:
    ends = [(row_of("ab", finish=reason), reason) for reason in ("stop", "length")]
    for row, reason in ends:
        assert (row.is_done, row.was_cut, row.completion(LETTERS, False).finish_reason) == (True, False, reason)
    last = row_of("ab", stop=("b",), finish="length")  # completed by the last token there was room for
    assert (last.was_cut, last.completion(LETTERS, False).finish_reason) == (False, "stop")
    assert not row_of("ab").is_done


def test_versions_are_told_of_all_rows_where_one_saw_another_than_the_first() -> None:
    old, new = row_of("ab", finish="stop"), row_of("cd", finish="stop")
    new.row, new.versions = (0, 1), [0, 1]
    told = to_completions([new, old], 1, 0, LETTERS)[0]
    assert [completion.text for completion in told] == ["ab", "cd"]
    assert [completion.versions.tolist() for completion in told] == [[0, 0], [0, 1]]
    assert [completion.versions for completion in to_completions([old], 1, 0, LETTERS)[0]] == [None]


def test_a_log_prob_that_is_no_number_names_its_place() -> None:
    row = row_of("ab", finish="length")
    row.row, row.log_probs = (2, 3), [-0.5, float("nan")]
    with pytest.raises(Diverged, match="not finite at prompt 2, sample 3, token 1"):
        to_completions([row], 3, 0, LETTERS)


def test_nothing_is_kept_behind_the_end() -> None:
    row = row_of("stop", stop=("st",))
    assert np.array(row.log_probs).shape == (2,)
    row.take([5], [-0.1], 0, "length")
    assert len(row.token_ids) == 2


SHAPE = SimpleNamespace(num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=32, hidden_size=256)


def test_memory_for_keys_and_values() -> None:
    """4 layers x 2 x 4 heads x 32 channels x 4 bytes = 4096 bytes a token; 250 tokens fill 8 blocks of 32."""
    assert kv_cache_bytes(SHAPE, 250, 64, 4, MOST_CACHE_BYTES) == 65 * 256 * 4096
    assert kv_cache_bytes(SHAPE, 250, 64, 2, MOST_CACHE_BYTES) == 65 * 256 * 2048
    assert kv_cache_bytes(SHAPE, 250, 64, 4, 10 * 2**20) == 10 * 2**20
    assert kv_cache_bytes(SHAPE, 4096, 64, 4, 10 * 2**20) == 4096 * 4096  # one row has room all the same


def test_where_vllm_is_missing_the_error_says_how_to_get_it() -> None:
    with pytest.raises(UserError, match=r"engine\.type is vllm, and vLLM is not installed") as refused:
        check_vllm_installed(find=lambda name: None)
    assert "engine.type to native" in str(refused.value.fix)
    check_vllm_installed(find=lambda name: object())
