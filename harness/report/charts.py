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
    arm_looks,
    cells,
    part_keys,
    part_look,
    part_order,
    place_axes,
    styled,
)
from harness.report.style import label

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MOST_POINTS = 240  # of one line; longer ones are averaged over as many neighbours as that takes
MOST_MARKERS = 12  # on one line
LOG_ABOVE = 20.0  # highest over lowest value
HEIGHT = 2.75  # of a panel, inches


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
        marks: ``arm, panel, name, x, y``: a cross, or where y is NaN an upright dashed line, in the colour of the arm;
            dotted where the arm is none of ``arms``.
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
    if marks is not None:
        crosses = dict(zip(marks["name"], marks["y"].notna(), strict=True))
        keys += [Key(label(name), _mark_look(MUTED, cross)) for name, cross in crosses.items()]
    figure, parts = cells([HEIGHT] * len(panels), width=PANEL, title=title, keys=keys, columns=columns)
    drawn: dict[str, Axes] = {}
    for panel, cell in zip(panels, parts, strict=True):
        rows = {name: lines[panel.title, name] for name in names if (panel.title, name) in lines}
        axes = drawn[panel.title] = _panel_axes(cell, panel.title, panel.y_label, panel.x_label)
        values = [value for own in rows.values() for value in own["value"] if isfinite(value)]
        if not values:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=MUTED)
            axes.set(xticks=[], yticks=[])
            continue
        for name, own in rows.items():
            _draw_line(axes, mean_line(own, panel.over), looks[name])
        for level in panel.levels.values():
            axes.axhline(level, color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
        if marks is not None:
            _draw_marks(axes, marks[(marks["panel"] == panel.title) & marks["x"].notna()], looks)
        _set_scale(axes, panel, min(values), max(values))
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


def _panel_axes(cell: SubFigure, title: str, y_label: str, x_label: str) -> Axes:
    """Return axes with a title and the y label above them, as wide as tick labels of six characters leave room for."""
    axes = place_axes(cell, (PANEL, HEIGHT), 0.62, 0.22, 0.5, 0.52)
    at: Look = {"x": 0.08 / PANEL, "va": "top"}
    cell.text(y=1 - 0.06 / HEIGHT, s=label(title, int(PANEL / EM)), weight="bold", **at)
    cell.text(y=1 - 0.26 / HEIGHT, s=label(y_label, int(PANEL / EM)), color=MUTED, size=9.5, **at)
    axes.set_xlabel(label(x_label))
    return axes


def _draw_line(axes: Axes, line: pd.DataFrame, look: Look) -> None:
    if (line["low"] < line["high"]).any():
        axes.fill_between(line["x"], line["low"], line["high"], color=look["color"], alpha=0.13, linewidth=0)
    every = -(-len(line) // MOST_MARKERS)
    axes.plot(line["x"], line["mean"], **look, markersize=4.5, markevery=every, clip_on=False)


def _mark_look(color: str, cross: bool) -> Look:
    if cross:
        return {"color": color, "marker": "X", "linestyle": "", "markersize": 9, "markeredgecolor": SURFACE}
    return {"color": color, "linestyle": "--", "linewidth": 1.2}


def _draw_marks(axes: Axes, marks: pd.DataFrame, looks: dict[str, Look]) -> None:
    for mark in marks.itertuples():
        look = _mark_look(looks.get(mark.arm, {"color": MUTED})["color"], mark.y == mark.y)
        if mark.y == mark.y:
            axes.plot([mark.x], [mark.y], **look, clip_on=False, zorder=5)
        else:
            axes.axvline(mark.x, **look | ({} if mark.arm in looks else {"linestyle": ":"}), zorder=1)


def _set_scale(axes: Axes, panel: Panel, low: float, high: float) -> None:
    if panel.scale == "wide" and low > 0 and high / low > LOG_ABOVE:
        axes.set_yscale("log")
    elif panel.scale != "free":
        axes.set_ylim(min(0.0, low * 1.06), max(0.0, high * 1.06) or 1.0)


def _share(panels: Sequence[Panel], drawn: dict[str, Axes]) -> None:
    """Give panels of the same x label the same ends, and those that share it the same y axis."""
    full = [panel for panel in panels if drawn[panel.title].lines]
    for x_label in {panel.x_label for panel in full}:
        group = [drawn[panel.title] for panel in full if panel.x_label == x_label]
        low = min(axes.dataLim.x0 for axes in group)
        high = max(axes.dataLim.x1 for axes in group)
        room = 0.02 * (high - low) or 1.0
        for axes in group:
            axes.set_xlim(low - room, high + room)
    for panel in full:
        if panel.y_of is not None and drawn[panel.y_of].lines:
            ends = [*drawn[panel.y_of].get_ylim(), *drawn[panel.title].get_ylim()]
            for title in (panel.y_of, panel.title):
                drawn[title].set_ylim(min(ends), max(ends))


def _set_ticks(axes: Axes, whole_x: bool = False) -> None:
    """Have few ticks with few digits, and make room for them on the left."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if not axes.lines:
        return
    for axis, bins in ((axes.xaxis, 6), (axes.yaxis, 5)):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 30 else (1.0, 2.0, 5.0), numticks=6))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("e-0", "e-")))
        else:
            axis.set_major_locator(MaxNLocator(bins, integer=whole_x and axis is axes.xaxis, steps=[1, 2, 2.5, 5, 10]))
    longest = max(map(len, axes.yaxis.get_major_formatter().format_ticks(list(axes.get_yticks()))), default=0)
    box, size = axes.get_position(), EM * longest + 0.1
    left = max(0.5, size) / PANEL
    axes.set_position((left, box.y0, box.x1 - left, box.height))


ROW, HEAD, GAP = 1.0, 0.95, 0.25
ROW_INCHES, LANE_INCHES = 0.27, 0.34
LONGEST_ROW = 20  # characters of a row's name


@dataclass(frozen=True)
class _Rows:
    """Where rows stand under the headings of their arms: y of each (arm, row), of each heading, and the lowest."""

    places: dict[tuple[str, str], float]
    heads: dict[str, float]
    end: float


def _rows(pairs: Sequence[tuple[str, str]]) -> _Rows:
    places, heads, y = dict[tuple[str, str], float](), dict[str, float](), -0.5
    for arm, row in dict.fromkeys(sorted(pairs, key=lambda pair: [arm for arm, _ in pairs].index(pair[0]))):
        if arm not in heads:
            y += GAP if heads else 0.0
            heads[arm] = y + HEAD / 2
            y += HEAD
        places[arm, row] = y + ROW / 2
        y += ROW
    return _Rows(places, heads, y)


def _row_axes(rows: _Rows, ends: Sequence[str], x_label: str, *, title: str, keys: Sequence[Key], width: float = WIDE,
              row_inches: float = ROW_INCHES) -> tuple[Figure, Axes]:  # fmt: skip
    """Return axes with room for the names of the rows on the left and for ``ends`` on the right."""
    names = [label(row, LONGEST_ROW) for _, row in rows.places]
    margins = [EM * max(map(len, texts), default=0) + 0.14 for texts in (names, ends)]
    height = row_inches * (rows.end + 0.5) + 0.52
    figure, (cell,) = cells([height], width=width, title=title, keys=keys)
    axes = place_axes(cell, (width, height), margins[0] + 0.04, max(0.2, margins[1]), 0.02, 0.5)
    axes.set_ylim(rows.end, -0.5)
    axes.set_yticks(list(rows.places.values()), names)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label(x_label, 80))
    for arm, y in rows.heads.items():
        cell.text(0.06 / width, 1 - (0.02 + row_inches * (y + 0.5)) / height, label(arm, int(width / EM)), va="center",
                  weight="bold")  # fmt: skip
    return figure, axes


def _write_ends(axes: Axes, rows: _Rows, texts: dict[tuple[str, str], str]) -> None:
    for pair, text in texts.items():
        axes.annotate(label(text), (1.0, rows.places[pair]), (7, 0), ("axes fraction", "data"), "offset points",
                      va="center", annotation_clip=False)  # fmt: skip


@styled
def bars(frame: pd.DataFrame, ends: pd.DataFrame | None = None, *, x_label: str, value: str = "seconds",
         title: str = "", limit: float | None = None) -> Figure:  # fmt: skip
    """Draw stacked bars: one for each row of each arm, work first, then waits, then time in no stage.

    Args:
        frame: ``arm, row, part`` and the value; parts that occur twice in a row are added.
        ends: ``arm, row, text`` and, NaN where there is none, ``low, high`` of a whisker and ``mark`` of a thick line.
        value: name of the column with lengths.
        limit: end of the axis, such as 100 for percent.
    """
    pairs = list(zip(frame["arm"].astype(str), frame["row"].astype(str), strict=True))
    rows = _rows(pairs)
    parts = [part for part in _unique(frame, "part") if frame.loc[frame["part"] == part, value].gt(0).any()]
    keys = part_keys(parts)
    texts = {} if ends is None else {(row.arm, row.row): row.text for row in ends.itertuples()}
    if ends is not None and (ends["low"] < ends["high"]).any():
        keys.append(Key("lowest to highest", {"color": INK, "linewidth": 1.3, "marker": "|", "markersize": 7}))
    if ends is not None and ends["mark"].notna().any():
        keys.append(Key("wall-clock", {"color": INK, "linewidth": 2.4}))
    figure, axes = _row_axes(rows, list(texts.values()), x_label, title=title, keys=keys)
    lengths = frame.groupby(["arm", "row", "part"], sort=False)[value].sum().to_dict()
    reached = dict.fromkeys(rows.places, 0.0)
    for part in sorted(parts, key=part_order):
        pieces = [((arm, row), length) for (arm, row, name), length in lengths.items() if name == part and length > 0]
        axes.barh([rows.places[pair] for pair, _ in pieces], [length for _, length in pieces], 0.72,
                  [reached[pair] for pair, _ in pieces], **part_look(part), label=label(part),
                  clip_on=False)  # fmt: skip
        for pair, length in pieces:
            reached[pair] += length
    _write_ends(axes, rows, texts)
    for end in () if ends is None else ends.itertuples():
        y = rows.places[end.arm, end.row]
        if end.low < end.high:
            axes.plot([end.low, end.high], [y, y], color=INK, linewidth=1.3, marker="|", markersize=7, clip_on=False)
        if end.mark == end.mark:
            axes.plot([end.mark, end.mark], [y - 0.45, y + 0.45], color=INK, linewidth=2.4, clip_on=False)
    axes.set_xlim(0, limit or axes.dataLim.x1 * 1.02 or 1.0)
    return figure


NARROWEST = 0.0012  # of the axis: work that is shorter is drawn as long as this, so that it can be seen
HALF_LANE, LANE_DOWN = (
    0.27,
    0.14,
)  # of a row: half of a lane's height, and how far below the middle it is, for the versions
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
    pairs = list(zip(spans["arm"].astype(str), spans["lane"].astype(str), strict=True))
    rows = _rows(list(dict.fromkeys(pairs)))
    keys = [*part_keys(_unique(spans, "stage")), Key("no stage, no wait", part_look("no stage"))]
    if len(changes):
        keys.append(Key("policy version now held", {"color": INK, "marker": "v", "linestyle": "", "markersize": 5}))
    figure, axes = _row_axes(rows, [], "seconds since the first of these steps began", title=title, keys=keys,
                             width=TIMELINE, row_inches=LANE_INCHES)  # fmt: skip
    axes.set_yticks([y + LANE_DOWN for y in rows.places.values()], [text.get_text() for text in axes.get_yticklabels()])
    longest = float(windows["seconds"].max())
    for arm, seconds, text in windows[["arm", "seconds", "text"]].itertuples(index=False):
        lanes = [y for pair, y in rows.places.items() if pair[0] == arm]
        if not lanes:
            continue
        axes.barh(
            [y + LANE_DOWN for y in lanes],
            seconds,
            2 * HALF_LANE,
            facecolor=SURFACE,
            edgecolor=MUTED,
            linewidth=0.6,
            zorder=0.9,
        )
        axes.annotate(label(text), (1.0, rows.heads[arm]), (0, 0), ("axes fraction", "data"), "offset points",
                      ha="right", va="center", color=MUTED, annotation_clip=False)  # fmt: skip
    for stage, own in spans.groupby("stage", sort=False):
        _draw_spans(axes, own, str(stage), rows, NARROWEST * longest)
    _mark_versions(axes, changes, rows, longest)
    axes.set_xlim(0, longest * 1.005)
    return figure


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


WIDEST, NARROWEST_RATIO = 4.0, 1.1  # ratios beyond the first, or below its inverse, end at the plot's edge
RATIO_TICKS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
TICKS_APART = 0.2  # of the axis


@styled
def forest(frame: pd.DataFrame, *, x_label: str, title: str = "") -> Figure:
    """Draw ratios with their intervals on one logarithmic axis around 1, shaded where they are too small to matter.

    Args:
        frame: ``arm, row, value, low, high, verdict, threshold``: verdict is a key of ``VERDICTS``, threshold a share
            such as 0.03, low and high NaN where there is no interval. ``text`` stands beside the row; without that
            column it is the ratio with its interval.
    """
    import numpy as np

    rows = _rows(list(zip(frame["arm"].astype(str), frame["row"].astype(str), strict=True)))
    texts = {(str(row.arm), str(row.row)): row.text if "text" in frame else _ratio_text(row)
             for row in frame.itertuples()}  # fmt: skip
    verdicts = [word for word in VERDICTS if (frame["verdict"] == word).any()]
    keys = [Key(word, dict(zip(("color", "marker"), VERDICTS[word], strict=True))) for word in verdicts]
    keys.append(Key("too small to matter", {"facecolor": SHADE}))
    figure, axes = _row_axes(rows, list(texts.values()), x_label, title=title, keys=keys)
    ends = frame[["value", "low", "high"]].to_numpy(float).ravel()
    ends = np.abs(np.log(ends[np.isfinite(ends) & (ends > 0)]))
    reach = max([NARROWEST_RATIO, *np.exp(ends), *(1 + 1.5 * frame["threshold"])])
    reach = min(WIDEST, 1.02 * reach)
    places = [rows.places[str(arm), str(row)] for arm, row in zip(frame["arm"], frame["row"], strict=True)]
    axes.barh(places, 1 + frame["threshold"] - 1 / (1 + frame["threshold"]), 1.0, 1 / (1 + frame["threshold"]),
              facecolor=SHADE)  # fmt: skip
    axes.axvline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    for y, row in zip(places, frame.itertuples(), strict=True):
        color, marker = VERDICTS[row.verdict]
        value, low, high = np.clip([row.value, row.low, row.high], 1 / reach, reach)
        axes.plot([low, high], [y, y], color=color, linewidth=1.8, solid_capstyle="butt", clip_on=False)
        axes.plot([value], [y], color=color, marker=marker, markersize=6, clip_on=False)
    _write_ends(axes, rows, texts)
    axes.set_xscale("log")
    axes.set_xlim(1 / reach, reach)
    ticks = [1.0]
    for tick in sorted(RATIO_TICKS, key=lambda tick: -abs(np.log(tick))):  # the outer ones first
        apart = min(abs(np.log(tick / other)) for other in ticks) / (2 * np.log(reach))
        if 1 / reach <= tick <= reach and apart >= TICKS_APART:
            ticks.append(tick)
    axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)], minor=False)
    axes.xaxis.set_minor_locator(_no_ticks())
    return figure


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _ratio_text(row: Any) -> str:
    if row.value != row.value:
        return "-"
    interval = f" [{row.low:.2f}, {row.high:.2f}]" if row.low == row.low else ""
    return f"{row.value:.2f}{interval}"


@styled
def scatter(frame: pd.DataFrame, *, x_label: str, y_label: str, arms: Sequence[str] = (), title: str = "") -> Figure:
    """Draw two figures of each arm against each other, with intervals where they are known.

    Args:
        frame: ``arm, x, y`` and, NaN where there is none, ``x_low, x_high, y_low, y_high``.
    """
    looks = arm_looks(list(arms) or _unique(frame, "arm"))
    keys = [Key(label(name), looks[name] | {"linestyle": ""}) for name in _unique(frame, "arm")]
    figure, (cell,) = cells([HEIGHT], width=PANEL, title=title, keys=keys)
    axes = _panel_axes(cell, "", "", x_label)
    cell.texts[1].set_text(label(y_label))
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
    figure, parts = cells([HEIGHT] * len(panels), width=PANEL, title=title, keys=keys, columns=2)
    lines = dict(iter(frame.groupby(["panel", "arm"], sort=False)))
    drawn: list[Axes] = []
    for panel, cell in zip(panels, parts, strict=True):
        drawn.append(_panel_axes(cell, panel, "milliseconds", "size of the weights, MB"))
        for name in names:
            if (panel, name) in lines:
                own = lines[panel, name].sort_values("megabytes")
                reach = (own["ms"] - own["low_ms"], own["high_ms"] - own["ms"])
                drawn[-1].errorbar(own["megabytes"], own["ms"], reach, **looks[name], markersize=4.5, elinewidth=1.2)
        plainly = copies[copies["panel"] == panel].sort_values("megabytes")
        drawn[-1].plot(plainly["megabytes"], plainly["ms"], **plain)
        drawn[-1].set(xscale="log", yscale="log")
    limits = [(*axes.get_xlim(), *axes.get_ylim()) for axes in drawn]
    for axes in drawn:
        axes.set_xlim(min(limit[0] for limit in limits), max(limit[1] for limit in limits))
        axes.set_ylim(min(limit[2] for limit in limits), max(limit[3] for limit in limits))
        _set_ticks(axes)
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
    figure, parts = cells([LAG_INCHES] * len(names), width=PANEL, title=title, keys=[], columns=2)
    highest = int(frame["lag"].max())
    for (name, own), cell in zip(frame.groupby("arm", sort=False), parts, strict=True):
        axes = place_axes(cell, (PANEL, LAG_INCHES), 0.6, 0.15, 0.32, 0.5)
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
