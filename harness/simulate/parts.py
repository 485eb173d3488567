"""Generator, Scorer and Learner whose stages take the seconds of a machine profile, where others may work too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.core.trace import Stage
from harness.core.types import (
    Metric,
    Metrics,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.simulate.desk import Desk, Doing
from harness.simulate.lengths import LengthSource
from harness.simulate.terms import Group
from harness.simulate.workload import sizes_of

NO_REWARD = 0.0
"""What a rollout gets where the replay buffer asks for rewards: nobody knows what it would be."""


class PricedGenerator:
    """A Generator that takes time.

    Args:
        desk: makes its calls.
        lengths: how long what it samples is.
        pace: seconds of an order, of a paced engine; None asks the costs.
    """

    def __init__(self, desk: Desk, lengths: LengthSource, pace: Callable[[WorkItem], float] | None = None) -> None:
        self._desk, self._lengths, self._pace, self.lane = desk, lengths, pace, desk.lane
        self.version = -1
        self._synced = False
        self._loading = [Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD] + [Stage.WEIGHT_VERIFY] * desk.work.verifications
        self._held: list[tuple[float, int]] = []  # (since, version), for version shares

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """Take the time of a transfer, a load and its verification; nothing is measured.

        Raises:
            AssertionError: the Learner was told that nobody needs this version any more.
        """
        desk, version = self._desk, weight_handle.version
        _check_readable(weight_handle)
        terms, seconds = desk.work.sync(first=not self._synced), desk.costs.seconds
        self._synced = True
        doing = [
            desk.doing(stage, seconds(stage, self.lane, version, terms, part="generator"), version, version)
            for stage in self._loading
        ]
        times = await desk.call("load", doing, version, arrives=desk.work.two_sided, thread=desk.loading)
        _check_readable(weight_handle)
        self.version = version
        self._held.append((times[1][1], version))
        return {}

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Take the time of sampling and return groups without data.

        Raises:
            AssertionError: no weights were loaded.
        """
        assert self.version >= 0, f"{self.lane} generates for step {item.step} without weights"
        oldest = self.version
        self._held = [(-1.0, oldest)]
        groups = self._lengths.groups(item)
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.GENERATE
        doing = self._desk.doing(stage, self._seconds(item, groups), item.step, oldest, works=self._pace is None)
        (time,) = await self._desk.call("generate", [doing], item.step, back=groups)
        mean = self._mean_version(time)
        return tuple(
            RolloutGroup(prompt_id, item.step, oldest, self.version, tuple(lengths), None, None, mean, prompt)
            for prompt_id, (prompt, lengths) in zip(item.prompt_ids, groups, strict=True)
        )

    def _seconds(self, item: WorkItem, groups: Sequence[Group]) -> float:
        if self._pace is not None:
            return self._pace(item)
        return self._desk.costs.seconds("generate", self.lane, item.step, self._desk.work.generate(groups))

    def _mean_version(self, time: tuple[float, float]) -> float | None:
        """Mean of the versions held while it sampled, each weighted by its time; None if there was only one."""
        (start, end), oldest = time, self._held[0][1]
        if self.version == oldest:
            return None
        since = [(min(max(at, start), end), version) for at, version in self._held]
        until = [at for at, _ in since[1:]] + [end]
        area = sum((stop - at) * version for (at, version), stop in zip(since, until, strict=True))
        return area / (end - start) if end > start else float(oldest)


class PricedScorer:
    """A Scorer that takes time and knows no rewards.

    Args:
        desk: makes its calls.
        cap: ``sampling.max_tokens``: a response as long counts as cut.
        rewarded: whether rollouts get ``NO_REWARD``, since a replay buffer takes none without.
    """

    def __init__(self, desk: Desk, cap: int, rewarded: bool) -> None:
        self._desk, self._cap, self._rewarded, self.lane = desk, cap, rewarded, desk.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Take the time of scoring."""
        desk, counted = self._desk, sizes_of(groups)
        seconds = desk.costs.seconds("score", self.lane, item.step, desk.work.batch(counted))
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.SCORE
        doing = desk.doing(stage, seconds, item.step, groups[0].min_version)
        await desk.call("score", [doing], item.step, there=counted, back=counted)
        return ScoredBatch(item, tuple(map(self._scored, groups)), self._metrics(item, groups))

    def _scored(self, group: RolloutGroup) -> RolloutGroup:
        rewards = (NO_REWARD,) * len(group.lengths) if self._rewarded else ()
        return RolloutGroup(
            group.prompt_id,
            group.step,
            group.min_version,
            group.max_version,
            group.lengths,
            None,
            rewards,
            group.mean_version,
            group.prompt_length,
        )

    def _metrics(self, item: WorkItem, groups: Sequence[RolloutGroup]) -> Metrics:
        lengths = [length for group in groups for length in group.lengths]
        prefix = "validation/" if item.purpose is Purpose.EVALUATE else ""
        cut, count = sum([length >= self._cap for length in lengths]), len(lengths)
        return {
            f"{prefix}response_length": Metric(sum(lengths) / count, count=count),
            f"{prefix}truncated_fraction": Metric(cut / count, count=count),
        }


class PricedLearner:
    """A Learner that takes time; it saves nothing and measures nothing.

    Args:
        desk: makes its calls.
        update_s: seconds of one pass, of a paced model, which has no other stages that take time; None asks the costs.
        saves: whether it saves the policy at the end.

    Attributes:
        readable: versions that a Generator may load. A publish forgets, when it begins, all that are not still needed.
    """

    def __init__(self, desk: Desk, update_s: float | None = None, saves: bool = False) -> None:
        self._desk, self._update_s, self._saves, self.lane = desk, update_s, saves, desk.lane
        self._synced = False
        self.readable: set[int] = set()

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Take the time of the stages of one training step."""
        counted = sizes_of(groups)
        await self._desk.call("update", self._training(step, counted), step, there=counted)
        return UpdateResult(step + 1, self._desk.work.scenario.optimizer_steps_per_batch, {})

    def _training(self, step: int, groups: Sequence[Group]) -> list[Doing]:
        desk, work = self._desk, self._desk.work
        asked = [(Stage.PREPARE_BATCH, work.batch)]
        asked += [(Stage.OLD_LOGPROBS, work.log_probs)] * work.has_old_log_probs
        asked += [(Stage.REFERENCE_LOGPROBS, work.reference_log_probs)] * work.has_reference
        if self._update_s is not None:
            passes = work.scenario.epochs_per_batch * self._update_s
            nothing = [desk.doing(stage, 0.0, step, step) for stage, _ in asked]
            return [*nothing, desk.doing(Stage.UPDATE, passes, step, step, works=False)]
        asked += [(Stage.UPDATE, work.update)]
        return [
            desk.doing(stage, desk.costs.seconds(stage, self.lane, step, count(groups)), step, step)
            for stage, count in asked
        ]

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Take the time of a publish and its verification.

        Raises:
            AssertionError: a version that is still needed was given up before.
        """
        assert still_needed <= self.readable, f"versions {set(still_needed - self.readable)} are gone already"
        self.readable &= still_needed
        desk, work = self._desk, self._desk.work
        terms = work.sync(first=not self._synced)
        self._synced = True
        doing = [
            desk.doing(stage, desk.costs.seconds(stage, self.lane, version, terms, part="learner"), version, version)
            for stage in [Stage.WEIGHT_PUBLISH] + [Stage.WEIGHT_VERIFY] * work.verifications
        ]
        await desk.call("publish", doing, version)
        self.readable.add(version)
        return WeightHandle(version, work.weight_bytes, work.weight_tensors, payload=self.readable)

    async def checkpoint(self, version: int) -> None:
        """Take the time of saving the policy, if it is to be saved."""
        desk, doing = self._desk, []
        if self._saves:
            seconds = desk.costs.seconds("checkpoint", self.lane, version, desk.work.sync(first=False))
            doing = [desk.doing(Stage.CHECKPOINT, seconds, version, version)]
        await desk.call("publish", doing, version)  # a call that carries no rollouts either


def _check_readable(weight_handle: WeightHandle) -> None:
    assert weight_handle.payload is None or weight_handle.version in weight_handle.payload, (
        f"version {weight_handle.version} is gone: the Learner was told that only {weight_handle.payload} are needed"
    )
