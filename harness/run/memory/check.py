"""What is said of the memory of runs: a line before them, the whole table, and what they really held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.results import lane_kind
from harness.run.memory.amounts import RUNNING, SAMPLING
from harness.run.memory.fit import FreeMemory, amounts_by_name, first_changes, gib, needed_main, require_fit, yaml_of
from harness.run.memory.plan import MemoryPlan, ProcessPlan, plan_of, plans_of
from harness.scenario.schema import Scenario

MEMORIES = {"gpu": "GPU memory", "main": "main memory"}
"""Where a run holds something, by its key in the manifest."""
_WHEN = {
    RUNNING: "",
    ("startup",): "while starting",
    ("sampling",): "while sampling",
    SAMPLING: "while sampling",
    ("loading",): "while weights come",
    ("reference_logprobs",): "for reference log-probs",
    ("optimizer_step",): "in optimizer steps",
    ("publish",): "while publishing",
}
"""Phases in words; others are "while training"."""
_SHOWN = 3


def check_memory(scenarios: Sequence[Scenario], free: FreeMemory) -> str:
    """Plan the memory of runs whose parts are alive at the same time.

    Args:
        scenarios: of those runs, resolved.
        free: what the machine has left.

    Returns:
        A line to show and to log: what is needed of what there is, or why there is no plan.

    Raises:
        UserError: they cannot fit; it says which number to lower to what.
    """
    plans, reason = plans_of(scenarios, free.has_gpu)
    if not plans:
        return _no_plan(reason)
    require_fit(plans, free)
    return _summary(plans, free)


def what_to_lower(scenario: Scenario, lane: str) -> str:
    """Return what to write for a run whose GPU was full in spite of the plan.

    Args:
        scenario: resolved.
        lane: on which memory ran out; ``run`` where that is not known.
    """
    plan, _ = plan_of(scenario, has_gpu=True)
    changes = [] if plan is None else first_changes(plan, lane_kind(lane))
    ways = [f"set {key} to {yaml_of(value)}" for key, value in changes]
    return ", or ".join([*ways, "take a GPU with more free memory (nvidia-smi names what else is on it)"])


def planned_bytes(scenarios: Sequence[Scenario], has_gpu: bool) -> dict[str, int]:
    """Return what is planned for runs side by side, by memory; empty where there is no plan.

    Args:
        scenarios: of those runs, resolved.
        has_gpu: whether this machine has a GPU.
    """
    plans, _ = plans_of(scenarios, has_gpu)
    if not plans:
        return {}
    taken_where_free = sum(process.count * process.more for plan in plans for process in plan.processes)
    return {"main": needed_main(plans), "gpu": sum(plan.total("cuda") for plan in plans) + taken_where_free}


def planned_of_lanes(scenario: Scenario, has_gpu: bool) -> dict[tuple[str, str], int]:
    """Return what is planned for the process of each lane alone, without what it shares, by memory and lane."""
    plan, _ = plan_of(scenario, has_gpu)
    found: dict[tuple[str, str], int] = {}
    for process in plan.processes if plan else ():
        memory = "main" if process.device == "cpu" else "gpu"
        found |= {(memory, lane): process.own_peak for lane in process.lanes}
    return found


def memory_line(outcome: Mapping[str, Mapping[str, Any]]) -> str:
    """Return ``planned 1.4 GiB, peak 1.3 GiB (main memory, 4 processes)``, for each memory that was measured.

    Args:
        outcome: by memory: ``peak_bytes`` and ``processes``; ``planned_bytes`` where there was a plan,
            ``reserved_bytes`` where an allocator took more than it gave out, and ``lanes`` with the first two of each
            part that is a process, without what it shares with others.
    """
    parts = []
    for key, name in MEMORIES.items():
        if key not in outcome:
            continue
        found = outcome[key]
        planned = f"planned {gib(found['planned_bytes'])}, " if "planned_bytes" in found else ""
        reserved = f", {gib(found['reserved_bytes'])} reserved" if "reserved_bytes" in found else ""
        number = "1 process" if found["processes"] == 1 else f"{found['processes']} processes"
        parts.append(f"{planned}peak {gib(found['peak_bytes'])}{reserved} ({name}, {number}{_ranks(found)})")
    return "memory: " + "; ".join(parts)


def _ranks(found: Mapping[str, Any]) -> str:
    """Peak and plan of each rank of a Learner that has several, or nothing."""
    ranks = {lane: each for lane, each in found.get("lanes", {}).items() if lane_kind(lane) == "learner"}
    shown = []
    for lane, each in ranks.items():
        planned = f" of {gib(each['planned_bytes'])} planned" if "planned_bytes" in each else ""
        shown.append(f"{lane} {gib(each['peak_bytes'])}{planned}")
    return "; of its own: " + ", ".join(shown) if len(ranks) > 1 else ""


def memory_table(scenario: Scenario, has_gpu: bool) -> list[str]:
    """Return a table of one run's plan: by process every purpose, its bytes and when they are held, and the peak.

    Where there is no plan, one line says why.
    """
    plan, reason = plan_of(scenario, has_gpu)
    return [_no_plan(reason)] if plan is None else full_table(plan)


def _no_plan(reason: str) -> str:
    return f"memory plan: none, {reason}"


def full_table(plan: MemoryPlan) -> list[str]:
    """Return the lines of a plan's table; see ``memory_table``."""
    shape = plan.shape
    lines = [
        f"{shape.num_parameters:,} weights, {shape.num_hidden_layers} layers; "
        f"prompts of up to {plan.prompt_tokens} tokens are assumed"
    ]
    for process in plan.processes:
        lines.append(_title(process))
        for amount in process.amounts:
            when = _WHEN.get(amount.phases, "while training")
            when = f"and up to {gib(amount.more)} more where free" if amount.more else when
            lines.append(f"  {amount.name:<32} {gib(amount.num_bytes):>10}  {when}".rstrip())
        whole = (
            "" if process.vllm_share is None else f"  and what is left of {process.vllm_share:g} of the GPU, for vLLM"
        )
        lines.append(f"  {'at most':<32} {gib(process.peak + process.more):>10}{whole}")
    return lines


def _title(process: ProcessPlan) -> str:
    count = f"{process.count} x " if process.count > 1 else ""
    where = "main memory" if process.device == "cpu" else "GPU memory"
    together = ", sampling and training at once" if process.overlapping else ""
    return f"{count}{process.name} ({where}{together})"


def _summary(plans: Sequence[MemoryPlan], free: FreeMemory) -> str:
    """Return one line: what is needed at most, what there is, and the largest parts."""
    largest = sorted(amounts_by_name(plans).items(), key=lambda item: -item[1])[:_SHOWN]
    parts = ", ".join(f"{name} {gib(num_bytes)}" for name, num_bytes in largest)
    text = f"memory plan: about {gib(needed_main(plans))} of {gib(free.main)} free"
    on_gpus = sum(plan.total("cuda") for plan in plans)
    if on_gpus:
        known = ", ".join("an unknown size" if size is None else gib(size) for size in free.gpus or (None,))
        text += f", and {gib(on_gpus)} on GPUs of {known} free"
    return f"{text} (largest: {parts})"
