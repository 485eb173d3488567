"""What is said of the arms while blocks come in, when there are enough of them, and how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from harness.compare.endpoint import SECONDS_PER_STEP, WEIGHT_SYNC_SECONDS, endpoint_of
from harness.core.trace import Stage
from harness.results import Manifest, RunFolder
from harness.run.blocks import BlockTimes, BlockWatch, earlier_block_seconds
from harness.scenario.axes import expand
from harness.scenario.load import resolved_yaml
from tests.run.conftest import Load

Make = Callable[..., RunFolder]


class Blocks:
    """An experiment whose blocks come in one by one, and who watches it."""

    def __init__(self, make_run: Make, tmp_path: Path, watch: BlockWatch, experiment: str = "20261120-111500") -> None:
        self._make_run, self.watch, self._done, self._experiment = make_run, watch, 0, experiment
        self.folder = tmp_path / "results" / "sync_k" / experiment

    def make(self, **update_s: float) -> None:
        """Let every arm make four steps of so many seconds in the next block."""
        for arm, seconds in update_s.items():
            settings = f"steps: 4\nmax_lag: 0\nepochs_per_batch: {len(arm)}\n"
            run = {"arm": arm, "block": self._done, "seed": self._done, "settings": settings}
            self._make_run(experiment=self._experiment, stages=(("learner", Stage.UPDATE, seconds),), **run)
        self._done += 1

    def add(self, **update_s: float) -> None:
        self.make(**update_s)
        self.watch.add(self.folder)


def test_the_endpoint_is_judged_over_all_blocks_so_far(make_run: Make, tmp_path: Path) -> None:
    blocks = Blocks(make_run, tmp_path, BlockWatch(3, None))
    for log_ratio in (0.0, 0.02):
        blocks.add(a=1.0, b=exp(log_ratio))
    ((base, arm, effect),) = blocks.watch.standings
    assert (base, arm, effect.blocks) == ("a", "b", 2)
    assert effect.ratio == pytest.approx(exp(0.01))
    assert endpoint_of(blocks.watch.members) is SECONDS_PER_STEP
    assert not blocks.watch.is_enough
    blocks.add(a=1.0, b=1.0)
    assert blocks.watch.is_enough  # all are made


def test_it_is_enough_when_every_interval_is_narrow_and_never_below_ten_blocks(make_run: Make, tmp_path: Path) -> None:
    narrow, wide = (Blocks(make_run, tmp_path, BlockWatch(40, 0.01), f"20261120-1{n}0000") for n in range(2))
    for block in range(10):
        assert not narrow.watch.is_enough
        narrow.add(a=1.0, bb=1.2 + 0.001 * (block % 2), ccc=1.0 + 0.001 * (block % 2))
    assert narrow.watch.is_enough
    for block in range(11):
        wide.add(a=1.0, bb=1.0 + 0.001 * (block % 2), ccc=1.0 + 0.2 * (block % 2))
    assert not wide.watch.is_enough


def test_the_width_is_that_of_the_endpoint_and_not_of_the_step(make_lagged_run: Make, tmp_path: Path) -> None:
    """A scenario that stops on the interval of its weight syncs must not wait for that of its steps."""
    watch = BlockWatch(40, 0.01)
    for block in range(10):
        for arm, publish_ms in (("nixl", 5.0), ("object_store", 20.0)):
            settings = f"endpoint: weight_sync_seconds\ntransport: {{type: {arm}}}\n"
            make_lagged_run(arm=arm, seed=block, settings=settings, sync_ms=(publish_ms, 10.0, 5.0, 2.0))
        watch.add(next((tmp_path / "results").glob("*/*")))
    assert endpoint_of(watch.members) is WEIGHT_SYNC_SECONDS
    ((_, _, effect),) = watch.standings
    assert effect.ratio == pytest.approx(35 / 20)
    assert watch.is_enough


def test_an_arm_without_figures_has_no_standing(make_run: Make, tmp_path: Path) -> None:
    watch = BlockWatch(3, None)
    assert (watch.standings, watch.headlines, watch.is_enough) == ([], [], False)
    make_run(arm="a", block=0)
    make_run(arm="b", block=0, steps=0, status="failed", error="stopped")
    watch.add(next((tmp_path / "results").glob("*/*")))
    ((_, _, effect),) = watch.standings
    assert (effect.ratio, effect.blocks, watch.is_enough) == (None, 0, False)


def test_a_later_block_that_is_there_already_is_judged_in_its_turn(make_run: Make, tmp_path: Path) -> None:
    blocks, seen = Blocks(make_run, tmp_path, BlockWatch(3, None)), list[int]()
    for _ in range(3):
        blocks.make(a=1.0, b=1.0)
    for _ in range(3):
        blocks.watch.add(blocks.folder)
        seen += [effect.blocks for _, _, effect in blocks.watch.standings]
    assert seen == [1, 2, 3]


def test_the_time_left_comes_from_the_blocks_so_far_without_the_first() -> None:
    """The first block starts Ray and trains the starting policy; the later ones find them there."""
    times = BlockTimes(10, earlier_s=None)
    assert (times.pace_s, times.left_s) == (None, None)
    times.took(90.0)
    assert (times.pace_s, times.left_s) == (90.0, 810.0)  # nothing else is known yet
    times.took(20.0)
    times.took(40.0)
    assert (times.pace_s, times.left_s) == (30.0, 210.0)  # seven blocks of 30 s
    going_on = BlockTimes(10, earlier_s=None)
    for _ in range(4):
        going_on.took(None)  # those that are there already
    assert (going_on.place(), going_on.left_s) == ("block 5 of 10", None)
    going_on.took(30.0)
    assert going_on.left_s == 150.0  # five blocks of 30 s


def test_an_earlier_experiment_tells_the_time_before_the_first_block() -> None:
    times = BlockTimes(10, earlier_s=30.0)
    assert times.left_s == 300.0
    assert times.before().startswith("10 blocks of about 30 s: about 5 min, ")
    assert times.place() == "block 1 of 10, 5 min left"
    times.took(60.0)
    assert times.left_s == 540.0


def test_a_block_took_the_time_between_the_starts_of_neighbours(load: Load, tmp_path: Path) -> None:
    """Blocks began at 11:15, 11:17 and 11:20. Other machines, settings and single blocks tell nothing."""
    variants, home = expand(load("steps: 4\nblocks: 3\narms: {a: {}, b: {group_size: 4}}\n")), tmp_path / "results"
    for variant, minute in zip(variants, (15, 16, 17, 18, 20, 24), strict=True):
        for scenario in ("trial",) if variant.block else ("trial", "cut_short"):
            started = {"scenario": scenario, "experiment": "e", "started_at": f"2026-11-20T11:{minute}:00.000Z"}
            with RunFolder.create(home, scenario, "e", variant.name) as folder:
                about = {"arm": variant.arm, "block": variant.block, "machine": {"fingerprint": "f"}}
                folder.write_manifest(Manifest(**started, **about))
                folder.write_scenario(resolved_yaml(variant.scenario))
                folder.finish("completed", None, {})
    now = [variant for variant in variants if variant.block == 0]
    longer = [replace(each, scenario=each.scenario.model_copy(update={"steps": 5})) for each in now]
    assert earlier_block_seconds(home / "trial", now, "f") == 150.0
    assert earlier_block_seconds(home / "trial", now, "another") is None
    assert earlier_block_seconds(home / "trial", longer, "f") is None
    assert earlier_block_seconds(home / "cut_short", now, "f") is None
    assert earlier_block_seconds(home / "none", now, "f") is None
