"""Where a step's time goes: the bottleneck, what overlap saves, slow steps and ranks, checkpoints."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, permutations
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.compare.checkpoints import checkpoint_cost, checkpoint_sentence
from harness.compare.experiment import Experiment, Member
from harness.compare.judging import Judgement, judgements, settings_of
from harness.compare.numbers import change, listed, number, percent, some
from harness.compare.ranks import find_straggler
from harness.compare.run_frame import EXPOSED, TIMING, UNATTRIBUTED
from harness.compare.stats.verdicts import STEP_THRESHOLD
from harness.compare.steadiness import uneven_sentence
from harness.core.extras import as_typed
from harness.core.types import RankStep
from harness.results.frames import stages_in
from harness.results.occupancy import part_spans
from harness.results.reader import flat_settings

FASTER = 0.1
"""What a bottleneck is asked about: a stage that took so much less time."""
GAIN = 1.05
"""Speed-up of a loop from which on it is worth saying that more overlap could bring it."""
MOST_KNOWN = 0.5
"""The share of a step that its stages have to make up before one of them is called the largest."""
MOST_STAGES, WORTH_A_WORD = 3, 0.01
"""Stages that a difference comes from, and the share of a step below which one is left out."""
CORES = (
    "model.threads",
    *(f"placement.{part}.{what}" for part in ("generator", "scorer", "learner") for what in ("cpus", "threads")),
)
"""Settings that say how many cores an arm has."""


def stage_seconds(members: Sequence[Member], kind: str = EXPOSED, of_step: bool = False) -> dict[str, float]:
    """Return the seconds a step of each stage, as a mean over the runs that have any.

    Args:
        kind: on the critical path, with those that are ``UNATTRIBUTED``; or ``TIMING``: busy, added over processes.
        of_step: shares of each run's step in place of seconds.
    """
    columns = {name for member in members for name in member.figures} - {kind + UNATTRIBUTED}
    names = {stage.value: kind + stage for stage in stages_in(columns, kind) if not stage.is_wait}
    names |= {UNATTRIBUTED: kind + UNATTRIBUTED} if kind == EXPOSED else {}
    runs = [member.figures for member in members if member.figures.get("step_s")]
    runs = [run for run in runs if any(name in run for name in names.values())]
    seconds = {
        stage: fmean(run.get(name, 0.0) / (run["step_s"] if of_step else 1.0) for run in runs)
        for stage, name in names.items()
        if any(name in run for run in runs)
    }
    return {stage: mean for stage, mean in seconds.items() if mean}


def bottleneck(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Name the stage of each arm that is on the critical path for longest, and what a tenth off it would bring.

    Without spans, the stage that is busy for longest.
    """
    kind = EXPOSED if any(map(stage_seconds, experiment.arms.values())) else TIMING
    shares = {arm: stage_seconds(members, kind, of_step=True) for arm, members in experiment.arms.items()}
    largest = {arm: stage for arm, own in shares.items() if (stage := _largest(own)) is not None}
    if not largest:
        return
    is_one, parts, unknown = len(largest) == 1, dict[str, list[str]](), list[str]()
    for arm, stage in largest.items():
        own, rest = shares[arm][stage], shares[arm].get(UNATTRIBUTED, 0.0)
        text = f"{percent(own)}{'' if parts else ' of a step'}{', added over processes' if own > 1 else ''}"
        parts.setdefault(stage, []).append(text if is_one else f"{arm} ({text})")
        unknown += [f"{percent(rest)} in {arm}"] if rest > own else []
    where = "; ".join(f"{stage}{', ' if is_one else ' in '}{listed(some(own))}" for stage, own in parts.items())
    if kind == TIMING:
        if max(sum(own.values()) for own in shares.values()) >= MOST_KNOWN:  # else another, unknown one may be
            yield f"Largest stage: {where}."
        return
    of = _with_spans(experiment.members)
    first = next((item.base for item in judged if item.base in largest), next(iter(largest)))
    stage, gain = largest[first], percent(FASTER * shares[first][largest[first]])
    less = f"{FASTER:.0%} off {stage} takes at most {gain} off a step{'' if is_one else f' of {first}'}."
    more = f" Still more of a step is {UNATTRIBUTED}: {', '.join(some(unknown))}." if unknown else ""
    yield f"Bottleneck on the critical path{of}: {where}. {less}{more}"


def _with_spans(members: Iterable[Member]) -> str:
    """Say how many of the runs kept spans, where not all did."""
    known = [bool(stage_seconds([member])) for member in members]
    return "" if all(known) else f" ({sum(known)} of {len(known)} runs)"


def _largest(shares: dict[str, float]) -> str | None:
    return max((stage for stage in shares if stage != UNATTRIBUTED), key=lambda each: shares[each], default=None)


def whatif_command(experiment: Experiment, base: str, shown: Callable[[Path], str]) -> str | None:
    """Return what to type to see what a tenth off the baseline's bottleneck would bring; None without its spans.

    Args:
        shown: how the folder of a run is written.
    """
    for member in experiment.arms[base]:
        stage = _largest(stage_seconds([member]))
        if stage is not None and not member.is_recorded:
            folder = shlex.quote(shown(member.folder))
            return as_typed(f"python -m harness whatif {folder} --scale {stage}={1 - FASTER:g}")
    return None


def stages(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say which stages make the difference between an arm and the baseline: those on the critical path, or without
    spans those that are busy."""
    for item in judged:
        if item.is_noise_floor or item.base not in experiment.arms:
            continue
        arms = [experiment.arms[arm] for arm in (item.base, item.other)]
        kind = EXPOSED if all(map(stage_seconds, arms)) else TIMING
        before, after = (stage_seconds(members, kind) for members in arms)
        step_s = experiment.mean(item.base, "step_s")
        if not before or not after or not step_s:
            continue
        added = {stage: after.get(stage, 0.0) - before.get(stage, 0.0) for stage in {**before, **after}}
        most = sorted(added, key=lambda stage: -abs(added[stage]))[:MOST_STAGES]
        parts = [f"{stage} {added[stage]:+.3g} s" for stage in most if abs(added[stage]) >= WORTH_A_WORD * step_s]
        if parts:
            what = "On the critical path" if kind == EXPOSED else "Largest differences"
            of = _with_spans(chain.from_iterable(arms)) if kind == EXPOSED else ""
            yield f"{what} of {item.other} against {item.base}{of}, per step: {', '.join(parts)}."


def overlap(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what working side by side saved in each arm, and how much faster its loop could become at most."""
    saved, bounds = list[str](), list[str]()
    for arm, members in experiment.arms.items():
        times = [member.times for member in members if member.times is not None and member.times.parts]
        busiest = [max(each.parts.values(), key=lambda account: account.busy_ns) for each in times]
        wall_s, longest_s = (sum(getattr(each, ns) for each in busiest) / 1e9 for ns in ("wall_ns", "busy_ns"))
        if not wall_s or not longest_s:
            continue
        runs = len(times)
        if together_s := sum(each.together_s for each in times):
            worked_s = sum(each.worked_s for each in times)
            less = number((worked_s - sum(each.busy_s for each in times)) / runs)
            share = f"two processes busy {together_s / wall_s:.0%} of the time"
            saved.append(f"{less} of {number(worked_s / runs)} s in {arm} ({share})")
        if wall_s / longest_s >= GAIN:
            work = f"{busiest[0].lane} busy {number(longest_s / runs)} of {number(wall_s / runs)} s"
            bounds.append(f"{wall_s / longest_s:.2f} times as fast in {arm} ({work})")
    if saved:
        yield f"Overlap saved {'; '.join(some(saved))}."
    if bounds:
        yield f"With perfect overlap the loop would be at most {'; '.join(some(bounds))}."


def idle_cores(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say where an arm with more CPUs or threads than another of the same settings is not faster."""
    alike: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for arm, members in experiment.arms.items():
        settings = flat_settings(settings_of(members[0]))
        cores = {key: settings.pop(key, None) for key in CORES}
        alike.setdefault(repr(sorted(settings.items())), []).append((arm, cores))
    for arms in alike.values():
        for (fewer, given), (more, wanted) in permutations(arms, 2):
            unlike = {key: (given[key], wanted[key]) for key in CORES if given[key] != wanted[key]}
            pairs = unlike.values()
            if not unlike or not all(low is not None and high is not None and low < high for low, high in pairs):
                continue
            (step,) = (item.step for item in judgements(experiment, fewer) if item.other == more)
            if step.ratio is None or step.low is None or step.high is None or step.high < 1:
                continue
            what = ", ".join(f"{key} {high} against {low}" for key, (low, high) in unlike.items())
            is_not = "is not" if step.low > 1 - STEP_THRESHOLD else "is not shown to be"
            yield (
                f"{more} {is_not} faster than {fewer}, which has the same settings and fewer cores ({what}): "
                f"{change(step.ratio)} seconds per step ({change(step.low)} to {change(step.high)})."
            )


def slow_steps(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Name the steps that carry much of an arm's time."""
    yield from filter(None, (uneven_sentence(experiment, arm) for arm in experiment.arms))


def stragglers(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say which of the Learner's ranks the others wait for, and why."""
    for arm, members in experiment.arms.items():
        if (straggler := find_straggler(measured_ranks(members))) is not None:
            yield f"{arm}: {straggler.sentence}."


def measured_ranks(members: Sequence[Member]) -> list[tuple[RankStep, ...]]:
    """Return what each rank did in each measured step of the runs; empty where the Learner is one process."""
    steps = (compress(member.table.ranks, member.table.is_measured) for member in members)
    return [of_ranks for of_ranks in chain.from_iterable(steps) if of_ranks]


def checkpoints(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what checkpoints cost in the last run of each arm that made any."""
    for arm, members in experiment.arms.items():
        for member in reversed(members):
            table, step_s = member.table, member.figures.get("step_s")
            if not member.run.setting("checkpoint.every") or step_s is None:
                continue
            steps = {*table.steps["step"][table.is_measured].astype(int).tolist()}
            cost = checkpoint_cost(member.run, part_spans(member.run.spans()), steps, step_s)
            if cost is not None:
                yield checkpoint_sentence(arm, cost)
                break
