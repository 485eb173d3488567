"""A trainer's table: rows that say which of its keys mean which settings of ours, read in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Theirs = Mapping[str, Any]
"""Every key of a trainer's table, dotted, with its value: as given, else its default."""
Ours = Mapping[str, Any]
"""Settings of this project by their dotted keys."""


class NoCounterpart(Exception):
    """What was asked for is not there on the other side.

    Args:
        why: the reason, as a person reads it.
        nearest: settings that come nearest; None where there are none.
    """

    def __init__(self, why: str, nearest: Ours | None = None) -> None:
        super().__init__(why)
        self.why, self.nearest = why, nearest or {}


@dataclass(frozen=True)
class Row:
    """Keys of theirs that together mean settings of ours.

    Attributes:
        theirs: the keys, with the trainer's defaults.
        to: from all keys of the table to settings of ours; raises ``NoCounterpart``.
        back: from effective settings of ours to keys of theirs; nothing where no value of theirs means them.
        loss: whether what is lost here changes the loss.
    """

    theirs: Theirs
    to: Callable[[Theirs], Ours]
    back: Callable[[Ours], Theirs] = lambda ours: {}
    loss: bool = True


@dataclass(frozen=True, kw_only=True)
class Table:
    """A trainer's settings.

    Attributes:
        name: the trainer's, as a person writes it.
        version: what was read: a release, or a commit.
        style: how its settings are written out: ``yaml``, ``hydra``, ``flags`` or ``toml``.
        rows: in this order; a later one overrides what an earlier one means.
        beside: further keys that it has, as patterns with blanks between, which decide neither loss nor step.
        renamed: older names of its keys.
        sections: what may be left out in front of a key.
        assumes: what no file of its settings says.
        loss: from the options of ``step.LossOptions`` to keys of theirs, by which its own code was checked; None where
            the rows alone say it, and no code was run.
    """

    name: str
    version: str
    style: str
    rows: tuple[Row, ...]
    beside: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    loss: Callable[[dict[str, Any]], Theirs] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Every key of the rows with its default."""
        return {key: value for row in self.rows for key, value in row.theirs.items()}


def same(
    key: str,
    default: Any,
    ours: str,
    off: Any = ...,
    when: Callable[[Theirs], bool] = lambda theirs: True,
    loss: bool = True,
) -> Row:
    """Return the row of a key that means one setting of ours, by the same values. Null is as if it were not given.

    Args:
        key: of theirs.
        default: its value where none is given.
        ours: the setting.
        off: value of theirs for our null.
        when: all keys have it, else the key does nothing.
        loss: see ``Row``.
    """

    def to(theirs: Theirs) -> Ours:
        value = theirs[key]
        if not when(theirs) or (value is None and off is not None):
            return {}
        return {ours: None if value == off else value}

    def back(settings: Ours) -> Theirs:
        value = off if settings[ours] is None else settings[ours]
        return {} if value is ... else {key: value}

    return Row({key: default}, to, back, loss)


def means(
    key: str, default: Any, words: Mapping[Any, Ours], absent: Mapping[Any, str] | None = None, loss: bool = True
) -> Row:
    """Return the row of a key each word of which means several settings of ours.

    Args:
        key: of theirs.
        default: its value where none is given.
        words: what each of its values means; the first that fits is taken on the way back.
        absent: why others have no counterpart.
        loss: see ``Row``.
    """

    def to(theirs: Theirs) -> Ours:
        if (word := theirs[key]) not in words:
            raise NoCounterpart((absent or {}).get(word) or f"known are {', '.join(map(str, words))}")
        return words[word]

    def back(settings: Ours) -> Theirs:
        fitting = [word for word, meant in words.items() if meant.items() <= settings.items()]
        return {key: fitting[0]} if fitting else {}

    return Row({key: default}, to, back, loss)


def absent(key: str, default: Any, why: str, off: Any = None, loss: bool = True) -> Row:
    """Return the row of a key without a counterpart; ``off``, which is the default if None, means what is done here."""

    def to(theirs: Theirs) -> Ours:
        if theirs[key] not in (None, default if off is None else off):
            raise NoCounterpart(why)
        return {}

    return Row({key: default}, to, lambda ours: {} if off is None else {key: off}, loss)


def steps(key: str) -> Row:
    """Return the row of a number of training steps, which may be null."""

    def to(theirs: Theirs) -> Ours:
        if not theirs[key]:
            raise NoCounterpart("the data set or its user ends the run; `steps` is left at its default")
        return {"steps": theirs[key]}

    return Row({key: None}, to, lambda ours: {key: ours["steps"]}, loss=False)


def model(key: str, default: str | None) -> Row:
    """Return the row of a model's path or name."""
    return Row(
        {key: default},
        lambda theirs: {"model.type": "folder", "model.path": theirs[key]} if theirs[key] else {},
        lambda ours: {key: ours["model.path"]} if ours["model.path"] else {},
        loss=False,
    )
