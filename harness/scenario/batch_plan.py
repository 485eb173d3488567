"""Which rows of a rollout batch each rank trains on, in which microbatch, and what the loss is divided by.

A plan is made once for a batch, of lengths alone, before any rank works: so the denominators of the whole batch need no
collective, every rank makes equally many microbatches (one more on one rank would hang all others), and no row is lost
or trained twice. Ranks compare the plan's digest before their first collective. Without torch: the simulator plans with
it too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.core.seeds import derive_seed
from harness.settings.learner import Balance

Rows = npt.NDArray[np.int64]
"""Row numbers of the rollout batch: its groups' rollouts behind one another."""


GroupCost = Callable[[int, Sequence[int]], float]
"""Returns what rollouts that share a prompt cost to train on, given the tokens of the prompt and of each response."""


def num_tokens(prompt: int, responses: Sequence[int]) -> float:
    """Return the tokens that are run; the prompt is, once."""
    return prompt + sum(responses)


@dataclass(frozen=True, slots=True)
class OptimizerStepPlan:
    """One optimizer step: its microbatches, and the size of the whole minibatch.

    Attributes:
        microbatches: for each data-parallel rank its microbatches, equally many; an empty one stands for a microbatch
            of weight 0, in which the rank takes part in the collectives and adds nothing.
        num_sequences: rows of all ranks.
        num_tokens: their response tokens in the loss.
        num_groups: groups that these rows are of, whole or in part.
        group_tokens_P: their response tokens in the loss, by the group's number in the rollout batch.
    """

    microbatches: tuple[tuple[Rows, ...], ...]
    num_sequences: int
    num_tokens: int
    num_groups: int
    group_tokens_P: Rows


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The optimizer steps of one training step, pass by pass.

    Attributes:
        epochs: the optimizer steps of each pass.
        group_B: the group of each row.
        imbalance: tokens of the rank that has most, over the mean of the ranks, in an optimizer step of the mean; 1 is
            even. Ranks wait for each other in each one.
        tokens, costs: of each rank, added over the optimizer steps; the costs by which the rows were shared out.
    """

    epochs: tuple[tuple[OptimizerStepPlan, ...], ...]
    group_B: Rows
    imbalance: float
    tokens: tuple[int, ...]
    costs: tuple[float, ...]

    def rows_of(self, rank: int, epochs: slice = slice(None)) -> Rows:
        """Return the rows that a data-parallel rank trains on in these passes, in their order, each once."""
        pieces = [rows for steps in self.epochs[epochs] for step in steps for rows in step.microbatches[rank]]
        return np.unique(np.concatenate(pieces))

    def groups_of(self, rank: int) -> list[int]:
        """Return the groups whose data a data-parallel rank needs; one that trains on nothing needs some tokens too."""
        groups: list[int] = np.unique(self.group_B[self.rows_of(rank)]).tolist()
        return groups or [0]

    @property
    def digest(self) -> str:
        """What two plans have in common only if they are the same."""
        total = hashlib.sha256(self.group_B.tobytes())
        for steps in self.epochs:
            for step in steps:
                total.update(f"|{step.num_sequences} {step.num_tokens}".encode())
                for of_rank in step.microbatches:
                    for rows in of_rank:
                        total.update(b"," + rows.tobytes())
        return total.hexdigest()


def plan_batch(
    groups: Sequence[tuple[int, Sequence[int]]],
    *,
    step: int,
    in_loss_B: npt.NDArray[np.bool_] | None = None,
    seed: int = 0,
    epochs: int = 1,
    minibatches: int = 1,
    microbatches: int = 1,
    shuffle: bool = True,
    ranks: int = 1,
    balance: Balance = "round_robin",
    cost: GroupCost = num_tokens,
) -> BatchPlan:
    """Plan one training step.

    Args:
        groups: of the rollout batch: tokens of each one's prompt and of its responses.
        step: the training step.
        in_loss_B: whether a response's tokens are in the loss; None: all are.
        seed: of the run; minibatches are dealt anew in each pass, by (seed, step, pass) and nothing else.
        epochs: passes over the batch.
        minibatches: optimizer steps of each pass; fewer where there are fewer rows.
        microbatches: of each rank in an optimizer step; fewer where no rank has as many rows.
        shuffle: deal the groups to minibatches; else they are consecutive rows.
        ranks: that share the rows, data-parallel ones.
        balance: how: groups in turns, or the costliest group first to the rank that has least (Graham 1969), by its
            tokens or by ``cost``.
        cost: of ``balance: cost``.
    """
    responses_B = np.array([length for _, lengths in groups for length in lengths])
    group_B = np.arange(len(groups)).repeat([len(lengths) for _, lengths in groups])
    in_loss_B = responses_B if in_loss_B is None else responses_B * in_loss_B

    def price(rows: Rows, cost: GroupCost) -> float:
        of_groups = ((group, rows[group_B[rows] == group]) for group in np.unique(group_B[rows]))
        return sum(cost(groups[group][0], responses_B[of_group].tolist()) for group, of_group in of_groups)

    balanced = cost if balance == "cost" else num_tokens
    passes, tokens, costs = [], [], []
    for epoch in range(epochs):
        steps = []
        for rows in deal(group_B, minibatches, shuffle=shuffle, seed=seed, step=step, epoch=epoch):
            in_turns = balance == "round_robin"
            shares = _share_out(rows, group_B, ranks, None if in_turns else lambda own: price(own, balanced))
            tokens.append([price(share, num_tokens) for share in shares])
            costs.append(tokens[-1] if balanced is num_tokens else [price(share, balanced) for share in shares])
            pieces = [np.array_split(share, microbatches) for share in shares]
            most = max(sum(len(piece) > 0 for piece in of_rank) for of_rank in pieces)
            group_tokens_P = np.zeros(len(groups), dtype=np.int64)
            np.add.at(group_tokens_P, group_B[rows], in_loss_B[rows])
            steps.append(
                OptimizerStepPlan(
                    microbatches=tuple(tuple(of_rank[:most]) for of_rank in pieces),
                    num_sequences=len(rows),
                    num_tokens=int(in_loss_B[rows].sum()),
                    num_groups=len(np.unique(group_B[rows])),
                    group_tokens_P=group_tokens_P,
                )
            )
        passes.append(tuple(steps))
    in_steps = np.array(tokens)
    imbalance = float(in_steps.max(axis=1).sum() / in_steps.mean(axis=1).sum())
    of_ranks = (tuple(np.array(each).sum(axis=0).tolist()) for each in (in_steps.astype(np.int64), costs))
    return BatchPlan(tuple(passes), group_B, imbalance, *of_ranks)


def deal(group_B: Rows, pieces: int, *, seed: int, step: int, epoch: int, shuffle: bool = True) -> list[Rows]:
    """Deal the rows to the minibatches of a pass, whose sizes differ by at most one; none is empty.

    Groups are shuffled, and the rows within each, so that a group's rows stay together but for those at the border of
    two minibatches, and a minibatch encodes few prompts.
    """
    rows = np.arange(len(group_B))
    if shuffle and pieces > 1:
        rng = np.random.default_rng(derive_seed("minibatches", seed, step, epoch))
        rank_P = rng.permutation(int(group_B.max()) + 1)
        rows = rng.permutation(len(group_B))
        rows = rows[rank_P[group_B[rows]].argsort(kind="stable")]
    return [piece for piece in np.array_split(rows, pieces) if len(piece)]


def _share_out(rows: Rows, group_B: Rows, ranks: int, price: Callable[[Rows], float] | None) -> list[Rows]:
    """Give each rank its share of a minibatch, in the minibatch's order: in turns where there is no price.

    Groups stay whole, so that a prompt is encoded once; where there are fewer than ranks, the largest are halved.
    """
    if ranks == 1:
        return [rows]
    _, first, group_of = np.unique(group_B[rows], return_index=True, return_inverse=True)
    atoms = [np.flatnonzero(group_of == group) for group in first.argsort()]
    while len(atoms) < ranks and max(map(len, atoms)) > 1:
        largest = max(range(len(atoms)), key=lambda number: len(atoms[number]))
        atoms[largest : largest + 1] = np.array_split(atoms[largest], 2)
    taken: list[list[Rows]] = [[np.zeros(0, dtype=np.int64)] for _ in range(ranks)]
    if price is None:
        for number, atom in enumerate(atoms):
            taken[number % ranks].append(atom)
    else:
        costs, totals = [price(rows[atom]) for atom in atoms], [0.0] * ranks
        for number in sorted(range(len(atoms)), key=lambda number: -costs[number]):
            least = totals.index(min(totals))
            taken[least].append(atoms[number])
            totals[least] += costs[number]
    return [rows[np.sort(np.concatenate(own))] for own in taken]
