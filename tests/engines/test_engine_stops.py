"""Which token completes a stop string, with characters of several bytes and strings of several tokens."""

from __future__ import annotations

import pytest

from harness.core.errors import UserError
from harness.engines.stop_strings import StopStrings, decode_text
from harness.models.tokenizer import train_tokenizer

BYTES = train_tokenizer([""], 258)
"""No merges: every byte is a token."""


def encode(text):
    return BYTES.encode(text)


def first_stop(stops, token_ids):
    """Feed tokens one by one, as an engine does; return how many were there when a stop string was complete."""
    for end in range(1, len(token_ids) + 1):
        if stops.is_suspect(token_ids[end - 1]) and stops.completed_by_last(token_ids[:end]):
            return end
    return None


def test_the_first_token_that_completes_a_stop_string():
    for text, stop, end in (
        ("ab</answer>cd", ("</answer>",), len("ab</answer>")),
        ("a<b</answer></answer>", ("</answer>",), len("a<b</answer>")),
        ("one two. three", ("three", "two"), len("one two")),
        ("une idée fixe", ("dé",), len("une id") + 2),  # é is two bytes: the second one completes it
        ("今日は", ("日",), 6),  # three bytes each
        ("say no\nmore", ("no\n",), len("say no\n")),
        ("aaab", ("aab",), 4),
        ("nothing here", ("xyz",), None),
        ("日", ("\xe6",), None),  # the first byte of 日 is no character
    ):
        assert first_stop(StopStrings(BYTES, stop), encode(text)) == end, text
    for min_tokens, end in ((0, 2), (1, 2), (2, 6), (5, 6), (6, None)):
        # within the first tokens they are ignored: "ab" is complete at tokens 2 and 6
        assert first_stop(StopStrings(BYTES, ("ab",), min_tokens), encode("abcdab")) == end, min_tokens
    # tokens: a, first byte of é, second byte; only the first two are ignored
    assert first_stop(StopStrings(BYTES, ("é",), 2), encode("aé")) == 3


def test_an_unfinished_character_behind_the_stop_string_does_not_hide_it():
    merged = train_tokenizer(["x. x. x. x."] * 8, 270)
    token_ids = [*merged.encode("a."), encode("日")[0]]
    assert StopStrings(merged, (".",)).completed_by_last(token_ids)


def test_a_token_that_runs_over_the_end_of_the_stop_string_completes_it():
    merged = train_tokenizer(["cat catalogue"] * 50, 300)
    token_ids = merged.encode("cat catalogue")
    stops = StopStrings(merged, ("catal",))
    end = first_stop(stops, token_ids)
    assert "catal" in decode_text(merged, token_ids[:end])
    assert "catal" not in decode_text(merged, token_ids[: end - 1])
    assert end < len("cat catalogue")  # there are merges: tokens of several characters


def test_special_tokens_are_no_text():
    token_ids = [*encode("a"), BYTES.eos_token_id, *encode("b")]
    assert decode_text(BYTES, token_ids) == "ab"
    stops = StopStrings(BYTES, ("<|eos|>",))
    assert stops.ends == (BYTES.eos_token_id,)
    assert not stops
    assert first_stop(stops, token_ids) is None


def with_tokens():
    """A tokenizer with two special tokens and an added one that is text."""
    tokenizer = train_tokenizer([""], 258)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|im_end|>!"]})
    tokenizer.add_tokens(["</think>"])
    return tokenizer, tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_end|>!", "</think>"])


def test_a_stop_string_that_is_one_token_ends_by_its_id():
    tokenizer, (end, longer, think) = with_tokens()
    found = StopStrings(tokenizer, ("<|im_end|>", "x", "</think>", "<|im_end|>!"), ends=(1, end))
    assert found.ends == (1, end, think, longer)
    assert found.texts == ("x", "</think>")  # which other tokens may spell
    spelled = [token for character in "a</think>" for token in tokenizer.encode(character)]
    assert think not in spelled
    assert first_stop(found, spelled) == len(spelled)
    assert StopStrings(tokenizer, ("<|im_end|>",), ends=(1,), vocab_size=end).ends == (1,)
    assert StopStrings(tokenizer, ("\n", "|im_end|")).texts == ("\n", "|im_end|")


def test_a_stop_string_with_a_special_token_in_it_is_refused_with_the_token():
    tokenizer, _ = with_tokens()
    for stop, named in (
        ("<|im_end|><|eos|>", "<|im_end|>"),
        ("<|im_end|>\n", "<|im_end|>"),
        ("ok<|eos|>", "<|eos|>"),
        ("<|im_end|>!<|eos|>", "<|im_end|>!"),
    ):
        with pytest.raises(UserError, match="is never found") as refused:
            StopStrings(tokenizer, ("a", stop))
        assert refused.value.where == "sampling.stop"
        assert f'["{named}"]' in refused.value.fix
    with pytest.raises(UserError, match="a stop string is empty") as refused:
        StopStrings(BYTES, ("a", ""))
    assert refused.value.where == "sampling.stop"


def test_only_tokens_that_can_complete_one_are_decoded():
    stops = StopStrings(BYTES, ("</answer>",))
    suspects = [character for character in "abc>/<" if stops.is_suspect(encode(character)[0])]
    assert suspects == [">"]
    assert StopStrings(BYTES, ("x\n",)).is_suspect(encode("q")[0])  # ends in whitespace: any token may
    assert not StopStrings(BYTES, ())
