"""The machine profile for a recorded run: the named one, or the one that was made on its machine with its versions."""

from __future__ import annotations

from harness.core.errors import UserError
from harness.results import Run
from harness.simulate.machine import MachineProfile
from harness.simulate.machines import MACHINES, known_machines, load_machine


def choose_machine(run: Run, asked: str | MachineProfile | None, needed_for: str | None) -> MachineProfile | None:
    """Return the profile to use; None where none fits and none is needed.

    Args:
        run: the recorded one.
        asked: a profile, its name or its path; None looks for one.
        needed_for: why costs are needed; None where they are not.

    Raises:
        UserError: a profile is needed and none fits; or there is none of that name.
    """
    if asked is not None:
        return asked if isinstance(asked, MachineProfile) else load_machine(asked)
    reasons = []
    for known in known_machines():
        profile = _of_machine(known, run)
        reason = "another machine" if profile is None else _other_versions(run, profile)
        if profile is not None and not reason:
            return profile
        reasons.append(f"{known}: {reason}")
    if needed_for is None:
        return None
    raise UserError(
        f"{needed_for}, so a machine profile is needed, and none was made where this run ran"
        + (f" ({'; '.join(reasons)})" if reasons else ""),
        "profiles/machines",
        "name one with --machine NAME, or make one: python -m harness calibrate --name NAME",
    )


def _of_machine(name: str, run: Run) -> MachineProfile | None:
    """Return the profile of this name if it was measured on the run's machine.

    A profile is long, and most are of other machines: only one in whose text the machine stands is read in full.
    """
    fingerprint = run.manifest.machine.get("fingerprint")
    if not fingerprint or str(fingerprint) not in MACHINES.find(name).read_text(encoding="utf-8", errors="replace"):
        return None
    profile = load_machine(name)
    return profile if profile.origin == "measured" and profile.device.fingerprint == fingerprint else None


def _other_versions(run: Run, profile: MachineProfile) -> str:
    """Return how the versions that a profile was measured with differ from the run's; empty where they do not."""
    ran = {package: version for package, version in run.manifest.versions.items() if version}
    return ", ".join(
        f"measured with {package} {version}, the run had {ran[package]}"
        for package, version in profile.versions.items()
        if package in ran and ran[package] != version
    )
