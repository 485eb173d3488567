"""What can be found wrong before anything is built: probes and trackers that cannot do their work here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from harness.build import all_lanes
from harness.probes.load import load_profile
from harness.probes.nsight import check_nsight
from harness.probes.pyspy import check_pyspy
from harness.probes.windows import check_windows
from harness.scenario import Scenario
from harness.trackers.streams import check_trackers


def check_before_start(scenarios: Sequence[Scenario]) -> None:
    """Refuse runs whose probes or trackers would fail later, or record nothing.

    Raises:
        UserError: an unknown profile, a window outside of the run, a profiler or tracker that cannot work here.
    """
    for scenario in scenarios:
        check_trackers(scenario.trackers)
        profile = load_profile(scenario.profile)
        check_windows(profile, all_lanes(scenario), scenario.steps)
        if profile.nsight is not None:
            placement = scenario.placement
            gpus = placement.generator.gpus > 0 or placement.learner.gpus > 0
            check_nsight(profile.nsight, scenario.uses_ray, placement.address == "local", _command(), gpus)
    if any(load_profile(scenario.profile).pyspy is not None for scenario in scenarios):
        check_pyspy()


def _command() -> list[str]:
    """What was typed, as it can be typed again."""
    return ["python", "-m", "harness", *map(shlex.quote, sys.argv[1:])]
