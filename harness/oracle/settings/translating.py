"""One table read in both directions: settings of a trainer to a scenario's, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from harness.core.errors import UserError, quoted
from harness.oracle.peers.common import NoCounterpart as NoWord
from harness.oracle.settings.reading import UNREAD
from harness.oracle.settings.table import NoCounterpart, Table
from harness.oracle.step import LossOptions
from harness.scenario.axes import parse_scenario
from harness.scenario.load import check_data
from harness.scenario.problems import as_user_error
from harness.scenario.rules.rule import usual, value_of
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree
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
NAMED = (
    *("steps", "seed", "lag_control", "shuffle_minibatches", "gradient_accumulation_steps"),
    *("model.precision", "engine.type"),
)
"""Further settings that tables name."""
SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


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
    defaults, named, unknown = table.defaults, dict[str, Any](), list[str]()
    for key, value in given.items():
        if (known := _key_of(table, key)) in defaults:
            is_switch = isinstance(defaults[known], bool)  # yes and off are booleans to other readers of YAML
            named[known] = SWITCHES.get(str(value).lower(), value) if is_switch else value
        elif not _beside(table, known):
            unknown.append(known)
    theirs = defaults | {key: value for key, value in named.items() if value != UNREAD}
    ours, origin, lost = dict[str, Any](), dict[str, str](), list[Lost]()
    taken, assumed = set[str](), 0
    for row in table.rows:
        own = [key for key in row.theirs if named.get(key, UNREAD) != UNREAD]
        for key in row.theirs:
            if named.get(key) == UNREAD:
                why = f"only a shell can tell its value; the default {_written(defaults[key])} is taken"
                lost.append(Lost(key, why, row.loss))
        said = ", ".join(f"{key} {_written(theirs[key])}" for key in own or row.theirs) + (" (default)" * (not own))
        try:
            made = row.to(theirs)
            taken.update(own)
            assumed += (len(row.theirs) - len(own)) * bool(made)
        except NoCounterpart as error:
            made = error.nearest
            lost.append(Lost(said, error.why, row.loss))
        except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError):
            raise UserError(f"{quoted(said, 200)} is not what {table.name} takes", where, "correct it") from None
        ours |= made
        default = f"{_few(list(row.theirs))} (default)" if row.theirs else "fixed in its code"
        origin |= dict.fromkeys(made, _few(own) if own else default)
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

    Raises:
        UserError: a value of them is none that a scenario could have.
    """
    ours, compared, lost = effective(scenario), COMPARED, list[Lost]()
    theirs = {key: value for row in table.rows for key, value in row.back(ours).items()}
    if table.loss is not None:
        options = replace(LossOptions.of(scenario.loss), constant=ours["loss.constant"])
        try:
            theirs = {**table.loss(asdict(options)), **theirs}
        except NoWord as error:
            of_loss = table.loss(asdict(LossOptions(aggregation="token_mean")))
            theirs = {key: value for key, value in theirs.items() if key not in of_loss}
            lost.append(Lost("the loss", f"{table.name} has no {error}, so that no key of the loss is written", True))
            compared = tuple(key for key in COMPARED if not key.startswith("loss."))
    forth = to_ours(table, theirs, table.name)
    meant, problems = parse_scenario(Tree.of(nested(forth.ours), table.name))  # whatever rules it breaks
    if meant is None:
        raise as_user_error(problems, table.name)
    again = effective(meant)
    lost += forth.lost + [
        Lost(f"{key} {_written(ours[key])}", f"{table.name} would have {_written(again[key])}", _of_loss(key))
        for key in compared
        if not _equal(ours[key], again[key])
    ]
    return theirs, lost


def effective(scenario: Scenario) -> dict[str, Any]:
    """Return settings with the values that null stands for; those that do nothing have their defaults."""
    loss, advantage = scenario.loss, scenario.advantage
    ours = {key: value_of(scenario, key) for key in (*COMPARED, *NAMED)}
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
    }
    return ours | {key: usual(key) for key, is_idle in idle.items() if is_idle}


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


def _key_of(table: Table, key: str) -> str:
    """Return the table's key: by its newer name, and with a section in front that may be left out."""
    names = [section + key for section in ("", *table.sections)]
    names += [table.renamed[name] for name in names if name in table.renamed]
    return next((name for name in names if name in table.defaults), key)


def _beside(table: Table, key: str) -> bool:
    names = [section + key for section in ("", *table.sections)]
    return any(fnmatchcase(name, pattern) for name in names for pattern in table.beside.split())


def _few(keys: Sequence[str]) -> str:
    return ", ".join(keys) if len(keys) < 3 else f"{keys[0]} and others"


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else quoted(value) if isinstance(value, str) else str(value)[:80]


def _of_loss(key: str) -> bool:
    return not key.startswith(("optimizer.", "sampling."))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)
