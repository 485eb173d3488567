"""What an experiment says, decided once: the console, Markdown and the page render one ``Document``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.compare.remarks import Remark
from harness.results import RolloutRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MARKED = "drift"
"""The key of the caution that a mark in the table of the short form says."""


@dataclass(frozen=True)
class Table:
    """Cells as text; the first ``words`` columns hold words, the others numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: int = 1


@dataclass(frozen=True)
class Chart:
    """A figure, drawn when somebody wants to see it, and once.

    Attributes:
        key: also the name of its file: ``stages`` is ``stages.png``.
        says: the sentence for a reader who cannot see the figure.
        table: the numbers behind it.
    """

    key: str
    title: str
    says: str
    draw: Callable[[], Figure]
    table: Table | None = None

    @cached_property
    def figure(self) -> Figure:
        """The figure; a PNG and the SVG of the page are made from the same one."""
        return self.draw()


@dataclass(frozen=True)
class Rollouts:
    """Example rollouts of an arm, before and after training; a model wrote their text."""

    arm: str
    pairs: tuple[tuple[RolloutRow, RolloutRow], ...]


Item = Remark | Table | Chart | Rollouts


@dataclass(frozen=True)
class Section:
    """Items under a heading; on the page, a folded section is opened by the reader."""

    key: str
    title: str
    items: tuple[Item, ...]
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """One experiment; ``origin`` says where its runs came from, ``description`` is the scenario's.

    Answer and first section are the short form: what the console shows without ``--full``.
    """

    title: str
    origin: str
    description: str | None
    answer: tuple[Remark, ...]
    sections: tuple[Section, ...]
