"""What is said of the occasions is arithmetic on their runs and forecasts."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from tests.holdout.occasion_scores import (
    ALONE,
    ANCHORED,
    CLOSED,
    CLOSED_ANCHORED,
    PILOT,
    WAYS,
    Row,
    as_markdown,
    load_rows,
    ratio_drift,
    ratios,
    save_rows,
    summaries,
)


def rows() -> list[Row]:
    """Two occasions of two arms in two blocks, whose runs take 1 and 2 s a step; the second occasion is 10% slower."""
    found = []
    for occasion, slower in ((1, 1.0), (2, 1.1)):
        for arm, seconds in (("a", 1.0), ("b", 2.0)):
            for block in (0, 1):
                measured = slower * seconds
                for way, value, half in (
                    (ALONE, 1.2 * seconds, 0.15),
                    (ANCHORED, 1.05 * measured, 0.1),
                    (PILOT, measured, 0.05),
                    (CLOSED, 1.2 * seconds, 0.0),
                    (CLOSED_ANCHORED, measured * (0.9 if arm == "a" else 0.99), 0.0),
                ):
                    ends = (1 - half) * value, (1 + half) * value
                    found.append(Row(occasion, arm, block, way, measured, value, *ends))
    return found


def test_each_way_has_its_errors_and_how_many_runs_its_intervals_hold() -> None:
    found = {each.way: each for each in summaries(rows())}
    assert [each.runs for each in found.values()] == [8] * len(WAYS)
    assert found[ALONE].error == pytest.approx((0.2 + 1.2 / 1.1 - 1) / 2)  # half of the runs at each
    assert found[ALONE].worst == pytest.approx(0.2)
    assert found[ALONE].inside == 0.5  # 1.2 - 15% is more than 1 and less than 1.1
    assert found[ALONE].half_width == pytest.approx(0.15)
    assert (found[ANCHORED].bias, found[ANCHORED].inside) == (pytest.approx(0.05), 1.0)
    assert found[PILOT].error == pytest.approx(0, abs=1e-12)
    assert isnan(found[CLOSED].inside)
    assert found[CLOSED_ANCHORED].bias == pytest.approx(-(0.1 + 0.01) / 2)


def test_a_measured_ratio_that_moves_between_occasions_is_told() -> None:
    """Both arms are 10% slower on the second occasion; then one alone is slower by another 20%."""
    assert ratio_drift(rows()) == pytest.approx(0)
    moved = [
        replace(row, measured_s=1.2 * row.measured_s) if (row.occasion, row.arm) == (2, "a") else row for row in rows()
    ]
    assert ratio_drift(moved) == pytest.approx(1 - 1 / 1.2)
    assert isnan(ratio_drift(row for row in moved if row.arm == "a"))


def test_ratios_are_between_arms_of_one_occasion() -> None:
    assert ratios([row for row in rows() if row.way == ALONE]) == pytest.approx([1, 1])
    assert ratios([row for row in rows() if row.way == CLOSED_ANCHORED]) == pytest.approx([0.9 / 0.99] * 2)


def test_the_page_lists_every_run_and_marks_those_outside() -> None:
    page = as_markdown(rows(), "COMMAND")
    listed = [line for line in page.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert len(listed) == 8
    assert listed[0].startswith("| 1 | a | 0 | 1.000 | 1.200 [1.020, 1.380] * +20% | 1.050 [0.945, 1.155] +5% |")
    assert f"| {ALONE} | 8 | 14.5% | +14.5% | 20.0% | 50.0% | 15.0% | 0.0% |" in page


def test_rows_read_back_as_they_were(tmp_path: Path) -> None:
    assert load_rows(tmp_path / "none.jsonl") == []
    save_rows(rows(), tmp_path / "rows.jsonl")
    assert load_rows(tmp_path / "rows.jsonl") == rows()
