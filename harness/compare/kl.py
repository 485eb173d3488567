"""The KL of a policy to its reference: how it grew, when it grew fastest, and whether the reward went along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.compare.learning import evaluations, metric_series
from harness.compare.numbers import number
from harness.results import Run

if TYPE_CHECKING:
    from harness.compare.experiments import Variant

KL_NAMES = ("kl/reference_k3", "kl/reference_k1")  # the first that a run has is described
REFERENCE_NAMES = {
    "frozen": "initial policy",
    "reclone": "re-cloned reference",
    "polyak": "Polyak-averaged reference",
}
"""What the reference policy of each ``loss.kl.reference`` is called in words."""
FEWEST_POINTS, MOST_POINTS = 8, 240
CURVATURES = np.linspace(-8.0, 8.0, 65).tolist()
ALMOST_1 = 1 - 1e-15


Growth = tuple[str, float, float | None]
"""Shape of a series, the share of its variance that this explains, and around which step a curve grows fastest."""


def growth(steps: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Describe how a series grows; None for fewer than ``FEWEST_POINTS`` points or a constant series.

    Least squares of y = a + b (exp(c s) - 1) / c, s running from 0 at the first step to 1 at the last, for c from -8 to
    8; 0 is a line. A bend counts where it leaves at most 90% of the line's squared error; where less than half of the
    variance is explained there is no clear trend. Growth is fastest in the middle of the fifth of the points, and five
    at least, whose least-squares line is steepest.
    """
    if len(values) < FEWEST_POINTS:
        return None
    parts = min(len(values), MOST_POINTS)
    at, y = (np.array([part.mean() for part in np.array_split(np.asarray(x), parts)]) for x in (steps, values))
    s = (at - at[0]) / (at[-1] - at[0])
    with np.errstate(all="ignore"):
        explained = {c: float(np.corrcoef(np.expm1(c * s) / c if c else s, y)[0, 1]) ** 2 for c in CURVATURES}
    if not math.isfinite(explained[0.0]):  # constant
        return None
    best = max(explained, key=lambda c: (explained[c], -abs(c)))
    best = best if 1 - explained[best] <= 0.9 * (1 - explained[0.0]) else 0.0
    if explained[best] < 0.5:
        return "shows no clear trend", explained[best], None
    falls = np.corrcoef(s, y)[0, 1] < 0
    if falls or best == 0:
        return "falls over the run" if falls else "grows about linearly", explained[best], None
    size = max(5, parts // 5)
    slopes = np.convolve(y, (size - 1) / 2 - np.arange(size), "valid")
    steepest = int((slopes > 0.999 * slopes.max()).argmax())  # the first of those that differ by rounding
    return "grows exponentially" if best > 0 else "levels off", explained[best], float(at[steepest + size // 2])


def correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float] | None:
    """Return Pearson's correlation with its 95% interval, tanh(atanh(r) +- 1.96 / sqrt(n - 3)) (Fisher).

    None for fewer than four pairs or a constant series. The pairs are taken for independent; those of one run are not
    quite, as both figures drift as the run goes on.
    """
    if len(first) < 4:
        return None
    with np.errstate(all="ignore"):
        value = float(np.corrcoef(first, second)[0, 1])
    if not math.isfinite(value):  # a series is constant
        return None
    middle, reach = math.atanh(max(-ALMOST_1, min(value, ALMOST_1))), 1.959964 / math.sqrt(len(first) - 3)
    return value, math.tanh(middle - reach), math.tanh(middle + reach)


def kl_remark(run: Run) -> str | None:
    """Say how a run's KL to the reference policy went: its growth, and its correlation with the validation reward of
    the same policy version (training step t measures version t). None where it was not monitored."""
    name = next((name for name in KL_NAMES if metric_series(run, name)[1]), None)
    if name is None:
        return None
    steps, values = metric_series(run, name)
    by_step = dict(zip(steps, values, strict=True))
    rewards = {item.step: item.reward for item in evaluations(run) if item.step in by_step}
    reference = REFERENCE_NAMES.get(str(run.setting("loss.kl.reference")), "reference")
    text = f"KL of the policy to the {reference} ({name.rpartition('_')[2]}, per token) ends at {number(values[-1])}"
    if (found := growth(steps, values)) is not None:
        shape, explained, fastest = found
        text += f" and {shape} (R2 {explained:.2f})" + (f", fastest around step {fastest:.0f}" if fastest else "")
    if (with_reward := correlation([by_step[step] for step in rewards], list(rewards.values()))) is not None:
        text += "; correlation with validation reward {:+.2f} (95% interval {:+.2f} to {:+.2f})".format(*with_reward)
        text += f" over {len(rewards)} evaluations"
    return text


def kl_sentence(variant: Variant) -> str:
    """Return what the first run that monitored KL shows of it; empty where none did."""
    run = next((run for run in variant.runs if run.kl is not None), None)
    if run is None:
        return ""
    text = f"{variant.name}: {run.kl}"
    text += f"; seed {run.manifest.seed} only, of {len(variant.runs)}" if len(variant.runs) > 1 else ""
    return text + ("; biased, since the sampling policy is an older one." if run.behaviour_is_older else ".")
