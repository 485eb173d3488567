"""A memory plan as text: one line to see before a run, and the whole table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.run.memory.fit import Room, amounts_by_name, gib, needed_main
from harness.run.memory.plan import MemoryPlan, ProcessPlan

_PHASES = {"held": "", "sampling": "while sampling", "loading": "while weights come", "update": "while training"}
_SHOWN = 3


def summary(plans: Sequence[MemoryPlan], room: Room) -> str:
    """Return one line: what is needed at most, what there is, and the largest parts."""
    largest = sorted(amounts_by_name(plans).items(), key=lambda item: -item[1])[:_SHOWN]
    parts = ", ".join(f"{name} {gib(num_bytes)}" for name, num_bytes in largest)
    text = f"memory plan: about {gib(needed_main(plans))} of {gib(room.main)} free"
    on_gpus = sum(plan.total("cuda") for plan in plans)
    if on_gpus:
        text += f", and {gib(on_gpus)} on GPUs of {', '.join(gib(size) for size in room.gpus)} free"
    return f"{text} (largest: {parts})"


def full_table(plan: MemoryPlan) -> list[str]:
    """Return the lines of a table: for each process every purpose with its bytes and when it is held, and the peak."""
    shape = plan.shape
    lines = [
        f"{shape.num_parameters:,} weights, {shape.num_layers} layers; prompts of up to {plan.prompt_tokens} tokens "
        "are assumed"
    ]
    for process in plan.processes:
        lines.append(_title(process))
        for amount in process.amounts:
            when = f"and up to {gib(amount.more)} more where free" if amount.more else _PHASES[amount.phase]
            lines.append(f"  {amount.name:<32} {gib(amount.num_bytes):>10}  {when}".rstrip())
        lines.append(f"  {'at most':<32} {gib(process.peak + process.more):>10}")
    return lines


def _title(process: ProcessPlan) -> str:
    count = f"{process.count} x " if process.count > 1 else ""
    where = "main memory" if process.device == "cpu" else "GPU memory"
    together = ", sampling and training at once" if process.overlapping else ""
    return f"{count}{process.name} ({where}{together})"
