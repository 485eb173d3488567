"""Products by oneDNN against float64, and when they are left to torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from harness.models import products
from harness.models.products import (
    FastLinear,
    add_weight_gradient,
    linear,
    onednn_works,
    product,
    rounded_up,
    use_fast_products,
)

pytestmark = pytest.mark.skipif(not onednn_works(), reason="no oneDNN in this torch")


class Operators(TorchDispatchMode):
    """Remember which operators ran."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def seeded(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", [(1, 7), (5, 7), (2, 3, 7)], ids=str)
@pytest.mark.parametrize("width", [3, 20], ids=["narrower", "wider"])
def test_values_and_gradients_are_those_of_float64(shape, width, biased):
    x, weight = seeded(*shape).requires_grad_(), seeded(width, 7, seed=1).requires_grad_()
    bias = seeded(width, seed=2).requires_grad_() if biased else None
    leaves = [x, weight, *([bias] if biased else [])]
    with Operators() as operators:
        out = linear(x, weight, bias)
        grad = seeded(*out.shape, seed=3)
        found = [out, *torch.autograd.grad(out, leaves, grad)]
    assert "_linear_pointwise" in operators.names
    assert not operators.names & {"mm", "addmm"}
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = F.linear(*doubles)
    wanted = [exact, *torch.autograd.grad(exact, doubles, grad.double())]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_only_what_needs_a_gradient_gets_one():
    x, weight = seeded(5, 7), seeded(3, 7, seed=1).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(3, 7), rtol=1e-5, atol=1e-5)


def test_transposed_views_are_multiplied_as_they_are():
    a, b = seeded(7, 5), seeded(7, 3, seed=1)
    torch.testing.assert_close(product(a.t(), b.t()), (a.double().t() @ b.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("most", [1, 20, 10**6])
def test_a_sum_of_weight_gradients_in_slices(most, monkeypatch):
    monkeypatch.setattr(products, "_MOST_BESIDE", most)
    total, grad, x = seeded(11, 4), seeded(6, 11, seed=1), seeded(6, 4, seed=2)
    wanted = total.double() + grad.double().t() @ x.double()
    add_weight_gradient(total, grad, x)
    torch.testing.assert_close(total.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype):
    x, weight = seeded(5, 7).to(dtype), seeded(3, 7, seed=1).to(dtype)
    with Operators() as operators:
        assert torch.equal(linear(x, weight), F.linear(x, weight))
        total = torch.zeros(3, 7, dtype=dtype)
        add_weight_gradient(total, F.linear(x, weight), x)
    assert "_linear_pointwise" not in operators.names


def test_autocast_vectors_and_empty_batches_are_left_to_torch():
    weight = seeded(3, 7, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(seeded(5, 7), weight).dtype is torch.bfloat16
    assert linear(seeded(0, 7), weight).shape == (0, 3)
    assert linear(seeded(7), weight).shape == (3,)


def test_somebody_elses_model_keeps_its_weights_names_and_results():
    class Scaled(torch.nn.Linear):
        """A module with a forward of its own, which stays."""

        def forward(self, x):
            return 2 * super().forward(x)

    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), Scaled(5, 3))
    x, names = seeded(6, 7), list(model.state_dict())
    wanted = model(x)
    use_fast_products(model)
    assert [type(module) for module in model] == [FastLinear, torch.nn.Tanh, Scaled]
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_is_one_number_seen_everywhere():
    x, weight = seeded(64, 7).requires_grad_(), seeded(3, 7, seed=1).requires_grad_()
    linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(3, 7), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(64, 7), rtol=1e-5, atol=1e-4)


def test_rows_are_rounded_up_to_few_numbers():
    """4 apart to 64, then 8, 16 ... and 128 apart, and from 4,096 on a sixteenth: one row stays one."""
    assert [rounded_up(rows) for rows in (0, 1, 2, 33, 65, 1000, 1025, 4097)] == [0, 1, 4, 36, 72, 1024, 1152, 4352]
    assert [rounded_up(rows, 3) for rows in (0, 1, 31, 33, 1000)] == [0, 3, 36, 36, 1152]  # 3, 12, 12 and 192 apart
    taken = [rounded_up(rows) for rows in range(1, 4097)]
    assert all(rows <= got <= max(rows * 9 / 8, rows + 3) for rows, got in enumerate(taken, 1))
    assert all(got <= rows * 17 / 16 for rows, got in enumerate(taken, 1) if rows >= 2048)
    assert len(set(taken)) == 17 + 8 * 5 + 16  # to 64, in each octave to 2,048, and to 4,096


def test_a_row_of_a_product_does_not_depend_on_the_rows_filled_up_behind_it():
    """So that rounding changes no number; one row alone is another kernel, and is not filled up."""
    x, weight = seeded(72, 256), seeded(768, 256, seed=1)
    for rows in (2, 3, 5, 31, 33, 65):
        filled = F.pad(x[:rows], (0, 0, 0, rounded_up(rows) - rows))
        assert torch.equal(product(filled, weight)[:rows], product(x[:rows], weight)), rows
