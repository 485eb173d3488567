"""What all pictures share: colours of stages, arms and verdicts, one style, cells of a fixed size, legends.

A figure is a column of cells, or several columns: a title (which the page does not take over), a legend, and panels.
Each cell is a ``SubFigure`` whose size in inches is known beforehand, so nothing is laid out by measuring text (which
takes longer than drawing), and the page can show the cells one below the other on a narrow screen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.compare.run_frame import UNATTRIBUTED
from harness.core.terminal_text import plain
from harness.core.trace import Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

INK, MUTED, GRID, SURFACE, SHADE, HATCH = "#1c2126", "#565f69", "#e4e7ea", "#ffffff", "#dfe9f2", "#8a93a0"
# Rollouts blue, the Learner's work orange to red, weights green: the stages of one actor stay together. The base is the
# palette of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can tell apart.
STAGE_COLOURS: dict[Stage, str] = {
    Stage.GENERATE: "#0072B2",
    Stage.SCORE: "#56B4E9",
    Stage.PREPARE_BATCH: "#F8D58B",
    Stage.OLD_LOGPROBS: "#F0E442",
    Stage.REFERENCE_LOGPROBS: "#E69F00",
    Stage.UPDATE: "#D55E00",
    Stage.WEIGHT_PUBLISH: "#00523B",
    Stage.WEIGHT_TRANSFER: "#009E73",
    Stage.WEIGHT_LOAD: "#7FD1B9",
    Stage.WEIGHT_VERIFY: "#D8F0C0",
    Stage.EVALUATE: "#CC79A7",
    Stage.CHECKPOINT: "#4D4D4D",
    Stage.CHECKPOINT_WRITE: "#8A7F70",
    Stage.SAVE_POLICY: "#8C6D31",
    Stage.OFFLOAD: "#6B4C9A",
    Stage.ONLOAD: "#B39CD0",
    Stage.STARTUP: "#999999",
}
# At least 18 apart in CIELAB from every stage, and 3.2 in contrast with white; told apart with red-green blindness too,
# the later ones with the help of their markers.
ARM_COLOURS = ("#1c2126", "#0082fa", "#a08c00", "#9b0a5a", "#6e9678", "#000064", "#463c00", "#007896")
MARKERS = "osD^vPX*<>"
VERDICTS = {
    "faster": ("#1d6b3f", "o"),
    "slower": ("#a3301b", "s"),
    "same": ("#1b5e99", "D"),
    "cannot tell": ("#565f69", "^"),
}
"""Colour and marker of what a comparison says."""
WAITING = "waiting"
Look = dict[str, Any]
_ROLLOUTS: dict[str, Look] = {
    "trained on": {"facecolor": "#3b6ea5"},
    "never used": {"facecolor": "#c9ced4"},
    "discarded, all rewards equal": {"facecolor": "#b9a44c", "hatch": "...."},
    "dropped as too old": {"facecolor": "#7a3e65", "hatch": "\\\\\\\\"},
}
PART_LOOKS: dict[str, Look] = {
    **{stage.value: {"facecolor": colour} for stage, colour in STAGE_COLOURS.items()},
    WAITING: {"facecolor": "#eceef0", "hatch": "////"},
    UNATTRIBUTED: {"facecolor": SURFACE, "edgecolor": MUTED, "linewidth": 0.8},
    **_ROLLOUTS,
    "failed": {"facecolor": INK},
}
"""Parts of a bar: stages, what a lane does without one, and what becomes of rollouts."""
PART_LOOKS[Stage.WEIGHT_VERIFY.value] |= {"hatch": "xxxx"}
COLOUR_NAMES = {
    **{colour: f"arm-{index}" for index, colour in enumerate(ARM_COLOURS)},
    **{colour.lower(): stage.value for stage, colour in STAGE_COLOURS.items()},
    **{colour: verdict.replace(" ", "-") for verdict, (colour, _) in VERDICTS.items()},
    **{look["facecolor"]: f"rollouts-{part.split(',')[0].replace(' ', '-')}" for part, look in _ROLLOUTS.items()},
    INK: "ink", MUTED: "muted", GRID: "grid", SURFACE: "surface", SHADE: "shade",
    "#eceef0": "waiting", HATCH: "hatch",
}  # fmt: skip
"""The variable of the page's style sheet behind each colour."""

PANEL, HEIGHT, WIDE, TIMELINE = 4.6, 2.75, 5.2, 9.0
"""Inches: width and height of a panel, and wider cells. At 390 CSS pixels a cell is about 350 wide: text of 10 points
is then 9.3 pixels high or more; what is as wide as a timeline scrolls."""
EM = 6.1 / 72  # inches of a character of 10 points, rather too wide
FONT = "DejaVu Sans"
SETTINGS: dict[Any, Any] = {
    "figure.dpi": 150, "savefig.dpi": 150, "font.family": FONT,
    "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 10, "xtick.labelsize": 10, "ytick.labelsize": 10,
    "legend.fontsize": 10, "lines.linewidth": 1.8, "patch.linewidth": 0, "hatch.linewidth": 0.7, "hatch.color": HATCH,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "grid.color": GRID,
    "axes.facecolor": "none", "axes.axisbelow": True, "axes.grid": True, "xtick.major.pad": 3, "ytick.major.pad": 3,
    "axes.formatter.useoffset": False,  # else ticks are differences from a number at the axis' end
    "axes.formatter.limits": (-6, 10), "axes.xmargin": 0.02,
    "path.simplify": False, "svg.fonttype": "none", "svg.hashsalt": "harness",
}  # fmt: skip


@contextmanager
def picture_style() -> Iterator[None]:
    """Draw with the project's settings, whatever the user's are, which return afterwards; also a decorator."""
    logger = logging.getLogger("matplotlib")  # its notes on fonts, and on a home that it cannot write to
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import matplotlib as mpl
        import seaborn as sns

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update({**sns.axes_style("whitegrid"), **SETTINGS})
            yield
    finally:
        logger.setLevel(level)


@picture_style()
def save(figure: Figure, path: Path) -> Path:
    """Write a PNG without a date or a version in it, so that the same data give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
    return path


def label(text: str, limit: int = 60) -> str:
    """Return text for a picture: on one line, never read as a formula or as a hidden legend entry.

    Letters that the font lacks are written out (``\\u6570``).
    """
    shown = "".join(map(_drawable, plain(text, limit=limit))).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


@cache
def _drawable(character: str) -> str:
    """Return a character, or its escape where the font of the pictures lacks it."""
    if character.isascii():
        return character
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont(FONT)).get_char_index(ord(character))
    return character if known else character.encode("unicode_escape").decode("ascii")


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


def part_keys(parts: Sequence[str]) -> dict[str, Look]:
    """Return the legend of a stack; all waits share one entry."""
    names = (WAITING if part.startswith("wait_") else part for part in sorted(parts, key=part_order))
    return {label(name): part_look(name) for name in names}


TITLE_INCHES, LINE_INCHES = 0.3, 0.21
Size = tuple[float, float]


def cells(count: int, size: Size, *, title: str, keys: Mapping[str, Look], columns: int = 1
          ) -> tuple[Figure, list[SubFigure]]:  # fmt: skip
    """Return a figure and its empty cells, row by row.

    Args:
        size: of a cell: width and height in inches.
        title: above all cells, in files only.
        keys: the legend by names that are labels: patches where a look has a face, else lines; empty for none.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns, (width, height) = max(1, min(columns, count)), size
    in_row = max(1, min(len(keys), int(width / (EM * max(map(len, keys), default=0) + 0.5))))
    head = [TITLE_INCHES if title else 0.04, 0.12 + LINE_INCHES * -(-len(keys) // in_row) if keys else 0.02]
    ratios = [*head, *[height] * -(-count // columns)]
    figure = Figure(figsize=(width * columns, sum(ratios)))
    grid = figure.add_gridspec(len(ratios), columns, height_ratios=ratios, wspace=0, hspace=0)
    if title:
        figure.text(0.08 / figure.get_figwidth(), 1 - 0.07 / sum(ratios), label(title, int(width / EM)), va="top",
                    weight="bold", size=11)  # fmt: skip
    if keys:
        figure.add_subfigure(grid[1, 0]).legend(
            [Patch(**look) if "facecolor" in look else Line2D([], [], **look) for look in keys.values()], list(keys),
            ncols=in_row, loc="upper left", frameon=False, borderaxespad=0.3, handlelength=1.6, columnspacing=1.4,
            handletextpad=0.5,
        )  # fmt: skip
    return figure, [figure.add_subfigure(grid[2 + place // columns, place % columns]) for place in range(count)]


def place_axes(cell: SubFigure, size: Size, left: float, right: float, top: float, bottom: float,
               shared: Mapping[str, Any] | None = None) -> Axes:  # fmt: skip
    """Return axes within margins, all in inches."""
    width, height = size
    box = left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height
    axes: Axes = cell.add_axes(box, **shared or {})
    return axes
