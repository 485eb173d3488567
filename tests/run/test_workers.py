"""The workers: what they hand on, and which spans they open in which order."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.core.errors import RunStopped
from harness.core.protocols import Engine
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Completion, Metric, Prompt, Purpose, SamplingParams, ScoredBatch, WorkItem
from harness.engines.stop_strings import SpecialTokens
from harness.results import EvaluationRow, store_metrics
from harness.run.arm_runner import dropped_special_line
from harness.run.weight_sync import publish_weights
from harness.run.workers import DROPPED_SPECIAL, GeneratorWorker, ScorerWorker
from harness.tasks.scoring import DirectRewards
from harness.transports.in_process import InProcessTransport


class Letters:
    """A tokenizer with one token for each letter."""

    eos_token_id = 0
    pad_token_id = 1

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return "".join(map(chr, token_ids))


class Echo:
    """An engine that answers sample n with the prompt's first n + 1 letters."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.seeds: list[int] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], num_samples: int, sampling: Any, seed: int, places: Any = None
    ) -> list[tuple[Completion, ...]]:
        self.seeds.append(seed)
        return [tuple(self._answer(prompt[: sample + 1]) for sample in range(num_samples)) for prompt in prompts]

    def _answer(self, token_ids: Sequence[int]) -> Completion:
        ids = np.array(token_ids, dtype=np.int64)
        text = "".join(map(chr, token_ids))
        return Completion(ids, np.full(len(ids), -0.5, np.float32), text, "length" if len(ids) > 1 else "stop")

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int = 0) -> None:
        self.weights = {name: tensor.clone() for name, tensor in weights.items()}


class StartsWith:
    """Reward 1 if the response is the ground truth."""

    train_prompts = (Prompt("abc", "a"), Prompt("xyz", "xy"))
    validation_prompts = (Prompt("mno", "m"),)

    def reward(self, response: str, ground_truth: str) -> dict[str, float]:
        hit = float(response == ground_truth)
        return {"reward": hit, "format_reward": 1.0, "answer_reward": hit}


def ticking() -> RecordingTracer:
    return RecordingTracer(itertools.count(0, 10).__next__)


def generator_of(
    engine: Engine, tracer: RecordingTracer, transport: InProcessTransport | None = None, **options: Any
) -> GeneratorWorker:
    receiver, encode = transport or InProcessTransport(snapshot=True), Letters().encode
    asked: dict[str, Any] = {"task": StartsWith(), "encode": encode, "sampling": SamplingParams(), "tracer": tracer}
    return GeneratorWorker(engine, receiver, **asked, **options)


def scored_of(item: WorkItem, reward: Any = None, num_examples: int = 0) -> tuple[ScoredBatch, list[Stage]]:
    """Sample and score; return the batch and the stages that were opened."""
    tracer = ticking()
    groups = generator_of(Echo(), tracer).generate(item)
    rewards = DirectRewards(reward or StartsWith().reward, lambda: False)
    scored = ScorerWorker(rewards, num_examples, tracer).score(item, groups)
    return scored, [span.stage for span in tracer.drain()]


def train_item(prompt_ids: tuple[int, ...] = (0, 1)) -> WorkItem:
    return WorkItem(Purpose.TRAIN, 3, 0, prompt_ids, 2, seed=77)


VALIDATION = WorkItem(Purpose.EVALUATE, 10, 0, (0,), 1, seed=5)


def test_a_generated_batch_carries_tokens_versions_and_lengths() -> None:
    engine, tracer, transport = Echo(), ticking(), InProcessTransport(snapshot=True)
    worker = generator_of(engine, tracer, transport)
    weight = torch.tensor([1.0, 2.0])
    weight_handle = transport.publish_weights({"w": weight}, version=3)
    weight += 1  # the Learner goes on
    worker.load_weights(weight_handle)
    groups = worker.generate(train_item())
    assert (weight_handle.num_bytes, weight_handle.num_tensors) == (8, 1)
    assert engine.weights["w"].tolist() == [1.0, 2.0]
    assert engine.seeds == [77]
    assert [(g.prompt_id, g.step, g.min_version, g.max_version, g.lengths) for g in groups] == [
        (0, 3, 3, 3, (1, 2)),
        (1, 3, 3, 3, (1, 2)),
    ]
    assert groups[1].data.prompt.text == "xyz"
    assert groups[1].data.prompt_token_ids.tolist() == [120, 121, 122]
    assert [c.text for c in groups[1].data.completions] == ["x", "xy"]
    assert tracer.drain() == [
        Span("generator", Stage.WEIGHT_TRANSFER, 0, 10, 3, 3),
        Span("generator", Stage.WEIGHT_LOAD, 20, 30, 3, 3),
        Span("generator", Stage.GENERATE, 40, 50, 3, 3),
    ]


def test_a_loaded_checksum_that_differs_stops_the_run() -> None:
    engine, tracer, transport = Echo(), ticking(), InProcessTransport(snapshot=False)
    worker = generator_of(engine, tracer, transport)
    weight = torch.tensor([1.0, 2.0])
    weight_handle = publish_weights(
        transport, {"w": weight}, 4, frozenset(), with_checksum=True, tracer=tracer, lane="learner"
    )
    weight[1] = 3.0  # between the checksum and the load
    with pytest.raises(RunStopped, match="weights of version 4 that generator received are not"):
        worker.load_weights(weight_handle)
    assert worker.version == -1
    weight[1] = 2.0
    worker.load_weights(weight_handle)
    assert engine.weights["w"].tolist() == [1.0, 2.0]
    assert [(span.lane, span.stage.value) for span in tracer.drain()] == [
        ("learner", "weight_publish"),
        ("learner", "weight_verify"),
        *[("generator", stage) for stage in ("weight_transfer", "weight_load", "weight_verify")] * 2,
    ]


def test_weights_may_travel_in_the_engines_type_with_half_the_bytes_and_their_own_checksum() -> None:
    engine, tracer, transport = Echo(), ticking(), InProcessTransport(snapshot=False)
    weights = {"w": torch.tensor([1.0, 1 + 2**-12, -3.0])}
    how = {"with_checksum": True, "tracer": tracer, "lane": "learner"}
    whole, half = (
        publish_weights(transport, weights, version, frozenset({0}), dtype=dtype, **how)
        for version, dtype in enumerate((None, torch.bfloat16))
    )
    assert (whole.num_bytes, half.num_bytes) == (12, 6)
    generator_of(engine, tracer, transport).load_weights(half)
    assert engine.weights["w"].dtype is torch.bfloat16
    assert engine.weights["w"].tolist() == [1.0, 1.0, -3.0]


def test_a_group_tells_the_versions_of_its_tokens() -> None:
    class TwoVersions(Echo):
        def _answer(self, token_ids: Sequence[int]) -> Completion:
            answer = super()._answer(token_ids)
            return replace(answer, versions=np.array([4, 5][: len(token_ids)]))

    (group, _) = generator_of(TwoVersions(), ticking()).generate(train_item())
    # responses of 1 and 2 tokens, of versions [4] and [4, 5]
    assert (group.min_version, group.max_version, group.mean_version) == (4, 5, pytest.approx(13 / 3))


def test_a_group_whose_reward_fails_is_left_out_and_counted() -> None:
    def reward(response: str, ground_truth: str) -> dict[str, float]:
        if ground_truth == "a":
            raise ValueError("no such answer")
        return StartsWith().reward(response, ground_truth)

    scored, _ = scored_of(train_item(), reward)
    assert [(group.prompt_id, group.rewards) for group in scored.groups] == [(1, (0.0, 1.0))]
    assert scored.failed_groups == 1
    assert "no such answer" in (scored.failure or "")
    assert scored.metrics["reward/total"] == Metric(0.5, count=2)


def test_scoring_fills_in_rewards_and_counts() -> None:
    scored, stages = scored_of(train_item(), num_examples=1)
    # "a" is right and "ab" wrong; "x" is wrong and "xy" right.
    assert [group.rewards for group in scored.groups] == [(1.0, 0.0), (0.0, 1.0)]
    assert scored.metrics == {
        "reward/total": Metric(0.5, count=4),
        "reward/format": Metric(1.0, count=4),
        "reward/answer": Metric(0.5, count=4),
        "response_length": Metric(1.5, count=4),
        "truncated_fraction": Metric(0.5, count=4),
    }
    assert scored.examples == ()
    assert stages == [Stage.GENERATE, Stage.SCORE]


def test_an_evaluation_uses_validation_prompts_and_keeps_examples() -> None:
    scored, stages = scored_of(VALIDATION, num_examples=4)
    assert [(e.prompt, e.response, e.reward, e.num_tokens, e.finish_reason) for e in scored.examples] == [
        ("mno", "m", 1.0, 1, "stop")
    ]
    assert scored.metrics["validation/reward"] == Metric(1.0, count=1)
    assert scored.metrics["validation/response_length"] == Metric(1.0, count=1)
    assert stages == [Stage.EVALUATE, Stage.EVALUATE]


class Thinking(Letters):
    """Letters of which ``!`` is a special token, and so is the end."""

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return {each: SimpleNamespace(special=each != ord("x")) for each in (0, ord("!"), ord("x"))}

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False, **options: Any) -> str:
        skipped = (0, ord("!")) if skip_special_tokens else ()
        return "".join(chr(each) for each in token_ids if each not in skipped)


@pytest.mark.parametrize(("skip", "texts", "dropped"), [(True, ["m"], 1), (False, ["m!x"], 0)])
def test_special_tokens_are_kept_for_the_reward_or_counted(skip: bool, texts: list[str], dropped: int) -> None:
    class Ends(Echo):
        def _answer(self, token_ids: Sequence[int]) -> Completion:
            ids = np.array([ord("m"), ord("!"), ord("x"), 0], dtype=np.int64)
            return Completion(ids, np.zeros(4, np.float32), "m", "stop")

    tracer, special = ticking(), SpecialTokens(Thinking(), ends=(0,))
    groups = generator_of(Ends(), tracer, special=special, skip_special=skip).generate(VALIDATION)
    assert ([each.text for each in groups[0].data.completions], groups[0].dropped_special) == (texts, dropped)
    rewards = DirectRewards(StartsWith().reward, lambda: False)
    metrics = ScorerWorker(rewards, num_examples=0, tracer=tracer).score(VALIDATION, groups).metrics
    assert metrics.get(f"validation/{DROPPED_SPECIAL}") == (Metric(1.0, count=1) if dropped else None)
    assert not special.are_in([ord("m"), ord("x"), 0])
    line = dropped_special_line(EvaluationRow(version=0, step=0, elapsed_s=0.0, metrics=store_metrics(metrics)))
    assert (line or "none").startswith("1 of 1 responses in validation" if dropped else "none")
