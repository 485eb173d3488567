"""A byte-level BPE tokenizer, trained on given texts and kept in Hugging Face's format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from harness.core.errors import UserError

PAD_TOKEN = "<|pad|>"
EOS_TOKEN = "<|eos|>"
SMALLEST_VOCABULARY = 258


def train_tokenizer(texts: Iterable[str], vocab_size: int, *, split_digits: bool = False) -> PreTrainedTokenizerFast:
    """Train byte-level BPE (Sennrich et al. 2016, over bytes as in GPT-2) and wrap it as transformers does.

    Every text can be encoded and comes back unchanged; nothing is added to it; the names of the special tokens,
    occurring in a text, are read as plain text. The same texts give the same tokenizer.

    Args:
        texts: what the merges are learnt from.
        vocab_size: most entries, special tokens included; fewer where the texts run out of pairs to merge.
        split_digits: give every digit a token of its own, also those that no text has shown, as Llama 1 does
            (arXiv 2302.13971, section 2.1): numbers are then read and written by place.

    Raises:
        UserError: ``vocab_size`` is below 258.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        what = f"vocab_size is {vocab_size}, must be at least {SMALLEST_VOCABULARY}: 256 bytes and 2 special tokens"
        raise UserError(what, fix=f"ask for {SMALLEST_VOCABULARY} or more")
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words]) if split_digits else words
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD_TOKEN, EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256, in hexadecimal, of what a tokenizer does: how it splits texts, and joins tokens again.

    That is its vocabulary, merges, added tokens, normaliser and decoder, and which token begins and ends texts. How its
    files are written is no part of it, nor how batches were padded or cut last.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
        rules: dict[str, Any] = {"class": type(tokenizer).__qualname__, "vocabulary": vocabulary}
    else:
        rules = json.loads(backend.to_str()) | dict.fromkeys(("padding", "truncation", "version"))
    names = ("bos_token_id", "eos_token_id", "clean_up_tokenization_spaces")
    told = rules | {name: getattr(tokenizer, name, None) for name in names}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
