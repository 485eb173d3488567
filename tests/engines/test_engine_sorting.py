"""The sorting engine: frequencies against exact probabilities, log-probs, weights by name."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from harness.core.errors import UserError
from harness.core.types import SamplingParams
from harness.engines.native import native_engine
from harness.engines.sorting import SortingEngine
from harness.models.sorting import NumberTokenizer, SortingModel, sorting_policy

PROMPTS = [[1, 0, 2], [3, 2, 4], [1, 2, 3]]
SAMPLING = SamplingParams(max_tokens=3)


def flat_model(seed=0):
    """A model whose distributions are not as one-sided as those of the untrained policy."""
    model = SortingModel(generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.embedding *= 0.35
    return model.eval()


def engine_of(model):
    return native_engine(model, NumberTokenizer())


def distributions(model, temperature=1.0):
    """(P, T, V) probabilities."""
    with torch.no_grad():
        return (model(torch.tensor(PROMPTS)).double() / temperature).softmax(-1).numpy()


def test_responses_come_as_often_as_they_should():
    """Chi-square over all 125 responses to each prompt, those expected fewer than 5 times counted together.

    For k degrees of freedom P(X >= k + 2 sqrt(k x) + 2 x) <= exp(-x) (Laurent and Massart 2000, lemma 1); x = 9.3 lets
    a right engine fail less than once in 10,000 seeds, for each prompt.
    """
    count, model, temperature = 3000, flat_model(), 2.0
    probabilities = distributions(model, temperature)
    assert 0.3 < probabilities.max() < 0.95
    groups = engine_of(model).generate(PROMPTS, count, SamplingParams(temperature=temperature, max_tokens=3), 11)
    for prompt, group in enumerate(groups):
        seen = Counter(tuple(completion.token_ids.tolist()) for completion in group)
        expected = {
            response: count * float(np.prod([probabilities[prompt, t, v] for t, v in enumerate(response)]))
            for response in product(range(5), repeat=3)
        }
        rare = [response for response, times in expected.items() if times < 5]
        cells = [(seen[response], times) for response, times in expected.items() if times >= 5]
        cells.append((sum(seen[r] for r in rare), sum(expected[r] for r in rare)))
        statistic = sum((found - wanted) ** 2 / wanted for found, wanted in cells if wanted > 0)
        freedom = len(cells) - 1
        assert freedom >= 15
        assert statistic < freedom + 2 * (freedom * 9.3) ** 0.5 + 2 * 9.3


def test_log_probs_are_those_of_the_model_at_temperature_one():
    """Of sampled and of given tokens."""
    model = flat_model()
    logs = np.log(distributions(model))
    for prompt, group in enumerate(engine_of(model).generate(PROMPTS, 20, SAMPLING, 0)):
        for completion in group:
            exact = [logs[prompt, position, token] for position, token in enumerate(completion.token_ids)]
            assert completion.log_probs.tolist() == pytest.approx(exact, abs=1e-5)
    found = engine_of(model).score([PROMPTS[1], PROMPTS[0]], [[4, 0, 2], [1]])
    assert found[0].tolist() == pytest.approx([logs[1, 0, 4], logs[1, 1, 0], logs[1, 2, 2]], abs=1e-5)
    assert found[1].tolist() == pytest.approx([logs[0, 0, 1]], abs=1e-5)


def test_a_whole_response_has_ended_and_a_cut_one_has_not():
    engine = engine_of(flat_model())
    for most, length, reason in ((3, 3, "stop"), (32, 3, "stop"), (2, 2, "length")):
        groups = engine.generate(PROMPTS, 4, SamplingParams(max_tokens=most, min_tokens=1), 0)
        assert {(len(c.token_ids), c.finish_reason) for group in groups for c in group} == {(length, reason)}


def test_min_tokens_ban_no_number():
    """There is no end of sequence to hold back: the tokens are those without a minimum."""
    engine = engine_of(flat_model())
    assert isinstance(engine, SortingEngine)
    free, held = (engine.generate(PROMPTS, 50, SamplingParams(min_tokens=n, max_tokens=3), 0) for n in (0, 3))
    assert [c.text for group in free for c in group] == [c.text for group in held for c in group]
    assert {token for group in free for c in group for token in c.token_ids.tolist()} == {0, 1, 2, 3, 4}


def test_weights_are_copied_by_name_and_bad_ones_or_bad_requests_leave_the_old():
    first, second = flat_model(0), flat_model(1)
    engine = engine_of(first)

    def likeliest():
        greedy = SamplingParams(temperature=0.0, max_tokens=3)
        return [[c.token_ids.tolist() for c in group] for group in engine.generate(PROMPTS, 1, greedy, 0)]

    before = likeliest()
    assert before == [[row] for row in distributions(first).argmax(-1).tolist()]
    weights = {name: tensor.clone() for name, tensor in second.named_parameters()}
    engine.load_weights(dict(reversed(weights.items())), version=1)
    after = likeliest()
    assert after == [[row] for row in distributions(second).argmax(-1).tolist()] != before
    for tensor in weights.values():
        tensor.data.zero_()
    assert likeliest() == after
    other = {"embedding": weights["embedding"], "encode_weights": weights["encode_weights"], "other": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"decode_weights is missing; other is unknown"):
        engine.load_weights(other)
    for prompt, message in (
        ([1, 2, 3, 4], "4 tokens, the sorting model takes at most 3"),
        ([1, 2, 5], "the model knows 0 to 4"),
    ):
        with pytest.raises(UserError, match=message):
            engine.generate([prompt], 1, SAMPLING, 0)
    with pytest.raises(ValueError, match=r"embedding has shape \(5, 9\), must be \(5, 10\)"):
        engine.load_weights(weights | {"embedding": torch.zeros(5, 9)})
    assert likeliest() == after


def test_weights_that_come_between_two_positions_sample_the_later_ones():
    old, new = sorting_policy(0)[0], sorting_policy(1)[0]
    polls = iter(range(10))
    engine = SortingEngine(
        old, NumberTokenizer(), should_stop=lambda: next(polls) == 2 and engine.load_weights(new.state_dict(), 1)
    )
    engine.load_weights(old.state_dict(), version=0)
    logs = [np.log(distributions(model)) for model in (old, new)]
    for prompt, group in enumerate(engine.generate(PROMPTS, 3, SAMPLING, 0)):
        for completion in group:
            assert completion.versions.tolist() == [0, 0, 1]
            exact = [
                logs[version][prompt, position, token]
                for position, (version, token) in enumerate(zip((0, 0, 1), completion.token_ids, strict=True))
            ]
            assert completion.log_probs.tolist() == pytest.approx(exact, abs=1e-4)
