"""What the three parts do, as plain synchronous code that opens its own stage spans.

A shell decides where a worker runs: ``inprocess`` puts it on a thread of this process, Ray actors on other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from harness.errors import Interrupted, UserError
from harness.learner import PolicyTrainer
from harness.protocols import Engine, Task, Tokenizer
from harness.trace import Stage, Tracer
from harness.types import (
    Completion,
    ExampleRollout,
    GroupData,
    Metric,
    Metrics,
    Prompt,
    Purpose,
    RolloutGroup,
    SamplingParams,
    ScoredBatch,
    UpdateResult,
    WeightTicket,
    WorkItem,
)


class WeightTransport(Protocol):
    """Moves weights: publish on the Learner's side, receive on the Generator's."""

    def publish(self, weights: Mapping[str, torch.Tensor], version: int) -> WeightTicket: ...

    def receive(self, ticket: WeightTicket) -> Mapping[str, torch.Tensor]: ...


def prompts_of(task: Task, purpose: Purpose) -> Sequence[Prompt]:
    """The prompts that a work item's ids index."""
    return task.validation_prompts if purpose is Purpose.EVALUATE else task.train_prompts


class GeneratorWorker:
    """Samples rollouts from an engine."""

    def __init__(
        self,
        engine: Engine,
        transport: WeightTransport,
        task: Task,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        tracer: Tracer,
        lane: str = "generator",
    ) -> None:
        self.engine, self.transport, self.task, self.tokenizer = engine, transport, task, tokenizer
        self.sampling, self.tracer, self.lane = sampling, tracer, lane
        self.version = -1

    def load_weights(self, ticket: WeightTicket) -> None:
        """Receive published weights and load them into the engine."""
        with self.tracer.span(self.lane, Stage.WEIGHT_TRANSFER, ticket.version, ticket.version):
            weights = self.transport.receive(ticket)
        with self.tracer.span(self.lane, Stage.WEIGHT_LOAD, ticket.version, ticket.version):
            self.engine.load_weights(weights)
        self.version = ticket.version

    def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Sample the item's groups; their data stays opaque to the loop."""
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.GENERATE
        with self.tracer.span(self.lane, stage, item.step, self.version):
            prompts = [prompts_of(self.task, item.purpose)[prompt_id] for prompt_id in item.prompt_ids]
            token_ids = [self.tokenizer.encode(prompt.text) for prompt in prompts]
            sampled = self.engine.generate(token_ids, item.group_size, self.sampling, item.seed)
            return tuple(
                self._group(item, *parts) for parts in zip(item.prompt_ids, prompts, token_ids, sampled, strict=True)
            )

    def _group(
        self,
        item: WorkItem,
        prompt_id: int,
        prompt: Prompt,
        token_ids: Sequence[int],
        completions: tuple[Completion, ...],
    ) -> RolloutGroup:
        lengths = tuple(len(completion.token_ids) for completion in completions)
        data = GroupData(prompt, np.asarray(token_ids, dtype=np.int64), completions)
        return RolloutGroup(prompt_id, item.step, self.version, self.version, lengths, data)


class ScorerWorker:
    """Rewards rollouts with the task's reward function, and picks the examples that people will read."""

    def __init__(
        self,
        task: Task,
        num_examples: int,
        tracer: Tracer,
        lane: str = "scorer",
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.num_examples, self.tracer, self.lane = task, num_examples, tracer, lane
        self._should_stop = should_stop

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Return the groups with their rewards, reward metrics, and for an evaluation the first few rollouts.

        Raises:
            UserError: the reward function failed.
            Interrupted: ``should_stop``, asked before each rollout, said so.
        """
        evaluating = item.purpose is Purpose.EVALUATE
        with self.tracer.span(
            self.lane, Stage.EVALUATE if evaluating else Stage.SCORE, item.step, groups[0].min_version
        ):
            rewards = [self._rewards(group.data) for group in groups]
            scored = tuple(
                replace(group, rewards=tuple(reward["reward"] for reward in of_group))
                for group, of_group in zip(groups, rewards, strict=True)
            )
            flat = [reward for of_group in rewards for reward in of_group]
            examples = self._examples(scored) if evaluating else ()
            return ScoredBatch(item, scored, _reward_metrics(flat, scored, evaluating), examples)

    def _rewards(self, data: GroupData) -> list[dict[str, float]]:
        return [self._reward(completion.text, data.prompt.ground_truth) for completion in data.completions]

    def _reward(self, response: str, ground_truth: str) -> dict[str, float]:
        if self._should_stop():
            raise Interrupted("stopped while scoring")
        return self.task.reward(response, ground_truth)

    def _examples(self, groups: tuple[RolloutGroup, ...]) -> tuple[ExampleRollout, ...]:
        return tuple(_example(group) for group in groups[: self.num_examples])


def _example(group: RolloutGroup) -> ExampleRollout:
    data: GroupData = group.data
    completion = data.completions[0]
    assert group.rewards is not None
    return ExampleRollout(
        data.prompt.text,
        completion.text,
        data.prompt.ground_truth,
        group.rewards[0],
        len(completion.token_ids),
        completion.finish_reason,
        group.max_version,
    )


def _reward_metrics(rewards: list[dict[str, float]], groups: tuple[RolloutGroup, ...], evaluating: bool) -> Metrics:
    count = len(rewards)
    mean = {key: sum(reward[key] for reward in rewards) / count for key in rewards[0]}
    lengths = [length for group in groups for length in group.lengths]
    truncated = sum(c.finish_reason == "length" for group in groups for c in group.data.completions)
    prefix = "validation/" if evaluating else ""
    names = {"reward": "reward" if evaluating else "reward/total"}
    names |= {f"{part}_reward": f"{part}_reward" if evaluating else f"reward/{part}" for part in ("format", "answer")}
    metrics = {prefix + names[key]: Metric(value, count=count) for key, value in mean.items() if key in names}
    metrics[f"{prefix}response_length"] = Metric(sum(lengths) / count, count=count)
    metrics[f"{prefix}truncated_fraction"] = Metric(truncated / count, count=count)
    return metrics


class LearnerWorker:
    """Trains the policy, publishes its weights and saves it.

    Args:
        trainer: owns the policy.
        transport: takes the weights.
        tracer: records the stages.
        save: writes the policy to disk; None saves nothing.
        lane: name of the lane.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        transport: WeightTransport,
        tracer: Tracer,
        save: Callable[[], None] | None = None,
        lane: str = "learner",
    ) -> None:
        self.trainer, self.transport, self.tracer, self.save, self.lane = trainer, transport, tracer, save, lane

    def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Train on one rollout batch; the version becomes ``step + 1``."""
        with self.tracer.span(self.lane, Stage.PREPARE_BATCH, step, step):
            batch = self.trainer.prepare(groups)
        if self.trainer.options.needs_old_log_probs:
            with self.tracer.span(self.lane, Stage.OLD_LOGPROBS, step, step):
                self.trainer.compute_old_log_probs(batch)
        if self.trainer.options.needs_reference:
            with self.tracer.span(self.lane, Stage.REFERENCE_LOGPROBS, step, step):
                self.trainer.compute_reference_log_probs(batch)
        with self.tracer.span(self.lane, Stage.UPDATE, step, step):
            metrics = self.trainer.train(step, batch)
        return UpdateResult(step + 1, self.trainer.options.optimizer_steps_per_batch, metrics)

    def publish_weights(self, version: int) -> WeightTicket:
        """Make the current weights available."""
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            return self.transport.publish(self.trainer.weights(), version)

    def checkpoint(self, version: int) -> None:
        """Save the policy, if it is to be saved."""
        if self.save is not None:
            with self.tracer.span(self.lane, Stage.CHECKPOINT, version, version):
                self.save()


def check_prompts_fit(task: Task, tokenizer: Tokenizer, max_tokens: int, context: int | None) -> None:
    """Refuse a task whose longest prompt and response do not fit the model's context.

    Raises:
        UserError: with the prompt's number and all the lengths.
    """
    if context is None:
        return
    for purpose in Purpose:
        for number, prompt in enumerate(prompts_of(task, purpose)):
            length = len(tokenizer.encode(prompt.text))
            if length + max_tokens > context:
                raise UserError(
                    f"{purpose} prompt {number} has {length} tokens; with {max_tokens} response tokens that is "
                    f"{length + max_tokens}, more than the model's context of {context}",
                    fix=f"lower sampling.max_tokens to {max(1, context - length)} or less, or shorten the prompt",
                )
