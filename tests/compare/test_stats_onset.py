"""The onset of faster growth: found where it is planted, and seldom where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.compare.stats.onset import FEWEST_POINTS, growth_onset

# The committed runs of kl_monitoring scatter by 15 to 17% around smooth curves, with a memory of -0.2 to +0.1 from one
# step to the next; here it is 17% and 0.3.
SCATTER, MEMORY = 0.17, 0.3
STEPS = 60


def noisy(curve: NDArray[np.float64], count: int, seed: int) -> NDArray[np.float64]:
    """Return so many rows of a curve [n] with multiplicative AR(1) noise, shape [count, n]."""
    noise = np.random.default_rng(seed).standard_normal((count, len(curve)))
    for place in range(1, len(curve)):
        noise[:, place] = MEMORY * noise[:, place - 1] + np.sqrt(1 - MEMORY**2) * noise[:, place]
    return curve * np.exp(SCATTER * noise)


def test_a_planted_break_is_found_without_noise() -> None:
    values = [0.001 * step if step <= 30 else 0.03 + 0.004 * (step - 30) for step in range(STEPS)]
    found = growth_onset(range(STEPS), values)
    assert found is not None
    assert (found.step, found.before, found.after) == (30, pytest.approx(0.001), pytest.approx(0.004))
    assert found.p == pytest.approx(1 / 200)  # the least of 199 draws


@pytest.mark.parametrize(
    "values",
    [
        [0.001 * step for step in range(STEPS)],
        [0.001 * step**2 for step in range(STEPS)],
        [0.1 * float(np.expm1(0.05 * step)) for step in range(STEPS)],
        [0.1 * (1 - float(np.exp(-0.1 * step))) for step in range(STEPS)],
        [0.0] * STEPS,
        [0.004 * min(step, 30) + 0.001 * max(0, step - 30) for step in range(STEPS)],  # slower after the break
        [0.001 * step if step <= 8 else 0.01 * step for step in range(FEWEST_POINTS - 1)],  # too few points
    ],
)
def test_smooth_curves_have_no_onset(values: list[float]) -> None:
    assert growth_onset(range(len(values)), values) is None


def test_false_alarms_are_few() -> None:
    """Linear growth without a break, 200 series: at most 5% may be called an onset."""
    rows = noisy(np.arange(STEPS) / STEPS, 200, seed=1)
    alarms = sum(growth_onset(range(STEPS), row.tolist()) is not None for row in rows)
    assert alarms <= 10


def test_a_fourfold_slope_at_half_is_found() -> None:
    """60 series: in at least 80%, within a tenth of the steps."""
    half = STEPS / 2
    steps = np.arange(STEPS)
    rows = noisy(np.where(steps <= half, steps, half + 4 * (steps - half)) / STEPS, 60, seed=2)
    onsets = [growth_onset(range(STEPS), row.tolist()) for row in rows]
    assert sum(onset is not None and abs(onset.step - half) <= 0.1 * STEPS for onset in onsets) >= 48


def test_long_series_are_averaged() -> None:
    """2,400 steps are looked at as 240 points of 10: the break is found to within one of them."""
    values = [0.001 * step if step <= 1200 else 1.2 + 0.004 * (step - 1200) for step in range(2400)]
    found = growth_onset(range(2400), values)
    assert found is not None
    assert abs(found.step - 1200) <= 10
    assert found.after == pytest.approx(0.004, rel=0.01)
