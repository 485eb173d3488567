"""Models that transformers runs, with several responses behind one prompt: which may, and it changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from harness.models.decoder import checkpoint_layers
from harness.models.head import has_plain_head
from harness.models.policy import ScoringModel, policy_log_probs, score_rows, why_padded
from harness.models.scoring import ScoreRequest, TokenBan
from harness.models.shared_rows import cheapest_layout, lay_out, shared_rows
from tests.models.batches import (
    Batch,
    assert_equal,
    gradients,
    make_batch,
    padded_response_log_probs,
    row_by_row,
    spread,
)

LAYERS = {"vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {**LAYERS, "num_attention_heads": 4, "max_position_embeddings": 64}
NAMED = {**HEADS, "intermediate_size": 48, "num_key_value_heads": 2, "pad_token_id": 0}
GPT2 = {"vocab_size": 53, "n_embd": 32, "n_layer": 2, "n_head": 4}
SHARED = {
    "llama with biases": ("llama", {**NAMED, "attention_bias": True}),
    "mistral without a window": ("mistral", {**NAMED, "sliding_window": None}),
    "qwen2 that names a window and does not use it": ("qwen2", {**NAMED, "sliding_window": 4096}),
    "gpt2, learned positions": ("gpt2", {**GPT2, "n_positions": 64}),
    "opt, learned positions": ("opt", {**HEADS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gemma": ("gemma", {**NAMED, "head_dim": 8}),
    "phi": ("phi", NAMED),
    "cohere, layers side by side": ("cohere", NAMED),
}
"""``test_models_families`` has more, as they are published."""
PADDED = {
    "phi3 with a window": ("phi3", {**NAMED, "sliding_window": 2047}, "config has sliding_window"),
    "gemma2": ("gemma2", {**NAMED, "head_dim": 8}, "layers of sliding_attention"),
    "gemma2 of full layers, whose masks are made with a window all the same": (
        "gemma2",
        {**NAMED, "head_dim": 8, "layer_types": ["full_attention"] * 2},
        "config has sliding_window",
    ),
    "gpt_neo, local layers": (
        "gpt_neo",
        {**LAYERS, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        "attention has a code of its own",
    ),
    "bloom, ALiBi": ("bloom", {"vocab_size": 53, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "takes no positions"),
    "falcon with ALiBi": ("falcon", {**HEADS, "alibi": True}, "attention has a code of its own"),
    "mamba": ("mamba", LAYERS, "layers do more than attend"),
}
RAGGED = ([4, 7, 2, 5], [5, 1, 3, 8, 2, 6, 4, 0, 3], [0, 0, 1, 1, 2, 2, 2, 2, 1])  # the last prompt has no rollouts


def made(kind: str, values: dict[str, Any], attention: str | None = None) -> nn.Module:
    """A small model with weights spread widely enough for logits far from uniform."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, bos_token_id=1, eos_token_id=2, **values)
    model: nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation=attention)
    return spread(model)


def shapes_run(model: nn.Module) -> list[tuple[int, ...]]:
    """A list that every forward pass adds the shape of its rows to."""
    shapes: list[tuple[int, ...]] = []
    table: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    table.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    return shapes


def in_float64(model: nn.Module) -> nn.Module:
    """The model in float64 through and through: transformers' RMSNorm would compute in float32."""
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm).__name__.endswith("RMSNorm"):
                own = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
                own.weight = norm.weight
                setattr(parent, name, own)
    return model.double()


def assert_shared_rows_change_nothing(model: nn.Module, batch: Batch, tolerance: float) -> None:
    """Values and gradients are those of one row after another, and one pass over shared rows made them."""
    shapes = shapes_run(model)
    why_padded(model)
    tried = len(shapes)
    log_probs_BT, _ = policy_log_probs(model, *batch, temperature=0.7)
    (shape,) = shapes[tried:]
    assert shape[0] < len(batch[4])
    expected_BT = row_by_row(model, batch, 0.7)[0]
    torch.testing.assert_close(log_probs_BT, expected_BT, rtol=tolerance, atol=tolerance)
    assert_equal(gradients(model, log_probs_BT), gradients(model, expected_BT), tolerance)


@pytest.mark.parametrize(("kind", "values"), SHARED.values(), ids=SHARED)
def test_families_that_share_rows(kind: str, values: dict[str, Any]) -> None:
    """In float64 nothing but the last digits changes, where the model computes in it."""
    for attention in ("sdpa", "eager"):
        model, batch = made(kind, values, attention), make_batch(*RAGGED)
        assert why_padded(model) == ""
        assert_shared_rows_change_nothing(model, batch, 1e-5)
    if kind not in ("gemma", "cohere"):
        assert_shared_rows_change_nothing(in_float64(made(kind, values)), batch, 1e-12)


@pytest.mark.parametrize(("kind", "values", "reason"), PADDED.values(), ids=PADDED)
def test_families_that_do_not(kind, values, reason):
    model, batch = made(kind, values), make_batch(*RAGGED)
    assert reason in why_padded(model)
    log_probs_BT, _ = policy_log_probs(model, *batch)
    expected_BT, _ = padded_response_log_probs(model, *batch)
    assert torch.equal(log_probs_BT, expected_BT)
    torch.testing.assert_close(log_probs_BT, row_by_row(model, batch)[0], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
@pytest.mark.parametrize(("scale", "dtype"), [(0.1, torch.float32), (1.0, torch.bfloat16)])
def test_the_trial_finds_a_model_that_ignores_what_it_takes(scale, ignored, dtype):
    model = made(*SHARED["gpt2, learned positions"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    model.to(dtype)
    assert why_padded(model) == ""
    model = copy.deepcopy(model)
    model.transformer.register_forward_pre_hook(
        lambda _, args, given: (args, {**given, ignored: None}), with_kwargs=True
    )
    assert "shared rows change its log-probs by" in why_padded(model)


def test_a_model_is_tried_once_and_left_as_it_was():
    model, batch = made(*SHARED["llama with biases"]).train(), make_batch(*RAGGED)
    model.model.layers[0].eval()
    flags, attributes = {name: m.training for name, m in model.named_modules()}, set(vars(model))
    shapes, drawn = shapes_run(model), torch.get_rng_state()
    for _ in range(2):
        policy_log_probs(ScoringModel(model).policy, *batch)
    # a trial of four passes: five responses, then two prompts, three times; and two batches of three prompts
    assert shapes == [(5, 10), *[(2, 15)] * 3, *[(3, 20)] * 2]
    assert {name: m.training for name, m in model.named_modules()} == flags
    assert set(vars(model)) == attributes
    assert torch.equal(torch.get_rng_state(), drawn)


def test_what_somebody_elses_code_raises_is_a_reason(monkeypatch):
    model, batch = made(*SHARED["gpt2, learned positions"]), make_batch(*RAGGED)
    expected_BT, _ = padded_response_log_probs(model, *batch)

    def refuse(module, args, kwargs):
        if kwargs["attention_mask"].dim() == 4:
            raise NotImplementedError

    model.transformer.register_forward_pre_hook(refuse, with_kwargs=True)
    assert why_padded(model) == "on shared rows it raises NotImplementedError"
    assert torch.equal(policy_log_probs(model, *batch)[0], expected_BT)


@pytest.mark.parametrize(
    ("name", "entropy_gradient"), [("mistral without a window", True), ("gpt2, learned positions", False)]
)
def test_entropy_and_banned_tokens_through_the_scoring_model(name, entropy_gradient):
    model, batch = in_float64(made(*SHARED[name])), make_batch(*RAGGED)
    assert has_plain_head(model) == name.startswith("mistral")
    how = {"temperature": 1.3, "with_entropy": True, "entropy_gradient": entropy_gradient, "ban": TokenBan((5, 0), 2)}
    log_probs_BT, entropy_BT = ScoringModel(model)(*batch, **how)
    expected_BT, expected_entropy_BT = padded_response_log_probs(model, *batch, **how)
    torch.testing.assert_close(log_probs_BT, expected_BT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy_BT, expected_entropy_BT, rtol=1e-12, atol=1e-12)
    assert entropy_BT.requires_grad == entropy_gradient
    sums = [(log_probs_BT + entropy_BT), (expected_BT + expected_entropy_BT)]
    assert_equal(gradients(model, sums[0]), gradients(model, sums[1]), 1e-12)


def test_checkpointed_layers_share_rows_too():
    model, batch = in_float64(made(*SHARED["llama with biases"])), make_batch(*RAGGED)
    expected_BT, _ = padded_response_log_probs(model, *batch)
    checkpointed = copy.deepcopy(model)
    checkpoint_layers(checkpointed)
    log_probs_BT, _ = policy_log_probs(checkpointed, *batch)
    assert why_padded(checkpointed) == ""
    assert_equal(gradients(checkpointed, log_probs_BT), gradients(model, expected_BT), 1e-12)


def chosen(prompt: int, response: int, group: int, hidden_size: int) -> tuple[int, int] | None:
    """Rows and columns of one group; None for unshared rows."""
    request = ScoreRequest(*make_batch([prompt], [response] * group, [0] * group))
    layout = cheapest_layout(request, hidden_size)
    return layout and (len(layout.prompt_R), layout.width)


def test_the_cheapest_layout_by_hand():
    # unshared 8 x 319 x (4 x 1536 + 319) = 16.5 million; one row of 256 + 8 x 63 = 760: 768 x 6,912 = 5.3 million
    assert chosen(256, 64, 8, 1536) == (1, 768)  # of which rows are filled up, so that products have few shapes
    # unshared 8 x 527 x (1024 + 527) = 6.5 million; one row 21 million, two 13 million, four of 1,038: 8.7 million
    assert chosen(16, 512, 8, 256) is None
    # unshared 8 x 1,023 x (1024 + 1,023) = 16.8 million; four of 1,534: 15.9 million, which is not a tenth less
    assert chosen(512, 512, 8, 256) is None
    assert chosen(16, 32, 1, 1536) is None
    # one token each: prompts alone
    assert chosen(7, 1, 4, 32) == (1, 8)


def drawn_batch(data, most):
    """Lengths of prompts and of responses, and whose each is."""
    prompts = data.draw(st.lists(st.integers(1, most), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(st.integers(0, most), st.integers(0, len(prompts) - 1)), min_size=1))
    return prompts, *map(list, zip(*rows, strict=True))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_shared_rows_never_take_more_tokens(data):
    prompts, lengths, index = drawn_batch(data, 40)
    layout = cheapest_layout(ScoreRequest(*make_batch(prompts, lengths, index)), 64)
    unshared = lay_out(prompts, lengths, index, per_row=1)
    assert len(unshared.prompt_R) == len(lengths)
    if layout is not None:
        assert len(layout.prompt_R) * layout.width <= len(lengths) * unshared.width
        assert layout.cost(64) < unshared.cost(64)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_values_equal_padded_rows_for_any_lengths_and_any_number_in_a_row(data):
    lengths = drawn_batch(data, 9)
    batch = make_batch(*lengths)
    with torch.no_grad():
        expected_BT, _ = padded_response_log_probs(MODEL, *batch)
        layout = lay_out(*lengths, data.draw(st.integers(1, 5)))
        request = ScoreRequest(*batch)
        found_BT, _ = score_rows(MODEL, shared_rows(request, layout, torch.float64), request)
    torch.testing.assert_close(found_BT, expected_BT, rtol=1e-12, atol=1e-12)


MODEL = made(*SHARED["phi"]).double()
