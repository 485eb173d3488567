"""Whether a run ended as it had to, and where every rollout went."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from harness.core.errors import RunStopped
from harness.loop import Count
from harness.simulate.clock import Deadlock
from tests.faults.checker import LIES_ABOUT_WEIGHTS, Books, Broken, Name
from tests.faults.faulty import TOO_MANY, Injected
from tests.faults.schedule import LEARNER, FaultKind

FINISHED = "finished"

ENDS: dict[FaultKind | str, str] = {
    FaultKind.KILLED: "stopped: the Learner died",
    FaultKind.FAILS: "stopped: a part failed",
    TOO_MANY: "stopped: too many deaths",
}
"""The end of a run whose part raised because of this fault."""

FORGED = FaultKind.OLD_ANSWER, FaultKind.LOST_GROUPS, FaultKind.OLD_TICKET
NO_REWARDS = "stopped: no reward for a whole batch"
STALLED = "stopped: the watchdog found a hung call"
WRONG_ANSWER = "stopped: a part answered something else"


def ending(books: Books, error: BaseException | None) -> str:
    """Return how a run ended in which the loop raised this error, or none; raise ``Broken`` if it must not end so."""
    if books.broken is not None:
        raise books.broken
    if isinstance(error, AssertionError):
        raise Broken("weights there", str(error))
    if isinstance(error, Deadlock):
        raise Broken("no deadlock", str(error))
    if error is not None and not isinstance(error, RunStopped):
        raise Broken("right end", f"{type(error).__name__}: {error}")
    if error is not None:
        return _stopped(books, error)
    _check_finished(books)
    return FINISHED


def _stopped(books: Books, error: RunStopped) -> str:
    """The end of a run that stopped, if something that happened excuses it."""
    if isinstance(error, Injected):
        return ENDS[error.kind]
    excuses = {
        "no group of a rollout batch could be scored": (NO_REWARDS, _nothing_to_train_on(books)),
        "wrong answer": (WRONG_ANSWER, books.has(*FORGED, *LIES_ABOUT_WEIGHTS)),
        "no stage has ended": (STALLED, _names_hung(books, str(error))),
        "a stage has not ended": (STALLED, _names_hung(books, str(error))),
    }
    for start, (end, excused) in excuses.items():
        if str(error).startswith(start) and excused:
            return end
    raise Broken("right end", f"no fault excuses this end: {error}")


def _nothing_to_train_on(books: Books) -> bool:
    """Whether the batch that was due has no group, after as many as may be so; under ``drop``, of any shards."""
    schedule = books.schedule
    if _empty_in_a_row(books)[-1] != schedule.max_failed_batches:
        return False
    if schedule.lag_control == "drop":
        return books.shards.without_groups() >= schedule.generators
    return sum(step == books.steps for step, _, _ in books.failed) == schedule.prompts


def _empty_in_a_row(books: Books) -> list[int]:
    """How many batches without any group came one after another: at the beginning, and after each step."""
    return list(accumulate(books.fresh, lambda before, fresh: 0 if fresh else before + 1, initial=0))


def _names_hung(books: Books, message: str) -> bool:
    return any(fault.kind is FaultKind.HUNG and fault.lane in message for fault, _ in books.happened)


def _check_finished(books: Books) -> None:
    """Check what must hold when all steps were made."""
    schedule, versions = books.schedule, list(range(books.schedule.steps + 1))
    fatal = [fault for fault, _ in books.happened if _is_fatal(books, fault.kind, fault.lane)]
    books.require(not fatal, "right end", f"the run finished in spite of {fatal}")
    books.require(books.owned_up == 0, "weights held", f"{books.owned_up} answers of older weights than were loaded")
    books.require(books.steps == schedule.steps, "steps in order", f"{books.steps} of {schedule.steps} steps were made")
    books.require(books.published == versions, "versions", f"the versions {books.published} were published")
    most = max(_empty_in_a_row(books))
    books.require(most <= schedule.max_failed_batches, "right end", f"{most} batches without any group in a row")
    due = schedule.evaluated
    books.require(books.evaluated == due, "evaluations", f"{books.evaluated} were told, due were {due}")
    deaths = Counter(lane for lane, _ in books.deaths)
    books.require(books.replaced == deaths, "replaced", f"told {dict(books.replaced)}, died {dict(deaths)}")
    # under drop what is left is still scored; a run that went on behind its last step waits for nothing more
    apart = schedule.lag_control == "drop" or books.resumed_at == schedule.steps
    together = apart or len(set(books.lane_ends.values())) <= 1
    books.require(together, "time", f"lanes end at {books.lane_ends} ns")
    _check_orders(books)
    _check_ledger(books)


def _is_fatal(books: Books, kind: FaultKind, lane: str) -> bool:
    if kind is FaultKind.HUNG:  # the death of a hung part frees who waits for it
        return not books.has(FaultKind.KILLED, lane=lane)
    last = kind is FaultKind.KILLED and lane == LEARNER and not books.schedule.checkpoint_every
    return kind in (FaultKind.FAILS, *FORGED) or last


def _check_orders(books: Books) -> None:
    """Without ``drop``, exactly what is to be trained on is ordered, and all of it is scored and consumed."""
    schedule = books.schedule
    if schedule.lag_control == "drop":
        _check_stream(books)
        return
    books.require(books.in_flight == 0, "in flight", f"{books.in_flight} rollouts are in flight at the end")
    ordered = {(step, prompt, 0) for step in range(schedule.steps) for prompt in schedule.plan.batch_prompts(step)}
    first = {name for name in books.generated if name[2] == 0}
    ended = len(books.consumed) + len(books.failed)
    all_ended = first == ordered and ended == len(ordered) == len(books.generated) - len(books.discarded)
    told = (
        f"{len(ordered)} groups were to be ordered, {len(books.generated)} were generated, {ended} consumed or failed"
    )
    books.require(all_ended, "none lost", f"{told} and {len(books.discarded)} discarded")


def _check_stream(books: Books) -> None:
    """Under ``drop``, an order that was never begun is in the hands of a Generator that has begun nothing after it.

    Orders are handed out one by one, and a Generator takes the next one when it has sampled the one before.
    """
    generators = books.schedule.generators
    begun = {step * generators + shard for step, shard, attempt in books.orders if not attempt}
    left_out = sorted(set(range(max(begun, default=0))) - begun)
    last = [books.last_order.get(lane, -1) for lane in books.schedule.generator_lanes]
    for number, order in enumerate(left_out, 1):
        could = sum(each < order for each in last)
        told = f"shard {order % generators} of batch {order // generators} was never begun"
        books.require(
            could >= number, "none lost", f"{told}; of {number} such orders {could} may be in somebody's hands"
        )


def _check_ledger(books: Books) -> None:
    """Every generated rollout is in one column, by these books as by the loop's ledger."""
    ledger = books.ledger
    assert ledger is not None
    columns: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for name, group in books.generated.items():
        column = _column(books, name)
        columns[column] += len(group.lengths)
        tokens[column] += group.num_tokens
    for name, uses in books.uses.items():
        columns["trained_again"] += (uses - 1) * len(books.generated[name].lengths)
        tokens["trained_again"] += (uses - 1) * books.generated[name].num_tokens
    for column in ("failed", "discarded", "trained", "trained_again", "dropped", "unused"):
        mine, told = Count(columns[column], tokens[column]), getattr(ledger, column)
        books.require(mine == told, "none lost", f"{column}: the ledger has {told}, there were {mine}")


def _column(books: Books, name: Name) -> str:
    if name in books.failed:
        return "failed"
    if name in books.discarded:
        return "discarded"
    if books.uses[name]:
        return "trained"
    if name in books.scored and name not in books.consumed and books.is_dropped(books.scored[name]):
        return "dropped"
    return "unused"
