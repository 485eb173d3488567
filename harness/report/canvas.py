"""What all charts share: colours of arms and verdicts, cells of a fixed size, legends.

A figure is a column of cells, or several columns: a title (which the page does not take over), a legend, and panels.
Each cell is a ``SubFigure`` whose size in inches is known beforehand, so nothing is laid out by measuring text (which
takes longer than drawing), and the page can show the cells one below the other on a narrow screen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from harness.core.trace import Stage
from harness.report.style import MARKERS, STAGE_COLOURS, label, picture_style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

INK, MUTED, GRID, SURFACE, SHADE, HATCH = "#1c2126", "#565f69", "#e4e7ea", "#ffffff", "#dfe9f2", "#8a93a0"
# At least 18 apart in CIELAB from every stage, and 3.2 in contrast with white; told apart with red-green blindness too,
# the later ones with the help of their markers.
ARM_COLOURS = ("#1c2126", "#0082fa", "#a08c00", "#9b0a5a", "#6e9678", "#000064", "#463c00", "#007896")
VERDICTS = {
    "faster": ("#1d6b3f", "o"),
    "slower": ("#a3301b", "s"),
    "same": ("#1b5e99", "D"),
    "cannot tell": ("#565f69", "^"),
}
"""Colour and marker of what a comparison says."""
WAITING, NO_STAGE = "waiting", "no stage"
Look = dict[str, Any]
PART_LOOKS: dict[str, Look] = {
    **{stage.value: {"facecolor": colour} for stage, colour in STAGE_COLOURS.items()},
    WAITING: {"facecolor": "#eceef0", "hatch": "////"},
    NO_STAGE: {"facecolor": SURFACE, "edgecolor": MUTED, "linewidth": 0.8},
    "trained on": {"facecolor": "#3b6ea5"},
    "never used": {"facecolor": "#c9ced4"},
    "discarded, all rewards equal": {"facecolor": "#b9a44c", "hatch": "...."},
    "dropped as too old": {"facecolor": "#7a3e65", "hatch": "\\\\\\\\"},
    "failed": {"facecolor": INK},
}
"""Parts of a bar: stages, what a lane does without one, and what becomes of rollouts."""
PART_LOOKS[Stage.WEIGHT_VERIFY.value] |= {"hatch": "xxxx"}

COLOUR_NAMES = {
    **{colour: f"arm-{index}" for index, colour in enumerate(ARM_COLOURS)},
    **{colour.lower(): stage.value for stage, colour in STAGE_COLOURS.items()},
    **{colour: verdict.replace(" ", "-") for verdict, (colour, _) in VERDICTS.items()},
    **{str(PART_LOOKS[part]["facecolor"]): f"rollouts-{part.split(',')[0].replace(' ', '-')}" for part in (
        "trained on", "never used", "discarded, all rewards equal", "dropped as too old")},
    INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface", SHADE: "shade",
    "#eceef0": "waiting", HATCH: "hatch",
}  # fmt: skip
"""The variable of the page's style sheet behind each colour."""

WIDE, PANEL, TIMELINE = 5.2, 4.6, 9.0
"""Inches. At 390 CSS pixels a cell is about 350 wide: text of 10 points is then 9.3 pixels high or more; what is as
wide as a timeline scrolls."""
EM = 6.1 / 72  # inches of a character of 10 points, rather too wide
SETTINGS: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 10, "xtick.labelsize": 10, "ytick.labelsize": 10,
    "legend.fontsize": 10, "svg.fonttype": "none", "path.simplify": False, "lines.linewidth": 1.8, "patch.linewidth": 0,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "grid.color": GRID,
    "hatch.linewidth": 0.7, "hatch.color": HATCH, "axes.facecolor": "none", "axes.axisbelow": True, "axes.grid": True,
    "xtick.major.pad": 3, "ytick.major.pad": 3,
}  # fmt: skip

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Have a function draw in the project's style, whatever the user's matplotlib settings are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with picture_style():
            import matplotlib as mpl

            mpl.rcParams.update(SETTINGS)
            return draw(*args, **kwargs)

    return drawn


def arm_looks(arms: Sequence[str]) -> dict[str, Look]:
    """Return a colour and a marker for each arm; the pairs repeat after 40."""
    return {
        arm: {"color": ARM_COLOURS[index % len(ARM_COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        for index, arm in enumerate(arms)
    }


def part_look(part: str) -> Look:
    """Return how a part of a bar is drawn; all waits look the same, and so do stages that are not the project's."""
    name = WAITING if part.startswith("wait_") else part
    return {"linewidth": 0.0, "facecolor": "#999999"} | PART_LOOKS.get(name, {})


def part_order(part: str) -> int:
    """Return a part's place in a stack: the work in the order of the stages, then waits, then the rest."""
    names = list(PART_LOOKS)
    return names.index(part) if part in names else names.index(WAITING) - (not part.startswith("wait_"))


class Key(NamedTuple):
    """An entry of a legend; the name is a ``label``."""

    name: str
    look: Look

    def artist(self) -> Artist:
        """Return what stands before the name: a patch where the look has a face, else a line."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        return Patch(**self.look) if "facecolor" in self.look else Line2D([], [], **self.look)


def part_keys(parts: Sequence[str]) -> list[Key]:
    """Return the legend of a stack; all waits share one entry."""
    names = {WAITING if part.startswith("wait_") else part: None for part in sorted(parts, key=part_order)}
    return [Key(label(name), part_look(name)) for name in names]


TITLE_INCHES, LINE_INCHES = 0.3, 0.21


def cells(sizes: Sequence[float], *, width: float, title: str, keys: Sequence[Key], columns: int = 1
          ) -> tuple[Figure, list[SubFigure]]:  # fmt: skip
    """Return a figure and its empty cells, row by row.

    Args:
        sizes: heights of the cells in inches; cells of a row get the height of the highest.
        width: of a cell, in inches.
        title: above all cells, in files only.
        keys: the legend; empty for none.
    """
    from matplotlib.figure import Figure

    columns = max(1, min(columns, len(sizes)))
    starts = range(0, len(sizes), columns)
    heights = [max(sizes[start : start + columns]) for start in starts]
    longest = max((len(key.name) for key in keys), default=0)
    in_row = max(1, min(len(keys), int(width / (EM * longest + 0.62))))
    head = [TITLE_INCHES if title else 0.04, 0.12 + LINE_INCHES * -(-len(keys) // in_row) if keys else 0.02]
    ratios = [*head, *heights]
    figure = Figure(figsize=(width * columns, sum(ratios)))
    grid = figure.add_gridspec(len(ratios), columns, height_ratios=ratios, wspace=0, hspace=0)
    if title:
        figure.text(0.08 / figure.get_figwidth(), 1 - 0.07 / sum(ratios), label(title, int(width / EM)), va="top",
                    weight="bold", size=11)  # fmt: skip
    if keys:
        figure.add_subfigure(grid[1, 0]).legend(
            handles=[key.artist() for key in keys], labels=[key.name for key in keys], ncols=in_row,
            loc="upper left", frameon=False, borderaxespad=0.3, handlelength=1.6, columnspacing=1.4, handletextpad=0.5,
        )  # fmt: skip
    return figure, [
        figure.add_subfigure(grid[2 + place // columns, place % columns]) for place in range(len(sizes))
    ]  # fmt: skip


def place_axes(cell: SubFigure, size: tuple[float, float], left: float, right: float, top: float, bottom: float
               ) -> Axes:  # fmt: skip
    """Return axes within margins, all in inches."""
    width, height = size
    return cell.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))
