"""Joining, padding and shifting prompts and outputs; with a fake of one character per token and a real tokenizer."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from harness.core.errors import UserError
from harness.grpo import tokenize_prompt_and_output


class LetterTokenizer:
    """a is 1, b is 2, and so on; a start token 99 where special tokens are wanted."""

    def __init__(self, pad_token_id=0, eos_token_id=50):
        self.pad_token_id, self.eos_token_id = pad_token_id, eos_token_id

    def encode(self, text, add_special_tokens=True):
        return [99] * add_special_tokens + [ord(letter) - ord("a") + 1 for letter in text]


def hugging_face_tokenizer():
    """Return a real tokenizer of a few words that puts <s> in front by default."""
    words = ["<s>", "</s>", "<pad>", "the", "cat", "sat", "on", "mat"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def test_three_rows_by_hand():
    #                 a b | c d e       a | b         a b c | (nothing)
    batch = tokenize_prompt_and_output(["ab", "a", "abc"], ["cde", "b", ""], LetterTokenizer())
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4], [1, 2, 0, 0], [1, 2, 3, 0]]
    assert batch["labels"].tolist() == [[2, 3, 4, 5], [2, 0, 0, 0], [2, 3, 0, 0]]
    assert batch["response_mask"].tolist() == [
        [False, True, True, True],
        [True, False, False, False],
        [False, False, False, False],
    ]
    assert [tensor.dtype for tensor in batch.values()] == [torch.int64, torch.int64, torch.bool]
    assert [tensor.is_contiguous() for tensor in batch.values()] == [True, True, True]
    batch["input_ids"].fill_(7)
    assert batch["labels"].tolist()[0] == [2, 3, 4, 5]  # no memory is shared
    unpadded = tokenize_prompt_and_output(["ab", "a"], ["c", "b"], LetterTokenizer(pad_token_id=None))
    assert unpadded["labels"].tolist() == [[2, 3], [2, 50]]  # the end token stands in
    empty = tokenize_prompt_and_output([""], ["abc"], LetterTokenizer())  # the shift takes its first token
    assert (empty["labels"].tolist(), empty["response_mask"].tolist()) == ([[2, 3]], [[True, True]])


def test_a_hugging_face_tokenizer():
    tokenizer = hugging_face_tokenizer()
    batch = tokenize_prompt_and_output(["the cat", "the"], ["sat on the mat", "mat"], tokenizer)
    assert batch["input_ids"].tolist() == [[3, 4, 5, 6, 3], [3, 7, 2, 2, 2]]  # 2 pads
    assert batch["labels"].tolist() == [[4, 5, 6, 3, 7], [7, 2, 2, 2, 2]]
    assert batch["response_mask"].int().tolist() == [[0, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    batch = tokenize_prompt_and_output(["the"], ["mat"], tokenizer, prompt_special_tokens=True)
    assert batch["input_ids"].tolist() == [[0, 3]]  # <s> the
    assert batch["labels"].tolist() == [[3, 7]]


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="2 prompt_strs and 1 output_strs"):
        tokenize_prompt_and_output(["a", "b"], ["c"], LetterTokenizer())
    with pytest.raises(UserError, match="0 prompt_strs"):
        tokenize_prompt_and_output([], [], LetterTokenizer())
    with pytest.raises(UserError, match="has 1 tokens, at least 2 are needed"):
        tokenize_prompt_and_output(["a"], [""], LetterTokenizer())
    with pytest.raises(
        UserError, match=r"neither a pad_token_id nor an eos_token_id[\s\S]*fix: +set tokenizer.pad_token"
    ):
        tokenize_prompt_and_output(["a"], ["b"], LetterTokenizer(pad_token_id=None, eos_token_id=None))
