"""Tracks as Chrome's JSON: slices on rows where none crosses another, begins and ends as a stack, exact times."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from harness.report.trace.chrome import Slice, TraceWriter, Track, without_crossings
from tests.stand_ins.trace_reader import ReadTrace, read_trace


def a_slice(start_ns: int, end_ns: int, name: str = "work") -> Slice:
    return Slice(start_ns, end_ns, name, "stage")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], [[]]),
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
    rows = without_crossings(a_slice(*each) for each in times)

    assert [[item[:2] for item in row if isinstance(item, Slice)] for row in rows] == expected


def written(path: Path, *tracks: Track, process: str = "run") -> ReadTrace:
    with path.open("wb") as stream, TraceWriter(stream) as writer:
        writer.write(process, tracks)
    return read_trace(path)


def test_a_trace_is_what_the_format_asks_for(tmp_path: Path) -> None:
    outer = Slice(1, 2_000_001, "outer", "stage,warmup", {"step": 3}, (("rollouts", 1, "s"),))
    inner = Slice(1, 1501, "inner", "wait", {}, (("rollouts", 1, "f"),))
    learner = Track("learner", [inner, outer], flags=[Slice(1501, 1501, "now", "version")])
    path = tmp_path / "t.json"

    with path.open("wb") as stream, TraceWriter(stream) as writer:
        writer.write("run", [learner, Track("speed", samples=[(7, 0.5)], unit="tokens/s")])

    place, arrow_facts = {"pid": 1, "tid": 2}, {"name": "rollouts", "cat": "arrow", "id": (1 << 32) + 1, "bp": "e"}
    assert json.loads(path.read_bytes()) == {
        "displayTimeUnit": "ns",
        "traceEvents": [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "run"}},
            {"ph": "M", "pid": 1, "name": "process_sort_index", "args": {"sort_index": 1}},
            {"ph": "M", **place, "name": "thread_name", "args": {"name": "learner"}},
            {"ph": "M", **place, "name": "thread_sort_index", "args": {"sort_index": 0}},
            {"ph": "B", **place, "ts": 0.001, "name": "outer", "cat": "stage,warmup", "args": {"step": 3}},
            {"ph": "s", **place, "ts": 0.001, **arrow_facts},  # before the next begin: it is the outer slice's
            {"ph": "B", **place, "ts": 0.001, "name": "inner", "cat": "wait"},
            {"ph": "f", **place, "ts": 0.001, **arrow_facts},
            {"ph": "E", **place, "ts": 1.501},
            {"ph": "E", **place, "ts": 2000.001},
            {"ph": "i", **place, "ts": 1.501, "name": "now", "cat": "version", "s": "t"},
            {"ph": "C", "pid": 1, "ts": 0.007, "name": "speed", "args": {"tokens/s": 0.5}},
        ],
    }
    assert [writer.counts[phase] for phase in "BiCf"] == [2, 1, 1, 1]


@pytest.mark.parametrize("at_ns", [1, 999, 1_000_001, 86_400_123_456_789, 100 * 86_400_000_000_000 + 1])
def test_a_nanosecond_is_kept_over_a_hundred_days(at_ns: int, tmp_path: Path) -> None:
    track = Track("learner", [a_slice(at_ns, at_ns + 1)])

    assert [item[2:4] for item in written(tmp_path / "t.json", track).slices] == [(at_ns, at_ns + 1)]


@pytest.mark.parametrize("seed", range(50))
def test_any_set_of_slices_comes_back_from_its_rows(seed: int, tmp_path: Path) -> None:
    """One slice may end where the next one begins, and they may be more than are written at once."""
    numbers = random.Random(seed)
    starts = [numbers.randrange(40) for _ in range(1000 if seed == 0 else 30)]
    slices = [a_slice(start, start + numbers.randrange(12), f"s{number}") for number, start in enumerate(starts)]

    trace = written(tmp_path / "t.json", Track("learner", slices))

    assert Counter(item[1:4] for item in trace.slices) == Counter((item.name, *item[:2]) for item in slices)


def test_text_of_a_run_is_plain_and_not_too_long(tmp_path: Path) -> None:
    track = Track("la\x1bne", [Slice(0, 1, "na\nme", "stage", {"wh\u202ey": "x" * 500})])

    trace = written(tmp_path / "t.json", track, process="r\ud800un")

    [item] = trace.slices
    assert item[:2] == ((r"r\ud800un", r"la\x1bne"), r"na\nme")
    assert {name: len(value) for name, value in item.arguments.items()} == {r"wh\u202ey": 400}
