"""What every engine must do, and what one that samples from a model must do beside."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.errors import Diverged, Interrupted, UserError
from harness.core.protocols import Engine, ScoringEngine, Tokenizer
from harness.core.types import Completion, SamplingParams
from harness.engines.rng import pinned_lengths

PROMPTS = [[5, 6, 7], [9] * 11, [100], [30, 31, 32, 33, 34]]
SAMPLING = SamplingParams(max_tokens=12)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
LONG = SamplingParams(max_tokens=24)
PINNED = SamplingParams(max_tokens=24, pinned_lengths=(3, 20), stop=("e",))
SCORED = [[7, 8, 9, 200], [11], [40, 41, 42, 43, 44, 45, 46], [5, 5]]
VOCABULARY = 201
"""Tokens that the model behind an engine must know at least, for the prompts and responses of these tests."""
StopSignal = Callable[[], bool]
Groups = Sequence[Sequence[Completion]]


class WithSpecialToken:
    """A tokenizer that calls one of its tokens special, so that a random model draws it often enough."""

    def __init__(self, tokenizer: Tokenizer, name: str, token: int) -> None:
        self._tokenizer, self._name, self._token = tokenizer, name, token
        self.eos_token_id, self.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        self.encode = tokenizer.encode

    def decode(self, token_ids: Any, **options: Any) -> Any:
        return self._tokenizer.decode([token for token in token_ids if token != self._token], **options)

    def get_added_vocab(self) -> dict[str, int]:
        return {self._name: self._token}


def tokens_of(groups: Groups) -> list[list[list[int]]]:
    """Return the token ids of each completion."""
    return [[completion.token_ids.tolist() for completion in group] for group in groups]


def flat(groups: Groups) -> list[Completion]:
    """Return all completions in order."""
    return [completion for group in groups for completion in group]


def frequent_tokens(engine: Engine, seed: int, count: int = 1) -> list[int]:
    """Return the tokens that come first at as many places as possible, in 8 samples of each prompt."""
    first_places: dict[int, dict[int, int]] = {}
    for row, completion in enumerate(flat(engine.generate(PROMPTS, 8, LONG, seed))):
        for place, token in reversed(list(enumerate(completion.token_ids.tolist()))):
            first_places.setdefault(token, {})[row] = place
    return sorted(first_places, key=lambda token: (-len(set(first_places[token].values())), -token))[:count]


def response_logits(model: nn.Module, prompt: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Return logits (T, V) from one full forward pass, at the positions that predict the response."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([[*prompt, *token_ids]])).logits
    return logits[0, len(prompt) - 1 : -1].float()


def gap(logits: Tensor, tokens: Any, log_probs: Any) -> float:
    """Return the largest gap between log-probs (T,) that an engine gave and those of the logits (T, V)."""
    expected = logits.log_softmax(-1).gather(1, torch.as_tensor(tokens)[:, None])[:, 0]
    return float((torch.from_numpy(log_probs) - expected).abs().max())


def largest_scoring_gap(model: nn.Module, scored: Sequence[Any]) -> float:
    """Return the largest gap between log-probs of ``SCORED``, as an engine gave them, and the model's."""
    assert {str(log_probs.dtype) for log_probs in scored} == {"float32"}
    rows = zip(PROMPTS, SCORED, scored, strict=True)
    return max(gap(response_logits(model, prompt, tokens), tokens, log_probs) for prompt, tokens, log_probs in rows)


def of_prompts(groups: Groups) -> list[tuple[Sequence[int], Completion]]:
    """Return each completion of ``PROMPTS`` with its prompt."""
    return [(prompt, each) for prompt, group in zip(PROMPTS, groups, strict=True) for each in group]


class EngineContract:
    """Contract of an engine. Say in a subclass how it is made.

    Attributes:
        tokenizer: by which the engine decodes.
        exact: whether a row's tokens are the same in another batch: false in bfloat16, where one flipped token changes
            what follows it.
        pins_lengths: whether it knows ``pinned_lengths``.
        weights: what ``load_weights`` takes.
    """

    tokenizer: Tokenizer
    exact: bool = True
    pins_lengths: bool = True
    weights: Mapping[str, Tensor]

    def make_engine(self, should_stop: StopSignal | None = None, max_batch: int = 256) -> Engine:
        """Return the engine, made anew, with weights.

        Args:
            should_stop: polled while it samples, at each token or prompt; true ends ``generate`` with ``Interrupted``.
            max_batch: responses that it may sample together; one that has no such bound leaves it out.
        """
        raise NotImplementedError

    def make_engine_that_ends(self, seed: int) -> Engine:
        """Return an engine whose responses to ``PROMPTS``, 8 each with this seed, end at many lengths below 24."""
        return self.make_engine()

    @pytest.fixture
    def exactly(self) -> None:
        """Skips tests of tokens that rounding may flip."""
        if not self.exact:
            pytest.skip("bfloat16 rounds differently in other batches, and of two close tokens either may be likelier")

    def assert_pinned(self, engine: Engine) -> list[Completion]:
        """Check 4 samples of each prompt: ``harness.engines.rng.pinned_lengths`` draws lengths by seed and place."""
        sampled = flat(engine.generate(PROMPTS, 4, PINNED, 11))
        rows = [(prompt, sample) for prompt in range(len(PROMPTS)) for sample in range(4)]
        assert [len(each.token_ids) for each in sampled] == pinned_lengths(11, rows, (3, 20)).tolist()
        assert {each.finish_reason for each in sampled} == {"length"}
        return sampled

    def test_a_completion_has_tokens_log_probs_text_and_a_reason(self) -> None:
        """And no versions, whatever the number of the one that sampled all of it."""
        engine = self.make_engine()
        groups = engine.generate(PROMPTS, 3, SAMPLING, 0)
        assert [len(group) for group in groups] == [3] * len(PROMPTS)
        for completion in flat(groups):
            assert completion.token_ids.dtype == "int64"
            assert completion.log_probs.dtype == "float32"
            assert 1 <= len(completion.token_ids) == len(completion.log_probs) <= SAMPLING.max_tokens
            assert (completion.log_probs <= 1e-6).all()
            assert completion.text == self.tokenizer.decode(completion.token_ids.tolist(), skip_special_tokens=True)
            ended = completion.token_ids[-1] == self.tokenizer.eos_token_id
            assert completion.finish_reason == ("stop" if ended else "length")
            assert self.tokenizer.eos_token_id not in completion.token_ids[:-1]
            assert ended or len(completion.token_ids) == SAMPLING.max_tokens
        engine.load_weights(self.weights, version=3)
        sampled = [*flat(groups), *flat(engine.generate(PROMPTS, 2, SAMPLING, 0))]
        assert [completion.versions for completion in sampled] == [None] * (5 * len(PROMPTS))
        assert engine.generate([], 4, SAMPLING, 0) == []

    def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(self) -> None:
        """From call to call, and from one engine to another of the same weights."""
        engine, sampling = self.make_engine(), dataclasses.replace(SAMPLING, min_tokens=6)
        first = tokens_of(engine.generate(PROMPTS, 3, sampling, 7))
        assert tokens_of(engine.generate(PROMPTS, 3, sampling, 7)) == first
        assert tokens_of(self.make_engine().generate(PROMPTS, 3, sampling, 7)) == first
        assert tokens_of(engine.generate(PROMPTS, 3, sampling, 8)) != first
        samples = [tuple(tokens) for group in first for tokens in group]
        assert len(set(samples)) == len(samples)

    @pytest.mark.usefixtures("exactly")
    def test_a_row_depends_on_its_prompt_and_indices_alone(self) -> None:
        """Not on other prompts, the number of samples, or the batches and Generators that a request is cut into."""
        whole = tokens_of(self.make_engine().generate(PROMPTS, 4, SAMPLING, 7))
        for max_batch in (1, 3, 4, 9):
            assert tokens_of(self.make_engine(max_batch=max_batch).generate(PROMPTS, 4, SAMPLING, 7)) == whole
        assert tokens_of(self.make_engine().generate(PROMPTS[:2], 4, SAMPLING, 7)) == whole[:2]
        assert tokens_of(self.make_engine().generate(PROMPTS, 2, SAMPLING, 7)) == [group[:2] for group in whole]
        pinned, engine = SamplingParams(max_tokens=8, pinned_lengths=(2, 6)), self.make_engine()
        for sampling in (SAMPLING, pinned):
            whole = tokens_of(self.make_engine().generate(PROMPTS, 3, sampling, 7))
            parts = [range(1), range(1, 2), range(2, len(PROMPTS))]
            apart = [engine.generate(PROMPTS[part.start : part.stop], 3, sampling, 7, part) for part in parts]
            assert [group for part in apart for group in tokens_of(part)] == whole

    def test_min_and_max_tokens(self) -> None:
        """The end of sequence may come right behind ``min_tokens``."""
        engine = self.make_engine_that_ends(seed=1)
        free = sorted(len(completion.token_ids) for completion in flat(engine.generate(PROMPTS, 8, LONG, 1)))
        held_back = free[4]  # at least four of the 32 responses would be shorter or as long
        held = flat(engine.generate(PROMPTS, 8, dataclasses.replace(LONG, min_tokens=held_back), 1))
        assert held_back < 24
        assert min(len(completion.token_ids) for completion in held) > held_back
        forced = flat(engine.generate(PROMPTS, 8, dataclasses.replace(LONG, min_tokens=24), 1))
        assert {(len(completion.token_ids), completion.finish_reason) for completion in forced} == {(24, "length")}

    def test_a_response_of_one_token_begins_as_a_longer_one(self) -> None:
        """It comes from the prefill alone."""
        (group,) = self.make_engine().generate(PROMPTS[:1], 4, dataclasses.replace(SAMPLING, max_tokens=1), 7)
        (longer,) = self.make_engine().generate(PROMPTS[:1], 4, SAMPLING, 7)
        assert [c.token_ids.tolist() for c in group] == [c.token_ids[:1].tolist() for c in longer]

    def test_greedy_samples_are_equal_and_need_no_seed(self) -> None:
        """Temperature 0 takes the likeliest token."""
        engine = self.make_engine()
        groups = tokens_of(engine.generate(PROMPTS, 3, GREEDY, 0))
        assert all(group == [group[0]] * 3 for group in groups)
        assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 1)) == [group[:1] for group in groups]

    def test_pinned_lengths_hold_whatever_the_policy_says(self) -> None:
        """They follow from seed and place."""
        if not self.pins_lengths:
            pytest.skip("it pins no lengths")
        self.assert_pinned(self.make_engine())

    def test_bad_requests_are_refused(self) -> None:
        """``harness.engines.limits.check_request`` does it."""
        engine = self.make_engine()
        with pytest.raises(UserError, match="max_tokens is 0, must be at least 1"):
            engine.generate(PROMPTS, 1, SamplingParams(max_tokens=0), 0)
        with pytest.raises(UserError, match="prompt 1"):
            engine.generate([[5], []], 1, SAMPLING, 0)

    def test_a_stop_signal_interrupts(self) -> None:
        """An engine polls it more than twice in a request."""
        answers = iter([False, False, True])
        with pytest.raises(Interrupted):
            self.make_engine(should_stop=lambda: next(answers)).generate(PROMPTS, 1, SAMPLING, 0)


class ModelEngineContract(EngineContract):
    """For an engine that samples from a model: its tokens and log-probs are those of the model's full forward passes.

    Attributes:
        model: the policy, which returns ``.logits`` (B, T, V) for token ids (B, T). Its logits should be spread over
            several units, and it should know ``VOCABULARY`` tokens at least.
        other: a policy of the same shape and other weights.
        tolerance: largest gap between the engine's log-probs and the model's.
        context: tokens that a prompt and its response may have together; None: as many as one likes.
        vocab_size: tokens that the model knows; None: an unknown one is not refused.
    """

    model: nn.Module
    other: nn.Module
    tolerance: float = 1e-4
    context: int | None = None
    vocab_size: int | None = None

    def make_engine_of(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        should_stop: StopSignal | None = None,
        max_batch: int = 256,
        ends: Sequence[int] | None = None,
    ) -> Engine:
        """Return an engine, made anew, with the weights of the model; see ``EngineContract.make_engine``.

        Args:
            model, tokenizer: of the policy.
            should_stop, max_batch: see there.
            ends: tokens that end its responses; None: those of the policy.
        """
        raise NotImplementedError

    def make_engine_to_spoil(self) -> Engine:
        """Return an engine that no other test uses, where engines share anything."""
        return self.make_engine()

    def make_engine(self, should_stop: StopSignal | None = None, max_batch: int = 256) -> Engine:
        return self.make_engine_of(self.model, self.tokenizer, should_stop, max_batch)

    def make_engine_that_ends(self, seed: int) -> Engine:
        return self.make_engine_of(self.model, self.tokenizer, ends=frequent_tokens(self.make_engine(), seed))

    def make_scoring_engine(self) -> ScoringEngine:
        """Return an engine that can ``score``; skips the test where it cannot."""
        engine: Any = self.make_engine()
        if not hasattr(engine, "score"):
            pytest.skip("the engine has no score: weight syncs are proven by their checksum alone")
        scoring: ScoringEngine = engine
        return scoring

    @property
    def weights(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        """Those of the model."""
        return self.model.state_dict()

    def logits_of(self, prompt: Sequence[int], completion: Completion) -> Tensor:
        """Return the model's logits (T, V) that predict the tokens of a completion."""
        return response_logits(self.model, prompt, completion.token_ids.tolist())

    def assert_agrees(self, logits: Tensor, completion: Completion) -> None:
        """Check an engine's log-probs against logits (T, V)."""
        assert gap(logits, completion.token_ids, completion.log_probs) < self.tolerance

    @pytest.mark.usefixtures("exactly")
    def test_greedy_tokens_are_the_likeliest_of_full_forward_passes(self) -> None:
        """With their log-probs."""
        for prompt, completion in of_prompts(self.make_engine().generate(PROMPTS, 1, GREEDY, 0)):
            logits = self.logits_of(prompt, completion)
            assert completion.token_ids.tolist() == logits.argmax(-1).tolist()
            self.assert_agrees(logits, completion)

    @pytest.mark.parametrize(("temperature", "min_tokens"), [(1.0, 0), (0.6, 0), (1.7, 5)])
    def test_log_probs_are_those_of_the_sampled_distribution(self, temperature: float, min_tokens: int) -> None:
        """Divided by the temperature, without the end of sequence where it is banned."""
        sampling = SamplingParams(temperature=temperature, min_tokens=min_tokens, max_tokens=12)
        for prompt, completion in of_prompts(self.make_engine().generate(PROMPTS, 3, sampling, 5)):
            logits = self.logits_of(prompt, completion) / temperature
            logits[:min_tokens, self.tokenizer.eos_token_id] = -torch.inf
            self.assert_agrees(logits, completion)

    @pytest.mark.usefixtures("exactly")
    def test_top_p_draws_from_the_nucleus_and_renormalises(self) -> None:
        """A token stays if the likelier ones do not reach top_p."""
        sampling = SamplingParams(top_p=0.7, max_tokens=12)
        for prompt, completion in of_prompts(self.make_engine().generate(PROMPTS, 3, sampling, 5)):
            logits = self.logits_of(prompt, completion)
            probs, order = logits.softmax(-1).sort(descending=True)
            nucleus = (probs.cumsum(-1) - probs < 0.7).gather(1, order.argsort(-1))
            assert nucleus.gather(1, torch.from_numpy(completion.token_ids)[:, None]).all()
            logits[~nucleus] = -torch.inf
            self.assert_agrees(logits, completion)

    def test_a_response_ends_at_the_first_token_that_completes_a_stop_string(self) -> None:
        """The string stays part of it."""
        engine, sampling = self.make_engine(), SamplingParams(temperature=0.8, max_tokens=24)
        free = flat(engine.generate(PROMPTS, 4, sampling, 2))
        stops = (free[0].text[2:5], free[-1].text[1:3])
        stopped = flat(engine.generate(PROMPTS, 4, dataclasses.replace(sampling, stop=stops), 2))
        ended = 0
        for before, after in zip(free, stopped, strict=True):
            texts = [
                self.tokenizer.decode(before.token_ids[:end].tolist(), skip_special_tokens=True) for end in range(1, 25)
            ]
            holds = [end + 1 for end, so_far in enumerate(texts) if any(stop in so_far for stop in stops)]
            length = min(holds[0] if holds else 24, len(before.token_ids))
            assert len(after.token_ids) == length
            if self.exact:
                assert after.token_ids.tolist() == before.token_ids[:length].tolist()
            ended += length < 24 and after.finish_reason == "stop"
        assert ended >= 2

    @pytest.mark.parametrize("how", ["named by the policy", "a stop string"])
    def test_any_end_token_ends_a_response(self, how: str) -> None:
        """Of three, the last a special token that a stop string names; the token stays, and nothing follows it."""
        sampling, ends = LONG, frequent_tokens(self.make_engine(), 3, 3)
        free = flat(self.make_engine_of(self.model, self.tokenizer, ends=()).generate(PROMPTS, 8, sampling, 3))
        tokenizer: Tokenizer = self.tokenizer
        named = ends
        if how == "a stop string":
            tokenizer, named = WithSpecialToken(tokenizer, "<|turn|>", ends[2]), ends[:2]
            sampling = dataclasses.replace(sampling, stop=("<|turn|>",))
        ended = flat(self.make_engine_of(self.model, tokenizer, ends=named).generate(PROMPTS, 8, sampling, 3))
        for before, after in zip(free, ended, strict=True):
            places = [place for place, token in enumerate(before.token_ids.tolist()) if token in ends]
            length = places[0] + 1 if places else LONG.max_tokens
            if self.exact:
                assert after.token_ids.tolist() == before.token_ids[:length].tolist()
                assert abs(after.log_probs - before.log_probs[:length]).max() < self.tolerance
            is_end = after.token_ids[-1] in ends
            assert after.finish_reason == ("stop" if is_end else "length")
            assert is_end or len(after.token_ids) == LONG.max_tokens
            assert not set(ends) & set(after.token_ids[:-1].tolist())
        assert {int(after.token_ids[-1]) for after in ended} >= set(ends)

    def test_no_end_token_is_drawn_within_min_tokens(self) -> None:
        """The log-probs are of the distribution without all of them; the stop string that is a token is one."""
        ends = frequent_tokens(self.make_engine(), 3, 3)
        tokenizer = WithSpecialToken(self.tokenizer, "<|turn|>", ends[2])
        sampling = SamplingParams(min_tokens=8, max_tokens=12, stop=("<|turn|>",))
        engine = self.make_engine_of(self.model, tokenizer, ends=ends[:2])
        for prompt, completion in of_prompts(engine.generate(PROMPTS, 3, sampling, 5)):
            assert not set(ends) & set(completion.token_ids[:8].tolist())
            logits = self.logits_of(prompt, completion)
            logits[:8, ends] = -torch.inf
            self.assert_agrees(logits, completion)

    def test_pinned_lengths_hold_whatever_the_policy_says(self) -> None:
        """Neither an end token, here one that a random model draws often, nor a stop string ends one."""
        sampled = self.assert_pinned(self.make_engine_of(self.model, self.tokenizer, ends=(5,)))
        assert all(5 not in completion.token_ids for completion in sampled)
        self.assert_pinned(self.make_engine(max_batch=4))

    @pytest.mark.parametrize("bounds", [(0, 4), (5, 4), (4, 25)])
    def test_pinned_lengths_out_of_bounds_are_refused(self, bounds: tuple[int, int]) -> None:
        """They rise from 1 to ``max_tokens``."""
        with pytest.raises(UserError, match="pinned_lengths"):
            self.make_engine().generate(PROMPTS, 1, SamplingParams(max_tokens=24, pinned_lengths=bounds), 0)

    def test_given_tokens_get_the_log_probs_of_full_forward_passes(self) -> None:
        """Before and after new weights."""
        engine = self.make_scoring_engine()
        assert largest_scoring_gap(self.model, engine.score(PROMPTS, SCORED)) < self.tolerance
        assert largest_scoring_gap(self.other, engine.score(PROMPTS, SCORED)) > 1.0
        engine.load_weights(dict(self.other.named_parameters()))
        assert largest_scoring_gap(self.other, engine.score(PROMPTS, SCORED)) < self.tolerance

    def test_what_cannot_be_scored_is_refused(self) -> None:
        """An empty response, one that does not fit, and unknown tokens."""
        engine = self.make_scoring_engine()
        with pytest.raises(UserError, match="no tokens") as refused:
            engine.score([[5], [6]], [[7], []])
        assert refused.value.where == "response 1 of those to score"
        assert engine.score([], []) == []
        if self.context is not None:
            with pytest.raises(UserError, match=rf"{self.context + 1} tokens with its prompt"):
                engine.score([[5] * self.context], [[6]])
            (just_fits,) = engine.score([[5] * (self.context - 3)], [[6, 7]])
            assert just_fits.shape == (2,)
        if self.vocab_size is not None:
            with pytest.raises(UserError, match=rf"token ids from 5 to {self.vocab_size}"):
                engine.score([[5]], [[self.vocab_size]])

    def test_what_cannot_be_sampled_is_refused(self) -> None:
        """A prompt and ``max_tokens`` fit into the context together; unknown tokens would index past the embedding."""
        engine = self.make_engine()
        if self.context is not None:
            most = self.context - GREEDY.max_tokens
            assert len(engine.generate([[5] * most], 1, GREEDY, 0)[0][0].token_ids) <= GREEDY.max_tokens
            with pytest.raises(UserError, match=rf"{most + 1} prompt tokens and max_tokens {GREEDY.max_tokens}"):
                engine.generate([[5] * (most + 1)], 1, GREEDY, 0)
        if self.vocab_size is not None:
            with pytest.raises(UserError, match=rf"token ids from 5 to {self.vocab_size}"):
                engine.generate([[5, self.vocab_size]], 1, GREEDY, 0)

    def test_loading_replaces_the_weights(self) -> None:
        """All of them, there and back; and they are not shared with the Learner, which trains on meanwhile."""
        wanted = tokens_of(self.make_engine_of(self.other, self.tokenizer).generate(PROMPTS, 1, GREEDY, 0))
        before = tokens_of(self.make_engine().generate(PROMPTS, 1, GREEDY, 0))
        sources = copy.deepcopy(self.model), copy.deepcopy(self.other)
        engine = self.make_engine_of(sources[0], self.tokenizer)
        for source, sampled in zip(sources, (before, wanted), strict=True):
            engine.load_weights(dict(source.named_parameters()))
            with torch.no_grad():
                for parameter in source.parameters():
                    parameter.zero_()
            assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0)) == sampled
        assert wanted != before
        engine.load_weights(self.model.state_dict())
        assert tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0)) == before

    @pytest.mark.parametrize("damage", ["missing", "misshapen", "unknown"])
    def test_a_bad_load_is_refused_and_the_old_weights_stay(self, damage: str) -> None:
        """Half of a new policy is none."""
        engine = self.make_engine()
        before = tokens_of(engine.generate(PROMPTS, 1, GREEDY, 0))
        weights = {name: tensor.detach() + 1 for name, tensor in self.model.named_parameters()}
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

    def test_weights_that_have_diverged_stop_the_run(self) -> None:
        """With the place of the first token."""
        engine = self.make_engine_to_spoil()
        engine.load_weights({name: tensor.detach() * torch.nan for name, tensor in self.model.named_parameters()})
        with pytest.raises(Diverged, match=r"not finite at prompt 0, sample 0, token 0"):
            engine.generate(PROMPTS, 2, SAMPLING, 0)
