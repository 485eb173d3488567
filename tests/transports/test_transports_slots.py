"""Places for published versions: reused when nobody needs them, and never sooner."""

from __future__ import annotations

import itertools

import pytest
import torch

from harness.transports.bucket import BucketLayout
from harness.transports.slots import CopiedWeights, Slots


class Shelf:
    """A place that keeps a diary of what happens to all places."""

    def __init__(self, number, diary, layout):
        self.number, self.diary, self.layout, self.views = number, diary, layout, {}
        diary.append(f"make {number}")

    def fill(self, weights, version):
        self.diary.append(f"fill {self.number} with {version}")

    def close(self):
        self.diary.append(f"close {self.number}")


def shelves(**options):
    diary, numbers = [], itertools.count()
    return Slots(lambda weights, layout: Shelf(next(numbers), diary, layout), **options), diary


SMALL, LARGE = {"w": torch.zeros(2)}, {"w": torch.zeros(3)}


def test_a_place_is_reused_once_its_version_is_not_needed():
    slots, diary = shelves()
    slots.put(SMALL, 0, frozenset())
    slots.put(SMALL, 1, frozenset({0}))
    slots.put(SMALL, 2, frozenset({1}))
    slots.put(SMALL, 3, frozenset({1, 2}))
    slots.put(SMALL, 4, frozenset({3}))
    assert diary == [
        *("make 0", "fill 0 with 0"),
        *("make 1", "fill 1 with 1"),
        "fill 0 with 2",
        *("make 2", "fill 2 with 3"),
        "fill 0 with 4",  # the places of 1 and 2 are free; the one freed last is the warmest
    ]
    assert len(slots) == 3


def test_there_are_never_more_places_than_versions_needed_at_once_and_one():
    slots, _ = shelves()
    for version in range(50):
        needed = 3 if version % 7 == 0 else version % 3
        slots.put(SMALL, version, frozenset(range(version - needed, version)))
    assert len(slots) == 4


def test_places_made_at_first_are_filled_at_once():
    slots, diary = shelves(at_first=3)
    slots.put(SMALL, 0, frozenset())
    slots.put(SMALL, 1, frozenset({0}))
    slots.put(SMALL, 2, frozenset({0, 1}))
    assert diary == [
        *("make 0", "fill 0 with 0", "make 1", "fill 1 with 0", "make 2", "fill 2 with 0"),
        "fill 2 with 1",
        "fill 1 with 2",
    ]


def test_free_places_of_another_layout_are_closed():
    slots, diary = shelves()
    slots.put(SMALL, 0, frozenset())
    slots.put(SMALL, 1, frozenset({0}))
    diary.clear()
    slots.put(LARGE, 2, frozenset({1}))
    assert diary == ["close 0", "make 2", "fill 2 with 2"]
    assert len(slots) == 2


def test_a_version_that_is_not_held_is_named():
    slots, _ = shelves()
    slots.put(SMALL, 4, frozenset())
    slots.put(SMALL, 5, frozenset({4}))
    assert [version in slots for version in (3, 4, 5)] == [False, True, True]
    with pytest.raises(ValueError, match=r"version 3 is not held; versions \[4, 5\] are"):
        slots[3]


def test_a_version_is_published_once():
    slots, _ = shelves()
    slots.put(SMALL, 4, frozenset())
    with pytest.raises(ValueError, match="version 4 is published already"):
        slots.put(SMALL, 4, frozenset())


def test_closing_closes_every_place():
    slots, diary = shelves(at_first=3)
    slots.put(SMALL, 0, frozenset())
    slots.put(SMALL, 1, frozenset({0}))
    diary.clear()
    slots.close()
    assert sorted(diary) == ["close 0", "close 1", "close 2"]  # two are held, one is free
    assert len(slots) == 0


@pytest.mark.parametrize(("flatten", "moved"), [(True, [(72,)]), (False, [(2, 1), (2,)])])
def test_a_copy_moves_as_one_buffer_or_as_its_tensors(flatten, moved):
    weights = {"a": torch.tensor([[1.0], [2.0]]), "none": torch.empty(0), "b": torch.tensor([3.0, 4.0])}
    copied = CopiedWeights(weights, BucketLayout.of(weights), flatten)
    copied.fill(weights, 0)
    weights["a"].zero_()
    # flat: a takes bytes 0 to 8, b starts at 64 and takes 8
    assert [tuple(tensor.shape) for tensor in copied.tensors] == moved
    assert {name: tensor.tolist() for name, tensor in copied.views.items()} == {
        "a": [[1.0], [2.0]],
        "none": [],
        "b": [3.0, 4.0],
    }
