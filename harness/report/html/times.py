"""Where the time goes: seconds of a step spent and exposed, the account of each lane, and a timeline of a few steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.compare import numbers
from harness.compare.experiments import Variant
from harness.compare.figures import RunFigures
from harness.compare.findings import exposed_shares
from harness.compare.step_times import MARK, mark, steadiness_notes
from harness.compare.tables import Table, lane_table, rank_table, stage_table, window_words
from harness.core.trace import Span, Stage
from harness.report.data import STEP, ReportData, spent_s, stage_seconds, wall_s
from harness.report.html.charts import (
    Bar,
    Chart,
    Scale,
    Segment,
    block,
    draw_axis,
    draw_bars,
    grid_lines,
    linear,
    whole,
)
from harness.report.html.learning import over_steps, panels, seeds_say
from harness.report.html.markup import (
    Markup,
    details,
    element,
    figure,
    note,
    scroll,
    section,
    share,
    stage_legend,
    tables,
)
from harness.report.html.theme import stage_class
from harness.report.timeline import MOST_VARIANTS, Excerpt, depth, excerpts
from harness.results import in_pipeline_order

NOBODY, SPENT = ("nobody", "no stage"), "spent"
SIDE_BY_SIDE = 0.02
"""Share of a step by which stages add up to more than it where lanes work side by side."""
BESIDE = (Stage.EVALUATE, Stage.CHECKPOINT)
"""Stages that say nothing of a step where they are all that a log has."""
Parts = dict[Stage, float]


def times_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section; None where no run finished a step."""
    variants = [variant for variant in report_data.experiment.variants if any(run.steps for run in variant.runs)]
    if not variants:
        return None
    return section(anchor, "Where the time goes", _over_steps(report_data), _lanes(report_data))


def step_figure(report_data: ReportData) -> Markup | None:
    """Return seconds of a training step by stage, an arm a bar; None where no seconds are known."""
    variants = [
        variant
        for variant in report_data.experiment.variants
        if any(wall_s(variant)) and any(stage not in BESIDE for stage in stage_seconds(variant))
    ]
    return _steps(report_data, variants) if variants else None


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the lowest and the highest of several runs; None for one."""
    return (min(values), max(values)) if len(values) > 1 else None


def _steps(report_data: ReportData, variants: Sequence[Variant]) -> Markup:
    rows = [(variant, stage_seconds(variant)) for variant in variants]
    ends = [max(sum(spent.values()), *wall_s(variant)) for variant, spent in rows]
    axis, bars = linear([0.0, *ends], from_zero=True), list[Bar]()
    for variant, spent in rows:
        bars += _bars(variant, spent)
    seen = {stage for _, spent in rows for stage in spent}
    shown = {segment.class_ for bar in bars for segment in bar.segments}
    legend = stage_legend(
        [stage for stage in seen if stage_class(stage) in shown], [NOBODY] if NOBODY[0] in shown else []
    )
    twice = any(bar.name == SPENT for bar in bars)
    sentence = _says(variants, twice)
    drawing = draw_bars(bars, axis, "seconds per training step", sentence)
    data = tables([_exposed_table(variants), stage_table(report_data.experiment)], report_data.experiment)
    return figure(
        f"Seconds of a training step by stage{', spent and exposed' if twice else ''}.", sentence, drawing,
        details("Show the figures", *data), legend=legend,
    )  # fmt: skip


def _bars(variant: Variant, spent: Parts) -> list[Bar]:
    """Return an arm's bars: spent and exposed, or one where its lanes took turns or no run kept its spans."""
    values, kept = wall_s(variant), exposed_runs(variant)
    seeds = f" ({len(values)} runs)" if len(values) > 1 else ""
    total, alone = sum(spent.values()), _take_turns(variant)
    heading = f"{variant.name}{seeds}"
    if kept and not (alone and len(kept) < len(values)):
        parts, left = _exposed(kept)
        values = [run.step_s or 0.0 for run in kept]
    else:
        parts, left = {}, max(0.0, fmean(values) - total)
    mean, ends = fmean(values), _ends(values)
    wall = f"{numbers.number(mean)} s{mark(variant)}"
    rest = [Segment(NOBODY[0], left, f"{NOBODY[1]}: {numbers.number(left)} s")] if left > 0 else []
    if alone or not parts:
        return [Bar("step", [*_segments(parts or spent), *rest], wall, heading, ends, None if alone else mean)]
    return [
        Bar(SPENT, _segments(spent), f"{numbers.number(total)} s", heading),
        Bar("exposed", [*_segments(parts), *rest], wall, whisker=ends),
    ]


def _take_turns(variant: Variant) -> bool:
    """Whether an arm's lanes worked one after the other: their stages add up to no more than its steps."""
    return sum(stage_seconds(variant).values()) <= (1 + SIDE_BY_SIDE) * fmean(wall_s(variant))


def _segments(parts: Parts) -> list[Segment]:
    return [
        Segment(stage_class(stage), seconds, f"{stage.value}: {numbers.number(seconds)} s")
        for stage, seconds in parts.items()
        if seconds > 0
    ]


def _says(variants: Sequence[Variant], twice: bool) -> str:
    several = max(len(variant.runs) for variant in variants)
    window = window_words([run for variant in variants for run in variant.runs if run.steps])
    said = f"Means over {window}, evaluations included."
    if twice:
        said += " Spent: added over lanes that work side by side. Exposed: what the loop waited for; that is the step."
    kept, runs = sum(len(exposed_runs(it)) for it in variants), sum(len(wall_s(it)) for it in variants)
    if not kept:
        said += " No spans were kept; a thick mark is the whole step where its stages add up to more."
    elif kept < runs and twice:
        said += f" Exposed: of the {kept} of {runs} runs that kept their spans."
    if several > 1:
        said += f" Whiskers: lowest to highest of up to {several} runs."
    return " ".join([said, *(f"{MARK} {note}" for note in steadiness_notes(variants))])


def exposed_runs(variant: Variant) -> list[RunFigures]:
    """Return the runs of an arm whose exposed time is known: those that kept their spans."""
    return [run for run in variant.runs if run.exposed]


def _exposed(runs: Sequence[RunFigures]) -> tuple[Parts, float]:
    """Return mean exposed seconds per step of each stage, and of no stage; of runs that kept their spans."""
    steps = [(run.exposed, 1e9 * run.measured_steps) for run in runs if run.exposed]
    stages = [stage for stage in Stage if any(stage in part.stages_ns for part, _ in steps)]
    parts = {stage: fmean(part.stages_ns.get(stage, 0) / scale for part, scale in steps) for stage in stages}
    return parts, fmean(part.nobody_ns / scale for part, scale in steps)


def _exposed_table(variants: Sequence[Variant]) -> Table:
    """Return seconds per step spent and exposed, with the exposed share of a step and intervals over runs."""
    stages = [stage for stage in Stage if any(stage in stage_seconds(variant) for variant in variants)]
    rows = [(stage.value, *(cell for variant in variants for cell in _cells(variant, stage))) for stage in stages]
    rows.append((NOBODY[1], *(cell for variant in variants for cell in _nobody_cells(variant))))
    columns = [f"{variant.name}, {what}" for variant in variants for what in ("spent", "exposed", "of a step")]
    several = any(len(variant.runs) > 1 for variant in variants)
    runs = [run for variant in variants for run in variant.runs if run.steps]
    kept = sum(bool(run.lanes) for run in runs)
    notes = (
        *(
            (f"All columns are of the {kept} of {len(runs)} runs that kept their spans.",)
            if 0 < kept < len(runs)
            else ()
        ),
        "Exposed: each instant of the loop belongs to the stage that the Learner is in; while the Learner waits, to "
        "the stage that it waits for (score, then weight stages, then generate, then evaluate); else to no stage.",
        *(("In brackets: lowest and highest over runs.",) if several else ()),
    )
    return Table("Seconds per training step, spent and exposed", ("stage", *columns), tuple(rows), notes)


def _cells(variant: Variant, stage: Stage) -> tuple[str, str, str]:
    runs = [run for run in variant.runs if run.steps]
    spent = [spent_s(run, stage) for run in [run for run in runs if run.lanes] or runs]
    exposed = [_exposed([run])[0].get(stage, 0.0) for run in exposed_runs(variant)]
    fraction = exposed_shares(variant).get(stage, 0.0)
    return _with_interval(spent), _with_interval(exposed), numbers.percent(fraction) if exposed else numbers.NOTHING


def _nobody_cells(variant: Variant) -> tuple[str, str, str]:
    parts = [run.exposed for run in variant.runs if run.exposed]
    if not parts:
        return (numbers.NOTHING,) * 3
    seconds = [_exposed([run])[1] for run in exposed_runs(variant)]
    return numbers.NOTHING, _with_interval(seconds), numbers.percent(fmean(it.share(it.nobody_ns) for it in parts))


def _with_interval(values: Sequence[float]) -> str:
    if not values:
        return numbers.NOTHING
    ends = _ends(values)
    text = numbers.number(fmean(values))
    return text if ends is None else f"{text} [{numbers.number(ends[0])}, {numbers.number(ends[1])}]"


def _over_steps(report_data: ReportData) -> Markup | None:
    """Return the seconds of each training step; None where they are not known."""
    lines = over_steps(report_data, lambda run: [(float(row.step), row.wall_s) for row in run.steps])
    if not any(seconds > 0 for line in lines for _, seconds in line.points):
        return None
    left_out = {run.warmup_steps for run in report_data.experiment.runs if run.warmup_steps}
    sentence = "Evaluations included, so steps that end with one stand out."
    if left_out:
        sentence += (
            f" Left of the dotted line: warm-up, left out of all means ({numbers.plural(max(left_out), 'step')})."
        )
    chart = Chart(
        "Seconds of a training step",
        STEP,
        "seconds",
        lines,
        sentence,
        True,
        marks=[max(left_out) - 0.5] if left_out else (),
    )
    return panels(report_data, "Step time over the run.", sentence + seeds_say(report_data), [chart])


def _lanes(report_data: ReportData) -> Markup | None:
    """Return how the wall-clock of each lane divides into stages, waits and time in no stage and no wait."""
    bars, seen = list[Bar](), set[Stage]()
    for variant in report_data.experiment.variants:
        for place, lane in enumerate(in_pipeline_order({lane for run in variant.runs for lane in run.lanes})):
            segments, stages = _lane(variant, lane)
            seen |= stages
            busy = sum(segment.value for segment in segments if segment.class_ not in ("wait", "nobody"))
            bars.append(Bar(lane, segments, f"{numbers.percent(busy)} busy", None if place else variant.name))
    if not bars:
        return None
    legend = stage_legend(seen, [("nobody", "no stage, no wait")])
    window = window_words([run for run in report_data.experiment.runs if run.lanes])
    sentence = f"How the time of each lane in {window} divides into stages, waiting and neither."
    axis = Scale(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))
    scaled = [
        Bar(bar.name, [Segment(s.class_, 100 * s.value, s.name) for s in bar.segments], bar.value, bar.heading)
        for bar in bars
    ]
    drawing = draw_bars(scaled, axis, "percent of the measured window", sentence)
    both = lane_table(report_data.experiment), rank_table(report_data.experiment)
    data = tables([table for table in both if table.rows], report_data.experiment)
    return figure(
        "What each lane did.", sentence, drawing, details("Show the figures", *data), legend=legend,
    )  # fmt: skip


def _lane(variant: Variant, lane: str) -> tuple[list[Segment], set[Stage]]:
    accounts = [run.lanes[lane] for run in variant.runs if lane in run.lanes]
    stages = [stage for stage in Stage if any(stage in account.stages_ns for account in accounts)]
    shares = {stage: fmean(item.share(item.stages_ns.get(stage, 0)) for item in accounts) for stage in stages}
    ordered = sorted(shares, key=lambda stage: stage.is_wait)
    segments = [Segment(stage_class(s), shares[s], f"{s.value}: {numbers.percent(shares[s])}") for s in ordered]
    rest = fmean(item.share(item.unattributed_ns) for item in accounts)
    if rest > 0:
        segments.append(Segment("nobody", rest, f"no stage, no wait: {numbers.percent(rest)}"))
    return segments, set(stages)


LANE_TOP, LANE_HEIGHT = 13.0, 18.0  # room for the versions above a lane, height of its bars, in pixels
NARROWEST = 0.0012  # of the width: what is shorter is drawn as wide as this, so that it can be seen
ROOM_OF_A_NUMBER = 0.045  # of the width
MOST_SPANS = 4000  # of one variant; an engine that loads in flight may have very many


def timeline_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section; None where no run kept its spans."""
    shown, total = excerpts(report_data.curves)
    if not shown:
        return None
    axis = whole(0.0, max(part.seconds for part in shown.values()), 6)
    rows = [cell for name, part in shown.items() for cell in _variant(name, part, axis)]
    sentence = _timeline_says(shown)
    drawn = element("div", rows, draw_axis(axis, "seconds"), class_="rows timeline", role="img", aria_label=sentence)
    seen = {span.stage for part in shown.values() for span in part.spans}
    more = note(f"The first {MOST_VARIANTS} of {total} variants.") if total > len(shown) else None
    marks = [("#version-mark", "policy version now held")] if any(part.changes for part in shown.values()) else []
    legend = stage_legend(seen, [("nobody", "no stage, no wait"), *marks])
    return section(
        anchor, "Timeline", figure("What each lane did when.", sentence, scroll(drawn, "Timeline"), more, legend=legend)
    )


def _timeline_says(shown: dict[str, Excerpt]) -> str:
    parts = [f"{name} {part.title} in {numbers.number(part.seconds)} s" for name, part in shown.items()]
    rule = "By rule, the first steps without an evaluation after the first quarter of the run of the lowest seed"
    return f"{rule}: {'; '.join(parts)}."


def _variant(name: str, part: Excerpt, axis: Scale) -> list[Markup]:
    cells = [element("div", name, class_="head")]
    for lane in part.lanes:
        drawn = _timeline_lane(part, lane, axis)
        svg = element("svg", drawn, width="100%", height=LANE_TOP + LANE_HEIGHT, class_="lane", aria_hidden="true")
        cells += [
            element("div", lane, class_="name"),
            element("div", svg, class_="bar-cell"),
            element("div", class_="value"),
        ]
    return cells


def _timeline_lane(part: Excerpt, lane: str, axis: Scale) -> list[Markup]:
    end = axis.place(part.seconds)
    ground = element("rect", x=0, y=LANE_TOP, width=share(end), height=LANE_HEIGHT, class_="nobody")
    spans = sorted(
        (span for span in part.spans if span.lane == lane), key=lambda span: (depth(span.stage), span.start_ns)
    )[:MOST_SPANS]
    return [
        *grid_lines(axis, LANE_TOP + LANE_HEIGHT),
        ground,
        *(_span(part, span, axis) for span in spans),
        *_versions(part, lane, axis),
    ]


def _span(part: Excerpt, span: Span, axis: Scale) -> Markup:
    low, high = part.window
    start = axis.place(part.at(max(span.start_ns, low)))
    stop = axis.place(part.at(min(span.end_ns, high)))
    if not span.stage.is_wait:
        stop = max(stop, start + NARROWEST)
    step = f", step {span.step}" if span.step >= 0 else ""
    name = f"{span.stage.value}{step}: {numbers.number((span.end_ns - span.start_ns) / 1e9)} s"
    return block(name, stage_class(span.stage), start, stop, LANE_TOP, LANE_HEIGHT)


def _versions(part: Excerpt, lane: str, axis: Scale) -> list[Markup]:
    """Mark each change of the policy version with a triangle, and write it beside it where there is room."""
    drawn, free_from = list[Markup](), 0.0
    for name, time_ns, version in part.changes:
        if name != lane:
            continue
        place = axis.place(part.at(time_ns))
        drawn.append(element("use", href="#version-mark", x=share(place), y=LANE_TOP - 4, class_="version"))
        if place >= free_from:
            written = "none" if version < 0 else str(version)
            inner = element("text", written, x=7, y=LANE_TOP - 2, class_="version-number")
            drawn.append(element("svg", inner, x=share(place), y=0, overflow="visible"))
            free_from = place + ROOM_OF_A_NUMBER
    return drawn
