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


def test_what_is_told_without_algebra_is_told_right() -> None:
    """Of the answers alone; verdicts of the fixed half are only counted."""
    told = [(pair, agree_exactly(pair["written"], pair["truth"])) for pair in PAIRS if "prompt" not in pair]
    assert [pair for pair, verdict in told if verdict is True and not pair["right"]] == []
    # a pair that is told otherwise, or asks for algebra where it did not, moves one of these
    assert Counter(verdict for _, verdict in told) == {True: 871, False: 699, None: 614}
    refused = [pair for pair, verdict in told if verdict is False and pair["right"]]
    assert [pair for pair in refused if not pair["fixed"]] == []
    assert len(refused) < 0.02 * sum(pair["right"] for pair, _ in told)


@pytest.mark.slow
def test_no_wrong_pair_is_accepted_and_less_than_two_percent_of_the_right_ones_are_rejected() -> None:
    """Rejected are only pairs of the fixed half; before, 21.5 % of the right ones were, and 80 wrong ones accepted."""
    grader = AnswerGrader(600.0)
    misjudged = []
    for pair in PAIRS:
        written = pair["written"] if "prompt" in pair else f"</think> <answer>{pair['written']}</answer>"
        reward = REWARD_FUNCTIONS[pair.get("prompt", "r1_zero")](written, pair["truth"], agree=grader)["reward"]
        if (reward == 1.0) is not pair["right"]:
            misjudged.append(pair)
    grader.close()
    assert [pair for pair in misjudged if not (pair["right"] and pair["fixed"])] == []
    assert len(misjudged) < 0.02 * sum(pair["right"] and pair["fixed"] for pair in PAIRS)
