"""Tallies of microbatches become metrics that combine into those of the whole batch."""

import math

import pytest
import torch

from harness.core.types import Metric, combine_metrics
from harness.grpo.tally import max_tally, mean_tally, to_metrics

VALUES = torch.tensor([[1.0, 5.0], [3.0, math.nan]])
MASK = torch.tensor([[1, 1], [1, 0]])


def test_mean_and_maximum_over_the_mask():
    tallies = {"mean": mean_tally(VALUES, MASK), "max": max_tally(VALUES, MASK)}
    assert to_metrics(tallies) == {"mean": Metric(3.0, "mean", 3), "max": Metric(5.0, "max", 3)}
    below_zero = max_tally(torch.tensor([-3.0, -2.0, 7.0]), torch.tensor([1, 1, 0]))
    fraction = mean_tally(torch.tensor([True, False]), torch.ones(2))
    assert to_metrics({"x": below_zero, "y": fraction}) == {"x": Metric(-2.0, "max", 2), "y": Metric(0.5, "mean", 2)}


def test_unequal_microbatches_combine_to_the_whole():
    whole = to_metrics({"mean": mean_tally(VALUES, MASK), "max": max_tally(VALUES, MASK)})
    parts = [
        to_metrics({"mean": mean_tally(VALUES[row], MASK[row]), "max": max_tally(VALUES[row], MASK[row])})
        for row in (0, 1)
    ]
    assert combine_metrics(parts) == whole  # (3 * 2 + 3 * 1) / 3, max(5, 3)


def test_without_items_there_is_no_metric():
    nothing = torch.zeros(2, 2)
    assert to_metrics({"mean": mean_tally(VALUES, nothing), "max": max_tally(VALUES, nothing)}) == {}
    assert to_metrics({}) == {}


def test_nan_inside_the_mask_is_shown():
    assert math.isnan(to_metrics({"x": mean_tally(VALUES, torch.ones(2, 2))})["x"].value)


def test_large_counts_are_exact():
    count = 2**24 + 1  # not a float32
    metric = to_metrics({"x": mean_tally(torch.zeros(1).expand(count), torch.ones(1).expand(count))})["x"]
    assert metric == Metric(pytest.approx(0.0), "mean", count)
