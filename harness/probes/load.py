"""Probe profile files: found by name or path, checked; errors say what, where and what to write instead."""

from __future__ import annotations

from pathlib import Path

from harness.core.named_files import NamedFiles
from harness.probes.profile import ProbeProfile
from harness.scenario.load import load_checked
from harness.scenario.problems import Problem, broken

PROFILES = NamedFiles("probe profile", "profiles", "sampler_hz: 5")


def load_profile(path_or_name: str | Path) -> ProbeProfile:
    """Load a probe profile, a YAML file or the name of one in a profiles folder, and check it.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    return load_checked(PROFILES, path_or_name, ProbeProfile, _broken_rules)


def _broken_rules(profile: ProbeProfile) -> list[Problem]:
    if profile.own and profile.sampler_hz == 0:
        what = f"`own` names {len(profile.own)} probes, which are read with each sample, and `sampler_hz` is 0"
        return [broken(what, "set sampler_hz, for example to 5", "own", "sampler_hz")]
    if profile.torch_profiler is None or profile.nsight is None:
        return []
    what = "`torch_profiler` and `nsight` in one profile: only one of them can listen to the GPU in a process"
    return [broken(what, "leave one of them out", "torch_profiler", "nsight")]
