"""Figures of a microbatch that stay on the device until the step is over, so that logging costs no synchronisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.core.types import Metric, Metrics
from harness.grpo.masking import zero_masked


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """A mean or a maximum as scalar tensors without gradient.

    Attributes:
        value: the sum over the items for ``mean``, the largest item for ``max``.
        count: how many items.
        reduction: how tallies of several microbatches combine.
    """

    value: Tensor
    count: Tensor
    reduction: Literal["mean", "max"] = "mean"


def mean_tally(values: Tensor, mask: Tensor) -> Tally:
    """Return the mean of the values whose mask is 1 (any shape, both the same)."""
    return Tally(zero_masked(values.detach().float(), mask).sum(), mask.bool().sum())


def max_tally(values: Tensor, mask: Tensor) -> Tally:
    """Return the maximum of the values whose mask is 1 (any shape, both the same)."""
    kept = torch.where(mask.bool(), values.detach().float(), float("-inf"))
    return Tally(kept.max(), mask.bool().sum(), "max")


def to_metrics(tallies: Mapping[str, Tally]) -> Metrics:
    """Fetch the tallies from their device in one transfer. Those without any item are left out."""
    if not tallies:
        return {}
    pairs = torch.stack([torch.stack((tally.value.double(), tally.count.double())) for tally in tallies.values()])
    metrics: Metrics = {}
    for (name, tally), (value, count) in zip(tallies.items(), pairs.tolist(), strict=True):
        if count:
            metrics[name] = Metric(value / count if tally.reduction == "mean" else value, tally.reduction, int(count))
    return metrics
