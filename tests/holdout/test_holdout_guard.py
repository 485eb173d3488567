"""The simulator predicts the recorded runs no worse than it did; the committed examination is what comes out now."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.holdout.__main__ import main
from tests.holdout.plan import load_plan
from tests.holdout.report import as_markdown, in_page
from tests.holdout.summary import load_document

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "measured" / "holdout.json"
ROUNDING = 2e-3
"""Relative: a least-squares fit ends in other last digits on another CPU, and six digits are saved."""


def numbers_of(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a JSON value with its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers_of(item, f"{place}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers_of(item, f"{place}/{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, float(value)


@pytest.mark.slow  # as much as an eighth of the whole default suite
def test_the_simulator_is_no_worse_and_the_committed_figures_come_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One examination of all recorded runs, as the command makes it."""
    monkeypatch.chdir(ROOT)
    kept, page = load_document(KEPT), Path("docs/simulator.md").read_text()
    (tmp_path / "measured").mkdir()
    shutil.copy(KEPT, tmp_path / "measured")
    (tmp_path / "simulator.md").write_text(page)
    assert main(["--docs", str(tmp_path)]) == 0
    made = load_document(tmp_path / "measured" / "holdout.json")
    assert (tmp_path / "measured" / "holdout.md").read_text() == as_markdown(made)
    assert (tmp_path / "simulator.md").read_text() == in_page(page, made)
    figures, before = (dict(numbers_of(document.model_dump(mode="json"))) for document in (made, kept))
    assert figures == pytest.approx(before, rel=ROUNDING, abs=1e-9)


def test_the_committed_page_and_the_docs_show_the_committed_figures() -> None:
    kept = load_document(KEPT)
    assert KEPT.with_suffix(".md").read_text() == as_markdown(kept)
    page = (ROOT / "docs" / "simulator.md").read_text()
    assert in_page(page, kept) == page


def test_the_committed_examination_is_the_planned_one() -> None:
    """It has every tier and arm of the dated plan, against the plan's bounds, and none was left out."""
    kept, plan = load_document(KEPT), load_plan()
    assert [(tier.name, tier.arms, tier.bound) for tier in kept.tiers] == [
        (name, tier.arms, tier.bound) for name, tier in plan.tiers.items()
    ]
    assert (kept.chosen, kept.stage_bound, kept.coverage_bounds) == ("2026-11-21", 0.1, (0.8, 0.97))
    assert {name.partition("/")[0] for name in kept.fitted} == {"calibration"}
    assert {name.partition("/")[0] for name in kept.held_out} == {"holdout"}
    assert [change.arm for change in kept.changes] == ["k4", "nixl"]
