"""Requests that cannot be served are refused with numbers, before any work."""

from __future__ import annotations

import pytest

from harness.core.errors import UserError
from harness.core.types import SamplingParams
from harness.engines.limits import check_request, check_scored

GOOD = {
    "prompts": [[1, 2, 3]],
    "num_samples": 2,
    "sampling": SamplingParams(max_tokens=5),
    "vocab_size": 10,
    "context_length": 8,
}


def test_a_request_that_just_fits_passes():
    check_request(**GOOD)
    check_request(**GOOD | {"context_length": None, "sampling": SamplingParams(max_tokens=5_000)})
    check_request(**GOOD | {"sampling": SamplingParams(temperature=0, top_p=1, min_tokens=5, max_tokens=5)})


def test_a_bad_request_is_refused():
    for change, message in (
        ({"prompts": [[1], []]}, r"the prompt has no tokens\n  where: prompt 1 of"),
        ({"prompts": [[1, 10]]}, r"token ids from 1 to 10, the model knows 0 to 9\n  where: prompt 0"),
        ({"prompts": [[-1, 2]]}, r"token ids from -1 to 2"),
        (
            {"prompts": [[1], [1, 2, 3, 4]]},
            r"4 prompt tokens and max_tokens 5 make 9, .* holds 8\n  where: prompt 1 .*\n  fix: .* to at most 4",
        ),
        ({"num_samples": 0}, r"num_samples is 0, must be at least 1"),
        ({"sampling": SamplingParams(temperature=-0.1)}, r"temperature is -0\.1, must be 0"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, r"temperature is nan"),
        ({"sampling": SamplingParams(top_p=0.0)}, r"top_p is 0\.0, must be above 0"),
        ({"sampling": SamplingParams(top_p=1.01)}, r"top_p is 1\.01"),
        ({"sampling": SamplingParams(max_tokens=0)}, r"max_tokens is 0, must be at least 1"),
        ({"sampling": SamplingParams(min_tokens=6, max_tokens=5)}, r"min_tokens is 6, .* which is 5"),
        ({"sampling": SamplingParams(min_tokens=-1, max_tokens=5)}, r"min_tokens is -1"),
    ):
        with pytest.raises(UserError, match=message):
            check_request(**GOOD | change)


def test_scored_responses_may_fill_the_context_but_for_the_room_that_the_engine_needs():
    check_scored([[1, 2]], [[3, 4]], 10, 4)
    check_scored([[1, 2]], [[3]], 10, 4, room=1)
    check_scored([[1], [1, 2, 3]], [[2, 3, 4], [4]], 10, 4)  # each with its own prompt, not with the longest
    with pytest.raises(
        UserError, match=r"4 tokens with its prompt and 1 behind them, .* holds 4\n.*0 of.*\n.* most 1 "
    ):
        check_scored([[1, 2]], [[3, 4]], 10, 4, room=1)
    with pytest.raises(UserError, match=r"the prompt or the response has no tokens\n  where: response 1 of"):
        check_scored([[1], [2]], [[3], []], 10, 4)
