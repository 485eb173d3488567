"""The native decoder against the model it decodes, and against transformers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.core.errors import RunStopped, UserError
from harness.core.types import SamplingParams
from harness.engines.decode import CachedDecoder, rotation_table
from harness.engines.native import NativeEngine, native_engine
from harness.engines.weights import PlainLinear, build_weights, make_linear
from harness.models.config import PRESETS, RopeScaling
from harness.models.decoder import DecoderLM, rotation_at
from harness.models.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer([""], 258)
GROUPED = dataclasses.replace(PRESETS["tiny"], vocab_size=258, num_hidden_layers=3)
PLAIN_HEADS = dataclasses.replace(
    GROUPED, num_key_value_heads=4, head_dim=16, tie_word_embeddings=False, rope_theta=500.0, rms_norm_eps=1e-3
)
CONFIGS = {
    "grouped heads, tied": GROUPED,
    "a key for each head, untied": PLAIN_HEADS,
    "qwen2": dataclasses.replace(GROUPED, model_type="qwen2"),
    "qwen3": dataclasses.replace(GROUPED, model_type="qwen3", rms_norm_eps=1e-6),
    "llama 3.1": dataclasses.replace(GROUPED, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16)),
}
CPU = torch.device("cpu")
RAGGED = [[5, 6, 7], [9] * 17, [100], [30, 31, 32, 33, 34, 35, 36]]


def spread_model(config, seed):
    """Weights far enough from uniform for logits of several units, and gains that are not 1."""
    model = DecoderLM(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return model


def decoder_for(model, dtype=torch.float32, linear=make_linear):
    decoder = CachedDecoder(model.config, dtype, CPU)
    decoder.weights = build_weights(model.state_dict(), model.config, dtype, CPU, linear)
    return decoder


def full_logits(model, token_ids):
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0, -1]


def test_a_cache_in_bfloat16_has_half_the_bytes_and_nearly_the_log_probs():
    model = spread_model(GROUPED, 1)
    exact, narrow = (native_engine(model, TOKENIZER, kv_cache=dtype) for dtype in ("float32", "bfloat16"))
    sampling = SamplingParams(min_tokens=24, max_tokens=24)
    sampled = [completion for (completion,) in exact.generate(RAGGED, 1, sampling, 0)]
    responses = [completion.token_ids.tolist() for completion in sampled]
    wanted, found = (np.concatenate(engine.score(RAGGED, responses)) for engine in (exact, narrow))
    assert 1e-4 < np.abs(found - wanted).max() < 0.2  # keys, values and scores of 8 bits, logits of several units
    kept = [engine._backend._cache for engine in (exact, narrow)]
    narrow.generate(RAGGED, 1, sampling, 0)
    assert kept[0]._arena.nbytes == 2 * kept[1]._arena.nbytes > 0


def test_a_cache_in_bfloat16_is_for_the_own_models():
    with pytest.raises(UserError, match="kv_cache"):
        native_engine(torch.nn.Linear(2, 2), TOKENIZER, kv_cache="bfloat16")


def test_rotations_are_those_of_the_model():
    table = rotation_table(GROUPED, GROUPED.max_position_embeddings)
    cos, sin = rotation_at(torch.arange(GROUPED.max_position_embeddings), GROUPED)
    assert torch.equal(table.real, cos[:, 0])
    assert torch.equal(table.imag, sin[:, 0])


@pytest.mark.parametrize("linear", [make_linear, PlainLinear], ids=["fastest", "plain"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_of_every_step_with_ragged_prompts_and_rows_that_leave(config, linear):
    model = spread_model(config, 1)
    decoder = decoder_for(model, linear=linear)
    histories = [list(RAGGED[index]) for index in (0, 1, 1, 2, 3)]
    with torch.inference_mode():
        logits = decoder.prefill(RAGGED, [0, 1, 1, 2, 3], 6)
        for step in range(6):
            expected = torch.stack([full_logits(model, history) for history in histories])
            assert (logits - expected).abs().max() < 1e-4
            if step == 5:
                break
            if step == 2:  # the row in slot 1 leaves, the last one takes its place
                decoder.compact([4], [1], 4)
                histories[1] = histories.pop()
            if step == 3:  # then the longest prompt, in the last slot but one, and the last
                decoder.compact([], [], 2)
                del histories[2:]
            tokens = [(13 * step + 7 * row) % 258 for row in range(len(histories))]
            for history, token in zip(histories, tokens, strict=True):
                history.append(token)
            logits = decoder.step(torch.tensor(tokens))


@pytest.mark.parametrize("prompt_tokens", [1, 2 * max(map(len, RAGGED))], ids=["one by one", "two at a time"])
def test_prompts_that_are_computed_in_pieces_give_the_same_logits(prompt_tokens):
    model, prompt_of_row = spread_model(GROUPED, 1), [0, 2, 1, 1, 3]
    whole, pieces = decoder_for(model), decoder_for(model)
    pieces.prompt_tokens = prompt_tokens
    tokens = torch.tensor([5, 6, 7, 8, 9])
    with torch.inference_mode():
        for decoder in (whole, pieces):
            decoder.found = [decoder.prefill(RAGGED, prompt_of_row, 3), decoder.step(tokens)]
    for expected, found in zip(whole.found, pieces.found, strict=True):
        assert (expected - found).abs().max() < 1e-5


def test_slots_that_wait_for_a_rounder_number_to_leave_change_nothing():
    model = spread_model(GROUPED, 1)
    decoder = decoder_for(model)
    histories = [list(RAGGED[index % 4]) for index in range(40)]
    slots = []
    with torch.inference_mode():
        logits = decoder.prefill(RAGGED, [index % 4 for index in range(40)], 7)
        for step, num_rows in enumerate([39, 37, 33, 32, 31, 20]):
            expected = torch.stack([full_logits(model, history) for history in histories])
            assert logits.shape == expected.shape
            assert (logits - expected).abs().max() < 1e-4
            decoder.compact([len(histories) - 1], [step], num_rows)  # the last row takes a place, others leave
            histories[step] = histories[-1]
            histories = [list(history) for history in histories[:num_rows]]
            tokens = [(13 * step + 7 * row) % 258 for row in range(num_rows)]
            for history, token in zip(histories, tokens, strict=True):
                history.append(token)
            logits = decoder.step(torch.tensor(tokens))
            slots.append(len(decoder._positions_R))
    assert slots == [40, 40, 36, 32, 32, 20]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_greedy_tokens_are_those_of_transformers_generate(config, seed):
    own = spread_model(config, seed)
    ends = {"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}
    values = {name: value for name, value in config.to_hf(**ends).items() if name != "model_type"}
    of_theirs = AutoConfig.for_model(config.model_type, **values)
    reference = AutoModelForCausalLM.from_config(of_theirs, trust_remote_code=False).eval()
    assert not reference.load_state_dict(own.state_dict(), strict=False).unexpected_keys
    width = max(len(prompt) for prompt in RAGGED)
    padded = torch.tensor([[TOKENIZER.pad_token_id] * (width - len(prompt)) + prompt for prompt in RAGGED])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in RAGGED])
    theirs = reference.generate(padded, attention_mask=mask, do_sample=False, max_new_tokens=24)[:, width:].tolist()
    engine = native_engine(own, TOKENIZER)
    ours = engine.generate(RAGGED, 1, SamplingParams(temperature=0.0, max_tokens=24), 0)
    for (completion,), tokens in zip(ours, theirs, strict=True):
        length = len(completion.token_ids)
        assert completion.token_ids.tolist() == tokens[:length]
        assert set(tokens[length:]) <= {TOKENIZER.pad_token_id}


def test_rotations_beyond_the_first_table_are_computed_when_they_are_needed(monkeypatch):
    monkeypatch.setattr("harness.engines.decode._FIRST_POSITIONS", 8)
    model = spread_model(GROUPED, 1)
    decoder = decoder_for(model)
    with torch.inference_mode():
        logits = decoder.prefill([[5, 6, 7], [9] * 17], [0, 1], 3)
    for row, prompt in enumerate(([5, 6, 7], [9] * 17)):
        assert (logits[row] - full_logits(model, prompt)).abs().max() < 1e-4


def test_bfloat16_stays_close_to_float32():
    model = spread_model(GROUPED, 1)
    prompts = RAGGED * 8
    sampling = SamplingParams(max_tokens=16)
    completions = [
        group[0] for group in native_engine(model, TOKENIZER, precision="bfloat16").generate(prompts, 1, sampling, 0)
    ]
    errors = []
    for prompt, completion in zip(prompts, completions, strict=True):
        history = [*prompt, *completion.token_ids.tolist()]
        with torch.no_grad():
            log_probs = model(torch.tensor([history])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        drawn = log_probs.gather(1, torch.from_numpy(completion.token_ids)[:, None])[:, 0]
        errors += (drawn - torch.from_numpy(completion.log_probs)).abs().tolist()
    # weights and hidden states of 8 bits: a part in 256 of logits of up to about 10; float32 errs by 1e-6
    assert 1e-3 < sum(errors) / len(errors) < 0.1


def test_weights_may_change_between_two_steps():
    first, second = spread_model(GROUPED, 1), spread_model(GROUPED, 2)
    decoder = decoder_for(first)
    with torch.inference_mode():
        decoder.prefill([[5, 6, 7]], [0], 4)
        decoder.weights = build_weights(second.state_dict(), GROUPED, torch.float32, CPU)
        changed = decoder.step(torch.tensor([8]))
        unchanged = decoder_for(first)
        unchanged.prefill([[5, 6, 7]], [0], 4)
        old = unchanged.step(torch.tensor([8]))
    assert (changed - old).abs().max() > 0.1


class Interrupting:
    """A projection that calls ``interrupt`` before it computes."""

    def __init__(self, inner, interrupt):
        self.inner, self.interrupt = inner, interrupt

    def __call__(self, x):
        self.interrupt()
        return self.inner(x)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_prefill_or_step_computes_with_one_set_of_weights_even_if_they_are_replaced_in_the_middle():
    first, second = spread_model(GROUPED, 1), spread_model(GROUPED, 2)
    new = build_weights(second.state_dict(), GROUPED, torch.float32, CPU, PlainLinear, version=1)

    def swap():
        decoder.weights = new

    def interrupted(weight, bias=None):
        return Interrupting(PlainLinear(weight, bias), swap)

    decoder, undisturbed = decoder_for(first, linear=interrupted), decoder_for(first, linear=PlainLinear)
    old = decoder.weights
    with torch.inference_mode():
        assert torch.equal(decoder.prefill([[5, 6, 7]], [0], 4), undisturbed.prefill([[5, 6, 7]], [0], 4))
        assert (decoder.logits_version, decoder.version) == (0, 1)
        decoder.weights = old
        assert torch.equal(decoder.step(torch.tensor([8])), undisturbed.step(torch.tensor([8])))
        assert (decoder.logits_version, decoder.version) == (0, 1)
        undisturbed.weights = new
        assert torch.equal(decoder.step(torch.tensor([9])), undisturbed.step(torch.tensor([9])))
        assert (decoder.logits_version, undisturbed.logits_version) == (1, 1)


@pytest.mark.parametrize(
    ("loads", "versions"),
    [({3: 2, 5: 3}, [1, 1, 2, 2, 3, 3, 3, 3]), ({1: 2, 8: 3}, [2, 2, 2, 2, 2, 2, 2, 3])],
)
def test_weights_loaded_in_the_middle_sample_from_the_next_token_on(loads, versions):
    weights = {version: spread_model(GROUPED, version).state_dict() for version in (1, 2, 3)}
    polls, sampling = [], SamplingParams(max_tokens=8, min_tokens=8)

    def load_on_the_way():
        polls.append(None)
        if len(polls) in loads:
            engine.load_weights(weights[loads[len(polls)]], loads[len(polls)])
        return False

    engine = NativeEngine(GROUPED, TOKENIZER, should_stop=load_on_the_way)
    engine.load_weights(weights[1], 1)
    sampled = engine.generate([[5, 6], [7, 8, 9]], 2, sampling, 3)
    assert sampled[0][0].versions.tolist() == versions


def test_an_engine_without_weights_says_so():
    with pytest.raises(RunStopped, match="before any weights were loaded"):
        NativeEngine(GROUPED, TOKENIZER).generate([[1]], 1, SamplingParams(), 0)
