"""An experiment as tables of text: arms side by side, where the time went, what came of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from harness.compare.endpoint import ENDPOINTS, WEIGHT_SYNC_SECONDS, endpoint_of, endpoint_of_effect
from harness.compare.environment import environment_values, unlike
from harness.compare.experiment import MOST_WITH_SPANS, Experiment, Member
from harness.compare.imported import NOT_REPEATED
from harness.compare.judging import Judgement, direction, effect_word, judged_seconds, why_open
from harness.compare.numbers import NOTHING, Format, change, count, number, percent, reward
from harness.compare.remarks.time import measured_ranks
from harness.compare.run_frame import EXPOSED, OFF_POLICY, OUTCOME, RAN, REPLAY, TIMING, UNATTRIBUTED, Figure
from harness.compare.stats.intervals import Interval
from harness.compare.stats.verdicts import STEP, Effect
from harness.compare.steadiness import MARK, mark
from harness.compare.syncs import PARTS, arm_syncs, pooled
from harness.core.trace import Stage
from harness.report.document import Table
from harness.results.occupancy import NEAREST_FIRST, LaneAccount
from harness.results.rows import in_pipeline_order

OVERLAP = 1.005
"""Sum of the stages over the step from which on processes worked side by side."""
NEARLY_ALL = 0.8
"""Share of the steps in which a stage ran that counts as every step: in an asynchronous run it may end twice in one
step's window and not in the next."""
SHORT_DIGEST = 7
MOST_BESIDE = 4
"""Arms that stand side by side; of more, each has a row."""
MOST_ROWS = 10
"""Arms that have a row in the short table: the fastest and the slowest five."""
MAIN_FIGURES: tuple[tuple[str, str, Format], ...] = (
    ("tokens per second", "tokens_per_s", number),
    ("validation reward", "reward_last", reward),
    ("response, tokens", "length_last", number),
)
WORTH_A_ROW = 0.01
"""Share of a step below which a stage is left to the full tables."""


def ranged(interval: Interval | None, form: Format, known: int, runs: int) -> str:
    """Write a mean with the lowest and highest value: ``0.612 [0.580, 0.640]``; ``(2 of 3)`` where not every run has
    it."""
    if interval is None:
        return NOTHING
    mean, low, high = form(interval.value), form(interval.low), form(interval.high)
    text = mean if low == high else f"{mean} [{low}, {high}]"
    return text + (f" ({known} of {runs})" if known < runs else "")


def cell(experiment: Experiment, arm: str, figure: str, form: Format) -> str:
    """Write a figure of an arm over its runs; see ``ranged``."""
    values = experiment.values(arm, figure)
    return ranged(experiment.range(arm, figure), form, len(values), len(experiment.arms[arm]))


def _form(value: float | None, form: Format) -> str:
    return NOTHING if value is None else form(value)


# ---- the short table


UNEQUAL_WORK = "unequal work"
ROW_NAMES = {STEP: "whole step", WEIGHT_SYNC_SECONDS.name: "a weight sync"}


def comparison_table(experiment: Experiment, judged: Sequence[Judgement]) -> Table:
    """Return the arms side by side, or of more than ``MOST_BESIDE`` a row for each: a screen of 80 columns."""
    bases = {item.base for item in judged}
    arms = sorted(experiment.arms, key=lambda arm: arm not in bases)
    if len(arms) == 1:
        return _one_arm(experiment)
    names = {"step_s": STEP} | {TIMING + stage: stage.value for stage in main_stages(experiment)}
    seconds: dict[str, dict[str, float | None]] = {
        arm: {name: experiment.mean(arm, figure) for figure, name in names.items()} for arm in arms
    }
    deciding = endpoint_of(experiment.members)
    if deciding is WEIGHT_SYNC_SECONDS:
        names = {deciding.name: deciding.name} | names
        for arm in arms:
            values = [value for member in experiment.arms[arm] if (value := deciding.value(member)) is not None]
            seconds[arm][deciding.name] = fmean(values) if values else None
    is_pair = len(arms) == 2 and arms[0] not in {item.other for item in judged}
    notes = _stable(experiment)
    if judged and not bases & {*arms}:
        base = bases.pop() if len(bases) == 1 else "the same arm in the folders of --against"
        notes.append(f"Changes are against {base}.")
    for item in judged:
        if item.unfinished:
            notes += _take_same_steps(experiment, item, seconds, is_pair)
    if len(arms) > MOST_BESIDE:
        return _one_row_each(experiment, judged, {arm: own[STEP] for arm, own in seconds.items()}, notes)
    effects = {item.other: {effect.name: effect for effect in item.effects} for item in judged}
    rows = list[tuple[str, ...]]()
    for name in names.values():
        marks = [mark(experiment, arm) if name == STEP else "" for arm in arms]
        cells = [_form(seconds[arm][name], number) + sign for arm, sign in zip(arms, marks, strict=True)]
        own = [effects.get(arm, {}).get(name) for arm in arms]
        changes = _ratio_cells(own[1], judged[0]) if is_pair and judged else ("",) * 3
        rows.append((ROW_NAMES.get(name, name), *(cells if is_pair else map(_changed, cells, own)), *changes))
    for label, figure, form in MAIN_FIGURES:
        if experiment.has(figure):
            rows.append((label, *(_form(experiment.mean(arm, figure), form) for arm in arms), "", "", ""))
    return _without_empty(
        Table("", ("seconds per step", *arms, "change", "95% interval", ""), tuple(rows), tuple(notes))
    )


def _take_same_steps(
    experiment: Experiment, item: Judgement, seconds: dict[str, dict[str, float | None]], is_pair: bool
) -> list[str]:
    """Put seconds of the same steps as an arm's change in the place of its own, and of a pair's baseline; say so."""
    if (known := judged_seconds(experiment, item)) is None:
        return []
    both = "the steps that both made" if item.alternated else "the blocks that both finished"
    for arm, own in zip((item.base, item.other), known, strict=True):
        if is_pair or arm == item.other:
            seconds[arm] = {name: own.get(name) or None for name in seconds[arm]}
    if is_pair:
        return [f"Seconds per step are of {both}."]
    return [f"Seconds of {item.other} are of {both}, with {number(known[0][STEP])} s per step in {item.base}."]


def _without_empty(table: Table) -> Table:
    """Leave out the columns in which no row has anything."""
    used = [place for place in range(len(table.header)) if any(row[place] for row in table.rows)]
    header, *rows = (tuple(row[place] for place in used) for row in (table.header, *table.rows))
    return replace(table, header=header, rows=tuple(rows), words=sum(place < table.words for place in used))


def _changed(seconds: str, effect: Effect | None) -> str:
    """Write seconds with the change against the baseline, where the stage is in both."""
    if effect is None or effect.ratio is None or effect.of_step or seconds == NOTHING:
        return seconds
    return f"{seconds} {change(effect.ratio)}"


def _stable(experiment: Experiment) -> list[str]:
    is_marked = any(mark(experiment, arm) for arm in experiment.arms)
    return [f"{MARK} The step time of some runs was still drifting after warm-up."] if is_marked else []


def _word(effect: Effect, judgement: Judgement) -> str:
    """Return which way an effect goes; of a step that is slower or faster for its work alone, that."""
    word = effect_word(effect, judgement)
    return word if word == direction(effect) else UNEQUAL_WORK


def _ratio_cells(effect: Effect | None, judgement: Judgement) -> tuple[str, str, str]:
    if effect is None or effect.ratio is None:
        return "", "", ""
    if effect.of_step:
        added = max(effect.ratio, 1 / effect.ratio) - 1
        return f"{'+' if effect.ratio > 1 else '-'}{added:.1%}", "of a step", ""
    ends = endpoint_of_effect(effect).ends(effect)
    if ends is None or effect.reason == NOT_REPEATED:
        return change(effect.ratio), ends or "", ""
    return change(effect.ratio), ends, ": ".join(filter(None, (_word(effect, judgement), why_open(effect))))


def _one_arm(experiment: Experiment) -> Table:
    (arm,) = experiment.arms
    figures = {TIMING + stage: stage.value for stage in main_stages(experiment)} | {"step_s": "whole step"}
    rows = []
    for figure, label in figures.items():
        seconds = cell(experiment, arm, figure, number) + (mark(experiment, arm) if figure == "step_s" else "")
        rows.append((label, seconds, percent(experiment.share(arm, figure))))
    for label, figure, form in MAIN_FIGURES:
        if experiment.has(figure) and figure != "reward_last":  # which the answer has
            rows.append((label, cell(experiment, arm, figure, form), ""))
    return Table("", ("stage", "seconds per step", "of a step"), tuple(rows), tuple(_stable(experiment)))


def _one_row_each(
    experiment: Experiment, judged: Sequence[Judgement], seconds: Mapping[str, float | None], notes: Sequence[str]
) -> Table:
    """A row for each arm, the fastest first; of many arms the fastest and the slowest five."""
    steps = {item.other: item.step for item in judged}
    arms = sorted(seconds, key=lambda arm: seconds[arm] or float("inf"))
    shown = arms
    if len(arms) > MOST_ROWS:
        ends = (*arms[: MOST_ROWS // 2], *arms[-(MOST_ROWS // 2) :])
        shown = [arm for arm in arms if arm in ends or arm not in steps]
        most = f"The fastest and the slowest {MOST_ROWS // 2} of {len(arms)} arms"
        base = " and the baseline" if len(shown) > MOST_ROWS else ""
        notes = [f"{most}{base}; {len(arms) - len(shown)} left out.", *notes]
    rows = []
    for arm in shown:
        effect = steps.get(arm)
        rows.append(
            (
                *(arm, _form(seconds[arm], number) + mark(experiment, arm)),
                "baseline" if effect is None else NOTHING if effect.ratio is None else change(effect.ratio),
                "" if effect is None else endpoint_of_effect(effect).ends(effect) or "",
                _form(experiment.mean(arm, "reward_last"), reward),
                _form(experiment.mean(arm, "length_last"), number),
            )
        )
    header = ("arm", "s per step", "change", "95% interval", "reward", "tokens")
    return Table("", header, tuple(rows), tuple(notes))


def main_stages(experiment: Experiment) -> list[Stage]:
    """Return the stages that take ``WORTH_A_ROW`` of a step in some arm, in order."""
    return [
        stage
        for stage in experiment.stages
        if not stage.is_wait and any(experiment.share(arm, TIMING + stage) >= WORTH_A_ROW for arm in experiment.arms)
    ]


# ---- time


def stage_table(experiment: Experiment) -> Table:
    """Return seconds per training step and share of it of each stage, one column for each arm."""
    arms, rows = list(experiment.arms), []
    for stage in experiment.stages:
        ran = [(member.figures.get(RAN + stage, 0), member.figures["measured_steps"]) for member in experiment.members]
        if not stage.is_wait and any(steps for steps, _ in ran):
            cells = (_with_share(experiment, arm, TIMING + stage) for arm in arms)
            rows.append((stage.value + _not_in_every_step(ran), *cells))
    rows.append(("all stages", *(_with_share(experiment, arm, "stages_s") for arm in arms)))
    rows.append(("whole step", *(_with_share(experiment, arm, "step_s", mark(experiment, arm)) for arm in arms)))
    spread = ("median_step_s", "step_s_p10", "step_s_p90")
    single = [[_form(experiment.mean(arm, name), number) for name in spread] for arm in arms]
    middles = (NOTHING if NOTHING in own else f"{own[0]}, {own[1]} to {own[2]}" for own in single)
    rows.append(("median of single steps, p10 to p90", *middles))
    notes = [f"Means over {window_words(experiment.members)}, evaluations included."]
    if any(experiment.share(arm, "stages_s") > OVERLAP for arm in arms):
        notes.append("Processes ran at the same time, so their stages add up to more than the step.")
    title = "Seconds per training step, and share of it"
    return Table(title, ("stage", *arms), tuple(rows), (*notes, *seed_note(experiment)))


def _with_share(experiment: Experiment, arm: str, figure: str, marked: str = "") -> str:
    if not experiment.values(arm, figure):
        return NOTHING
    seconds, share = cell(experiment, arm, figure, number), percent(experiment.share(arm, figure))
    return f"{seconds}{marked} {share:>6}"


def _not_in_every_step(ran: Iterable[tuple[int, int]]) -> str:
    counts = {(steps, total) for steps, total in ran if steps}
    if all(steps >= NEARLY_ALL * total for steps, total in counts):
        return ""
    (steps, total), *others = counts
    return " (not in every step)" if others else f" ({steps} of {total} steps)"


def critical_path_table(experiment: Experiment) -> Table | None:
    """Return seconds per step busy and on the critical path of each stage; None where no run kept its spans."""
    names = [*(stage.value for stage in experiment.stages if not stage.is_wait), UNATTRIBUTED]
    shown = [name for name in names if experiment.has(EXPOSED + name)]
    arms = [arm for arm in experiment.arms if any(experiment.share(arm, EXPOSED + name) for name in shown)]
    if not arms:
        return None
    rows = [(name, *(_busy_and_critical(experiment, arm, name) for arm in arms)) for name in shown]
    rows = [row for row in rows if any(text != NOTHING for text in row[1:])]
    nearest = dict.fromkeys("weight stages" if s.value.startswith("weight_") else s.value for s in NEAREST_FIRST)
    note = (
        "Critical path: each instant of the loop belongs to the stage that the Learner is in; while it waits, to the "
        f"stage that it waits for ({', then '.join(nearest)}); else it is unattributed."
    )
    title = "Seconds per training step: busy / on the critical path, and the latter's share"
    return Table(title, ("stage", *arms), tuple(rows), (note, *spans_note(experiment)))


def _busy_and_critical(experiment: Experiment, arm: str, name: str) -> str:
    """Write both as means over the runs that kept their spans, so that they can be compared."""
    known = [each.figures for each in experiment.arms[arm] if each.times is not None and each.figures.get("step_s")]
    busy, critical = (fmean(own.get(kind + name, 0.0) for own in known) for kind in (TIMING, EXPOSED))
    share = fmean(own.get(EXPOSED + name, 0.0) / own["step_s"] for own in known)
    if not busy and not critical:
        return NOTHING
    return f"{number(busy) if busy else NOTHING} / {number(critical)} {percent(share):>6}"


def lane_accounts(experiment: Experiment) -> Iterator[tuple[str, str, list[LaneAccount]]]:
    """Yield each process of each arm, in the order of the work, and where its time went in the runs that kept spans."""
    for arm, members in experiment.arms.items():
        known = [member.times.lanes for member in members if member.times is not None]
        for lane in in_pipeline_order({lane for lanes in known for lane in lanes}):
            yield arm, lane, [lanes[lane] for lanes in known if lane in lanes]


def process_table(experiment: Experiment) -> Table:
    """Return how the wall-clock of each process divides into stages, waits and unattributed time."""
    rows = []
    for arm, lane, accounts in lane_accounts(experiment):
        shares = [[a.share(ns) for ns in (a.busy_ns, a.waiting_ns, a.unattributed_ns)] for a in accounts]
        busy, waiting, rest = map(fmean, zip(*shares, strict=True))
        seconds = number(fmean(account.wall_ns / 1e9 for account in accounts))
        rows.append((arm, lane, seconds, percent(busy), percent(waiting), f"{100 * rest:.2f}%"))
    notes = ("No spans were kept with these runs.",) if not rows else spans_note(experiment)
    title = f"Processes: {window_words(experiment.members)}"
    header = ("arm", "process", "seconds", "busy", "waiting", "unattributed")
    return Table(title, header, tuple(rows), notes, 2)


_RANK_SECONDS = ("computing_s", "runnable_s", "blocked_s", "late_s")


def rank_table(experiment: Experiment) -> Table | None:
    """Return what each rank of a Learner had to do in a training step, and how long it computed and waited; None where
    every Learner is one process."""
    rows = []
    for arm, members in experiment.arms.items():
        steps = measured_ranks(members)
        for rank in range(max(map(len, steps), default=0)):
            own = [of_ranks[rank] for of_ranks in steps if rank < len(of_ranks)]
            seconds = [[getattr(step, name) for step in own] for name in _RANK_SECONDS]
            cells = ["" if None in column else number(fmean(column)) for column in seconds]
            computing_s = sum(step.computing_s or 0.0 for step in own)
            speed = computing_s * 1e6 / max(1, sum(step.tokens for step in own))
            tokens = number(fmean(step.tokens for step in own))
            rows.append((arm, str(rank), tokens, cells[0], number(speed) if cells[0] else "", *cells[1:]))
    header = ("arm", "rank", "tokens", "computing, s", "us a token", "no CPU, s", "in collectives, s", "late, s")
    notes = ("A cell is empty where it cannot be measured: on a GPU, and where the system does not say.",)
    title = "Ranks of the Learner: means of a training step, after all were there"
    return Table(title, header, tuple(rows), notes, 2) if rows else None


def window_words(members: Sequence[Member]) -> str:
    """Name the measured window: which training steps of how many, and what was left out of them."""
    figures = [member.figures for member in members]
    windows = {tuple(each.get(name) for name in ("first_measured", "last_measured", "steps")) for each in figures}
    first, last, total = windows.pop()
    steps = f"steps {first} to {last} of {total}" if last != first else f"step {first} of {total}"
    if windows or first is None:
        measured = [each["measured_steps"] for each in figures]
        steps = f"{_range(measured)} step{'' if max(measured) == 1 else 's'} of each run"
    kinds = {"warm-up": "warmup_steps", "profiled": "profiled_steps"}
    flagged = {kind: counts for kind, name in kinds.items() if any(counts := [each[name] for each in figures])}
    if not any(each["steps"] > each["measured_steps"] for each in figures):
        return f"{steps}{', all of them warm-up or profiled' if flagged else ''}"
    return f"{steps} (left out: {', '.join(f'{_range(counts)} {kind}' for kind, counts in flagged.items())})"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def seed_note(experiment: Experiment) -> tuple[str, ...]:
    """Explain the brackets where an arm has several runs."""
    most = max(map(len, experiment.arms.values()))
    return (f"Mean [lowest, highest] over {most} runs.",) if most > 1 else ()


def spans_note(experiment: Experiment) -> tuple[str, ...]:
    """Say of how many runs the numbers are that need spans, where some runs have none or theirs were not read."""
    known, runs = sum(member.times is not None for member in experiment.members), len(experiment.members)
    if not 0 < known < runs:
        return ()
    which = "that kept their spans" if runs <= MOST_WITH_SPANS else "whose spans were read; --all reads them all"
    return (f"Over {known} of {runs} runs, those {which}.",)


# ---- learning


def outcome_table(experiment: Experiment) -> Table:
    """Return reward, length, cost and health of each arm, one column each; rows that no run has are left out."""
    arms = list(experiment.arms)
    status = ("status", *(_statuses([*map(_status, experiment.arms[arm])]) for arm in arms))
    notes = [*seed_note(experiment), *spans_note(experiment)]
    prompts = [each.figures.get("prompts") for each in experiment.members if not each.figures["is_imported"]]
    if any(prompts):
        fewest = min(filter(None, prompts))
        error = 0.5 / fewest**0.5  # the largest standard error of a mean of values in [0, 1]
        what = f"Validation rewards are means over {fewest} prompts"
        notes.insert(0, f"{what}: a standard error of up to {error:.3f} where rewards lie between 0 and 1.")
    return Table("Outcome", ("", *arms), (status, *figure_rows(experiment, OUTCOME, arms)), tuple(notes))


def figure_rows(experiment: Experiment, figures: Sequence[Figure], arms: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for each figure that is shown and that some run has: its label and a cell for each arm."""
    return [
        (figure.label, *(cell(experiment, arm, figure.key, figure.form) for arm in arms))
        for figure in figures
        if figure.in_table and any(experiment.values(arm, figure.key) for arm in arms)
    ]


def off_policy_table(experiment: Experiment) -> Table | None:
    """Return lag, dropping and the replay buffer, one column for each arm; None where no arm has either."""
    arms = list(experiment.arms)
    if not any(each.figures["is_off_policy"] or each.figures["replay_capacity"] for each in experiment.members):
        return None
    notes = (
        "A rollout's lag is the policy version of the training step minus that of its oldest token.",
        "Never trained on: left over at the end, or pushed out of the replay buffer unused; dropped ones apart.",
        *seed_note(experiment),
        *spans_note(experiment),
    )
    rows = figure_rows(experiment, (*OFF_POLICY, *REPLAY), arms)
    return Table("Off-policy, and groups in the replay buffer", ("", *arms), tuple(rows), notes)


def _status(member: Member) -> str:
    """Return how a run ended: ``completed``, ``interrupted at step 23 of 60``."""
    if member.is_completed:
        return member.run.status
    planned = f" of {member.figures['planned_steps']}" if member.figures["planned_steps"] else ""
    if member.figures["divergence"] is not None:  # which for an experiment is no failure
        return f"diverged at step {member.figures['divergence'].step}{planned}"
    return f"{member.run.status} at step {member.steps}{planned}"


def _statuses(every: Sequence[str]) -> str:
    """Return what all runs share, or how many there are of each: ``3 completed, 1 failed``."""
    each = list(dict.fromkeys(every))
    return each[0] if len(each) == 1 else ", ".join(f"{every.count(status)} {status}" for status in each)


# ---- weight syncs


def sync_table(experiment: Experiment) -> Table | None:
    """Return what a weight sync moved and took, one column for each arm; None where none left the process."""
    syncs = {arm: own for arm in experiment.arms if (own := arm_syncs(experiment.arms[arm]))}
    if not syncs:
        return None
    rows: dict[str, list[str]] = {
        "transport": [own[0].transport for own in syncs.values()],
        "MB": [number(own[0].num_bytes / 1e6) for own in syncs.values()],
        "tensors": [count(own[0].num_tensors) for own in syncs.values()],
    }
    parts: dict[str, str | None] = {**{part: part for part in PARTS[:3]}, "publish to loaded": None, "verify": "verify"}
    for label, part in parts.items():
        rows[f"{label}, ms"] = [_milliseconds(pooled(own, part)) for own in syncs.values()]
        if part is None:
            speeds = ((own[0].num_bytes, pooled(own)) for own in syncs.values())
            rows["GB/s"] = [number(size / s.mean() / 1e9) if s.sum() > 0 else NOTHING for size, s in speeds]
    steps = [len(pooled(own)) for own in syncs.values()]
    notes = (
        f"Means [10th percentile, median, 90th percentile] over {_range(steps)} measured training steps.",
        "The bytes are those of one copy of the weights, the times those of one Generator; GB/s are the bytes over the "
        "mean from publish to loaded, without verification.",
    )
    shown = tuple((name, *cells) for name, cells in rows.items() if {*cells} != {NOTHING})
    return Table("What a weight sync moved and took", ("", *syncs), shown, notes)


def _milliseconds(seconds: np.ndarray) -> str:
    if not len(seconds):
        return NOTHING
    mean, low, middle, high = map(number, 1e3 * np.array([seconds.mean(), *np.percentile(seconds, (10, 50, 90))]))
    return f"{mean} [{low}, {middle}, {high}]"


# ---- verdicts


_HOW = {True: "the arms took turns by step", False: "the arms ran one after the other", None: "not interleaved"}


def verdict_table(judgement: Judgement) -> Table:
    """Return what decides, the whole step and each stage of one arm against the baseline; see ``verdict_notes``."""
    primary, notes = judgement.primary, tuple[str, ...]()
    if primary.correlation is not None:
        notes = (f"Intervals are {primary.widening:.2f} times as wide as of independent blocks: blocks may drift.",)
    title = f"{judgement.other} against {judgement.base}, {primary.blocks} blocks ({_HOW[judgement.alternated]})"
    header = ("time", "ratio", "95% interval", "p", "smallest", "")
    rows = tuple(_effect_row(effect, judgement) for effect in judgement.effects)
    return Table(title, header, rows, notes)


def verdict_notes(judged: Sequence[Judgement]) -> tuple[str, ...]:
    """Return how the tables of verdicts are read; none where there are none."""
    effects = [effect for item in judged for effect in item.effects]
    if not effects:
        return ()
    limits = dict.fromkeys(f"{100 * effect.threshold:.3g}%" for effect in effects)
    notes = [
        "Faster or slower: p, corrected for all comparisons of the experiment, is at most 0.05, and the change reaches "
        f"the threshold ({', '.join(limits)}). Same: the whole interval is inside.",
        "Smallest: the change that so many blocks show in 80% of cases, after all corrections.",
    ]
    if any(effect.of_step for effect in effects):
        notes.append("In steps: a stage that one of the two lacks, as what it adds to a step of the baseline.")
    return tuple(notes)


def effect_label(effect: Effect) -> str:
    """Return what an effect is of, in words, for a column of times."""
    return ENDPOINTS[effect.name].words.removeprefix("seconds of a ") if effect.name in ENDPOINTS else effect.label


def _effect_row(effect: Effect, judgement: Judgement) -> tuple[str, ...]:
    blocks, p, endpoint = judgement.primary.blocks, effect.p_adjusted, endpoint_of_effect(effect)
    ratio = NOTHING if effect.ratio is None else f"{effect.ratio:.3f}"
    ends = NOTHING if effect.low is None else f"{effect.low:.3f} to {effect.high:.3f}"
    if endpoint.is_difference and effect.ratio is not None:
        ratio, ends = endpoint.change(effect.ratio), endpoint.ends(effect) or NOTHING
    return (
        effect_label(effect) + ("" if effect.blocks == blocks else f" ({effect.blocks} blocks)"),
        ratio,
        ends,
        NOTHING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
        NOTHING if effect.minimum_effect is None else f"{100 * effect.minimum_effect:.3g}%",
        _word(effect, judgement),
    )


def overview_table(experiments: Sequence[Experiment]) -> Table:
    """Return one line for each experiment, with the status where not all runs are complete; ranges are over its runs.

    Where not all were made on one kind of machine, a column says on which; the notes say where runs differ.
    """
    members = [member for experiment in experiments for member in experiment.members]
    is_odd = any(not member.is_completed for member in members)
    machines = [dict.fromkeys(map(_machine, experiment.members)) for experiment in experiments]
    are_alike, rows, notes = all(own == machines[0] for own in machines), [], unlike(members)
    for experiment, own in zip(experiments, machines, strict=True):
        sign = max(mark(experiment, arm) for arm in experiment.arms)
        rows.append(
            (
                *(experiment.title, experiment.name, "" if are_alike else "+".join(own), str(len(experiment.members))),
                _statuses([member.run.status for member in experiment.members]) if is_odd else "",
                _over_runs(experiment, "steps", count),
                _over_runs(experiment, "step_s", number) + sign,
                _over_runs(experiment, "reward_last", reward),
            )
        )
    notes.append("Each is judged by itself; one against others: python -m harness compare NEW --against FOLDER...")
    if any(MARK in row[6] for row in rows):
        notes.append(f"{MARK} Step time still drifting after warm-up.")
    header = ("scenario", "experiment", "machine", "runs", "status", "steps", "s per step", "last reward")
    return _without_empty(Table("Experiments, oldest first", header, tuple(rows), tuple(notes), words=3))


def _machine(member: Member) -> str:
    """Return the first digits of a machine's fingerprint."""
    return "simulated" if member.manifest.simulated else environment_values(member.manifest)["machine"][:SHORT_DIGEST]


def _over_runs(experiment: Experiment, figure: str, form: Format) -> str:
    values = [value for arm in experiment.arms for value in experiment.values(arm, figure)]
    if not values:
        return NOTHING
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"
