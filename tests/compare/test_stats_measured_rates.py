"""The committed rates of verdicts keep what is promised, and the page that shows them shows these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "measured" / "verdict_rates.json").read_text())
TABLES = {table["name"]: table for table in MEASURED["tables"]}


def share(cell: dict[str, Any]) -> float:
    return cell["hits"] / cell["trials"]


def rows(table: str, *first: str) -> list[list[Any]]:
    """The rows of a table that begin with these cells."""
    found = [row for row in TABLES[table]["rows"] if row[: len(first)] == list(first)]
    assert found
    return found


def test_each_rate_is_of_four_thousand_experiments() -> None:
    cells = [cell for table in TABLES.values() for row in table["rows"] for cell in row if isinstance(cell, dict)]
    assert {cell["trials"] for cell in cells} == {1000, 4000}  # the power beside the family errors is of a quarter
    assert sum(cell["trials"] == 1000 for cell in cells) == len(TABLES["family"]["rows"])


@pytest.mark.parametrize("arms", ["2", "4", "8"])
def test_any_false_difference_is_found_in_five_percent_at_most(arms: str) -> None:
    for _, _, _, different, _ in rows("family", arms):
        assert different["low"] <= 0.05


def test_the_gate_says_worse_at_three_percent_and_fine_at_six_as_rarely_as_promised() -> None:
    gate = TABLES["gate"]["rows"]
    assert all(worse["low"] <= 0.05 for _, _, truth, worse, _, _ in gate if truth in ("+0%", "+3%"))
    assert all(share(fine) <= 0.02 for _, _, truth, _, fine, _ in gate if truth == "+6%")


def test_a_baseline_is_different_from_itself_in_five_percent_at_most() -> None:
    assert all(row[2]["low"] <= 0.05 for row in TABLES["occasions"]["rows"])
    assert all(share(row[2]) == 0 for row in rows("occasions", "1"))


def test_fifteen_percent_is_seen_against_five_occasions_that_spread_by_two() -> None:
    ((*_, seen),) = rows("occasions", "5", "2%")
    assert share(seen) >= 0.8


def test_intervals_hold_the_truth_in_93_percent_at_least() -> None:
    for _, *cells in TABLES["coverage"]["rows"]:
        assert [cell["trials"] for cell in cells] == [4000] * 5
        assert min(map(share, cells)) >= 0.93


@pytest.mark.parametrize("table", ["family", "occasions", "coverage"])
def test_the_page_shows_the_measured_rates(table: str) -> None:
    page = (DOCS / "measuring.md").read_text()
    for row in TABLES[table]["rows"]:
        shown = [cell for cell in row if isinstance(cell, dict)]
        shown = shown[1:] if table == "family" else shown  # the page leaves out the rate without the threshold
        words = [f"{share(cell):.1%} ({100 * cell['low']:.1f} to {100 * cell['high']:.1f})" for cell in shown]
        assert f"| {' | '.join(words)} |" in page
