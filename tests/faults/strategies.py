"""Schedules for Hypothesis, which draws them and shrinks what fails. Runs are short, so that thousands take minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from harness.core.types import Purpose
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from tests.faults.schedule import LEARNER, Call, Fault, FaultKind, Schedule, Timing, Unrewarded

CALLS: dict[str, tuple[Call, ...]] = {
    "generator": ("load", "generate"),
    "scorer": ("score",),
    LEARNER: ("update", "publish", "save_policy"),
}
"""The calls of each kind of part."""

Drawn = tuple[FaultKind, str, tuple[Call, ...], int]
"""Kind, whose calls, which ones, weight in the draw."""

SURVIVED: tuple[Drawn, ...] = (
    (FaultKind.KILLED, "generator", ("load", "generate", "generate"), 5),
    (FaultKind.KILLED, "scorer", ("score",), 3),
    (FaultKind.SLOW, "generator", ("load", "generate"), 3),
    (FaultKind.SLOW, "scorer", ("score",), 3),
    (FaultKind.SLOW, LEARNER, ("update", "publish"), 3),
    (FaultKind.HELD_BACK, "generator", ("load", "generate"), 2),
    (FaultKind.HELD_BACK, "scorer", ("score",), 2),
)
"""What a run goes on after."""

FATAL: tuple[Drawn, ...] = (
    (FaultKind.HUNG, "generator", ("load", "generate"), 1),
    (FaultKind.HUNG, "scorer", ("score",), 1),
    (FaultKind.HUNG, LEARNER, ("update", "publish"), 1),
    (FaultKind.FAILS, "generator", ("load", "generate"), 1),
    (FaultKind.FAILS, "scorer", ("score",), 1),
    (FaultKind.FAILS, LEARNER, ("update", "publish", "save_policy"), 1),
    (FaultKind.KILLED, LEARNER, ("update", "publish", "save_policy"), 3),
    (FaultKind.OLD_ANSWER, "generator", ("generate",), 2),
    (FaultKind.OLD_ANSWER, "scorer", ("score",), 2),
    (FaultKind.LOST_GROUPS, "generator", ("generate",), 1),
    (FaultKind.LOST_GROUPS, "scorer", ("score",), 1),
    (FaultKind.LOST_WEIGHTS, "generator", ("load",), 3),
    (FaultKind.SECOND_LOAD, "generator", ("load",), 2),
    (FaultKind.OLD_TICKET, LEARNER, ("publish",), 1),
)
"""What ends a run."""

ENDS_ALL: tuple[Drawn, ...] = ((FaultKind.KILLED, LEARNER, ("update", "publish", "save_policy"), 1),)
"""What ends a run that then goes on from a checkpoint, beside the kills that are drawn apart."""

AMOUNTS: dict[FaultKind, st.SearchStrategy[float]] = {
    FaultKind.KILLED: st.sampled_from([0.0, 0.5, 1.0, 1e9]) | st.floats(0, 20),
    FaultKind.SLOW: st.sampled_from([10.0, 100.0, 1e3, 1e4]),
    FaultKind.HELD_BACK: st.sampled_from([0.0, 1.0]) | st.floats(0, 40),
    FaultKind.LOST_GROUPS: st.sampled_from([0.0, 1.0]),
}
"""The ``amount`` of a fault, where it means something."""


@st.composite
def schedules(draw: st.DrawFn, fatal: Sequence[Drawn] = FATAL) -> Schedule:
    """Draw the plan, how long everything takes, and which faults happen; one of ``fatal`` at most."""
    max_lag, generators = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    prompts = generators * draw(st.integers(1, 2)) + draw(st.sampled_from([0, 0, 1]))
    schedule = Schedule(
        seed=draw(st.integers(0, 9999)),
        steps=draw(st.integers(2, 10)),
        generators=generators,
        scorers=draw(st.integers(1, 3)),
        prompts=prompts,
        group_size=draw(st.integers(2, 3)),
        max_lag=max_lag,
        lag_control=draw(st.sampled_from(["wait", "drop", "in_flight"])) if max_lag else "wait",
        epochs=draw(st.sampled_from([1, 1, 2, 4])),
        validates=draw(st.booleans()),
        evaluate_every=draw(st.integers(1, 4)),
        replay=draw(st.just(ReplaySettings()) | _replay(prompts, max_lag)),
        max_replacements=draw(st.sampled_from(12 * [10] + [0, 1, 2])),
        restart_s=draw(st.sampled_from([0.0, 1.0]) | st.floats(0, 20)),
        max_failed_batches=draw(st.sampled_from([0, 0, 1, 2])),
        dynamic_sampling=DynamicSamplingSettings(attempts=draw(st.just(0) | st.integers(1, 3))),
        num_prompts=draw(st.sampled_from([0, prompts + 1, 20 * prompts])),  # no others, too few, enough
        flat_share=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
    )
    schedule = replace(schedule, timings=_timings(draw, schedule), faults=_faults(draw, schedule, fatal))
    return replace(schedule, unrewarded=_unrewarded(draw, schedule))


@st.composite
def killed_schedules(draw: st.DrawFn, fatal: Sequence[Drawn] = ENDS_ALL) -> Schedule:
    """Draw a schedule with checkpoints, in which everything is killed so many times."""
    seconds = st.sampled_from([0.0, 0.0, 1.0]) | st.floats(0, 40)
    callbacks = st.integers(1, 200) | st.integers(100, 400) | st.integers(200, 1200)
    return replace(
        draw(schedules(fatal)),
        checkpoint_every=draw(st.sampled_from([1, 1, 1, 2, 4])),
        save_s=draw(seconds),
        write_s=draw(seconds),
        kills=tuple(draw(st.lists(callbacks, min_size=1, max_size=4))),
    )


@st.composite
def _replay(draw: st.DrawFn, prompts: int, max_lag: int) -> ReplaySettings:
    capacity = draw(st.integers(prompts, 4 * prompts))
    return ReplaySettings(
        capacity=capacity,
        max_age=max_lag + draw(st.integers(0, 3)),
        sampling=draw(st.sampled_from(["newest", "uniform", "reward_weighted", "signal_weighted"])),
        sample_groups=draw(st.integers(1, capacity)),
    )


def _timings(draw: st.DrawFn, schedule: Schedule) -> tuple[Timing, ...]:
    """Durations of another scale for each call, often zero and often equal: so that much happens at one instant."""
    seconds = st.sampled_from([0.0, 1.0, 1.0, 2.0]) | st.floats(0, 4)
    timings = []
    for lane in schedule.lanes:
        for call in CALLS[_kind_of(lane)]:
            scale = draw(st.sampled_from([0.0, 1.0, 1.0, 1.0, 10.0]))
            if scale:
                table = tuple(scale * each for each in draw(st.lists(seconds, min_size=1, max_size=3)))
                timings.append(Timing(lane, call, table))
    return tuple(timings)


def _faults(draw: st.DrawFn, schedule: Schedule, fatal: Sequence[Drawn]) -> tuple[Fault, ...]:
    """None to six faults that a run goes on after, deaths maybe twice in a row; in some runs a fatal one too.

    Of two faults in one call of one lane, the later one stays.
    """
    drawn = draw(st.lists(_fault(schedule, SURVIVED), max_size=6))
    for fault in list(drawn):
        if fault.kind is FaultKind.KILLED and draw(st.sampled_from([False, False, True])):
            drawn.append(replace(fault, number=fault.number + 1, amount=0.0))  # the one in its place dies too
    if fatal and draw(st.sampled_from([False, False, True])):
        drawn.append(draw(_fault(schedule, fatal)))
    return tuple({(fault.lane, fault.call, fault.number): fault for fault in drawn}.values())


@st.composite
def _fault(draw: st.DrawFn, schedule: Schedule, choices: Sequence[Drawn]) -> Fault:
    weighted = [choice for choice in choices for _ in range(choice[3])]
    kind, part, calls, _ = draw(st.sampled_from(weighted))
    lane = draw(st.sampled_from([lane for lane in schedule.lanes if _kind_of(lane) == part]))
    call = draw(st.sampled_from(calls))
    number = 1 if call == "save_policy" else draw(st.integers(1, schedule.steps))
    return Fault(kind, lane, call, number, draw(AMOUNTS.get(kind, st.just(0.0))))


def _unrewarded(draw: st.DrawFn, schedule: Schedule) -> tuple[Unrewarded, ...]:
    """Rewards that never come: mostly none, some, or all of one batch or of several in a row."""
    how = draw(st.sampled_from(6 * ["none"] + 3 * ["some"] + 2 * ["batches"]))
    places, attempts = range(schedule.prompts), [0, 1] if schedule.dynamic_sampling.attempts else [0]
    if how == "none":
        return ()
    if how == "batches":
        first = draw(st.integers(0, schedule.steps - 1))
        steps = range(first, first + draw(st.integers(1, 1 + schedule.max_failed_batches)))
        return tuple(Unrewarded(Purpose.TRAIN, step, place) for step in steps for place in places)
    train = [
        (Purpose.TRAIN, step, place, attempt)
        for step in range(schedule.steps)
        for place in places
        for attempt in attempts
    ]
    evaluation = [(Purpose.EVALUATE, version, place, 0) for version in schedule.evaluated for place in range(2)]
    chosen = draw(st.lists(st.sampled_from(train + evaluation), unique=True, max_size=12))
    return tuple(Unrewarded(*group) for group in chosen)


def _kind_of(lane: str) -> str:
    return lane.rstrip("0123456789")
