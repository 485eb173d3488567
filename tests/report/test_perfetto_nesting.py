"""Slices on rows: none lost, none crossing another on its row, begins and ends as a stack in the order of time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from harness.report.trace.events import Slice
from harness.report.trace.nesting import Edge, edges, without_crossings


def a_slice(start_ns: int, end_ns: int, name: str = "work") -> Slice:
    return Slice(start_ns, end_ns, name, ("stage",))


def rows(*times: tuple[int, int]) -> list[list[tuple[int, int]]]:
    found = without_crossings(a_slice(*each) for each in times)
    return [[(item.start_ns, item.end_ns) for item in row] for row in found]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], []),
        ([(0, 5), (5, 9)], [[(0, 5), (5, 9)]]),  # one after the other
        ([(2, 4), (0, 9), (4, 9)], [[(0, 9), (2, 4), (4, 9)]]),  # within, up to its very end
        ([(0, 5), (3, 9)], [[(0, 5)], [(3, 9)]]),  # crossing
        ([(0, 5), (3, 9), (4, 7), (5, 8)], [[(0, 5), (5, 8)], [(3, 9), (4, 7)]]),
        ([(0, 4), (1, 6), (2, 8)], [[(0, 4)], [(1, 6)], [(2, 8)]]),  # each crosses both others
        ([(3, 5), (5, 5), (5, 9)], [[(3, 5), (5, 9), (5, 5)]]),  # without length
    ],
)
def test_crossing_slices_stand_on_rows_of_their_own(
    times: list[tuple[int, int]], expected: list[list[tuple[int, int]]]
) -> None:
    assert rows(*times) == expected


def test_edges_are_a_stack_in_the_order_of_time() -> None:
    outer, inner, later = a_slice(0, 9, "outer"), a_slice(2, 9, "inner"), a_slice(9, 12, "later")

    assert list(edges([outer, inner, later])) == [
        Edge(0, outer),
        Edge(2, inner),
        Edge(9, None),  # of inner
        Edge(9, None),  # of outer
        Edge(9, later),
        Edge(12, None),
    ]


@pytest.mark.parametrize("seed", range(50))
def test_any_set_of_slices_comes_back_from_its_edges(seed: int) -> None:
    numbers = random.Random(seed)
    starts = [numbers.randrange(40) for _ in range(30)]
    slices = [a_slice(start, start + numbers.randrange(12), f"s{number}") for number, start in enumerate(starts)]

    found: Counter[Slice] = Counter()
    for row in without_crossings(slices):
        stack: list[Slice] = []
        before = 0
        for at_ns, opened in edges(row):
            assert at_ns >= before
            before = at_ns
            if opened is None:
                ended = stack.pop()
                assert ended.end_ns == at_ns
                found[ended] += 1
            else:
                stack.append(opened)
        assert not stack

    assert found == Counter(slices)
