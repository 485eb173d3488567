"""The page on verdicts shows the rates that were measured."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "measured" / "verdict_rates.json").read_text())
ROWS = {table["name"]: table["rows"] for table in MEASURED["tables"]}


def _rate(cell: dict[str, float]) -> float:
    return cell["hits"] / cell["trials"]


def _row(table: str, *begins: str) -> list[float]:
    (row,) = [row for row in ROWS[table] if tuple(row[: len(begins)]) == begins]
    return [_rate(cell) for cell in row[len(begins) :]]


def test_the_page_shows_the_measured_rates() -> None:
    page = " ".join((DOCS / "measuring.md").read_text().split())
    alarms = [_rate(row[3]) for row in ROWS["family"]]
    coverage = {row[0]: [_rate(cell) for cell in row[1:]] for row in ROWS["coverage"]}
    rates = [rate for of_noise in coverage.values() for rate in of_noise]
    assert f"in {min(alarms):.1%} to {max(alarms):.1%} of experiments" in page
    assert f"| {min(rates):.1%} to {max(rates):.1%}; below 95% only where blocks correlate by 0.5 |" in page
    assert [noise for noise, of_noise in coverage.items() if min(of_noise) < 0.95] == ["AR(1) 0.5 from block to block"]
    assert len(coverage) == 10

    ten = {row[0]: _rate(row[3]) for row in ROWS["power"]}
    assert (
        f"{ten['launches, sd 3%']:.0%} with a spread of 3% between blocks, "
        f"{ten['AR(1) 0.3 from step to step']:.0%} and {ten['AR(1) 0.8 from step to step']:.0%} "
        "where steps correlate by 0.3 and 0.8, "
        f"{ten['the same, turns by step']:.0%} where the arms take turns by step, "
        f"{ten['bursts of 6 steps, up to 4 times']:.0%} in bursts of load"
    ) in page
    seen = {tuple(row[:2]): row[4] for row in ROWS["seen"]}
    step, stage = ([seen[what, spread] for spread in ("1%", "3%", "5%")] for what in (
        "the step of one arm", "one of six stages, the step is not"
    ))  # fmt: skip
    assert f"{step[0]}, {step[1]} and {step[2]} of a step with a spread of 1%, 3% and 5% between blocks" in page
    assert f"of one of six stages {stage[0]}, {stage[1]} and {stage[2]}" in page

    worse = {change: _row("gate", "launches, sd 3%", "10", change)[0] for change in ("+0%", "+5%", "+10%", "+15%")}
    assert worse["+0%"] == 0.0
    assert f"{worse['+5%']:.1%} at +5%, {worse['+10%']:.0%} at +10%, {worse['+15%']:.0%} at +15%" in page
    one, three, five = (_row("occasions", occasions, "1%")[1:3] for occasions in ("1", "3", "5"))
    assert f"in {five[0]:.0%} and {five[1]:.0%} (with three occasions {three[0]:.0%} and {three[1]:.0%};" in page
    assert one == [0.0, 0.0]
