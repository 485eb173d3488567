"""Which rollouts stand behind a span of a recorded run: their prompt and response tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from harness.core.trace import Span, Stage
from harness.results import Run
from harness.results.rows import BatchRow, ShardRow
from harness.simulate.terms import Group

OF_A_BATCH = (Stage.PREPARE_BATCH, Stage.OLD_LOGPROBS, Stage.REFERENCE_LOGPROBS, Stage.UPDATE)
"""Stages of the Learner that work on what a training step trains on."""


class Rollouts:
    """The rollouts of one run.

    Args:
        run: that was recorded.
        spans: of it, by their start.
    """

    def __init__(self, run: Run, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._shards: dict[tuple[str, int], list[ShardRow]] = defaultdict(list)
        self._batches: dict[int, BatchRow] = {}
        for row in run.groups():
            if isinstance(row, BatchRow):
                self._batches[row.step] = row
            else:
                self._shards[row.purpose, row.step].append(row)

    def behind(self, span: Span) -> list[Group]:
        """Return the groups that a span worked on; none where they are not known."""
        if span.stage in OF_A_BATCH:
            return self.trained_on(span.step)
        if span.stage is Stage.EVALUATE:
            return _sizes(self._shards.get(("evaluate", span.step), ()))
        if span.stage not in (Stage.GENERATE, Stage.SCORE):
            return []
        shards = self._shards.get(("train", span.step), [])
        number = self._turns[span.stage, span.step].index(span)
        if number >= len(shards):
            return []
        shard = self._shard_order(span, shards)[number]
        return _sizes([shard])

    def _shard_order(self, span: Span, shards: list[ShardRow]) -> list[ShardRow]:
        """Shards in the order of this stage's spans: orders are taken one after the other, and scored as they end."""
        by_number = sorted(shards, key=lambda row: row.shard)
        if span.stage is Stage.GENERATE or len(shards) == 1:
            return by_number
        generated = self._turns.get((Stage.GENERATE, span.step), [])
        if len(generated) != len(shards):
            return by_number
        ends = [item.end_ns for item in generated]
        return [by_number[index] for index in sorted(range(len(ends)), key=ends.__getitem__)]

    @cached_property
    def _turns(self) -> dict[tuple[Stage, int], list[Span]]:
        """The generate and score spans of each batch, by start."""
        turns: dict[tuple[Stage, int], list[Span]] = defaultdict(list)
        for span in self._spans:
            if span.stage in (Stage.GENERATE, Stage.SCORE):
                turns[span.stage, span.step].append(span)
        return turns

    def trained_on(self, step: int) -> list[Group]:
        """Return the groups that a training step trained on; none where they are not known."""
        batch = self._batches.get(step)
        if batch is None:
            return _sizes(sorted(self._shards.get(("train", step), ()), key=lambda row: row.shard))
        return [self._by_group[key] for key in batch.groups if key in self._by_group]

    @cached_property
    def _by_group(self) -> dict[tuple[int, int], Group]:
        """Sizes by batch number and prompt id."""
        found: dict[tuple[int, int], Group] = {}
        for (purpose, step), shards in self._shards.items():
            if purpose == "train":
                for row in shards:
                    sizes = zip(row.prompt_ids, row.prompt_tokens, row.lengths, strict=True)
                    found |= {(step, key): (tokens or 0, lengths) for key, tokens, lengths in sizes}
        return found


def _sizes(shards: Iterable[ShardRow]) -> list[Group]:
    """Prompt and response tokens of every group; none where tokens are behind none of them."""
    groups: list[Group] = []
    for shard in shards:
        for tokens, lengths in zip(shard.prompt_tokens, shard.lengths, strict=True):
            groups.append((tokens or 0, lengths))
    return groups if any(prompt for prompt, _ in groups) else []
