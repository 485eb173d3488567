"""Scoring a rollout batch with gradients: the own model's shared prompts against transformers on padded rows.

8 prompts of 13 tokens, 8 responses of 32 tokens each, the small preset, one thread; the same weights and tokens.
"""

from __future__ import annotations

import pytest
import torch

from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.policy import policy_log_probs
from harness.models.tokenizer import train_tokenizer
from tests.benchmarks.engines import llama_of

PROMPTS, GROUP_SIZE, PROMPT_LENGTH, RESPONSE_LENGTH = 8, 8, 13, 32
LENGTHS = {"forced": (RESPONSE_LENGTH, RESPONSE_LENGTH), "natural": (4, RESPONSE_LENGTH)}


def make_batch(lengths, prompts):
    """Random tokens, each response as long as drawn uniformly between the two bounds."""
    generator = torch.Generator().manual_seed(0)
    shortest, longest = LENGTHS[lengths]
    vocab_size, rows = PRESETS["small"].vocab_size, prompts * GROUP_SIZE
    prompts_PL = torch.randint(vocab_size, (prompts, PROMPT_LENGTH), generator=generator)
    responses_BT = torch.randint(vocab_size, (rows, RESPONSE_LENGTH), generator=generator)
    lengths_B = torch.randint(shortest, longest + 1, (rows,), generator=generator)
    mask_BT = torch.arange(RESPONSE_LENGTH) < lengths_B[:, None]
    index_B = torch.arange(prompts).repeat_interleave(GROUP_SIZE)
    return prompts_PL, torch.full((prompts,), PROMPT_LENGTH), responses_BT, mask_BT, index_B


@pytest.mark.parametrize("kind", ["own", "transformers"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", sorted(LENGTHS))
def test_forward_and_backward(benchmark, timed, lengths, precision, kind):
    model, batch = DecoderLM(PRESETS["small"]), make_batch(lengths, PROMPTS if timed else 1)
    if kind == "transformers":
        model = llama_of(model, train_tokenizer([""], 258)).train()
    benchmark.group = f"log-probs with gradients, {lengths} lengths, {precision}"

    def forward_and_backward():
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            log_probs_BT, _ = policy_log_probs(model, *batch)
        log_probs_BT.sum().backward()
        return log_probs_BT

    log_probs_BT = benchmark.pedantic(forward_and_backward, rounds=5, warmup_rounds=1)
    assert log_probs_BT.shape == batch[2].shape
    benchmark.extra_info["scored_tokens"] = int(batch[3].sum())
