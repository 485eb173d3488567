"""Answers judged by hand: what the set holds, and what the grader says of it.

Each line of the file is an answer as a model may write it, the truth, and whether a person calls it right. Every second
pair of each shape is fixed: its verdicts were never looked at one by one while the grader was written.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.tasks.maths.answers import agree_exactly
from harness.tasks.maths.reward import REWARD_FUNCTIONS
from harness.tasks.maths.symbolic import AnswerGrader

PAIRS_FILE = Path(__file__).parents[1] / "data" / "maths" / "judged_pairs.jsonl"
PAIRS: list[dict[str, Any]] = [json.loads(line) for line in PAIRS_FILE.read_text(encoding="utf-8").splitlines()]


def test_the_set_is_large_of_many_shapes_and_half_of_it_wrong() -> None:
    assert len(PAIRS) == 2322
    assert sum(not pair["right"] for pair in PAIRS) == 1187
    shapes = Counter(pair["shape"] for pair in PAIRS)
    assert len(shapes) == 44
    assert min(shapes.values()) >= 20


def test_no_pair_comes_twice() -> None:
    assert len({(pair["written"], pair["truth"], pair.get("prompt")) for pair in PAIRS}) == len(PAIRS)


def test_every_second_pair_of_each_shape_is_fixed() -> None:
    place: Counter[str] = Counter()
    for pair in PAIRS:
        place[pair["shape"]] += 1
        assert pair["fixed"] is (place[pair["shape"]] % 2 == 0)


def test_what_is_told_without_algebra_is_told_right() -> None:
    """Of the answers alone; verdicts of the fixed half are only counted."""
    told = [(pair, agree_exactly(pair["written"], pair["truth"])) for pair in PAIRS if "prompt" not in pair]
    assert [pair for pair, verdict in told if verdict is True and not pair["right"]] == []
    assert sum(verdict is not None for _, verdict in told) > 1500
    refused = [pair for pair, verdict in told if verdict is False and pair["right"]]
    assert [pair for pair in refused if not pair["fixed"]] == []
    assert len(refused) < 0.02 * sum(pair["right"] for pair, _ in told)


@pytest.fixture(scope="module")
def misjudged() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the wrong pairs that the grader accepts, and the right ones that it rejects."""
    grader = AnswerGrader(600.0)
    rewards = {
        place: REWARD_FUNCTIONS[pair.get("prompt", "r1_zero")](
            pair["written"] if "prompt" in pair else f"</think> <answer>{pair['written']}</answer>",
            pair["truth"],
            agree=grader,
        )["reward"]
        for place, pair in enumerate(PAIRS)
    }
    grader.close()
    wrong = [pair for place, pair in enumerate(PAIRS) if (rewards[place] == 1.0) is not pair["right"]]
    return [pair for pair in wrong if not pair["right"]], [pair for pair in wrong if pair["right"]]


@pytest.mark.slow
def test_no_wrong_pair_is_accepted(misjudged: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """Before, 37 of the half that is not fixed and 43 of the fixed half were."""
    assert misjudged[0] == []


@pytest.mark.slow
def test_less_than_two_percent_of_the_right_pairs_are_rejected(
    misjudged: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    """Before, 123 of the half that is not fixed and 121 of the fixed half were: 21.5 %."""
    of_the_fixed_half = sum(pair["fixed"] for pair in misjudged[1])
    assert len(misjudged[1]) == of_the_fixed_half
    assert of_the_fixed_half < 0.02 * sum(pair["right"] and pair["fixed"] for pair in PAIRS)
