"""What was learned: rewards, training curves, KL beside the reward, gradient norm, clip fraction, optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from harness.compare.learning import evaluations
from harness.compare.tables import outcome_table, targets
from harness.report.data import (
    OPTIMIZER_STEP,
    SECONDS,
    STEP,
    Panel,
    Points,
    ReportData,
    evaluated_points,
    metric_points,
    metric_values,
    needs_log_scale,
    optimizer_panels,
    over_seeds,
    training_panels,
)
from harness.report.html.charts import Chart, Line, draw_chart
from harness.report.html.markup import Markup, details, element, figure, join, section, tables, variant_legend

KL_KINDS = (
    ("k3", "k3, nats per token"),
    ("exact", "exact, nats per token"),
    ("k1_sum", "k1, nats per response"),
)
MOST_POINTS = 240  # of one line; longer series are averaged over runs of equal length


def learning_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section; None where nothing was evaluated or logged."""
    return section(
        anchor,
        "What was learned",
        _reward(report_data),
        _training(report_data),
        _kl(report_data),
        _stability(report_data),
        _optimizer_steps(report_data),
    )


def over_steps(report_data: ReportData, points: Points) -> list[Line]:
    """Return one line for each variant: the mean over its runs, and a band from the lowest to the highest of them."""
    drawn = []
    for index, runs in enumerate(report_data.curves.runs.values()):
        rows = thinned(over_seeds(map(points, runs)))
        band = [(x, low, high) for x, _, low, high in rows] if len(runs) > 1 else []
        drawn.append(Line(index, [(x, mean) for x, mean, _, _ in rows], band))
    return drawn


def over_seconds(report_data: ReportData, points: Points) -> list[Line]:
    """Return one line for each variant: the means of time and value of each evaluation over its runs, with a band.

    Runs do not share their seconds, but make the same evaluations. A run that ended early is in those that it made.
    """
    drawn = []
    for index, runs in enumerate(report_data.curves.runs.values()):
        made = [points(run) for run in runs]
        same = [
            list(zip(*(each[place] for each in made if place < len(each)), strict=True))
            for place in range(max(map(len, made), default=0))
        ]
        rows = thinned([(fmean(xs), fmean(ys), min(ys), max(ys)) for xs, ys in same])
        band = [(x, low, high) for x, _, low, high in rows] if len(runs) > 1 else []
        drawn.append(Line(index, [(x, mean) for x, mean, _, _ in rows], band))
    return drawn


def thinned(rows: Sequence[tuple[float, float, float, float]]) -> list[tuple[float, float, float, float]]:
    """Return at most ``MOST_POINTS`` rows (x, mean, low, high): means of as many neighbours as that takes."""
    size = -(-len(rows) // MOST_POINTS)
    groups = (
        [rows[start : start + size] for start in range(0, len(rows), size)] if size > 1 else [[row] for row in rows]
    )
    finite = ([row for row in part if math.isfinite(row[1])] or part for part in groups)
    return [
        (fmean(r[0] for r in part), fmean(r[1] for r in part), min(r[2] for r in part), max(r[3] for r in part))
        for part in finite
    ]


def _reward(report_data: ReportData) -> Markup | None:
    if not any(evaluations(run) for run in report_data.curves.all_runs()):
        return None
    levels = tuple((f"target {target:g}", target) for target in targets(report_data.experiment.runs))
    rewards = over_steps(report_data, evaluated_points(lambda item: item.step, lambda item: item.reward))
    later = over_seconds(report_data, evaluated_points(lambda item: item.elapsed_s, lambda item: item.reward))
    lengths = over_steps(report_data, evaluated_points(lambda item: item.step, lambda item: item.length))
    says = _reward_says(report_data)
    charts = [
        Chart("Reward over training steps", STEP, "validation reward", rewards, says,
              levels=levels),
        Chart("Reward over seconds", SECONDS, "validation reward", later, says,
              levels=levels),
        Chart("Response length", STEP, "tokens per response", lengths,
              "Tokens of a validation response over training steps."),
    ]  # fmt: skip
    sentence = says + seeds_say(report_data)
    return panels(
        report_data, "Validation reward.", sentence, charts, details("Show the figures", _outcome(report_data))
    )


def _outcome(report_data: ReportData) -> Markup:
    return join(*tables([outcome_table(report_data.experiment)], report_data.experiment))


def _reward_says(report_data: ReportData) -> str:
    parts = []
    for variant in report_data.experiment.variants:
        first = variant.spread(lambda run: run.first.reward if run.first else None)
        last = variant.spread(lambda run: run.last.reward if run.last else None)
        if first and last:
            parts.append(f"{variant.name} from {first.mean:.3f} to {last.mean:.3f}")
    return f"Validation reward, first to last: {', '.join(parts)}."


def seeds_say(report_data: ReportData) -> str:
    """Say what a line and its band are where variants have several runs; empty where they have one."""
    if not report_data.curves.several_seeds:
        return ""
    return " A line is the mean of the runs, its band runs from the lowest to the highest of them."


def _training(report_data: ReportData) -> Markup | None:
    sentence = "Figures of the training steps themselves."
    return _curves(report_data, "Training curves.", sentence, training_panels(report_data.curves), STEP)


def _optimizer_steps(report_data: ReportData) -> Markup | None:
    sentence = "Some training steps make several optimizer steps; here is each of them."
    panels = optimizer_panels(report_data.curves)
    return _curves(report_data, "Over optimizer steps.", sentence, panels, OPTIMIZER_STEP)


def _curves(report_data: ReportData, title: str, sentence: str, shown: Sequence[Panel], x_label: str) -> Markup | None:
    charts = []
    for panel in shown:
        drawn, says = over_steps(report_data, panel.points), f"{panel.title}, {panel.unit}, over {x_label}s."
        charts.append(Chart(panel.title, x_label, panel.unit, drawn, says, panel.from_zero, zero_line=True))
    xs = [x for chart in charts for line in chart.lines for x, _ in line.points]
    ends = (min(xs), max(xs)) if xs else ()
    return panels(report_data, title, sentence, [replace(chart, x_ends=ends) for chart in charts]) if charts else None


def _kl(report_data: ReportData) -> Markup | None:
    charts = []
    ends = (0.0, float(max((run.steps for run in report_data.experiment.runs), default=0)))
    for pair, other in (("reference", "the reference policy"), ("previous", "the previous policy")):
        for kind, unit in KL_KINDS:
            name = f"kl/{pair}_{kind}"
            if metric_values(report_data.curves, name):
                drawn = over_steps(report_data, metric_points(name))
                says = f"KL of the policy to {other}, {unit}, over training steps."
                charts.append(
                    Chart(f"KL to {other}", STEP, unit, drawn, says, zero_line=True, from_zero=True, x_ends=ends)
                )
    if not charts:
        return None
    if any(map(evaluations, report_data.curves.all_runs())):
        drawn = over_steps(report_data, evaluated_points(lambda item: item.step, lambda item: item.reward))
        says = "Validation reward over the same training steps."
        chart = Chart("Reward over the same steps", STEP, "validation reward", drawn, says, x_ends=ends)
        charts.append(chart)
    older = any(run.behaviour_is_older for run in report_data.experiment.runs)
    sentence = "Estimated on the sampled tokens" + ("; biased where an older policy sampled them." if older else ".")
    if any(metric_values(report_data.curves, f"kl/{pair}_exact") for pair in ("reference", "previous")):
        sentence += " Exact: summed over the vocabulary, nothing sampled."
    return panels(report_data, "KL divergence.", sentence, charts)


def _stability(report_data: ReportData) -> Markup | None:
    charts, said = list[Chart](), list[str]()
    norms, clips = metric_values(report_data.curves, "grad_norm"), metric_values(report_data.curves, "clip_fraction")
    if norms:
        log = needs_log_scale(norms)
        said.append(f"Gradient norm before clipping, from {min(norms):.3g} to {max(norms):.3g}.")
        drawn = over_steps(report_data, metric_points("grad_norm"))
        charts.append(Chart("Gradient norm before clipping", STEP, "L2 norm", drawn, said[-1], not log, log_y=log))
    if any(clips):
        said.append(
            f"Clip fraction: response tokens where the clip changed the objective, up to {100 * max(clips):.2g}%."
        )
        drawn = over_steps(report_data, metric_points("clip_fraction"))
        charts.append(Chart("Clip fraction", STEP, "share of response tokens", drawn, said[-1], from_zero=True))
    elif clips:
        said.append("The clip changed the objective of no token.")
    return panels(report_data, "Stability of the updates.", " ".join(said), charts) if charts else None


def panels(
    report_data: ReportData, title: str, sentence: str, charts: Sequence[Chart], *below: Markup | None
) -> Markup:
    """Return charts of an experiment side by side, with whose line is which."""
    class_ = "panels three" if len(charts) == 3 else "panels"
    drawn = element("div", [draw_chart(chart) for chart in charts], class_=class_)
    return figure(title, sentence, drawn, *below, legend=variant_legend(_labels(report_data)))


def _labels(report_data: ReportData) -> list[str]:
    return [
        f"{item.name} ({len(item.runs)} seeds)" if len(item.runs) > 1 else item.name
        for item in report_data.experiment.variants
    ]
