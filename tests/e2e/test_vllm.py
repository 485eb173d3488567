"""Whole runs with vLLM as the engine: its log-probs are the Learner's at every step, whatever the schedule.

The model is random and every reward 0; weight decay alone changes the weights, by a tenth a step, which is enough for a
load that did not happen to be seen. No bound is on speed.
"""

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.types import SamplingParams
from harness.engines.vllm import _start, vllm_engine
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.storage import save_policy
from harness.models.tokenizer import train_tokenizer
from harness.results import Run
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.settings.engine import VllmEngineSettings
from tests.e2e.conftest import run_all

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (make install-vllm)"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray"),
]
SMALL = [
    *("model.preset=tiny", "model.warm_start=false", "optimizer.weight_decay=10", "optimizer.learning_rate=0.01"),
    *("rollout_batch_size=8", "group_size=4", "steps=4", "evaluation={every: 2, prompts: 4}", "save_policy=false"),
]
TOKENIZER = train_tokenizer(["the cat sat on the mat. " * 3], 280)
SHAPE = replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96)
BOUND = 1e-4
"""The issue's, in float32."""


def run(scenario: Scenario, out: Path) -> Run:
    (found,) = run_all(scenario, out)
    return found


def mismatches(run: Run) -> list[float | None]:
    return [metric and metric.value for row in run.steps for metric in [row.metric("engine_mismatch/max")]]


def test_the_engine_agrees_at_every_step_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the user's environment asks for a vLLM in a process of its own, whose weights nothing here reaches."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    finished = run(load_scenario("vllm_sync", [*SMALL, "transport.type=in_process"]), tmp_path)
    assert [row.step for row in finished.steps] == [0, 1, 2, 3]
    assert [row.version for row in finished.evaluations] == [0, 2, 4]
    assert all(value is not None and 0 < value <= BOUND for value in mismatches(finished))


def test_threads_of_one_process_may_serve_and_train_at_the_same_time(tmp_path: Path) -> None:
    settings = [*SMALL, "transport.type=in_process", "sampling.max_tokens=64", "sampling.pinned_lengths=[32,64]"]
    finished = run(load_scenario("vllm_in_flight", settings), tmp_path)
    assert len(finished.steps) == 4
    assert all(value <= BOUND for value in mismatches(finished) if value is not None)


def test_more_prompt_tokens_than_vllm_takes_at_once() -> None:
    """64 different prompts of 200 tokens are 12,800; one that is cut in two to fill a step would end the engine."""
    prompts = [[2 + (number * (place + 1) + place) % 250 for place in range(200)] for number in range(64)]
    with closing(vllm_engine(VllmEngineSettings(max_batch=64), DecoderLM(SHAPE), TOKENIZER)) as engine:
        sampling = SamplingParams(min_tokens=3, max_tokens=3)
        together = engine.generate(prompts, 1, sampling, seed=0)
        assert [len(group[0].token_ids) for group in together] == [3] * 64


@pytest.mark.slow  # each starts Ray and imports vLLM in an actor: half a minute
@pytest.mark.parametrize(
    ("name", "transport"),
    [("vllm_async_lag1", "nixl"), ("vllm_replay", "shared_memory"), ("vllm_in_flight", "nixl")],
)
def test_as_ray_actors_the_engine_agrees_at_every_step(name: str, transport: str, tmp_path: Path) -> None:
    if transport == "nixl":
        pytest.importorskip("nixl")
    finished = run(load_scenario(name, [*SMALL, f"transport.type={transport}"]), tmp_path)
    assert [row.step for row in finished.steps] == [0, 1, 2, 3]
    found = [value for value in mismatches(finished) if value is not None]
    assert len(found) >= 2  # with lag, a step may see no load and the next one two
    assert max(found) <= BOUND


@pytest.mark.slow
def test_two_generators_prove_their_weights_each(tmp_path: Path) -> None:
    parts = ["placement.generator={count: 2, cpus: 0.5}", "placement.learner.cpus=0.5", "placement.colocated=false"]
    finished = run(load_scenario("vllm_sync", [*SMALL, *parts]), tmp_path)
    counts = [row.metric("engine_mismatch/max").count for row in finished.steps]
    # two prompts a step, so the probe holds at most 2 x 16 tokens, and both Generators score them
    assert all(count % 2 == 0 and count > 0 for count in counts)
    assert all(value is not None and value <= BOUND for value in mismatches(finished))


def test_a_build_for_the_other_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would compute where it was built for, and the run would not know."""
    from vllm.platforms import current_platform

    built_for = current_platform.device_type
    other = "cuda" if built_for == "cpu" else "cpu"
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(UserError, match=f"computes on {built_for}, not on {other}"):
        _start(tmp_path, {}, other, 32)


def test_a_head_size_that_vllm_cannot_serve_is_refused(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)  # fmt: skip
    save_policy(Qwen2ForCausalLM(config), TOKENIZER, tmp_path / "model")
    settings = [*SMALL[2:], "transport.type=in_process", f"model={{type: folder, path: {tmp_path / 'model'}}}"]
    with pytest.raises(UserError, match=r"attention heads of 16 channels.*32, 64"):
        run(load_scenario("vllm_sync", settings), tmp_path / "out")
