"""What a run really held, beside what was planned: for its manifest, and as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.models.scenario_shape import shape_for
from harness.run.memory.fit import gib, needed_main
from harness.run.memory.plan import make_plan
from harness.scenario import Scenario

MEMORIES = {"gpu": "GPU memory", "main": "main memory"}
"""Where a run holds something, by its key in the manifest."""


def planned_bytes(scenarios: Sequence[Scenario], has_gpu: bool) -> dict[str, int]:
    """Return what ``check_memory`` has planned for runs side by side, by memory; empty where there is no plan.

    Args:
        scenarios: of those runs, resolved.
        has_gpu: whether this machine has a GPU.
    """
    shapes = [shape_for(scenario)[0] for scenario in scenarios]
    if any(scenario.placement.address != "local" for scenario in scenarios):
        return {}
    plans = [
        make_plan(scenario, shape, has_gpu=has_gpu)
        for scenario, shape in zip(scenarios, shapes, strict=True)
        if shape is not None
    ]
    if len(plans) < len(scenarios):
        return {}
    taken_where_free = sum(process.count * process.more for plan in plans for process in plan.processes)
    return {"main": needed_main(plans), "gpu": sum(plan.total("cuda") for plan in plans) + taken_where_free}


def memory_line(outcome: Mapping[str, Mapping[str, Any]]) -> str:
    """Return ``planned 1.4 GiB, peak 1.3 GiB (main memory, 4 processes)``, for each memory that was measured.

    Args:
        outcome: by memory: ``peak_bytes`` and ``processes``; ``planned_bytes`` where there was a plan, and
            ``reserved_bytes`` where an allocator took more than it gave out.
    """
    parts = []
    for key, name in MEMORIES.items():
        if key not in outcome:
            continue
        found = outcome[key]
        planned = f"planned {gib(found['planned_bytes'])}, " if "planned_bytes" in found else ""
        reserved = f", {gib(found['reserved_bytes'])} reserved" if "reserved_bytes" in found else ""
        number = "1 process" if found["processes"] == 1 else f"{found['processes']} processes"
        parts.append(f"{planned}peak {gib(found['peak_bytes'])}{reserved} ({name}, {number})")
    return "memory: " + "; ".join(parts)
