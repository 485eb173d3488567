"""The projections: packed and plain ones compute the same, and the packed ones are used where they work."""

from __future__ import annotations

import platform

import pytest
import torch

from harness.engines.weights import PackedLinear, PlainLinear, make_linear, packing_works

needs_packing = pytest.mark.skipif(
    not packing_works(torch.float32), reason="this torch has no packed oneDNN projections"
)
KINDS = [PlainLinear, pytest.param(PackedLinear, marks=needs_packing)]
TWO_BY_THREE = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_projection_by_hand(kind):
    weight = TWO_BY_THREE.clone()
    linear = kind(weight)
    weight.zero_()  # it is copied
    x, other = torch.tensor([[1.0, 1.0], [2.0, 0.0]]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    # x W^T: (1+2, -1, 3+1), (2, 0, 6)
    assert linear(x).tolist() == [[3, -1, 4], [2, 0, 6]]
    assert linear.plus(x, other).tolist() == [[4, 1, 7], [6, 5, 12]]
    assert linear.times(x, other).tolist() == [[3, -2, 12], [8, 0, 36]]
    # silu(3) = 3 / (1 + e^-3) = 2.857722
    assert linear.silu(x)[0, 0].item() == pytest.approx(2.857722, abs=1e-5)


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or platform.machine() != "x86_64", reason="no oneDNN for x86 in this torch"
)
def test_packing_works_where_there_is_onednn():
    """The engine would fall back without a word, and lose a tenth of its speed, if a torch changed these operators."""
    assert packing_works(torch.float32)


def test_the_choice_follows_the_probe():
    chosen = make_linear(TWO_BY_THREE)
    assert isinstance(chosen, PackedLinear if packing_works(torch.float32) else PlainLinear)
    assert not packing_works(torch.int32)
