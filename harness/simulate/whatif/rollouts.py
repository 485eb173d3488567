"""The rollouts of a replay: the recorded ones in their order, cut into other batches and groups where asked for.

With other batch or group sizes the recorded groups follow each other into the new batches, round and round; a smaller
group takes the first responses of a recorded one, a larger one draws the missing ones from it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.core.seeds import derive_seed
from harness.core.types import Purpose, RolloutGroup, WorkItem
from harness.results import ShardRow
from harness.simulate.terms import Group
from harness.simulate.whatif.recorded import Recording

UNKNOWN_REWARD = 0.5


@dataclass(frozen=True, slots=True)
class Sampled:
    """One recorded group: tokens of the prompt (None: not known) and of each response, and the rewards."""

    prompt: int | None
    lengths: tuple[int, ...]
    rewards: tuple[float, ...]

    @property
    def group(self) -> Group:
        """As costs count it."""
        return self.prompt or 0, self.lengths


Batch = dict[int, Sampled]
"""Groups by their place: one prompt may be in a batch twice."""


class Rollouts:
    """What the Generators of a replay return.

    Args:
        recording: the run.
        prompts_per_batch, group_size: of the replay.
        recorded_shape: the same two of the run.
        validation: prompts of an evaluation, where none is recorded.
        seed: of the responses drawn again.

    Attributes:
        known: whether lengths were recorded at all.
        validation_ids: of every evaluation.
    """

    def __init__(
        self,
        recording: Recording,
        prompts_per_batch: int,
        group_size: int,
        recorded_shape: tuple[int, int],
        validation: int,
        seed: int = 0,
    ) -> None:
        self._prompts, self._size, self._seed = prompts_per_batch, group_size, seed
        self._same_shape = (prompts_per_batch, group_size) == recorded_shape
        self._recorded = recorded_batches(recording)
        self._evaluated = {key[1]: _sampled([row]) for key, row in recording.shards.items() if key[0] == "evaluate"}
        self._groups = [sampled for number in sorted(self._recorded) for sampled in self._recorded[number].values()]
        self.known = bool(self._recorded)
        self._some_evaluation = next(iter(self._evaluated.values()), _unknown(validation, 1))
        self.validation_ids = tuple(self._some_evaluation)
        self._made: dict[int, Batch] = {}

    def batch_prompts(self, number: int) -> tuple[int, ...]:
        """Return what stands for the prompts of a rollout batch: their places."""
        return tuple(self.batch(number))

    def lengths(self, item: WorkItem) -> Mapping[int, tuple[int | None, tuple[int, ...]]]:
        """See ``parts.Lengths``."""
        batch = self._of(item)
        return {prompt_id: (batch[prompt_id].prompt, batch[prompt_id].lengths) for prompt_id in item.prompt_ids}

    def rewards(self, item: WorkItem, group: RolloutGroup) -> tuple[float, ...]:
        """See ``parts.Rewards``."""
        return self._of(item)[group.prompt_id].rewards

    def _of(self, item: WorkItem) -> Batch:
        if item.purpose is Purpose.TRAIN:
            return self.batch(item.step)
        return self._evaluated.get(item.step) or self._some_evaluation

    def batch(self, number: int) -> Batch:
        """Return the groups of a rollout batch."""
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Batch:
        if not self.known:
            return _unknown(self._prompts, self._size)
        first = number * self._prompts
        following = {place: self._following(first + place) for place in range(self._prompts)}
        if not self._same_shape:
            return following
        numbers = sorted(self._recorded)
        recorded = self._recorded.get(number) or self._recorded[numbers[number % len(numbers)]]
        return following | recorded  # where groups got no reward, others stand in

    def _following(self, place: int) -> Sampled:
        """Return the recorded group that comes at this place of all, with as many responses as are asked for."""
        sampled = self._groups[place % len(self._groups)]
        missing = self._size - len(sampled.lengths)
        rng = random.Random(derive_seed(self._seed, "whatif", place))
        again = [rng.randrange(len(sampled.lengths)) for _ in range(missing)]
        chosen = [*range(len(sampled.lengths)), *again][: self._size]
        lengths, rewards = (tuple(values[index] for index in chosen) for values in (sampled.lengths, sampled.rewards))
        return Sampled(sampled.prompt, lengths, rewards)


def _unknown(groups: int, size: int) -> Batch:
    sampled = Sampled(None, (1,) * size, (UNKNOWN_REWARD,) * size)
    return dict.fromkeys(range(groups), sampled)


def recorded_batches(recording: Recording) -> dict[int, Batch]:
    """Return the recorded rollout batches by number."""
    shards: dict[int, list[ShardRow]] = {}
    for purpose, number, shard in sorted(recording.shards):
        if purpose == Purpose.TRAIN.value:
            shards.setdefault(number, []).append(recording.shards[purpose, number, shard])
    return {number: _sampled(rows) for number, rows in shards.items()}


def trained_groups(recording: Recording) -> dict[int, tuple[Group, ...]]:
    """Return by training step the groups that it trained on; empty where no lengths were recorded."""
    rows = [row for (purpose, _, _), row in recording.shards.items() if purpose == Purpose.TRAIN.value]
    if recording.batches:
        known = {(row.step, prompt_id): sampled.group for row in rows for prompt_id, sampled in _groups_of(row)}
        return {step: tuple(known[key] for key in keys if key in known) for step, keys in recording.batches.items()}
    if not recording.rows or len(rows) % len(recording.rows):
        return {number: _groups(batch) for number, batch in recorded_batches(recording).items()}
    shards = len(rows) // len(recording.rows)  # of a step; under `drop` a step may take any batch
    return {
        step.step: _groups(_sampled(rows[index * shards : (index + 1) * shards]))
        for index, step in enumerate(recording.rows)
    }


def _groups(batch: Batch) -> tuple[Group, ...]:
    return tuple(sampled.group for sampled in batch.values())


def _sampled(rows: Sequence[ShardRow]) -> Batch:
    return dict(enumerate(sampled for row in rows for _, sampled in _groups_of(row)))


def _groups_of(row: ShardRow) -> Iterator[tuple[int, Sampled]]:
    """Yield each group of a shard with the id of its prompt."""
    for prompt_id, prompt, lengths, rewards in zip(
        row.prompt_ids, row.prompt_tokens, row.lengths, row.rewards, strict=True
    ):
        yield prompt_id, Sampled(prompt, lengths, rewards)
