"""Hostile responses: none crashes the grader, none outlasts its limit, none spoils what comes behind it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from harness.tasks.maths.symbolic import AnswerGrader

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz_grader.py"
LATE_S = 30.0  # how late a busy machine may wake up whoever waits for the limit


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_grader", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_response_crashes_hangs_or_spoils_the_grader(count: int) -> None:
    fuzz = load_script()
    grader = AnswerGrader(0.5)
    outcome = fuzz.grade_all(grader, seed=1, count=count)
    assert grader.symbolic.counts.longest_s < 0.5 + LATE_S
    assert outcome["longest_s"] < 0.5 + LATE_S
    assert outcome["right"] < count / 4  # some damaged answers are right still
    grader.symbolic.timeout_s = 600.0
    assert grader(r"\sqrt{289}", "17") is True
    grader.close()


def test_the_responses_depend_on_the_seed_alone() -> None:
    fuzz = load_script()
    assert list(fuzz.hostile_responses(3, 40)) == list(fuzz.hostile_responses(3, 40))
    assert list(fuzz.hostile_responses(3, 40)) != list(fuzz.hostile_responses(4, 40))
