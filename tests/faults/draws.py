"""From a number to a schedule. Runs are short, so that thousands of them take minutes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from harness.core.seeds import derive_seed
from harness.core.types import Purpose
from harness.loop.replay import ReplayOptions
from tests.faults.schedule import LEARNER, Call, Fault, FaultKind, Schedule, Timing, Unrewarded

CALLS: dict[str, tuple[Call, ...]] = {
    "generator": ("load", "generate"),
    "scorer": ("score",),
    LEARNER: ("update", "publish", "checkpoint"),
}
"""The calls of each kind of part."""

SURVIVED: tuple[tuple[FaultKind, str, tuple[Call, ...], int], ...] = (
    (FaultKind.KILLED, "generator", ("load", "generate", "generate"), 5),
    (FaultKind.KILLED, "scorer", ("score",), 3),
    (FaultKind.SLOW, "generator", ("load", "generate"), 2),
    (FaultKind.SLOW, "scorer", ("score",), 2),
    (FaultKind.SLOW, LEARNER, ("update", "publish"), 2),
    (FaultKind.STUCK, "generator", ("load", "generate"), 1),
    (FaultKind.STUCK, "scorer", ("score",), 1),
    (FaultKind.STUCK, LEARNER, ("update", "publish"), 1),
    (FaultKind.HELD_BACK, "generator", ("load", "generate"), 2),
    (FaultKind.HELD_BACK, "scorer", ("score",), 2),
)
"""What a run goes on after: kind, whose calls, which ones, weight in the draw."""

FATAL: tuple[tuple[FaultKind, str, tuple[Call, ...], int], ...] = (
    (FaultKind.HUNG, "generator", ("load", "generate"), 1),
    (FaultKind.HUNG, "scorer", ("score",), 1),
    (FaultKind.HUNG, LEARNER, ("update", "publish"), 1),
    (FaultKind.FAILS, "generator", ("load", "generate"), 1),
    (FaultKind.FAILS, "scorer", ("score",), 1),
    (FaultKind.FAILS, LEARNER, ("update", "publish", "checkpoint"), 1),
    (FaultKind.KILLED, LEARNER, ("update", "publish", "checkpoint"), 3),
    (FaultKind.OLD_ANSWER, "generator", ("generate",), 2),
    (FaultKind.OLD_ANSWER, "scorer", ("score",), 2),
    (FaultKind.LOST_GROUPS, "generator", ("generate",), 1),
    (FaultKind.LOST_GROUPS, "scorer", ("score",), 1),
    (FaultKind.LOST_WEIGHTS, "generator", ("load",), 3),
    (FaultKind.OWNED_LOST_WEIGHTS, "generator", ("load",), 2),
    (FaultKind.SECOND_LOAD, "generator", ("load",), 2),
    (FaultKind.OLD_TICKET, LEARNER, ("publish",), 1),
)
"""What ends a run, or spoils it in silence; the rest as in ``SURVIVED``."""


def draw(seed: int) -> Schedule:
    """Return the schedule of this number: the same one on every machine."""
    rng = random.Random(derive_seed("faults", seed))
    max_lag, generators = rng.randint(0, 3), rng.randint(1, 4)
    prompts = generators * rng.randint(1, 2) + rng.choice([0, 0, 1])
    schedule = Schedule(
        seed=seed,
        steps=rng.randint(2, 10),
        generators=generators,
        scorers=rng.randint(1, 3),
        prompts=prompts,
        group_size=rng.randint(2, 3),
        max_lag=max_lag,
        lag_control=rng.choice(["wait", "drop", "in_flight"]) if max_lag else "wait",
        epochs=rng.choice([1, 1, 2, 4]),
        validates=rng.random() < 0.5,
        evaluate_every=rng.randint(1, 4),
        replay=_replay(rng, prompts, max_lag) if rng.random() < 0.4 else None,
        proof=rng.random() < 0.7,
        max_replacements=rng.choice([0, 1, 2] + 12 * [10]),
        restart_s=rng.choice([0.0, 1.0, rng.uniform(0, 20)]),
    )
    return _with_faults(rng, schedule)


def _with_faults(rng: random.Random, schedule: Schedule) -> Schedule:
    faults = _faults(rng, schedule)
    return replace(schedule, timings=_timings(rng, schedule), faults=faults, unrewarded=_unrewarded(rng, schedule))


def _replay(rng: random.Random, prompts: int, max_lag: int) -> ReplayOptions:
    capacity = rng.randint(prompts, 4 * prompts)
    return ReplayOptions(
        capacity,
        max_lag + rng.randint(0, 3),
        rng.choice(["newest", "uniform", "reward_weighted"]),
        rng.randint(1, capacity),
        rng.choice([None, 1, 2, 3]),
    )


def _timings(rng: random.Random, schedule: Schedule) -> tuple[Timing, ...]:
    """Durations of another scale for each call, often zero and often equal: so that much happens at one instant."""
    timings = []
    for lane in schedule.lanes:
        for call in CALLS[_kind_of(lane)]:
            scale = rng.choice([0.0, 1.0, 1.0, 1.0, 10.0])
            table = tuple(
                scale * rng.choice([0.0, 1.0, 1.0, 2.0, rng.uniform(0, 4)]) for _ in range(rng.choice([1, 3]))
            )
            if any(table):
                timings.append(Timing(lane, call, table))
    return tuple(timings)


def _faults(rng: random.Random, schedule: Schedule) -> tuple[Fault, ...]:
    """None to six faults that a run goes on after, deaths maybe twice in a row; in one run of three a fatal one too.

    Of two faults in one call of one lane, the later one stays.
    """
    drawn = [_fault(rng, schedule, SURVIVED) for _ in range(rng.choice([0, 1, 2, 3, 4, 6]))]
    drawn += [
        Fault(fault.kind, fault.lane, fault.call, fault.number + 1, 0.0)
        for fault in drawn
        if fault.kind is FaultKind.KILLED and rng.random() < 0.3  # the one in its place dies too
    ]
    if rng.random() < 0.3:
        drawn.append(_fault(rng, schedule, FATAL))
    return tuple({(fault.lane, fault.call, fault.number): fault for fault in drawn}.values())


def _fault(
    rng: random.Random, schedule: Schedule, choices: Sequence[tuple[FaultKind, str, tuple[Call, ...], int]]
) -> Fault:
    kind, part, calls, _ = rng.choices(choices, [weight for *_, weight in choices])[0]
    lane = rng.choice([lane for lane in schedule.lanes if _kind_of(lane) == part])
    call = rng.choice(calls)
    number = 1 if call == "checkpoint" else rng.randint(1, schedule.steps)
    return Fault(kind, lane, call, number, _amount(rng, kind))


def _amount(rng: random.Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.KILLED:
            return rng.choice([0.0, 0.0, 0.5, 1.0, rng.uniform(0, 20), 1e9])
        case FaultKind.SLOW:
            return rng.choice([10.0, 100.0, 1000.0])
        case FaultKind.STUCK:
            return rng.choice([100.0, 1e3, 1e4])
        case FaultKind.HELD_BACK:
            return rng.choice([0.0, 1.0, rng.uniform(0, 40)])
        case FaultKind.LOST_GROUPS:
            return float(rng.randint(0, 1))
    return 0.0


def _unrewarded(rng: random.Random, schedule: Schedule) -> tuple[Unrewarded, ...]:
    """Rewards that never come: mostly none, some, or all of one batch."""
    chosen = rng.random()
    if chosen < 0.6:
        return ()
    step = rng.randrange(schedule.steps)
    if chosen < 0.65:
        return tuple(Unrewarded(Purpose.TRAIN, step, place) for place in range(schedule.prompts))
    share = rng.choice([0.05, 0.3])
    train = [(Purpose.TRAIN, step, place) for step in range(schedule.steps) for place in range(schedule.prompts)]
    evaluation = [(Purpose.EVALUATE, version, place) for version in schedule.evaluated for place in range(2)]
    return tuple(Unrewarded(*group) for group in train + evaluation if rng.random() < share)


def _kind_of(lane: str) -> str:
    return lane.rstrip("0123456789")
