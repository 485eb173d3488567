"""Model FLOPs utilisation (MFU): the products that training needs, over what the GPU could do in that time.

Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B: only the products that the model asks for count, not those
that checkpointing makes again. A multiplication and an addition are two operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics, RolloutGroup
from harness.models.config import ModelConfig

PEAK_FLOPS: tuple[tuple[str, float, float | None], ...] = (
    ("B200", 2250e12, None),  # https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703
    ("H200 NVL", 835e12, None),  # https://www.nvidia.com/en-us/data-center/h200/: 1,671 with sparsity
    ("H200", 989e12, 67e12),  # https://www.nvidia.com/en-us/data-center/h200/: 1,979 with sparsity
    ("H100 NVL", 835e12, None),  # https://www.nvidia.com/en-us/data-center/h100/: 1,671 with sparsity
    ("H100 PCIe", 756e12, None),  # as torchtitan has it
    ("H100", 989e12, 67e12),  # https://www.nvidia.com/en-us/data-center/h100/: 1,979 with sparsity
    ("A100", 312e12, 19.5e12),  # https://www.nvidia.com/en-us/data-center/a100/
    ("L40S", 362e12, None),  # as torchtitan has it
)
"""Name contained in what NVML calls the GPU, dense bfloat16 operations a second on tensor cores, float32 ones without
them (None where no source was read); the first name that fits counts. The bfloat16 figures were compared with those of
torchtitan (``tools/utils.py``), which has no H200 NVL. Specifications with 2:4 sparsity are halved."""


def peak_flops(gpu: str, precision: str) -> float | None:
    """Return the operations a second that this GPU is specified for; None where that is not known, or of a slice.

    Args:
        gpu: its name, as NVML gives it.
        precision: ``bfloat16``; ``float16``, with the same peaks; or ``float32`` without TensorFloat-32, as torch
            does it unless told otherwise.
    """
    words = gpu.replace("-", " ").replace("_", " ").split()
    if "MIG" in words:
        return None
    for name, half, float32 in PEAK_FLOPS:
        if all(word in words for word in name.split()):
            return float32 if precision == "float32" else half
    return None


@dataclass(frozen=True, slots=True)
class Work:
    """What one pass over rollouts asks of a model.

    Attributes:
        tokens: that go through the layers.
        scored: log-probabilities that are taken: logits are made for these alone.
        pairs: of a token and a token that it attends to, itself among them.
    """

    tokens: int
    scored: int
    pairs: int


def work_of(groups: Iterable[tuple[int, Sequence[int]]]) -> Work:
    """Add up what groups ask for: a prompt once, whatever rows it goes through a model of transformers in.

    Padding and the last token of a response, which predicts nothing, do not count.

    Args:
        groups: tokens of the prompt, and of each response to it.
    """
    tokens = scored = pairs = 0
    for prompt, lengths in groups:
        tokens += prompt + sum(length - 1 for length in lengths)
        scored += sum(lengths)
        pairs += prompt * (prompt + 1) // 2
        pairs += sum((length - 1) * prompt + (length - 1) * length // 2 for length in lengths)
    return Work(tokens, scored, pairs)


def training_flops(shape: ModelConfig, work: Work) -> float:
    """Return the operations of one pass forward and back.

    Forward: 2 for each weight of a layer's matrices and each token, 2 for each weight of the output matrix and each
    scored token, 4 L q for each pair in attention. The way back takes twice as many. Norms, biases, activations and
    looking an embedding up are left out.
    """
    layers = shape.num_hidden_layers * shape.matrix_parameters
    products = work.tokens * layers + work.scored * shape.embedding_parameters
    return 3.0 * (2 * products + 4 * shape.num_hidden_layers * shape.query_size * work.pairs)


def group_flops(shape: ModelConfig, prompt: int, responses: Sequence[int]) -> float:
    """Return the operations of one pass over rollouts that share a prompt; arguments as of ``work_of``."""
    return training_flops(shape, work_of([(prompt, responses)]))


def mfu(flops: float, seconds: float, peak: float) -> float:
    """Return the share of the peak that was used.

    Raises:
        ValueError: there was no time, or no peak.
    """
    if seconds <= 0 or peak <= 0:
        raise ValueError(f"{seconds} seconds at a peak of {peak}: both must be above 0")
    return flops / seconds / peak


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Turns a training step's groups and spans into ``perf/mfu``.

    Attributes:
        shape: of the policy; None where it or the peak is not known, and there is no metric.
        peak: operations a second that the Learner's GPUs together, one for each rank, are specified for.
        epochs: passes over a rollout batch.
    """

    shape: ModelConfig | None = None
    peak: float = 0.0
    epochs: int = 1

    def metrics(self, step: int, groups: Sequence[RolloutGroup], spans: Sequence[Span]) -> Metrics:
        """Return ``perf/mfu`` of the ``update`` stage of a training step, from the groups that it trained on.

        All passes count, forward and back, and nothing that is computed twice.
        """
        nanoseconds = sum(s.end_ns - s.start_ns for s in spans if s.stage is Stage.UPDATE and s.step == step)
        sizes = [(group.prompt_length, group.lengths) for group in groups if group.prompt_length is not None]
        if self.shape is None or nanoseconds <= 0 or len(sizes) < len(groups):
            return {}
        flops = self.epochs * training_flops(self.shape, work_of(sizes))
        return {"perf/mfu": Metric(mfu(flops, nanoseconds / 1e9, self.peak))}
