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


@dataclass(frozen=True, kw_only=True)
class Row:
    """Keys of theirs that together mean settings of ours.

    Attributes:
        theirs: the keys, with the trainer's defaults.
        ours: the settings that they decide; none where there is no counterpart.
        to: from all keys of the table to settings of ours; raises ``NoCounterpart``.
        back: from effective settings of ours to keys of theirs; nothing where no value of theirs means them.
        loss: whether what is lost here changes the loss.
    """

    theirs: Theirs
    ours: tuple[str, ...] = ()
    to: Callable[[Theirs], Ours]
    back: Callable[[Ours], Theirs] = lambda ours: {}
    loss: bool = True


@dataclass(frozen=True, kw_only=True)
class Table:
    """A trainer's settings.

    Attributes:
        name: the trainer's, as a person writes it.
        version: what was read: a release, or a commit.
        checked: whether the trainer's own code was run against the translation.
        style: how its settings are written out: ``yaml``, ``hydra``, ``flags`` or ``toml``.
        rows: in this order; a later one overrides what an earlier one means.
        beside: further keys that it has, as patterns with blanks between, which decide neither loss nor step.
        renamed: older names of its keys.
        sections: what may be left out in front of a key.
        assumes: what no file of its settings says.
    """

    name: str
    version: str
    checked: bool
    style: str
    rows: tuple[Row, ...]
    beside: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Any]:
        """Every key of the rows with its default."""
        return {key: value for row in self.rows for key, value in row.theirs.items()}


def same(
    key: str,
    default: Any,
    ours: str,
    words: Mapping[Any, Any] | None = None,
    when: Callable[[Theirs], bool] | None = None,
    loss: bool = True,
) -> Row:
    """Return the row of a key that means one setting of ours, by the same values or by the ``words`` for them.

    Args:
        key: of theirs.
        default: its value where none is given.
        ours: the setting.
        words: values of ours that are written otherwise there, by their words; with texts there are no others.
        when: all keys have it, else the key does nothing.
        loss: see ``Row``.
    """

    def to(theirs: Theirs) -> Ours:
        value = theirs[key]
        if when is not None and not when(theirs):
            return {}
        if words is not None and value in words:
            return {ours: words[value]}
        if words is not None and isinstance(value, str):
            raise NoCounterpart(f"known are {', '.join(map(str, words))}")
        return {ours: value}

    def back(settings: Ours) -> Theirs:
        value = settings[ours]
        theirs = next((word for word, own in (words or {}).items() if own == value), value)
        return {} if theirs is None and default is not None else {key: theirs}

    return Row(theirs={key: default}, ours=(ours,), to=to, back=back, loss=loss)


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
        word = theirs[key]
        if word not in words:
            raise NoCounterpart((absent or {}).get(word) or f"known are {', '.join(map(str, words))}")
        return words[word]

    def back(settings: Ours) -> Theirs:
        fitting = [word for word, meant in words.items() if meant.items() <= settings.items()]
        return {key: fitting[0]} if fitting else {}

    decided = tuple(dict.fromkeys(setting for meant in words.values() for setting in meant))
    return Row(theirs={key: default}, ours=decided, to=to, back=back, loss=loss)


def absent(key: str, default: Any, why: str, off: Any = None, loss: bool = True) -> Row:
    """Return the row of a key without a counterpart; ``off``, which is the default if None, means what is done here."""
    nothing = default if off is None else off

    def to(theirs: Theirs) -> Ours:
        if theirs[key] is not None and theirs[key] != nothing:
            raise NoCounterpart(why)
        return {}

    back = {} if off is None else {key: off}
    return Row(theirs={key: default}, to=to, back=lambda settings: back, loss=loss)
