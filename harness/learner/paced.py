"""A trainer that sleeps instead of training; the weights that it gives out are real bytes, new ones at each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.core.types import Metrics, RolloutGroup
from harness.learner.trainer import TrainerOptions
from harness.scenario.batch_plan import BatchPlan

STRIDE = 1024
"""float32 values from one that changes at each step to the next: one in every 4096 bytes of a tensor."""


class PacedTrainer:
    """Does what the Learner asks of a ``PolicyTrainer``, except the training.

    Each training step sets every ``STRIDE``-th value of every tensor, the first one included, to the number of steps
    done: cheap, and yet no two versions have the same checksum, and 4096 bytes in a row that stayed old are noticed in
    whichever tensor they are, as is a whole tensor that stayed old. (float32 tells 2^24 steps apart.)

    Args:
        update_s: seconds of one epoch over a rollout batch.
        megabytes: size of the weights, in units of 10^6 bytes.
        tensors: number of tensors, of equal sizes; the last one takes the rest.
        options: how many epochs there are; the rest is not used.
        groups: of a rollout batch, by which the parts of one share its seconds.
        sleep: waits so many seconds.

    Raises:
        UserError: there are fewer values than tensors.
    """

    def __init__(
        self,
        update_s: float,
        megabytes: float,
        tensors: int,
        options: TrainerOptions,
        groups: int = 1,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self.optimizer_step_metrics: Sequence[Metrics] = ()
        self._update_s, self._sleep = update_s, sleep
        self._weights = made_up_weights(megabytes, tensors)
        self._steps_done = 0
        self._groups, self._accumulated = groups, 0

    def prepare(
        self, groups: Sequence[RolloutGroup], plan: BatchPlan | None = None, step: int = 0
    ) -> Sequence[RolloutGroup]:
        return groups

    def advantages(self, batch: Sequence[RolloutGroup]) -> list[float]:
        return []  # nothing is learnt

    def compute_old_log_probs(self, batch: Sequence[RolloutGroup]) -> None: ...

    def compute_reference_log_probs(self, batch: Sequence[RolloutGroup]) -> None: ...

    def accumulate(self, step: int, batch: Sequence[RolloutGroup]) -> None:
        """Sleep the share of a part of a batch."""
        self._sleep(self._update_s * len(batch) / self._groups)
        self._accumulated += len(batch)

    def train(
        self, step: int, batch: Sequence[RolloutGroup] | None, before_change: Callable[[], None] = lambda: None
    ) -> Metrics:
        """Sleep what is left of each epoch's ``update_s``, change the weights; return no metrics: nothing is learnt."""
        left, self._accumulated = 1 - self._accumulated / self._groups, 0
        self._sleep(self._update_s * left * self.options.epochs_per_batch)
        before_change()
        self._steps_done += 1
        stamp(self._weights, self._steps_done)
        return {}

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._weights)


def stamp(weights: Mapping[str, Tensor], number: int) -> None:
    """Write a number into every ``STRIDE``-th value of every tensor, the first one included."""
    for tensor in weights.values():
        tensor[::STRIDE] = number


def made_up_weights(megabytes: float, tensors: int) -> dict[str, Tensor]:
    """Return random float32 vectors ``layer.000.weight`` ..., always the same ones.

    Args:
        megabytes: size of all of them, in units of 10^6 bytes, to the nearest 4 bytes.
        tensors: how many.

    Raises:
        UserError: there are fewer values than tensors.
    """
    values = round(megabytes * 1e6 / torch.float32.itemsize)
    if values < tensors:
        raise UserError(
            f"model.megabytes {megabytes:g} is {values} float32 values, fewer than the {tensors} of model.tensors",
            "model.megabytes",
            f"set model.tensors to at most {max(1, values)}, or raise model.megabytes",
        )
    generator = torch.Generator().manual_seed(0)
    sizes = [values // tensors] * (tensors - 1)
    sizes.append(values - sum(sizes))
    return {f"layer.{index:03d}.weight": torch.rand(size, generator=generator) for index, size in enumerate(sizes)}
