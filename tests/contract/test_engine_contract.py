"""Every engine is held to ``harness.testing``, whichever model stands behind it; and what only some of them do."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from harness.core.types import SamplingParams
from harness.engines.native import native_engine
from harness.engines.paced import PacedEngine, PacedTokenizer
from harness.engines.sglang import SglangEngine, sglang_engine
from harness.engines.vllm import VllmEngine, vllm_engine
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.layers import attention, bias_from
from harness.models.sorting import SortingModel
from harness.models.tokenizer import train_tokenizer
from harness.settings.engine import VllmEngineSettings
from harness.testing import EngineContract, ModelEngineContract
from harness.testing.engine import (
    LONG,
    PROMPTS,
    SCORED,
    flat,
    frequent_tokens,
    largest_scoring_gap,
    response_logits,
    tokens_of,
)
from tests.models.batches import spread

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
CONTEXT = 64
SHAPE = dataclasses.replace(
    PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96, max_position_embeddings=CONTEXT
)
MANY_HEADS = dataclasses.replace(SHAPE, num_key_value_heads=4, tie_word_embeddings=False)
FIELDS = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
FIELDS |= {"bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}
TWO_HEADS = FIELDS | {"num_attention_heads": 2}  # of 32 channels: vLLM's attention on CPUs has none of 16
GPT2 = GPT2Config(vocab_size=len(TOKENIZER), n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT, bos_token_id=None)

WIDE = dataclasses.replace(SHAPE, head_dim=64, hidden_size=256)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where SGLang is put."""
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
    """An engine that shares its server with others of the same shape: a start takes seconds, a load milliseconds.

    Before it works it puts its own weights in, where another one's are.
    """

    holders: ClassVar[dict[int, Tenant]] = {}

    def __init__(self, engine, server, model):
        self.engine, self.server, self.context_length = engine, id(server), engine.context_length
        self.holders.pop(self.server, None)
        self.load_weights(dict(model.named_parameters()))

    def load_weights(self, weights, version=0):
        self.engine.load_weights(weights, version)
        self.weights, self.version = {name: tensor.clone() for name, tensor in weights.items()}, version
        self.holders[self.server] = self

    def _enter(self):
        if self.holders[self.server] is not self:
            self.load_weights(self.weights, self.version)

    def generate(self, *request):
        self._enter()
        return self.engine.generate(*request)

    def score(self, prompts, responses):
        self._enter()
        return self.engine.score(prompts, responses)


@dataclass(frozen=True)
class ServedCase(Case):
    """A server that is started once for each case."""

    def engine(self, model, tokenizer=TOKENIZER, **options):
        return Tenant(self.engine_of(self.server(), model, tokenizer, **options), self.server(), model)

    @functools.cache  # noqa: B019
    def server(self):
        return self.start(self.make_model())


@dataclass(frozen=True)
class VllmCase(ServedCase):
    """A vLLM in this process."""

    engine_of = VllmEngine

    def engine_to_spoil(self, model):
        """NaN stays in the key/value cache, where it would spoil what other tests compute."""
        return VllmEngine(self.start(model), model, TOKENIZER)

    def start(self, model):
        return vllm_engine(VllmEngineSettings(precision=self.precision, max_batch=64), model, TOKENIZER)._llm


@dataclass(frozen=True)
class SglangCase(ServedCase):
    """SGLang's processes, where it is installed: ``make test-sglang`` makes an environment for it."""

    engine_of = staticmethod(functools.partial(SglangEngine, device=DEVICE))

    def start(self, model):
        memory = 0.3 if DEVICE == "cuda" else 0.05
        settings = SimpleNamespace(precision=self.precision, max_batch=8, memory_fraction=memory)
        return sglang_engine(settings, model, TOKENIZER, device=DEVICE)._engine


NATIVE, GPT2_CASE = Case(lambda: DecoderLM(SHAPE)), Case(lambda: GPT2LMHeadModel(GPT2))
QWEN2 = Case(lambda: Qwen2ForCausalLM(Qwen2Config(**FIELDS)))
NARROW = Case(lambda: DecoderLM(SHAPE), "bfloat16", 0.5)
VLLM, VLLM_QWEN2 = VllmCase(lambda: DecoderLM(SHAPE)), VllmCase(lambda: Qwen2ForCausalLM(Qwen2Config(**TWO_HEADS)))
WITHOUT_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (make install-vllm)")
WITHOUT_SGLANG = pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed (make test-sglang)")
VLLM_PARAMS = [
    pytest.param(VLLM, id="vllm", marks=WITHOUT_VLLM),
    pytest.param(VLLM_QWEN2, id="vllm, qwen2", marks=[WITHOUT_VLLM, pytest.mark.slow]),
]
ENGINES = [
    pytest.param(NATIVE, id="native"),
    pytest.param(QWEN2, id="transformers, qwen2"),
    pytest.param(GPT2_CASE, id="transformers, gpt2"),
    *VLLM_PARAMS,
    pytest.param(SglangCase(lambda: DecoderLM(WIDE)), id="sglang", marks=[WITHOUT_SGLANG, pytest.mark.slow]),
]
# bfloat16 crawls in vLLM on CPUs, whose own code is the same for another shape.
NARROW_VLLM = pytest.param(
    VllmCase(lambda: DecoderLM(SHAPE), "bfloat16", 0.5), id="vllm, bfloat16", marks=[WITHOUT_VLLM, pytest.mark.slow]
)
VARIANTS = [
    pytest.param(Case(lambda: DecoderLM(MANY_HEADS)), id="native, untied, a key for each head"),
    pytest.param(NARROW, id="native, bfloat16"),
    pytest.param(Case(lambda: DecoderLM(SHAPE), "float16", 0.05), id="native, float16"),
    NARROW_VLLM,
]
SEEDED = ("same_seed", "its_prompt_and_indices", "begins_as_a_longer_one", "completes_a_stop_string", "ends_a_response")
"""Parts of the names of tests that two calls with one seed must pass; SGLang's seeds have no effect on a CPU."""
WITHOUT_MODEL = {"paced": PacedCase()}
# It reads its prompt only, not the tokens so far: what is said of passes over the whole sequence is not for it.
SORTING_CASES = {"sorting": Case(lambda: SortingModel(len(TOKENIZER), 4, prompt_length=11, response_length=30))}


def make_model(case, seed=0):
    torch.manual_seed(seed)
    return spread(case.make_model(), seed)


@pytest.fixture(scope="module", params=ENGINES)
def case(request):
    yield request.param
    if isinstance(request.param, SglangCase):
        request.param.server().shutdown()


@pytest.fixture(scope="module")
def model(case):
    return make_model(case)


class TestModelEngines(ModelEngineContract):
    """Each model's engine, vLLM and SGLang among them."""

    tokenizer, context, vocab_size = TOKENIZER, CONTEXT, len(TOKENIZER)

    @pytest.fixture(autouse=True)
    def chosen(self, case, model, request):
        self.case, self.model, self.other = case, model, make_model(case, seed=1)
        self.exact, self.tolerance = case.exact, case.tolerance
        if isinstance(case, SglangCase):
            if "nucleus" in request.node.name:
                pytest.skip("refused: SGLang's log-probs would be of the whole distribution")
            if DEVICE == "cpu" and any(part in request.node.name for part in SEEDED):
                pytest.skip("SGLang's seeds have no effect on a CPU")

    def make_engine_of(self, model, tokenizer, should_stop=None, max_batch=256, ends=None):
        return self.case.engine(model, tokenizer, should_stop=should_stop, max_batch=max_batch, ends=ends)

    def make_engine_to_spoil(self):
        return self.case.engine_to_spoil(self.model)


class TestOtherShapesAndPrecisions(TestModelEngines):
    """They compute other numbers; what ends a response and what is refused does not depend on them."""

    test_bad_requests_are_refused = test_what_cannot_be_scored_is_refused = test_what_cannot_be_sampled_is_refused = (
        None
    )
    test_a_bad_load_is_refused_and_the_old_weights_stay = test_weights_that_have_diverged_stop_the_run = None
    test_pinned_lengths_out_of_bounds_are_refused = test_pinned_lengths_hold_whatever_the_policy_says = None
    test_a_response_ends_at_the_first_token_that_completes_a_stop_string = test_a_stop_signal_interrupts = None
    test_any_end_token_ends_a_response = test_min_and_max_tokens = None

    @pytest.fixture(scope="class", params=VARIANTS)
    @classmethod
    def case(cls, request):
        return request.param

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, case):
        return make_model(case)


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


@pytest.mark.parametrize("case", [NATIVE, GPT2_CASE], ids=["native", "transformers"])
def test_finished_rows_cost_nothing(case):
    model = make_model(case)
    engine = case.engine(model, ends=frequent_tokens(case.engine(model), 3))
    lengths = [len(completion.token_ids) for completion in flat(engine.generate(PROMPTS, 8, LONG, 3))]
    assert len(set(lengths)) > 3
    stats = engine.last_stats
    # a prompt runs once for its 8 samples: 3 + 11 + 1 + 5; a response of n tokens takes n - 1 row-steps
    assert stats.prefill_tokens == 20
    assert stats.decode_row_steps == sum(lengths) - len(lengths)
    assert stats.decode_steps == max(lengths) - 1
    assert stats.sampled_tokens == sum(lengths)


@pytest.mark.parametrize("case", [NATIVE, *VLLM_PARAMS])
def test_scoring_in_the_middle_of_a_generation_changes_nothing(case):
    model, scored = make_model(case), []
    signal = AtPoll(9, lambda: scored.extend(engine.score(PROMPTS, SCORED)))
    engine = case.engine(model, should_stop=signal)
    sampled = engine.generate(PROMPTS, 3, FORCED, 5)
    assert largest_scoring_gap(model, scored) < case.tolerance
    assert tokens_of(sampled) == tokens_of(case.engine(model).generate(PROMPTS, 3, FORCED, 5))


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


def log_probs_of_full_pass(old, new, prompt, tokens, swap):
    """Of one pass of the new model, without anything that the old one cached."""
    logits = response_logits(new, prompt, tokens)[swap:]
    logits[:, TOKENIZER.eos_token_id] = -torch.inf  # FORCED bans it
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[swap:])[:, None])[:, 0]


@pytest.mark.parametrize(
    "case",
    [pytest.param(NATIVE, id="float32"), pytest.param(NARROW, id="bfloat16"), *VLLM_PARAMS, NARROW_VLLM],
)
def test_tokens_behind_a_swap_are_of_the_new_weights(case):
    """With the native engine over the keys and values that the old ones cached; vLLM computes those anew."""
    native = not isinstance(case, VllmCase)
    expected_of = log_probs_over_old_cache if native else log_probs_of_full_pass
    old, new = make_model(case), make_model(case, seed=1)
    other = new if native else old  # whose log-probs behind a cache of its own they are not
    unswapped = case.engine(old).generate(PROMPTS, 3, FORCED, 5)
    engine = with_swap(case, old, new, poll=9)
    swapped = engine.generate(PROMPTS, 3, FORCED, 5)
    worst = worst_of_other = 0.0
    for prompt, group, unswapped_group in zip(PROMPTS, swapped, unswapped, strict=True):
        for completion, before in zip(group, unswapped_group, strict=True):
            tokens = completion.token_ids.tolist()
            # poll 0 is before the prefill, which gives token 0; poll 9 before the step that gives token 9
            assert completion.versions.tolist() == [0] * 9 + [1] * 15
            if native or case.exact:
                assert tokens[:9] == before.token_ids[:9].tolist()
            if native:
                assert completion.versions.dtype == "int64"
                assert completion.log_probs[:9].tolist() == before.log_probs[:9].tolist()
                assert tokens[9:] != before.token_ids[9:].tolist()
            got = torch.from_numpy(completion.log_probs[9:])
            worst = max(worst, float((got - expected_of(old, new, prompt, tokens, 9)).abs().max()))
            of_other = expected_of(other, other, prompt, tokens, 9)
            worst_of_other = max(worst_of_other, float((got - of_other).abs().max()))
    assert worst < case.tolerance
    assert worst_of_other > 1.0
    if native:
        after = engine.generate(PROMPTS, 1, FORCED, 5)  # the next call is of the new version alone
        assert [completion.versions for completion in flat(after)] == [None] * 4
        assert tokens_of(after) == tokens_of(case.engine(new).generate(PROMPTS, 1, FORCED, 5))


def test_weights_that_come_before_the_first_token_sample_every_token_and_a_bad_load_changes_nothing():
    old, new = make_model(NATIVE), make_model(NATIVE, seed=1)
    swapped = with_swap(NATIVE, old, new, poll=0).generate(PROMPTS, 3, FORCED, 5)
    assert tokens_of(swapped) == tokens_of(NATIVE.engine(new).generate(PROMPTS, 3, FORCED, 5))
    assert [completion.versions.tolist() for completion in flat(swapped)] == [[1] * 24] * 12

    def load_half():
        with pytest.raises(ValueError, match="the old ones stay"):
            engine.load_weights(dict(list(old.named_parameters())[:3]), version=1)

    engine = NATIVE.engine(old, should_stop=AtPoll(9, load_half))
    sampled = engine.generate(PROMPTS, 1, FORCED, 5)
    assert tokens_of(sampled) == tokens_of(NATIVE.engine(old).generate(PROMPTS, 1, FORCED, 5))
    assert [completion.versions for completion in flat(sampled)] == [None] * 4


def test_with_transformers_new_weights_wait_until_the_call_has_ended():
    old, new = make_model(GPT2_CASE), make_model(GPT2_CASE, seed=1)
    with ThreadPoolExecutor(1) as thread:
        loads = []

        def begin_to_load():
            loads.append(thread.submit(engine.load_weights, dict(new.named_parameters()), version=1))
            wait(loads, timeout=0.05)  # long enough for a load that does not wait to do its damage

        engine = GPT2_CASE.engine(old, should_stop=AtPoll(9, begin_to_load))
        sampled = engine.generate(PROMPTS, 1, FORCED, 5)
        loads[0].result()
    assert tokens_of(sampled) == tokens_of(GPT2_CASE.engine(old).generate(PROMPTS, 1, FORCED, 5))
    assert [completion.versions for completion in flat(sampled)] == [None] * 4
    after = engine.generate(PROMPTS, 1, FORCED, 5)
    assert tokens_of(after) == tokens_of(GPT2_CASE.engine(new).generate(PROMPTS, 1, FORCED, 5))
