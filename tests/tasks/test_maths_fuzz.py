"""Hostile responses: none crashes the grader, none outlasts its limit, none spoils what comes behind it."""

import pytest

from harness.tasks.maths.symbolic import AnswerGrader
from tests.benchmarks.fuzz_grader import grade_all, hostile_responses

LATE_S = 30.0  # how late a busy machine may wake up whoever waits for the limit


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_response_crashes_hangs_or_spoils_the_grader(count: int) -> None:
    grader = AnswerGrader(0.5)
    outcome = grade_all(grader, hostile_responses(1, count))
    assert grader.symbolic.counts.longest_s < 0.5 + LATE_S
    assert outcome["longest_s"] < 0.5 + LATE_S
    assert outcome["right"] < count / 4  # some damaged answers are right still
    grader.symbolic.timeout_s = 600.0
    assert grader(r"\sqrt{289}", "17") is True
    grader.close()
