"""The charts: tidy frames in, matplotlib figures out, whichever of console, files and page shows them.

Names in frames may come from anywhere: they are written on one line, never read as a formula, cut where they are long.
Each frame has a row at least; whether there is something to draw is decided before. An ``arms`` argument gives the
order of the arms, so that each keeps its colour where another is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from harness.report.canvas import (
    EM,
    HEIGHT,
    INK,
    MUTED,
    PANEL,
    SHADE,
    SURFACE,
    TIMELINE,
    VERDICTS,
    WIDE,
    Key,
    Look,
    Size,
    arm_looks,
    cells,
    label,
    part_keys,
    part_look,
    part_order,
    place_axes,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MOST_POINTS = 240  # of one line; longer ones are averaged over as many neighbours as that takes
MOST_MARKERS = 12  # on one line
LOG_ABOVE = 20.0  # highest over lowest value
TINY = 1e-4  # of axes that end below, matplotlib would write a factor above, over the panel's title
CROSS: Look = {"marker": "X", "linestyle": "", "markersize": 9, "markeredgecolor": SURFACE}


@dataclass(frozen=True)
class Panel:
    """A panel of curves.

    Attributes:
        title: the panel's name in the frame.
        over: ``steps`` are whole and shared by the seeds: means are taken where x is the same. Seconds are not: the
            n-th values of the seeds are averaged, their times too.
        scale: ``zero``: from 0; ``wide``: logarithmic where the values span more than a factor of 20, else from 0.
        levels: dotted horizontal lines by their names.
        y_of: title of an earlier panel with the same y axis.
    """

    title: str
    y_label: str
    x_label: str = "training step"
    over: Literal["steps", "seconds"] = "steps"
    scale: Literal["free", "zero", "wide"] = "free"
    levels: dict[str, float] = field(default_factory=dict, hash=False)
    y_of: str | None = None


@styled
def curves(frame: pd.DataFrame, panels: Sequence[Panel], *, arms: Sequence[str] = (), marks: pd.DataFrame | None = None,
           title: str = "", columns: int = 2) -> Figure:  # fmt: skip
    """Draw one line for each arm: the mean over its seeds, and a band from the lowest to the highest of them.

    A line has a gap where no seed has a finite value. Panels of the same x label share their x axis.

    Args:
        frame: ``arm, seed, x, value, panel``, one row a point.
        marks: ``arm, panel, name, x, y`` of crosses in the colours of their arms.
    """
    names = list(arms) or _unique(frame, "arm")
    looks = arm_looks(names)
    seeds = frame.groupby("arm")["seed"].nunique()
    lines = dict(iter(frame.groupby(["panel", "arm"], sort=False)))
    keys = [
        Key(label(name) + (f" ({seeds[name]} runs)" if seeds.get(name, 0) > 1 else ""), looks[name])
        for name in (names if len(names) > 1 else [])
    ]
    levels = {name: None for panel in panels for name in panel.levels}
    keys += [Key(label(name), {"color": MUTED, "linestyle": ":"}) for name in levels]
    keys += [Key(label(name), CROSS | {"color": MUTED}) for name in (() if marks is None else _unique(marks, "name"))]
    figure, parts = cells(len(panels), (PANEL, HEIGHT), title=title, keys=keys, columns=columns)
    drawn: dict[str, Axes] = {}
    for panel, cell in zip(panels, parts, strict=True):
        rows = {name: lines[panel.title, name] for name in names if (panel.title, name) in lines}
        axes = drawn[panel.title] = _panel_axes(cell, panel.title, panel.y_label, panel.x_label)
        values = [value for own in rows.values() for value in own["value"] if isfinite(value)]
        for name, own in rows.items():
            _draw_line(axes, mean_line(own, panel.over), looks[name])
        for level in panel.levels.values():
            axes.axhline(level, color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
        for mark in () if marks is None else marks[marks["panel"] == panel.title].itertuples():
            axes.plot([mark.x], [mark.y], **CROSS, color=looks[mark.arm]["color"], clip_on=False, zorder=5)
        low, high = min(values), max(values)
        if panel.scale == "wide" and low > 0 and high / low > LOG_ABOVE:
            axes.set_yscale("log")
        elif panel.scale != "free":
            axes.set_ylim(min(0.0, low * 1.06), max(0.0, high * 1.06) or 1.0)
    _share(panels, drawn)
    for panel in panels:
        _set_ticks(drawn[panel.title], whole_x=panel.over == "steps")
    return figure


def mean_line(rows: pd.DataFrame, over: str) -> pd.DataFrame:
    """Return ``x, mean, low, high`` over the seeds of one arm, at most ``MOST_POINTS`` rows; NaN where a gap is."""
    import numpy as np

    rows = rows.assign(value=rows["value"].where(np.isfinite(rows["value"])))
    at = rows["x"] if over == "steps" else rows.groupby("seed").cumcount()
    groups = rows.groupby(at.to_numpy())
    line = groups["value"].agg(["mean", "min", "max"]).set_axis(["mean", "low", "high"], axis=1)
    line.insert(0, "x", groups["x"].mean())
    if len(line) > MOST_POINTS:
        line["x"] = line["x"].where(line["mean"].notna())
        line = line.groupby(np.arange(len(line)) // -(-len(line) // MOST_POINTS)).agg(
            {"x": "mean", "mean": "mean", "low": "min", "high": "max"}
        )
    return line


def _unique(frame: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(map(str, frame[column])))


def _panel_axes(cell: SubFigure, title: str, y_label: str, x_label: str, size: Size = (PANEL, HEIGHT)) -> Axes:
    """Return axes with a title and the y label above them, as wide as tick labels of six characters leave room for."""
    width, height = size
    axes = place_axes(cell, size, 0.62, 0.22, 0.5, 0.52)
    at: Look = {"x": 0.08 / width, "va": "top"}
    cell.text(y=1 - 0.06 / height, s=label(title, int(width / EM)), weight="bold", **at)
    cell.text(y=1 - 0.26 / height, s=label(y_label, int(width / EM)), color=MUTED, size=9.5, **at)
    axes.set_xlabel(label(x_label))
    return axes


def _draw_line(axes: Axes, line: pd.DataFrame, look: Look) -> None:
    if (line["low"] < line["high"]).any():
        axes.fill_between(line["x"], line["low"], line["high"], color=look["color"], alpha=0.13, linewidth=0)
    every = -(-len(line) // MOST_MARKERS)
    axes.plot(line["x"], line["mean"], **look, markersize=4.5, markevery=every, clip_on=False)


def _share(panels: Sequence[Panel], drawn: dict[str, Axes]) -> None:
    """Give panels of the same x label the same ends, and those that share it the same y axis."""
    for x_label in {panel.x_label for panel in panels}:
        group = [drawn[panel.title] for panel in panels if panel.x_label == x_label]
        low = min(axes.dataLim.x0 for axes in group)
        high = max(axes.dataLim.x1 for axes in group)
        room = 0.02 * (high - low) or 1.0
        for axes in group:
            axes.set_xlim(low - room, high + room)
    for panel in panels:
        if panel.y_of in drawn:
            both = drawn[panel.y_of], drawn[panel.title]
            ends = [end for axes in both for end in axes.get_ylim()]
            for axes in both:
                axes.set_ylim(min(ends), max(ends))


def _set_ticks(axes: Axes, whole_x: bool = False) -> None:
    """Have few ticks with few digits, and make room for them on the left."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    for axis, bins in ((axes.xaxis, 6), (axes.yaxis, 5)):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 30 else (1.0, 2.0, 5.0), numticks=6))
            axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_locator(MaxNLocator(bins, integer=whole_x and axis is axes.xaxis, steps=[1, 2, 2.5, 5, 10]))
        if axis.get_scale() == "log" or max(map(abs, axis.get_view_interval())) < TINY:
            axis.set_major_formatter(FuncFormatter(_tick_text))
    longest = max(map(len, axes.yaxis.get_major_formatter().format_ticks(list(axes.get_yticks()))), default=0)
    box, width = axes.get_position(), axes.get_window_extent().width / axes.figure.dpi
    left = max(0.5, EM * longest + 0.15) * box.width / width
    axes.set_position((left, box.y0, box.x1 - left, box.height))


def _tick_text(value: float, _: object) -> str:
    return f"{value:,.10g}".replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")


ROW, HEAD, GAP = 1.0, 0.95, 0.25
ROW_INCHES, LANE_INCHES = 0.27, 0.34
LONGEST_ROW = 24  # characters of a row's name


@dataclass(frozen=True)
class _Rows:
    """A cell with a row for each (arm, row), under the headings of the arms, and where each of both stands."""

    figure: Figure
    axes: Axes
    places: dict[tuple[str, str], float]
    heads: dict[str, float]


def _row_axes(frame: pd.DataFrame, row: str, texts: dict[tuple[str, str], str], x_label: str, *, title: str,
              keys: Sequence[Key], width: float = WIDE, row_inches: float = ROW_INCHES) -> _Rows:  # fmt: skip
    """Return axes with the names of the rows, a column of the frame, on the left, and texts on the right."""
    places, heads, y = dict[tuple[str, str], float](), dict[str, float](), -0.5
    for pair in dict.fromkeys(zip(frame["arm"].astype(str), frame[row].astype(str), strict=True)):
        if pair[0] not in heads:
            y += GAP if heads else 0.0
            heads[pair[0]] = y + HEAD / 2
            y += HEAD
        places[pair] = y + ROW / 2
        y += ROW
    names = [label(row, LONGEST_ROW) for _, row in places]
    left, right = (EM * max(map(len, shown), default=0) + 0.14 for shown in (names, texts.values()))
    height = row_inches * (y + 0.5) + 0.52
    figure, (cell,) = cells(1, (width, height), title=title, keys=keys)
    axes = place_axes(cell, (width, height), left + 0.04, max(0.3, right), 0.02, 0.5)
    axes.set_ylim(y, -0.5)
    axes.set_yticks(list(places.values()), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label(x_label, 80))
    for arm, head in heads.items():
        cell.text(0.06 / width, 1 - (0.02 + row_inches * (head + 0.5)) / height, label(arm, int(width / EM)),
                  va="center", weight="bold")  # fmt: skip
    for pair, text in texts.items():
        axes.annotate(label(text), (1.0, places[pair]), (7, 0), ("axes fraction", "data"), "offset points",
                      va="center", annotation_clip=False)  # fmt: skip
    return _Rows(figure, axes, places, heads)


WHISKER: Look = {"color": INK, "linewidth": 1.3, "marker": "|", "markersize": 7}


@styled
def bars(frame: pd.DataFrame, ends: pd.DataFrame | None = None, *, x_label: str, value: str = "seconds",
         whisker: str = "lowest to highest", title: str = "", limit: float | None = None) -> Figure:  # fmt: skip
    """Draw stacked bars: one for each row of each arm, work first, then waits, then unattributed time.

    Args:
        frame: ``arm, row, part`` and the value; parts that occur twice in a row are added.
        ends: ``arm, row, text`` and, NaN where there is none, ``low, high`` of a whisker and ``mark`` of a thick line.
        value: name of the column with lengths.
        whisker: what it reaches over.
        limit: end of the axis, such as 100 for percent.
    """
    parts = [part for part in _unique(frame, "part") if frame.loc[frame["part"] == part, value].gt(0).any()]
    keys, tips = part_keys(parts), [] if ends is None else list(ends.itertuples())
    if any(tip.low < tip.high for tip in tips):
        keys.append(Key(whisker, WHISKER))
    if any(tip.mark == tip.mark for tip in tips):
        keys.append(Key("wall-clock", {"color": INK, "linewidth": 2.4}))
    texts = {(tip.arm, tip.row): tip.text for tip in tips}
    rows = _row_axes(frame, "row", texts, x_label, title=title, keys=keys)
    lengths = frame.groupby(["arm", "row", "part"], sort=False)[value].sum().to_dict()
    reached = dict.fromkeys(rows.places, 0.0)
    for part in sorted(parts, key=part_order):
        pieces = {(arm, row): length for (arm, row, name), length in lengths.items() if name == part and length > 0}
        rows.axes.barh([rows.places[pair] for pair in pieces], list(pieces.values()), 0.72,
                       [reached[pair] for pair in pieces], **part_look(part), label=label(part),
                       clip_on=False)  # fmt: skip
        for pair, length in pieces.items():
            reached[pair] += length
    for tip in tips:
        y = rows.places[tip.arm, tip.row]
        if tip.low < tip.high:
            rows.axes.plot([tip.low, tip.high], [y, y], **WHISKER, clip_on=False)
        if tip.mark == tip.mark:
            rows.axes.plot([tip.mark, tip.mark], [y - 0.45, y + 0.45], color=INK, linewidth=2.4, clip_on=False)
    rows.axes.set_xlim(0, limit or rows.axes.dataLim.x1 * 1.02 or 1.0)
    return rows.figure


NARROWEST = 0.0012  # of the axis: work that is shorter is drawn as long as this, so that it can be seen
HALF_LANE, LANE_DOWN = 0.27, 0.14  # of a row: half of a lane's height, and how far it is below the middle
SHARE_OF_A_NUMBER = 0.04  # of the axis: a version that the next one follows faster is not written out


@styled
def timeline(spans: pd.DataFrame, changes: pd.DataFrame, windows: pd.DataFrame, *, title: str = "") -> Figure:
    """Draw what each lane did when, on one scale of seconds; weight stages stand above the generation they interrupt.

    Args:
        spans: ``arm, lane, stage, start_s, end_s``, cut to the window and counted from its start; lanes in the order of
            the work.
        changes: ``arm, lane, at_s, version`` of each change of the policy version; -1 is none.
        windows: ``arm, seconds, text``: length of the excerpt, and what it is.
    """
    keys = [*part_keys(_unique(spans, "stage")), Key("unattributed", part_look("unattributed"))]
    if len(changes):
        keys.append(Key("policy version now held", {"color": INK, "marker": "v", "linestyle": "", "markersize": 5}))
    rows = _row_axes(spans, "lane", {}, "seconds since the first of these steps began", title=title, keys=keys,
                     width=TIMELINE, row_inches=LANE_INCHES)  # fmt: skip
    axes = rows.axes
    axes.set_yticks([y + LANE_DOWN for y in rows.places.values()], [text.get_text() for text in axes.get_yticklabels()])
    longest = float(windows["seconds"].max())
    for arm, seconds, text in windows[["arm", "seconds", "text"]].itertuples(index=False):
        lanes = [y for pair, y in rows.places.items() if pair[0] == arm]
        if not lanes:
            continue
        middles = [y + LANE_DOWN for y in lanes]
        axes.barh(middles, seconds, 2 * HALF_LANE, facecolor=SURFACE, edgecolor=MUTED, linewidth=0.6, zorder=0.9)
        axes.annotate(label(text), (1.0, rows.heads[arm]), (0, 0), ("axes fraction", "data"), "offset points",
                      ha="right", va="center", color=MUTED, annotation_clip=False)  # fmt: skip
    for stage, own in spans.groupby("stage", sort=False):
        _draw_spans(axes, own, str(stage), rows, NARROWEST * longest)
    _mark_versions(axes, changes, rows, longest)
    axes.set_xlim(0, longest * 1.005)
    return rows.figure


def _draw_spans(axes: Axes, spans: pd.DataFrame, stage: str, rows: _Rows, narrowest: float) -> None:
    """Draw all spans of a stage as one path."""
    import numpy as np
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    waits = stage.startswith("wait_")
    start = spans["start_s"].to_numpy()
    end = np.maximum(spans["end_s"].to_numpy(), start + (0.0 if waits else narrowest))
    y = np.array([rows.places[str(arm), str(lane)] for arm, lane in zip(spans["arm"], spans["lane"], strict=True)])
    top, bottom = y + LANE_DOWN - HALF_LANE, y + LANE_DOWN + HALF_LANE
    corners = [(start, top), (end, top), (end, bottom), (start, bottom), (start, top)]
    vertices = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1).reshape(-1, 2)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(spans))
    depth = 1.0 if waits else 3.0 if stage.startswith("weight_") else 2.0
    axes.add_patch(PathPatch(Path(vertices, codes), **part_look(stage), zorder=depth, label=label(stage)))


def _mark_versions(axes: Axes, changes: pd.DataFrame, rows: _Rows, longest: float) -> None:
    """Mark each change with a triangle, and write the version beside it where there is room before the next."""
    for (arm, lane), own in changes.groupby(["arm", "lane"], sort=False):
        y = rows.places.get((str(arm), str(lane)))
        if y is None:
            continue
        axes.plot(own["at_s"], [y - 0.28] * len(own), "v", color=INK, markersize=5, zorder=4, clip_on=False)
        apart = own["at_s"].shift(-1, fill_value=float("inf")) - own["at_s"]
        for change in own[apart >= SHARE_OF_A_NUMBER * longest].itertuples():
            axes.annotate("none" if change.version < 0 else f"{change.version}", (change.at_s, y - 0.3), (5, 0),
                          textcoords="offset points", va="center", size=9, zorder=4)  # fmt: skip


ARROW: Look = {"linestyle": "", "markersize": 8}
RATIO_ENDS = (1.1, 1.25, 1.5, 2.0, 4.0)  # of the axis; ratios beyond the last end at the edge in an arrow
TICKS_APART = 5.5 * EM  # inches


@styled
def forest(frame: pd.DataFrame, *, x_label: str, title: str = "") -> Figure:
    """Draw ratios with their intervals on one logarithmic axis around 1, shaded where they are too small to matter.

    Args:
        frame: ``arm, row, value, low, high, verdict, threshold``: verdict is a key of ``VERDICTS``, threshold a share
            such as 0.03, low and high NaN where there is no interval.
    """
    import numpy as np

    texts = {(str(row.arm), str(row.row)): _ratio_text(row) for row in frame.itertuples()}
    verdicts = [word for word in VERDICTS if (frame["verdict"] == word).any()]
    keys = [Key(word, dict(zip(("color", "marker"), VERDICTS[word], strict=True))) for word in verdicts]
    keys.append(Key("too small to matter", {"facecolor": SHADE}))
    ends = frame[["value", "low", "high"]].to_numpy(float).ravel()
    ends = np.abs(np.log(ends[np.isfinite(ends) & (ends > 0)]))
    needed = max([*np.exp(ends), *(1 + 1.5 * frame["threshold"])])
    reach = next((end for end in RATIO_ENDS if end >= needed), RATIO_ENDS[-1])
    if ((frame[["value", "high"]] > reach).any(axis=1) | (frame[["value", "low"]] < 1 / reach).any(axis=1)).any():
        keys.append(Key("beyond the axis", ARROW | {"marker": ">", "color": MUTED}))
    rows = _row_axes(frame, "row", texts, x_label, title=title, keys=keys)
    axes = rows.axes
    places = [rows.places[str(arm), str(row)] for arm, row in zip(frame["arm"], frame["row"], strict=True)]
    axes.barh(places, 1 + frame["threshold"] - 1 / (1 + frame["threshold"]), 1.0, 1 / (1 + frame["threshold"]),
              facecolor=SHADE)  # fmt: skip
    axes.axvline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    for y, row in zip(places, frame.itertuples(), strict=True):
        color, marker = VERDICTS[row.verdict]
        value, low, high = np.clip([row.value, row.low, row.high], 1 / reach, reach)
        axes.plot([low, high], [y, y], color=color, linewidth=1.8, solid_capstyle="butt", clip_on=False)
        if value == row.value:
            axes.plot([value], [y], color=color, marker=marker, markersize=6, clip_on=False)
        for end, arrow, is_beyond in (
            (1 / reach, "<", min(row.value, row.low) < 1 / reach),
            (reach, ">", max(row.value, row.high) > reach),
        ):
            if is_beyond:
                axes.plot([end], [y], **ARROW, marker=arrow, color=color, clip_on=False)
    axes.set_xscale("log")
    axes.set_xlim(1 / reach, reach)
    has_room = axes.get_window_extent().width / rows.figure.dpi > 4 * TICKS_APART
    ticks = reach ** np.linspace(-1, 1, 5 if has_room and reach == RATIO_ENDS[-1] else 3)
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    return rows.figure


def _ratio_text(row: Any) -> str:
    if row.value != row.value:
        return "-"
    value, low, high = (f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}" for ratio in (row.value, row.low, row.high))
    return f"{value} [{low}, {high}]" if row.low == row.low else value


@styled
def scatter(frame: pd.DataFrame, *, x_label: str, y_label: str, arms: Sequence[str] = (), title: str = "") -> Figure:
    """Draw two figures of each arm against each other, with intervals where they are known.

    Args:
        frame: ``arm, x, y`` and, NaN where there is none, ``x_low, x_high, y_low, y_high``.
    """
    looks = arm_looks(list(arms) or _unique(frame, "arm"))
    keys = [Key(label(name), looks[name] | {"linestyle": ""}) for name in _unique(frame, "arm")]
    figure, (cell,) = cells(1, (PANEL, HEIGHT), title=title, keys=keys)
    axes = _panel_axes(cell, "", y_label, x_label)
    for row in frame.itertuples():
        look = looks[str(row.arm)]
        for xs, ys in (((row.x_low, row.x_high), (row.y, row.y)), ((row.x, row.x), (row.y_low, row.y_high))):
            axes.plot(xs, ys, color=look["color"], linewidth=1.2, clip_on=False)
        axes.plot([row.x], [row.y], **look, markersize=7, clip_on=False)
    axes.margins(0.08)
    _set_ticks(axes)
    return figure


@styled
def sizes(frame: pd.DataFrame, copies: pd.DataFrame, *, arms: Sequence[str] = (), title: str = "") -> Figure:
    """Draw milliseconds of a weight sync against the size of the weights, both logarithmic.

    Args:
        frame: ``panel, arm, megabytes, ms, low_ms, high_ms``; an arm is a transport.
        copies: ``panel, megabytes, ms`` of a plain copy in memory.
    """
    names, panels = list(arms) or _unique(frame, "arm"), _unique(frame, "panel")
    looks = arm_looks(names)
    plain: Look = {"color": MUTED, "linestyle": "--", "linewidth": 1.4}
    keys = [*(Key(label(name), looks[name]) for name in names), Key("plain copy in memory", plain)]
    figure, parts = cells(len(panels), (PANEL, HEIGHT), title=title, keys=keys, columns=2)
    lines = dict(iter(frame.groupby(["panel", "arm"], sort=False)))
    first: Axes | None = None
    for panel, cell in zip(panels, parts, strict=True):
        axes = _panel_axes(cell, panel, "milliseconds", "size of the weights, MB")
        for name in names:
            if (panel, name) in lines:
                own = lines[panel, name].sort_values("megabytes")
                reach = (own["ms"] - own["low_ms"], own["high_ms"] - own["ms"])
                axes.errorbar(own["megabytes"], own["ms"], reach, **looks[name], markersize=4.5, elinewidth=1.2)
        plainly = copies[copies["panel"] == panel].sort_values("megabytes")
        axes.plot(plainly["megabytes"], plainly["ms"], **plain)
        axes.set(xscale="log", yscale="log")
        if first is not None:
            axes.sharex(first)
            axes.sharey(first)
        first = first or axes
    for cell in parts:
        _set_ticks(cell.axes[0])
    return figure


LOG_FROM = 16  # ratio of the largest to the smallest number of a choice from which on it is drawn in powers of 2
CHOICES = (TIMELINE, 4.4)


@styled
def choices(frame: pd.DataFrame, takes: pd.DataFrame, *, names: Sequence[str] = (), x_label: str, y_label: str,
            heading: str = "", title: str = "") -> Figure:  # fmt: skip
    """Draw what each choice brings, with its interval: a line for each arm over numbers, points over names.

    Args:
        frame: ``arm, x, value, low, high, is_extrapolated``; of names, x is the place among ``names``.
        takes: ``arm, x, value, text``: the choice that is marked.
        heading: stands above the axes.
    """
    import numpy as np

    arms = _unique(frame, "arm")
    looks = arm_looks(arms)
    keys = [Key(label(arm), looks[arm]) for arm in arms if arm]
    keys.append(Key("90% interval", {"facecolor": SHADE}))
    hollow: Look = {"markerfacecolor": "white", "linestyle": ""}
    if frame["is_extrapolated"].any():
        keys.append(Key("EXTRAPOLATING", {"color": MUTED, "marker": "o"} | hollow))
    figure, (cell,) = cells(1, CHOICES, title=title, keys=keys)
    axes = _panel_axes(cell, heading, y_label, x_label, CHOICES)
    for place, (arm, own) in enumerate(frame.sort_values("x", kind="stable").groupby("arm", sort=False)):
        look, x = looks[str(arm)], own["x"]
        if names:
            x = x + (place - (len(arms) - 1) / 2) * 0.12
            reach = (own["value"] - own["low"], own["high"] - own["value"])
            axes.errorbar(x, own["value"], reach, color=look["color"], linestyle="", capsize=3)
        else:
            axes.plot(x, own["value"], color=look["color"])
            axes.fill_between(x, own["low"], own["high"], color=look["color"], alpha=0.13, linewidth=0)
        for outside, more in ((False, {"linestyle": ""}), (True, hollow)):
            shown = own["is_extrapolated"] == outside
            axes.plot(x[shown], own["value"][shown], **look | more, markersize=5)
    for take in takes.itertuples():
        color = looks[str(take.arm)]["color"]
        if not names:
            axes.axvline(take.x, color=color, linewidth=1.0, linestyle=":")
        axes.annotate(label(take.text), (take.x, take.value), (8, -16), textcoords="offset points", color=color,
                      weight="bold", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7})  # fmt: skip
    axes.set_ylim(bottom=0)
    low, high = frame["x"].min(), frame["x"].max()
    _set_ticks(axes, whole_x=bool((frame["x"] % 1 == 0).all()))
    if names:
        axes.set_xticks(range(len(names)), list(map(label, names)))
        axes.set_xlim(-0.6, len(names) - 0.4)
    elif low > 0 and high / low >= LOG_FROM:
        axes.set_xscale("log", base=2)
        ticks = 2.0 ** np.arange(np.ceil(np.log2(low)), np.log2(high) + 1e-9)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    return figure


MOST_NUMBERS = 9  # bars with their percentages above them
LAG_INCHES = 1.75


@styled
def lags(frame: pd.DataFrame, *, arms: Sequence[str] = (), title: str = "") -> Figure:
    """Draw how old the rollouts were that each arm trained on: a histogram of lag in policy versions, as shares.

    Args:
        frame: ``arm, lag, rollouts``.
    """
    import seaborn as sns

    names = _unique(frame, "arm")
    looks = arm_looks(list(arms) or names)
    size = (PANEL, LAG_INCHES)
    figure, parts = cells(len(names), size, title=title, keys=[], columns=2)
    highest = int(frame["lag"].max())
    for (name, own), cell in zip(frame.groupby("arm", sort=False), parts, strict=True):
        axes = place_axes(cell, size, 0.6, 0.15, 0.32, 0.5)
        mean = (own["lag"] * own["rollouts"]).sum() / own["rollouts"].sum()
        heading = f"{label(name, int(PANEL / EM) - 12)}: mean {mean:.2g}"
        cell.text(0.08 / PANEL, 1 - 0.06 / LAG_INCHES, heading, weight="bold", va="top")
        sns.histplot(own, x="lag", weights="rollouts", discrete=True, stat="probability", shrink=0.8, ax=axes,
                     color=looks[name]["color"], alpha=1.0, linewidth=0)  # fmt: skip
        if highest < MOST_NUMBERS:
            columns: Any = axes.patches
            for bar in columns:
                if share := bar.get_height():
                    at = (bar.get_x() + bar.get_width() / 2, share)
                    axes.annotate(f"{share:.0%}" if share >= 0.01 else "<1%", at, (0, 2), textcoords="offset points",
                                  ha="center", size=9.5)  # fmt: skip
        axes.set(xlim=(-0.6, highest + 0.6), ylim=(0.0, 1.2), ylabel="", xlabel="lag, in policy versions")
        axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
        axes.locator_params(axis="x", integer=True)
        axes.grid(visible=False, axis="x")
    return figure
