"""Float32 matrix products on a CPU, by oneDNN where that was measured to be faster than torch's own (MKL).

Which is faster depends on the processor. MKL gives CPUs of other makers than Intel no AVX-512: on a Zen 5 core it
reaches 105 GFLOP/s where oneDNN reaches 165 to 245. On Zen 4 oneDNN makes the gradient of the weight at 0.3 to 0.8 of
MKL's speed, and on Zen 3 every kind of product at 0.5 to 0.95.

The choice changes the last bits of a product, so that runs which are compared, or go on, have to make the same one. It
is measured once on a machine and kept in the user's cache folder, where each process of each run finds it. The
environment variable ``GRPO_HARNESS_MATMUL``, ``onednn`` or ``mkl``, decides instead, for runs that repeat those of
another machine. oneDNN's operator is the one that TorchInductor emits; since it is no public interface of torch,
``onednn_works`` tries it with known numbers before anything relies on it.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from harness.core.cache_folder import default_cache_folder
from harness.core.errors import UserError
from harness.core.machine import fingerprint, processor_fields

Library = Literal["onednn", "mkl"]
Kind = Literal["forward", "input_gradient", "weight_gradient"]
"""Of y = x W^T: y itself, dx = dy W, and dW = dy^T x."""
Choice = dict[Kind, list[Library]]
"""For each kind of product, what makes those of fewer than ``MANY_ROWS`` rows, and the others."""
MANY_ROWS = 64
VARIABLE = "GRPO_HARNESS_MATMUL"
ALL_ONEDNN, ALL_MKL = (Choice((kind, [library, library]) for kind in get_args(Kind)) for library in get_args(Library))
_SPEEDS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables with which the same processor computes at another speed."""
_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU part", "Features")
"""What ``/proc/cpuinfo`` says of a processor that does not change from one reading to the next."""
_MEASURED_ROWS, _MEASURED_IN, _MEASURED_OUT = (16, 256), 256, 768
_LEAST_GAIN = 1.1
"""Below it the times are taken for equal, and torch's own product stays."""
_MOST_BESIDE = 2**22
"""Most elements of a copy or of a product on its way into a sum."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (..., in) and W (out, in), with gradients; as ``torch.nn.functional.linear``."""
    if not _has_choice(x, weight) or choice() == ALL_MKL:
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)
    return out


class FastLinear(nn.Linear):
    """torch's linear module, multiplying by ``linear``; one that is made is left uninitialised."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def use_fast_products(model: nn.Module) -> None:
    """Have every plain linear module of somebody else's model multiply by ``linear``; nothing else changes."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear


def product(a_NK: Tensor, b_MK: Tensor) -> Tensor:
    """a b^T, (N, M), without a gradient; either may be a transposed view. With one of W it is dx = dy W."""
    if not _has_choice(a_NK, b_MK):
        return a_NK @ b_MK.t()
    return _multiply("forward" if b_MK.is_contiguous() else "input_gradient", a_NK, b_MK)


def add_weight_gradient(total_MK: Tensor, grad_NM: Tensor, x_NK: Tensor) -> None:
    """Add grad^T x to ``total``, with no more than a few MB beside it."""
    if _has_choice(grad_NM, x_NK) and _library("weight_gradient", len(x_NK)) == "onednn":
        x_KN, columns = x_NK.t(), max(1, _MOST_BESIDE // max(x_NK.shape))
        for total, grad in zip(total_MK.split(columns), grad_NM.split(columns, dim=1), strict=True):
            total += _onednn(grad.t(), x_KN, None)
    elif grad_NM.dtype == total_MK.dtype:
        total_MK.addmm_(grad_NM.t(), x_NK)
    else:
        total_MK += grad_NM.t() @ x_NK


def rounded_up(rows: int, multiple: int = 1) -> int:
    """Return the next of a few numbers of rows, for products whose rows vary all the time.

    They are 4 apart up to 64, then an eighth at most, and a sixteenth from 2,048 on, where an eighth can be measured.
    One row stays one: its product is summed up in another order. oneDNN compiles a product for its exact shape, which
    takes about 0.3 ms and 0.6 MiB, and keeps the last 1,024. Where the rows are shared out, their number is a
    ``multiple`` of the ranks.
    """
    parts = 8 if rows < 2048 else 16
    step = math.lcm(max(4, 2 ** (rows.bit_length() - 1) // parts) if rows > 1 else 1, multiple)
    return rows + -rows % step


@cache
def choice() -> Choice:
    """Return what makes this process's products: the variable's, else this machine's, measured where it is not yet.

    Where it cannot be kept nothing is measured, since each process would decide for itself: oneDNN makes them all.

    Raises:
        UserError: the variable names no library.
    """
    if known := known_choice():
        return known
    place = _place()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, encoding="utf-8") as draft:
            json.dump(measured(), draft)
            draft.flush()
            if _read(place) is None:
                place.unlink(missing_ok=True)  # damaged
            os.link(draft.name, place)
    except OSError:  # another process measured too, and was first; or the folder takes no file
        pass
    return _read(place) or ALL_ONEDNN


def known_choice() -> Choice | None:
    """Return what makes products on this machine; None where nothing has asked yet. It measures nothing.

    Raises:
        UserError: the variable names no library.
    """
    forced = os.environ.get(VARIABLE)
    if forced not in (None, "onednn", "mkl"):
        raise UserError(
            f"{VARIABLE} is {forced!r}, must be onednn or mkl", VARIABLE, "set it to one of them, or unset it"
        )
    if forced == "mkl" or not onednn_works():
        return ALL_MKL
    return ALL_ONEDNN if forced else _read(_place())


def _seconds_of(call: Callable[[], object]) -> float:
    """Seconds of this thread's CPU time: the least of five, after two to warm up; other processes hardly count."""
    times = []
    for _ in range(7):
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
    return min(times[2:])


def measured(seconds_of: Callable[[Callable[[], object]], float] = _seconds_of) -> Choice:
    """Return which library is faster, on one thread: so that the number of threads changes no choice."""
    threads, choice = torch.get_num_threads(), Choice()
    torch.set_num_threads(1)
    try:
        for rows in _MEASURED_ROWS:
            x, weight, grad = (
                torch.ones(shape, dtype=torch.float32, device="cpu")
                for shape in ((rows, _MEASURED_IN), (_MEASURED_OUT, _MEASURED_IN), (rows, _MEASURED_OUT))
            )
            operands: dict[Kind, tuple[Tensor, Tensor]] = {
                "forward": (x, weight),
                "input_gradient": (grad, weight.t()),
                "weight_gradient": (grad.t(), x.t()),
            }
            for kind, (a, b) in operands.items():
                mkl, onednn = (seconds_of(partial(call, a, b, None)) for call in (F.linear, _onednn))
                choice.setdefault(kind, []).append("onednn" if onednn * _LEAST_GAIN < mkl else "mkl")
    finally:
        torch.set_num_threads(threads)
    return choice


def _place() -> Path:
    """The file that holds the choice for this processor, its cores, torch and these variables."""
    fields = processor_fields()
    processor = {name: fields[name] for name in _PROCESSOR if name in fields} or platform.processor()
    speeds = [os.environ.get(name) for name in _SPEEDS]
    facts = {"processor": processor, "cores": os.cpu_count(), "torch": torch.__version__, "variables": speeds}
    return default_cache_folder() / f"matmul-{fingerprint(facts)}.json"


def _read(place: Path) -> Choice | None:
    """The choice in a file; None where there is none, or something else."""
    pairs = [[few, many] for few in get_args(Library) for many in get_args(Library)]
    try:
        found: Choice = json.loads(place.read_text(encoding="utf-8"))
        return found if all(found[kind] in pairs for kind in get_args(Kind)) else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _library(kind: Kind, rows: int) -> Library:
    return choice()[kind][rows >= MANY_ROWS]


@cache
def onednn_works() -> bool:
    """Whether this torch has the operator, and it computes what it should, on transposed views too.

    The probe's products are small integers, exact in float32, so that equality is the test.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    a, b = torch.arange(-6.0, 6.0).view(3, 4), torch.arange(8.0).view(2, 4)
    bias, exact = torch.tensor([1.0, -2.0]), (a[:, :, None] * b.t()).sum(1)
    try:
        got = _onednn(a, b, bias), _onednn(a, b.t().contiguous().t(), None), _onednn(a.t().contiguous().t(), b, None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(got[0], exact + bias) and torch.equal(got[1], exact) and torch.equal(got[2], exact)


class _Linear(torch.autograd.Function):
    """With y = x W^T + b: dx = dy W, dW = dy^T x, db = sum(dy)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply("forward", x.flatten(0, -2), weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2).contiguous()  # a gradient of a sum is one number seen everywhere, which is slow
        of_x = _multiply("input_gradient", rows, weight.t()).view(x.shape) if needs_x else None
        of_weight = _weight_gradient(rows, x.flatten(0, -2)) if needs_weight else None
        return of_x, of_weight, rows.sum(0) if ctx.has_bias and needs_bias else None


def _weight_gradient(grad_NM: Tensor, x_NK: Tensor) -> Tensor:
    """grad^T x, (M, K). oneDNN copies its first operand when that is a view, so the narrower one comes first."""
    if _library("weight_gradient", len(x_NK)) == "mkl":
        return grad_NM.t() @ x_NK
    if grad_NM.shape[1] <= x_NK.shape[1]:
        return _onednn(grad_NM.t(), x_NK.t(), None)
    return _onednn(x_NK.t(), grad_NM.t(), None).t()


def _has_choice(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype is torch.float32
        and b.dtype is torch.float32
        and a.device.type == "cpu"
        and type(a) in (Tensor, nn.Parameter)  # a sharded tensor has products of its own
        and type(b) in (Tensor, nn.Parameter)
        and a.dim() > 1
        and a.numel() > 0
        and b.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and onednn_works()
    )


def _multiply(kind: Kind, a_NK: Tensor, b_MK: Tensor, bias_M: Tensor | None = None) -> Tensor:
    if _library(kind, len(a_NK)) == "mkl":
        return F.linear(a_NK, b_MK, bias_M)
    return _onednn(a_NK, b_MK, bias_M)


def _onednn(a_NK: Tensor, b_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(a_NK, b_MK, bias_M, "none", [], "")
    return out
