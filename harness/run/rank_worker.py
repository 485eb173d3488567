"""What one rank of a Learner does: as ``LearnerWorker``, together with the others.

Every method is called on all ranks at once and makes the same collectives on each. Rank 0 speaks for them: it has the
transport, the saved policy and the spans of the lane ``learner``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from harness.core.trace import Stage, Tracer
from harness.core.types import RolloutGroup, UpdateResult, WeightHandle
from harness.learner import PolicyTrainer
from harness.learner.batch_plan import BatchPlan
from harness.learner.process_group import RankGroup
from harness.run.workers import LearnerWorker, ProbeRow, publish_weights
from harness.scenario.learner import Publish
from harness.transports.protocol import WeightSender


@dataclass(frozen=True)
class RankResult:
    """What a rank returns of a training step: its result, and the rows by whose tokens the next sync is proven."""

    result: UpdateResult
    probe_rows: Sequence[ProbeRow] | None


class LearnerRank(LearnerWorker):
    """One rank.

    Args:
        trainer: has this rank's part of the policy.
        sender: takes the weights on rank 0.
        tracer: records the stages.
        group: the ranks.
        publish: how weights are gathered.
        save: writes into a folder, given the whole weights, on rank 0; None saves nothing.
        verify, lane, first_probe: see ``LearnerWorker``.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        sender: WeightSender,
        *,
        tracer: Tracer,
        group: RankGroup,
        publish: Publish,
        verify: bool = False,
        save: Callable[[Path, Mapping[str, Tensor]], None] | None = None,
        first_probe: Sequence[ProbeRow] | None = None,
    ) -> None:
        super().__init__(trainer, sender, tracer=tracer, verify=verify, first_probe=first_probe)
        self._policy_trainer, self._group, self._publish, self._save_whole = trainer, group, publish, save

    def update_together(self, step: int, groups: tuple[RolloutGroup, ...], plan: BatchPlan) -> RankResult:
        """Train on this rank's share; see ``LearnerWorker.update``.

        Raises:
            RunStopped: the ranks were handed different plans.
        """
        self._group.agree(f"the plan of training step {step}", plan.digest)
        result = self.update(step, groups, plan)
        return RankResult(result, self._probe_rows)

    def publish_together(
        self, version: int, still_needed: frozenset[int], rows: Sequence[ProbeRow] | None
    ) -> WeightHandle | None:
        """Publish the weights; the handle is rank 0's, the others return None.

        Args:
            version: of these weights.
            still_needed: see ``protocols.Learner``.
            rows: by whose tokens the sync is proven, the same on all ranks; None: those of the start.
        """
        self._probe_rows = self._probe_rows if rows is None else rows
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            weights = self._whole_weights()
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
        proof = self._proof(version)
        return None if handle is None else replace(handle, probe=proof)

    def _whole_weights(self) -> dict[str, Tensor]:
        """Gather the weights on rank 0; the others return none."""
        if self._publish == "rank0":
            names = self.trainer.weights().keys()
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            gathered: dict[str, Any] = get_model_state_dict(self._policy_trainer.model, options=options)
            return {name: gathered[name] for name in names if name in gathered}
        keep = self._group.rank == 0  # where it is not kept, a tensor is forgotten before the next one is gathered
        return {name: tensor for name, tensor in self._policy_trainer.whole_weights() if keep}

    def checkpoint(self, version: int, folder: Path | None) -> None:
        """Save the whole policy into the folder, on rank 0."""
        if self._save_whole is None or folder is None:
            return
        with self.tracer.span(self.lane, Stage.CHECKPOINT, version, version):
            weights = self._whole_weights()
            if self._group.rank == 0:
                self._save_whole(folder, weights)

    def close(self) -> None:
        """Give back what the sender holds, and leave the group."""
        super().close()
        self._group.close()
