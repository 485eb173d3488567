"""One table read in both directions: settings of a trainer to a scenario's, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from harness.core.errors import UserError, quoted
from harness.oracle.settings.reading import UNREAD
from harness.oracle.settings.refused import REFUSED
from harness.oracle.settings.table import NoCounterpart, Table
from harness.scenario.load import check_data
from harness.scenario.rules.rule import usual, value_of
from harness.scenario.schema import Scenario
from harness.settings.base import Settings
from harness.settings.loss import CLIPPED, WITH_RATIO, AdvantageSettings, LossSettings
from harness.settings.optimizer import OptimizerSettings
from harness.settings.sampling import SamplingSettings


def leaves(section: str, settings: type[Settings], *left_out: str) -> Iterator[str]:
    """Yield the dotted keys of a section but those of these names."""
    for name, about in settings.model_fields.items():
        if isinstance(about.default, Settings):
            yield from leaves(f"{section}.{name}", type(about.default), *left_out)
        elif name not in left_out:
            yield f"{section}.{name}"


NORMALIZED = ("normalized_rewards", "batch_normalized_rewards", "batch_whitened_rewards")
"""Advantages that ``advantage.eps`` is a part of."""
COMPARED = (
    *leaves("loss", LossSettings, "monitor"),
    *leaves("advantage", AdvantageSettings, "normalize_by_std"),
    *leaves("optimizer", OptimizerSettings),
    *leaves("sampling", SamplingSettings, "skip_special_tokens"),
    *("max_lag", "replay.capacity", "dynamic_sampling.attempts", "rollout_batch_size", "group_size"),
    *("epochs_per_batch", "minibatches_per_epoch"),
)
"""Settings of ours that must come back from a trainer's words for them; else they have no counterpart there."""


@dataclass(frozen=True)
class Lost:
    """What has no counterpart: the settings as they are written, why, and whether the loss is another without it."""

    what: str
    why: str
    loss: bool


@dataclass(frozen=True)
class Translated:
    """Settings of ours that a file of theirs means.

    Attributes:
        ours: by dotted keys.
        origin: the keys of theirs that each comes from; those behind a default end in ``(default)``.
        given, assumed: how many keys of theirs were translated as given, and by their defaults.
        lost: what has no counterpart.
        unknown: keys that no table has.
    """

    ours: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    given: int = 0
    assumed: int = 0
    lost: list[Lost] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def to_ours(table: Table, given: Mapping[str, Any], where: str) -> Translated:
    """Return what a trainer's settings mean here.

    Args:
        table: of the trainer.
        given: its settings, by dotted keys.
        where: they were read, for errors.

    Raises:
        UserError: a value is none that the trainer could have.
    """
    defaults = table.defaults
    named = {_key_of(table, key, given): value for key, value in given.items()}
    unknown = [key for key in named if key not in defaults and not _beside(table, key)]
    unread = {key for key, value in named.items() if value == UNREAD and key in defaults}
    theirs = defaults | {key: value for key, value in named.items() if key in defaults and key not in unread}
    theirs = {key: _as(defaults[key], key, value, where) for key, value in theirs.items()}
    ours, origin, lost = dict[str, Any](), dict[str, str](), list[Lost]()
    taken, assumed = set[str](), 0
    for key in sorted(unread):
        why = f"only a shell can tell its value; the default {_written(defaults[key])} is taken"
        lost.append(Lost(key, why, any(row.loss for row in table.rows if key in row.theirs)))
    for row in table.rows:
        own = [key for key in row.theirs if key in named and key not in unread]
        try:
            made, whole = row.to(theirs), True
        except NoCounterpart as error:
            made, whole = error.nearest, False
            lost.append(Lost(_said(own or list(row.theirs), theirs, not own), error.why, row.loss))
        except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError):
            shown = _said(own or list(row.theirs), theirs, False)
            raise UserError(f"{quoted(shown, 200)} is not what {table.name} takes", where, "correct it") from None
        ours |= made
        default = f"{_few(list(row.theirs))} (default)" if row.theirs else "fixed in its code"
        origin |= dict.fromkeys(made, _few(own) if own else default)
        if whole and (made or not row.ours):
            taken.update(own)
            assumed += (len(row.theirs) - len(own)) * bool(made)
    for refused in REFUSED:
        settings = {key: usual(key) for key in JUDGED} | ours
        try:
            if not refused.breaks(settings):
                continue
            change = {key: value(settings) if callable(value) else value for key, value in refused.change.items()}
        except (TypeError, ValueError, ArithmeticError, StopIteration):
            continue  # a wrong value: the scenario's own check says so
        what = ", ".join(f"{key} {_written(settings[key])}" for key in change if key in ours)
        lost.append(Lost(what or "the loss", refused.why, refused.loss))
        origin |= {key: f"instead of {_written(settings[key])}" for key in change if key in ours}
        ours |= change
    return Translated(ours, origin, len(taken), assumed, lost, unknown)


def scenario_of(ours: Mapping[str, Any], where: str) -> Scenario:
    """Return the scenario that has these settings, and else defaults.

    Raises:
        UserError: they are refused.
    """
    return check_data(nested(ours), where)


def to_theirs(table: Table, scenario: Scenario) -> tuple[dict[str, Any], list[Lost]]:
    """Return a trainer's keys for the settings of a scenario, and what they leave out.

    What they leave out is found by translating them again.
    """
    ours = effective(scenario)
    theirs = {key: value for row in table.rows for key, value in row.back(ours).items()}
    forth = to_ours(table, theirs, table.name)
    again = effective(scenario_of(forth.ours, table.name))
    lost = forth.lost + [
        Lost(f"{key} {_written(ours[key])}", f"{table.name} would have {_written(again[key])}", _of_loss(key))
        for key in COMPARED
        if not _equal(ours[key], again[key])
    ]
    return theirs, lost


def effective(scenario: Scenario) -> dict[str, Any]:
    """Return settings with the values that null stands for; those that do nothing have their defaults."""
    loss, advantage = scenario.loss, scenario.advantage
    ours = {key: value_of(scenario, key) for key in (*COMPARED, *MORE)}
    ours["model.path"] = getattr(scenario.model, "path", None)
    ours["advantage.delta"] = delta = advantage.delta_for(loss.type)
    ours["loss.constant"] = scenario.loss_constant if loss.aggregation == "constant" else None
    clip = loss.clip_range if loss.type in CLIPPED else (None, None)
    ours["loss.cliprange"], ours["loss.cliprange_high"] = clip
    ours["loss.importance.floor"], ours["loss.importance.cap"] = loss.importance.bounds
    idle = {
        "loss.ratio_level": loss.type not in WITH_RATIO,
        "advantage.eps": delta not in NORMALIZED,
        **dict.fromkeys(("loss.kl.estimator", "loss.kl.weighted_by_ratio"), loss.kl.coefficient == 0),
        **dict.fromkeys(("loss.kl.reference", "loss.kl.reclone_every", "loss.kl.alpha"), not loss.needs_reference),
    }
    return ours | {key: usual(key) for key, is_idle in idle.items() if is_idle}


MORE = (
    *("steps", "seed", "lag_control", "shuffle_minibatches", "gradient_accumulation_steps"),
    *("model.precision", "model.dtype", "engine.type"),
)
"""Further settings that tables name."""


SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
JUDGED = (*COMPARED, "steps", "gradient_accumulation_steps")
"""Settings that a refused combination may be of."""


def nested(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as mappings within each other."""
    made: dict[str, Any] = {}
    for key, value in ours.items():
        *sections, name = key.split(".")
        below = made
        for section in sections:
            below = below.setdefault(section, {})
        below[name] = value
    return made


def _as(default: Any, key: str, value: Any, where: str) -> Any:
    """Return a value of the default's kind; ``yes`` and ``off`` are booleans to other readers of YAML.

    Raises:
        UserError: it is of another kind.
    """
    kind = "must be a number" if type(default) in (int, float) else "must be one word"
    if isinstance(default, bool):
        value, kind = SWITCHES.get(str(value).lower(), value), "must be true or false"
        fits = isinstance(value, bool)
    elif isinstance(default, str):
        fits = not isinstance(value, list | dict)
    elif isinstance(default, int | float):
        fits = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    else:
        fits = True
    if not fits:
        raise UserError(f"{key} is {quoted(value)}, {kind}", where, f"its default is {_written(default)}")
    return value


def _key_of(table: Table, key: str, given: Mapping[str, Any]) -> str:
    """Return the table's key: without a section in front that may be left out, and by its newer name."""
    known = table.defaults
    for section in ("", *table.sections):
        if (full := section + key) in known:
            return full
        if (newer := table.renamed.get(full)) is not None and newer not in given:
            return newer
    return key


def _beside(table: Table, key: str) -> bool:
    return any(
        fnmatchcase(section + key, pattern) for section in ("", *table.sections) for pattern in table.beside.split()
    )


def _few(keys: Sequence[str]) -> str:
    return ", ".join(keys) if len(keys) < 3 else f"{keys[0]} and others"


def _said(keys: Sequence[str], theirs: Mapping[str, Any], default: bool) -> str:
    return ", ".join(f"{key} {_written(theirs[key])}" for key in keys) + (" (default)" if default else "")


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else quoted(value) if isinstance(value, str) else str(value)[:80]


def _of_loss(key: str) -> bool:
    return not key.startswith(("optimizer.", "sampling."))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)
