"""The native decoder against the model it decodes, and against transformers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from harness.core.errors import RunStopped, UserError
from harness.core.types import SamplingParams
from harness.engines.decode import CachedDecoder
from harness.engines.native import NativeEngine, native_engine
from harness.engines.weights import PlainLinear, build_weights, make_linear
from harness.models.config import PRESETS, RopeScaling
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer
from tests.models.batches import spread

TOKENIZER = train_tokenizer([""], 258)
GROUPED = dataclasses.replace(PRESETS["tiny"], vocab_size=258, num_hidden_layers=3)

CONFIGS = {
    "grouped heads, tied": GROUPED,
    "a key for each head, untied": dataclasses.replace(
        GROUPED, num_key_value_heads=4, head_dim=16, tie_word_embeddings=False, rope_theta=500.0, rms_norm_eps=1e-3
    ),
    "qwen2": dataclasses.replace(GROUPED, model_type="qwen2"),
    "qwen3": dataclasses.replace(GROUPED, model_type="qwen3", rms_norm_eps=1e-6),
    "llama 3.1": dataclasses.replace(GROUPED, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16)),
}
CPU = torch.device("cpu")
RAGGED = [[5, 6, 7], [9] * 17, [100], [30, 31, 32, 33, 34, 35, 36]]


def spread_model(config, seed):
    return spread(DecoderLM(config, seed=seed), seed)


def decoder_for(model, dtype=torch.float32, linear=make_linear):
    decoder = CachedDecoder(model.config, dtype, CPU)
    decoder.weights = build_weights(model.state_dict(), model.config, dtype, CPU, linear)
    return decoder


def full_logits(model, histories):
    """Of one forward pass for each history: the logits that predict its next token."""
    with torch.no_grad():
        return torch.stack([model(torch.tensor([history])).logits[0, -1] for history in histories])


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
    with pytest.raises(UserError, match="kv_cache"):  # it is for the own models
        native_engine(torch.nn.Linear(2, 2), TOKENIZER, kv_cache="bfloat16")


def with_next_tokens(histories, step):
    """Add a token to each history; return them."""
    tokens = [(13 * step + 7 * row) % 258 for row in range(len(histories))]
    for history, token in zip(histories, tokens, strict=True):
        history.append(token)
    return torch.tensor(tokens)


@pytest.mark.parametrize("linear", [make_linear, PlainLinear], ids=["fastest", "plain"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_of_every_step_with_ragged_prompts_and_rows_that_leave(config, linear):
    model = spread_model(config, 1)
    decoder = decoder_for(model, linear=linear)
    histories = [list(RAGGED[index]) for index in (0, 1, 1, 2, 3)]
    with torch.inference_mode():
        logits = decoder.prefill(RAGGED, [0, 1, 1, 2, 3], 6)
        for step in range(6):
            assert (logits - full_logits(model, histories)).abs().max() < 1e-4
            if step == 5:
                break
            if step == 2:  # the row in slot 1 leaves, the last one takes its place
                decoder.compact([4], [1], 4)
                histories[1] = histories.pop()
            if step == 3:  # then the longest prompt, in the last slot but one, and the last
                decoder.compact([], [], 2)
                del histories[2:]
            logits = decoder.step(with_next_tokens(histories, step))


def test_prompts_that_are_computed_in_pieces_give_the_same_logits(monkeypatch):
    """And so do rotations beyond the first table, which are computed when they are needed."""
    monkeypatch.setattr("harness.engines.decode._FIRST_POSITIONS", 8)
    model, prompt_of_row, tokens = spread_model(GROUPED, 1), [0, 2, 1, 1, 3], torch.tensor([5, 6, 7, 8, 9])
    histories = [RAGGED[prompt] for prompt in prompt_of_row]
    for prompt_tokens in (1, 2 * max(map(len, RAGGED))):  # one by one, two at a time
        decoder = decoder_for(model)
        decoder.prompt_tokens = prompt_tokens
        with torch.inference_mode():
            assert (decoder.prefill(RAGGED, prompt_of_row, 3) - full_logits(model, histories)).abs().max() < 1e-4
            longer = [[*history, token] for history, token in zip(histories, tokens.tolist(), strict=True)]
            assert (decoder.step(tokens) - full_logits(model, longer)).abs().max() < 1e-4


def test_slots_that_wait_for_a_rounder_number_to_leave_change_nothing():
    model = spread_model(GROUPED, 1)
    decoder = decoder_for(model)
    histories = [list(RAGGED[index % 4]) for index in range(20)]
    slots = []
    with torch.inference_mode():
        logits = decoder.prefill(RAGGED, [index % 4 for index in range(20)], 7)
        for step, num_rows in enumerate([19, 17, 13, 12, 11, 4]):
            expected = full_logits(model, histories)
            assert logits.shape == expected.shape
            assert (logits - expected).abs().max() < 1e-4
            decoder.compact([len(histories) - 1], [step], num_rows)  # the last row takes a place, others leave
            histories[step] = histories[-1]
            histories = [list(history) for history in histories[:num_rows]]
            logits = decoder.step(with_next_tokens(histories, step))
            slots.append(len(decoder._positions_R))
    assert slots == [20, 20, 16, 12, 12, 4]


class Interrupting(PlainLinear):
    """A projection that calls ``interrupt`` before it computes."""

    def __init__(self, weight, bias, interrupt):
        super().__init__(weight, bias)
        self.interrupt = interrupt

    def __call__(self, x):
        self.interrupt()
        return super().__call__(x)


def test_a_prefill_or_step_computes_with_one_set_of_weights_even_if_they_are_replaced_in_the_middle():
    first, second = spread_model(GROUPED, 1), spread_model(GROUPED, 2)
    new = build_weights(second.state_dict(), GROUPED, torch.float32, CPU, PlainLinear, version=1)

    def swap():
        decoder.weights = new

    interrupted = decoder_for(first, linear=lambda weight, bias=None: Interrupting(weight, bias, swap))
    decoder, undisturbed = interrupted, decoder_for(first, linear=PlainLinear)
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


def test_an_engine_without_weights_says_so():
    with pytest.raises(RunStopped, match="before any weights"):
        NativeEngine(GROUPED, TOKENIZER).generate([[1]], 1, SamplingParams(), 0)
