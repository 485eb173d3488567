"""Differences paired by seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare import Variant, gather
from harness.compare.experiments import Difference, paired_difference
from harness.compare.figures import RunFigures
from harness.results import RunFolder

Make = Callable[..., RunFolder]


def _variants(make_run: Make, tmp_path: Path, rewards: dict[str, dict[int, float]]) -> list[Variant]:
    for arm, by_seed in rewards.items():
        for seed, reward in by_seed.items():
            make_run(arm=arm, point={"seed": seed}, seed=seed, evaluations={4: (reward, 12.0)})
    (experiment,), _ = gather([tmp_path / "results"])
    return list(experiment.variants)


def _last(run: RunFigures) -> float | None:
    return run.last.reward if run.last else None


def test_only_seeds_that_both_have_are_paired(make_run: Make, tmp_path: Path) -> None:
    base, other = _variants(
        make_run,
        tmp_path,
        {"a": {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.9}, "b": {0: 0.6, 1: 0.4, 2: 0.8, 7: 0.1}},
    )
    # differences 0.1, -0.1, 0.3: mean 0.1, sd 0.2; 4.302653 * 0.2 / sqrt(3) = 0.496828
    found = paired_difference(base, other, _last)
    assert found is not None
    assert found == Difference(
        pytest.approx(0.1), pytest.approx(-0.396828, abs=1e-6), pytest.approx(0.596828, abs=1e-6), 3
    )


def test_two_pairs_are_too_few(make_run: Make, tmp_path: Path) -> None:
    base, other = _variants(make_run, tmp_path, {"a": {0: 0.5, 1: 0.5, 2: 0.5}, "b": {0: 0.6, 1: 0.4}})
    assert paired_difference(base, other, _last) is None
