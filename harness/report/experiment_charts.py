"""The charts of an experiment: which there are, and the rows that ``harness.report.charts`` draws them from.

Whether there is a chart is known at once; spans and curves are read where somebody wants to see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.compare.endpoint import endpoint_of_effect
from harness.compare.experiment import FEWEST_SEEDS, Experiment, Member
from harness.compare.judging import Judgement, effect_word
from harness.compare.numbers import listed, number, percent, plural
from harness.compare.remarks.time import stage_seconds
from harness.compare.run_frame import TIMING, UNATTRIBUTED
from harness.compare.stats.intervals import t_interval
from harness.compare.steadiness import MARK, mark
from harness.compare.syncs import PARTS, SyncPoint, arm_syncs, pooled
from harness.core.trace import Span, Stage, in_order
from harness.report import charts
from harness.report.charts import NOWHERE, SECONDS, Bar, Panel
from harness.report.document import Chart, Table
from harness.report.tables import (
    critical_path_table,
    effect_label,
    lane_accounts,
    process_table,
    sync_table,
    window_words,
)
from harness.results.frames import Numbers, over_optimizer_steps
from harness.results.occupancy import loop_window
from harness.results.rows import VersionChange, in_pipeline_order

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STEPS_SHOWN = 6
"""Training steps of a timeline."""
MOST_TIMELINES = 8
MOST_PANELS = 60
SIDE_BY_SIDE = 0.02
"""Share of a step by which stages add up to more than it where processes work side by side."""
REWARD, LENGTH = "validation reward", "tokens per response"
INNER, ZERO_VARIANCE = "optimizer step", "zero_variance_fraction"
KL_UNITS = {"k3": "k3, nats per token", "exact": "exact, nats per token", "k1_sum": "k1, nats per response"}
EVALUATE = TIMING + Stage.EVALUATE


# ---- curves


class Curve(NamedTuple):
    """A panel of a chart, and what it shows: ``reward`` or ``length`` of the evaluations, ``wall_s``, or a metric.

    One that is only ``beside`` others is no reason for a chart.
    """

    chart: str
    panel: Panel
    name: str
    beside: bool = False


NORM = Panel("Gradient norm before clipping", "L2 norm", scale="wide")
CLIP = Panel("Clip fraction", "share of response tokens", scale="zero")
REWARDS, LENGTHS = Panel("Reward over training steps", REWARD), Panel("Response length", LENGTH)
CURVES = (
    Curve("reward", REWARDS, "reward"),
    Curve("reward", Panel("Reward over seconds", REWARD, SECONDS), "reward"),
    Curve("reward", LENGTHS, "length"),
    Curve("reward", Panel("Response length over seconds", LENGTH, SECONDS), "length"),
    Curve("training", Panel("Training reward", "mean of the fresh rollouts"), "reward/total"),
    Curve("training", Panel("Loss", "mean over optimizer steps"), "loss"),
    Curve("training", Panel("Groups without a signal", "share with equal rewards", scale="zero"), ZERO_VARIANCE, True),
    Curve("training", Panel("Response length in training", LENGTH), "response_length", beside=True),
    *(
        Curve("kl", Panel(f"KL to the {policy} policy, {name}", unit, scale="zero"), f"kl/{policy}_{name}")
        for policy in ("reference", "previous")
        for name, unit in KL_UNITS.items()
    ),
    Curve("kl", Panel("Reward over the same steps", REWARD), "reward", beside=True),
    Curve("stability", NORM, "grad_norm"),
    Curve("stability", CLIP, "clip_fraction"),
    Curve("optimizer_steps", Panel("Training reward", "mean of the fresh rollouts", INNER), "reward/total"),
    Curve("optimizer_steps", Panel("Validation reward", REWARD, INNER), "reward"),
    Curve("optimizer_steps", Panel("Loss", "loss", INNER), "loss"),
    Curve("optimizer_steps", replace(NORM, scale="zero", x_label=INNER), "grad_norm"),
    Curve("optimizer_steps", replace(CLIP, x_label=INNER), "clip_fraction"),
    Curve("optimizer_steps", Panel("KL penalty", "before its weight, nats per token", INNER), "kl/penalty"),
    Curve("step_time", Panel("Seconds of a training step", "seconds", scale="zero"), "wall_s"),
)
SENTENCES = {
    "reward": ("Validation reward and response length", "First to last evaluation."),
    "training": ("Training steps", "Numbers of the training steps themselves."),
    "kl": ("KL divergence", "Estimated on the sampled tokens; biased where an older policy sampled them."),
    "stability": ("Gradient norm and clip fraction", "Of the training steps."),
    "optimizer_steps": ("Over optimizer steps", "Of the training steps that make several, each of them."),
    "step_time": ("Step time over the run", "Evaluations included, so steps that end with one stand out."),
}
"""Title and sentence of each chart of curves."""


def curve_charts(experiment: Experiment) -> dict[str, Chart]:
    """Return the charts of curves that have a point, by their keys."""
    members = experiment.members
    has_inner = any(map(any, (each.table.optimizer_steps for each in members)))
    shown = dict[str, list[Curve]]()
    for curve in CURVES:
        if any(len(_points(each, curve.panel, curve.name)[0]) for each in members):
            shown.setdefault(curve.chart, []).append(curve)
    return {
        key: _curve_chart(experiment, key, curves)
        for key, curves in shown.items()
        if not all(curve.beside for curve in curves) and (has_inner or key != "optimizer_steps")
    }


def _curve_chart(experiment: Experiment, key: str, curves: Sequence[Curve]) -> Chart:
    title, says = SENTENCES[key]
    runs = list(zip(experiment.labels, experiment.members, strict=True))
    targets = sorted({each.figures["reward_target"] for _, each in runs if each.figures["reward_target"]})
    levels = {f"target {target:g}": target for target in targets}
    panels = [replace(panel, levels=levels) if panel.y_label == REWARD else panel for _, panel, *_ in curves]
    lost = [(arm, each.figures["divergence"]) for arm, each in runs if curves[0].panel is REWARDS]
    diverged = [(arm, divergence.step) for arm, divergence in lost if divergence is not None]

    def draw() -> Figure:
        lines = [
            (arm, seed, panel.title, *_points(member, panel, name))
            for _, panel, name, _ in curves
            for seed, (arm, member) in enumerate(runs)
        ]
        heading = f"{experiment.title}: {title}"
        return charts.curves(_curve_frame(lines), panels, arms=list(experiment.arms), diverged=diverged, title=heading)

    if diverged:
        says += " Crosses: a run diverged."
    if len(runs) > len(experiment.arms):
        says += " A line is the mean of the runs, its band runs from the lowest to the highest of them."
    return Chart(key, title, says, draw)


def _points(member: Member, panel: Panel, name: str) -> tuple[Numbers, Numbers]:
    """Return x and y of a run; none of a metric that is never finite."""
    table, steps, rewards = member.table, member.table.steps["step"], member.table.rewards
    is_inner = panel.x_label == INNER
    if name in ("reward", "length"):
        y = getattr(rewards, name)
        x, known = rewards.elapsed_s if panel.x_label == SECONDS else rewards.step, np.isfinite(y)
    elif name == "wall_s":
        x, y, known = steps, table.steps["wall_s"], table.steps["wall_s"] > 0
    elif is_inner and name != "reward/total":
        x, y = np.array(over_optimizer_steps(table, name)).reshape(-1, 2).T
        return x, y
    else:
        column = table.metrics.get(name)
        if column is None or not column.is_finite.any():
            return np.empty(0), np.empty(0)
        x, y, known = steps, column.values, column.counts > 0
    if is_inner:  # as many as were made before
        x = np.concatenate([[0.0], np.cumsum(table.steps["optimizer_steps"])])[np.searchsorted(steps, x)]
    return x[known], y[known]


def _curve_frame(lines: Sequence[tuple[str, int, str, Numbers, Numbers]]) -> pd.DataFrame:
    import pandas as pd

    columns = "arm", "seed", "panel", "x", "value"
    return pd.concat([pd.DataFrame(dict(zip(columns, line, strict=True))) for line in lines if len(line[-1])])


def grid_chart(experiment: Experiment) -> Chart | None:
    """A panel of validation rewards for each combination of the axes of a sweep but the last, whose values are the
    lines; None where there are not two axes beside the seed, nothing was evaluated, or there are too many panels."""
    keys = dict.fromkeys(key for each in experiment.members for key in each.manifest.point if key != "seed")
    if len(keys) < 2 or any(each.manifest.arm for each in experiment.members):
        return None
    *outer, line = keys
    every = [
        (_named([line], each), each.manifest.seed, _named(outer, each), *_points(each, REWARDS, "reward"))
        for each in experiment.members
    ]
    lines = [each for each in every if len(each[-1])]
    names = list(dict.fromkeys(panel for _, _, panel, _, _ in lines))
    if not 0 < len(names) <= MOST_PANELS:
        return None
    panels = [Panel(name, REWARD) for name in names]
    arms = list(dict.fromkeys(arm for arm, *_ in lines))
    title = "Validation reward for each combination of values"
    return Chart(
        *("grid", title, "A panel for each combination; a line for each value of the last axis."),
        lambda: charts.curves(_curve_frame(lines), panels, arms=arms, title=f"{experiment.title}: {title}", columns=3),
    )


def _named(keys: Sequence[str], member: Member) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}: {member.manifest.point.get(key)}" for key in keys)


# ---- bars


def _bars(experiment: Experiment, key: str, title: str, says: str, bars: Sequence[Bar], table: Table | None = None,
          **axis: Any) -> Chart | None:  # fmt: skip
    """Return a chart of bars; None where there are none."""
    draw = partial(charts.bars, bars, title=f"{experiment.title}: {title}", **axis)
    return Chart(key, title, says, draw, table) if bars else None


def stages_chart(experiment: Experiment) -> Chart | None:
    """Seconds of a training step by stage; where processes work side by side, busy and on the critical path."""
    bars = list[Bar]()
    for arm, members in experiment.arms.items():
        critical, is_in_turns = stage_seconds(members), experiment.share(arm, "stages_s") <= 1 + SIDE_BY_SIDE
        if critical and not is_in_turns:
            members = tuple(each for each in members if each.times is not None)
        busy, walls = stage_seconds(members, TIMING), [each.figures.get("step_s") for each in members]
        known = [seconds for seconds in walls if seconds]
        if not known or not {*busy} - {"evaluate", "checkpoint"}:
            continue
        wall, total = fmean(known), sum(busy.values())
        step = (f"{number(wall)} s{mark(experiment, arm)}", min(known), max(known))
        if is_in_turns or not critical:
            rest = round(max(0.0, wall - total), 9)
            bars.append(Bar(arm, "step", busy | {UNATTRIBUTED: rest}, *step, NOWHERE if is_in_turns else wall))
            continue
        runs = len(experiment.arms[arm])
        of = f" ({len(members)} of {runs})" if len(members) < runs else ""
        bars.append(Bar(arm, f"busy{of}", busy, f"{number(total)} s"))
        bars.append(Bar(arm, f"critical path{of}", critical, *step))
    says = f"Means over {window_words(experiment.members)}, evaluations included."
    if any(bar.row.startswith("busy") for bar in bars):
        says += " Busy: added over processes that work side by side. Critical path: what the loop waited for."
    if any(bar.row.endswith(")") for bar in bars):
        says += " In brackets: of how many runs, where not all kept their spans."
    if any(bar.text.endswith(MARK) for bar in bars):
        says += f" {MARK}: still drifting after warm-up."
    title, table = "Seconds of a training step by stage", critical_path_table(experiment)
    return _bars(experiment, "stages", title, says, bars, table, x_label="seconds per training step")


def processes_chart(experiment: Experiment) -> Chart | None:
    """How the time of each process divides into stages, waits and neither, in percent of the measured window."""
    bars = list[Bar]()
    for arm, lane, accounts in lane_accounts(experiment):
        stages = in_order(stage for each in accounts for stage in each.stages_ns)
        shares = {s.value: 100 * fmean(each.share(each.stages_ns.get(s, 0)) for each in accounts) for s in stages}
        shares[UNATTRIBUTED] = 100 * fmean(each.share(each.unattributed_ns) for each in accounts)
        bars.append(Bar(arm, lane, shares, f"{percent(fmean(each.share(each.busy_ns) for each in accounts))} busy"))
    window = window_words(experiment.members)
    says = f"How the time of each process divides into stages, waiting and neither, over {window}."
    axis: dict[str, Any] = {"x_label": "percent of the measured window", "limit": 100.0}
    return _bars(experiment, "lanes", "What each process did", says, bars, process_table(experiment), **axis)


def sync_chart(experiment: Experiment) -> Chart | None:
    """Publish, transfer, load and verify of each arm; None where no weights left the process."""
    bars, sizes = list[Bar](), dict[str, list[str]]()
    for arm in experiment.arms:
        syncs = arm_syncs(experiment.arms[arm])
        whole = 1e3 * pooled(syncs)
        if len(whole):
            parts = {part: seconds for part in PARTS if len(seconds := pooled(syncs, part))}
            lengths = {f"weight_{part}": 1e3 * float(seconds.mean()) for part, seconds in parts.items()}
            size, low, high = syncs[0].num_bytes / 1e6, *np.percentile(whole, (10, 90))
            sizes.setdefault(number(size), []).append(arm)
            text = f"{number(whole.mean())} ms, {number(size / whole.mean())} GB/s"
            bars.append(Bar(arm, syncs[0].transport, lengths, text, low, high))
    moved = "; ".join(f"{size} MB{'' if len(sizes) == 1 else f' in {listed(own)}'}" for size, own in sizes.items())
    says = f"Means over the measured training steps of {moved}. The number and the whisker: publish to loaded."
    table, title = sync_table(experiment), "What a weight sync is made of"
    axis: dict[str, Any] = {"x_label": "milliseconds per sync", "whisker": "10th to 90th percentile"}
    return _bars(experiment, "sync", title, says, bars, table, **axis)


def lag_chart(experiment: Experiment) -> Chart | None:
    """How old the rollouts were that each arm trained on; None where none lagged."""
    of_steps = ((arm, of_step) for arm, own in experiment.arms.items() for each in own for of_step in each.table.lags)
    rows = [(arm, lag, rollouts) for arm, of_step in of_steps for lag, rollouts in of_step.items()]
    if not any(lag for _, lag, _ in rows):
        return None
    says = "Policy versions between a training step and a rollout's oldest token, as shares of rollouts trained on."
    heading = f"{experiment.title}: how old the trained rollouts were"
    draw = partial(charts.lags, rows, arms=list(experiment.arms), title=heading)
    return Chart("lag", "Lag of the rollouts trained on", says, draw)


WASTE = {
    "trained": "trained on",
    "unused": "never used",
    "discarded": "discarded, all rewards equal",
    "dropped": "dropped as too old",
    "failed": "failed",
}


def waste_chart(experiment: Experiment) -> Chart | None:
    """What became of the generated tokens, in percent; None where all of them were trained on."""
    bars = list[Bar]()
    for arm in experiment.arms:
        total = sum(experiment.values(arm, "generated_tokens"))
        sums = {words: sum(experiment.values(arm, f"{name}_tokens")) for name, words in WASTE.items()}
        if total:
            bars.append(Bar(arm, "tokens", {words: 100 * tokens / total for words, tokens in sums.items() if tokens}))
    if not any(part != WASTE["trained"] for bar in bars for part in bar.parts):
        return None
    axis: dict[str, Any] = {"x_label": "percent of the generated tokens", "limit": 100.0}
    title = "What became of the generated tokens"
    return _bars(experiment, "waste", title, "Sums over the runs of an arm.", bars, **axis)


# ---- verdicts, timelines, sizes


def forest_chart(judgement: Judgement, table: Table | None = None) -> Chart | None:
    """Ratios of the times of one arm over the baseline's, with their intervals, and the table behind; None below two
    blocks."""
    named = [(effect_label(effect), effect) for effect in judgement.effects]
    if judgement.noise_floor is not None:
        named.append((f"{judgement.base} against itself", judgement.noise_floor))
    words = [effect_word(effect, judgement) for _, effect in named]
    rows = [
        (judgement.other, row, effect.ratio, effect.low, effect.high, word, effect.threshold)
        for (row, effect), word in zip(named, words, strict=True)
        if effect.ratio is not None and not endpoint_of_effect(effect).is_difference
    ]
    if judgement.primary.blocks < 2 or not rows:
        return None
    title = f"{judgement.other} against {judgement.base}"
    says = f"Times of {judgement.other} over those of {judgement.base}; shaded: too small to matter."
    draw = partial(charts.forest, rows, x_label="ratio of seconds, 95% interval", title=title)
    return Chart(f"forest_{judgement.other}", title, says, draw, table)


def scatter_chart(experiment: Experiment) -> Chart | None:
    """Seconds per step against the last validation reward, a point for each arm; None below three arms with both."""
    rows = []
    for arm in experiment.arms:
        pair = experiment.values(arm, "step_s"), experiment.values(arm, "reward_last")
        if all(pair):
            ends = [t_interval(values) if len(values) >= FEWEST_SEEDS else None for values in pair]
            reaches = [edge for end in ends for edge in ((NOWHERE,) * 2 if end is None else (end.low, end.high))]
            rows.append(("Each arm", arm, *map(fmean, pair), *reaches))
    if len(rows) < 3:
        return None
    title = "Time against reward"
    says = "Left and up is better; bars: 95% intervals over the runs of an arm."
    labels: dict[str, Any] = {"x_label": "seconds per step", "y_label": "last validation reward"}
    draw = partial(charts.points, rows, arms=list(experiment.arms), title=f"{experiment.title}: {title}", **labels)
    return Chart("scatter", title, says, draw)


@dataclass(frozen=True)
class Excerpt:
    """A run of which a timeline shows a few training steps.

    Attributes:
        steps: the columns ``step``, ``wall_s``, ``elapsed_s`` and, where there were evaluations, their seconds.
        origin_ns: when the loop began, on the clock of the spans.
    """

    name: str
    spans: Sequence[Span]
    changes: Sequence[VersionChange]
    steps: Mapping[str, Sequence[float] | Numbers]
    origin_ns: int = 0


def timeline_chart(experiment: Experiment) -> Chart | None:
    """What each process did when, of the first run of each arm that has spans; None where none has."""
    with_spans = {
        arm: [each.table for each in members if each.times is not None and len(each.table)]
        for arm, members in experiment.arms.items()
    }
    first = [(arm, tables[0]) for arm, tables in with_spans.items() if tables][:MOST_TIMELINES]
    if not first:
        return None
    title = "What each process did when"
    says = "A few steps without an evaluation after the first quarter, of the run with the lowest seed."

    def draw() -> Figure:
        spans = [table.run.spans() for _, table in first]
        excerpts = [
            Excerpt(arm, own, table.version_changes, table.steps, loop_window(own, None)[0])
            for (arm, table), own in zip(first, spans, strict=True)
        ]
        return timeline_figure(excerpts, f"{experiment.title}: {title}")

    return Chart("timeline", title, says, draw)


def shown_steps(evaluate_s: Sequence[float] | Numbers) -> tuple[int, int]:
    """Return the places of the first and the last training step of a timeline, which nobody picks by hand.

    They are the first ``STEPS_SHOWN`` in a row that start after the first quarter of the run and in which no evaluation
    ended; where there are none, the first after that quarter.

    Args:
        evaluate_s: seconds of evaluation in each step.
    """
    steps, after = len(evaluate_s), len(evaluate_s) // 4
    starts = range(after, max(after, steps - STEPS_SHOWN) + 1)
    calm = [start for start in starts if not any(evaluate_s[start : start + STEPS_SHOWN])]
    start = (calm or starts)[0]
    return start, min(start + STEPS_SHOWN, steps) - 1


def timeline_figure(excerpts: Sequence[Excerpt], title: str) -> Figure:
    """Draw a few steps of each run, at least one, one above the other on one scale of seconds."""
    spans, changes, windows = list[tuple[Any, ...]](), list[tuple[Any, ...]](), dict[str, tuple[float, str]]()
    for part in excerpts:
        steps, ends_s = part.steps["step"], part.steps["elapsed_s"]
        first, last = shown_steps(part.steps.get(EVALUATE, [0.0] * len(steps)))
        low = part.origin_ns + round((ends_s[first] - part.steps["wall_s"][first]) * 1e9)
        high = part.origin_ns + round(ends_s[last] * 1e9)
        inside = [span for span in part.spans if span.start_ns < high and span.end_ns > low]
        order = {lane: place for place, lane in enumerate(in_pipeline_order({span.lane for span in inside}))}
        for span in sorted(inside, key=lambda span: order[span.lane]):
            times = ((max(span.start_ns, low) - low) / 1e9, (min(span.end_ns, high) - low) / 1e9)
            spans.append((part.name, span.lane, span.stage.value, *times))
        placed = [(part.origin_ns + round(item.elapsed_s * 1e9), item) for item in part.changes]
        changes += [(part.name, item.lane, (at - low) / 1e9, item.version) for at, item in placed if low <= at <= high]
        seconds = (high - low) / 1e9
        windows[part.name] = seconds, f"training steps {steps[first]:.0f} to {steps[last]:.0f} in {number(seconds)} s"
    return charts.timeline(spans, changes, windows, title=title)


def sizes_chart(experiment: Experiment, points: Sequence[SyncPoint]) -> Chart:
    """Milliseconds of a weight sync against size, of the points of a transport sweep."""
    rows = list[tuple[Any, ...]]()
    for point in sorted(points, key=lambda point: (point.receivers, point.tensors)):
        panel = f"{plural(point.receivers, 'receiver')}, {plural(point.tensors, 'tensor')}"
        middle, low, high, copy = (1e3 * each for each in (point.median_s, point.low_s, point.high_s, point.copy_s))
        rows.append((panel, point.transport, point.megabytes, middle, NOWHERE, NOWHERE, low, high))
        rows.append((panel, charts.COPY, point.megabytes, copy, *[NOWHERE] * 4))
    axis: dict[str, Any] = {"x_label": "size of the weights, MB", "y_label": "milliseconds", "scale": "log"}
    axis |= {"arms": list(dict.fromkeys(point.transport for point in points)), "has_lines": True}
    draw = partial(charts.points, rows, title=f"{experiment.title}: a weight sync by size", **axis)
    says = "From publish to the receivers' own tensors: medians; bars from the 10th to the 90th percentile."
    return Chart("sweep", "A weight sync by size", says, draw)
