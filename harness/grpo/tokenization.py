"""Prompts and responses as the padded, shifted tensors that a causal model is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.core.protocols import Tokenizer


def tokenize_prompt_and_output(
    prompt_strs: Sequence[str],
    output_strs: Sequence[str],
    tokenizer: Tokenizer,
    *,
    prompt_special_tokens: bool = False,
) -> dict[str, Tensor]:
    """Tokenise each prompt and its output separately, join the two, pad on the right and shift by one.

    Separately, because a tokenizer may merge characters across the border, and the response's first token must be one
    that the policy could have sampled after the prompt.

    Args:
        prompt_strs: B prompts.
        output_strs: B outputs.
        tokenizer: a Hugging Face tokenizer. Its pad token fills up; where it has none, its end-of-sequence token.
        prompt_special_tokens: whether the tokenizer may add its special tokens (such as a start-of-sequence token) to
            the prompt. Nothing is ever added to the output.

    Returns:
        ``input_ids`` (B, max_len - 1), the joined ids without the last column; ``labels``, the same without the first
        column; ``response_mask``, true where the label is a response token. max_len is the longest joined length.

    Raises:
        UserError: the lists differ in length or are empty, nothing has two tokens, or there is no token to pad with.
    """
    if not prompt_strs or len(prompt_strs) != len(output_strs):
        raise UserError(
            f"{len(prompt_strs)} prompt_strs and {len(output_strs)} output_strs; they must be equally many, at least 1"
        )
    pad_token_id = _pad_token_id(tokenizer)
    prompts = [list(tokenizer.encode(text, add_special_tokens=prompt_special_tokens)) for text in prompt_strs]
    outputs = [list(tokenizer.encode(text, add_special_tokens=False)) for text in output_strs]
    lengths = [len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True)]
    if max(lengths) < 2:
        raise UserError(f"the longest prompt with its output has {max(lengths)} tokens, at least 2 are needed")
    token_ids = torch.full((len(prompts), max(lengths)), pad_token_id, dtype=torch.long)
    response_mask = torch.zeros(token_ids.shape, dtype=torch.bool)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        token_ids[row, : lengths[row]] = torch.tensor(prompt + output, dtype=torch.long)
        response_mask[row, len(prompt) : lengths[row]] = True
    return {
        "input_ids": token_ids[:, :-1].clone(),
        "labels": token_ids[:, 1:].clone(),
        "response_mask": response_mask[:, 1:].clone(),
    }


def _pad_token_id(tokenizer: Tokenizer) -> int:
    for name in ("pad_token_id", "eos_token_id"):
        token_id = getattr(tokenizer, name, None)
        if token_id is not None:
            return int(token_id)
    raise UserError(
        "the tokenizer has neither a pad_token_id nor an eos_token_id to pad with",
        where="tokenizer",
        fix="set tokenizer.pad_token",
    )
