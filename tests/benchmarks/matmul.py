"""Float32 products on one thread: torch's own (MKL), oneDNN with plain weights as in training, packed as in engines;
and torch's own in bfloat16, forward.

GRPO_HARNESS_MATMUL=onednn OMP_NUM_THREADS=1 python tests/benchmarks/matmul.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

from harness.engines.weights import PackedLinear
from harness.models.matmul import add_weight_gradient, product

SHAPES = {
    "training, 3M": (2036, 256, 768),
    "training, 100M": (1024, 768, 2048),
    "decoding, 3M, 64 rows": (64, 256, 768),
    "decoding, 100M, 16 rows": (16, 768, 2048),
    "its output matrix": (16, 768, 32_000),
}
LEAST_OPERATIONS = 4e9


def rate(call: Callable[[], object], operations: int) -> float:
    """Return GFLOP/s by CPU time."""
    call()
    repeats = max(5, int(LEAST_OPERATIONS / operations))
    begin = time.process_time()
    for _ in range(repeats):
        call()
    return operations * repeats / (time.process_time() - begin) / 1e9


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(
        description="Float32 products through MKL and oneDNN, in GFLOP/s.",
        epilog="example:\n  GRPO_HARNESS_MATMUL=onednn OMP_NUM_THREADS=1 python tests/benchmarks/matmul.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    torch.set_num_threads(1)
    columns = ["torch", "oneDNN", "packed", "dx, torch", "oneDNN", "dW, torch", "oneDNN", "bfloat16, torch"]
    print(f"| GFLOP/s | rows x in x out | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, (rows, inner, outer) in SHAPES.items():
        x, weight, grad = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(rows, outer)
        packed, total, operations = PackedLinear(weight), torch.zeros_like(weight), 2 * rows * inner * outer
        calls: list[Callable[[], object]] = [
            partial(F.linear, x, weight),
            partial(product, x, weight),
            partial(packed, x),
            partial(torch.mm, grad, weight),
            partial(product, grad, weight.t()),
            partial(total.addmm_, grad.t(), x),
            partial(add_weight_gradient, total, grad, x),
            partial(F.linear, x.bfloat16(), weight.bfloat16()),
        ]
        rates = " | ".join(f"{rate(call, operations):.0f}" for call in calls)
        print(f"| {name} | {rows:,} x {inner:,} x {outer:,} | {rates} |", flush=True)


if __name__ == "__main__":
    main()
