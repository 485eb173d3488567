"""Arrows: which span made which possible, drawn only where step, version and time leave no doubt."""

from __future__ import annotations

import random

import pytest

from harness.core.trace import Span, Stage
from harness.report.trace.flows import arrows, chains


def spans(text: str) -> list[Span]:
    """Return spans written as ``lane stage start end step version``."""
    words = (each.split() for each in text.split("|"))
    return [Span(lane, Stage(stage), *map(int, numbers)) for lane, stage, *numbers in words]


ONE_STEP = spans(
    "learner weight_publish 0 2 0 0 | generator weight_transfer 2 3 0 0 | generator weight_load 3 4 0 0 |"
    "generator generate 5 9 0 0 | scorer score 9 10 0 0 | learner update 11 19 0 0 |"
    "learner weight_publish 20 22 1 1 | generator weight_transfer 22 23 1 1 | generator weight_load 23 24 1 1 |"
    "generator evaluate 24 30 1 1"
)
ITS_CHAINS = {"rollouts": [[3, 4, 5]], "weights": [[0, 2, 3], [5, 6, 8, 9]]}


def linked(spans: list[Span], batches_stay_whole: bool = True) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for name, chain in chains(spans, batches_stay_whole):
        found.setdefault(name, []).append(chain)
    return found


def test_a_step_of_a_synchronous_run_is_one_story_whatever_the_order_of_the_file() -> None:
    assert linked(ONE_STEP) == ITS_CHAINS
    order = random.Random(0).sample(range(len(ONE_STEP)), len(ONE_STEP))
    shuffled = linked([ONE_STEP[place] for place in order])
    assert {name: [[order[at] for at in chain] for chain in found] for name, found in shuffled.items()} == ITS_CHAINS


def test_arrows_are_numbered_and_each_begins_and_ends_once() -> None:
    stops = {place: {(name, phase) for name, _, phase in found} for place, found in arrows(ONE_STEP, True).items()}

    assert stops == {
        0: {("weights", "s")},
        2: {("weights", "t")},
        3: {("weights", "f"), ("rollouts", "s")},  # the way of version 0 ends here, the rollouts begin here
        4: {("rollouts", "t")},
        5: {("rollouts", "f"), ("weights", "s")},
        6: {("weights", "t")},
        8: {("weights", "t")},
        9: {("weights", "f")},
    }
    assert {number for found in arrows(ONE_STEP, True).values() for _, number, _ in found} == {1, 2, 3}
    assert arrows(ONE_STEP[3:5], True) == {0: [("rollouts", 1, "s")], 1: [("rollouts", 1, "f")]}


def test_where_stale_rollouts_are_dropped_no_arrow_claims_which_update_took_them() -> None:
    assert linked(ONE_STEP, batches_stay_whole=False)["rollouts"] == [[3, 4]]


CASES: dict[str, tuple[str, dict[str, list[list[int]]]]] = {
    "shards of a step are scored in the order in which they end": (
        "generator0 generate 0 9 4 4 | generator1 generate 0 5 4 4 |"
        "scorer score 10 11 4 4 | scorer score 11 12 4 4 | learner update 12 20 4 4",
        {"rollouts": [[1, 2, 4], [0, 3, 4]]},
    ),
    "of attempts on parts that died the last one counts": (
        "generator generate 0 4 0 0 | generator generate 6 9 0 0 | scorer score 10 11 0 0",
        {"rollouts": [[1, 2]]},
    ),
    "rollouts that nobody scored": ("generator generate 0 4 0 0", {}),
    "scores of rollouts that nobody generated": ("scorer score 0 4 0 0", {}),
    "each Generator takes a version along its own arrow, to the first use of it": (
        "learner update 0 10 2 2 | learner weight_publish 11 12 3 3 | generator1 weight_load 13 14 3 3 |"
        "generator0 weight_load 15 16 3 3 | generator0 generate 17 20 4 3 | generator0 generate 21 25 5 3",
        {"weights": [[0, 1, 2], [0, 1, 3, 4]]},
    ),
    "weights that arrive during a batch lead to the next one": (
        "learner weight_publish 0 1 1 1 | generator generate 0 10 1 0 |"
        "generator weight_load 4 5 1 1 | generator generate 11 20 2 1",
        {"weights": [[0, 2, 3]]},
    ),
    "a version that nobody took": ("learner update 0 10 2 2 | learner weight_publish 11 12 3 3", {"weights": [[0, 1]]}),
    "an arrow has two ends": ("learner weight_publish 11 12 3 3", {}),
    "an arrow leads forward in time: no load as the publish begins, as on a virtual clock, no score before its batch": (
        "learner update 0 10 0 0 | learner weight_publish 10 10 1 1 | generator weight_load 10 10 1 1 |"
        "generator generate 11 12 1 1 | scorer score 5 6 1 1",
        {"weights": [[0, 1, 3]]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_arrows(case: str) -> None:
    text, expected = CASES[case]
    assert linked(spans(text)) == expected
