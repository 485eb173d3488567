"""The shards of batches by the checker's own reckoning: which groups stay, and which are to be sampled again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.core.seeds import derive_seed
from harness.core.types import RolloutGroup, WorkItem
from tests.faults.schedule import Schedule


@dataclass
class Shard:
    """One part of a batch."""

    prompts: dict[int, int]  # place in the batch -> prompt that stands there
    kept: dict[int, RolloutGroup] = field(default_factory=dict)  # place -> its group, once that stays
    failed: set[int] = field(default_factory=set)  # places whose group got no reward
    due: tuple[int, ...] = ()  # places that are to be sampled again, in order
    attempt: int = 0  # of the order that samples them
    taken: bool = True  # a Generator has begun that order

    @property
    def is_settled(self) -> bool:
        """Whether all its groups stay or have failed."""
        return len(self.kept) + len(self.failed) == len(self.prompts)


class Shards:
    """All shards of a run."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._attempts = schedule, schedule.dynamic_sampling.attempts
        self._shards: dict[tuple[int, int], Shard] = {}
        self._stood: dict[int, set[int]] = defaultdict(set)  # batch -> prompts that stand or stood in it
        self._by_group: dict[tuple[int, int, int], Shard] = {}  # (batch, prompt, attempt) that stays -> its shard

    def of(self, item: WorkItem) -> Shard:
        """The shard of an order."""
        return self._shards[item.step, item.shard]

    def begins(self, item: WorkItem) -> str:
        """An order is begun for the first time; return what is wrong with it, or nothing."""
        step, attempt = item.step, item.attempt
        if attempt == 0:
            self._shards[step, item.shard] = Shard(dict(zip(item.places, item.prompt_ids, strict=True)))
            self._stood[step].update(self._schedule.plan.batch_prompts(step))
        shard = self.of(item)
        if attempt:
            if (attempt, tuple(item.places)) != (shard.attempt, shard.due) or shard.taken:
                return f"attempt {attempt} of {tuple(item.places)} was ordered, due is {shard.attempt} of {shard.due}"
            shard.taken = True
            wrong = [self._wrong_prompt(item, place, prompt) for place, prompt in self._asked(item)]
            if any(wrong):
                return "; ".join(filter(None, wrong))
        seed = derive_seed(self._schedule.seed, "train", step, attempt)
        return "" if item.seed == seed else f"batch {step}, attempt {attempt} is sampled with the seed {item.seed}"

    def _asked(self, item: WorkItem) -> Iterable[tuple[int, int]]:
        return zip(item.places, item.prompt_ids, strict=True)

    def _wrong_prompt(self, item: WorkItem, place: int, prompt: int) -> str:
        """A new prompt while there is one, which stood nowhere in the batch before; the same one afterwards."""
        shard, each = self.of(item), self._schedule.prompts
        others = len(set(range(self._schedule.num_prompts)) - set(self._schedule.plan.batch_prompts(item.step)))
        is_new = (item.attempt - 1) * each + place < others
        stood, before = prompt in self._stood[item.step], shard.prompts[place]
        self._stood[item.step].add(prompt)
        shard.prompts[place] = prompt
        if stood if is_new else prompt != before:
            return f"place {place} of batch {item.step} had prompt {before}, and gets {prompt} in {item.attempt}"
        return ""

    def scored(self, item: WorkItem, groups: Iterable[RolloutGroup]) -> list[RolloutGroup]:
        """An order was scored; return the groups that do not stay. Those without a reward are missing from it."""
        shard, found = self.of(item), {group.prompt_id: group for group in groups}
        by_place = {place: found.get(prompt) for place, prompt in self._asked(item)}
        again = {place: group for place, group in by_place.items() if group is not None and self._goes(item, group)}
        for place, group in by_place.items():
            if group is None:
                shard.failed.add(place)
            elif place not in again:
                shard.kept[place] = group
                self._by_group[group.step, group.prompt_id, group.attempt] = shard
        if again:
            shard.due, shard.attempt, shard.taken = tuple(again), item.attempt + 1, False
        return list(again.values())

    def _goes(self, item: WorkItem, group: RolloutGroup) -> bool:
        assert group.rewards is not None
        return item.attempt < self._attempts and len(set(group.rewards)) == 1

    def is_settled(self, step: int) -> bool:
        """Whether all groups of a batch stay or have failed."""
        shards = [self._shards.get((step, number)) for number in range(self._schedule.generators)]
        return all(shard is not None and shard.is_settled for shard in shards)

    def is_dropped(self, group: RolloutGroup, version: int) -> bool:
        """Whether a group that stays, or another of its shard, is too old; nothing is dropped of an open shard."""
        shard = self._by_group[group.step, group.prompt_id, group.attempt]
        oldest = min(each.min_version for each in shard.kept.values())
        return shard.is_settled and version - oldest > self._schedule.max_lag

    def without_groups(self) -> int:
        """Shards in which every group has failed."""
        return sum(len(shard.failed) == len(shard.prompts) for shard in self._shards.values())

    def due(self) -> int:
        """Orders to sample again that no Generator has begun."""
        return sum(not shard.taken for shard in self._shards.values())
