"""How stages look, and the legend entries that say so: the same in every picture of bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from harness.core.trace import Stage
from harness.report.style import STAGE_COLOURS, VERIFY_HATCH, WAIT

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


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


def place_legend(figure: Figure, keys: list[Artist]) -> None:
    """Put the legend beside the picture."""
    figure.legend(handles=keys, loc="outside right upper", frameon=False)
