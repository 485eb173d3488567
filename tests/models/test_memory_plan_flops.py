"""Operations of a training step, and what GPUs are specified for."""

from __future__ import annotations

import pytest

from harness.models.config import sizes_from_hf
from harness.models.flops import Work, mfu, peak_flops, training_flops, work_of
from harness.models.published import PUBLIC_SHAPES


def test_operations_of_the_public_model() -> None:
    # Matrices of a layer: 2 x 1536 x 1536 + 2 x 1536 x 256 + 3 x 1536 x 8960 = 46,792,704 numbers, 28 layers of them;
    # the output matrix has 151936 x 1536 = 233,373,696. 6 operations each; attention 12 x 28 layers x 1536 for a pair.
    shape = sizes_from_hf(PUBLIC_SHAPES["qwen2.5-math-1.5b"])
    assert shape is not None
    assert training_flops(shape, Work(tokens=1, scored=0, pairs=0)) == 6 * 28 * 46_792_704
    assert training_flops(shape, Work(tokens=0, scored=1, pairs=0)) == 6 * 233_373_696
    assert training_flops(shape, Work(tokens=0, scored=0, pairs=1)) == 12 * 28 * 1536


def test_work_of_a_group_by_hand() -> None:
    # A prompt of 3 tokens attends to 1 + 2 + 3 = 6. Of a response of 4 tokens 3 are run, which attend to 4 + 5 + 6 =
    # 15; of one of 1 token none is run. Every response token is scored.
    assert work_of([(3, (4, 1))]) == Work(tokens=3 + 3, scored=5, pairs=6 + 15)
    assert work_of([(3, (4,)), (1, (2,))]) == Work(6 + 2, 6, 21 + 3)


def test_only_gpus_in_the_table_have_a_peak() -> None:
    peaks = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H100 NVL": 835e12,
        "NVIDIA H200": 989e12,
        "NVIDIA H200 NVL": 835e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA L40S": 362e12,
    }
    none = ("NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L4", "NVIDIA L40", "Tesla T4")
    assert {name: peak_flops(name, "bfloat16") for name in (*peaks, *none)} == {**peaks, **dict.fromkeys(none)}
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12
    assert peak_flops("NVIDIA L40S", "float32") is None


def test_utilisation() -> None:
    assert mfu(989e12, 2.0, 989e12) == 0.5
    with pytest.raises(ValueError, match="both must be above 0"):
        mfu(1.0, 0.0, 1.0)
