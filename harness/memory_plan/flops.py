"""Model FLOPs utilisation (MFU): the products that a training step needs, over what the GPU could do in that time.

Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B: only the products that the model asks for count, not those
that checkpointing makes again. A multiplication and an addition are two operations.
"""

from __future__ import annotations

from harness.memory_plan.shape import Shape

PEAK_FLOPS: tuple[tuple[str, float, float], ...] = (
    ("B200", 2250e12, 75e12),  # HGX B200 data sheet: 36 PFLOPS in bf16 with sparsity for 8 GPUs; 600 TFLOPS in fp32
    ("H200", 989e12, 67e12),  # https://www.nvidia.com/en-us/data-center/h200/: 1,979 with sparsity
    ("H100 NVL", 835e12, 60e12),  # https://www.nvidia.com/en-us/data-center/h100/: 1,671 with sparsity
    ("H100 PCIe", 756e12, 51e12),  # NVIDIA H100 PCIe product brief: 1,513 with sparsity
    ("H100", 989e12, 67e12),  # https://www.nvidia.com/en-us/data-center/h100/: 1,979 with sparsity
    ("A100", 312e12, 19.5e12),  # https://www.nvidia.com/en-us/data-center/a100/
    ("L40S", 362e12, 91.6e12),  # NVIDIA L40S data sheet: 733 with sparsity, rounded up
    ("L4", 121e12, 30.3e12),  # NVIDIA L4 data sheet: 242 with sparsity
)
"""Name contained in what NVML calls the GPU, dense bfloat16 operations a second on tensor cores, float32 ones without
them; the first name that fits counts. torchtitan's ``tools/utils.py`` has the same bfloat16 figures for the first six
and the L40S. Specifications with 2:4 sparsity are halved."""


def peak_flops(gpu: str, precision: str) -> float | None:
    """Return the operations a second that this GPU is specified for; None for one that is not in the table.

    Args:
        gpu: its name, as NVML gives it.
        precision: ``bfloat16`` or ``float32``; float32 without TensorFloat-32, as torch does it unless told otherwise.
    """
    words = gpu.replace("-", " ").replace("_", " ").split()
    for name, bfloat16, float32 in PEAK_FLOPS:
        if all(word in words for word in name.split()):
            return bfloat16 if precision == "bfloat16" else float32
    return None


def training_flops(shape: Shape, tokens: int, context: float, *, forwards_only: int = 0) -> float:
    """Return the operations of training on so many tokens: 6 N for each token, and 12 L q c for the attention.

    N counts what is multiplied with each token: all matrices and, tied or not, the output matrix; looking an embedding
    up costs nothing. Forward takes a third of this and backward two thirds.

    Args:
        shape: the model.
        tokens: that go through it, prompts too.
        context: mean number of tokens that a token attends to; half of the length where attention is causal.
        forwards_only: further passes forward over the same tokens, for old or reference log-probabilities.
    """
    norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.head_norms else 0)
    biases = shape.query_size + 2 * shape.key_size if shape.attention_bias else 0
    matrices = shape.num_layers * (shape.layer_parameters - norms - biases) + shape.embedding_parameters
    forward = tokens * (2.0 * matrices + 4.0 * shape.num_layers * shape.query_size * context)
    return (3 + forwards_only) * forward


def mfu(flops: float, seconds: float, peak: float) -> float:
    """Return the share of the peak that was used.

    Raises:
        ValueError: there was no time, or no peak.
    """
    if seconds <= 0 or peak <= 0:
        raise ValueError(f"{seconds} seconds at a peak of {peak}: both must be above 0")
    return flops / seconds / peak
