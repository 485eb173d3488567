"""What every engine must do, whichever model stands behind it. Those without a model skip what needs one."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from harness.core.errors import Diverged, Interrupted, UserError
from harness.core.types import SamplingParams
from harness.engines.fake import FakeEngine
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import NativeEngine, native_engine
from harness.engines.paced import PacedEngine, PacedTokenizer
from harness.engines.rng import pinned_lengths
from harness.engines.vllm import VllmEngine, vllm_engine
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM, KVCache
from harness.models.sorting import SortingModel
from harness.models.tokenizer import train_tokenizer
from harness.scenario import VllmEngineSettings

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

PROMPTS = [[5, 6, 7], [9] * 11, [100], [30, 31, 32, 33, 34]]
SAMPLING = SamplingParams(max_tokens=12)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
LONG = SamplingParams(max_tokens=24)
FORCED = SamplingParams(min_tokens=24, max_tokens=24)


class WithEos:
    """The tokenizer with another token as the end of sequence, so that a random model draws it often enough."""

    def __init__(self, eos_token_id: int) -> None:
        self.eos_token_id, self.pad_token_id = eos_token_id, TOKENIZER.pad_token_id

    def encode(self, text: str, **options: Any) -> list[int]:
        return TOKENIZER.encode(text, **options)

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return TOKENIZER.decode(token_ids, **options)


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


class FakeCase:
    """The fake engine in the place of a ``Case``."""

    exact = True
    tokenizer = TOKENIZER

    def engine(self, model, should_stop=None, max_batch=256):
        return FakeEngine(self.tokenizer, should_stop=should_stop)


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

    def engine(self, model, tokenizer=TOKENIZER, should_stop=None, max_batch=256):
        engine = VllmEngine(self.llm(), model, tokenizer, max_batch=max_batch, should_stop=should_stop)
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
WITHOUT_MODEL = {"fake": FakeCase(), "paced": PacedCase()}
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


@pytest.fixture
def engine(case, model):
    return case.engine(model)


@pytest.fixture(params=[*with_ids(MODEL_CASES | SORTING_CASES | WITHOUT_MODEL), *VLLM_PARAMS])
def any_case(request):
    """A case and its model, if it has one."""
    return request.param, make_model(request.param) if isinstance(request.param, Case) else None


def tokens_of(groups):
    return [[completion.token_ids.tolist() for completion in group] for group in groups]


def flat(groups):
    return [completion for group in groups for completion in group]


def response_logits(model, prompt, token_ids):
    """Logits (T, V) from one full forward pass, at the positions that predict the response."""
    with torch.no_grad():
        return model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1].float()


def with_frequent_end(case, model, seed):
    """An engine whose end of sequence is a token that ends 8 samples of each prompt at as many lengths as possible."""
    first_places = {}
    for row, completion in enumerate(flat(case.engine(model).generate(PROMPTS, 8, LONG, seed))):
        for place, token in reversed(list(enumerate(completion.token_ids.tolist()))):
            first_places.setdefault(token, {})[row] = place
    best = max(first_places, key=lambda token: (len(set(first_places[token].values())), token))
    return case.engine(model, WithEos(best))


# What every engine does


def test_a_completion_has_tokens_log_probs_text_and_a_reason(any_case):
    case, model = any_case
    groups = case.engine(model).generate(PROMPTS, 3, SAMPLING, 0)
    assert [len(group) for group in groups] == [3] * len(PROMPTS)
    for completion in flat(groups):
        assert completion.token_ids.dtype == "int64"
        assert completion.log_probs.dtype == "float32"
        assert 1 <= len(completion.token_ids) == len(completion.log_probs) <= SAMPLING.max_tokens
        assert (completion.log_probs <= 1e-6).all()
        assert completion.text == case.tokenizer.decode(completion.token_ids.tolist(), skip_special_tokens=True)
        ended = completion.token_ids[-1] == case.tokenizer.eos_token_id
        assert completion.finish_reason == ("stop" if ended else "length")
        assert case.tokenizer.eos_token_id not in completion.token_ids[:-1]
        assert ended or len(completion.token_ids) == SAMPLING.max_tokens
        assert completion.versions is None


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(any_case):
    case, model = any_case
    engine, sampling = case.engine(model), dataclasses.replace(SAMPLING, min_tokens=6)
    first = tokens_of(engine.generate(PROMPTS, 3, sampling, 7))
    assert tokens_of(engine.generate(PROMPTS, 3, sampling, 7)) == first
    assert tokens_of(case.engine(model).generate(PROMPTS, 3, sampling, 7)) == first
    assert tokens_of(engine.generate(PROMPTS, 3, sampling, 8)) != first
    samples = [tuple(tokens) for group in first for tokens in group]
    assert len(set(samples)) == len(samples)


def test_a_row_depends_on_its_prompt_and_indices_alone(any_case):
    """Not on the other prompts, the number of samples, or the batches that the request is cut into.

    In bfloat16 another batch size rounds otherwise, and one flipped token changes what follows: float32 only.
    """
    case, model = any_case
    if not case.exact:
        pytest.skip("bfloat16 rounds differently in other batches")
    whole = tokens_of(case.engine(model).generate(PROMPTS, 4, SAMPLING, 7))
    for max_batch in (1, 3, 4, 9):
        assert tokens_of(case.engine(model, max_batch=max_batch).generate(PROMPTS, 4, SAMPLING, 7)) == whole
    assert tokens_of(case.engine(model).generate(PROMPTS[:2], 4, SAMPLING, 7)) == whole[:2]
    assert tokens_of(case.engine(model).generate(PROMPTS, 2, SAMPLING, 7)) == [group[:2] for group in whole]


def test_a_part_of_a_batch_is_sampled_as_in_the_whole_batch(any_case):
    """So the number of Generators that share a batch changes no sample. Streams once began anew in each part."""
    case, model = any_case
    if not case.exact:
        pytest.skip("bfloat16 rounds differently in other batches")
    pinned = dataclasses.replace(SAMPLING, pinned_lengths=(2, 6), max_tokens=8, min_tokens=0, stop=())
    for sampling in (SAMPLING, pinned):
        whole = tokens_of(case.engine(model).generate(PROMPTS, 3, sampling, 7))
        parts = [(0, 1), (1, 2), (2, len(PROMPTS))]
        engine = case.engine(model)
        apart = [engine.generate(PROMPTS[first:end], 3, sampling, 7, range(first, end)) for first, end in parts]
        assert [group for part in apart for group in tokens_of(part)] == whole


def test_min_and_max_tokens(any_case):
    case, model = any_case
    engine = case.engine(model) if model is None else with_frequent_end(case, model, 1)
    free = sorted(len(completion.token_ids) for completion in flat(engine.generate(PROMPTS, 8, LONG, 1)))
    held_back = free[4]  # at least four of the 32 responses would be shorter or as long
    held = flat(engine.generate(PROMPTS, 8, dataclasses.replace(LONG, min_tokens=held_back), 1))
    # the end of sequence may come right behind that many tokens
    assert free[4] < 24
    assert min(len(completion.token_ids) for completion in held) > held_back
    forced = flat(engine.generate(PROMPTS, 8, dataclasses.replace(LONG, min_tokens=24), 1))
    assert {(len(completion.token_ids), completion.finish_reason) for completion in forced} == {(24, "length")}


def test_a_response_of_one_token_comes_from_the_prefill(any_case):
    case, model = any_case
    (group,) = case.engine(model).generate(PROMPTS[:1], 4, dataclasses.replace(SAMPLING, max_tokens=1), 7)
    (longer,) = case.engine(model).generate(PROMPTS[:1], 4, SAMPLING, 7)
    assert [c.token_ids.tolist() for c in group] == [c.token_ids[:1].tolist() for c in longer]


def test_greedy_samples_are_equal_and_need_no_seed(any_case):
    case, model = any_case
    engine = case.engine(model)
    groups = tokens_of(engine.generate(PROMPTS, 3, GREEDY, 0))
    assert all(group == [group[0]] * 3 for group in groups)
    assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 1)) == [group[:1] for group in groups]


def test_bad_requests_are_refused(any_case):
    case, model = any_case
    engine = case.engine(model)
    with pytest.raises(UserError, match="max_tokens is 0, must be at least 1"):
        engine.generate(PROMPTS, 1, SamplingParams(max_tokens=0), 0)
    with pytest.raises(UserError, match="prompt 1"):
        engine.generate([[5], []], 1, SAMPLING, 0)


def test_a_stop_signal_interrupts(any_case):
    case, model = any_case
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        case.engine(model, should_stop=lambda: next(answers)).generate(PROMPTS, 1, SAMPLING, 0)


def test_a_response_that_one_version_sampled_has_no_versions(any_case):
    case, model = any_case
    engine = case.engine(model)
    engine.load_weights({"w": torch.zeros(1)} if model is None else model.state_dict(), version=3)
    assert [completion.versions for completion in flat(engine.generate(PROMPTS, 2, SAMPLING, 0))] == [None] * 8


def test_an_empty_request_is_answered(any_case):
    case, model = any_case
    assert case.engine(model).generate([], 4, SAMPLING, 0) == []


# What every engine with a model does


def test_greedy_tokens_are_the_likeliest_of_full_forward_passes(case, model, engine):
    if not case.exact:
        pytest.skip("in bfloat16 the likeliest of two close tokens may change")
    for prompt, (completion,) in zip(PROMPTS, engine.generate(PROMPTS, 1, GREEDY, 0), strict=True):
        logits = response_logits(model, prompt, completion.token_ids.tolist())
        assert completion.token_ids.tolist() == logits.argmax(-1).tolist()
        likeliest = logits.log_softmax(-1).max(-1).values
        assert (torch.from_numpy(completion.log_probs) - likeliest).abs().max() < case.tolerance


@pytest.mark.parametrize(("temperature", "min_tokens"), [(1.0, 0), (0.6, 0), (1.7, 5)])
def test_log_probs_are_those_of_the_sampled_distribution(case, model, engine, temperature, min_tokens):
    sampling = SamplingParams(temperature=temperature, min_tokens=min_tokens, max_tokens=12)
    worst = 0.0
    for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 3, sampling, 5), strict=True):
        for completion in group:
            logits = response_logits(model, prompt, completion.token_ids.tolist())
            logits[:min_tokens, TOKENIZER.eos_token_id] = -torch.inf
            expected = (logits / temperature).log_softmax(-1).gather(1, torch.from_numpy(completion.token_ids)[:, None])
            worst = max(worst, float((torch.from_numpy(completion.log_probs) - expected[:, 0]).abs().max()))
    assert worst < case.tolerance


def test_top_p_draws_from_the_nucleus_and_renormalises(case, model, engine):
    if not case.exact:
        pytest.skip("in bfloat16 a token at the edge of the nucleus may fall out")
    for prompt, group in zip(
        PROMPTS, engine.generate(PROMPTS, 3, SamplingParams(top_p=0.7, max_tokens=12), 5), strict=True
    ):
        for completion in group:
            logits = response_logits(model, prompt, completion.token_ids.tolist())
            probs, order = logits.softmax(-1).sort(descending=True)
            kept = probs.cumsum(-1) - probs < 0.7  # a token stays if the likelier ones do not reach 0.7
            renormalised = torch.where(kept, probs, 0) / torch.where(kept, probs, 0).sum(-1, keepdim=True)
            place = (order == torch.from_numpy(completion.token_ids)[:, None]).nonzero()[:, 1:]
            assert kept.gather(1, place).all()
            expected = renormalised.gather(1, place)[:, 0].log()
            assert (torch.from_numpy(completion.log_probs) - expected).abs().max() < case.tolerance


def test_a_response_ends_at_the_first_token_that_completes_a_stop_string(case, model, engine):
    sampling = SamplingParams(temperature=0.8, max_tokens=24)
    free = flat(engine.generate(PROMPTS, 4, sampling, 2))
    text = free[0].text
    stops = (text[2:5], free[-1].text[1:3])
    stopped = flat(engine.generate(PROMPTS, 4, dataclasses.replace(sampling, stop=stops), 2))
    ends = []
    for before, after in zip(free, stopped, strict=True):
        texts = [TOKENIZER.decode(before.token_ids[:end].tolist(), skip_special_tokens=True) for end in range(1, 25)]
        holds = [end + 1 for end, so_far in enumerate(texts) if any(stop in so_far for stop in stops)]
        length = min(holds[0] if holds else 24, len(before.token_ids))
        assert len(after.token_ids) == length
        if case.exact:
            assert after.token_ids.tolist() == before.token_ids[:length].tolist()
        ends.append(after.finish_reason if length < 24 else "length")
    assert Counter(ends)["stop"] >= 2


def test_finished_rows_cost_nothing(case, model):
    if isinstance(case, VllmCase):
        pytest.skip("vLLM does not say what it computed")
    engine = with_frequent_end(case, model, 3)
    lengths = [len(completion.token_ids) for completion in flat(engine.generate(PROMPTS, 8, LONG, 3))]
    assert len(set(lengths)) > 3
    stats = engine.last_stats
    # a prompt runs once for its 8 samples: 3 + 11 + 1 + 5; a response of n tokens takes n - 1 row-steps
    assert stats.prefill_tokens == 20
    assert stats.decode_row_steps == sum(lengths) - len(lengths)
    assert stats.decode_steps == max(lengths) - 1
    assert stats.sampled_tokens == sum(lengths)


SCORED = [[7, 8, 9, 200], [11], [40, 41, 42, 43, 44, 45, 46], [5, 5]]


def largest_scoring_gap(model, scored):
    gaps = []
    for prompt, response, log_probs in zip(PROMPTS, SCORED, scored, strict=True):
        assert log_probs.dtype == "float32"
        expected = response_logits(model, prompt, response).log_softmax(-1).gather(1, torch.tensor(response)[:, None])
        gaps.append((torch.from_numpy(log_probs) - expected[:, 0]).abs().max().item())
    return max(gaps)


def test_given_tokens_get_the_log_probs_of_full_forward_passes(case, model, engine):
    assert largest_scoring_gap(model, engine.score(PROMPTS, SCORED)) < case.tolerance
    other = make_model(case, seed=1)
    assert largest_scoring_gap(other, engine.score(PROMPTS, SCORED)) > 1.0
    engine.load_weights(dict(other.named_parameters()))
    assert largest_scoring_gap(other, engine.score(PROMPTS, SCORED)) < case.tolerance


def test_what_cannot_be_scored_is_refused(case, model, engine):
    with pytest.raises(UserError, match="no tokens") as refused:
        engine.score([[5], [6]], [[7], []])
    assert refused.value.where == "response 1 of those to score"
    with pytest.raises(UserError, match=rf"token ids from 5 to {len(TOKENIZER)}"):
        engine.score([[5]], [[len(TOKENIZER)]])
    with pytest.raises(UserError, match=rf"{CONTEXT + 1} tokens with its prompt"):
        engine.score([[5] * CONTEXT], [[6]])
    assert engine.score([], []) == []
    (just_fits,) = engine.score([[5] * (CONTEXT - 3)], [[6, 7]])  # and a token behind them, which vLLM samples
    assert just_fits.shape == (2,)


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


def test_loading_replaces_the_weights(case, model, engine):
    other = make_model(case, seed=1)
    wanted = case.engine(other).generate(PROMPTS, 1, GREEDY, 0)
    before = engine.generate(PROMPTS, 1, GREEDY, 0)
    engine.load_weights(dict(other.named_parameters()))
    after = engine.generate(PROMPTS, 1, GREEDY, 0)
    assert tokens_of(after) == tokens_of(wanted) != tokens_of(before)
    engine.load_weights(model.state_dict())
    assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0)) == tokens_of(before)


def test_the_weights_are_not_shared_with_the_model_they_came_from(case, model):
    source = copy.deepcopy(model)
    engine = case.engine(source)
    engine.load_weights(dict(source.named_parameters()))
    before = tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0))
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.zero_()
    assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0)) == before


@pytest.mark.parametrize("damage", ["missing", "misshapen", "unknown"])
def test_a_bad_load_is_refused_and_the_old_weights_stay(case, model, engine, damage):
    before = tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0))
    weights = {name: tensor + 1 for name, tensor in model.named_parameters()}
    last = list(weights)[-1]
    if damage == "missing":
        del weights[last]
    elif damage == "misshapen":
        weights[last] = weights[last][:-1]
    else:
        last = "something.else"
        weights[last] = torch.zeros(1)
    with pytest.raises(ValueError, match=rf"the old ones stay: .*{last} (is|has shape)"):
        engine.load_weights(weights)
    assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0)) == before


def test_prompts_too_long_or_with_unknown_tokens_are_refused(case, model, engine):
    assert engine.context_length == CONTEXT
    fits = [5] * (CONTEXT - 12)
    assert len(engine.generate([fits], 1, GREEDY, 0)[0][0].token_ids) <= 12
    with pytest.raises(UserError, match=r"53 prompt tokens and max_tokens 12 make 65, the model's context holds 64"):
        engine.generate([[5, *fits]], 1, GREEDY, 0)
    with pytest.raises(UserError, match=rf"token ids from 5 to {len(TOKENIZER)}, the model knows 0 to"):
        engine.generate([[5, len(TOKENIZER)]], 1, GREEDY, 0)


def test_weights_that_have_diverged_stop_the_run(case, model):
    engine = case.engine_to_spoil(model)
    engine.load_weights({name: tensor * torch.nan for name, tensor in model.named_parameters()})
    with pytest.raises(Diverged, match=r"not finite at prompt 0, sample 0, token 0"):
        engine.generate(PROMPTS, 2, SAMPLING, 0)


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
    cache = KVCache(old.config, 1, CONTEXT)
    with torch.no_grad():
        old(torch.tensor([[*prompt, *tokens[: swap - 1]]]), cache=cache)
        logits = new(torch.tensor([tokens[swap - 1 : -1]]), cache=cache).logits[0]
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


PINNED = SamplingParams(max_tokens=24, pinned_lengths=(3, 20), stop=("e",))


def test_pinned_lengths_hold_whatever_the_policy_says(case, model):
    """Neither the end of sequence, here a token that a random model draws often, nor a stop string ends a response."""
    sampled = case.engine(model, WithEos(5)).generate(PROMPTS, 4, PINNED, 11)
    expected = pinned_lengths(11, [(prompt, sample) for prompt in range(len(PROMPTS)) for sample in range(4)], (3, 20))
    assert [len(completion.token_ids) for completion in flat(sampled)] == expected.tolist()
    assert len(set(expected.tolist())) > 5
    assert all(5 not in completion.token_ids for completion in flat(sampled))
    assert {completion.finish_reason for completion in flat(sampled)} == {"length"}


def test_pinned_lengths_do_not_depend_on_the_batch(case, model):
    whole = case.engine(model).generate(PROMPTS, 4, PINNED, 11)
    split = case.engine(model, max_batch=4).generate(PROMPTS, 4, PINNED, 11)
    lengths = [[len(completion.token_ids) for completion in flat(sampled)] for sampled in (whole, split)]
    assert lengths[0] == lengths[1]


def test_the_fake_engine_pins_lengths_as_the_real_ones_do():
    sampled = WITHOUT_MODEL["fake"].engine(None).generate(PROMPTS, 4, PINNED, 11)
    rows = [(prompt, sample) for prompt in range(len(PROMPTS)) for sample in range(4)]
    assert [len(completion.token_ids) for completion in flat(sampled)] == pinned_lengths(11, rows, (3, 20)).tolist()
    assert {completion.finish_reason for completion in flat(sampled)} == {"length"}


@pytest.mark.parametrize("bounds", [(0, 4), (5, 4), (4, 25)])
def test_pinned_lengths_out_of_bounds_are_refused(case, model, bounds):
    with pytest.raises(UserError, match="pinned_lengths"):
        case.engine(model).generate(PROMPTS, 1, SamplingParams(max_tokens=24, pinned_lengths=bounds), 0)
