"""The charts: rows of numbers in, matplotlib figures out, whichever of console, files and page shows them.

Names may come from anywhere: they are written on one line, never read as a formula, cut where they are long. There is a
row at least; whether there is something to draw is decided before. An ``arms`` argument gives the order of the arms, so
that each keeps its colour where another is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
    Look,
    Size,
    arm_looks,
    cells,
    label,
    part_keys,
    part_look,
    part_order,
    picture_style,
    place_axes,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

SECONDS = "seconds of the loop"
MOST_POINTS = 240  # of one line; longer ones are averaged over as many neighbours as that takes
MOST_MARKERS = 12  # on one line
LOG_ABOVE = 20.0  # highest over lowest value
TINY = 1e-4  # of axes that end below, matplotlib would write a factor above, over the panel's title
CROSS: Look = {"marker": "X", "linestyle": "", "markersize": 9, "markeredgecolor": SURFACE}
NOWHERE = float("nan")


@dataclass(frozen=True)
class Panel:
    """A panel of curves, under its name in the frame.

    Attributes:
        x_label: over ``SECONDS``, the n-th values of the seeds are averaged and their times too; over all else, which
            is whole, the values at the same x.
        scale: ``free`` panels of the same y label share their y axis; ``zero`` begins at 0; ``wide`` is logarithmic
            where the values span more than a factor of 20, else from 0.
        levels: dotted horizontal lines by their names.
    """

    title: str
    y_label: str
    x_label: str = "training step"
    scale: Literal["free", "zero", "wide"] = "free"
    levels: Mapping[str, float] = field(default_factory=dict)


@picture_style()
def curves(frame: pd.DataFrame, panels: Sequence[Panel], *, arms: Sequence[str] = (), title: str = "", columns: int = 2,
           diverged: Sequence[tuple[str, float]] = ()) -> Figure:  # fmt: skip
    """Draw one line for each arm: the mean over its seeds, and a band from the lowest to the highest of them.

    A line has a gap where no seed has a finite value. Panels of the same x label share their x axis.

    Args:
        frame: ``arm, seed, x, value, panel``, one row a point.
        diverged: arms and the steps of their crosses on the first panel.
    """
    names = list(arms) or _unique(frame, "arm")
    looks, seeds = arm_looks(names), frame.groupby("arm")["seed"].nunique()
    keys = {label(name) + (f" ({seeds[name]} runs)" if seeds.get(name, 0) > 1 else ""): looks[name] for name in names}
    keys = keys if len(names) > 1 else {}
    keys |= {label(name): {"color": MUTED, "linestyle": ":"} for panel in panels for name in panel.levels}
    keys |= {"diverged": CROSS | {"color": MUTED}} if diverged else {}
    figure, parts = cells(len(panels), (PANEL, HEIGHT), title=title, keys=keys, columns=columns)
    lines = dict(iter(frame.groupby(["panel", "arm"], sort=False)))
    with_x: dict[str, Axes] = {}
    with_y: dict[str, Axes] = {}
    for panel, cell in zip(panels, parts, strict=True):
        shared = {"sharex": with_x.get(panel.x_label), "sharey": with_y.get(panel.y_label)}
        axes = _panel_axes(cell, panel.title, panel.y_label, panel.x_label, shared=shared)
        with_x.setdefault(panel.x_label, axes)
        if panel.scale == "free":
            with_y.setdefault(panel.y_label, axes)
        for name in names:
            if (panel.title, name) in lines:
                line, look = mean_line(lines[panel.title, name], panel.x_label), looks[name]
                if (line["low"] < line["high"]).any():
                    band = Look(color=look["color"], alpha=0.13, linewidth=0)
                    axes.fill_between(line["x"], line["low"], line["high"], **band)
                every = -(-len(line) // MOST_MARKERS)
                axes.plot(line["x"], line["mean"], **look, markersize=4.5, markevery=every, clip_on=False)
        for level in panel.levels.values():
            axes.axhline(level, color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
        for arm, step in diverged if panel is panels[0] else ():
            axes.plot([step], [0.0], **CROSS, color=looks[arm]["color"], clip_on=False, zorder=5)
        low, high = axes.dataLim.intervaly
        if panel.scale == "wide" and low > 0 and high / low > LOG_ABOVE:
            axes.set_yscale("log")
        elif panel.scale != "free":
            axes.set_ylim(min(0.0, low * 1.06), max(0.0, high * 1.06) or 1.0)
    for panel, cell in zip(panels, parts, strict=True):
        _set_ticks(cell.axes[0], whole_x=panel.x_label != SECONDS)
    return figure


def mean_line(rows: pd.DataFrame, x_label: str) -> pd.DataFrame:
    """Return ``x, mean, low, high`` over the seeds of one arm, at most ``MOST_POINTS`` rows; NaN where a gap is."""
    import numpy as np

    at = rows.groupby("seed").cumcount() if x_label == SECONDS else rows["x"]
    rows = rows.assign(value=rows["value"].where(np.isfinite(rows["value"])), at=at)
    value = "value"
    line = rows.groupby("at").agg(x=("x", "mean"), mean=(value, "mean"), low=(value, "min"), high=(value, "max"))
    if len(line) > MOST_POINTS:
        line["x"] = line["x"].where(line["mean"].notna())
        bins = np.arange(len(line)) // -(-len(line) // MOST_POINTS)
        line = line.groupby(bins).agg({"x": "mean", "mean": "mean", "low": "min", "high": "max"})
    return line


Rows = Sequence[tuple[Any, ...]]


def _frame(rows: Rows, columns: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=columns.split())


def _unique(frame: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(map(str, frame[column])))


def _panel_axes(cell: SubFigure, title: str, y_label: str, x_label: str, size: Size = (PANEL, HEIGHT),
                shared: Mapping[str, Any] | None = None) -> Axes:  # fmt: skip
    """Return axes with a title and the y label above them, as wide as tick labels of six characters leave room for."""
    width, height = size
    axes = place_axes(cell, size, 0.62, 0.22, 0.5, 0.52, shared)
    at: Look = {"x": 0.08 / width, "va": "top"}
    cell.text(y=1 - 0.06 / height, s=label(title, int(width / EM)), weight="bold", **at)
    cell.text(y=1 - 0.26 / height, s=label(y_label, int(width / EM)), color=MUTED, size=9.5, **at)
    axes.set_xlabel(label(x_label))
    return axes


def _set_ticks(axes: Axes, whole_x: bool = False) -> None:
    """Have few ticks with few digits, and make room for them on the left."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if whole_x and len(set(map(round, axes.get_xlim()))) < 2:  # a single step
        axes.set_xlim(*(round(axes.get_xlim()[0]) + side for side in (-1, 1)))
    for axis, bins in ((axes.xaxis, 6), (axes.yaxis, 5)):
        low, high = axis.get_view_interval()
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 30 else (1.0, 2.0, 5.0), numticks=6))
            axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_locator(MaxNLocator(bins, integer=whole_x and axis is axes.xaxis, steps=[1, 2, 2.5, 5, 10]))
        if axis.get_scale() == "log" or max(abs(low), abs(high)) < TINY:
            axis.set_major_formatter(FuncFormatter(_tick_text))
    longest = max(map(len, axes.yaxis.get_major_formatter().format_ticks(list(axes.get_yticks()))), default=0)
    box, width = axes.get_position(), axes.get_window_extent().width / axes.figure.dpi
    left = max(0.5, EM * longest + 0.15) * box.width / width
    axes.set_position((left, box.y0, box.x1 - left, box.height))


def _tick_text(value: float, _: object) -> str:
    return f"{value:,.10g}".replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")


Places = dict[tuple[str, str], float]
ROW, HEAD, GAP = 1.0, 0.95, 0.25
LONGEST_ROW = 24  # characters of a row's name


def _row_axes(texts: Mapping[tuple[str, str], str], x_label: str, *, title: str, keys: Mapping[str, Look],
              width: float = WIDE, row_inches: float = 0.27, heads: Mapping[str, str] | None = None
              ) -> tuple[Figure, Axes, Places]:  # fmt: skip
    """Return a figure, its axes with a row for each (arm, row) under the headings of the arms, and where each row is.

    Args:
        texts: stand to the right of the rows.
        heads: stand at the right end of the headings.
    """
    places, at_heads, y = Places(), dict[str, float](), -0.5
    for arm, row in texts:
        if arm not in at_heads:
            y += GAP if at_heads else 0.0
            at_heads[arm] = y + HEAD / 2
            y += HEAD
        places[arm, row] = y + ROW / 2
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
    beside: Look = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    for arm, head in at_heads.items():
        at = 1 - (0.02 + row_inches * (head + 0.5)) / height
        cell.text(0.06 / width, at, label(arm, int(width / EM)), va="center", weight="bold")
        if heads:
            axes.annotate(label(heads[arm]), (1.0, head), (0, 0), **beside, ha="right", color=MUTED)
    for pair, text in texts.items():
        if text:
            axes.annotate(label(text), (1.0, places[pair]), (7, 0), **beside)
    return figure, axes, places


class Bar(NamedTuple):
    """A stacked bar of an arm: lengths by part, what stands at its end, a whisker, and where a thick line stands."""

    arm: str
    row: str
    parts: Mapping[str, float]
    text: str = ""
    low: float = NOWHERE
    high: float = NOWHERE
    mark: float = NOWHERE


WHISKER: Look = {"color": INK, "linewidth": 1.3, "marker": "|", "markersize": 7}
THICK: Look = {"color": INK, "linewidth": 2.4}


@picture_style()
def bars(rows: Sequence[Bar], *, x_label: str, whisker: str = "lowest to highest", title: str = "",
         limit: float | None = None) -> Figure:  # fmt: skip
    """Draw stacked bars: work first, then waits, then unattributed time.

    Args:
        whisker: what it reaches over.
        limit: end of the axis, such as 100 for percent.
    """
    import numpy as np

    parts = sorted({part for row in rows for part, length in row.parts.items() if length > 0}, key=part_order)
    keys = part_keys(parts)
    keys |= {whisker: WHISKER} if any(row.low < row.high for row in rows) else {}
    keys |= {"wall-clock": THICK} if any(row.mark == row.mark for row in rows) else {}
    texts = {(row.arm, row.row): row.text for row in rows}
    figure, axes, places = _row_axes(texts, x_label, title=title, keys=keys)
    at, reached = np.array([places[row.arm, row.row] for row in rows]), np.zeros(len(rows))
    for part in parts:
        lengths = np.array([row.parts.get(part, 0.0) for row in rows])
        own = lengths > 0
        axes.barh(at[own], lengths[own], 0.72, reached[own], **part_look(part), label=label(part), clip_on=False)
        reached += lengths
    for row, y in zip(rows, at, strict=True):
        if row.low < row.high:
            axes.plot([row.low, row.high], [y, y], **WHISKER, clip_on=False)
        if row.mark == row.mark:
            axes.plot([row.mark, row.mark], [y - 0.45, y + 0.45], **THICK, clip_on=False)
    axes.set_xlim(0, limit or axes.dataLim.x1 * 1.02 or 1.0)
    return figure


NARROWEST = 0.0012  # of the axis: work that is shorter is drawn as long as this, so that it can be seen
HALF_LANE, LANE_DOWN = 0.27, 0.14  # of a row: half of a lane's height, and how far it is below the middle
SHARE_OF_A_NUMBER = 0.04  # of the axis: a version that the next one follows faster is not written out


@picture_style()
def timeline(rows: Rows, version_changes: Rows, windows: Mapping[str, tuple[float, str]], *, title: str = "") -> Figure:
    """Draw what each lane did when, on one scale of seconds; weight stages stand above the generation they interrupt.

    Args:
        rows: arm, lane, stage, start and end of a span in seconds, cut to the window and counted from its start; lanes
            in the order of the work.
        version_changes: arm, lane, seconds, and the version now held; -1 is none.
        windows: of each arm the length of the excerpt in seconds, and what it is.
    """
    import numpy as np
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    spans, changes = _frame(rows, "arm lane stage start_s end_s"), _frame(version_changes, "arm lane at_s version")
    keys = part_keys([*_unique(spans, "stage"), "unattributed"])
    if len(changes):
        keys["policy version now held"] = {"color": INK, "marker": "v", "linestyle": "", "markersize": 5}
    lanes = dict.fromkeys(zip(spans["arm"].astype(str), spans["lane"].astype(str), strict=True), "")
    silent = {*windows} - {arm for arm, _ in lanes}
    lanes |= {(arm, "no span"): "" for arm in windows if arm in silent}
    figure, axes, places = _row_axes(lanes, "seconds since the first of these steps began", title=title, keys=keys,
                                     width=TIMELINE, row_inches=0.34,
                                     heads={arm: text for arm, (_, text) in windows.items()})  # fmt: skip
    axes.set_yticks([y + LANE_DOWN for y in places.values()], [text.get_text() for text in axes.get_yticklabels()])
    longest = max(seconds for seconds, _ in windows.values())
    for (arm, _), y in places.items():
        axes.barh(y + LANE_DOWN, windows[arm][0], 2 * HALF_LANE, zorder=0.9,
                  facecolor=SURFACE, edgecolor=MUTED, linewidth=0.6)  # fmt: skip
    for stage, own in spans.groupby("stage", sort=False):
        is_wait, start = str(stage).startswith("wait_"), own["start_s"].to_numpy()
        end = np.maximum(own["end_s"], start + (0.0 if is_wait else NARROWEST * longest))
        at = np.array([places[str(arm), str(lane)] for arm, lane in zip(own["arm"], own["lane"], strict=True)])
        top, bottom = at + LANE_DOWN - HALF_LANE, at + LANE_DOWN + HALF_LANE
        corners = np.stack([start, top, end, top, end, bottom, start, bottom], axis=1).reshape(-1, 4, 2)
        depth = 1.0 if is_wait else 3.0 if str(stage).startswith("weight_") else 2.0
        path = Path.make_compound_path_from_polys(corners)
        axes.add_patch(PathPatch(path, **part_look(str(stage)), zorder=depth, label=label(str(stage))))
    for pair, own in changes.groupby(["arm", "lane"], sort=False):
        if pair in places:
            y = places[pair]
            axes.plot(own["at_s"], [y - 0.28] * len(own), "v", color=INK, markersize=5, zorder=4, clip_on=False)
            apart = own["at_s"].shift(-1, fill_value=float("inf")) - own["at_s"]
            for change in own[apart >= SHARE_OF_A_NUMBER * longest].itertuples():
                axes.annotate("none" if change.version < 0 else f"{change.version}", (change.at_s, y - 0.3), (5, 0),
                              textcoords="offset points", va="center", size=9, zorder=4)  # fmt: skip
    axes.set_xlim(0, longest * 1.005)
    return figure


ARROW: Look = {"linestyle": "", "markersize": 8}
RATIO_ENDS = (1.1, 1.25, 1.5, 2.0, 4.0)  # of the axis; ratios beyond the last end at the edge in an arrow


@picture_style()
def forest(rows: Rows, *, x_label: str, title: str = "") -> Figure:
    """Draw ratios with their intervals on one logarithmic axis around 1, shaded where they are too small to matter.

    Args:
        rows: arm, name, ratio, both ends of its interval or None, a key of ``VERDICTS``, and the threshold as a share
            such as 0.03.
    """
    import numpy as np

    frame = _frame(rows, "arm row value low high verdict threshold").astype({"low": float, "high": float})
    numbers = frame[["value", "low", "high"]].to_numpy(float)
    texts = {(str(row.arm), str(row.row)): _ratio_text(row) for row in frame.itertuples()}
    needed = np.nanmax([1 + 1.5 * frame["threshold"].max(), *np.exp(np.abs(np.log(numbers[numbers > 0])))])
    reach = next((end for end in RATIO_ENDS if end >= needed), RATIO_ENDS[-1])
    keys = {
        word: {"color": color, "marker": marker}
        for word, (color, marker) in VERDICTS.items()
        if (frame["verdict"] == word).any()
    }
    keys["too small to matter"] = {"facecolor": SHADE}
    keys |= {"beyond the axis": ARROW | {"marker": ">", "color": MUTED}} if needed > reach else {}
    figure, axes, places = _row_axes(texts, x_label, title=title, keys=keys)
    axes.axvline(1.0, color=MUTED, linewidth=1.0, zorder=1.5)
    for row, (value, low, high) in zip(frame.itertuples(), np.clip(numbers, 1 / reach, reach), strict=True):
        y, inverse, (color, marker) = places[str(row.arm), str(row.row)], 1 / (1 + row.threshold), VERDICTS[row.verdict]
        axes.barh(y, 1 + row.threshold - inverse, 1.0, inverse, facecolor=SHADE)
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
    axes.set_xticks(ticks := [1 / reach, 1.0, reach], [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    return figure


def _ratio_text(row: Any) -> str:
    if row.value != row.value:
        return "-"
    value, low, high = (f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}" for ratio in (row.value, row.low, row.high))
    return f"{value} [{low}, {high}]" if row.low == row.low else value


COPY = "plain copy in memory"


@picture_style()
def points(rows: Rows, *, x_label: str, y_label: str, arms: Sequence[str], title: str = "", has_lines: bool = False,
           scale: Literal["linear", "log"] = "linear") -> Figure:  # fmt: skip
    """Draw points of arms with their intervals, in panels that share their axes.

    Args:
        rows: title of the panel, arm or ``COPY``, x, y, lower and upper end of x and of y, NaN where there is none; the
            median is drawn where an arm has several points of one x.
    """
    frame, dashed = _frame(rows, "panel arm x y x_low x_high y_low y_high"), Look(color=MUTED, linestyle="--")
    looks = {name: look | ({} if has_lines else {"linestyle": ""}) for name, look in arm_looks(arms).items()}
    looks |= {COPY: dashed} if (frame["arm"] == COPY).any() else {}
    panels = _unique(frame, "panel")
    keys = {label(name): look for name, look in looks.items() if (frame["arm"] == name).any()}
    figure, parts = cells(len(panels), (PANEL, HEIGHT), title=title, keys=keys, columns=2)
    first: Axes | None = None
    for panel, cell in zip(panels, parts, strict=True):
        axes = _panel_axes(cell, panel, y_label, x_label, shared={"sharex": first, "sharey": first})
        first = first or axes
        for name, every in frame[frame["panel"] == panel].groupby("arm", sort=False):
            own = every.groupby("x", as_index=False).median(numeric_only=True)
            y_reach = (own["y"] - own["y_low"], own["y_high"] - own["y"])
            x_reach = (own["x"] - own["x_low"], own["x_high"] - own["x"])
            axes.errorbar(own["x"], own["y"], y_reach, x_reach, **looks[str(name)], markersize=5.5, elinewidth=1.2)
        axes.set(xscale=scale, yscale=scale)
        axes.margins(0.05)
    for cell in parts:
        _set_ticks(cell.axes[0])
    return figure


LOG_FROM = 16  # ratio of the largest to the smallest number of a choice from which on it is drawn in powers of 2
CHOICES = (TIMELINE, 4.4)


@picture_style()
def choices(rows: Rows, *, names: Sequence[str] = (), x_label: str, y_label: str, heading: str = "",
            title: str = "") -> Figure:  # fmt: skip
    """Draw what each choice brings, with its interval: a line for each arm over numbers, points over names.

    Args:
        rows: arm, x (the place among ``names``, where there are some), value, its lower and upper end, whether it is
            extrapolated, and a text that marks the choice to take, empty at the others.
        heading: stands above the axes.
    """
    import numpy as np

    frame = _frame(rows, "arm x value low high is_extrapolated text")
    arms, hollow = _unique(frame, "arm"), Look(markerfacecolor=SURFACE, linestyle="")
    looks = arm_looks(arms)
    keys = {label(arm): looks[arm] for arm in arms if arm} | {"90% interval": {"color": MUTED, "marker": "|"}}
    keys |= {"EXTRAPOLATING": {"color": MUTED, "marker": "o"} | hollow} if frame["is_extrapolated"].any() else {}
    figure, (cell,) = cells(1, CHOICES, title=title, keys=keys)
    axes = _panel_axes(cell, heading, y_label, x_label, CHOICES)
    for place, (arm, own) in enumerate(frame.sort_values("x", kind="stable").groupby("arm", sort=False)):
        look = looks[str(arm)] | {"linestyle": "" if names else "-"}
        own = own.assign(x=own["x"] + ((place - (len(arms) - 1) / 2) * 0.12 if names else 0.0))
        reach = (own["value"] - own["low"], own["high"] - own["value"])
        axes.errorbar(own["x"], own["value"], reach, **look, markersize=5, elinewidth=1.2, capsize=3)
        outside = own[own["is_extrapolated"]]
        axes.plot(outside["x"], outside["value"], **look | hollow, markersize=5, zorder=3)
        for take in own[own["text"] != ""].itertuples():
            axes.annotate(label(take.text), (take.x, take.low), (0, -14), textcoords="offset points", weight="bold",
                          color=look["color"], ha="center")  # fmt: skip
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


@picture_style()
def lags(rows: Rows, *, arms: Sequence[str] = (), title: str = "") -> Figure:
    """Draw how old the rollouts were that each arm trained on: a histogram of lag in policy versions, as shares.

    Args:
        rows: arm, lag, and a number of rollouts; of the same arm and lag they are added.
    """
    import seaborn as sns

    frame = _frame(rows, "arm lag rollouts")
    looks, names = arm_looks(list(arms) or _unique(frame, "arm")), _unique(frame, "arm")
    rollouts = frame["rollouts"].groupby(frame["arm"])
    means = (frame["lag"] * frame["rollouts"]).groupby(frame["arm"]).sum() / rollouts.sum()
    palette = {name: looks[name]["color"] for name in names}
    keys = {f"{label(name)}: mean {means[name]:.2g}": {"facecolor": palette[name]} for name in names}
    figure, (cell,) = cells(1, (PANEL, HEIGHT), title=title, keys=keys)
    axes = _panel_axes(cell, "Share of the rollouts of each arm", "", "lag, in policy versions")
    shares = frame.assign(share=frame["rollouts"] / rollouts.transform("sum"))
    sns.barplot(shares, x="lag", y="share", estimator="sum", errorbar=None, native_scale=True, hue="arm",
                palette=palette, saturation=1, legend=False, ax=axes)  # fmt: skip
    axes.set(ylim=(0.0, 1.0), ylabel="", xlabel="lag, in policy versions")
    axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
    axes.locator_params(axis="x", integer=True)
    axes.grid(visible=False, axis="x")
    return figure
