"""Weight syncs: what one is made of, and what a transport sweep measured."""

from __future__ import annotations

from statistics import median

from harness.compare import numbers
from harness.compare.experiments import Variant
from harness.compare.sweep_tables import sweep_points, sweep_tables
from harness.compare.sync import percentile
from harness.compare.transports import pooled, sync_findings, sync_table, variant_syncs
from harness.report.bars import SYNC_STAGES
from harness.report.data import ReportData
from harness.report.html.charts import Bar, Chart, Line, Segment, draw_bars, draw_chart, linear
from harness.report.html.markup import (
    Markup,
    bullets,
    details,
    element,
    figure,
    section,
    stage_legend,
    table,
    tables,
    variant_legend,
)
from harness.report.html.theme import stage_class


def sync_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section; None where no weights left the process."""
    variants = [variant for variant in report_data.experiment.variants if variant_syncs(variant)]
    found = sync_table(report_data.experiment)
    if not variants or found is None:
        return None
    said = bullets(sync_findings(report_data.experiment), "plain-list")
    return section(
        anchor,
        "Weight syncs",
        _anatomy(variants),
        said,
        details("Show the figures", *tables([found], report_data.experiment)),
    )


def _anatomy(variants: list[Variant]) -> Markup:
    bars = [_bar(variant) for variant in variants]
    ends = [end for bar in bars for end in (sum(part.value for part in bar.segments), *(bar.whisker or ()))]
    seen = [stage for part, stage in SYNC_STAGES.items() if any(pooled(variant_syncs(item), part) for item in variants)]
    sentence = (
        "Medians of each part over the training steps, the first left out. Whiskers: publish to loaded, from the 10th "
        "to the 90th percentile; verification is not in them."
    )
    drawing = draw_bars(bars, linear([0.0, *ends], from_zero=True), "milliseconds per sync", sentence)
    return figure("What a weight sync is made of.", sentence, drawing, legend=stage_legend(seen))


def _bar(variant: Variant) -> Bar:
    syncs = variant_syncs(variant)
    segments = []
    for part, stage in SYNC_STAGES.items():
        times = pooled(syncs, part)
        if times:
            milliseconds = 1e3 * median(times)
            name = f"{part}: {numbers.number(milliseconds)} ms"
            segments.append(Segment(stage_class(stage), milliseconds, name))
    whole = [1e3 * seconds for seconds in pooled(syncs, "whole")]
    size = f"{numbers.number(syncs[0].num_bytes / 1e6)} MB"
    name = (
        f"{variant.name}, {size}"
        if syncs[0].transport in variant.name
        else f"{variant.name}, {syncs[0].transport}, {size}"
    )
    if not whole:
        return Bar(name, segments, numbers.NOTHING)
    low, middle, high = (percentile(whole, percent) for percent in (10, 50, 90))
    return Bar(name, segments, f"{numbers.number(middle)} ms", whisker=(low, high))


def sweep_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return what a transport sweep measured: times against sizes, and its tables; None where nothing was swept."""
    points = sweep_points(report_data.experiment)
    if not points:
        return None
    names = list(dict.fromkeys(point.transport for point in points))
    kinds = sorted({(point.receivers, point.tensors) for point in points})
    charts = []
    for receivers, tensors in kinds:
        lines = []
        for index, name in enumerate(names):
            own = [p for p in points if (p.transport, p.receivers, p.tensors) == (name, receivers, tensors)]
            own.sort(key=lambda point: point.num_bytes)
            band = [(point.megabytes, 1e3 * point.low_s, 1e3 * point.high_s) for point in own]
            if own:
                lines.append(Line(index, [(point.megabytes, 1e3 * point.median_s) for point in own], band))
        title = f"Receivers: {receivers}, tensors: {tensors}"
        says = "Milliseconds from publish to the receiver's own tensors against megabytes, both logarithmic."
        charts.append(Chart(title, "size of the weights, MB", "milliseconds", lines, says, log_x=True, log_y=True))
    panels = element("div", [draw_chart(chart) for chart in charts], class_="panels")
    sentence = "Medians of a whole sync; bands from the 10th to the 90th percentile."
    drawn = figure("A weight sync by size.", sentence, panels, legend=variant_legend(names))
    return section(anchor, "Transports", drawn, *(table(item) for item in sweep_tables(report_data.experiment)))
