"""What the runs ran on, with which code and settings, and how to run them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from harness.compare import numbers
from harness.compare.caveats import origin
from harness.compare.tables import Table
from harness.report.html.markup import Markup, element
from harness.report.html.material import Material
from harness.report.html.parts import details, note, section, table
from harness.results import Manifest, Run

_LONGEST = 120


def provenance_section(material: Material, anchor: str) -> Markup | None:
    """Return the section."""
    runs = material.curves.all_runs()
    tables = [details(f"Show the {len(runs)} runs", table(_runs(material)), class_="printed")]
    tables += [
        details("Show machine and versions", element("div", table(_machine(runs)), class_="wrap"), class_="printed")
    ]
    settings = _settings(material)
    if settings.rows:
        tables.append(details("Show the settings", element("div", table(settings), class_="wrap")))
    shown = material.experiment
    said = note(f"{origin(shown)}. Experiment {shown.name}, started {shown.started_at}.")
    return section(anchor, "Provenance", said, _again(runs[0].manifest), *tables)


def _again(manifest: Manifest) -> Markup:
    """Say which command makes such an experiment."""
    commands = [f"git checkout {manifest.commit}"] if manifest.commit else []
    if manifest.simulated is None:
        commands.append(f"make bench SCENARIO={manifest.scenario}")
    else:
        commands.append(f"python -m harness simulate {manifest.scenario} --machine {manifest.simulated}")
    said = note("To run it again:")
    if manifest.dirty:
        said = note("To run it again (tracked files differed from the commit when these runs were made):")
    return element("div", said, element("pre", Markup("\n".join(element("code", item) for item in commands))))


def _runs(material: Material) -> Table:
    header = ("variant", "seed", "block", "status", "started", "start-up, s", "steps", "loop, s", "folder")
    rows = []
    for variant in material.experiment.variants:
        for figures, run in zip(variant.runs, material.curves.runs[variant.name], strict=True):
            manifest = run.manifest
            startup = numbers.NOTHING if manifest.startup_s is None else numbers.number(manifest.startup_s)
            block = numbers.NOTHING if manifest.block is None else str(manifest.block)
            facts = (str(manifest.seed), block, figures.status, manifest.started_at, startup, str(figures.steps))
            rows.append((variant.name, *facts, numbers.number(figures.loop_s), run.folder.name))
    return Table("Runs", header, tuple(rows), words=9)


def _machine(runs: list[Run]) -> Table:
    facts = dict[str, list[str]]()
    for run in runs:
        manifest = run.manifest
        own = [(f"machine.{key}", value) for key, value in _flat(manifest.machine)]
        own += [(f"version.{name}", version) for name, version in manifest.versions.items() if version]
        own += [("threads", manifest.threads), ("commit", manifest.commit), ("uncommitted changes", manifest.dirty)]
        own += [("policy parameters", manifest.parameters), ("probe profile", manifest.profile)]
        own += [("interleaving", manifest.interleaving), ("simulated by the profile", manifest.simulated)]
        for name, value in own:
            if value is not None:
                facts.setdefault(name, []).append(_written(value))
    rows = tuple((name, " / ".join(dict.fromkeys(values))) for name, values in facts.items())
    return Table("Machine and versions", ("fact", "value"), rows, words=2)


def _settings(material: Material) -> Table:
    """Return the resolved scenario, the settings in which variants differ first."""
    names = material.names
    columns = [dict(_flat(material.curves.runs[name][0].settings)) for name in names]
    keys = dict.fromkeys(key for column in columns for key in column if key not in ("name", "description", "seed"))
    same, differing = list[tuple[str, str]](), list[tuple[str, str]]()
    for key in keys:
        values = [_written(column.get(key)) for column in columns]
        if len(set(values)) == 1:
            same.append((key, values[0]))
        else:
            each = ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
            differing.append((key, each))
    notes = ("Settings that differ between the variants come first; of several seeds, those of the first.",)
    return Table("Resolved settings", ("setting", "value"), (*differing, *same), notes, words=2)


def _flat(values: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested mappings; empty ones stay as they are."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _written(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
