"""Student's t, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare import Variant, gather
from harness.compare.figures import RunFigures
from harness.compare.pairs import Difference, paired_difference, t_quantile
from harness.results import RunFolder

Make = Callable[..., RunFolder]


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # two-sided 95%: https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm, column 0.975
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (100, 1.984)],
)
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, abs=0.0005)


def test_one_and_two_degrees_have_closed_quantiles() -> None:
    assert t_quantile(0.5, 1) == pytest.approx(1.0, abs=1e-9)  # Cauchy: tan(pi / 4)
    # for 2 degrees t = a sqrt(2 / (1 - a^2)) with a = P(|T| <= t): 0.8 sqrt(2 / 0.36)
    assert t_quantile(0.8, 2) == pytest.approx(0.8 * math.sqrt(2 / 0.36), abs=1e-9)


def _variants(make_run: Make, tmp_path: Path, rewards: dict[str, dict[int, float]]) -> list[Variant]:
    for arm, by_seed in rewards.items():
        for seed, reward in by_seed.items():
            make_run(arm=arm, point={"seed": seed}, seed=seed, evaluations={4: (reward, 12.0)})
    (campaign,), _ = gather([tmp_path / "results"])
    return list(campaign.variants)


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
