"""masked_mean and masked_normalize: numbers by hand, empty selections, poison outside the mask."""

import math

import pytest
import torch

from harness.core.errors import UserError
from harness.grpo import masked_mean, masked_normalize
from harness.grpo.masking import zero_masked

VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = torch.tensor([[1, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.float()], ids=["int", "bool", "float"])
def test_masked_mean(mask):
    assert masked_mean(VALUES, mask).item() == 3.0  # (1 + 2 + 6) / 3
    assert masked_mean(VALUES, mask, dim=1).tolist() == [1.5, 6.0]  # (1 + 2) / 2, 6 / 1
    assert masked_mean(VALUES, mask, dim=0).tolist() == [1.0, 2.0, 6.0]
    assert masked_mean(VALUES, mask, dim=-1).tolist() == [1.5, 6.0]


def test_masked_mean_of_nothing_is_nan_as_the_mean_of_an_empty_slice():
    mask = torch.tensor([[0, 0, 0], [1, 0, 0]])
    means = masked_mean(VALUES, mask, dim=1).tolist()
    assert math.isnan(means[0])
    assert means[1] == 4.0
    assert math.isnan(masked_mean(VALUES, torch.zeros(2, 3)).item())


def test_masked_mean_of_half_precision_is_summed_in_float32():
    ones = torch.ones(1, 4099, dtype=torch.bfloat16)  # 4099 is none: summed and counted in it, the mean is off
    mean = masked_mean(ones, torch.ones(1, 4099))
    assert (mean.item(), mean.dtype) == (1.0, torch.bfloat16)
    assert masked_mean(torch.tensor([[1, 2]]), torch.tensor([[1, 1]]), dim=1).tolist() == [1.5]


def test_masked_normalize():
    assert masked_normalize(VALUES, MASK).item() == 9.0  # 1 + 2 + 6
    assert masked_normalize(VALUES, MASK, 2.0).item() == 4.5
    assert masked_normalize(VALUES, MASK, dim=1, normalize_constant=3.0).tolist() == [1.0, 2.0]  # 3 / 3, 6 / 3
    assert masked_normalize(VALUES, torch.zeros(2, 3), 3.0, 1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_stands_outside_the_mask_reaches_neither_value_nor_gradient(poison):
    values = torch.tensor([[1.0, poison], [poison, 3.0]], requires_grad=True)
    mask = torch.tensor([[1, 0], [0, 1]])
    for reduced in (masked_mean(values, mask), masked_normalize(values, mask, 2.0)):
        assert reduced.item() == 2.0  # (1 + 3) / 2
        (gradient,) = torch.autograd.grad(reduced, values)
        assert gradient.tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert zero_masked(values, mask).tolist() == [[1.0, 0.0], [0.0, 3.0]]


def test_bad_input_is_refused():
    with pytest.raises(UserError, match=r"tensor has shape \(2, 3\) and mask has shape \(3,\)"):
        masked_mean(VALUES, torch.ones(3))
    with pytest.raises(UserError, match="normalize_constant is 0"):
        masked_normalize(VALUES, MASK, 0.0)
