"""The engine without a model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.core.types import SamplingParams
from harness.engines.fake import FakeEngine

SAMPLING = SamplingParams(min_tokens=2, max_tokens=40)


def test_its_lengths_and_log_probs_are_those_of_its_distribution():
    completions = [c for group in FakeEngine().generate([[5]] * 200, 8, SAMPLING, 0) for c in group]
    stopped = [c for c in completions if c.finish_reason == "stop"]
    # without end after 2 + 38 tokens: 0.9^38 = 1.8% of 1600 = 29, standard deviation 5.3; five of them
    assert abs(len(completions) - len(stopped) - 1600 * 0.9**38) < 27
    first = stopped[0]
    # 126 words, evenly; behind min_tokens the end of sequence has 0.1
    assert first.log_probs[0] == pytest.approx(-math.log(126))
    assert first.log_probs[-1] == pytest.approx(math.log(0.1))
    assert first.log_probs[2:-1] == pytest.approx(math.log(0.9 / 126))
    assert first.token_ids[-1] == 1
    assert {int(token) for c in completions for token in c.token_ids} == set(range(1, 128))


def test_its_text_names_the_tokens():
    (group,) = FakeEngine().generate([[5]], 1, SAMPLING, 3)
    words = [f"w{token}" for token in group[0].token_ids if token != 1]
    assert group[0].text == " ".join(words)


def test_weights_are_counted():
    engine = FakeEngine()
    engine.load_weights({"a": np.zeros(1)})
    engine.load_weights({"a": np.zeros(1)})
    assert engine.loads == 2
    with pytest.raises(ValueError, match="there are none"):
        engine.load_weights({})
