"""Products against float64, by whom they are made, and how that is chosen."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F

from harness.core.errors import UserError
from harness.models import matmul
from harness.models.matmul import (
    ALL_MKL,
    ALL_ONEDNN,
    VARIABLE,
    FastLinear,
    add_weight_gradient,
    choice,
    known_choice,
    linear,
    measured,
    onednn_works,
    product,
    rounded_up,
    use_fast_products,
)
from tests.models.batches import Operators

pytestmark = pytest.mark.skipif(not onednn_works(), reason="no oneDNN in this torch")


@pytest.fixture(autouse=True)
def forget():
    """No choice of another test is left, nor one of these for others."""
    choice.cache_clear()
    yield
    choice.cache_clear()


@pytest.fixture(params=["onednn", "mkl"])
def library(request, monkeypatch):
    """Whose products are made; a test that asks for oneDNN's alone says so."""
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


def seeded(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("shape", "width"), [((1, 7), 20), ((5, 7), 3), ((2, 3, 7), 20)], ids=str)
def test_values_and_gradients_are_those_of_float64(shape, width, biased, library):
    x, weight = seeded(*shape).requires_grad_(), seeded(width, 7, seed=1).requires_grad_()
    bias = seeded(width, seed=2).requires_grad_() if biased else None
    leaves = [x, weight, *([bias] if biased else [])]
    with Operators() as operators:
        out = linear(x, weight, bias)
        grad = seeded(*out.shape, seed=3)
        found = [out, *torch.autograd.grad(out, leaves, grad)]
    assert ("_linear_pointwise" in operators.names) is (library == "onednn")
    assert bool({"mm", "addmm"} & {*operators.names}) is (library == "mkl")
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = F.linear(*doubles)
    wanted = [exact, *torch.autograd.grad(exact, doubles, grad.double())]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_only_what_needs_a_gradient_gets_one_also_of_a_sum(library):
    """Whose gradient is one number that is seen everywhere."""
    x, weight = seeded(64, 7), seeded(3, 7, seed=1).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(3, 7), rtol=1e-5, atol=1e-4)
    linear(x.requires_grad_(), weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(64, 7), rtol=1e-5, atol=1e-4)


def test_a_sum_of_weight_gradients_in_slices(monkeypatch, library):
    for most in (1, 20, 10**6):
        monkeypatch.setattr(matmul, "_MOST_BESIDE", most)
        total, grad, x = seeded(11, 4), seeded(6, 11, seed=1), seeded(6, 4, seed=2)
        wanted = total.double() + grad.double().t() @ x.double()
        add_weight_gradient(total, grad, x)
        torch.testing.assert_close(total.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library", ["onednn"], indirect=True)
def test_other_types_autocast_vectors_and_empty_batches_are_left_to_torch(library):
    weight = seeded(3, 7, seed=1)
    for dtype in (torch.float64, torch.bfloat16):
        x, narrow = seeded(5, 7).to(dtype), weight.to(dtype)
        with Operators() as operators:
            assert torch.equal(linear(x, narrow), F.linear(x, narrow))
            add_weight_gradient(torch.zeros(3, 7, dtype=dtype), F.linear(x, narrow), x)
        assert "_linear_pointwise" not in operators.names
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(seeded(5, 7), weight).dtype is torch.bfloat16
    assert linear(seeded(0, 7), weight).shape == (0, 3)
    assert linear(seeded(7), weight).shape == (3,)


def test_somebody_elses_model_keeps_its_weights_names_and_results(library):
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


def test_rows_are_rounded_up_to_few_numbers():
    """4 apart to 64, then 8, 16 ... and 128 apart, and from 4,096 on a sixteenth: one row stays one."""
    assert [rounded_up(rows) for rows in (0, 1, 2, 33, 65, 1000, 1025, 4097)] == [0, 1, 4, 36, 72, 1024, 1152, 4352]
    assert [rounded_up(rows, 3) for rows in (0, 1, 31, 33, 1000)] == [0, 3, 36, 36, 1152]  # 3, 12, 12 and 192 apart
    taken = {rounded_up(rows) for rows in range(1, 4097)}
    assert len(taken) == 17 + 8 * 5 + 16  # to 64, in each octave to 2,048, and to 4,096


@pytest.mark.parametrize("library", ["onednn"], indirect=True)
def test_a_row_of_a_product_does_not_depend_on_the_rows_filled_up_behind_it(library):
    """oneDNN's, so that rounding changes no number; one row alone is another kernel, and is not filled up."""
    x, weight = seeded(72, 256), seeded(768, 256, seed=1)
    for rows in (2, 3, 5, 31, 33, 65):
        filled = F.pad(x[:rows], (0, 0, 0, rounded_up(rows) - rows))
        assert torch.equal(product(filled, weight)[:rows], product(x[:rows], weight)), rows


def timer(slower_onednn):
    """MKL's call comes first, and takes a second; oneDNN's the next of these: three kinds of few rows, then of many."""
    times = iter(slower_onednn)
    turn = iter([True, False] * 6)
    return lambda call: 1.0 if next(turn) else next(times)


def test_each_kind_of_product_takes_what_is_clearly_faster_for_it():
    """A Zen 4's gradients of the weight by torch; times within a tenth are equal, and torch's own product stays."""
    assert measured(timer([1.2, 0.95, 3.0, 0.6, 0.5, 1.5])) == {
        "forward": ["mkl", "onednn"],
        "input_gradient": ["mkl", "onednn"],
        "weight_gradient": ["mkl", "mkl"],
    }
    assert measured(timer([0.92] * 6)) == ALL_MKL


def test_each_kind_goes_where_the_choice_says(monkeypatch):
    chosen = {"forward": ["onednn", "mkl"], "input_gradient": ["mkl", "onednn"], "weight_gradient": ["mkl", "onednn"]}
    monkeypatch.setattr(matmul, "choice", lambda: chosen)
    for rows, expected in ((63, ["_linear_pointwise", "mm", "mm"]), (64, ["mm", *["_linear_pointwise"] * 2])):
        x, weight = seeded(rows, 7).requires_grad_(), seeded(3, 7, seed=1).requires_grad_()
        with Operators() as operators:
            linear(x, weight).backward(seeded(rows, 3, seed=2))
        assert [name for name in operators.names if name in ("_linear_pointwise", "mm")] == expected


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_machine_measures_once_and_each_process_finds_its_choice(cache_folder, monkeypatch):
    mixed, calls = ALL_MKL | {"forward": ["mkl", "onednn"]}, []
    monkeypatch.setattr(matmul, "measured", lambda: calls.append(1) or mixed)
    assert known_choice() is None
    assert choice() == mixed
    choice.cache_clear()  # as in a new process
    assert (choice(), known_choice(), len(calls)) == (mixed, mixed, 1)
    (file,) = (cache_folder / "grpo-harness").iterdir()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # another speed: measured for itself
    assert (matmul._place() == file, known_choice()) == (False, None)


def test_of_two_processes_that_measure_at_once_both_take_the_first_ones(cache_folder, monkeypatch):
    def other_is_faster():
        place.write_text(json.dumps(ALL_ONEDNN))
        return ALL_MKL

    place = matmul._place()
    monkeypatch.setattr(matmul, "measured", other_is_faster)
    assert choice() == ALL_ONEDNN
    assert json.loads(place.read_text()) == ALL_ONEDNN


def test_a_damaged_file_is_measured_again(cache_folder, monkeypatch):
    place = matmul._place()
    place.parent.mkdir()
    monkeypatch.setattr(matmul, "measured", lambda: ALL_MKL)
    for content in ("", "[]", "{}", '{"forward": ["mkl"]}', json.dumps(ALL_MKL | {"forward": [1, 2]})):
        choice.cache_clear()
        place.write_text(content)
        assert choice() == ALL_MKL, content
        assert json.loads(place.read_text()) == ALL_MKL


def test_where_no_choice_can_be_kept_onednn_makes_all_so_that_all_processes_agree(cache_folder):
    (cache_folder / "grpo-harness").write_text("a file where the folder should be")
    assert choice() == ALL_ONEDNN


def test_a_variable_decides_instead_of_a_measurement(cache_folder, monkeypatch):
    monkeypatch.setattr(matmul, "measured", None)
    for library, expected in (("onednn", ALL_ONEDNN), ("mkl", ALL_MKL)):
        monkeypatch.setenv(VARIABLE, library)
        choice.cache_clear()
        assert choice() == known_choice() == expected
    monkeypatch.setenv(VARIABLE, "blas")
    choice.cache_clear()
    with pytest.raises(UserError, match="GRPO_HARNESS_MATMUL is 'blas', must be onednn or mkl"):
        choice()
    assert list(cache_folder.iterdir()) == []
