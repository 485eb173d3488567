"""What one rank of a Learner does: as ``LearnerWorker``, together with the others.

Methods are called on all ranks at once and make the same collectives on each, but for those that say rank 0. That one
speaks for all: it has the saved policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.trace import Stage, Tracer
from harness.core.types import LogProbProbe, RolloutGroup, UpdateResult, WeightHandle
from harness.learner import PolicyTrainer
from harness.learner.checkpoint import LearnerState
from harness.learner.process_group import RankGroup
from harness.run.weight_sync import ProbeRow, publish_weights
from harness.run.workers import LearnerWorker
from harness.scenario.batch_plan import BatchPlan
from harness.settings.learner import Publish
from harness.transports import shards
from harness.transports.protocol import WeightSender
from harness.transports.sharded import shard_sender

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class ThreadTime(NamedTuple):
    """Nanoseconds of the calling thread, each from an origin of its own.

    Attributes:
        wall_ns: of the monotonic clock.
        running_ns: on a processor. torch runs a backward pass on a CPU in the thread that calls it.
        runnable_ns: ready to run, on none (proc(5), second number of schedstat); None where the system does not say.
    """

    wall_ns: int
    running_ns: int
    runnable_ns: int | None

    def since(self, start: ThreadTime) -> tuple[float, float | None, float]:
        """Return the seconds computed, runnable and blocked since then; what is not known to be runnable is blocked."""
        running_ns, runnable_ns = self.running_ns - start.running_ns, None
        if self.runnable_ns is not None and start.runnable_ns is not None:
            runnable_ns = self.runnable_ns - start.runnable_ns
        blocked_ns = max(0, self.wall_ns - start.wall_ns - running_ns - (runnable_ns or 0))
        return running_ns / 1e9, None if runnable_ns is None else runnable_ns / 1e9, blocked_ns / 1e9


def thread_time() -> ThreadTime:
    try:
        runnable_ns: int | None = int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        runnable_ns = None
    return ThreadTime(time.perf_counter_ns(), time.thread_time_ns(), runnable_ns)


@dataclass(frozen=True)
class RankResult:
    """What a rank returns of a training step, or of a part of its batch.

    Attributes:
        result: of its rows; None of a part after which others come.
        probe_rows: by whose tokens the next sync is proven.
        waited_s: seconds that it waited until all ranks were ready for the first collective.
        seconds: that its thread computed, was runnable and was blocked, from then to the end of the step; see
            ``ThreadTime``. None where a GPU computes, which the thread's clocks do not see.
    """

    result: UpdateResult | None
    probe_rows: Sequence[ProbeRow] | None
    waited_s: float
    seconds: tuple[float, float | None, float] | None


@dataclass(frozen=True)
class Written:
    """What a rank has published of a version, and what engines that load all of it have to agree with."""

    part: shards.Part
    proof: LogProbProbe | None
    replicas: dict[str, str] | None


class LearnerRank(LearnerWorker):
    def __init__(
        self,
        trainer: PolicyTrainer,
        sender: WeightSender,
        *,
        tracer: Tracer,
        group: RankGroup,
        publish: Publish,
        save: Callable[[Path, Mapping[str, Tensor]], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(trainer, sender, tracer=tracer, **options)
        self._waited_s, self._began = 0.0, thread_time()
        self._on_cpu = all(weight.device.type == "cpu" for weight in trainer.weights().values())
        self._policy_trainer, self._group, self._publish = trainer, group, publish
        self.save = None if save is None else partial(self._save_whole, save)
        self._shard_sender = shard_sender(sender)
        self.plans = shards.agree(trainer.weights()) if publish == "shards" else ()

    def accumulate_together(self, step: int, groups: tuple[RolloutGroup, ...], plan: BatchPlan) -> RankResult:
        """Take in this rank's share of a part of a batch; RunStopped where the ranks were handed different plans."""
        self.accumulate(step, groups, plan)
        return self._result(None)

    def update_together(self, step: int, groups: tuple[RolloutGroup, ...], plan: BatchPlan | None) -> RankResult:
        """Train on this rank's share; RunStopped where the ranks were handed different plans."""
        self._waited_s, self._began = 0.0, thread_time()
        return self._result(self.update(step, groups, plan))

    def _result(self, result: UpdateResult | None) -> RankResult:
        seconds = thread_time().since(self._began) if self._on_cpu else None
        return RankResult(result, self._probe_rows, self._waited_s, seconds)

    def _before_passes(self, step: int, plan: BatchPlan | None) -> None:
        assert plan is not None
        with self.tracer.span(self.lane, Stage.WAIT_FOR_RANKS, step, step):
            self._waited_s = self._group.agree(f"the plan of training step {step}", plan.digest)
        self._began = thread_time()

    def begin_publish(self, version: int, still_needed: frozenset[int]) -> shards.Draft:
        """On rank 0: make room for a version that all ranks will write."""
        with self.tracer.span(self.publish_lane, Stage.WEIGHT_PUBLISH, version, version):
            return self._shard_sender.begin(version, still_needed, self._leaving(version).weights)

    def write_shards(self, draft: shards.Draft, rows: Sequence[ProbeRow] | None) -> Written:
        """Write this rank's pieces of the weights.

        Args:
            draft: from rank 0.
            rows: by whose tokens the sync is proven, the same on all ranks; None: those of the start.
        """
        version, plan = draft.version, self.plans[self._group.rank]
        leaving, replicas = self._leaving(version), None
        with self._copying(version) as copied:
            with self.tracer.span(self.publish_lane, Stage.WEIGHT_PUBLISH, version, version):
                part = self._shard_sender.write(draft, shards.shards_of(leaving.weights, plan), plan.rank)
            if self.verify:
                with self.tracer.span(self.publish_lane, Stage.WEIGHT_VERIFY, version, version):
                    replicas = shards.replica_checksums(leaving.weights, plan)
                    copied()
                    part = self._shard_sender.add_checksum(draft, part)
            else:
                copied()
        proof = leaving.proof or self._proof_by(rows, version)
        self._offload.between_steps(version - 1, version)
        return Written(part, proof, replicas)

    def finish_publish(self, draft: shards.Draft, written: Sequence[Written]) -> WeightHandle:
        """On rank 0: make the version readable, when every rank has written its pieces.

        Raises:
            RunStopped: ranks that hold copies of the same weights differ, or a piece is missing.
        """
        with self.tracer.span(self.publish_lane, Stage.WEIGHT_PUBLISH, draft.version, draft.version):
            self._compare_replicas(draft.version, [each.replicas for each in written if each.replicas is not None])
            handle = self._shard_sender.finish(draft, [each.part for each in written])
            return replace(handle, probe=written[0].proof)

    def _compare_replicas(self, version: int, checksums: Sequence[dict[str, str]]) -> None:
        differing = shards.differing_replicas(self.plans, checksums) if checksums else ()
        if differing:
            sides = " and ".join(str(list(ranks)) for ranks in differing[0].ranks)
            raise RunStopped(
                f"the Learner's ranks have drifted apart: {differing[0].slice} of version {version} is not the same on "
                f"ranks {sides}; {len(differing)} blocks differ"
            )

    def publish_whole(
        self, version: int, still_needed: frozenset[int], rows: Sequence[ProbeRow] | None
    ) -> WeightHandle | None:
        """Gather the weights and publish them; the handle is rank 0's, the others return None."""
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            weights = self._gather()
        handle = None
        if self._group.rank == 0:
            handle = publish_weights(
                self.sender,
                weights,
                version,
                still_needed,
                with_checksum=self.verify,
                tracer=self.tracer,
                lane=self.lane,
            )
        del weights
        proof = self._proof_by(rows, version)
        self._offload.between_steps(version - 1, version)
        return None if handle is None else replace(handle, probe=proof)

    def _save_whole(self, save: Callable[[Path, Mapping[str, Tensor]], None], folder: Path) -> None:
        weights = self._gather()
        if self._group.rank == 0:
            save(folder, weights)

    def _make_state(self, trainer: PolicyTrainer) -> LearnerState:
        return LearnerState(trainer, self._group.rank, self._group.ranks, self._group.checkpoints)

    def close(self) -> None:
        super().close()
        self._group.close()

    def _gather(self) -> dict[str, Tensor]:
        held = self.trainer.weights()  # on the device, wherever they were
        if self._publish == "rank0":
            return shards.gather_whole(self._policy_trainer.model)
        return shards.gather_per_tensor(held, self._policy_trainer.ranks.whole)

    def _proof_by(self, rows: Sequence[ProbeRow] | None, version: int) -> LogProbProbe | None:
        self._probe_rows = self._probe_rows if rows is None else rows
        return self._proof(version)
