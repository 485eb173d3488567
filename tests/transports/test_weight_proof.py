"""The proof of a weight sync: the engine agrees with the Learner on a few tokens, or the run stops."""

import dataclasses
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.compare.run_frame import OUTCOME, figures_of
from harness.core.errors import Diverged, RunStopped
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import Completion, GroupData, LogProbProbe, Metric, Prompt, RolloutGroup
from harness.engines.native import NativeEngine, native_engine
from harness.learner import PolicyTrainer, TrainerOptions
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer
from harness.results import find_runs
from harness.results.frames import table_of
from harness.run.builders import mismatch_bound
from harness.run.experiment import run_scenario
from harness.run.weight_sync import engine_mismatch, load_weights, probe_rows, publish_weights
from harness.run.workers import LearnerWorker
from harness.scenario.load import load_scenario
from harness.transports.in_process import InProcessTransport
from tests.stand_ins.skipped_loads import SkipsLoads, skip_loads

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
SHAPE = dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96)
PROMPTS = [np.array([5, 6, 7]), np.array([9] * 11)]
RESPONSES = [np.array([30, 31]), np.array([40, 41, 42, 43, 44])]


def trainer_of(model: DecoderLM) -> PolicyTrainer:
    return PolicyTrainer(model, TOKENIZER.pad_token_id, TrainerOptions(group_size=4, temperature=0.7))


def changed(model: DecoderLM) -> DecoderLM:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


def synced(model: DecoderLM, engine: NativeEngine | SkipsLoads, bound: float | None, version: int):
    """Publish the model with its probe and a checksum, and load it into the engine; return what was measured."""
    tracer, transport = RecordingTracer(time.perf_counter_ns), InProcessTransport(snapshot=True)
    weights = dict(model.named_parameters())
    weight_handle = publish_weights(
        transport, weights, version, frozenset(), with_checksum=True, tracer=tracer, lane="learner"
    )
    log_probs = tuple(trainer_of(model).log_probs_of(PROMPTS, RESPONSES))
    probe = LogProbProbe(tuple(PROMPTS), tuple(RESPONSES), log_probs)
    weight_handle = dataclasses.replace(weight_handle, probe=probe)
    measured = load_weights(transport, engine, weight_handle, mismatch_bound=bound, tracer=tracer, lane="generator")
    return measured, [(span.lane, span.stage) for span in tracer.drain()]


def test_the_learners_log_probs_are_those_of_temperature_1() -> None:
    """Computed here from one full forward pass for each row; the trainer's own temperature is 0.7."""
    model = changed(DecoderLM(SHAPE))
    for prompt, response, found in zip(
        PROMPTS, RESPONSES, trainer_of(model).log_probs_of(PROMPTS, RESPONSES), strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.from_numpy(response)[:, None])[:, 0]
        assert found.dtype == np.float32
        assert np.abs(found - expected.numpy()).max() < 1e-5


def test_an_engine_with_the_learners_weights_agrees() -> None:
    model = DecoderLM(SHAPE)
    engine = native_engine(model, TOKENIZER)
    measured, spans = synced(changed(model), engine, 1e-4, version=1)
    assert set(measured) == {"engine_mismatch/max", "engine_mismatch/mean"}
    largest, mean = measured["engine_mismatch/max"], measured["engine_mismatch/mean"]
    assert (largest.reduction, largest.count, mean.reduction, mean.count) == ("max", 7, "mean", 7)
    assert 0 <= mean.value <= largest.value < 1e-4
    assert spans[-1] == ("generator", Stage.WEIGHT_VERIFY)


def test_a_load_that_was_left_out_is_found_and_the_checksum_says_nothing() -> None:
    """The checksum is of what arrived, which is right; without a bound the loader takes the engine's word for it."""
    model = DecoderLM(SHAPE)
    engine = SkipsLoads(native_engine(model, TOKENIZER), {1})
    changed(model)
    assert synced(model, engine, None, version=1)[0] == {}
    with pytest.raises(
        RunStopped, match=r"generator does not hold the Learner's weights: after loading policy version 1"
    ):
        synced(model, engine, 1e-4, version=1)
    assert synced(model, engine, 1e-4, version=2)[0]["engine_mismatch/max"].value < 1e-4


def test_the_error_names_the_worst_token_and_all_the_numbers() -> None:
    class Says:
        def score(self, prompts, responses):
            return [np.array([-1.0, -2.0], np.float32), np.array([-1.0, -1.0, -4.5, -1.0, -1.0], np.float32)]

    probe = LogProbProbe(
        tuple(PROMPTS), tuple(RESPONSES), (np.array([-1.0, -2.0], np.float32), np.full(5, -1.0, np.float32))
    )
    with pytest.raises(RunStopped) as stopped:
        engine_mismatch(Says(), probe, 3.49, 3, "generator0")
    numbers = r"generator0 .* version 3 .* token 42 .*place 2 of rollout 1.* -4.5.* -1; .*3.5 .* 3.49 .*7 tokens: 0.5"
    assert re.match(numbers, str(stopped.value))
    measured = engine_mismatch(Says(), probe, 3.5, 3, "generator0")
    assert measured["engine_mismatch/max"].value == 3.5


def test_what_is_not_a_number_is_a_mismatch() -> None:
    model = DecoderLM(SHAPE)
    engine = native_engine(model, TOKENIZER)
    with torch.no_grad():
        model.get_parameter("model.norm.weight").fill_(torch.nan)
    with pytest.raises(RunStopped, match="gap of nan is above"):
        synced(model, engine, 1e-4, version=1)


def group_of(prompt: list[int], response: list[int]) -> GroupData:
    ids = np.array(response)
    completion = Completion(ids, np.zeros(len(ids), np.float32), "", "length")
    return GroupData(Prompt("p", "g"), np.array(prompt), (completion, completion))


def test_a_probe_is_the_start_of_a_few_rollouts() -> None:
    """At most 4 rollouts of other prompts, 16 tokens each; the last token is left out, or the prompt's stands in."""
    groups = [group_of([1, 2], list(range(40))), group_of([3], [4, 5, 6]), group_of([7, 8], [9]), group_of([7], [9])]
    rows = [(prompt.tolist(), response.tolist()) for prompt, response in probe_rows([*groups, *groups])]
    assert rows == [([1, 2], list(range(16))), ([3], [4, 5]), ([7], [8])]


def learner_of(log_prob: float) -> LearnerWorker:
    """A Learner whose policy gives every token the same log-probability."""
    trainer = SimpleNamespace(
        options=TrainerOptions(group_size=2),
        optimizer_step_metrics=(),
        prepare=lambda groups, plan=None, step=0: None,
        advantages=lambda batch: [],
        train=lambda step, batch, before_change=None: {},
        weights=lambda: {"w": torch.zeros(1)},
        log_probs_of=lambda prompts, responses: [np.full(len(each), log_prob, np.float32) for each in responses],
    )
    transport, first = InProcessTransport(snapshot=False), [(np.array([1]), np.array([2, 3]))]
    return LearnerWorker(trainer, transport, tracer=RecordingTracer(time.perf_counter_ns), first_probe=first)


def probed(learner: LearnerWorker, version: int):
    probe = learner.publish_weights(version, frozenset()).probe
    return None if probe is None else [row.tolist() for row in (*probe.prompts, *probe.responses)]


def test_a_batch_that_gives_no_probe_leaves_the_one_before_it() -> None:
    """Prompt and response of one token each: nothing is left to score behind anything."""
    learner = learner_of(-1.0)
    assert probed(learner, 0) == [[1], [2, 3]]
    for step, group in enumerate((group_of([3], [4, 5, 6]), group_of([7], [9]))):
        learner.update(step, (RolloutGroup(0, 0, 0, 0, (1,), group),))
        assert probed(learner, step + 1) == [[3], [4, 5]]


@pytest.mark.parametrize("log_prob", [float("nan"), float("-inf")])
def test_a_learner_whose_log_probs_are_no_numbers_has_diverged_and_says_at_which_step(log_prob: float) -> None:
    """Version 3 is what step 2 made of version 2. The engine is not to blame, so it is not asked."""
    with pytest.raises(Diverged, match="log-probabilities at policy version 3 are not finite") as diverged:
        learner_of(log_prob).publish_weights(3, frozenset())
    assert diverged.value.step == 2


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        (["engine.type=vllm"], 1e-4),
        (["engine.type=vllm", "engine.precision=bfloat16"], 0.5),
        (["engine.type=vllm", "model.precision=bfloat16"], 0.5),
        (["engine.type=vllm", "model={type: folder, path: m, dtype: bfloat16}"], 0.5),  # the Learner's weights round
        (["engine.type=vllm", "model={type: folder, path: m, dtype: float32}"], 1e-4),
        (["engine.type=vllm", "engine.precision=bfloat16", "engine.mismatch_bound=0.1"], 0.1),
        (["engine.type=native"], None),
        (["engine.type=native", "engine.mismatch_bound=0.2"], 0.2),
    ],
)
def test_the_bound_is_that_of_float32_only_where_nothing_rounds(settings: list[str], bound: float | None) -> None:
    scenario = load_scenario("quickstart", ["model.precision=float32", "engine.precision=float32", *settings])
    assert mismatch_bound(scenario) == bound


SETTINGS = [
    "model.preset=tiny",
    "model.warm_start=false",
    "model.threads=1",
    "engine.precision=float32",
    "model.precision=float32",
    "engine.mismatch_bound=1e-4",
    "optimizer.learning_rate=0.01",
    "optimizer.weight_decay=10",  # random weights earn no reward: this alone changes them, by a tenth a step
    "rollout_batch_size=8",
    "group_size=4",
    "sampling.max_tokens=8",
    "steps=3",
    "evaluation.prompts=4",
    "save_policy=false",
]


def test_a_run_logs_the_mismatch_of_each_sync_and_stops_at_the_step_whose_weights_were_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_loads(monkeypatch, "native", {3})
    with pytest.raises(RunStopped, match=r"does not hold the Learner's weights: after loading policy version 3"):
        run_scenario(load_scenario("quickstart", SETTINGS), tmp_path, quiet=True, show=lambda folder: None)
    (run,), damaged = find_runs(tmp_path)
    assert (run.status, damaged) == ("failed", [])
    assert [row.step for row in run.steps] == [0, 1]  # step 2 makes version 3, and is not complete without it
    largest = [row.metric("engine_mismatch/max") for row in run.steps]
    # version 0 comes before the first step, which also has version 1; each has a few tokens of its own
    assert all(isinstance(metric, Metric) and 0 < metric.value < 1e-4 for metric in largest)
    told = json.loads((run.folder / "manifest.json").read_text())["outcome"]["syncs"]
    assert told["engine_mismatch/max"] == max(metric.value for metric in largest)
    (figure,) = [figure for figure in OUTCOME if figure.key == "engine_mismatch_max" and figure.in_table]
    assert figures_of(table_of(run))[figure.key] == told["engine_mismatch/max"]
