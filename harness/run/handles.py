"""Generator, Scorer and Learner as the loop drives them: each asks a worker somewhere by one ``call``.

How a call is carried is all that differs: to a thread of this process (``inprocess.ThreadPart``), to a Ray actor
(``actors.part.ActorPart``), or to all ranks of a Learner at once (``actors.ranks.Ranks``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from harness.core.trace import Stage
from harness.core.types import Metrics, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.learner.checkpoint import SavedState
from harness.results.writer import POLICIES, POLICY

MOVES = ("load_weights", "publish_weights", "begin_publish", "write_shards", "finish_publish")
"""Methods by which weights move, on a thread of their own where a part has one: a Generator loads them while it
samples, or a Learner publishes them while it trains."""


class Part(Protocol):
    """Carries calls to a worker, or to those of all ranks."""

    lane: str

    async def call(
        self, method: str, *arguments: Any, stage: Stage, step: int, version: int, new_groups: int = 0
    ) -> Any:
        """Call a method of the worker and return what it returns.

        Args:
            method: by name.
            arguments: what it gets; the data of rollout groups may be handles of data.
            stage, step, version: what to say that it is doing.
            new_groups: how many groups it samples.
        """


class GeneratorHandle:
    def __init__(self, part: Part) -> None:
        self.part, self.lane, self._version = part, part.lane, -1

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        version = weight_handle.version
        measured: Metrics = await self.part.call(
            "load_weights", weight_handle, stage=Stage.WEIGHT_TRANSFER, step=version, version=version
        )
        self._version = version
        return measured

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.GENERATE
        groups: tuple[RolloutGroup, ...] = await self.part.call(
            "generate", item, stage=stage, step=item.step, version=self._version, new_groups=len(item.prompt_ids)
        )
        return groups


class ScorerHandle:
    def __init__(self, part: Part) -> None:
        self.part, self.lane = part, part.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.SCORE
        scored: ScoredBatch = await self.part.call(
            "score", item, groups, stage=stage, step=item.step, version=groups[0].min_version
        )
        return scored


class LearnerHandle:
    """A Learner whose state can be saved.

    Attributes:
        run_folder: where ``save_policy`` saves policies; None saves nothing.
    """

    def __init__(self, part: Part) -> None:
        self.part, self.lane = part, part.lane
        self.run_folder: Path | None = None

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        await self._call("accumulate", step, groups, stage=Stage.UPDATE, version=step)

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        result: UpdateResult = await self._call("update", step, groups, stage=Stage.UPDATE, version=step)
        return result

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        handle: WeightHandle = await self._call(
            "publish_weights", version, still_needed, stage=Stage.WEIGHT_PUBLISH, version=version
        )
        return handle

    async def save_policy(self, version: int, *, last: bool) -> None:
        folder = self.run_folder and self.run_folder / (POLICY if last else f"{POLICIES}/step_{version}")
        await self._call("save_policy", version, folder, stage=Stage.SAVE_POLICY, version=version)

    async def save_state(
        self, folder: Path, version: int, *, asynchronous: bool, with_reference: bool = False
    ) -> float:
        """Save what was learnt into a checkpoint's folder; return the seconds, of several ranks the slowest one's."""
        blocked_s: float = await self._call("save_state", folder, version, asynchronous, with_reference)
        return blocked_s

    async def finish_save(self, *, wait: bool = True) -> tuple[SavedState, ...] | None:
        """Return what every rank has written; None where one has not, and is not waited for."""
        saved: tuple[SavedState, ...] | None = await self._call("finish_save", wait)
        return saved

    async def load_state(self, folder: Path) -> int:
        """Go on from a whole checkpoint, saved by any number of ranks; return the version of its policy."""
        version: int = await self._call("load_state", folder)
        return version

    async def _call(self, method: str, *arguments: Any, stage: Stage = Stage.CHECKPOINT, version: int = -1) -> Any:
        return await self.part.call(method, *arguments, stage=stage, step=version, version=version)
