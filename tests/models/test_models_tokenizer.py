"""The byte-level BPE tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from harness.core.errors import UserError
from harness.models.sorting import NumberTokenizer
from harness.models.tokenizer import tokenizer_digest, train_tokenizer

TEXTS = ["Write a sentence that includes the words: apple, red.", "The red apple is on the table."] * 4
TOKENIZER = train_tokenizer(TEXTS, 300)


@settings(max_examples=40, deadline=None)
@given(st.text())
@example(" two  spaces , and .")
@example("<|eos|><|pad|>")
@example("é 中文 🙂\n\t\x00")
@example("a" * 1000)
def test_any_text_comes_back_unchanged(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    if "<|" not in text:
        assert not {TOKENIZER.pad_token_id, TOKENIZER.eos_token_id} & set(ids)


def test_merges_are_learnt_from_the_texts_and_the_vocabulary_is_at_most_what_was_asked_for():
    assert len(TOKENIZER.encode(" red")) == 1  # a word of the texts, merged from 4 bytes
    assert len(TOKENIZER.encode("zqx")) == 3  # bytes that never stood together
    assert len(TOKENIZER) == 300
    assert len(train_tokenizer(TEXTS, 258)) == 258
    assert len(train_tokenizer(["ab"], 1000)) == 259  # one pair to merge
    with pytest.raises(UserError, match="257, must be at least 258"):
        train_tokenizer(TEXTS, 257)


def test_special_tokens():
    assert (TOKENIZER.pad_token, TOKENIZER.pad_token_id) == ("<|pad|>", 0)
    assert (TOKENIZER.eos_token, TOKENIZER.eos_token_id) == ("<|eos|>", 1)
    ids = TOKENIZER.encode("red apple")
    assert TOKENIZER.decode([*ids, 1, 0, 0], skip_special_tokens=True) == "red apple"
    assert TOKENIZER.decode([*ids, 1]) == "red apple<|eos|>"


def test_read_back_from_disk_it_gives_the_same_ids(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    for text in [*TEXTS, "é 🙂 <|eos|> ", " leading, and trailing "]:
        ids = loaded.encode(text)
        assert ids == TOKENIZER.encode(text)
        assert loaded.decode(ids, skip_special_tokens=True) == text
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)


def test_digits_can_have_a_token_each():
    texts = ["the year 1984 and 1985 and 19 more"] * 4
    together, apart = train_tokenizer(texts, 300), train_tokenizer(texts, 300, split_digits=True)
    assert len(together.encode("1984")) < 4
    assert apart.convert_ids_to_tokens(apart.encode("1984 ٣")[:4]) == ["1", "9", "8", "4"]
    assert apart.decode(apart.encode("a 1984٣.5 b")) == "a 1984٣.5 b"
    assert len(apart.encode(" and")) == 1


def saved(folder: Path, change: Callable[[dict[str, Any]], object] = lambda rules: None, **settings: object) -> str:
    """Save the tokenizer with other rules or settings and other white space; return the digest of what is loaded."""
    TOKENIZER.save_pretrained(folder)
    for name, changes in (("tokenizer.json", {}), ("tokenizer_config.json", settings)):
        content = json.loads((folder / name).read_text()) | changes
        if name == "tokenizer.json":
            change(content)
        (folder / name).write_text(json.dumps(content, indent=5))
    return tokenizer_digest(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


def test_the_digest_is_of_what_a_tokenizer_does_and_not_of_how_its_file_is_written(tmp_path: Path):
    plain = tokenizer_digest(TOKENIZER)
    assert saved(tmp_path) == plain
    again = train_tokenizer(iter(TEXTS), 300)  # the same texts give the same
    again(["red", "a red apple"], padding=True, truncation=True, max_length=2)  # which leaves its mark in the tokenizer
    assert tokenizer_digest(again) == plain
    others = [
        saved(tmp_path, lambda rules: rules["model"]["merges"].pop()),
        saved(tmp_path, lambda rules: rules.update(normalizer={"type": "Lowercase"})),
        saved(tmp_path, lambda rules: rules.update(decoder={"type": "Fuse"})),
        saved(tmp_path, lambda rules: rules["added_tokens"][0].update(lstrip=True)),
        saved(tmp_path, eos_token="<|pad|>"),
        saved(tmp_path, bos_token="<|eos|>"),
        tokenizer_digest(train_tokenizer(TEXTS, 290)),
    ]
    assert len({plain, *others, tokenizer_digest(NumberTokenizer())}) == 9  # which has no files, only its kind
