"""Operations of a training step, and what GPUs are specified for."""

from __future__ import annotations

import pytest

from harness.memory_plan.flops import mfu, peak_flops, training_flops
from harness.memory_plan.shape import shape_of
from harness.models.public_shapes import PUBLIC_SHAPES


def test_a_token_of_the_public_model() -> None:
    # Matrices of a layer: 2 x 1536 x 1536 + 2 x 1536 x 256 + 3 x 1536 x 8960 = 46,792,704; 28 of them and the output
    # matrix 151936 x 1536 are 1,543,569,408 numbers: 6 operations each. Attention: 12 x 28 layers x 1536 x 512 tokens.
    shape = shape_of(PUBLIC_SHAPES["qwen2.5-math-1.5b"])
    assert shape is not None
    assert training_flops(shape, 1, 0) == 6 * 1_543_569_408
    assert training_flops(shape, 1, 512) == 6 * 1_543_569_408 + 12 * 28 * 1536 * 512
    assert training_flops(shape, 10, 512) == 10 * training_flops(shape, 1, 512)
    assert training_flops(shape, 1, 512, forwards_only=1) == pytest.approx(training_flops(shape, 1, 512) * 4 / 3)


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),
        ("Tesla T4", None),
    ],
)
def test_only_gpus_in_the_table_have_a_peak(name: str, bfloat16: float | None) -> None:
    assert peak_flops(name, "bfloat16") == bfloat16


def test_float32_has_its_own_peak() -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12


def test_utilisation() -> None:
    assert mfu(989e12, 2.0, 989e12) == 0.5
    with pytest.raises(ValueError, match="both must be above 0"):
        mfu(1.0, 0.0, 1.0)
