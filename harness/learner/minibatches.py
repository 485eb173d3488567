"""Which rows of a rollout batch make up each minibatch and microbatch."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seeds import derive_seed
from harness.grpo import RolloutBatch


def row_numbers(rollouts: RolloutBatch, pieces: int) -> list[Tensor]:
    """Cut the rows into consecutive pieces whose sizes differ by at most one; none is empty."""
    rows_B = torch.arange(rollouts.num_rollouts, device=rollouts.prompt_index_B.device)
    return [piece for piece in rows_B.tensor_split(pieces) if piece.numel()]


def split(rollouts: RolloutBatch, pieces: int) -> list[RolloutBatch]:
    """Cut a batch into its ``row_numbers``; one piece is the batch itself."""
    return [rollouts] if pieces == 1 else [rollouts.rows(rows_B) for rows_B in row_numbers(rollouts, pieces)]


def shuffled_rows(prompt_index_B: Tensor, pieces: int, *, seed: int, step: int, epoch: int) -> list[Tensor]:
    """Deal the rows to minibatches, drawn anew for each pass from (seed, training step, epoch) and nothing else.

    Groups are shuffled, and the rows within each, so that a group's rows stay together but for those at the border of
    two minibatches, and a minibatch encodes few prompts. Each row is in one minibatch; sizes differ by at most one.

    Args:
        prompt_index_B: (B,) the group of each row.
        pieces: minibatches; none is empty, so there are fewer where there are fewer rows.
        seed: of the run.
        step: the training step.
        epoch: the pass over the batch.

    Returns:
        The row numbers of each minibatch, on the device of ``prompt_index_B``.
    """
    generator = torch.Generator().manual_seed(derive_seed("minibatches", seed, step, epoch))
    groups_B = prompt_index_B.cpu()
    rank_P = torch.randperm(int(groups_B.max()) + 1, generator=generator)
    rows_B = torch.randperm(len(groups_B), generator=generator)
    rows_B = rows_B[rank_P[groups_B[rows_B]].argsort(stable=True)]
    return [piece.to(prompt_index_B.device) for piece in rows_B.tensor_split(pieces) if piece.numel()]
