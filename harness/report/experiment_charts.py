"""The charts of an experiment: what each shows, as tidy frames for ``harness.report.charts``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.compare.experiment import FEWEST_SEEDS, Experiment, Member
from harness.compare.judging import Judgement, direction
from harness.compare.numbers import listed, number, percent
from harness.compare.remarks.time import UNATTRIBUTED, stage_seconds
from harness.compare.run_frame import TIMING
from harness.compare.stats import t_interval
from harness.compare.steadiness import mark
from harness.compare.sync import SyncPoint
from harness.compare.syncs import PARTS, arm_syncs
from harness.compare.times import NO_STAGE, loop_window
from harness.core.trace import Span, Stage
from harness.report import charts
from harness.report.charts import Panel
from harness.report.document import Chart
from harness.report.tables import critical_path_table, pooled, process_table, sync_table, window_words
from harness.results.frames import RunTable, over_optimizer_steps
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
REWARD, LENGTH = "validation/reward", "validation/response_length"
SECONDS, STEP, OPTIMIZER_STEP = "seconds of the loop", "training step", "optimizer step"
Points = Callable[[Member], Iterable[tuple[float, float]]]


def curve_frame(experiment: Experiment, points: dict[str, Points]) -> pd.DataFrame:
    """Return ``arm, seed, x, value, panel``: the points of each run in each panel."""
    import pandas as pd

    rows = [
        (arm, f"{member.manifest.seed}/{member.manifest.block}", x, value, panel)
        for panel, read in points.items()
        for arm, members in experiment.arms.items()
        for member in members
        for x, value in read(member)
    ]
    return pd.DataFrame(rows, columns=["arm", "seed", "x", "value", "panel"])


def _metric(name: str) -> Points:
    """Read a metric of the training steps; NaN where it is not finite, nothing where it never is."""

    def points(member: Member) -> Iterable[tuple[float, float]]:
        column = member.table.metrics.get(name)
        if column is None or not column.is_finite.any():
            return []
        has = column.counts > 0
        values = np.where(column.is_finite, column.values, np.nan)[has]
        return zip(member.table.steps["step"][has].tolist(), values.tolist(), strict=True)

    return points


def _evaluated(x: str, y: str) -> Points:
    """Read the evaluations, those without a value left out; ``x`` and ``y`` are attributes of ``Evaluated``."""

    def points(member: Member) -> list[tuple[float, float]]:
        rewards = member.table.rewards
        pairs = zip(getattr(rewards, x).tolist(), getattr(rewards, y).tolist(), strict=True)
        return [pair for pair in pairs if np.isfinite(pair[1])]

    return points


def _curves(
    experiment: Experiment, key: str, title: str, says: str, points: dict[Panel, Points], **more: Any
) -> Chart | None:
    """Return a chart of curves; None where no panel has a point. Panels without one are left out."""
    frame = curve_frame(experiment, {panel.title: read for panel, read in points.items()})
    panels = [panel for panel in points if (frame["panel"] == panel.title).any()]
    if not panels:
        return None
    draw = partial(
        charts.curves, frame, panels, arms=list(experiment.arms), title=f"{experiment.title}: {title}", **more
    )
    if any(len(members) > 1 for members in experiment.arms.values()):
        says += " A line is the mean of the runs, its band runs from the lowest to the highest of them."
    return Chart(key, title, says, draw)


def _levels(experiment: Experiment) -> dict[str, float]:
    targets = sorted({each.figures["reward_target"] for each in experiment.members if each.figures["reward_target"]})
    return {f"target {target:g}": target for target in targets}


def reward_chart(experiment: Experiment) -> Chart | None:
    """Validation reward and response length over training steps and over seconds."""
    levels = _levels(experiment)
    over_steps = Panel("Reward over training steps", "validation reward", levels=levels)
    over_seconds = Panel(
        "Reward over seconds", "validation reward", SECONDS, "seconds", levels=levels, y_of=over_steps.title
    )
    length = Panel("Response length", "tokens per response")
    length_later = Panel("Response length over seconds", "tokens per response", SECONDS, "seconds", y_of=length.title)
    points = {
        over_steps: _evaluated("step", "reward"),
        over_seconds: _evaluated("elapsed_s", "reward"),
        length: _evaluated("step", "length"),
        length_later: _evaluated("elapsed_s", "length"),
    }
    return _curves(experiment, "reward", "validation reward and response length", "First to last evaluation.", points)


def learning_chart(experiment: Experiment) -> Chart | None:
    """Reward over steps beside the gradient norm, to compare arms; a cross marks where a run diverged."""
    import pandas as pd

    if len(experiment.arms) < 2 or not experiment.has("reward_last"):
        return None
    reward = Panel("Reward over training steps", "validation reward", levels=_levels(experiment))
    norm = Panel("Gradient norm before clipping", "L2 norm", scale="wide")
    diverged = [
        (arm, reward.title, "diverged", member.figures["divergence"].step, 0.0)
        for arm, members in experiment.arms.items()
        for member in members
        if member.figures["divergence"] is not None
    ]
    marks = pd.DataFrame(diverged, columns=["arm", "panel", "name", "x", "y"]) if diverged else None
    points = {reward: _evaluated("step", "reward"), norm: _metric("grad_norm")}
    return _curves(experiment, "learning", "what each learned", "Crosses: a run diverged.", points, marks=marks)


def training_chart(experiment: Experiment) -> Chart | None:
    """Training reward, loss, groups without a signal and response length over training steps."""
    points = {
        Panel("Training reward", "mean of the fresh rollouts"): _metric("reward/total"),
        Panel("Loss", "mean over optimizer steps"): _metric("loss"),
        Panel("Groups without a signal", "share with equal rewards", scale="zero"): _metric("zero_variance_fraction"),
        Panel("Response length in training", "tokens per response"): _metric("response_length"),
    }
    if not any(name in each.table.metrics for each in experiment.members for name in ("reward/total", "loss")):
        return None
    return _curves(experiment, "training", "training steps", "Numbers of the training steps themselves.", points)


def kl_chart(experiment: Experiment) -> Chart | None:
    """KL to the reference and to the previous policy, with the validation reward over the same steps."""
    points: dict[Panel, Points] = {}
    for policy in ("reference", "previous"):
        for name, unit in (
            ("k3", "k3, nats per token"),
            ("exact", "exact, nats per token"),
            ("k1_sum", "k1, nats per response"),
        ):
            points[Panel(f"KL to the {policy} policy, {name}", unit, scale="zero")] = _metric(f"kl/{policy}_{name}")
    if not any(
        name.startswith("kl/re") or name.startswith("kl/pr")
        for each in experiment.members
        for name in each.table.metrics
    ):
        return None
    older = any(member.figures["is_off_policy"] for member in experiment.members)
    says = "Estimated on the sampled tokens" + ("; biased where an older policy sampled them." if older else ".")
    points[Panel("Reward over the same steps", "validation reward")] = _evaluated("step", "reward")
    return _curves(experiment, "kl", "KL divergence", says, points)


def stability_chart(experiment: Experiment) -> Chart | None:
    """Gradient norm and clip fraction over training steps."""
    points = {
        Panel("Gradient norm before clipping", "L2 norm", scale="wide"): _metric("grad_norm"),
        Panel("Clip fraction", "share of response tokens", scale="zero"): _metric("clip_fraction"),
    }
    return _curves(experiment, "stability", "gradient norm and clip fraction", "Of the training steps.", points)


def optimizer_chart(experiment: Experiment) -> Chart | None:
    """Rewards and the numbers of the updates over optimizer steps; None where each training step is one."""
    if not any(inner for member in experiment.members for inner in member.table.optimizer_steps):
        return None

    def inner(name: str) -> Points:
        return lambda member: over_optimizer_steps(member.table, name)

    points: dict[Panel, Points] = {
        Panel("Training reward", "mean of the fresh rollouts", OPTIMIZER_STEP): _training_reward_over_optimizer_steps,
        Panel("Validation reward", "mean of the evaluation", OPTIMIZER_STEP): _reward_over_optimizer_steps,
        Panel("Loss", "loss", OPTIMIZER_STEP): inner("loss"),
        Panel("Gradient norm before clipping", "L2 norm", OPTIMIZER_STEP, scale="zero"): inner("grad_norm"),
        Panel("Clip fraction", "share of response tokens", OPTIMIZER_STEP, scale="zero"): inner("clip_fraction"),
        Panel("KL penalty before its weight", "nats per token", OPTIMIZER_STEP, scale="zero"): inner("kl/penalty"),
    }
    says = "Some training steps make several optimizer steps; here is each of them."
    return _curves(experiment, "optimizer_steps", "over optimizer steps", says, points)


def _made_before(table: RunTable, steps: np.ndarray) -> list[float]:
    """Return how many optimizer steps were made before each of these training steps."""
    made = np.concatenate([[0.0], np.cumsum(table.steps["optimizer_steps"])])
    return list(made[np.searchsorted(table.steps["step"], steps)].tolist())


def _training_reward_over_optimizer_steps(member: Member) -> list[tuple[float, float]]:
    steps, rewards = member.table.series("reward/total")
    return list(zip(_made_before(member.table, steps), rewards.tolist(), strict=True))


def _reward_over_optimizer_steps(member: Member) -> list[tuple[float, float]]:
    rewards = member.table.rewards
    return list(zip(_made_before(member.table, rewards.step), rewards.reward.tolist(), strict=True))


def step_time_chart(experiment: Experiment) -> Chart | None:
    """Seconds of each training step."""
    panel = Panel("Seconds of a training step", "seconds", scale="zero")
    says = "Evaluations included, so steps that end with one stand out."

    def points(member: Member) -> list[tuple[float, float]]:
        steps = member.table.steps
        return list(zip(steps["step"].tolist(), steps["wall_s"].tolist(), strict=True)) if steps["wall_s"].any() else []

    return _curves(experiment, "step_time", "step time over the run", says, {panel: points})


def grid_chart(experiment: Experiment) -> Chart | None:
    """A panel of validation rewards for each point of all axes of a sweep but the last, which are the lines; None where
    there are not two axes beside the seed, nothing was evaluated, or there are too many panels to read."""
    keys = dict.fromkeys(key for each in experiment.members for key in each.manifest.point if key != "seed")
    if len(keys) < 2 or any(each.manifest.arm for each in experiment.members):
        return None
    import pandas as pd

    *outer, line = keys
    rows = [
        (_named([line], member), member.manifest.seed, x, value, _named(outer, member))
        for member in experiment.members
        for x, value in _evaluated("step", "reward")(member)
    ]
    frame = pd.DataFrame(rows, columns=["arm", "seed", "x", "value", "panel"])
    names = list(dict.fromkeys(frame["panel"]))
    if not 0 < len(names) <= MOST_PANELS:
        return None
    panels = [Panel(name, "validation reward", y_of=names[0] if place else None) for place, name in enumerate(names)]
    title = f"{experiment.title}: validation reward"
    draw = partial(charts.curves, frame, panels, arms=list(dict.fromkeys(frame["arm"])), title=title, columns=3)
    return Chart("grid", "validation reward at each point", "A panel for each point; one line for each value.", draw)


def _named(keys: Sequence[str], member: Member) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}: {member.manifest.point.get(key)}" for key in keys)


# ---- bars


def stages_chart(experiment: Experiment) -> Chart | None:
    """Seconds of a training step by stage; where processes work side by side, busy and on the critical path."""
    import pandas as pd

    parts, ends = list[tuple[str, str, str, float]](), list[tuple[Any, ...]]()
    for arm, members in experiment.arms.items():
        busy, critical = stage_seconds(members, TIMING), stage_seconds(members)
        if not {*busy} - {"evaluate", "checkpoint"}:
            continue
        is_in_turns = experiment.share(arm, "stages_s") <= 1 + SIDE_BY_SIDE
        if critical and not is_in_turns:
            members = tuple(each for each in members if each.times is not None)
            busy = stage_seconds(members, TIMING)
        walls = [each.figures["step_s"] for each in members if each.figures.get("step_s")]
        wall, total = fmean(walls), sum(busy.values())
        low, high = (min(walls), max(walls)) if len(walls) > 1 else (np.nan, np.nan)
        written = f"{number(wall)} s{mark(experiment, arm)}"
        if is_in_turns or not critical:
            shown = busy | {NO_STAGE: round(max(0.0, wall - total), 9)}
            parts += [(arm, "step", name, seconds) for name, seconds in shown.items()]
            ends.append((arm, "step", written, low, high, np.nan if is_in_turns else wall))
            continue
        critical[NO_STAGE] = critical.pop(UNATTRIBUTED, 0.0)
        parts += [(arm, "busy", name, seconds) for name, seconds in busy.items()]
        parts += [(arm, "critical path", name, seconds) for name, seconds in critical.items()]
        ends.append((arm, "busy", f"{number(total)} s", np.nan, np.nan, np.nan))
        ends.append((arm, "critical path", written, low, high, np.nan))
    if not parts:
        return None
    frame = pd.DataFrame(parts, columns=["arm", "row", "part", "seconds"])
    draw = partial(
        charts.bars,
        frame,
        pd.DataFrame(ends, columns=["arm", "row", "text", "low", "high", "mark"]),
        x_label="seconds per training step",
        title=f"{experiment.title}: seconds of a training step by stage",
    )
    says = f"Means over {window_words(experiment.members)}, evaluations included."
    if (frame["row"] == "busy").any():
        says += " Busy: added over processes that work side by side. Critical path: what the loop waited for."
    return Chart("stages", "Seconds of a training step by stage", says, draw, critical_path_table(experiment))


def processes_chart(experiment: Experiment) -> Chart | None:
    """How the time of each process divides into stages, waits and neither, in percent of the measured window."""
    import pandas as pd

    parts, ends = list[tuple[str, str, str, float]](), list[tuple[Any, ...]]()
    for arm, members in experiment.arms.items():
        known = [member.times.lanes for member in members if member.times is not None]
        for lane in in_pipeline_order({lane for lanes in known for lane in lanes}):
            accounts = [lanes[lane] for lanes in known if lane in lanes]
            stages = dict.fromkeys(stage for stage in Stage if any(stage in each.stages_ns for each in accounts))
            shares = {s.value: fmean(each.share(each.stages_ns.get(s, 0)) for each in accounts) for s in stages}
            shares[NO_STAGE] = fmean(each.share(each.unattributed_ns) for each in accounts)
            parts += [(arm, lane, name, 100 * share) for name, share in shares.items()]
            busy = fmean(each.share(each.busy_ns) for each in accounts)
            ends.append((arm, lane, f"{percent(busy)} busy", np.nan, np.nan, np.nan))
    if not parts:
        return None
    draw = partial(
        charts.bars,
        pd.DataFrame(parts, columns=["arm", "row", "part", "percent"]),
        pd.DataFrame(ends, columns=["arm", "row", "text", "low", "high", "mark"]),
        x_label="percent of the measured window",
        value="percent",
        title=f"{experiment.title}: what each process did",
        limit=100.0,
    )
    window = window_words(experiment.members)
    says = f"How the time of each process divides into stages, waiting and neither, over {window}."
    return Chart("lanes", "What each process did", says, draw, process_table(experiment))


def sync_chart(experiment: Experiment) -> Chart | None:
    """Publish, transfer, load and verify of each arm; None where no weights left the process."""
    import pandas as pd

    parts, ends = list[tuple[str, str, str, float]](), list[tuple[Any, ...]]()
    sizes = dict[str, list[str]]()
    for arm, members in experiment.arms.items():
        syncs = arm_syncs(members)
        if not syncs:
            continue
        row, megabytes = syncs[0].transport, number(syncs[0].num_bytes / 1e6)
        sizes.setdefault(megabytes, []).append(arm)
        for part in PARTS:
            if len(seconds := pooled(syncs, part)):
                parts.append((arm, row, f"weight_{part}", 1e3 * float(seconds.mean())))
        whole = 1e3 * pooled(syncs, "whole")
        if len(whole):
            low, high = np.percentile(whole, (10, 90))
            text = f"{number(whole.mean())} ms, {number(syncs[0].num_bytes / whole.mean() / 1e6)} GB/s"
            ends.append((arm, row, text, low, high, np.nan))
    if not parts:
        return None
    draw = partial(
        charts.bars,
        pd.DataFrame(parts, columns=["arm", "row", "part", "ms"]),
        pd.DataFrame(ends, columns=["arm", "row", "text", "low", "high", "mark"]),
        x_label="milliseconds per sync",
        value="ms",
        title=f"{experiment.title}: what a weight sync is made of",
    )
    moved = "; ".join(f"{size} MB{'' if len(sizes) == 1 else f' in {listed(own)}'}" for size, own in sizes.items())
    says = f"Means over the measured training steps of {moved}; whiskers: publish to loaded, 10th to 90th percentile."
    return Chart("sync", "What a weight sync is made of", says, draw, sync_table(experiment))


def lag_chart(experiment: Experiment) -> Chart | None:
    """How old the rollouts were that each arm trained on; None where none lagged."""
    import pandas as pd

    rows = []
    for arm, members in experiment.arms.items():
        lags: Counter[int] = Counter()
        for member in members:
            for of_step in member.table.lags:
                lags.update(of_step)
        rows += [(arm, lag, rollouts) for lag, rollouts in sorted(lags.items())]
    if not any(lag for _, lag, _ in rows):
        return None
    frame = pd.DataFrame(rows, columns=["arm", "lag", "rollouts"])
    title = f"{experiment.title}: how old the trained rollouts were"
    draw = partial(charts.lags, frame, arms=list(experiment.arms), title=title)
    says = "Policy versions between a training step and a rollout's oldest token, as shares of rollouts trained on."
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
    import pandas as pd

    parts = []
    for arm, members in experiment.arms.items():
        total = sum(each.figures.get("generated_tokens", 0) for each in members)
        sums = {name: sum(each.figures.get(f"{name}_tokens", 0) for each in members) for name in WASTE}
        parts += [
            (arm, "tokens", WASTE[name], 100 * tokens / total) for name, tokens in sums.items() if total and tokens
        ]
    if not any(part != WASTE["trained"] for _, _, part, _ in parts):
        return None
    frame = pd.DataFrame(parts, columns=["arm", "row", "part", "percent"])
    title = f"{experiment.title}: what became of the generated tokens"
    draw = partial(
        charts.bars, frame, x_label="percent of the generated tokens", value="percent", title=title, limit=100.0
    )
    return Chart("waste", "What became of the generated tokens", "Sums over the runs of an arm.", draw)


# ---- verdicts, timelines, sizes


def forest_chart(judgement: Judgement) -> Chart | None:
    """Ratios of one arm over the baseline's, with their intervals; None below two blocks."""
    import pandas as pd

    effects = [*judgement.effects, *([judgement.noise_floor] if judgement.noise_floor is not None else [])]
    if judgement.primary.blocks < 2 or judgement.primary.ratio is None:
        return None
    rows = [
        (
            judgement.other,
            effect.label if place < len(judgement.effects) else f"{judgement.base} against itself",
            effect.ratio,
            np.nan if effect.low is None else effect.low,
            np.nan if effect.high is None else effect.high,
            {"better": "faster", "worse": "slower"}.get(direction(effect), direction(effect)),
            effect.threshold,
        )
        for place, effect in enumerate(effects)
        if effect.ratio is not None
    ]
    frame = pd.DataFrame(rows, columns=["arm", "row", "value", "low", "high", "verdict", "threshold"])
    title = f"{judgement.other} against {judgement.base}"
    draw = partial(charts.forest, frame, x_label="ratio of seconds, 95% interval", title=title)
    says = f"Times of {judgement.other} over those of {judgement.base}; shaded: too small to matter."
    return Chart(f"forest_{judgement.other}", title, says, draw)


def scatter_chart(experiment: Experiment) -> Chart | None:
    """Seconds per step against the last validation reward, a point for each arm; None below three arms with both."""
    import pandas as pd

    rows = []
    for arm in experiment.arms:
        seconds, rewards = experiment.values(arm, "step_s"), experiment.values(arm, "reward_last")
        if seconds and rewards:
            ends = [t_interval(values) if len(values) >= FEWEST_SEEDS else None for values in (seconds, rewards)]
            reaches = [edge for end in ends for edge in ((np.nan, np.nan) if end is None else (end.low, end.high))]
            rows.append((arm, fmean(seconds), fmean(rewards), *reaches))
    if len(rows) < 3:
        return None
    frame = pd.DataFrame(rows, columns=["arm", "x", "y", "x_low", "x_high", "y_low", "y_high"])
    title = f"{experiment.title}: time against reward"
    labels = {"x_label": "seconds per step", "y_label": "last validation reward"}
    draw = partial(charts.scatter, frame, arms=list(experiment.arms), title=title, **labels)
    return Chart(
        "scatter", "Time against reward", "Left and up is better; bars: 95% intervals over the runs of an arm.", draw
    )


@dataclass(frozen=True)
class Excerpt:
    """A few training steps of a run, for a timeline.

    Attributes:
        spans, changes: of the whole run.
        steps: numbers of the first and the last training step.
        start_s, end_s: of the excerpt, in seconds of the loop.
        origin_ns: when the loop began, on the clock of the spans.
    """

    name: str
    spans: Sequence[Span]
    changes: Sequence[VersionChange]
    steps: tuple[int, int]
    start_s: float
    end_s: float
    origin_ns: int = 0


def timeline_chart(experiment: Experiment) -> Chart | None:
    """What each process did when, of the first run of each arm; None where no run kept its spans."""
    excerpts = list[Excerpt]()
    for arm, members in experiment.arms.items():
        table = members[0].table
        spans = table.run.spans() if len(table) and len(excerpts) < MOST_TIMELINES else []
        if not spans:
            continue
        first, last = shown_steps(table.steps.get(TIMING + Stage.EVALUATE, np.zeros(len(table))))
        steps = int(table.steps["step"][first]), int(table.steps["step"][last])
        start_s = float(table.steps["elapsed_s"][first] - table.steps["wall_s"][first])
        end_s, origin = float(table.steps["elapsed_s"][last]), loop_window(spans, None)[0]
        excerpts.append(Excerpt(arm, spans, table.version_changes, steps, start_s, end_s, origin))
    if not excerpts:
        return None
    says = "A few steps without an evaluation after the first quarter, of the run with the lowest seed."
    title = f"{experiment.title}: what each process did when"
    return Chart("timeline", "What each process did when", says, partial(timeline_figure, excerpts, title))


def shown_steps(evaluate_s: Sequence[float] | np.ndarray) -> tuple[int, int]:
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
    """Draw excerpts, at least one, one above the other on one scale of seconds."""
    import pandas as pd

    spans, changes, windows = [], [], []
    for part in excerpts:
        low, high = (part.origin_ns + round(seconds * 1e9) for seconds in (part.start_s, part.end_s))
        inside = [span for span in part.spans if span.start_ns < high and span.end_ns > low]
        order = {lane: place for place, lane in enumerate(in_pipeline_order({span.lane for span in inside}))}
        for span in sorted(inside, key=lambda span: order[span.lane]):
            times = ((max(span.start_ns, low) - low) / 1e9, (min(span.end_ns, high) - low) / 1e9)
            spans.append((part.name, span.lane, span.stage.value, *times))
        placed = [(item.lane, part.origin_ns + round(item.elapsed_s * 1e9), item.version) for item in part.changes]
        changes += [(part.name, lane, (at - low) / 1e9, version) for lane, at, version in placed if low <= at <= high]
        text = f"training steps {part.steps[0]} to {part.steps[1]} in {number((high - low) / 1e9)} s"
        windows.append((part.name, (high - low) / 1e9, text))
    return charts.timeline(
        pd.DataFrame(spans, columns=["arm", "lane", "stage", "start_s", "end_s"]),
        pd.DataFrame(changes, columns=["arm", "lane", "at_s", "version"]),
        pd.DataFrame(windows, columns=["arm", "seconds", "text"]),
        title=title,
    )


def sizes_chart(experiment: Experiment, points: Sequence[SyncPoint]) -> Chart | None:
    """Milliseconds of a weight sync against size, of a transport sweep; None where nothing was swept."""
    import pandas as pd

    if not points:
        return None
    rows = [
        (
            f"{point.receivers} receivers, {point.tensors} tensors",
            point.transport,
            point.megabytes,
            *(1e3 * seconds for seconds in (point.median_s, point.low_s, point.high_s)),
            1e3 * point.copy_s,
        )
        for point in sorted(points, key=lambda point: (point.receivers, point.tensors, point.num_bytes))
    ]
    frame = pd.DataFrame(rows, columns=["panel", "arm", "megabytes", "ms", "low_ms", "high_ms", "copy_ms"])
    copies = frame.groupby(["panel", "megabytes"], as_index=False)["copy_ms"].median().rename(columns={"copy_ms": "ms"})
    transports = list(dict.fromkeys(point.transport for point in points))
    title = f"{experiment.title}: a weight sync, from publish to the receiver's own tensors"
    draw = partial(charts.sizes, frame, copies, arms=transports, title=title)
    says = "Medians; bars from the 10th to the 90th percentile of the repeats."
    return Chart("sweep", "A weight sync by size", says, draw)
