"""Weight syncs: what one is made of, and what a transport sweep measured."""

from __future__ import annotations

from collections.abc import Mapping

from harness.compare import numbers
from harness.compare.sync_tables import sweep_tables, sync_findings, sync_table
from harness.report.data import SYNC_STAGES, ReportData, SyncParts, sweep_lines, sync_parts
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
    variants = report_data.experiment.variants
    parts = {variant.name: found for variant in variants if (found := sync_parts(variant)) is not None}
    sync_figures = sync_table(report_data.experiment)
    if not parts or sync_figures is None:
        return None
    said = bullets(sync_findings(report_data.experiment), "plain-list")
    data = details("Show the figures", *tables([sync_figures], report_data.experiment))
    return section(anchor, "Weight syncs", _anatomy(parts), said, data)


def _anatomy(parts: Mapping[str, SyncParts]) -> Markup:
    bars = [_bar(name, sync) for name, sync in parts.items()]
    ends = [end for bar in bars for end in (sum(part.value for part in bar.segments), *(bar.whisker or ()))]
    seen = [stage for stage in SYNC_STAGES.values() if any(stage in sync.parts_ms for sync in parts.values())]
    sentence = (
        "Means of each part over the measured training steps. Whiskers: publish to loaded, from the 10th "
        "to the 90th percentile; verification is not in them."
    )
    drawing = draw_bars(bars, linear([0.0, *ends], from_zero=True), "milliseconds per sync", sentence)
    return figure("What a weight sync is made of.", sentence, drawing, legend=stage_legend(seen))


def _bar(variant: str, sync: SyncParts) -> Bar:
    names = {stage: part for part, stage in SYNC_STAGES.items()}
    segments = [
        Segment(stage_class(stage), milliseconds, f"{names[stage]}: {numbers.number(milliseconds)} ms")
        for stage, milliseconds in sync.parts_ms.items()
    ]
    transport = "" if sync.transport is None else f"{sync.transport}, "
    name = f"{variant}, {transport}{numbers.number(sync.num_bytes / 1e6)} MB"
    if sync.whole_ms is None:
        return Bar(name, segments, numbers.NOTHING)
    low, mean, high = sync.whole_ms
    return Bar(name, segments, f"{numbers.number(mean)} ms", whisker=(low, high))


def sweep_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return what a transport sweep measured: times against sizes, and its tables; None where nothing was swept."""
    kinds = sweep_lines(report_data.experiment)
    if not kinds:
        return None
    charts = []
    for (receivers, tensors), by_transport in kinds.items():
        lines = []
        for index, own in enumerate(by_transport.values()):
            band = [(point.megabytes, 1e3 * point.low_s, 1e3 * point.high_s) for point in own]
            if own:
                lines.append(Line(index, [(point.megabytes, 1e3 * point.median_s) for point in own], band))
        title = f"Receivers: {receivers}, tensors: {tensors}"
        says = "Milliseconds from publish to the receiver's own tensors against megabytes, both logarithmic."
        charts.append(Chart(title, "size of the weights, MB", "milliseconds", lines, says, log_x=True, log_y=True))
    panels = element("div", [draw_chart(chart) for chart in charts], class_="panels")
    sentence = "Medians of a whole sync; bands from the 10th to the 90th percentile."
    drawn = figure("A weight sync by size.", sentence, panels, legend=variant_legend(list(next(iter(kinds.values())))))
    return section(anchor, "Transports", drawn, *(table(item) for item in sweep_tables(report_data.experiment)))
