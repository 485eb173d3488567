"""What the loop is asked to do, and which prompts a training step uses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.core.seeds import derive_seed
from harness.core.types import Purpose, WorkItem
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings

LagControl = Literal["wait", "drop", "in_flight"]
Stream = Literal["in_order", "as_scored"]


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What a scenario asks of the loop, with the prompts of each batch.

    Attributes:
        max_lag: how many policy versions a rollout may be behind the Learner; 0 is synchronous.
        evaluate_every: evaluate each version divisible by this, and always the first and the last.
        batch_prompts: prompt ids of a rollout batch.
        validation_prompts: prompt ids of every evaluation.
        seed: root of the sampling seeds.
        lag_control: what happens when the lag bound bites. ``wait``: a Generator waits for new weights before it
            starts a batch that would come too late. ``drop``: Generators go on, and what has become too old when it
            could be trained on is dropped. ``in_flight``: as ``wait``, and a Generator also takes new weights between
            two tokens of a batch that it has started.
        replay: capacity 0 consumes each batch directly; else ``max_age`` and ``sample_groups`` are numbers, not null.
        num_prompts: training prompts, of which dynamic sampling draws others.
        checkpoint_every: training steps from one checkpoint to the next; 0 makes none.
        save_policy_every: training steps from one saved policy to the next; 0 saves the last one alone.
        stream: train on each shard of a batch when it is scored, with one optimizer step for all: ``in_order`` not
            before those in front of it, so that sums do not depend on time. Not with ``drop``, nor with replay.
        max_failed_batches: batches in a row without any group that has a reward after which the run still goes on.
    """

    steps: int
    group_size: int
    max_lag: int
    evaluate_every: int
    batch_prompts: Callable[[int], tuple[int, ...]]
    validation_prompts: tuple[int, ...]
    seed: int = 0
    lag_control: LagControl = "wait"
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    dynamic_sampling: DynamicSamplingSettings = field(default_factory=DynamicSamplingSettings)
    num_prompts: int = 0
    overlapped_publish: bool = False
    checkpoint_every: int = 0
    save_policy_every: int = 0
    stream: Stream | None = None
    max_failed_batches: int = 0

    @property
    def is_synchronous(self) -> bool:
        return self.max_lag == 0

    @property
    def room(self) -> int:
        """Rollout batches that may be under way (ordered, and neither trained on nor dropped) under ``drop``."""
        return 2 * (self.max_lag + 1)

    def is_evaluated(self, version: int) -> bool:
        return bool(self.validation_prompts) and (version % self.evaluate_every == 0 or version == self.steps)

    def is_checkpointed(self, version: int) -> bool:
        return self.checkpoint_every > 0 and version % self.checkpoint_every == 0

    def is_policy_saved(self, version: int) -> bool:
        return self.save_policy_every > 0 and version % self.save_policy_every == 0

    def train_orders(self, shards: int, issued: int = 0) -> Iterator[WorkItem]:
        """Yield every batch in order, cut into ``shards`` parts, but for ``issued`` orders; without end under ``drop``.

        Raises:
            ValueError: there are more shards than prompts in a batch.
        """
        begun, skipped = divmod(issued, shards)
        for batch in itertools.count(begun) if self.lag_control == "drop" else range(begun, self.steps):
            yield from itertools.islice(self._batch_orders(batch, shards), skipped if batch == begun else 0, None)

    def _batch_orders(self, batch: int, shards: int) -> Iterator[WorkItem]:
        prompt_ids, seed = self.batch_prompts(batch), self._batch_seed(batch, 0)
        if len(prompt_ids) < shards:
            raise ValueError(f"{shards} Generators cannot share the {len(prompt_ids)} prompts of a batch: use fewer")
        for shard in range(shards):
            first, end = shard * len(prompt_ids) // shards, (shard + 1) * len(prompt_ids) // shards
            yield WorkItem(Purpose.TRAIN, batch, shard, prompt_ids[first:end], self.group_size, seed, first)

    def order_again(self, item: WorkItem, prompts: Mapping[int, int]) -> WorkItem:
        """Return the order that samples places of a batch once more.

        Which prompts it draws depends on the root seed, the batch, the place and the attempt: never one that stands in
        the batch or stood there. Where a small training set has no other left, the same prompt is asked again.
        ``item`` is the order of the attempt before, ``prompts`` says which prompt stands at each place in the batch.
        """
        others, each = self._other_prompts(item.step), len(self.batch_prompts(item.step))
        drawn = {place: item.attempt * each + place for place in prompts}
        prompt_ids = tuple(
            others[drawn[place]] if drawn[place] < len(others) else prompt_id for place, prompt_id in prompts.items()
        )
        places, attempt = tuple(prompts), item.attempt + 1
        seed = self._batch_seed(item.step, attempt)
        return WorkItem(
            Purpose.TRAIN, item.step, item.shard, prompt_ids, self.group_size, seed, places[0], attempt, places
        )

    def _other_prompts(self, batch: int) -> Sequence[int]:
        """Return prompts that are not in the batch, in random order: enough for each place in each attempt."""
        here = self.batch_prompts(batch)
        enough = min(self.num_prompts, (1 + self.dynamic_sampling.attempts) * len(here))
        rng = random.Random(derive_seed(self.seed, "dynamic sampling", batch))
        return [prompt for prompt in rng.sample(range(self.num_prompts), enough) if prompt not in here]

    def _batch_seed(self, batch: int, attempt: int) -> int:
        return derive_seed(self.seed, "train", batch, attempt)

    def evaluation_order(self, version: int) -> WorkItem:
        """Return the order for the validation prompts: every version gets the same seed, so that versions compare."""
        seed = derive_seed(self.seed, "evaluate")
        return WorkItem(Purpose.EVALUATE, version, 0, self.validation_prompts, 1, seed)


def prompt_schedule(num_prompts: int, prompts_per_batch: int, seed: int) -> Callable[[int], tuple[int, ...]]:
    """Return the function from a training step to its prompt ids.

    Prompts are drawn without replacement, in an order shuffled anew for each pass over the set. A prompt stands once in
    a batch at most: where a batch reaches into the next pass, prompts that it has already wait until they fit. The same
    seed gives the same prompts to every arm.

    Args:
        num_prompts: size of the training set.
        prompts_per_batch: prompts of one training step.
        seed: root seed.
    """
    newest: dict[int, list[int]] = {}  # steps move forward, so only the newest pass and the one before are kept

    def order(epoch: int) -> list[int]:
        if epoch not in newest:
            start = max((known for known in newest if known < epoch), default=-1)
            for number in range(start + 1, epoch + 1):
                begun = -(number * num_prompts) % prompts_per_batch  # places of a batch that this pass ends
                before = newest[number - 1][begun - prompts_per_batch :] if begun and number else []
                newest[number] = _drawn(number, begun, frozenset(before))
                newest.pop(number - 2, None)
        return newest[epoch]

    def _drawn(epoch: int, begun: int, before: frozenset[int]) -> list[int]:
        drawn = random.Random(derive_seed(seed, "prompts", epoch)).sample(range(num_prompts), num_prompts)
        if before.isdisjoint(drawn[:begun]) or prompts_per_batch > num_prompts:
            return drawn
        fitting = [prompt for prompt in drawn if prompt not in before][:begun]
        return fitting + [prompt for prompt in drawn if prompt not in set(fitting)]

    def batch_prompts(step: int) -> tuple[int, ...]:
        positions = range(step * prompts_per_batch, (step + 1) * prompts_per_batch)
        return tuple(order(position // num_prompts)[position % num_prompts] for position in positions)

    return batch_prompts
