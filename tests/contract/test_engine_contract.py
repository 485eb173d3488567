"""Every engine is held to ``harness.testing``, whichever model stands behind it; and what only some of them do."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from harness.core.types import SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import NativeEngine, native_engine
from harness.engines.paced import PacedEngine, PacedTokenizer
from harness.engines.vllm import VllmEngine, vllm_engine
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.layers import attention, bias_from
from harness.models.sorting import SortingModel
from harness.models.tokenizer import train_tokenizer
from harness.settings.engine import VllmEngineSettings
from harness.testing import EngineContract, ModelEngineContract
from harness.testing.engine import (
    GREEDY,
    LONG,
    PROMPTS,
    SCORED,
    flat,
    frequent_tokens,
    largest_scoring_gap,
    response_logits,
    tokens_of,
)

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
CONTEXT = 64
SHAPE = dataclasses.replace(
    PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96, max_position_embeddings=CONTEXT
)
MANY_HEADS = dataclasses.replace(SHAPE, num_key_value_heads=4, tie_word_embeddings=False)
FIELDS = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")} | {
    "bos_token_id": None,
    "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": TOKENIZER.pad_token_id,
}
TWO_HEADS = FIELDS | {"num_attention_heads": 2}  # of 32 channels: vLLM's attention on CPUs has none of 16
GPT2 = GPT2Config(vocab_size=len(TOKENIZER), n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT, bos_token_id=None)

FORCED = SamplingParams(min_tokens=24, max_tokens=24)


@dataclass(frozen=True)
class Case:
    """An engine and the model it must agree with; ``tolerance`` bounds the gap of their log-probs."""

    make_model: Callable[[], torch.nn.Module]
    precision: str = "float32"
    tolerance: float = 1e-4
    tokenizer: Any = TOKENIZER

    @property
    def exact(self) -> bool:
        return self.precision == "float32"

    def engine(self, model, tokenizer=TOKENIZER, **options):
        return native_engine(model, tokenizer, precision=self.precision, **options)

    def engine_to_spoil(self, model):
        return self.engine(model)


class PacedCase:
    """The paced engine in the place of a ``Case``: a request for ``PROMPTS`` is four slices long, and none is slept."""

    exact = True
    tokenizer = PacedTokenizer()

    def engine(self, model, should_stop=None, max_batch=256):
        engine = PacedEngine(0.04, 0.0, len(PROMPTS), should_stop=should_stop, sleep=lambda seconds: None)
        engine.load_weights({"w": torch.zeros(1)})
        return engine


class Tenant:
    """A ``VllmEngine`` that shares its vLLM with others of the same shape: a start takes seconds, a load milliseconds.

    Before it works it puts its own weights in, where another one's are.
    """

    holders: ClassVar[dict[int, Tenant]] = {}

    def __init__(self, engine, model):
        self.engine, self.context_length = engine, engine.context_length
        self.holders.pop(id(engine._llm), None)
        self.load_weights(dict(model.named_parameters()))

    def load_weights(self, weights, version=0):
        self.engine.load_weights(weights, version)
        self.weights, self.version = {name: tensor.clone() for name, tensor in weights.items()}, version
        self.holders[id(self.engine._llm)] = self

    def _enter(self):
        if self.holders[id(self.engine._llm)] is not self:
            self.load_weights(self.weights, self.version)

    def generate(self, prompts, num_samples, sampling, seed, places=None):
        self._enter()
        return self.engine.generate(prompts, num_samples, sampling, seed, places)

    def score(self, prompts, responses):
        self._enter()
        return self.engine.score(prompts, responses)


@dataclass(frozen=True)
class VllmCase(Case):
    """A vLLM in this process, started once for each case."""

    def engine(self, model, tokenizer=TOKENIZER, **options):
        engine = VllmEngine(self.llm(), model, tokenizer, **options)
        return Tenant(engine, model)

    def engine_to_spoil(self, model):
        """NaN stays in the key/value cache, where it would spoil what other tests compute."""
        return self.start(model)

    @functools.cache  # noqa: B019
    def llm(self):
        return self.start(self.make_model())._llm

    def start(self, model):
        return vllm_engine(VllmEngineSettings(precision=self.precision, max_batch=64), model, TOKENIZER)


MODEL_CASES = {
    "native": Case(lambda: DecoderLM(SHAPE)),
    "native, untied, a key for each head": Case(lambda: DecoderLM(MANY_HEADS)),
    "native, bfloat16": Case(lambda: DecoderLM(SHAPE), "bfloat16", 0.5),
    "native, float16": Case(lambda: DecoderLM(SHAPE), "float16", 0.05),
    "transformers, llama": Case(lambda: LlamaForCausalLM(LlamaConfig(**FIELDS))),
    "transformers, qwen2": Case(lambda: Qwen2ForCausalLM(Qwen2Config(**FIELDS))),
    "transformers, gpt2": Case(lambda: GPT2LMHeadModel(GPT2)),
}
VLLM_CASES = {
    "vllm": VllmCase(lambda: DecoderLM(SHAPE)),
    "vllm, untied, a key for each head": VllmCase(lambda: DecoderLM(MANY_HEADS)),
    "vllm, bfloat16": VllmCase(lambda: DecoderLM(SHAPE), "bfloat16", 0.5),
    "vllm, qwen2": VllmCase(lambda: Qwen2ForCausalLM(Qwen2Config(**TWO_HEADS))),
}
WITHOUT_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (make install-vllm)")
# Qwen2's layers are LLaMA's with biases; vLLM's own code is the same for another shape, and bfloat16 crawls on CPUs.
SLOW = {"transformers, llama", "vllm, qwen2", "vllm, untied, a key for each head", "vllm, bfloat16"}


def with_ids(cases, *marks):
    return [pytest.param(c, id=name, marks=[*marks, *[pytest.mark.slow] * (name in SLOW)]) for name, c in cases.items()]


VLLM_PARAMS = with_ids(VLLM_CASES, WITHOUT_VLLM)
NATIVE_CASES = {name: case for name, case in MODEL_CASES.items() if name.startswith("native")}
TRANSFORMERS_CASES = {name: case for name, case in MODEL_CASES.items() if name.startswith("transformers")}
WITHOUT_MODEL = {"paced": PacedCase()}
# It reads its prompt only, not the tokens so far: what is said of passes over the whole sequence is not for it.
SORTING_CASES = {"sorting": Case(lambda: SortingModel(len(TOKENIZER), 4, prompt_length=11, response_length=30))}


def make_model(case, seed=0):
    """A model whose logits are spread over several units."""
    torch.manual_seed(seed)
    model = case.make_model().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return model


@pytest.fixture(scope="module", params=[*with_ids(MODEL_CASES), *VLLM_PARAMS])
def case(request):
    return request.param


@pytest.fixture(scope="module")
def model(case):
    return make_model(case)


class TestModelEngines(ModelEngineContract):
    """Each model's engine, vLLM among them."""

    tokenizer, context, vocab_size = TOKENIZER, CONTEXT, len(TOKENIZER)

    @pytest.fixture(autouse=True)
    def chosen(self, case, model):
        self.case, self.model, self.other = case, model, make_model(case, seed=1)
        self.exact, self.tolerance = case.exact, case.tolerance

    def make_engine_of(self, model, tokenizer, should_stop=None, max_batch=256, ends=None):
        return self.case.engine(model, tokenizer, should_stop=should_stop, max_batch=max_batch, ends=ends)

    def make_engine_to_spoil(self):
        return self.case.engine_to_spoil(self.model)


class TestOtherEngines(EngineContract):
    """Those without a model; and the sorting toy, which reads its prompt only, not the tokens so far."""

    @pytest.fixture(params=WITHOUT_MODEL | SORTING_CASES, autouse=True)
    def chosen(self, request):
        self.case = (WITHOUT_MODEL | SORTING_CASES)[request.param]
        self.model = make_model(self.case) if isinstance(self.case, Case) else None
        self.tokenizer, self.pins_lengths = self.case.tokenizer, request.param != "paced"
        self.weights = {"w": torch.zeros(1)} if self.model is None else self.model.state_dict()

    def make_engine(self, should_stop=None, max_batch=256):
        return self.case.engine(self.model, should_stop=should_stop, max_batch=max_batch)

    def make_engine_that_ends(self, seed):
        if self.model is None:
            return self.make_engine()
        return self.case.engine(self.model, ends=frequent_tokens(self.make_engine(), seed))


def test_finished_rows_cost_nothing(case, model):
    if isinstance(case, VllmCase):
        pytest.skip("vLLM does not say what it computed")
    engine = case.engine(model, ends=frequent_tokens(case.engine(model), 3))
    lengths = [len(completion.token_ids) for completion in flat(engine.generate(PROMPTS, 8, LONG, 3))]
    assert len(set(lengths)) > 3
    stats = engine.last_stats
    # a prompt runs once for its 8 samples: 3 + 11 + 1 + 5; a response of n tokens takes n - 1 row-steps
    assert stats.prefill_tokens == 20
    assert stats.decode_row_steps == sum(lengths) - len(lengths)
    assert stats.decode_steps == max(lengths) - 1
    assert stats.sampled_tokens == sum(lengths)


@pytest.mark.parametrize("case", [*with_ids(NATIVE_CASES), *VLLM_PARAMS])
def test_scoring_in_the_middle_of_a_generation_changes_nothing(case):
    """In bfloat16 the batch size changes how vLLM rounds, and with it what follows a flipped token."""
    model, scored = make_model(case), []
    signal = AtPoll(9, lambda: scored.extend(engine.score(PROMPTS, SCORED)))
    engine = case.engine(model, should_stop=signal)
    sampled = engine.generate(PROMPTS, 3, FORCED, 5)
    assert largest_scoring_gap(model, scored) < case.tolerance
    if case.exact:
        assert tokens_of(sampled) == tokens_of(case.engine(model).generate(PROMPTS, 3, FORCED, 5))


def test_the_own_model_gets_the_native_engine():
    assert isinstance(native_engine(DecoderLM(SHAPE), TOKENIZER), NativeEngine)
    assert isinstance(native_engine(GPT2LMHeadModel(GPT2), TOKENIZER), HuggingFaceEngine)


# What engines with a model do when new weights come in the middle of a call


class AtPoll:
    """A stop signal that never stops: at one of its polls, the first being 0, it runs ``act`` on another thread."""

    def __init__(self, poll, act):
        self.poll, self.act, self.polls = poll, act, 0

    def __call__(self):
        if self.polls == self.poll:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self.act).result()
        self.polls += 1
        return False


def with_swap(case, model, other, poll, **options):
    """An engine that holds version 0, ``model``, until another thread loads version 1, ``other``, at a poll."""
    signal = AtPoll(poll, lambda: engine.load_weights(other.state_dict(), version=1))
    engine = case.engine(model, should_stop=signal, **options)
    return engine


def log_probs_over_old_cache(old, new, prompt, tokens, swap):
    """Log-probs (T - swap,) of tokens ``swap`` on: the new model, behind keys and values that the old one cached.

    The step that gives token ``swap`` is the first of the new model. It reads token ``swap - 1``; the old model read
    those before.
    """
    cached = {}

    def attend(q, k, v, layer):
        if layer in cached:
            k, v = (torch.cat(parts, dim=1) for parts in zip(cached[layer], (k, v), strict=True))
        cached[layer] = (k, v)
        steps = torch.arange(k.shape[1])
        return attention(q, k, v, bias_from(steps <= steps[-q.shape[1] :, None])[None])

    ids, end = torch.tensor([[*prompt, *tokens[:-1]]]), len(prompt) + swap - 1
    positions = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        old.model(ids[:, :end], positions[:, :end], attend)
        logits = (new.model(ids[:, end:], positions[:, end:], attend) @ new.output_weight.t())[0]
    logits[:, TOKENIZER.eos_token_id] = -torch.inf  # FORCED bans it
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[swap:])[:, None])[:, 0]


@pytest.mark.parametrize("case", NATIVE_CASES.values(), ids=NATIVE_CASES)
def test_tokens_behind_a_swap_are_of_the_new_weights_over_the_old_cache(case):
    old, new = make_model(case), make_model(case, seed=1)
    unswapped = case.engine(old).generate(PROMPTS, 3, FORCED, 5)
    swapped = with_swap(case, old, new, poll=9).generate(PROMPTS, 3, FORCED, 5)
    worst, worst_with_new_cache = 0.0, 0.0
    for prompt, group, unswapped_group in zip(PROMPTS, swapped, unswapped, strict=True):
        for completion, before in zip(group, unswapped_group, strict=True):
            tokens = completion.token_ids.tolist()
            # poll 0 is before the prefill, which gives token 0; poll 9 before the step that gives token 9
            assert completion.versions.tolist() == [0] * 9 + [1] * 15
            assert completion.versions.dtype == "int64"
            assert tokens[:9] == before.token_ids[:9].tolist()
            assert completion.log_probs[:9].tolist() == before.log_probs[:9].tolist()
            assert tokens[9:] != before.token_ids[9:].tolist()
            got = torch.from_numpy(completion.log_probs[9:])
            expected = log_probs_over_old_cache(old, new, prompt, tokens, swap=9)
            worst = max(worst, float((got - expected).abs().max()))
            fresh = log_probs_over_old_cache(new, new, prompt, tokens, swap=9)
            worst_with_new_cache = max(worst_with_new_cache, float((got - fresh).abs().max()))
    assert worst < case.tolerance
    assert worst_with_new_cache > 1.0  # the old cache was not thrown away


@pytest.mark.parametrize("case", NATIVE_CASES.values(), ids=NATIVE_CASES)
def test_weights_that_come_before_the_first_token_sample_every_token_and_say_so(case):
    old, new = make_model(case), make_model(case, seed=1)
    swapped = with_swap(case, old, new, poll=0).generate(PROMPTS, 3, FORCED, 5)
    assert tokens_of(swapped) == tokens_of(case.engine(new).generate(PROMPTS, 3, FORCED, 5))
    assert [completion.versions.tolist() for completion in flat(swapped)] == [[1] * 24] * 12


def test_every_completion_of_a_call_has_versions_where_one_batch_of_it_saw_a_swap():
    case = MODEL_CASES["native"]
    old, new = make_model(case), make_model(case, seed=1)
    # two batches of two groups of three; each polls 24 times, so poll 29 is the second one's poll 5
    swapped = with_swap(case, old, new, poll=29, max_batch=6).generate(PROMPTS, 3, FORCED, 5)
    first, second = [0] * 24, [0] * 5 + [1] * 19
    assert [completion.versions.tolist() for completion in flat(swapped)] == [first] * 6 + [second] * 6


def test_the_next_call_is_of_the_new_version_alone():
    case = MODEL_CASES["native"]
    old, new = make_model(case), make_model(case, seed=1)
    engine = with_swap(case, old, new, poll=9)
    engine.generate(PROMPTS, 1, FORCED, 5)
    after = engine.generate(PROMPTS, 1, FORCED, 5)
    assert [completion.versions for completion in flat(after)] == [None] * 4
    assert tokens_of(after) == tokens_of(case.engine(new).generate(PROMPTS, 1, FORCED, 5))


def test_a_bad_load_in_the_middle_changes_nothing():
    case = MODEL_CASES["native"]
    old = make_model(case)

    def load_half():
        with pytest.raises(ValueError, match="the old ones stay"):
            engine.load_weights(dict(list(old.named_parameters())[:3]), version=1)

    engine = case.engine(old, should_stop=AtPoll(9, load_half))
    sampled = engine.generate(PROMPTS, 1, FORCED, 5)
    assert tokens_of(sampled) == tokens_of(case.engine(old).generate(PROMPTS, 1, FORCED, 5))
    assert [completion.versions for completion in flat(sampled)] == [None] * 4


@pytest.mark.parametrize("case", VLLM_PARAMS)
def test_with_vllm_tokens_behind_a_swap_are_of_the_new_weights_alone(case):
    """What the old weights cached is computed anew, so the new tokens are those of a full pass of the new weights."""
    old, new = make_model(case), make_model(case, seed=1)
    unswapped = case.engine(old).generate(PROMPTS, 3, FORCED, 5)
    swapped = with_swap(case, old, new, poll=9).generate(PROMPTS, 3, FORCED, 5)
    worst, worst_of_old = 0.0, 0.0
    for prompt, group, unswapped_group in zip(PROMPTS, swapped, unswapped, strict=True):
        for completion, before in zip(group, unswapped_group, strict=True):
            assert completion.versions.tolist() == [0] * 9 + [1] * 15
            tokens = completion.token_ids.tolist()
            if case.exact:
                assert tokens[:9] == before.token_ids[:9].tolist()
            worst = max(worst, gap_behind(new, prompt, completion, 9))
            worst_of_old = max(worst_of_old, gap_behind(old, prompt, completion, 9))
    assert worst < case.tolerance
    assert worst_of_old > 1.0


def gap_behind(model, prompt, completion, swap):
    """Largest gap to the log-probs of one full forward pass, from token ``swap`` on."""
    logits = response_logits(model, prompt, completion.token_ids.tolist())
    logits[:, TOKENIZER.eos_token_id] = -torch.inf  # FORCED bans it
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(completion.token_ids)[:, None])[:, 0]
    return float((torch.from_numpy(completion.log_probs) - expected)[swap:].abs().max())


@pytest.mark.parametrize("case", [param for param in VLLM_PARAMS if param.id != "vllm, bfloat16"])
def test_with_vllm_and_the_native_engine_greedy_tokens_are_the_same(case):
    model = make_model(case)
    theirs = case.engine(model).generate(PROMPTS, 1, GREEDY, 0)
    assert tokens_of(theirs) == tokens_of(native_engine(model, TOKENIZER).generate(PROMPTS, 1, GREEDY, 0))


@pytest.mark.parametrize("case", with_ids(TRANSFORMERS_CASES))
def test_with_transformers_new_weights_wait_until_the_call_has_ended(case):
    old, new = make_model(case), make_model(case, seed=1)
    with ThreadPoolExecutor(1) as thread:
        loads = []

        def begin_to_load():
            loads.append(thread.submit(engine.load_weights, dict(new.named_parameters()), version=1))
            wait(loads, timeout=0.05)  # long enough for a load that does not wait to do its damage

        engine = case.engine(old, should_stop=AtPoll(9, begin_to_load))
        sampled = engine.generate(PROMPTS, 1, FORCED, 5)
        loads[0].result()
    assert tokens_of(sampled) == tokens_of(case.engine(old).generate(PROMPTS, 1, FORCED, 5))
    assert [completion.versions for completion in flat(sampled)] == [None] * 4
    after = engine.generate(PROMPTS, 1, FORCED, 5)
    assert tokens_of(after) == tokens_of(case.engine(new).generate(PROMPTS, 1, FORCED, 5))
