"""What a sweep is, so that its experiment's folder is found again: what its scenario says.

A sweep's folder has one file that other experiments have not, ``sweep.resolved.yaml``: the scenario with its arms and
axes and every default, written once and never changed. The folder is found again by it, and held by one process at a
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results import Scrubber, experiment_name
from harness.results.anonymous import safe_name
from harness.results.reader import flat_settings
from harness.results.writer import ATTEMPTS, utc_now
from harness.run.session import sync_to_disk
from harness.scenario.load import resolved_yaml
from harness.scenario.schema import Scenario

IDENTITY = "sweep.resolved.yaml"
_NOT_IDENTITY = ("name", "description")
_LEFT_OUT = object()
"""The value of a setting that a scenario does not have."""


def find_experiment(out: Path, scenario: Scenario) -> Path | None:
    """Return the newest experiment of a sweep that ran the very same scenario; None where there is none."""
    wanted = _settings(_text(scenario))
    return next((folder for folder, found in _newest_first(out, scenario) if found == wanted), None)


def changes_since_newest(out: Path, scenario: Scenario) -> tuple[Path, list[str]] | None:
    """Return the newest sweep of this name with what the scenario says otherwise now; None where there is none.

    Returns:
        its folder, and for each setting ``key: before -> now``.
    """
    now = flat_settings(_settings(_text(scenario)))
    for folder, found in _newest_first(out, scenario):
        before = flat_settings(found)
        keys = [key for key in {**now, **before} if now.get(key, _LEFT_OUT) != before.get(key, _LEFT_OUT)]
        return folder, [f"{key}: {_shown(before, key)} -> {_shown(now, key)}" for key in keys]
    return None


def begin_experiment(out: Path, scenario: Scenario) -> Path:
    """Make the folder of a new sweep and write into it what it is about.

    Raises:
        UserError: it cannot be made.
    """
    home = out / safe_name(scenario.name)
    for _ in range(ATTEMPTS):  # another command may take the name first
        folder = home / experiment_name(out, scenario.name, utc_now())
        try:
            home.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            with whole_file(folder / IDENTITY) as stream:
                stream.write(_text(scenario).encode())
        except FileExistsError:
            continue
        except OSError as error:
            what = f"cannot write to the results folder {str(folder)!r}: {error.strerror or error}"
            raise UserError(what, str(folder), "choose a folder you can write to with --out DIR") from error
        sync_to_disk(folder)
        return folder
    raise UserError(f"no free folder name below {home} in {ATTEMPTS} attempts", str(home))


def _newest_first(out: Path, scenario: Scenario) -> Iterator[tuple[Path, dict[str, Any]]]:
    home = out / safe_name(scenario.name)
    for file in sorted(home.glob(f"*/{IDENTITY}"), key=lambda file: _order(file.parent.name), reverse=True):
        with suppress(OSError, ValueError):  # unreadable: that one cannot be continued
            yield file.parent, _settings(file.read_text(encoding="utf-8"))


def _order(name: str) -> list[int]:
    """Experiment names are times, with -2 and so on for those of the same second."""
    return [int(part) for part in re.findall(r"\d+", name)]


def _text(scenario: Scenario) -> str:
    return Scrubber.of_this_process().paths(resolved_yaml(scenario))


def _settings(text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(data, dict):
        raise ValueError("no mapping")
    return {key: value for key, value in data.items() if key not in _NOT_IDENTITY}


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "left out"
