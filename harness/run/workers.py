"""What the three parts do, as plain synchronous code that opens its own stage spans.

A worker does not know where it runs: ``inprocess`` puts it on a thread of this process, ``actors`` into a Ray actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from harness.core.errors import Diverged, UserError
from harness.core.protocols import Engine, Task
from harness.core.trace import Stage, Tracer
from harness.core.types import (
    Completion,
    ExampleRollout,
    GroupData,
    LogProbProbe,
    Metric,
    Metrics,
    Prompt,
    Purpose,
    RolloutGroup,
    SamplingParams,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.engines.stop_strings import SpecialTokens
from harness.learner import PolicyTrainer
from harness.learner.checkpoint import LearnerState, SavedState
from harness.learner.offload import Offload
from harness.learner.paced import PacedTrainer
from harness.run.overlapped_publish import Leaving, OverlappedPublish
from harness.run.weight_sync import Encode, ProbeRow, load_weights, probe_rows, publish_weights
from harness.scenario.batch_plan import BatchPlan
from harness.scenario.lanes import publisher_lane, writer_lane
from harness.tasks.rewards import NAMED
from harness.tasks.scoring import GroupRewards, RewardFailed
from harness.transports.protocol import WeightReceiver, WeightSender

EXAMPLES_EVERY = 5
"""Training steps between those of which rollouts are kept to be read."""
MOST_EXAMPLES = 10
"""Rollouts kept of such a step, all of one group."""
MOST_LOG_PROBS = 64
"""Log-probabilities kept of each of them."""
DROPPED_SPECIAL = "dropped_special_fraction"
"""Metric: share of responses whose text leaves out special tokens within it; only where there are some."""


Trainer = PolicyTrainer | PacedTrainer


def prompts_of(task: Task, purpose: Purpose) -> Sequence[Prompt]:
    return task.validation_prompts if purpose is Purpose.EVALUATE else task.train_prompts


class GeneratorWorker:
    """Samples rollouts from an engine.

    Args:
        receiver: fetches published weights for the engine.
        mismatch_bound: of the proof of a load, as in the function ``load_weights``.
        special: finds special tokens within responses; None: there are none.
        skip_special: leave them out of the texts that are rewarded.

    Attributes:
        version: policy version of the weights loaded last; -1 before.
    """

    def __init__(
        self,
        engine: Engine,
        receiver: WeightReceiver,
        *,
        task: Task,
        encode: Encode,
        sampling: SamplingParams,
        tracer: Tracer,
        lane: str = "generator",
        mismatch_bound: float | None = None,
        special: SpecialTokens | None = None,
        skip_special: bool = True,
    ) -> None:
        self._special, self._skip_special = special, skip_special
        self.engine, self.receiver, self.task, self.encode = engine, receiver, task, encode
        self.sampling, self.tracer, self.lane, self.mismatch_bound = sampling, tracer, lane, mismatch_bound
        self.version = -1

    @property
    def notes(self) -> tuple[str, ...]:
        return self.receiver.notes

    def load_weights(self, weight_handle: WeightHandle, arrived: list[torch.Tensor] | None = None) -> Metrics:
        bound = self.mismatch_bound
        measured = load_weights(
            self.receiver, self.engine, weight_handle, arrived, mismatch_bound=bound, tracer=self.tracer, lane=self.lane
        )
        self.version = weight_handle.version
        return measured

    def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Sample the item's groups; their data stays opaque to the loop."""
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.GENERATE
        with self.tracer.span(self.lane, stage, item.step, self.version):
            prompts = [prompts_of(self.task, item.purpose)[prompt_id] for prompt_id in item.prompt_ids]
            token_ids = [list(self.encode(prompt.asked)) for prompt in prompts]
            version = self.version  # at the start: new weights may come in the middle
            sampled = self.engine.generate(token_ids, item.group_size, self.sampling, item.seed, item.places)
            data = [
                GroupData(prompt, np.asarray(ids, dtype=np.int64), self._with_texts(completions))
                for prompt, ids, completions in zip(prompts, token_ids, sampled, strict=True)
            ]
            return tuple(
                replace(_group(item, prompt_id, group_data, version), dropped_special=self._dropped(group_data))
                for prompt_id, group_data in zip(item.prompt_ids, data, strict=True)
            )

    def _with_texts(self, completions: tuple[Completion, ...]) -> tuple[Completion, ...]:
        if self._special is None or self._skip_special:
            return completions
        return tuple(replace(each, text=self._special.text(each.token_ids.tolist())) for each in completions)

    def _dropped(self, data: GroupData) -> int:
        if self._special is None or not self._skip_special:
            return 0
        return sum(self._special.are_in(each.token_ids.tolist()) for each in data.completions)

    def close(self) -> None:
        self.receiver.close()
        close_engine = getattr(self.engine, "close", None)
        if close_engine is not None:
            close_engine()


def _group(item: WorkItem, prompt_id: int, data: GroupData, version: int) -> RolloutGroup:
    """Return the group with the versions of its tokens where the engine tags them, else with ``version``."""
    lengths = tuple(len(completion.token_ids) for completion in data.completions)
    tagged = [completion.versions for completion in data.completions if completion.versions is not None]
    versions = np.concatenate(tagged) if tagged else np.array([version])
    return RolloutGroup(
        prompt_id=prompt_id,
        step=item.step,
        min_version=int(versions.min()),
        max_version=int(versions.max()),
        lengths=lengths,
        data=data,
        mean_version=float(versions.mean()) if tagged else None,
        prompt_length=len(data.prompt_token_ids),
        attempt=item.attempt,
        truncated=tuple(completion.finish_reason == "length" for completion in data.completions),
    )


class ScorerWorker:
    """Rewards rollouts with the task's reward function, and keeps so many of an evaluation to be read."""

    def __init__(self, rewards: GroupRewards, num_examples: int, tracer: Tracer, lane: str = "scorer") -> None:
        self._rewards, self.num_examples, self.tracer, self.lane = rewards, num_examples, tracer, lane

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Return the groups with their rewards, reward metrics, and for an evaluation the first few rollouts.

        A group whose reward function fails or runs out of time is left out and counted.
        """
        evaluating = item.purpose is Purpose.EVALUATE
        with self.tracer.span(
            self.lane, Stage.EVALUATE if evaluating else Stage.SCORE, item.step, groups[0].min_version
        ):
            scored: list[RolloutGroup] = []
            flat: list[dict[str, float]] = []
            failures: list[str] = []
            for group in groups:
                try:
                    data: GroupData = group.data
                    texts = [completion.text for completion in data.completions]
                    rewards = self._rewards(texts, data.prompt.ground_truth, data.prompt.row)
                except RewardFailed as error:
                    failures.append(f"prompt {group.prompt_id}: {error}")
                    continue
                flat += rewards
                scored.append(replace(group, rewards=tuple(reward["reward"] for reward in rewards)))
            examples = tuple(_example(group, 0) for group in scored[: self.num_examples]) if evaluating else ()
            metrics = _reward_metrics(flat, scored, evaluating) if scored else {}
            failure = failures[0] if failures else None
            return ScoredBatch(item, tuple(scored), metrics, examples, len(failures), failure)

    def close(self) -> None:
        self._rewards.close()


def _example(group: RolloutGroup, place: int) -> ExampleRollout:
    data: GroupData = group.data
    completion = data.completions[place]
    assert group.rewards is not None
    return ExampleRollout(
        data.prompt.text,
        completion.text,
        data.prompt.ground_truth,
        group.rewards[place],
        len(completion.token_ids),
        completion.finish_reason,
        group.max_version,
    )


def _trained_example(group: RolloutGroup, place: int, advantage: float) -> ExampleRollout:
    log_probs = group.data.completions[place].log_probs[:MOST_LOG_PROBS]
    return replace(_example(group, place), advantage=advantage, log_probs=tuple(log_probs.round(4).tolist()))


def _reward_metrics(rewards: list[dict[str, float]], groups: Sequence[RolloutGroup], evaluating: bool) -> Metrics:
    count = len(rewards)
    mean = {key: sum(reward[key] for reward in rewards) / count for key in rewards[0]}
    lengths = [length for group in groups for length in group.lengths]
    truncated = sum(c.finish_reason == "length" for group in groups for c in group.data.completions)
    prefix = "validation/" if evaluating else ""

    def name(key: str) -> str:
        """``reward/total`` and ``reward/answer``; of a validation ``reward`` and ``answer_reward``."""
        return key if evaluating else f"reward/{key.removesuffix(NAMED) if key != 'reward' else 'total'}"

    metrics = {prefix + name(key): Metric(value, count=count) for key, value in mean.items()}
    metrics[f"{prefix}response_length"] = Metric(sum(lengths) / count, count=count)
    metrics[f"{prefix}truncated_fraction"] = Metric(truncated / count, count=count)
    if dropped := sum(group.dropped_special for group in groups):
        metrics[f"{prefix}{DROPPED_SPECIAL}"] = Metric(dropped / count, count=count)
    return metrics


class LearnerWorker:
    """Trains the policy, publishes its weights and saves it.

    Args:
        sender: takes the weights.
        publish_dtype: in which they travel; None: as they are trained.
        verify: give each weight handle the checksum of what was published.
        save: writes the policy into a folder; None saves nothing.
        first_probe: prompts and what follows them, by whose tokens the engines prove at version 0 that they hold these
            weights; later the tokens are of the rollouts trained on last. None: nothing is to be proven.
        offload: the trainer's, where it has one.
        overlapped: lets another thread publish while this one trains; None: they take turns.
    """

    def __init__(
        self,
        trainer: Trainer,
        sender: WeightSender,
        *,
        tracer: Tracer,
        publish_dtype: torch.dtype | None = None,
        verify: bool = False,
        save: Callable[[Path], None] | None = None,
        lane: str = "learner",
        first_probe: Sequence[ProbeRow] | None = None,
        offload: Offload | None = None,
        overlapped: OverlappedPublish | None = None,
    ) -> None:
        self.trainer, self.sender, self.tracer, self.verify = trainer, sender, tracer, verify
        self._offload, self._publish_dtype = offload or Offload(), publish_dtype
        self.save, self.lane, self.overlapped = save, lane, overlapped
        self.publish_lane = lane if overlapped is None else publisher_lane(lane)
        self._probe_rows = first_probe
        self._state: LearnerState | None = None
        self._has_accumulated = False
        self._advantages: list[float] = []  # of the training step

    def accumulate(self, step: int, groups: tuple[RolloutGroup, ...], plan: BatchPlan | None = None) -> None:
        """Take in a part of a rollout batch; ``update`` gets the last one. The weights stay as they are."""
        batch, _ = self._pass_over(step, groups, plan)
        with self.tracer.span(self.lane, Stage.UPDATE, step, step):
            self.trainer.accumulate(step, batch)
        self._has_accumulated = True

    def update(self, step: int, groups: tuple[RolloutGroup, ...], plan: BatchPlan | None = None) -> UpdateResult:
        """Train on one rollout batch; the version becomes ``step + 1``. Of some steps a group is kept to be read.

        Args:
            step: the training step.
            groups: all groups, after ``accumulate`` those of the last part, if it has any; a rank of several has the
                data of those that it trains on. None at all, where no group of a batch had a reward: the policy stays.
            plan: which rank trains on what; None: there is one process, or no group.
        """
        batch: Any = None
        examples: tuple[ExampleRollout, ...] = ()
        if groups:
            batch, examples = self._pass_over(step, groups, plan)
        with self.tracer.span(self.lane, Stage.UPDATE, step, step):
            metrics = self.trainer.train(step, batch, partial(self._wait_until_copied, step)) | self._offload.metrics()
        options, has_trained = self.trainer.options, batch is not None or self._has_accumulated
        self._has_accumulated = False
        if self.overlapped is not None:
            self.overlapped.hand_over(step + 1, Leaving(self.trainer.weights(), self._proof(step + 1)))
        advantages, self._advantages = tuple(self._advantages), []
        optimizer_steps = options.optimizer_steps_per_batch if has_trained else 0
        by_step = self.trainer.optimizer_step_metrics if has_trained else ()
        return UpdateResult(step + 1, optimizer_steps, metrics, by_step, examples, advantages=advantages)

    def _pass_over(
        self, step: int, groups: tuple[RolloutGroup, ...], plan: BatchPlan | None
    ) -> tuple[Any, tuple[ExampleRollout, ...]]:
        """Prepare groups for the trainer, with all log-probs; of some steps return rollouts to be read, too."""
        with self.tracer.span(self.lane, Stage.PREPARE_BATCH, step, step):
            batch: Any = self.trainer.prepare(groups, plan, step)
            self._advantages += self.trainer.advantages(batch)
            examples = () if step % EXAMPLES_EVERY else self._examples(step, groups, batch)
        self._offload.back("weights", step, step)
        self._before_passes(step, plan)
        if self.trainer.options.needs_old_log_probs:
            with self.tracer.span(self.lane, Stage.OLD_LOGPROBS, step, step):
                self.trainer.compute_old_log_probs(batch)
        if self.trainer.options.needs_reference:
            with (
                self._offload.resident("reference", step, step),
                self.tracer.span(self.lane, Stage.REFERENCE_LOGPROBS, step, step),
            ):
                self.trainer.compute_reference_log_probs(batch)
        if self._probe_rows is not None:
            held = [group.data for group in groups if group.data is not None]
            self._probe_rows = probe_rows(held) or self._probe_rows
        return batch, examples

    def _before_passes(self, step: int, plan: BatchPlan | None) -> None:
        """Do what is to be done before the policy is first called in a training step: nothing without other ranks."""

    def _examples(self, step: int, groups: tuple[RolloutGroup, ...], batch: Any) -> tuple[ExampleRollout, ...]:
        """Return the rollouts of one group, each time of another one in turn."""
        number = step // EXAMPLES_EVERY % len(groups)
        if groups[number].data is None:
            return ()  # another rank has it
        first = sum(len(group.lengths) for group in groups[:number])
        advantages = self.trainer.advantages(batch)[first:][: len(groups[number].lengths)][:MOST_EXAMPLES]
        return tuple(_trained_example(groups[number], place, advantage) for place, advantage in enumerate(advantages))

    def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Make the current weights available; see ``protocols.Learner``.

        Raises:
            Diverged: the policy's log-probabilities of the probe are not finite.
        """
        leaving = self._leaving(version)
        with self._copying(version) as copied:
            weight_handle = publish_weights(
                self.sender,
                leaving.weights,
                version,
                still_needed,
                with_checksum=self.verify,
                tracer=self.tracer,
                lane=self.publish_lane,
                copied=copied,
                dtype=self._publish_dtype,
            )
        proof = leaving.proof or self._proof(version)
        self._offload.between_steps(version - 1, version)
        return replace(weight_handle, probe=proof)

    def _leaving(self, version: int) -> Leaving:
        """Return what is to leave; where it leaves before the next training step begins, it is proven afterwards."""
        handed_over = None if self.overlapped is None else self.overlapped.leaving(version)
        return handed_over or Leaving(self.trainer.weights(), None)

    def _copying(self, version: int) -> AbstractContextManager[Callable[[], None]]:
        return nullcontext(lambda: None) if self.overlapped is None else self.overlapped.copying(version)

    def _wait_until_copied(self, version: int) -> None:
        """Hold the first optimizer step back until the weights that it changes have left."""
        if self.overlapped is None:
            return
        copied = self.overlapped.is_copied(version)
        with nullcontext() if copied else self.tracer.span(self.lane, Stage.WAIT_FOR_WEIGHTS, version, version):
            self.overlapped.wait_until_copied(version)

    def _proof(self, version: int) -> LogProbProbe | None:
        if not self._probe_rows:
            return None
        with self.tracer.span(self.lane, Stage.WEIGHT_VERIFY, version, version):
            prompts, responses = zip(*self._probe_rows, strict=True)
            log_probs = cast(PolicyTrainer, self.trainer).log_probs_of(prompts, responses)
            if not all(np.isfinite(row_T).all() for row_T in log_probs):
                made_by = max(0, version - 1)  # the step whose update made these weights
                raise Diverged(f"the Learner's log-probabilities at policy version {version} are not finite", made_by)
            return LogProbProbe(prompts, responses, tuple(log_probs))

    @property
    def notes(self) -> tuple[str, ...]:
        return self.sender.notes

    def outgoing(self, version: int) -> list[torch.Tensor]:
        return self.sender.outgoing(version)

    def save_policy(self, version: int, folder: Path | None) -> None:
        if self.save is not None and folder is not None:
            with (
                self._offload.resident("weights", version - 1, version),
                self.tracer.span(self.lane, Stage.SAVE_POLICY, version, version),
            ):
                self.save(folder)

    def save_state(
        self,
        folder: Path,
        version: int,
        asynchronous: bool = False,
        with_reference: bool = False,
        rows: Sequence[ProbeRow] | None = None,
    ) -> float:
        """Save what the Learner has learnt into the folder of a checkpoint, in stage ``checkpoint``; return seconds.

        What an asynchronous save goes on to write is stage ``checkpoint_write`` of a lane of its own; ``finish_save``
        says what was written.

        Args:
            rows: by whose tokens the last weight sync was proven; None: those of this worker.

        Raises:
            UserError: this Learner has no state that can be saved.
            OSError: a file cannot be written.
        """
        with self._all_here(version), self.tracer.span(self.lane, Stage.CHECKPOINT, version, version):
            probe = None if (kept := rows or self._probe_rows) is None else [[p.tolist(), r.tolist()] for p, r in kept]
            numbers = {"version": version, "probe_rows": probe}
            beside = partial(self.tracer.span, writer_lane(self.lane), Stage.CHECKPOINT_WRITE, version, version)
            return self.state.save(
                folder, numbers, asynchronous=asynchronous, beside=beside, with_reference=with_reference
            )

    def finish_save(self, wait: bool = True) -> tuple[SavedState, ...] | None:
        """Return what this process wrote in the last save; None where it is not done, and is not waited for."""
        saved = self.state.finish(wait=wait)
        return None if saved is None else (saved,)

    def load_state(self, folder: Path) -> int:
        """Go on from a checkpoint that was found to be whole; return the version of its policy.

        Raises:
            UserError: see ``LearnerState.load``.
        """
        with self._all_here():
            numbers = self.state.load(folder)
        if self._probe_rows is not None and numbers["probe_rows"] is not None:
            saved = numbers["probe_rows"]
            self._probe_rows = [(np.array(p, dtype=np.int64), np.array(r, dtype=np.int64)) for p, r in saved]
        version: int = numbers["version"]
        return version

    @property
    def state(self) -> LearnerState:
        """What the Learner has learnt.

        Raises:
            UserError: the trainer only passes time.
        """
        if self._state is None:
            if not isinstance(self.trainer, PolicyTrainer):
                raise UserError(
                    f"a {type(self.trainer).__name__} learns nothing that could be saved",
                    "model.type",
                    "save no checkpoints, or train a policy",
                )
            self._state = self._make_state(self.trainer)
        return self._state

    @contextmanager
    def _all_here(self, version: int = -1) -> Iterator[None]:
        """Have all that was learnt on the device for the block."""
        kinds: tuple[Literal["weights", "reference", "optimizer"], ...] = ("weights", "reference", "optimizer")
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(self._offload.resident(kind, version - 1, version))
            yield

    def _make_state(self, trainer: PolicyTrainer) -> LearnerState:
        return LearnerState(trainer)

    def close(self) -> None:
        """Give back what the sender holds, and what was moved away; a save under way is waited for."""
        if self._state is not None:
            self._state.close()
        self.sender.close()
        self._offload.close()
