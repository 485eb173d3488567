"""The page on verdicts shows the rates that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "measured" / "verdict_rates.json").read_text())
TABLES = {table["name"]: table for table in MEASURED["tables"]}


@pytest.mark.parametrize("table", ["family", "occasions", "coverage"])
def test_the_page_shows_the_measured_rates(table: str) -> None:
    page = (DOCS / "measuring.md").read_text()
    for row in TABLES[table]["rows"]:
        shown = [cell for cell in row if isinstance(cell, dict)]
        shown = shown[1:] if table == "family" else shown  # the page leaves out the rate without the threshold
        words = [
            f"{cell['hits'] / cell['trials']:.1%} ({100 * cell['low']:.1f} to {100 * cell['high']:.1f})"
            for cell in shown
        ]
        assert f"| {' | '.join(words)} |" in page
