"""How pictures look: one table of colours, the settings every picture shares, and their legends.

Colours can be told apart by colour-blind readers.
"""

from __future__ import annotations

import atexit
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.own_folder import OwnFolder
from harness.core.terminal_text import plain
from harness.core.trace import Stage

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


# Rollouts blue, the Learner's work orange to red, weights green: the stages of one actor stay together. The base is the
# palette of Okabe and Ito (https://jfly.uni-koeln.de/color/).
STAGE_COLOURS: dict[Stage, str] = {
    Stage.GENERATE: "#0072B2",
    Stage.SCORE: "#56B4E9",
    Stage.PREPARE_BATCH: "#F8D58B",
    Stage.OLD_LOGPROBS: "#F0E442",
    Stage.REFERENCE_LOGPROBS: "#E69F00",
    Stage.UPDATE: "#D55E00",
    Stage.WEIGHT_PUBLISH: "#00523B",
    Stage.WEIGHT_TRANSFER: "#009E73",
    Stage.WEIGHT_VERIFY: "#D8F0C0",
    Stage.WEIGHT_LOAD: "#7FD1B9",
    Stage.EVALUATE: "#CC79A7",
    Stage.CHECKPOINT: "#4D4D4D",
    Stage.CHECKPOINT_WRITE: "#8A7F70",
    Stage.SAVE_POLICY: "#8C6D31",
    Stage.OFFLOAD: "#6B4C9A",
    Stage.ONLOAD: "#B39CD0",
    Stage.STARTUP: "#999999",
}
WAIT: dict[str, Any] = {"color": "#EFEFEF", "edgecolor": "#A8A8A8", "hatch": "////", "linewidth": 0.0}
VERIFY_HATCH: dict[str, Any] = {"hatch": "xxxx"}
UNATTRIBUTED: dict[str, Any] = {"color": "white", "edgecolor": "#B00020", "linewidth": 0.8}
DOTS_PER_INCH = 150
MARKERS = "osD^vPX*<>"
_SETTINGS: dict[str, Any] = {
    "figure.dpi": DOTS_PER_INCH,
    "savefig.dpi": DOTS_PER_INCH,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.formatter.useoffset": False,  # else ticks are differences from a number at the axis' end
    "axes.formatter.limits": (-6, 10),
    "legend.fontsize": 10,
    "hatch.linewidth": 0.5,
    "hatch.color": "#9A9A9A",
    "grid.color": "#DDDDDD",
    "svg.hashsalt": "harness",
}


@contextmanager
def picture_style() -> Iterator[None]:
    """Draw with the project's settings, whatever the user's matplotlib settings are; they return afterwards."""
    _give_matplotlib_a_folder()
    import matplotlib as mpl
    import seaborn as sns

    with mpl.rc_context(), suppress_font_log():
        mpl.rcdefaults()
        settings: dict[Any, Any] = {**sns.axes_style("whitegrid"), **_SETTINGS}
        mpl.rcParams.update(settings)
        yield


@contextmanager
def suppress_font_log() -> Iterator[None]:
    """Keep matplotlib's notes on its font cache out of the terminal."""
    import logging

    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def variant_looks(names: list[str]) -> dict[str, tuple[tuple[float, float, float], str]]:
    """Return a colour and a marker for each variant, so that lines can be told apart without colour too."""
    import seaborn as sns

    palette = sns.color_palette("colorblind", 10) if len(names) <= 10 else sns.color_palette("husl", len(names))
    return {name: (tuple(palette[index]), MARKERS[index % len(MARKERS)]) for index, name in enumerate(names)}


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

    known = get_font(findfont(_SETTINGS["font.family"])).get_char_index(ord(character))
    return character if known else character.encode("unicode_escape").decode("ascii")


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG without a date or a version in it, so that the same data give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return path


def _give_matplotlib_a_folder() -> None:
    """Where the user's configuration folder cannot be written, give matplotlib one for this process."""
    if "MPLCONFIGDIR" in os.environ:
        return
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "matplotlib"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and os.access(folder, os.W_OK):
        return
    own = OwnFolder()
    atexit.register(own.close)
    os.environ["MPLCONFIGDIR"] = str(own.path)


def stage_look(stage: Stage) -> dict[str, Any]:
    """Return how a bar of this stage is drawn; waits are light and hatched."""
    if stage.is_wait:
        return WAIT
    look: dict[str, Any] = {"color": STAGE_COLOURS[stage], "linewidth": 0.0}
    return look | VERIFY_HATCH if stage is Stage.WEIGHT_VERIFY else look


def stage_keys(stages: Iterable[Stage]) -> list[Artist]:
    """Return legend entries in the order of the stages; all waits share one."""
    stages = list(stages)
    keys = [patch_key(stage.value, stage_look(stage)) for stage in stages if not stage.is_wait]
    return keys + ([patch_key("waiting", WAIT)] if any(stage.is_wait for stage in stages) else [])


def patch_key(name: str, look: dict[str, Any]) -> Artist:
    """Return a legend entry for a bar."""
    from matplotlib.patches import Patch

    names = {"color": "facecolor"}
    return Patch(label=name, **{names.get(key, key): value for key, value in look.items()})


def line_key(name: str, **look: Any) -> Artist:
    """Return a legend entry for a line or a marker, black unless told otherwise."""
    from matplotlib.lines import Line2D

    merged: dict[str, Any] = {"color": "black", "linewidth": 2} | look
    return Line2D([], [], label=name, **merged)


def place_legend(figure: Figure, keys: Sequence[Artist]) -> None:
    """Put the legend beside the picture, which is as high as that at least."""
    names = [folded(str(key.get_label()), LEGEND_WIDTH) for key in keys]
    width, height = figure.get_size_inches()
    needed = sum(ENTRY_INCHES + LINE_INCHES * name.count("\n") for name in names) + 2 * ENTRY_INCHES
    figure.set_size_inches(width, max(height, needed))
    figure.legend(handles=keys, labels=names, loc="outside right upper", frameon=False)


LEGEND_WIDTH = 36  # characters of a line
ENTRY_INCHES, LINE_INCHES = 0.215, 0.19


def folded(name: str, width: int) -> str:
    """Return a name on lines of at most so many characters."""
    whole = name.replace(r"\$", "\0")  # must not be parted
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) or line for line in whole.split("\n")).replace(
        "\0", r"\$"
    )
