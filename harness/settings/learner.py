"""How the Learner works, and how it is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.settings.base import Parts, Settings

Sharding = Literal["none", "ddp", "fsdp2", "deepspeed"]
ZeroStage = Literal[1, 2, 3]
Balance = Literal["round_robin", "longest_first", "cost"]
Publish = Literal["shards", "per_tensor", "rank0"]
Held = Literal["weights", "reference", "gradients", "optimizer"]
"""What a Learner holds: the policy's weights, those of the reference and the previous policy, what gradients are kept
in beside themselves, and the optimizer's state."""
Phase = Literal[
    "sampling", "old_logprobs", "reference_logprobs", "gradients", "optimizer_step", "reference_update", "publish"
]
"""What a Learner does: ``sampling`` is all of the time between two training steps. The previous policy is replaced in
``reference_update`` too."""
BATCH_WIDE = ("batch_normalized_rewards", "batch_whitened_rewards")
"""Advantages that divide by a figure of the whole batch."""
MOST_ADDED_AT_ONCE = 50_000_000
"""Most gradients that DeepSpeed adds up at once. Its own 500 million would be 2 GB, for a small model too."""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """How many ranks copy, cut and split the model: ``replicate`` x ``shard`` x ``tensor`` of them, tensor innermost.

    The same ranks form two meshes. The model's has these three dimensions. The data's has two: all of ``replicate`` and
    ``shard`` take different rollouts, and the ranks of one ``tensor`` group take the same ones.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.replicate * self.shard * self.tensor

    @property
    def data_ranks(self) -> int:
        """Ranks that take different rollouts."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Return which share of the rollouts a rank takes."""
        return rank // self.tensor

    def speaks(self, rank: int) -> bool:
        """Whether a rank's figures count: those of one tensor group are the same."""
        return rank % self.tensor == 0


class MeshSettings(Settings):
    """How ranks are laid out; the number of shards follows from the others."""

    replicate: Parts | None = None
    """Copies of the model, each on a group of ranks of its own; null: as many as there are ranks with ddp, else 1."""
    tensor: Parts = 1
    """Ranks that split each layer's matrices (tensor parallelism) and train on the same rollouts."""


class OffloadSettings(Settings):
    """What leaves the Learner's device between the phases that use it: a GPU's memory for that of the host, a CPU's for
    a file."""

    weights: bool = False
    """The policy, from its publication until the next training step; reference and previous policy, except in their
    own stage."""
    gradients: bool = False
    """DDP's gradient buckets; gradients themselves are always freed after each optimizer step."""
    optimizer: bool = False
    """The optimizer's state, except in optimizer steps."""


class LearnerSettings(Settings):
    """How the Learner works, and how it is spread over `placement.learner.ranks`."""

    sharding: Sharding = "none"
    """ddp: a whole copy of the model on each rank; fsdp2: weights, gradients and optimizer are sharded over them;
    deepspeed: as much of these as zero_stage says, by DeepSpeed's engine."""
    zero_stage: ZeroStage | None = None
    """What ZeRO shards with deepspeed: 1 the optimizer, 2 gradients too, 3 weights too; null: 2."""
    mesh: MeshSettings = MeshSettings()
    """The mesh of ranks."""
    balance: Balance = "longest_first"
    """How groups are divided: in turns, or the longest or the costliest first to the rank that has least."""
    publish: Publish = "shards"
    """How weights leave the ranks: each writes its pieces, or rank 0 gathers them tensor by tensor or all at once."""
    offload: OffloadSettings | None = None
    """What leaves the device between phases; null: nothing, and nothing is measured."""
    overlapped_publish: bool = False
    """Publish weights while the next training step runs forward and backward; its optimizer step waits for the copy."""
    stream: Literal["in_order", "as_scored"] | None = None
    """Train on each Generator's part of a batch when it is scored, in the batch's order or in that of arrival, with one
    optimizer step for all; null: train when the whole batch is scored."""


_USED_IN: dict[Held, tuple[Phase, ...]] = {
    "weights": ("old_logprobs", "reference_logprobs", "gradients", "optimizer_step", "reference_update", "publish"),
    "reference": ("reference_logprobs", "reference_update"),
    "gradients": ("gradients", "optimizer_step"),
    "optimizer": ("optimizer_step",),
}


def is_resident(held: Held, phase: Phase, leaving: frozenset[Held]) -> bool:
    """Return whether a Learner has this on its device in a phase, where ``leaving`` leaves between phases."""
    return held not in leaving or phase in _USED_IN[held]
