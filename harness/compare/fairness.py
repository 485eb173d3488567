"""What was unequal between two arms beside what they were to differ in, and what is left of a gap without that.

What an arm's own settings ask for is on purpose, and so is what ``--allow-difference`` accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

import numpy as np

from harness.compare.environment import THREADS, environment_sides, has_free_threads
from harness.compare.experiment import Member
from harness.compare.lengths import Steps, at_matched_lengths, explained, per_token
from harness.compare.numbers import plural
from harness.compare.stats.estimates import Estimate
from harness.compare.stats.intervals import Interval, Numbers
from harness.compare.stats.verdicts import Comparison, Effect
from harness.core.trace import Stage
from harness.results.reader import flat_settings

WORTH_SAYING = 0.01
"""Difference in tokens, or of a step's seconds, from which on work is unequal: a third of the 3% that count."""
OFTEN = 1.2
"""How many times as often as the other an arm was evaluated from which on it is no chance of where a step ends."""
WARM_STEPS = 0.05
"""Share of its steps by which more of one arm are left out as warm-up."""
MACHINE, SIMULATION, VERSIONS, THREADS_USED, PLACEMENT = "machine", "simulation", "versions", "threads", "placement"
LENGTH, TOKENS, EVALUATIONS, CHECKPOINTS = "length", "tokens", "evaluations", "checkpoints"
WARM_UP, SLOW_START = "warm_up", "slow_start"
WORK = (LENGTH, TOKENS, EVALUATIONS, CHECKPOINTS)
"""Kinds of inequality by which a step of one arm has more to do."""
_ASKED_BY = {
    LENGTH: ("sampling", "task"),
    TOKENS: ("sampling", "task", "rollout_batch_size"),
    EVALUATIONS: ("evaluation",),
    CHECKPOINTS: ("checkpoint",),
}
"""The settings that ask for it, or sections of them."""
_PARTS = {EVALUATIONS: Stage.EVALUATE, CHECKPOINTS: Stage.CHECKPOINT}
NO_OVERLAP = "the lengths of the two do not overlap"
NO_TOKENS = "the tokens of their steps are not known"
BESIDE = "evaluations or checkpoints ran beside other work"

Members = Sequence[Member]
Side = Sequence[tuple[Member, np.ndarray]]
"""Runs of an arm, and which of their steps count."""
Pools = Sequence[tuple[Side, Side]]
"""What is set against each other: for each block, or occasion, runs of the baseline and of the other arm."""


@dataclass(frozen=True, slots=True)
class Unequal:
    """One thing in which two arms differ: ``tokens`` a step, ``length`` in tokens, ``evaluations`` and ``checkpoints``
    as the share of steps that had one, ``warm_up`` in steps left out, ``slow_start`` as the share of runs that were
    still warming up; the other kinds in words."""

    kind: str
    base: float | str
    other: float | str
    on_purpose: bool = False

    @property
    def ratio(self) -> float | None:
        """The other's over the baseline's, of a number."""
        return None if isinstance(self.base, str) or isinstance(self.other, str) else self.other / (self.base or np.nan)


@dataclass(frozen=True)
class Fairness:
    """What was unequal between two arms, and their ratio without it.

    Attributes:
        refusals: for which no verdict is possible, of the environment and of others.
        per_token: seconds per response token; None where the tokens are not known, or equal.
        equal_work: seconds without what was unequal in ``taken_out``: per response token at matched lengths, and
            without evaluations and checkpoints that one arm had more of; None where work was equal.
        share: of the gap per step that is gone at equal work; None where it cannot be told.
        smallest: the smallest change that this design calls different in 80% of cases; None where it calls none.
        blocks_needed: about how many blocks tell the change that counts; None where one run each says nothing.
    """

    unequal: tuple[Unequal, ...] = ()
    refusals: tuple[str, ...] = ()
    per_token: Effect | None = None
    equal_work: Effect | None = None
    taken_out: tuple[str, ...] = ()
    share: Interval | None = None
    smallest: float | None = None
    blocks_needed: int | None = None

    @property
    def accidents(self) -> tuple[Unequal, ...]:
        """What was unequal and not on purpose."""
        return tuple(item for item in self.unequal if not item.on_purpose)

    @property
    def has_equal_work(self) -> bool:
        """Whether a step had as much to do in both arms, but for what they differ in on purpose."""
        return not any(item.kind in WORK for item in self.accidents)


NOTHING_UNEQUAL = Fairness()


class Draft(NamedTuple):
    """Fairness before its effects are judged: per token, and at equal work."""

    fairness: Fairness
    per_token: Comparison | None = None
    equal_work: Comparison | None = None


def draft_of(
    before: Members,
    after: Members,
    pools: Pools,
    estimate_of: Callable[[Sequence[float]], Estimate | None],
    step: Comparison,
    allowed: Sequence[str],
    one_command: bool,
) -> Draft:
    """Look at all runs of two arms.

    Args:
        estimate_of: from log-ratios, one of each of ``pools``.
        step: the comparison of their seconds per step, whose threshold and refusals hold here too.
        allowed, one_command: as of ``why_not_comparable``.
    """
    work = list(_unequal_work(before, after, pools))
    unequal = (*_unequal_environment(before, after, allowed, one_command), *work, *_unequal_warm_up(before, after))
    fairness = Fairness(unequal, step.not_comparable)
    has_unequal_tokens = any(item.kind in (LENGTH, TOKENS) for item in work)
    parts = [_PARTS[item.kind] for item in work if item.kind in _PARTS and not item.on_purpose]
    if not (has_unequal_tokens or parts):
        return Draft(fairness)

    def compared(name: str, values: Sequence[float], undecided: Sequence[str]) -> Comparison:
        reason = "; ".join([*filter(None, [step.undecided]), *undecided]) or None
        return Comparison(name, estimate_of(values), step.threshold, False, step.not_comparable, reason)

    of_tokens = None
    if has_unequal_tokens:
        ratios = [per_token(*(_steps(side, ()) for side in pool)) for pool in pools]
        of_tokens = compared("response_token", [ratio for ratio in ratios if ratio is not None], ())
    rest = [_at_equal_work(pool, parts, has_unequal_tokens) for pool in pools]
    gaps = [log(_mean(pool[1], ()) / _mean(pool[0], ())) for pool in pools]
    known = [(gap, left) for gap, left in zip(gaps, rest, strict=True) if left is not None]
    why_unmatched = NO_TOKENS if of_tokens is not None and of_tokens.estimate is None else NO_OVERLAP
    undecided = [why_unmatched] if 2 * len(known) < len(pools) else []
    undecided += [BESIDE] if parts and any(run.figures["is_off_policy"] for run in (*before, *after)) else []
    at_equal_work = compared("equal_work", [left for _, left in known], undecided)
    share = None
    if not undecided and known and not step.not_comparable:
        share = explained([gap for gap, _ in known], [left for _, left in known], estimate_of)
    taken_out = (*([LENGTH] if has_unequal_tokens else []), *(kind for kind, part in _PARTS.items() if part in parts))
    return Draft(replace(fairness, taken_out=taken_out, share=share), of_tokens, at_equal_work)


# ---- the environment


def _unequal_environment(
    before: Members, after: Members, allowed: Sequence[str], one_command: bool
) -> Iterator[Unequal]:
    sides = environment_sides(before, after)
    for kind in (MACHINE, SIMULATION, VERSIONS, THREADS_USED):
        if kind in sides:
            is_asked = kind == THREADS_USED and has_free_threads(before, after, one_command)
            yield Unequal(kind, *sides[kind], on_purpose=is_asked or kind in allowed)
    mine, theirs = (_placement(runs[0]) for runs in (before, after))
    if mine and theirs and mine != theirs:
        words = [", ".join(fact for fact in own if fact not in {*mine} & {*theirs}) for own in (mine, theirs)]
        # settings differ where arms set them, or where that was allowed
        yield Unequal(PLACEMENT, words[0], words[1], on_purpose=bool(before[0].settings and after[0].settings))


def _placement(run: Member) -> tuple[str, ...]:
    """Return where the parts of a run were: by its settings, or of another trainer's by its lanes; empty where that is
    not known."""
    if run.is_recorded:
        return () if run.times is None else (plural(len(run.times.lanes), "lane"),)
    settings = flat_settings(run.settings)
    return tuple(
        f"{key.removeprefix('placement.')} {value}"
        for key, value in settings.items()
        if key.startswith("placement.") and key not in THREADS
    )


# ---- work


def _unequal_work(before: Members, after: Members, pools: Pools) -> Iterator[Unequal]:
    sides = [[run for pool in pools for run in pool[place]] for place in (0, 1)]
    if not all(sides):
        return
    settings = [flat_settings(runs[0].settings) for runs in (before, after)]

    def is_asked(kind: str) -> bool:
        asked = [{key: value for key, value in own.items() if key.split(".")[0] in _ASKED_BY[kind]} for own in settings]
        return all(settings) and asked[0] != asked[1]

    for kind, metric in ((LENGTH, "response_length"), (TOKENS, "response_tokens")):
        means = [_mean_metric(side, metric) for side in sides]
        if means[0] and means[1] and abs(log(means[1] / means[0])) >= WORTH_SAYING:
            yield Unequal(kind, means[0], means[1], is_asked(kind))
    step_s = _mean(sides[0], ())
    for kind, part in _PARTS.items():
        seconds = [np.concatenate([_part(run, part)[kept] for run, kept in side]) for side in sides]
        often, mean_s = ([float(each.mean()) for each in values] for values in ([s > 0 for s in seconds], seconds))
        if abs(mean_s[1] - mean_s[0]) >= WORTH_SAYING * step_s and max(often) >= OFTEN * min(often):
            yield Unequal(kind, often[0], often[1], is_asked(kind))


def _part(run: Member, part: Stage) -> Numbers:
    return run.stages_s.get(part, np.zeros(len(run.table)))


def _mean_metric(side: Side, name: str) -> float | None:
    """Return the mean of a metric over the steps that count and have it."""
    values = [
        column.values[kept & column.is_finite]
        for run, kept in side
        if (column := run.table.metrics.get(name)) is not None
    ]
    known = np.concatenate(values) if values else np.empty(0)
    return float(known.mean()) if len(known) else None


def _seconds(side: Side, without: Sequence[Stage]) -> list[Numbers]:
    """Return the seconds of the steps that count of each run, less those of stages."""
    return [(run.table.wall_s - sum(_part(run, part) for part in without))[kept] for run, kept in side]


def _mean(side: Side, without: Sequence[Stage]) -> float:
    return float(np.concatenate(_seconds(side, without)).mean())


def _steps(side: Side, without: Sequence[Stage]) -> Steps:
    """Return the steps that count and whose tokens are known; where lengths are not, tokens a step stand for them."""
    # beside other work nobody knows what they add to a step
    aside = () if any(run.figures["is_off_policy"] for run, _ in side) else tuple(_PARTS.values())
    parts = []
    for (run, kept), seconds in zip(side, _seconds(side, aside or without), strict=True):
        columns = [run.table.metrics.get(name) for name in ("response_tokens", "response_length")]
        unknown = np.full(len(run.table), np.nan)
        tokens, length = (unknown if column is None else column.values for column in columns)
        length = np.where(np.isfinite(length), length, tokens)
        parts.append(np.stack([seconds, tokens[kept], length[kept]]))
    whole = np.concatenate(parts, axis=1)
    aside_s = _mean(side, without) - _mean(side, aside) if aside else 0.0
    seconds, tokens, length = whole[:, (np.isfinite(whole) & (whole > 0)).all(axis=0)]
    return Steps(seconds, tokens, length, max(0.0, aside_s))


def _at_equal_work(pool: tuple[Side, Side], without: Sequence[Stage], by_length: bool) -> float | None:
    if by_length:
        return at_matched_lengths(*(_steps(side, without) for side in pool))
    means = [_mean(side, without) for side in pool]
    return log(means[1] / means[0]) if min(means) > 0 else None


# ---- warm-up


def _unequal_warm_up(before: Members, after: Members) -> Iterator[Unequal]:
    sides = [[run.figures for run in runs if run.steps] for runs in (before, after)]
    if not all(sides):
        return
    slow = [sum(run["slow_start"] for run in side) / len(side) for side in sides]
    if (slow[0] > 0.5) != (slow[1] > 0.5):
        yield Unequal(SLOW_START, slow[0], slow[1])
    steps = [float(np.mean([run["warmup_steps"] for run in side])) for side in sides]
    of = float(np.mean([run["steps"] for side in sides for run in side]))
    if abs(steps[1] - steps[0]) > max(1.0, WARM_STEPS * of):
        yield Unequal(WARM_UP, steps[0], steps[1])
