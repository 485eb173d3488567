"""Collectives between ranks are timed as calibration reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.simulate.calibrate.collective_times import time_collectives
from harness.simulate.calibrate.exchange import CollectiveTimes, find_collectives, fit_collectives, save_collectives
from tests.rank_pool import RankPool

SIZES = (2**10, 2**20)


def timed(rank: int) -> list[dict[str, Any]]:
    return time_collectives(2, repeats=4, sizes=SIZES)


def test_two_ranks_time_every_collective_at_every_size(rank_pool: RankPool, tmp_path: Path) -> None:
    times, _ = rank_pool.run(2, timed)
    names = ("all_reduce", "all_gather", "reduce_scatter")
    assert [(row["name"], row["bytes"]) for row in times] == [(name, size) for size in SIZES for name in names]
    assert all(len(row["seconds"]) == 4 and min(row["seconds"]) > 0 for row in times)
    measured = CollectiveTimes("0123456789ab", {"torch": "2.13.0"}, "cpu", 2, times)
    save_collectives(measured, tmp_path / "collectives" / "now")
    (found,) = find_collectives([tmp_path])
    assert found == measured
    costs = fit_collectives([found])
    assert sorted(cost.stage for cost in costs) == sorted(names)
    assert all(cost.where == {"device": "cpu", "link": "machine"} for cost in costs)
    assert all(sum(cost.seconds.values()) > 0 for cost in costs)


def test_a_file_that_holds_no_collectives_is_named(tmp_path: Path) -> None:
    (tmp_path / "collectives.json").write_text('{"schema": "harness.collectives", "schema_version": 9}')
    with pytest.raises(UserError, match="of another version than 1"):
        find_collectives([tmp_path])
    (tmp_path / "collectives.json").write_text("[]")
    with pytest.raises(UserError, match="it is damaged"):
        find_collectives([tmp_path])
