"""Generator, Scorer and Learner of the loop's protocols, over actors."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.errors import RunStopped
from harness.core.trace import Stage
from harness.core.types import Metrics, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.run.actors.parts import ActorPart


@dataclass(frozen=True)
class SentAlong:
    """The payload of a weight_handle whose tensors Ray sends with the call that loads them (gloo, nccl).

    Attributes:
        described: the sender's own payload.
        tensors: reference of the tensors.
    """

    described: Any
    tensors: Any


class RemoteGenerator:
    """A Generator in an actor.

    Args:
        part: the actor.
        learner: the actor whose weights it loads. Where they cannot be had, the Learner's death is the first suspect.
    """

    def __init__(self, part: ActorPart, learner: ActorPart) -> None:
        self.part, self.lane, self._learner = part, part.lane, learner
        self._version = -1

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """See ``protocols.Generator``."""
        try:
            measured = await self._load(weight_handle)
        except RunStopped:
            await self._learner.check_alive()
            raise
        self._version = weight_handle.version
        return measured

    async def _load(self, weight_handle: WeightHandle) -> Metrics:
        told: dict[str, Any] = {
            "stage": Stage.WEIGHT_TRANSFER,
            "step": weight_handle.version,
            "version": weight_handle.version,
        }
        if isinstance(weight_handle.payload, SentAlong):
            sent = weight_handle.payload
            described = replace(weight_handle, payload=sent.described)
            measured, _ = await self.part.call("load_arrived", described, time.perf_counter_ns(), sent.tensors, **told)
        else:
            measured, _ = await self.part.call("load", weight_handle, **told)
        return dict(measured)

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """See ``protocols.Generator``. The data of each group is an object reference that the driver owns."""
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.GENERATE
        groups, data = await self.part.call(
            "generate", item, stage=stage, step=item.step, version=self._version, returns=1 + len(item.prompt_ids)
        )
        return tuple(replace(group, data=reference) for group, reference in zip(groups, data, strict=True))


class RemoteScorer:
    """A Scorer in an actor."""

    def __init__(self, part: ActorPart) -> None:
        self.part, self.lane = part, part.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """See ``protocols.Scorer``."""
        stage = Stage.EVALUATE if item.purpose is Purpose.EVALUATE else Stage.SCORE
        bare, data = _apart(groups)
        scored, _ = await self.part.call(
            "score", item, bare, *data, stage=stage, step=item.step, version=groups[0].min_version
        )
        return replace(scored, groups=tuple(replace(group, data=data[group.data]) for group in scored.groups))


class RemoteLearner:
    """The Learner in an actor.

    Args:
        part: the actor.
        tensor_transport: with which its published tensors are sent along with a call; None for a transport whose
            weight_handle says where to fetch them.

    Attributes:
        policy_folder: where ``checkpoint`` saves the policy; None saves nothing.
    """

    def __init__(self, part: ActorPart, tensor_transport: str | None) -> None:
        self.part, self.lane, self._tensor_transport = part, part.lane, tensor_transport
        self.policy_folder: Path | None = None

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """See ``protocols.Learner``."""
        bare, data = _apart(groups)
        result, _ = await self.part.call("update", step, bare, *data, stage=Stage.UPDATE, step=step, version=step)
        assert isinstance(result, UpdateResult)
        return result

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """See ``protocols.Learner``."""
        weight_handle, _ = await self.part.call(
            "publish", version, still_needed, stage=Stage.WEIGHT_PUBLISH, step=version, version=version
        )
        if self._tensor_transport is None:
            assert isinstance(weight_handle, WeightHandle)
            return weight_handle
        sent = self.part.handle.outgoing.options(tensor_transport=self._tensor_transport).remote(version)
        return replace(weight_handle, payload=SentAlong(weight_handle.payload, sent))

    async def checkpoint(self, version: int) -> None:
        """See ``protocols.Learner``."""
        await self.part.call(
            "checkpoint", version, self.policy_folder, stage=Stage.CHECKPOINT, step=version, version=version
        )


def _apart(groups: tuple[RolloutGroup, ...]) -> tuple[tuple[RolloutGroup, ...], list[Any]]:
    """Return the groups without data, and the references of their data, which Ray resolves only as plain arguments."""
    return tuple(replace(group, data=None) for group in groups), [group.data for group in groups]
