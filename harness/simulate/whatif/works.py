"""How much longer a call takes because its work changed: recorded x predicted (new) / predicted (old).

Both predictions come from a machine profile, for the work of the recorded call and for that of the replayed one. What
is particular about a call (a slow moment, a cache that was warm) stays in it that way, and what the profile is off by
for this run cancels. A stage that the run did not have takes the profile's prediction itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import Purpose, RolloutGroup, WorkItem
from harness.scenario import Scenario
from harness.simulate.circumstances import model_name
from harness.simulate.costing import Costing
from harness.simulate.machine import MachineProfile
from harness.simulate.terms import Group, Terms
from harness.simulate.whatif.parts import Lengths
from harness.simulate.whatif.recorded import Call, Piece, Recording, Work
from harness.simulate.whatif.rollouts import Batch, recorded_batches, trained_groups
from harness.simulate.workload import Workload, sizes_of

_OF_UPDATE = (Stage.PREPARE_BATCH, Stage.OLD_LOGPROBS, Stage.REFERENCE_LOGPROBS, Stage.UPDATE)
_METHODS = {
    Work.PUBLISH: "publish",
    Work.LOAD: "load",
    Work.GENERATE: "generate",
    Work.EVALUATE: "generate",
    Work.SCORE: "score",
    Work.UPDATE: "update",
}


class Priced:
    """A scenario with its prices.

    Args:
        scenario: resolved.
        machine: the profile.
    """

    def __init__(self, scenario: Scenario, machine: MachineProfile) -> None:
        self.work = Workload(scenario)
        self.costing = Costing(scenario, machine, model=model_name(scenario))

    def update_s(self, stage: Stage, groups: Sequence[Group]) -> float | None:
        """Return the seconds of a stage of a training step; None where the scenario does not have it.

        Raises:
            UserError: the profile has no cost of it.
        """
        work = self.work
        match stage:
            case Stage.PREPARE_BATCH:
                return self._seconds(stage, work.batch(groups))
            case Stage.OLD_LOGPROBS:
                return self._seconds(stage, work.log_probs(groups)) if work.has_old_log_probs else None
            case Stage.REFERENCE_LOGPROBS:
                return self._seconds(stage, work.reference_log_probs(groups)) if work.has_reference else None
        return self._seconds(stage, work.update(groups))

    def generate_s(self, groups: Sequence[Group]) -> float:
        """Return the seconds of sampling these groups.

        Raises:
            UserError: the profile has no cost of it.
        """
        return self._seconds(Stage.GENERATE, self.work.generate(groups))

    def score_s(self, groups: Sequence[Group]) -> float:
        """Return the seconds of scoring these groups.

        Raises:
            UserError: the profile has no cost of it.
        """
        return self._seconds(Stage.SCORE, self.work.batch(groups))

    def sync_s(self, stage: Stage, version: int, part: str) -> float | None:
        """Return the seconds of a stage of a weight sync; None where the scenario does not have it.

        Raises:
            UserError: the profile has no cost of it.
        """
        if stage is Stage.WEIGHT_VERIFY and not self.work.verifications:
            return None
        return self._seconds(stage, self.work.sync(version == 0), part=part)

    def way_s(self, method: str, way: str, groups: Sequence[Group]) -> float:
        """Return the seconds of one way of a call, with these groups on it.

        Raises:
            UserError: the profile has no cost of it.
        """
        return self.costing.seconds("call", "", 0, self.work.call(groups), call=method, way=way)

    def _seconds(self, stage: Stage, terms: Terms, **also: str) -> float:
        return self.costing.seconds(stage.value, "", 0, terms, **also)


class ChangedWork:
    """The calls of a replay whose work is not that of the recorded ones; see ``replay.Changed``.

    Args:
        recording: with the recorded lengths, where lengths matter.
        old, new: the scenario of the run and the changed one.
        lengths: of the replay's rollouts.
        keys: settings that differ.

    Attributes:
        said: what the profile could not say.
    """

    def __init__(self, recording: Recording, old: Priced, new: Priced, lengths: Lengths, keys: Sequence[str]) -> None:
        self._old, self._new, self._lengths = old, new, lengths
        self._batches: dict[int, Batch] = recorded_batches(recording)
        self._trained = trained_groups(recording)
        self._shards = max((key[2] + 1 for key in recording.shards if key[0] == Purpose.TRAIN.value), default=1)
        self._syncs_differ = any(key.split(".")[0] in ("transport", "placement") for key in keys)
        self._work_differs = any(key.split(".")[0] != "transport" for key in keys)
        self.said: dict[str, None] = {}

    def sync(self, call: Call, version: int) -> Call:
        """Take another transport, or more receivers, into account."""
        if call.work is Work.CHECKPOINT:
            return call
        if not self._syncs_differ:
            return self._on_the_way(call)
        part = "learner" if call.work is Work.PUBLISH else "generator"
        changed = (self._of_sync(piece, call.key, part) for piece in call.pieces)
        pieces = [piece for piece in changed if piece is not None]
        if self._old.work.verifications == 0:
            seconds = self._new.sync_s(Stage.WEIGHT_VERIFY, call.key, part)
            pieces += [Piece(Stage.WEIGHT_VERIFY, seconds or 0.0)] * self._new.work.verifications
        return self._on_the_way(replace(call, pieces=tuple(pieces)))

    def generate(self, call: Call, item: WorkItem) -> Call:
        """Take the number and the lengths of the rollouts into account; an evaluation stays as it was."""
        batch = self._lengths(item)
        new = [(batch[prompt_id][0] or 0, batch[prompt_id][1]) for prompt_id in item.prompt_ids]
        if not self._differs(item):
            return self._on_the_way(call, back=new, new_back=new)
        old = self._recorded_shards(call.key) or [new]
        before = sum(map(self._old.generate_s, old)) / len(old)
        stretched = _stretched(call, _ratio(self._new.generate_s(new), before))
        return self._on_the_way(stretched, back=old[0], new_back=new)

    def score(self, call: Call, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Call:
        """Take the number and the lengths of the rollouts into account; an evaluation stays as it was."""
        new = sizes_of(groups)
        if not self._differs(item):
            return self._on_the_way(call, new, new, new, new)
        old = self._recorded_shards(call.key) or [new]
        before = sum(map(self._old.score_s, old)) / len(old)
        stretched = _stretched(call, _ratio(self._new.score_s(new), before))
        return self._on_the_way(stretched, old[0], old[0], new, new)

    def update(self, call: Call, step: int, groups: tuple[RolloutGroup, ...]) -> Call:
        """Take the passes over the batch, its size and its lengths into account, and stages that come or go."""
        new = sizes_of(groups)
        if not self._work_differs:
            return self._on_the_way(call, there=new, new_there=new)
        old = self._trained.get(call.key) or new
        changed = replace(call, pieces=tuple(self._update_pieces(call, old, new)))
        return self._on_the_way(changed, there=old, new_there=new)

    def _differs(self, item: WorkItem) -> bool:
        return self._work_differs and item.purpose is Purpose.TRAIN

    def _update_pieces(self, call: Call, old: Sequence[Group], new: Sequence[Group]) -> Iterator[Piece]:
        present = {piece.stage for piece in call.pieces}
        for piece in call.pieces:
            if piece.stage is Stage.UPDATE:
                yield from self._appearing(present, old, new)
            if piece.stage not in _OF_UPDATE:
                yield piece
            elif (after := self._new.update_s(piece.stage, new)) is not None:
                yield _resized(piece, _ratio(after, self._old.update_s(piece.stage, old)))

    def _appearing(
        self, present: Collection[Stage | None], old: Sequence[Group], new: Sequence[Group]
    ) -> Iterator[Piece]:
        """Yield the stages that only the changed scenario has."""
        for stage in (Stage.OLD_LOGPROBS, Stage.REFERENCE_LOGPROBS):
            if stage not in present and self._old.update_s(stage, old) is None:
                seconds = self._new.update_s(stage, new)
                if seconds is not None:
                    yield Piece(stage, seconds)

    def _of_sync(self, piece: Piece, version: int, part: str) -> Piece | None:
        """Return a piece of a weight sync as it would be; None where it would not be there."""
        if piece.stage is None:
            return piece
        after = self._new.sync_s(piece.stage, version, part)
        return None if after is None else _resized(piece, _ratio(after, self._old.sync_s(piece.stage, version, part)))

    def _on_the_way(
        self,
        call: Call,
        there: Sequence[Group] = (),
        back: Sequence[Group] = (),
        new_there: Sequence[Group] = (),
        new_back: Sequence[Group] = (),
    ) -> Call:
        """Return the call with what it takes on its way, with other rollouts sent along or over another transport."""
        method = _METHODS[call.work]
        try:
            before = _ratio(self._new.way_s(method, "there", new_there), self._old.way_s(method, "there", there))
            after = _ratio(self._new.way_s(method, "back", new_back), self._old.way_s(method, "back", back))
        except UserError as error:
            self.said[f"calls take the way that they took: {error.what}"] = None
            return call
        return replace(call, before_s=call.before_s * before, after_s=call.after_s * after)

    def _recorded_shards(self, number: int) -> list[Sequence[Group]]:
        groups = [sampled.group for sampled in self._batches.get(number, {}).values()]
        return [
            groups[shard * len(groups) // self._shards : (shard + 1) * len(groups) // self._shards]
            for shard in range(self._shards if groups else 0)
        ]


class WithoutStages:
    """The calls of a replay whose work is that of the recorded ones, but for stages that are not needed any more.

    Args:
        gone: which.
    """

    def __init__(self, gone: frozenset[Stage]) -> None:
        self._gone = gone

    def sync(self, call: Call, version: int) -> Call:
        """See ``replay.Changed``."""
        return call

    def generate(self, call: Call, item: WorkItem) -> Call:
        """See ``replay.Changed``."""
        return call

    def score(self, call: Call, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Call:
        """See ``replay.Changed``."""
        return call

    def update(self, call: Call, step: int, groups: tuple[RolloutGroup, ...]) -> Call:
        """See ``replay.Changed``."""
        return replace(call, pieces=tuple(piece for piece in call.pieces if piece.stage not in self._gone))


def _ratio(new: float, old: float | None) -> float:
    return new / old if old else 1.0


def _stretched(call: Call, ratio: float) -> Call:
    return replace(call, pieces=tuple(_resized(piece, ratio) for piece in call.pieces))


def _resized(piece: Piece, ratio: float) -> Piece:
    return replace(piece, seconds=piece.seconds * ratio)
