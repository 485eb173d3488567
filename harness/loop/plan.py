"""What the loop is asked to do, and which prompts a training step uses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from harness.core.seeds import derive_seed
from harness.core.types import Purpose, WorkItem
from harness.loop.replay import ReplayOptions

LagControl = Literal["wait", "drop", "in_flight"]


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What to run.

    Attributes:
        steps: training steps.
        group_size: rollouts per prompt.
        max_lag: how many policy versions a rollout may be behind the Learner; 0 is synchronous.
        evaluate_every: evaluate each version divisible by this, and always the first and the last.
        batch_prompts: prompt ids of a rollout batch.
        validation_prompts: prompt ids of every evaluation.
        seed: root of the sampling seeds.
        lag_control: what happens when the lag bound bites. ``wait``: a Generator waits for new weights before it
            starts a batch that would come too late. ``drop``: Generators go on, and what has become too old when it
            could be trained on is dropped. ``in_flight``: as ``wait``, and a Generator also takes new weights between
            two tokens of a batch that it has started.
        replay: the replay buffer; None consumes each batch directly.
    """

    steps: int
    group_size: int
    max_lag: int
    evaluate_every: int
    batch_prompts: Callable[[int], tuple[int, ...]]
    validation_prompts: tuple[int, ...]
    seed: int = 0
    lag_control: LagControl = "wait"
    replay: ReplayOptions | None = None

    @property
    def is_synchronous(self) -> bool:
        """Whether no rollout may be behind the Learner."""
        return self.max_lag == 0

    @property
    def room(self) -> int:
        """Rollout batches that may be under way (ordered, and neither trained on nor dropped) under ``drop``."""
        return 2 * (self.max_lag + 1)

    def is_evaluated(self, version: int) -> bool:
        """Whether this policy version is evaluated."""
        return bool(self.validation_prompts) and (version % self.evaluate_every == 0 or version == self.steps)

    def train_orders(self, shards: int) -> Iterator[WorkItem]:
        """Yield every batch in order, cut into ``shards`` parts; without end under ``drop``.

        Raises:
            ValueError: there are more shards than prompts in a batch.
        """
        for batch in itertools.count() if self.lag_control == "drop" else range(self.steps):
            prompt_ids = self.batch_prompts(batch)
            if len(prompt_ids) < shards:
                raise ValueError(
                    f"{shards} Generators cannot share the {len(prompt_ids)} prompts of a batch: use fewer"
                )
            for shard in range(shards):
                seed = derive_seed(self.seed, "train", batch, shard)
                mine = prompt_ids[shard * len(prompt_ids) // shards : (shard + 1) * len(prompt_ids) // shards]
                yield WorkItem(Purpose.TRAIN, batch, shard, mine, self.group_size, seed)

    def evaluation_order(self, version: int) -> WorkItem:
        """Return the order for the validation prompts: every version gets the same seed, so that versions compare."""
        seed = derive_seed(self.seed, "evaluate")
        return WorkItem(Purpose.EVALUATE, version, 0, self.validation_prompts, 1, seed)


def prompt_schedule(num_prompts: int, prompts_per_batch: int, seed: int) -> Callable[[int], tuple[int, ...]]:
    """Return the function from a training step to its prompt ids.

    Prompts are drawn without replacement, in an order shuffled anew for each pass over the set. The same seed gives the
    same prompts to every arm.

    Args:
        num_prompts: size of the training set.
        prompts_per_batch: prompts of one training step.
        seed: root seed.
    """
    orders: dict[int, list[int]] = {}

    def order(epoch: int) -> list[int]:
        if epoch not in orders:
            rng = random.Random(derive_seed(seed, "prompts", epoch))
            orders.clear()  # steps move forward: only the newest pass is worth keeping
            orders[epoch] = rng.sample(range(num_prompts), num_prompts)
        return orders[epoch]

    def batch_prompts(step: int) -> tuple[int, ...]:
        positions = range(step * prompts_per_batch, (step + 1) * prompts_per_batch)
        return tuple(order(position // num_prompts)[position % num_prompts] for position in positions)

    return batch_prompts
