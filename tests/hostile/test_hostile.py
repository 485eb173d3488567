"""Hostile inputs: what once failed, every crafted one, and some that are drawn. ``make fuzz`` draws for longer."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from harness.core.errors import UserError
from tests.hostile.__main__ import crafted_cases, document_cases, tried
from tests.hostile.crafted import crafted
from tests.hostile.documents import VALUES, each_place, places, with_homoglyph, with_value, without
from tests.hostile.fuzz import CORPUS, draw, reads
from tests.hostile.outcome import BAD, HANG, REFUSED, SILENT, TRACEBACK, UNCLEAR, Count, met
from tests.hostile.targets import Target, targets

TARGETS = targets()
UNHURRIED_S = 20.0
"""The default suite asserts no speed: ``python -m tests.hostile`` does."""
CHEAP = [name for name in TARGETS if name != "grader"]


def badly_met(cases) -> list[str]:
    """Return the names of the cases that were met with anything but acceptance or one clear error."""
    return [f"{name}: {outcome.kind}\n{outcome.said}" for name, outcome in tried("", cases).bad]


def test_what_once_failed() -> None:
    kept = sorted(path for path in CORPUS.rglob("*") if path.is_file())
    outcomes = {path: reads(TARGETS[path.parent.name], path.read_bytes()) for path in kept}
    assert {path: found.said for path, found in outcomes.items() if found.kind in BAD} == {}


@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_crafted_inputs(is_large: bool) -> None:
    chosen = [item for item in crafted() if (item.limit_s >= UNHURRIED_S) is is_large]
    assert badly_met(crafted_cases(chosen, UNHURRIED_S)) == []


@pytest.mark.parametrize("name", [name for name in CHEAP if TARGETS[name].documents])
def test_some_values_at_some_places(name: str) -> None:
    assert badly_met(islice(document_cases(TARGETS[name], UNHURRIED_S), 7, None, 211)) == []


@pytest.mark.parametrize("name", CHEAP)
def test_some_drawn_files(name: str) -> None:
    counted = Count(name)
    smallest = draw(TARGETS[name], 5, 1, counted.note)
    assert smallest is None, reads(TARGETS[name], smallest)
    assert counted.kinds.total() >= 5


# ---- the tool itself


def raises(error: BaseException) -> None:
    raise error


def test_how_inputs_are_met() -> None:
    refused = UserError("it is 3", "here", "write 4")
    assert met(lambda: raises(refused)).kind == REFUSED
    assert [met(lambda: raises(refused), names=name).kind for name in ("3", "here", "5")] == [REFUSED, REFUSED, UNCLEAR]
    assert met(lambda: raises(ValueError("x"))).kind == TRACEBACK
    assert met(lambda: raises(RecursionError("x"))).kind == TRACEBACK
    assert met(lambda: raises(UserError(" "))).kind == UNCLEAR
    assert met(lambda: raises(UserError("x\n" * 5000))).kind == UNCLEAR
    assert met(lambda: None, must_refuse=True).kind == SILENT
    assert met(lambda: sum(range(10**6)), limit_s=1e-6).kind == HANG
    with pytest.raises(KeyboardInterrupt):
        met(lambda: raises(KeyboardInterrupt()))


def test_values_are_put_at_every_place() -> None:
    document = {"steps": 1, "kl": {"on": [True, False]}}
    assert list(places(document)) == [("steps",), ("kl",), ("kl", "on"), ("kl", "on", 0)]
    assert with_value(document, ("kl", "on", 0), "1e400") == '{"steps": 1, "kl": {"on": [1e400, false]}}'
    assert without(document, ("kl", "on")) == '{"steps": 1, "kl": {}}'
    assert with_homoglyph(document, ("steps",)) == '{"kl": {"on": [true, false]}, "st\u0435ps": 1}'
    tried = [(where, name) for where, name, _ in each_place(document)]
    assert tried.count(("kl.on.0", "400 digits")) == 1
    assert len(tried) == 4 * (len(VALUES) + 1) + len(["steps", "kl.on"])


def test_the_fuzzer_finds_and_shrinks_a_planted_bug() -> None:
    """A reader that takes every number but those of more than 100 digits."""

    def reader(data: bytes, folder: Path) -> None:
        if b"0" * 100 in data:
            raise OverflowError("int too large to convert to float")

    smallest = draw(Target(reader, {"row": {"a": 1, "b": {"c": 2}}}, ()), 500, 0, lambda data, outcome: None)
    assert smallest is not None
    assert b"0" * 100 in smallest
    assert len(smallest) < 440
