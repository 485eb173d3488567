"""What-if against the truth: the effect of a change as replayed from recorded runs, and as it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from harness.compare.stats import t_interval
from harness.results import Run
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import RunMetrics
from harness.simulate.whatif.effects import what_if
from tests.holdout.document import ChangeScore
from tests.holdout.plan import ChangePlan
from tests.holdout.reading import Measured
from tests.holdout.side_by_side import Each


class Replay(NamedTuple):
    """Step time after over before, and by which share the replay of the run as it was misses the run."""

    ratio: float
    error: float


def change_scores(
    plan: ChangePlan,
    measured: Measured,
    machine: MachineProfile,
    figures: Mapping[str, Sequence[RunMetrics]],
    each: Each = map,
) -> tuple[ChangeScore, ...]:
    """Predict each change from every recorded run of the arm that it starts from.

    Args:
        each: carries out the replays.

    Raises:
        UserError: a change cannot be replayed.
    """
    start, runs = plan.start, measured.held_out[plan.start]
    answers = list(each(replayed, [(run, settings, machine) for settings in plan.changes.values() for run in runs]))
    before = step_times(runs, figures[start])
    scores = []
    for number, (arm, settings) in enumerate(plan.changes.items()):
        seen = paired_log_ratios(before, step_times(measured.held_out[arm], figures[arm]))
        own = answers[number * len(runs) : (number + 1) * len(runs)]
        scores.append(_change_score((start, arm, settings), own, seen))
    return tuple(scores)


def _change_score(
    change: tuple[str, str, Sequence[str]], answers: Sequence[Replay], seen: Sequence[float]
) -> ChangeScore:
    start, arm, settings = change
    foreseen = [log(answer.ratio) for answer in answers]
    interval = t_interval(seen)
    return ChangeScore(
        start=start,
        arm=arm,
        settings=tuple(settings),
        predicted=exp(fmean(foreseen)),
        predicted_low=exp(min(foreseen)),
        predicted_high=exp(max(foreseen)),
        measured=exp(fmean(seen)),
        low=exp(interval.low) if interval else None,
        high=exp(interval.high) if interval else None,
        replay_error=max(abs(answer.error) for answer in answers),
    )


def replayed(question: tuple[Run, Sequence[str], MachineProfile]) -> Replay:
    """Ask ``whatif`` about a recorded run; how far its replay is off is shown, so it is no reason to refuse here."""
    run, settings, machine = question
    answer = what_if(run, settings, machine=machine, bound=float("inf"), with_gains=False)
    return Replay(answer.ratio, answer.error)


def step_times(runs: Sequence[Run], figures: Sequence[RunMetrics]) -> dict[tuple[str, int], float]:
    """Return the step times of an arm's runs by experiment and seed."""
    pairs = zip(runs, figures, strict=True)
    return {(run.manifest.experiment, run.manifest.seed): found.step_s for run, found in pairs}


def paired_log_ratios(before: Mapping[tuple[str, int], float], after: Mapping[tuple[str, int], float]) -> list[float]:
    """Return log(after / before) of the runs that share experiment and seed, in the order of ``before``.

    Raises:
        ValueError: they share none.
    """
    ratios = [log(after[key] / before[key]) for key in before if key in after]
    if not ratios:
        raise ValueError("the two arms have no experiment in common")
    return ratios
