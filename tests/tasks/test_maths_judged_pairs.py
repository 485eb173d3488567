"""Answers judged by hand: what the set holds, and what the grader says of it.

Each line of the file is an answer as a model may write it, the truth, and whether a person calls it right. Every second
pair of each shape is fixed: its verdicts were never looked at one by one while the grader was written.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

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
