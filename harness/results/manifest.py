"""The manifest of a run: what ran, with which code, on what kind of machine, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from harness.core.errors import UserError
from harness.results.anonymous import Scrubber, change_strings
from harness.results.rows import MOST_SECONDS, SCHEMA_VERSIONS, with_nulls

SCHEMA = "harness.manifest"
STATUSES = ("running", "completed", "interrupted", "failed")

_TEXT, _NUMBER, _WHOLE, _YES_NO = (str,), (int, float), (int,), (bool,)
_NONE = (type(None),)
_FORMER = {"campaign": "experiment", "sentinel": "machine_speed"}
"""Fields that older runs have under another name."""
_ALLOWED: dict[str, tuple[type, ...]] = {
    "scenario": _TEXT,
    "experiment": _TEXT,
    "started_at": _TEXT,
    "arm": _TEXT + _NONE,
    "point": (dict,),
    "status": _TEXT,
    "error": _TEXT + _NONE,
    "finished_at": _TEXT + _NONE,
    "duration_s": _NUMBER + _NONE,
    "startup_s": _NUMBER + _NONE,
    "seed": _WHOLE,
    "interleaving": _TEXT + _NONE,
    "position": _WHOLE + _NONE,
    "block": _WHOLE + _NONE,
    "machine_speed": (dict, *_NONE),
    "profile": _TEXT + _NONE,
    "versions": (dict,),
    "machine": (dict,),
    "threads": _WHOLE + _NONE,
    "commit": _TEXT + _NONE,
    "dirty": _YES_NO + _NONE,
    "parameters": _WHOLE + _NONE,
    "simulated": _TEXT + _NONE,
    "outcome": (dict,),
    "machine_speed.*": _NUMBER,
    "versions.*": _TEXT + _NONE,
    "machine.cores": _WHOLE + _NONE,
    "machine.missing": (dict, *_NONE),
    "outcome.replaced": (dict,),
    "outcome.replaced.*": _WHOLE,
    "outcome.imported": (dict,),
    "outcome.imported.steps_per_row": _WHOLE + _NONE,
}
"""The types of each field, and of what is read of those that are else free in form; ``*`` stands for any key."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One run's facts. Names no host, no user and no absolute path.

    Attributes:
        arm: name of the arm, or None in a scenario without arms.
        point: the sweep's values of this run by dotted key, ``seed`` among them; empty without a sweep.
        experiment: the command that started this run and its siblings: ``YYYYmmdd-HHMMSS`` in UTC.
        status: one of ``STATUSES``.
        started_at, finished_at: UTC, ISO 8601.
        startup_s: seconds from the start of the run to the start of its loop.
        interleaving: how the arms of the experiment took turns: by ``step``, by ``run``, or None for a single run.
        position: of the run among the experiment's, in the order of the scenario. Arms may run in another order, and
            are shown in this one. None in runs of before it was written.
        block: number of the block, in which every arm runs once; None where the scenario asks for no blocks.
        machine_speed: seconds of a fixed piece of work right before the block; see ``harness.run.machine_speed``.
        profile: name of the probe profile.
        machine: see ``harness.probes.provenance.machine_facts``.
        dirty: whether tracked files differed from ``commit``; None where there is no repository.
        parameters: number of the policy's parameters.
        simulated: name of the machine profile by which the run was simulated; None in a run that took place.
        outcome: figures of the finished run, free in form.
    """

    scenario: str
    experiment: str
    started_at: str
    arm: str | None = None
    point: dict[str, Any] = field(default_factory=dict)
    status: str = "running"
    error: str | None = None
    finished_at: str | None = None
    duration_s: float | None = None
    startup_s: float | None = None
    seed: int = 0
    interleaving: str | None = None
    position: int | None = None
    block: int | None = None
    machine_speed: dict[str, float] | None = None
    profile: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    commit: str | None = None
    dirty: bool | None = None
    parameters: int | None = None
    simulated: str | None = None
    outcome: dict[str, Any] = field(default_factory=dict)

    def to_json(self, scrubber: Scrubber) -> dict[str, Any]:
        """Return the JSON object, free of names and absolute paths, and of numbers that JSON does not know."""
        head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSIONS[SCHEMA]}
        saved = asdict(self)
        saved["point"] = change_strings(self.point, scrubber.paths)
        saved |= {key: change_strings(saved[key], scrubber.text) for key in ("error", "outcome")}
        return with_nulls(head | saved)

    @classmethod
    def from_json(cls, data: object, where: str) -> Manifest:
        """Read the JSON object of a manifest file.

        Raises:
            UserError: not a manifest, of an unknown version, or with a field missing or of the wrong type.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise UserError(f"this is no manifest: its schema is not {SCHEMA!r}", where=where)
        check_version(SCHEMA, data.get("schema_version"), where)
        data = {_FORMER.get(name, name): value for name, value in data.items()}
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        for name in ("scenario", "experiment", "started_at"):
            if name not in known:
                raise UserError(f"the manifest lacks {name!r}", where=where)
        for name, value in known.items():
            _check_types(name, value, where)
        if known.get("status", "running") not in STATUSES:
            raise UserError(f"unknown status {known['status']!r}; one of {', '.join(STATUSES)}", where=where)
        return cls(**known)


def check_version(schema: str, version: object, where: str) -> None:
    """Refuse a schema version that this reader does not know.

    Raises:
        UserError: naming the version found and the one that is known.
    """
    if version != SCHEMA_VERSIONS[schema]:
        raise UserError(
            f"{schema} has schema_version {version!r}; this harness reads {SCHEMA_VERSIONS[schema]}",
            where=where,
            fix="read it with the version of the harness that wrote it (the manifest's versions.harness)",
        )


def _check_types(name: str, value: object, where: str) -> None:
    """Check a field, and of an object's fields those that have a type."""
    allowed = _ALLOWED.get(name) or _ALLOWED.get(f"{name.rpartition('.')[0]}.*")
    if allowed is not None:
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise UserError(f"{name!r} is {value!r:.60}; it must be {names}", where=where)
        if float in allowed and isinstance(value, int | float) and not abs(value) <= MOST_SECONDS:
            raise UserError(f"{name!r} is {value!r}; it must be at most {MOST_SECONDS:g}", where=where)
    for key, item in value.items() if isinstance(value, dict) else ():
        _check_types(f"{name}.{key}", item, where)
