"""What every policy must do, whichever model stands behind it: load, score, learn, save."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.policy import policy_log_probs
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["Write a sentence that includes the words: apple, red."], 280)
SHAPE = dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96)
ENDS = {"bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}


def small_qwen():
    """Transformers' Qwen2, with more rows than its tokenizer has tokens.

    Whatever the folder says, transformers reads its tokenizer as Qwen's own class, which adds one token.
    """
    fields = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
    return Qwen2ForCausalLM(Qwen2Config(**fields | ENDS | {"vocab_size": len(TOKENIZER) + 8}))


def windowed_qwen():
    """A Qwen2 that the own model refuses; the window is wider than any row of these tests."""
    fields = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
    window = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
    return Qwen2ForCausalLM(Qwen2Config(**fields | ENDS | window | {"vocab_size": len(TOKENIZER) + 8}))


def small_shape(model_type, **changes):
    return dataclasses.replace(SHAPE, model_type=model_type, vocab_size=len(TOKENIZER) + 8, **changes)


def small_llama(**changes):
    return LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf() | ENDS | changes))


POLICIES = {
    "own": (lambda: DecoderLM(SHAPE), DecoderLM),
    "own, untied": (lambda: DecoderLM(dataclasses.replace(SHAPE, tie_word_embeddings=False)), DecoderLM),
    "llama": (small_llama, DecoderLM),
    "llama with biases": (lambda: small_llama(attention_bias=True), LlamaForCausalLM),
    "qwen2": (small_qwen, DecoderLM),
    "own qwen2": (lambda: DecoderLM(small_shape("qwen2")), DecoderLM),
    "own qwen3, untied": (lambda: DecoderLM(small_shape("qwen3", tie_word_embeddings=False)), DecoderLM),
    "qwen2 with a sliding window": (windowed_qwen, Qwen2ForCausalLM),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), n_embd=64, n_layer=2, n_head=4, **ENDS)),
        GPT2LMHeadModel,
    ),
}


@pytest.fixture(scope="module", params=POLICIES.values(), ids=POLICIES)
def saved(request, tmp_path_factory):
    """A folder with weights spread widely enough for logits far from uniform, and the class that must load it."""
    make, loaded_as = request.param
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, TOKENIZER, folder)
    return folder, loaded_as


@pytest.fixture
def policy(saved) -> tuple[torch.nn.Module, type, Path]:
    folder, loaded_as = saved
    model, tokenizer = load_policy(folder)
    assert tokenizer.decode(tokenizer.encode("an apple")) == "an apple"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id)
    return model, loaded_as, folder


def prompts_and_responses():
    """Two prompts of 5 and 3 tokens; responses of 4, 0, 2 and 1 tokens to prompts 1, 0, 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    prompts_PL = torch.randint(2, len(TOKENIZER), (2, 5), generator=generator)
    responses_BT = torch.randint(2, len(TOKENIZER), (4, 4), generator=generator)
    mask_BT = torch.arange(4) < torch.tensor([4, 0, 2, 1])[:, None]
    return prompts_PL, torch.tensor([5, 3]), responses_BT, mask_BT, torch.tensor([1, 0, 0, 1])


def by_definition(model, batch, temperature):
    """log softmax(logits / temperature) of each unpadded row."""
    prompts_PL, lengths_P, responses_BT, mask_BT, index_B = batch
    out_BT = torch.zeros(mask_BT.shape)
    for row, prompt in enumerate(index_B.tolist()):
        length, count = int(lengths_P[prompt]), int(mask_BT[row].sum())
        ids = torch.cat((prompts_PL[prompt, :length], responses_BT[row, :count]))
        logits = model(input_ids=ids[None]).logits[0, length - 1 : length - 1 + count]
        scored = (logits / temperature).log_softmax(-1)
        out_BT[row, :count] = scored.gather(-1, responses_BT[row, :count, None])[:, 0]
    return out_BT


def test_loads_as_the_right_class_in_float32(policy):
    model, loaded_as, _ = policy
    assert type(model) is loaded_as
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_scores_equal_the_definition(policy, temperature):
    model, _, _ = policy
    batch = prompts_and_responses()
    with torch.no_grad():
        expected = by_definition(model, batch, temperature)
        log_probs, entropy = policy_log_probs(model, *batch, temperature=temperature, with_entropy=True)
    assert expected.abs().max() > 3
    torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=2e-5)
    mask_BT = batch[3]
    assert torch.equal(log_probs[~mask_BT], torch.zeros(9))
    assert torch.equal(entropy[~mask_BT], torch.zeros(9))
    assert ((entropy[mask_BT] > 0) & (entropy[mask_BT] < torch.tensor(float(len(TOKENIZER))).log())).all()


def test_a_gradient_step_makes_the_responses_likelier(policy):
    model, _, _ = policy
    batch = prompts_and_responses()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before, _ = policy_log_probs(model, *batch)
    (-before.sum()).backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    optimizer.step()
    after, _ = policy_log_probs(model, *batch)
    assert after.sum() > before.sum()


def test_saved_again_it_is_the_same_policy(policy, tmp_path):
    model, _, _ = policy
    _, tokenizer = load_policy(policy[2])
    save_policy(model, tokenizer, tmp_path / "again")
    again, _ = load_policy(tmp_path / "again")
    weights = again.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weights[name], weight), name
    assert not list((tmp_path / "again").glob("*.bin"))


@pytest.mark.parametrize(("narrow", "gap"), [(torch.bfloat16, 0.25), (torch.float16, 0.03)])
def test_autocast_scores_stay_near_float32(policy, narrow, gap):
    model, _, _ = policy
    batch = prompts_and_responses()
    with torch.no_grad():
        expected, _ = policy_log_probs(model, *batch)
        with torch.autocast("cpu", narrow):
            log_probs, _ = policy_log_probs(model, *batch)
    assert log_probs.dtype == torch.float32
    assert (log_probs - expected).abs().max() < gap
