"""Nobody waits for what is there: a wake-up that comes late is as lost as one that never comes.

Looked at whenever the clock goes on. By then, whoever could be woken was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.trace import Stage

if TYPE_CHECKING:
    from tests.faults.books import Books


def check_idle(books: Books) -> None:
    """Check every lane that waits.

    Raises:
        Broken: it waits for something that is there.
    """
    for lane, (stage, step) in books.waits.items():
        if _is_there(books, stage, step):
            books.break_off("no idling", f"{lane} is in {stage} for step {step} at {books.last_s:g} s for nothing")


def _is_there(books: Books, stage: Stage, step: int) -> bool:
    match stage:
        case Stage.WAIT_FOR_ROLLOUTS:
            return _rollouts_are_there(books)
        case Stage.WAIT_FOR_BATCH:
            return _batch_is_there(books, step)
        case Stage.WAIT_FOR_WEIGHTS:
            return _weights_are_there(books, step)
        case Stage.WAIT_FOR_ROOM:
            return _room_is_there(books)
    return False


def _rollouts_are_there(books: Books) -> bool:
    """Under ``in_flight``, what was generated is handed on when the load beside it is over."""
    return books.unscored > 0 and books.schedule.lag_control != "in_flight"


def _batch_is_there(books: Books, step: int) -> bool:
    """Whether the Learner waits for a batch of which all is scored; or, after it, for what has been loaded and told."""
    schedule = books.schedule
    if step < books.version or step == schedule.steps:
        return _weights_are_used(books)
    if schedule.lag_control == "drop":
        return False
    return all(
        name in books.scored or name in books.failed
        for name in ((step, prompt) for prompt in schedule.plan.batch_prompts(step))
    )


def _weights_are_used(books: Books) -> bool:
    """Whether the evaluations that are due are told and, before the last step, all Generators hold the newest weights.

    That is what the Learner waits for at lag 0 after each step, and the evaluations at every lag at the end.
    """
    due = sum(version <= books.version for version in books.schedule.evaluated)
    held = [books.claims.get(lane, -1) for lane in books.schedule.generator_lanes]
    return len(books.evaluated) == due and (books.version == books.schedule.steps or min(held) == books.version)


def _weights_are_there(books: Books, step: int) -> bool:
    """Whether weights are there that a Generator may start a batch with; at lag 0 it may wait for an evaluation."""
    schedule = books.schedule
    if schedule.lag_control == "drop" or schedule.max_lag == 0 or step == schedule.steps:
        return False
    return bool(books.published) and books.published[-1] >= step - schedule.max_lag


def _room_is_there(books: Books) -> bool:
    """Whether another batch could be ordered, even if every Generator that loads weights has an order already."""
    schedule = books.schedule
    loading = sum(
        lane not in books.generating and books.waits.get(lane, (None, 0))[0] is not Stage.WAIT_FOR_ROOM
        for lane in schedule.generator_lanes
    )
    shard = -(-schedule.prompts // schedule.generators)  # groups of the largest one
    gone = len(books.consumed) + len(books.failed)
    gone += sum(name not in books.consumed and books.is_dropped(group) for name, group in books.scored.items())
    return books.begun - gone + loading * shard < schedule.plan.room * schedule.prompts
