"""What to know before trusting the numbers: where runs came from, how they took turns, and what stood in their way."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from harness.compare.completeness import gaps
from harness.compare.environment import unlike
from harness.compare.experiment import Experiment
from harness.compare.imported import is_of_logs
from harness.compare.judging import Judgement
from harness.compare.numbers import extrapolation, listed, plural, some
from harness.compare.remarks.answer import NEEDS_BLOCKS, named_runs, only_sleeps
from harness.compare.remarks.syncs import sweep_points
from harness.compare.resources import contention
from harness.compare.stats.bootstrap import FEWEST_STEPS
from harness.compare.steadiness import steadiness_notes
from harness.core.errors import UserError
from harness.core.experiment import NAMING
from harness.core.extras import as_typed
from harness.core.intervals import Interval
from harness.core.named_files import SCENARIOS, VERSUS
from harness.results.counters import CounterRow
from harness.results.experiment_plan import read_plan
from harness.results.reader import flat_settings

_OF_ALL = (*NAMING, "arms", "sweep", "blocks", "stop_at_half_width", "seed", "trackers")
"""Settings that a command for blocks of the same runs leaves out."""
MOST_ARMS = 6
"""Whose counters are read."""


def simulated(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say that the runs never took place, and what is not known of them for that."""
    if experiment.simulated is None:
        return
    yield (
        f"These runs are simulated: their seconds are predictions of the machine profile {experiment.simulated}. "
        "Rewards, losses and gradients are not simulated."
    )
    if any(member.manifest.machine.get("origin") == "datasheet" for member in experiment.members):
        yield f"The machine profile {experiment.simulated} is taken from data sheets and was not measured."
    beyond = [member.manifest.outcome.get("extrapolating") for member in experiment.members]
    texts = dict.fromkeys(
        extrapolation(str(text)) for each in beyond if isinstance(each, list | tuple) for text in each if text
    )
    yield from (f"EXTRAPOLATING: {text}" for text in texts)


def unfinished(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Name the runs that did not get to their end, and why."""
    for name, member in named_runs(experiment):
        if not member.is_completed:
            reason = f": {member.manifest.error}" if member.manifest.error else ""
            planned = f" of {member.figures['planned_steps']}" if member.figures["planned_steps"] else ""
            yield f"{name}: {member.run.status} after {member.steps}{planned} steps{reason.removesuffix('.')}."


def damaged(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Name files that are left out of the machine's counters and of example rollouts."""
    for name, member in named_runs(experiment):
        if member.times is not None:  # of very many runs, those of which more than the steps is read
            yield from (f"{name}: {text}." for text in member.kept.problems)


def unknown_seconds(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say of how many steps the log of another trainer has no seconds, where it has those of others."""
    for name, member in named_runs(experiment):
        known = int((member.table.steps["wall_s"] > 0).sum())
        if member.figures["is_imported"] and 0 < known < member.steps:
            yield f"{name}: the log has seconds of {known} of {member.steps} steps; the others count in no time."


def missing(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say which runs that were asked for are not among those that are compared, and what that does to the baseline."""
    plan = read_plan(experiment.folder)
    absent = gaps(experiment, ())
    if plan is None or not absent.runs:
        return
    names = listed(some([gap.folder.name for gap in absent.runs]))
    text = f"{len(absent.runs)} of {plural(len(plan.due), 'planned run')} cannot be read or are not there: {names}"
    if plan.due and plan.due[0].variant in absent.lost:
        text += f"; without any run of {plan.due[0].variant}, arms are set against {experiment.labels[0]}"
    yield f"{text}."


def asleep(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say where the parts of runs sleep in place of working."""
    arms = [arm for arm, members in experiment.arms.items() if any(map(only_sleeps, members))]
    if arms:
        yield f"In {listed(some(arms))} model and engine sleep for given times in place of working: nothing is learned."


def verdict_cautions(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Give what to know beside the verdicts, each once, but for what other remarks say of the arms."""
    arms = [*experiment.arms]
    pairs = [[item.base, item.other] for item in judged if {item.base, item.other} <= {*arms}]
    pairs += [[item.other] for item in judged if item.other in arms]  # as set against folders of other days
    elsewhere = {*unlike(experiment.members), *(note for pair in pairs for note in steadiness_notes(experiment, pair))}
    told = dict.fromkeys(caution for item in judged for caution in item.cautions if caution not in elsewhere)
    for caution in told:
        starts_with_arm = caution.split()[0] in arms
        yield f"{caution[:1] if starts_with_arm else caution[:1].upper()}{caution[1:].removesuffix('.')}."


def unlike_runs(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say where the runs differ in what the answer does not begin with."""
    yield from unlike(experiment.members, {each.kind for item in judged for each in item.fairness.accidents})


def turns(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say where the arms did not take turns step by step."""
    ways = {member.manifest.interleaving for member in experiment.members}
    points = [member.manifest.point for member in experiment.members]
    if len(experiment.arms) == 1 or experiment.simulated or sweep_points(experiment) or is_of_logs(experiment):
        return
    if ways != {"step"} and any(member.manifest.block is not None for member in experiment.members):
        yield "The arms of a block ran one after the other, in mirrored order from block to block."
    elif ways != {"step"} or any(point != points[0] for point in points):
        yield "Runs followed each other, so drift of the machine shows as a difference between them."


def of_logs(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what is not known of arms that are one run each of another trainer."""
    of_others = any(each.figures["is_imported"] or each.is_recorded for each in experiment.members)
    if len(experiment.arms) > 1 and max(map(len, experiment.arms.values())) == 1 and of_others:
        yield f"One run each: how far two runs of one arm lie apart is unknown, so there is no verdict. {NEEDS_BLOCKS}."
    if is_of_logs(experiment):
        steps = {arm: int(members[0].table.is_measured.sum()) for arm, members in experiment.arms.items()}
        few = [f"{arm} has {own}" for arm, own in steps.items() if own < FEWEST_STEPS]
        if few:
            yield f"An interval over steps takes {FEWEST_STEPS} measured steps: {listed(some(few))}."


def not_repeated(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[tuple[str, str]]:
    """Say where there are no error bars, and what to type for some."""
    of_others = any(member.figures["is_imported"] or member.is_recorded for member in experiment.members)
    cannot_run = experiment.simulated or of_others
    several = len(experiment.arms) > 1
    if max(map(len, experiment.arms.values())) == 1 and not cannot_run and not sweep_points(experiment):
        names = experiment.scenario.split(VERSUS)
        words = [*map(SCENARIOS.typed, names), "--blocks", "10", *(["--again"] if len(experiment.arms) == 1 else [])]
        words += (word for change in _typed_settings(experiment, names) for word in ("--set", change))
        command = as_typed(f"python -m harness bench {shlex.join(words)}")
        needs = f" {NEEDS_BLOCKS}, 10 better:" if several else " For some:"
        yield f"One run{' each' if several else ''}: no error bars.{needs}", command


def _typed_settings(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Return what all runs set otherwise than their scenario, as after --set; nothing where that is not here."""
    from harness.scenario.axes import expand  # only where a command is proposed: comparing loads no pydantic
    from harness.scenario.load import load_scenario
    from harness.scenario.tree import parse_yaml

    changed = list[dict[str, Any]]()
    try:
        if len(names) == 1:
            arms = {each.arm: each.scenario for each in expand(load_scenario(names[0]))}
        else:
            arms = dict(zip(experiment.arms, map(load_scenario, names), strict=True))
        for member in (members[0] for members in experiment.arms.values()):
            wanted = flat_settings(arms[member.manifest.arm].model_dump(mode="json"))
            own = flat_settings({key: value for key, value in member.settings.items() if key not in _OF_ALL})
            changed.append({key: own[key] for key in own if key in wanted and own[key] != wanted[key]})
        same = {key: value for key, value in changed[0].items() if all(each.get(key, ...) == value for each in changed)}
        plain = {value for value in same.values() if isinstance(value, str) and parse_yaml(value, "") == value}
    except (UserError, KeyError, ValueError):
        return []
    return [
        f"{key}={value if isinstance(value, str) and value in plain else json.dumps(value)}"
        for key, value in same.items()
    ]


class Counted(NamedTuple):
    """The counters of one run of an arm, and the window of its loop in nanoseconds."""

    arm: str
    rows: Sequence[CounterRow]
    window: Interval


def counted_runs(experiment: Experiment) -> Iterator[Counted]:
    """Yield of each arm the first run that has counters and spans."""
    for arm, members in experiment.arms.items():
        for member in members:
            if member.kept.counters and (window := member.window) is not None:
                yield Counted(arm, member.kept.counters, window)
                break


def contention_of_arms(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what stood in the way of the first run of each arm that has counters."""
    for item in islice(counted_runs(experiment), MOST_ARMS):
        yield from (f"{item.arm}: {text[0].lower()}{text[1:]}" for text in contention(item.rows, item.window))
