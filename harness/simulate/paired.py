"""Lengths that do not depend on how a rollout batch is shared out over Generators.

Orders of a real run have seeds of their own, so that one Generator more gives every rollout another length. Where runs
with more and fewer Generators are compared, that would be noise between them: here a batch is drawn as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from harness.core.seeds import derive_seed
from harness.core.types import Purpose, WorkItem
from harness.scenario import Scenario
from harness.simulate.lengths import LengthSource
from harness.simulate.terms import Group

KEPT = 16
"""Batches remembered until all their shards are there; more than may be under way at once."""


class PairedLengths:
    """Draws each batch as a whole and gives every shard its part.

    Args:
        source: says how long the rollouts of an order are.
        scenario: one run; its seed, batch and number of Generators count.
    """

    def __init__(self, source: LengthSource, scenario: Scenario) -> None:
        self._source, self._seed = source, scenario.seed
        self._prompts, self._shards = scenario.prompts_per_batch, scenario.placement.generator.count
        self._batches: dict[int, tuple[Group, ...]] = {}

    @property
    def said(self) -> tuple[str, ...]:
        """See ``LengthSource``."""
        return self._source.said

    def groups(self, item: WorkItem) -> tuple[Group, ...]:
        """See ``LengthSource``."""
        if item.purpose is not Purpose.TRAIN or self._shards == 1:
            return self._source.groups(replace(item, seed=self._seed_of(item)))
        batch = self._batches.get(item.step)
        if batch is None:
            whole = replace(item, shard=0, prompt_ids=tuple(range(self._prompts)), seed=self._seed_of(item))
            batch = self._batches[item.step] = self._source.groups(whole)
            self._batches.pop(item.step - KEPT, None)
        first, end = (place * self._prompts // self._shards for place in (item.shard, item.shard + 1))
        return batch[first:end]

    def _seed_of(self, item: WorkItem) -> int:
        return derive_seed(self._seed, "paired", item.purpose.value, item.step)
