"""Families in vLLM, and runs of them in both engines, each in a process of its own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.models.families import FAMILIES
from tests.models.family_process import TRAINED, in_process

pytestmark = pytest.mark.slow  # half a minute for each
BOUND = 1e-5
REFUSED = {
    "Qwen3-MoE": "in an order of its own",
    "GPT-OSS": "in an order of its own",
    "Qwen3-Next": "Chunked prefill is required",
    "LFM2": "Chunked prefill is required",
    "DeepSeek V3": "attention heads of 8 channels",
    "Cohere2": "one token more than its window",
    "Qwen2 with windows": "Sliding window for some",
}
"""What vLLM cannot serve on a CPU, and a part of the reason."""
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (make install-vllm)")


@needs_vllm
@pytest.mark.parametrize("name", FAMILIES)
def test_vllm_has_the_log_probs_of_the_reference_before_and_after_new_weights(name: str, tmp_path: Path) -> None:
    found = in_process("vllm", name, tmp_path / "model", tmp_path / "found.json")
    if name in REFUSED:
        assert REFUSED[name] in found["refused"]
    else:
        assert max(found["vllm"], found["vllm_after_sync"]) < BOUND, found


@pytest.mark.parametrize("engine", ["native", pytest.param("vllm", marks=needs_vllm)])
@pytest.mark.parametrize("name", TRAINED)
def test_a_family_trains_and_is_evaluated(name: str, engine: str, tmp_path: Path) -> None:
    found = in_process("run", name, tmp_path / "model", tmp_path / "found.json", engine)
    assert (found["exit"], found["steps"], found["evaluations"]) == (0, 3, [0, 3])
    assert found["mismatch"] < BOUND
    assert found["still"] == []
    assert found["evaluate_exit"] == 0
