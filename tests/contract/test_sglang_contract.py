"""What every engine must do, of SGLang: where it is installed and there is a GPU. It has not been run by the authors.

The checks are those of ``test_engine_contract.py`` that need no engine of our own: shapes, seeds, batches, greedy
tokens, log-probabilities, stop strings, pinned lengths, weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.errors import Interrupted, UserError
from harness.core.types import SamplingParams
from harness.engines.rng import pinned_lengths
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer

REASON = (
    "SGLang is not installed"
    if find_spec("sglang") is None
    else "SGLang needs a GPU, and there is none"
    if not torch.cuda.is_available()
    else ""
)
pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON)]

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
SHAPE = dataclasses.replace(
    PRESETS["tiny"], vocab_size=len(TOKENIZER), head_dim=64, hidden_size=256, max_position_embeddings=64
)
PROMPTS = [[5, 6, 7], [9] * 11, [100], [30, 31, 32, 33, 34]]
SAMPLING = SamplingParams(max_tokens=12)
TOLERANCE = 1e-4


def make_model(seed: int = 0) -> DecoderLM:
    """A model whose logits are spread over several units."""
    model = DecoderLM(SHAPE, seed=seed).cuda()
    generator = torch.Generator(device="cuda").manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, device="cuda"), alpha=0.15)
    return model


@pytest.fixture(scope="module")
def model() -> DecoderLM:
    return make_model()


@pytest.fixture(scope="module")
def served(model: DecoderLM) -> Iterator[Any]:
    from harness.engines.sglang import sglang_engine

    stop = SimpleNamespace(now=False)
    settings = SimpleNamespace(precision="float32", max_batch=8, memory_fraction=0.3)
    engine = sglang_engine(settings, model, TOKENIZER, device="cuda", should_stop=lambda: stop.now)
    yield SimpleNamespace(engine=engine, stop=stop)
    engine.close()


def tokens_of(groups: Any) -> list[list[list[int]]]:
    return [[completion.token_ids.tolist() for completion in group] for group in groups]


def response_logits(model: DecoderLM, prompt: list[int], token_ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[*prompt, *token_ids]], device="cuda")).logits[0, len(prompt) - 1 : -1].float().cpu()


def test_a_completion_has_tokens_log_probs_text_and_a_reason(served: Any) -> None:
    for group in served.engine.generate(PROMPTS, 3, SAMPLING, 0):
        assert len(group) == 3
        for completion in group:
            assert 1 <= len(completion.token_ids) == len(completion.log_probs) <= 12
            assert completion.text == TOKENIZER.decode(completion.token_ids.tolist(), skip_special_tokens=True)
            ended = completion.token_ids[-1] == TOKENIZER.eos_token_id
            assert completion.finish_reason == ("stop" if ended else "length")


def test_the_same_seed_gives_the_same_tokens_in_any_batch(served: Any) -> None:
    whole = tokens_of(served.engine.generate(PROMPTS, 4, SAMPLING, 7))
    assert tokens_of(served.engine.generate(PROMPTS, 4, SAMPLING, 7)) == whole
    assert tokens_of(served.engine.generate(PROMPTS[:2], 4, SAMPLING, 7)) == whole[:2]
    assert tokens_of(served.engine.generate(PROMPTS, 4, SAMPLING, 8)) != whole


def test_greedy_tokens_are_the_likeliest(served: Any, model: DecoderLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    for prompt, (completion,) in zip(PROMPTS, served.engine.generate(PROMPTS, 1, greedy, 0), strict=True):
        logits = response_logits(model, prompt, completion.token_ids.tolist())
        assert completion.token_ids.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(("temperature", "min_tokens"), [(1.0, 0), (0.6, 0), (1.7, 5)])
def test_log_probs_are_those_of_the_sampled_distribution(
    served: Any, model: DecoderLM, temperature: float, min_tokens: int
) -> None:
    sampling = SamplingParams(temperature=temperature, min_tokens=min_tokens, max_tokens=12)
    for prompt, group in zip(PROMPTS, served.engine.generate(PROMPTS, 3, sampling, 5), strict=True):
        for completion in group:
            logits = response_logits(model, prompt, completion.token_ids.tolist())
            logits[:min_tokens, TOKENIZER.eos_token_id] = -torch.inf
            expected = (logits / temperature).log_softmax(-1).gather(1, torch.from_numpy(completion.token_ids)[:, None])
            assert (torch.from_numpy(completion.log_probs) - expected[:, 0]).abs().max() < TOLERANCE


def test_scores_of_given_tokens_are_at_temperature_1(served: Any, model: DecoderLM) -> None:
    responses = [[8, 9], [10, 11, 12], [13], [14, 15]]
    for prompt, response, found in zip(PROMPTS, responses, served.engine.score(PROMPTS, responses), strict=True):
        expected = response_logits(model, prompt, response).log_softmax(-1).gather(1, torch.tensor(response)[:, None])
        assert (torch.from_numpy(found) - expected[:, 0]).abs().max() < TOLERANCE


def test_a_response_ends_at_the_first_token_that_completes_a_stop_string(served: Any) -> None:
    free = served.engine.generate(PROMPTS, 1, SamplingParams(max_tokens=24), 2)
    stop = free[0][0].text[2:5]
    for (completion,) in served.engine.generate(PROMPTS, 1, SamplingParams(max_tokens=24, stop=(stop,)), 2):
        before = TOKENIZER.decode(completion.token_ids[:-1].tolist(), skip_special_tokens=True)
        assert stop not in before


def test_pinned_lengths_hold_whatever_the_policy_says(served: Any) -> None:
    sampling = SamplingParams(max_tokens=24, pinned_lengths=(3, 20))
    sampled = served.engine.generate(PROMPTS, 4, sampling, 11)
    rows = [(prompt, sample) for prompt in range(4) for sample in range(4)]
    lengths = [len(completion.token_ids) for group in sampled for completion in group]
    assert lengths == pinned_lengths(11, rows, (3, 20)).tolist()


def test_new_weights_are_those_that_sample(served: Any, model: DecoderLM) -> None:
    other = make_model(seed=1)
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    served.engine.load_weights(dict(other.named_parameters()), version=1)
    try:
        ((completion,),) = served.engine.generate(PROMPTS[:1], 1, greedy, 0)
        logits = response_logits(other, PROMPTS[0], completion.token_ids.tolist())
        assert completion.token_ids.tolist() == logits.argmax(-1).tolist()
    finally:
        served.engine.load_weights(dict(model.named_parameters()), version=2)


def test_a_stop_signal_interrupts(served: Any) -> None:
    served.stop.now = True
    with pytest.raises(Interrupted):
        served.engine.generate(PROMPTS, 4, SamplingParams(min_tokens=48, max_tokens=48), 0)
    served.stop.now = False
    assert len(served.engine.generate(PROMPTS, 1, SAMPLING, 0)) == 4


def test_bad_requests_are_refused(served: Any) -> None:
    with pytest.raises(UserError, match="prompt 1"):
        served.engine.generate([[5], []], 1, SAMPLING, 0)
