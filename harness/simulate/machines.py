"""Machine profile files: found by name or path, checked, written; errors say what, where and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.scenario.problems import Path as KeyPath
from harness.scenario.problems import Problem, broken, dotted
from harness.scenario.yaml_files import NamedFiles, load_checked
from harness.simulate.machine import MachineProfile

FOLDER = "profiles/machines"
MACHINES = NamedFiles(
    "machine profile", FOLDER, "name: my-machine", "(`python -m harness calibrate --name NAME` makes one)"
)
WIDTH = 120
"""Characters of a line in a written profile."""
DIGITS = 6
"""Significant digits of its figures."""


def known_machines() -> list[str]:
    """Return the names of all profiles, sorted."""
    return [path.stem for path in MACHINES.files()]


def load_machine(name_or_path: str | Path) -> MachineProfile:
    """Load a machine profile and check it.

    Args:
        name_or_path: a YAML file, or the name of one in ``profiles/machines``.

    Raises:
        UserError: there is none of that name (the nearest ones are named), it is not YAML, or it says something wrong;
            one error names every problem.
    """
    return load_checked(MACHINES, name_or_path, MachineProfile, _broken_rules)


def save_machine(profile: MachineProfile, path: Path) -> None:
    """Write a profile, whole or not at all; its folder is made where it is missing.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write(profile_yaml(profile).encode())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", str(path), "give a file you may write: --out FILE"
        ) from None


def profile_yaml(profile: MachineProfile) -> str:
    """Return the text of a profile's file: the same profile always gives the same bytes."""
    data = profile.model_dump(mode="json", exclude_defaults=True)
    data = {"name": profile.name, "description": profile.description, "origin": profile.origin} | data
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=WIDTH, allow_unicode=True)
    return _header(profile) + "\n" + text


def rounded(value: float) -> float:
    """Return a number with ``DIGITS`` significant digits: a profile of such numbers reads back as itself."""
    return float(f"{value:.{DIGITS}g}")


def check_versions(profile: MachineProfile, installed: Mapping[str, str]) -> list[str]:
    """Return in words how the versions that a profile was measured with differ from others; none where they agree.

    Args:
        profile: of the machine.
        installed: versions by package; one that is not among them is not compared.
    """
    return [
        f"{package} {version} in the profile {profile.name}, {installed[package]} installed here"
        for package, version in profile.versions.items()
        if package in installed and installed[package] != version
    ]


class _Dumper(yaml.SafeDumper):
    """Writes plain values without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _header(profile: MachineProfile) -> str:
    if profile.origin == "datasheet":
        return (
            "# Not measured: derived from data sheets (see `sources`) by "
            "`python -m harness.simulate.calibrate.datasheets`.\n"
            "# Predictions from it are rough; docs/calibrating.md says how it is derived.\n"
        )
    return (
        f"# Measured: written by `python -m harness calibrate --name {profile.name}` from the runs in `sources`.\n"
        "# docs/calibrating.md says what stands here and when not to believe it.\n"
    )


def _broken_rules(profile: MachineProfile) -> list[Problem]:
    """What types cannot say: a covariance is square and as large as its terms, a range does not run backwards."""
    problems = []
    for index, cost in enumerate(profile.stages):
        path: KeyPath = ("stages", index)
        terms = len(cost.seconds)
        if cost.covariance and [len(row) for row in cost.covariance] != [terms] * terms:
            what = f"`{dotted((*path, 'covariance'))}` must have {terms} rows of {terms} numbers, as many as `seconds`"
            problems.append(Problem(what, "leave it out where it is not known", ((*path, "covariance"),)))
        for term, (low, high) in cost.ranges.items():
            if low > high:
                what = f"`{dotted((*path, 'ranges', term))}` runs from {low:g} down to {high:g}"
                problems.append(Problem(what, "write the smaller one first", ((*path, "ranges", term),)))
    for index, lengths in enumerate(profile.lengths):
        for key, values in (("prompts", lengths.prompts), ("trained", lengths.trained)):
            if values and len(values) != len(lengths.groups):
                what = f"`lengths[{index}].{key}` has {len(values)} items, one for each of {len(lengths.groups)} groups"
                problems.append(Problem(what, "leave none out", (("lengths", index, key),)))
    if not profile.sources:
        problems.append(broken("`sources` must not be empty", "name the runs or web addresses", "sources"))
    return problems
