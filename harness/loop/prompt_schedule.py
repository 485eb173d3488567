"""Which prompts a training step uses."""

from __future__ import annotations

import random
from collections.abc import Callable

from harness.core.seeds import derive_seed


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
