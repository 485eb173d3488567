"""How a run's KL to the reference policy went."""

from __future__ import annotations

from dataclasses import dataclass

from harness.compare.growth import Growth, growth, kl_against_reward, metric_series
from harness.results import Run

KL_NAMES = ("kl/reference_k3", "kl/reference_k1")  # the first that a run has is described


@dataclass(frozen=True, slots=True)
class KlFigures:
    """How a run's KL to the reference policy went.

    Attributes:
        name: of the metric.
        reference: the scenario's ``loss.kl.reference``: ``frozen`` (the initial policy) or ``reclone``, or None.
        with_reward: its correlation with the validation reward and the number of pairs, or None.
    """

    name: str
    reference: str | None
    growth: Growth | None
    with_reward: tuple[float, int] | None


def kl_figures(run: Run) -> KlFigures | None:
    """Describe the KL to the reference policy, or return None where it was not monitored."""
    for name in KL_NAMES:
        steps, values = metric_series(run, name)
        if values:
            reference = run.setting("loss.kl.reference")
            against = kl_against_reward(run, name)
            return KlFigures(name, reference if isinstance(reference, str) else None, growth(steps, values), against)
    return None
