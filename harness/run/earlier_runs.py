"""What a run records of its settings, and runs that were finished on this machine before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.core.experiment import NAMING
from harness.probes.provenance import machine_facts, package_versions
from harness.results import Manifest, Scrubber
from harness.results.reader import find_run_folders, parse_settings, read_manifest
from harness.scenario.load import resolved_yaml
from harness.scenario.schema import Scenario


def made_here(home: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield the runs of a scenario that were finished on this machine with these versions, the newest first."""
    if not home.is_dir():
        return
    fingerprint, versions, found = machine_facts()["fingerprint"], package_versions(), list[tuple[Path, Manifest]]()
    with suppress(UserError):
        for folder in find_run_folders(home):
            with suppress(UserError):
                found.append((folder, read_manifest(folder)))
    for folder, run in sorted(found, key=lambda each: each[1].started_at, reverse=True):
        is_real = run.status == "completed" and run.simulated is None
        if is_real and run.machine.get("fingerprint") == fingerprint and run.versions == versions:
            yield folder, run


def recorded_text(scenario: Scenario) -> str:
    """Return the file that a run of this scenario keeps of its settings, without paths of this machine."""
    return Scrubber.of_this_process().paths(resolved_yaml(scenario))


def as_recorded(scenario: Scenario) -> dict[str, Any]:
    """Return the settings in that file."""
    return parse_settings(recorded_text(scenario))


def differing(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> set[str]:
    """Return the top-level settings in which two recorded scenarios differ, but for what names or lists them."""
    return {key for key in {*recorded, *wanted} - {*NAMING} if recorded.get(key) != wanted.get(key)}
