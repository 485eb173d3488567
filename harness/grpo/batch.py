"""The tensors of one rollout batch, and how to cut micro- and minibatches out of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from harness.core.errors import UserError
from harness.core.types import GroupData
from harness.grpo.masking import shape_of


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """B responses to P prompts; each prompt is kept once, so that a model may encode it once for its whole group.

    Attributes:
        prompt_ids_PL: (P, L) int64, right-padded.
        prompt_lengths_P: (P,) int64.
        response_ids_BT: (B, T) int64, right-padded.
        response_mask_BT: (B, T) bool, true on response tokens.
        prompt_index_B: (B,) int64, the row of ``prompt_ids_PL`` that each response answers.
        engine_log_probs_BT: (B, T) float32, as the engine reported them at sampling; 0 on padding.
        rewards_B: (B,) float32.
        advantages_B1: (B, 1) float32.
        old_log_probs_BT: (B, T) float32, what the ratio divides by, once it is known.
        reference_log_probs_BT: (B, T) float32, of the reference policy, once they are known.
    """

    prompt_ids_PL: Tensor
    prompt_lengths_P: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    prompt_index_B: Tensor
    engine_log_probs_BT: Tensor
    rewards_B: Tensor
    advantages_B1: Tensor
    old_log_probs_BT: Tensor | None = None
    reference_log_probs_BT: Tensor | None = None

    def __post_init__(self) -> None:
        prompts, (rows, width) = self.prompt_ids_PL.shape[0], self.response_ids_BT.shape
        expected: dict[str, tuple[int, ...]] = {
            "prompt_lengths_P": (prompts,),
            "response_mask_BT": (rows, width),
            "prompt_index_B": (rows,),
            "engine_log_probs_BT": (rows, width),
            "rewards_B": (rows,),
            "advantages_B1": (rows, 1),
            "old_log_probs_BT": (rows, width),
            "reference_log_probs_BT": (rows, width),
        }
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise UserError(f"{name} has shape {shape_of(tensor)}, expected {shape}", where=name)

    @property
    def num_rollouts(self) -> int:
        """B."""
        return self.response_ids_BT.shape[0]

    def to(self, device: torch.device | str) -> RolloutBatch:
        """Return the batch with every tensor on the device."""
        tensors: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: each if each is None else each.to(device) for name, each in tensors.items()}
        return RolloutBatch(**moved)

    def rows(self, index_B: Tensor | Sequence[int]) -> RolloutBatch:
        """Return the rollouts at these positions, in this order, with only the prompts they answer.

        Prompts keep their order and are numbered anew. L and T are cut to the longest prompt and the last response
        token among the rows (T is at least 1).

        Args:
            index_B: row numbers, at least one.

        Raises:
            UserError: no row is asked for.
        """
        index_B = torch.as_tensor(index_B, dtype=torch.long, device=self.prompt_index_B.device)
        if index_B.numel() == 0:
            raise UserError("rows() was asked for no row, at least one is needed", where="index_B")
        prompt_rows_P, prompt_index_B = torch.unique(self.prompt_index_B[index_B], return_inverse=True)
        prompt_lengths_P = self.prompt_lengths_P[prompt_rows_P]
        mask_BT = self.response_mask_BT[index_B]
        used = mask_BT.any(dim=0).nonzero()
        longest = int(used[-1]) + 1 if used.numel() else 1

        def cut(tensor_BT: Tensor | None) -> Any:
            return None if tensor_BT is None else tensor_BT[index_B, :longest]

        return RolloutBatch(
            prompt_ids_PL=self.prompt_ids_PL[prompt_rows_P, : int(prompt_lengths_P.max())],
            prompt_lengths_P=prompt_lengths_P,
            response_ids_BT=cut(self.response_ids_BT),
            response_mask_BT=mask_BT[:, :longest],
            prompt_index_B=prompt_index_B,
            engine_log_probs_BT=cut(self.engine_log_probs_BT),
            rewards_B=self.rewards_B[index_B],
            advantages_B1=self.advantages_B1[index_B],
            old_log_probs_BT=cut(self.old_log_probs_BT),
            reference_log_probs_BT=cut(self.reference_log_probs_BT),
        )


def collate(
    groups: Sequence[GroupData], rewards: Sequence[Sequence[float]], pad_token_id: int, advantages_B: Tensor
) -> RolloutBatch:
    """Pad the groups of one rollout batch into tensors on the CPU.

    Args:
        groups: P groups; the rollouts keep their order, group after group.
        rewards: P sequences, the rewards of each group.
        pad_token_id: fills the ids on the right; the masks and lengths leave it out.
        advantages_B: (B,), as ``deltas_per_group`` returns them.

    Returns:
        A batch padded to its longest prompt and its longest response.

    Raises:
        UserError: there is no rollout, or the counts of rewards, advantages, tokens or log-probs do not match.
    """
    completions = list(chain.from_iterable(group.completions for group in groups))
    sizes, counts = [len(group.completions) for group in groups], [len(of_group) for of_group in rewards]
    if not completions:
        raise UserError(f"{len(groups)} groups hold no rollout, at least one is needed", where="groups")
    if sizes != counts:
        raise UserError(f"the groups have {sizes} rollouts but {counts} rewards", where="rewards")
    if tuple(advantages_B.shape) != (len(completions),):
        raise UserError(f"{len(completions)} rollouts but advantages {shape_of(advantages_B)}", where="advantages_B")
    for row, completion in enumerate(completions):
        if len(completion.token_ids) != len(completion.log_probs):
            unequal = f"{len(completion.token_ids)} tokens and {len(completion.log_probs)} log-probs"
            raise UserError(f"rollout {row} has {unequal}", where="groups")
    prompt_ids = [group.prompt_token_ids for group in groups]
    lengths_B = torch.tensor([len(completion.token_ids) for completion in completions])
    width = max(int(lengths_B.max()), 1)
    return RolloutBatch(
        prompt_ids_PL=_pad(prompt_ids, max(map(len, prompt_ids)), pad_token_id, torch.int64),
        prompt_lengths_P=torch.tensor([len(ids) for ids in prompt_ids]),
        response_ids_BT=_pad([each.token_ids for each in completions], width, pad_token_id, torch.int64),
        response_mask_BT=torch.arange(width) < lengths_B[:, None],
        prompt_index_B=torch.arange(len(groups)).repeat_interleave(torch.tensor(sizes)),
        engine_log_probs_BT=_pad([each.log_probs for each in completions], width, 0, torch.float32),
        rewards_B=torch.tensor(list(chain.from_iterable(rewards)), dtype=torch.float32),
        advantages_B1=advantages_B.float().reshape(-1, 1),
    )


def _pad(rows: Sequence[npt.NDArray[Any]], width: int, fill: int, dtype: torch.dtype) -> Tensor:
    padded = pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True, padding_value=fill)
    return functional.pad(padded, (0, width - padded.shape[1]), value=fill)
