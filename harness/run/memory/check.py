"""The memory plan of runs that stand side by side: told, and refused where it cannot fit."""

from __future__ import annotations

from collections.abc import Sequence

from harness.models.scenario_shape import shape_for
from harness.results import lane_kind
from harness.run.memory.fit import Room, first_changes, plans_of, require_fit, yaml_of
from harness.run.memory.plan import make_plan
from harness.run.memory.table import full_table, summary
from harness.scenario import Scenario


def check_memory(scenarios: Sequence[Scenario], room: Room) -> str:
    """Plan the memory of runs whose parts are alive at the same time.

    Args:
        scenarios: of those runs, resolved.
        room: what the machine has left.

    Returns:
        A line to show and to log: what is needed of what there is, or why there is no plan.

    Raises:
        UserError: they cannot fit; it says which number to lower to what.
    """
    known = []
    for scenario in scenarios:
        shape, reason = shape_for(scenario)
        if shape is None:
            return f"memory plan: none, {reason}"
        known.append((scenario, shape))
    if any(scenario.placement.address != "local" for scenario in scenarios):
        return "memory plan: none, the parts run on a cluster"
    if not room.gpus and any(scenario.uses_gpu(has_gpu=False) for scenario in scenarios):
        return "memory plan: none, the GPU's memory is not known"
    require_fit(known, room)
    return summary(plans_of(known, room), room)


def what_to_lower(scenario: Scenario, lane: str) -> str:
    """Return what to write for a run whose GPU was full in spite of the plan.

    Args:
        scenario: resolved.
        lane: on which memory ran out; ``run`` where that is not known.
    """
    shape, _ = shape_for(scenario)
    changes = [] if shape is None else first_changes((scenario, shape), lane_kind(lane))
    ways = [f"set {key} to {yaml_of(value)}" for key, value in changes]
    return ", or ".join([*ways, "take a GPU with more free memory (nvidia-smi names what else is on it)"])


def memory_table(scenario: Scenario, has_gpu: bool) -> list[str]:
    """Return the lines of the whole plan of one run, or one line that says why there is none."""
    shape, reason = shape_for(scenario)
    if shape is None:
        return [f"no memory plan: {reason}"]
    return full_table(make_plan(scenario, shape, has_gpu=has_gpu))
