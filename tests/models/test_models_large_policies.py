"""What keeps a large policy small in memory changes none of its results: pieces of logits, checkpointed layers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from harness.core.errors import UserError
from harness.models.config import PRESETS
from harness.models.decoder import CheckpointedLayer, DecoderLM, checkpoint_layers
from harness.models.head import has_plain_head, score_hidden
from harness.models.policy import policy_log_probs

SIZES = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def qwen(**options: float) -> nn.Module:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **options)).eval()


def own() -> nn.Module:
    return DecoderLM(dataclasses.replace(PRESETS["tiny"], vocab_size=300))


def log_probs(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    prompts, responses = (torch.randint(2, 300, shape, generator=generator) for shape in ((2, 7), (4, 9)))
    mask = torch.arange(9) < torch.tensor([9, 4, 1, 6])[:, None]
    found, _ = policy_log_probs(model, prompts, torch.tensor([7, 3]), responses, mask, torch.tensor([0, 0, 1, 1]))
    return found


def test_never_more_logits_than_allowed_are_kept() -> None:
    hidden, weight = torch.randn(64, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    sizes: list[int] = []

    def look(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        tokens = torch.zeros(64, dtype=torch.long)
        score_hidden(hidden, weight, tokens, 1.0, False, max_logits=20 * 50, piece_logits=8 * 50)
    inputs = [hidden.numel(), weight.numel(), 64, 64]  # with the tokens and the normalisers
    assert sorted(sizes) == sorted([*inputs, 8 * 50, 8 * 50])  # two pieces of eight; a third would be above 20 tokens


def test_heads_that_do_more_than_multiply_are_left_to_transformers() -> None:
    gemma = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=16))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=64, n_layer=1, n_head=4))
    assert [has_plain_head(model) for model in (qwen(), gemma, gpt2, own())] == [True, False, False, False]


@pytest.mark.parametrize("make", [qwen, own])
def test_checkpointing_changes_no_result_and_no_name_and_can_be_copied(make: Callable[[], nn.Module]) -> None:
    plain = make()
    checkpointed = copy.deepcopy(plain)
    checkpoint_layers(checkpointed)
    again = copy.deepcopy(checkpointed)
    assert list(again.state_dict()) == list(plain.state_dict())
    assert make is qwen or all(isinstance(layer, CheckpointedLayer) for layer in again.model.layers)  # type: ignore[union-attr]
    results = []
    for model in (plain, again):
        found = log_probs(model)
        found.sum().backward()
        results.append((found.detach(), {name: weight.grad for name, weight in model.named_parameters()}))
    torch.testing.assert_close(*results)


def test_layers_are_in_training_mode_and_nothing_inside_of_them() -> None:
    model = qwen(attention_dropout=0.5)
    checkpoint_layers(model)
    training = {name for name, module in model.named_modules() if module.training}
    assert training == {"model.layers.0", "model.layers.1"}
    torch.testing.assert_close(log_probs(model), log_probs(qwen(attention_dropout=0.5)))  # no dropout


def test_what_cannot_be_checkpointed_is_refused() -> None:
    sizes = {"vocab_size": 300, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    dropping = OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=64, dropout=0.1)).eval()
    for model, what in ((dropping, r"OPTDecoderLayer drops 0\.1"), (nn.Linear(2, 2), "Linear has no layers")):
        with pytest.raises(UserError, match=what) as refused:
            checkpoint_layers(model)
        assert refused.value.where == "model.gradient_checkpointing"
