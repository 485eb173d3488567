"""Named baselines: names for experiments in a results folder, kept in its ``baselines.json``."""

from __future__ import annotations

import json
from pathlib import Path

from harness.compare.experiments import Experiment, gather
from harness.compare.verdicts import Baseline, variant_named
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results.jsonl import parse_json, read_file

FILE = "baselines.json"
SCHEMA, SCHEMA_VERSION = "harness.baselines", 1


def save_baseline(results: Path, name: str, experiment: Experiment, arm: str | None = None) -> str | None:
    """Give an experiment's arm a name, next to the results; a name that exists is moved there.

    Args:
        results: the results folder that holds the experiment.
        name: of the baseline.
        experiment: in that folder.
        arm: None takes its first one.

    Returns:
        what the name meant before, or None.

    Raises:
        UserError: the experiment lies elsewhere, has no such arm, or the file cannot be read or written.
    """
    variant = variant_named(experiment, arm)
    try:
        place = experiment.folder.resolve().relative_to(results.resolve()).as_posix()
    except ValueError:
        what = f"the experiment {str(experiment.folder)!r} is not in {str(results)!r}"
        raise UserError(what, "--save-baseline", "name the results folder that holds it") from None
    entries = _read(results / FILE)
    before = entries.get(name)
    entries[name] = {"campaign": place, "arm": variant.name}
    _write(results / FILE, entries)
    return None if before is None else f"{before['campaign']}, {before['arm']}"


def load_baseline(results: Path, name: str) -> Baseline:
    """Read the runs that a name stands for.

    Raises:
        UserError: there is no such name, or its experiment is gone or damaged.
    """
    entries = _read(results / FILE)
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none yet"
        fix = f"name an arm of the experiment, or one of the baselines of {results / FILE} ({known})"
        raise UserError(f"there is no baseline and no arm called {name!r}", "--baseline", fix)
    (experiment,), _ = gather([results / entries[name]["campaign"]])
    return Baseline(experiment, variant_named(experiment, entries[name]["arm"]))


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        content = read_file(path)
    except FileNotFoundError:
        return {}
    try:
        data = parse_json(content)
    except ValueError as error:
        raise UserError(f"cannot read {str(path)!r}: {error}", str(path), "mend or remove it") from error
    entries = data.get("baselines") if isinstance(data, dict) and data.get("schema_version") == SCHEMA_VERSION else None
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
        raise UserError(f"{str(path)!r} is no list of baselines of version {SCHEMA_VERSION}", str(path), "remove it")
    return entries


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("campaign", "arm"))


def _write(path: Path, entries: dict[str, dict[str, str]]) -> None:
    data = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "baselines": dict(sorted(entries.items()))}
    try:
        with whole_file(path) as stream:
            stream.write((json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror or error}", str(path)) from error
