"""What is said of the memory of runs: a line before them, the whole table, and what they really held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.results import lane_kind
from harness.run.memory.fit import FreeMemory, amounts_by_name, gib, needed_main, needs, require_fit, ways_to_lower
from harness.run.memory.plan import plan_of, plans_of
from harness.run.memory.table import ALWAYS, RUNNING, SAMPLING, MemoryPlan
from harness.scenario.schema import Scenario

MEMORIES = {"gpu": "GPU memory", "main": "main memory"}
"""Where a run holds something, by its key in the manifest."""
_WHEN = {
    ALWAYS: "",
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


def check_memory(scenarios: Sequence[Scenario], free: FreeMemory) -> str:
    """Plan the memory of runs whose parts are alive at the same time; they are resolved.

    Returns:
        A line to show and to log: what is needed of what there is, or why there is no plan.

    Raises:
        UserError: they cannot fit; it names the largest part and which setting changes it.
    """
    plans, reason = plans_of(scenarios, free.has_gpu)
    if not plans:
        return f"memory plan: none, {reason}"
    require_fit(plans, free)
    parts = ", ".join(f"{name} {gib(size)}" for name, size in list(amounts_by_name(plans).items())[:3])
    text = f"memory plan: about {gib(needed_main(plans))} of {gib(free.main)} free"
    on_gpus = sum(plan.total("cuda") for plan in plans)
    if on_gpus:
        known = ", ".join("an unknown size" if size is None else gib(size) for size in free.gpus or (None,))
        text += f", and {gib(on_gpus)} on GPUs of {known} free"
    return f"{text} (largest: {parts})"


def what_to_lower(scenario: Scenario, lane: str) -> str:
    """Return what to write for a run whose GPU was full in spite of the plan.

    Args:
        scenario: resolved.
        lane: on which memory ran out; ``run`` where that is not known.
    """
    plan, _ = plan_of(scenario, has_gpu=True)
    of_lane = [each for each in plan.on("cuda") if each.kind in (lane_kind(lane), "run")] if plan else []
    largest = max(of_lane, key=lambda process: process.peak, default=None)
    sizes = {amount.name: amount.num_bytes for amount in largest.amounts} if largest else {}
    ways = ways_to_lower(dict(sorted(sizes.items(), key=lambda item: -item[1])), scenario)
    return ", or ".join([*ways, "take a GPU with more free memory (nvidia-smi names what else is on it)"])


def planned_bytes(scenarios: Sequence[Scenario], has_gpu: bool) -> dict[str, int]:
    """Return what is planned for runs side by side, by memory; empty where there is no plan."""
    plans, _ = plans_of(scenarios, has_gpu)
    if not plans:
        return {}
    more = sum(process.count * process.more for plan in plans for process in plan.processes)
    return {"main": needed_main(plans), "gpu": sum(plan.total("cuda") for plan in plans) + more}


def planned_of_lanes(scenario: Scenario, has_gpu: bool) -> dict[tuple[str, str], int]:
    """Return what is planned for the process of each lane alone, without what it shares, by memory and lane."""
    plan, _ = plan_of(scenario, has_gpu)
    return {
        ("main" if process.device == "cpu" else "gpu", lane): process.own_peak
        for process in (plan.processes if plan else ())
        for lane in process.lanes
    }


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
        figures = outcome[key]
        planned = f"planned {gib(figures['planned_bytes'])}, " if "planned_bytes" in figures else ""
        reserved = f", {gib(figures['reserved_bytes'])} reserved" if "reserved_bytes" in figures else ""
        number = "1 process" if figures["processes"] == 1 else f"{figures['processes']} processes"
        ranks = [
            f"{lane} {gib(each['peak_bytes'])}"
            + (f" of {gib(each['planned_bytes'])} planned" if "planned_bytes" in each else "")
            for lane, each in figures.get("lanes", {}).items()
            if lane_kind(lane) == "learner"
        ]
        of_ranks = "; of its own: " + ", ".join(ranks) if len(ranks) > 1 else ""
        parts.append(f"{planned}peak {gib(figures['peak_bytes'])}{reserved} ({name}, {number}{of_ranks})")
    return "memory: " + "; ".join(parts)


def memory_table(scenario: Scenario, has_gpu: bool) -> list[str]:
    """Return a table of one run's plan: by process every part, its bytes and when it is held; sums; the largest part.

    Where there is no plan, one line says why.
    """
    plan, reason = plan_of(scenario, has_gpu)
    return [f"memory plan: none, {reason}"] if plan is None else full_table(plan)


def full_table(plan: MemoryPlan) -> list[str]:
    """Return the lines of a plan's table; see ``memory_table``."""
    shape = plan.shape
    lines = [
        f"{shape.num_parameters:,} weights, {shape.num_hidden_layers} layers; "
        f"prompts of up to {plan.prompt_tokens} tokens are assumed"
    ]
    for process in plan.processes:
        count = f"{process.count} x " if process.count > 1 else ""
        together = ", sampling and training at once" if process.overlapping else ""
        lines.append(f"{count}{process.name} ({MEMORIES['main' if process.device == 'cpu' else 'gpu']}{together})")
        for amount in process.amounts:
            when = _WHEN.get(amount.phases, "while training")
            when = f"and up to {gib(amount.more)} more where free" if amount.more else when
            lines.append(f"  {amount.name:<32} {gib(amount.num_bytes):>10}  {when}".rstrip())
        share = process.vllm_share
        rest = "" if share is None else f"  and what is left of {share:g} of the GPU, for vLLM"
        lines.append(f"  {'at most':<32} {gib(process.peak + process.more):>10}{rest}")
    lines.append("together: " + ", ".join(f"{memory} {gib(size)}" for memory, size in needs([plan]).items()))
    sizes = amounts_by_name([plan])
    name, size = next(iter(sizes.items()))
    ways = ways_to_lower(sizes, plan.scenario)
    return [*lines, f"largest part: {name}, {gib(size)}" + (f"; for less, {', or '.join(ways)}" if ways else "")]
