"""``perf/mfu`` of a training step, computed by hand, and the cases in which there is none."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.trace import Span, Stage
from harness.core.types import RolloutGroup
from harness.models.config import ModelConfig, TransformersConfig
from harness.models.flops import Utilisation
from harness.run.session import utilisation_of
from harness.scenario.load import load_scenario

SHAPE = ModelConfig(
    vocab_size=10,
    hidden_size=4,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
    max_position_embeddings=64,
)
GROUP = RolloutGroup(0, 3, 3, 3, (4, 1), prompt_length=3)
SPANS = [
    Span("learner", Stage.UPDATE, 0, 500, 3, 3),
    Span("learner", Stage.UPDATE, 1000, 9000, 2, 2),  # of another step
    Span("learner", Stage.OLD_LOGPROBS, 0, 7000, 3, 3),
]
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_gib": 80}


def test_a_step_by_hand() -> None:
    # A layer: q and o 4 x 4 each, k and v 4 x 2 each, MLP 3 x 4 x 8: 48 + 96 = 144 numbers. 6 tokens are run, 5 scored,
    # 21 pairs (see test_memory_plan_flops). Forward and back: 6 x (6 x 2 x 144 + 5 x 10 x 4) + 12 x 2 x 4 x 21
    #   = 6 x 1,928 + 2,016 = 13,584; two passes 27,168, in 500 ns at a peak of 10^12: 27,168 / 500,000
    found = Utilisation(SHAPE, 1e12, epochs=2).metrics(3, [GROUP], SPANS)
    assert found.keys() == {"perf/mfu"}
    assert found["perf/mfu"].value == pytest.approx(0.054336)


def test_a_prompt_counts_once_for_transformers_too() -> None:
    other = Utilisation(TransformersConfig(**asdict(SHAPE)), 1e12)
    assert other.metrics(3, [GROUP], SPANS) == Utilisation(SHAPE, 1e12).metrics(3, [GROUP], SPANS)


@pytest.mark.parametrize(
    ("utilisation", "groups", "spans"),
    [
        (Utilisation(), [GROUP], SPANS),
        (Utilisation(SHAPE, 1e12), [GROUP, replace(GROUP, prompt_length=None)], SPANS),
        (Utilisation(SHAPE, 1e12), [GROUP], SPANS[1:]),
    ],
    ids=["no peak", "no tokens", "no update"],
)
def test_what_is_not_known_gives_no_metric(utilisation: Utilisation, groups: Any, spans: Any) -> None:
    assert utilisation.metrics(3, groups, spans) == {}


@pytest.mark.parametrize(
    ("text", "gpus", "peak"),
    [
        ("model: {precision: bfloat16}\n", [H100, H100], 989e12),
        ("model: {precision: float16}\n", [H100], 989e12),
        ("model: {precision: float32}\n", [H100], 67e12),
        ("model: {precision: bfloat16}\n", [], None),
        ("model: {precision: bfloat16}\n", [H100, {"name": "NVIDIA A100-SXM4-80GB"}], None),
        ("model: {precision: bfloat16}\n", [{"name": "Tesla T4"}], None),
        ("model: {type: paced}\nengine: {type: paced}\n", [H100], None),
    ],
    ids=["bfloat16", "float16", "float32", "cpu", "two kinds", "unknown", "no weights"],
)
def test_the_peak_is_that_of_the_precision_and_of_one_kind_of_gpu(
    tmp_path: Path, text: str, gpus: list[dict[str, Any]], peak: float | None
) -> None:
    path = tmp_path / "trial.yaml"
    path.write_text(text + "epochs_per_batch: 4\n")
    found = utilisation_of(load_scenario(path), gpus)
    assert (found.peak if found.shape else None, found.epochs) == (peak, 4)
