"""What the loop needs to go on after everything was killed, and what a run that goes on promises.

The Learner's lane takes a ``LoopState`` between two training steps. Nothing is awaited meanwhile, so it is one cut
through all lanes: an order is either sampled or to be sampled again, a group stands in exactly one place.

    at the cut                               after resume
    ---------------------------------------  -----------------------------------------------------------------------
    order not issued                         issued in its turn
    order issued, not sampled                issued again, before any other, under its own seed
    sampled, not scored                      scored again
    scored, waiting or in an open shard      where it was; too old, dropped and counted as ever
    in the replay buffer                     there, with its uses, in its place
    trained on                               in the policy; its prompt does not come again
    dropped, failed, discarded               in the counts
    evaluation told                          not made again
    evaluation of this version not told      made again, once the Learner has published
    evaluation of an older version not told  there is none: the cut waits for it, since its weights are in no checkpoint

So in the history of the policy that survives, every prompt of the stream is first consumed exactly once (and maybe
replayed), or stands in a count under the name of a rule. What was done after the cut is in no
policy that survives: it is done again.

What is a function of the seed, the step and the place is not stored: seeds of samples, the random stream of a draw from
the replay buffer, the prompts of batches to come. Orders in hand are small and stored whole, so that a scenario which
would have given others is noticed.

Groups stand here with the handles that the loop saw; ``with_data`` turns these into data and back, outside of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

from harness.core.errors import UserError
from harness.core.types import RolloutGroup, ScoredBatch, WorkItem
from harness.loop.dynamic_sampling import OpenShard
from harness.loop.observer import Count, RolloutCounts
from harness.loop.orders import Unscored
from harness.loop.plan import LagControl, LoopPlan
from harness.loop.replay import ReplayState
from harness.loop.versions import NONE

FORMAT = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """The loop between two training steps; as it stands here, before the first one.

    Attributes:
        version: of the Learner; the training steps made.
        evaluated: newest version whose evaluation was told; -1 if none was.
        issued: orders of the stream handed out, each counted once: the position in the prompts.
        pending: orders issued and not sampled, and what dynamic sampling is to sample again.
        unscored: orders sampled and not scored, in the order in which they were sampled.
        waiting: what is scored and waits to be trained on, in the assembler's order.
        open_shards: what dynamic sampling holds back.
        dropped: rollouts dropped since the last training step.
        replaced: deaths of parts so far.
        failed_batches: batches taken last, one after another, without any group that had a reward.
        seed, shards, group_size, lag_control: of the run that this belongs to; another one is refused.
    """

    seed: int
    shards: int
    group_size: int
    lag_control: LagControl
    version: int = 0
    evaluated: int = NONE
    issued: int = 0
    pending: tuple[WorkItem, ...] = ()
    unscored: tuple[Unscored, ...] = ()
    waiting: tuple[ScoredBatch, ...] = ()
    open_shards: tuple[OpenShard, ...] = ()
    replay: ReplayState | None = None
    counts: RolloutCounts = field(default_factory=RolloutCounts)
    dropped: Count = field(default_factory=Count)
    replaced: int = 0
    failed_batches: int = 0
    format: int = FORMAT

    @property
    def under_way(self) -> int:
        """Groups ordered, and neither taken, dropped nor failed; an order issued again counts when it is begun anew."""
        again = sum(len(item.prompt_ids) for item in self.pending if item.attempt)
        unscored = sum(len(item.prompt_ids) for item, _ in self.unscored)
        waiting = sum(len(part.groups) for part in self.waiting)
        return again + unscored + waiting + sum(len(shard.kept) for shard in self.open_shards)

    @property
    def in_flight(self) -> int:
        """Rollouts sampled and not scored."""
        return sum(len(group.lengths) for _, groups in self.unscored for group in groups)

    def check(self, plan: LoopPlan, shards: int) -> None:
        """Check that a run of this plan, with so many Generators, may go on from here.

        Raises:
            UserError: it is another run's, with both values.
        """
        if self.version > plan.steps:
            raise UserError(
                f"the checkpoint is of training step {self.version}, the run has {plan.steps}",
                "steps",
                f"set steps to {self.version} or more",
            )
        _require_equal("the number of Generators", self.shards, shards)
        for name in ("seed", "group_size", "lag_control"):
            _require_equal(name, getattr(self, name), getattr(plan, name))
        _require_equal("whether there is a replay buffer", self.replay is not None, plan.replay.capacity > 0)
        if not plan.dynamic_sampling.attempts:
            _require_equal("whether groups are sampled again", bool(self.open_shards), False)
        items = [*self.pending, *(item for item, _ in self.unscored), *(part.item for part in self.waiting)]
        for item in [*items, *(shard.item for shard in self.open_shards)]:
            if not item.attempt:
                due = next(plan.train_orders(shards, item.step * shards + item.shard), None)
                _require_equal(f"shard {item.shard} of batch {item.step}", item, due)


def _require_equal(name: str, saved: object, now: object) -> None:
    if saved != now:
        raise UserError(
            f"the checkpoint is of another run: {name} was {saved} and is {now}",
            None,
            "resume with the scenario that the run was started with",
        )


def with_data(value: T, change: Callable[[Any], Any]) -> T:
    """Return a copy of dataclasses and tuples with ``change(data)`` for the data of each group within, in their order.

    Groups without data (of a simulated run, or thrown away) stay as they are.
    """
    copied: Any = value
    if isinstance(value, RolloutGroup):
        copied = value if value.data is None else replace(value, data=change(value.data))
    elif isinstance(value, tuple | list):
        copied = type(value)(with_data(each, change) for each in value)
    elif isinstance(value, dict):
        copied = {key: with_data(each, change) for key, each in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        copied = replace(value, **{each.name: with_data(getattr(value, each.name), change) for each in fields(value)})
    return copied  # type: ignore[no-any-return]


class Checkpoints(Protocol):
    """Makes checkpoints of a whole run: of the policy, which the Learner has, and of the loop."""

    async def save(self, state: LoopState) -> None:
        """Take the policy and this state; return when training may go on. The Learner is at ``state.version``.

        The Learner waits meanwhile: its part is the stage ``checkpoint``. Writing may go on afterwards; handles in the
        state must be kept until it is done. A checkpoint counts once both parts are whole on disk: whoever finishes
        last says so. What failed after the return is raised by the next call, and at the end by whoever made this.

        Raises:
            HarnessError: it cannot be saved: the run stops.
        """
