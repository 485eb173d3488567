"""Whether runs fit into what a machine has, and which number to lower where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import UserError
from harness.models.shape import Shape
from harness.run.memory.levers import LEVERS, Lever
from harness.run.memory.plan import MemoryPlan, ProcessPlan, make_plan
from harness.scenario import Scenario, broken_rules

SHARED = {
    "run": ("Python and its libraries",),
    "host of the GPU": ("Python and its libraries",),
    "ray and driver": ("Python and its libraries", "Ray"),
}
"""What runs side by side have once, by process."""

Runs = Sequence[tuple[Scenario, Shape]]
Change = tuple[str, Any]
"""A dotted key and its new value."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a machine has left, in bytes: main memory, and the memory of each GPU that a run may use."""

    main: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where runs do not fit: on which memory, how much they need there and how much there is."""

    memory: str
    needed: int
    present: int


def shortage(runs: Runs, room: Room) -> Shortage | None:
    """Return where runs that stand side by side do not fit; None where they do.

    Processes of one run that compute on GPUs are laid onto them one after the other, as Ray does it with the shares
    that they reserve.
    """
    return next(iter(_shortages(runs, room)), None)


def plans_of(runs: Runs, room: Room) -> list[MemoryPlan]:
    """Return the plan of each run on a machine with this room."""
    return [make_plan(scenario, shape, has_gpu=bool(room.gpus)) for scenario, shape in runs]


def _shortages(runs: Runs, room: Room) -> list[Shortage]:
    plans = plans_of(runs, room)
    needs = [Shortage("main memory", needed_main(plans), room.main)]
    for index, needed in enumerate(_per_gpu(plans)):
        needs.append(Shortage(f"GPU {index}", needed, room.gpus[index] if index < len(room.gpus) else 0))
    return [need for need in needs if need.needed > need.present]


def needed_main(plans: Sequence[MemoryPlan]) -> int:
    """Bytes of main memory that plans need together; what several of them share counts once."""
    total = sum(plan.total("cpu") for plan in plans)
    shared = [
        sum(
            amount.num_bytes
            for process in plan.processes
            for amount in process.amounts
            if process.device == "cpu" and amount.name in SHARED.get(process.name, ())
        )
        for plan in plans
    ]
    return total - sum(shared) + max(shared, default=0)


def require_fit(runs: Runs, room: Room) -> None:
    """Refuse runs that cannot fit.

    Raises:
        UserError: with what is needed, what there is, and what to write instead; that was computed again and fits.
    """
    found = shortage(runs, room)
    if found is None:
        return
    sizes = amounts_by_name(plans_of(runs, room), "cpu" if found.memory == "main memory" else "cuda")
    name, num_bytes = max(sizes.items(), key=lambda item: item[1])
    raise UserError(
        f"the run needs about {gib(found.needed)} of {found.memory}, and {gib(found.present)} are free; the largest "
        f"part is {gib(num_bytes)} for {name}",
        "memory plan",
        advice(runs, room, found),
    )


def advice(runs: Runs, room: Room, found: Shortage) -> str:
    """Return what to write so that the runs fit, neutral changes first."""
    changes = smallest_changes(runs, room)
    neutral = {lever.key for lever in LEVERS if lever.neutral}
    if not changes or not {key for key, _ in changes} <= neutral:
        largest = _largest_alone(runs, room, found.memory)
        if largest is not None:
            return (
                "set interleaving to run: the arms then run one after the other, each in the memory of the one before, "
                f"and the largest needs about {gib(largest)}"
            )
    if changes is None:
        what = "no setting makes it fit: take a smaller model"
        return what + (" or a GPU with more memory" if "GPU" in found.memory else " or a machine with more memory")
    after = needed_after(runs, changes, room, found.memory)
    text = " and ".join(f"{key} to {yaml_of(value)}" for key, value in changes)
    return f"set {text}: then it needs about {gib(after)}"


def _largest_alone(runs: Runs, room: Room, memory: str) -> int | None:
    """Bytes that the largest run needs by itself; None where there is one run, or one that does not even fit alone."""
    if len(runs) < 2 or any(shortage([run], room) is not None for run in runs):
        return None
    return max(needed_after([run], (), room, memory) for run in runs)


def smallest_changes(runs: Runs, room: Room) -> list[Change] | None:
    """Return the changes after which the runs fit; None where all levers together do not suffice.

    First every neutral lever alone, the one that saves most first, then the others likewise; then levers put together
    in the same order until it fits, each at the first value that suffices or else at its last.
    """
    ordered = _by_saving(runs, room)
    for lever in ordered:
        for value in lever.values(runs[0][0]):
            if _fits(changed(runs, [(lever.key, value)]), room):
                return [(lever.key, value)]
    together: list[Change] = []
    for lever in ordered:
        last: Change | None = None
        for value in lever.values(runs[0][0]):
            if not is_valid(changed(runs, [*together, (lever.key, value)])):
                continue
            last = (lever.key, value)
            if _fits(changed(runs, [*together, last]), room):
                return [*together, last]
        together += [last] if last else []
    return None


def first_changes(run: tuple[Scenario, Shape], part: str) -> list[Change]:
    """Return the first change of each neutral lever that saves GPU memory of a part; else of one that is not neutral.

    Args:
        run: whose numbers may be lowered.
        part: ``learner`` or ``generator``; parts of one process are planned together.
    """

    def need(runs: Runs) -> int:
        processes = make_plan(*runs[0], has_gpu=True).processes
        return max((each.peak for each in processes if each.device == "cuda" and each.name in (part, "run")), default=0)

    found: list[Change] = []
    levers = levers_in_order([run], need)
    for lever in [lever for lever in levers if lever.neutral] or levers[:1]:
        values = lever.values(run[0])
        after = ((value, changed([run], [(lever.key, value)])) for value in values)
        found.append((lever.key, next(value for value, runs in after if is_valid(runs) and need(runs) < need([run]))))
    return found


def changed(runs: Runs, changes: Sequence[Change]) -> list[tuple[Scenario, Shape]]:
    """Return the runs with these settings in the place of their own."""
    result = []
    for scenario, shape in runs:
        for key, value in changes:
            scenario = _with(scenario, key.split("."), value)
        result.append((scenario, shape))
    return result


def is_valid(runs: Runs) -> bool:
    """Whether every scenario keeps the rules."""
    return not any(broken_rules(scenario) for scenario, _ in runs)


def needed_after(runs: Runs, changes: Sequence[Change], room: Room, memory: str) -> int:
    """Return the bytes that the runs need of that memory after these changes."""
    plans = plans_of(changed(runs, changes), room)
    if memory == "main memory":
        return needed_main(plans)
    return dict(enumerate(_per_gpu(plans))).get(int(memory.removeprefix("GPU ")), 0)


def gib(num_bytes: float) -> str:
    """A size in GiB with one or two decimals."""
    size = num_bytes / 2**30
    return f"{size:.1f} GiB" if size >= 1 else f"{size:.2f} GiB"


def _fits(runs: Runs, room: Room) -> bool:
    return is_valid(runs) and shortage(runs, room) is None


def _by_saving(runs: Runs, room: Room) -> list[Lever]:
    """The levers that save something where memory is short; see ``levers_in_order``."""
    short = [found.memory for found in _shortages(runs, room)]
    return levers_in_order(runs, lambda of: sum(needed_after(of, (), room, memory) for memory in short))


def levers_in_order(runs: Runs, need: Callable[[Runs], int]) -> list[Lever]:
    """Return the levers that have room to move, neutral ones first, those that save most at their last value first.

    Args:
        runs: whose numbers may be lowered.
        need: the bytes to be saved.
    """
    now = need(runs)
    savings = []
    for lever in LEVERS:
        values = [value for value in lever.values(runs[0][0]) if is_valid(changed(runs, [(lever.key, value)]))]
        saving = now - need(changed(runs, [(lever.key, values[-1])])) if values else 0
        if saving > 0:
            savings.append((not lever.neutral, -saving, lever.key, lever))
    return [lever for *_, lever in sorted(savings, key=lambda entry: entry[:3])]


def _per_gpu(plans: Sequence[MemoryPlan]) -> list[int]:
    """Bytes on each GPU when processes are laid onto GPUs in order, each into the first one with enough share left."""
    free: list[float] = []
    needed: list[int] = []
    for process in _on_gpus(plans):
        share = min(process.gpus, 1.0)
        index = next((index for index, left in enumerate(free) if left + 1e-9 >= share), len(free))
        if index == len(free):
            free.append(1.0)
            needed.append(0)
        free[index] -= share
        needed[index] += process.peak
    return needed


def _on_gpus(plans: Sequence[MemoryPlan]) -> Iterator[ProcessPlan]:
    for plan in plans:
        for process in plan.processes:
            if process.device == "cuda":
                yield from [process] * process.count


def amounts_by_name(plans: Sequence[MemoryPlan], device: str | None = None) -> dict[str, int]:
    """Bytes for each purpose, of all processes together; what plans share counts once.

    Args:
        plans: of runs side by side.
        device: only what lies there.
    """
    sizes: dict[str, int] = {}
    for number, plan in enumerate(plans):
        for process in plan.processes:
            for amount in process.amounts if device in (None, process.device) else ():
                if number == 0 or amount.name not in SHARED.get(process.name, ()):
                    sizes[amount.name] = sizes.get(amount.name, 0) + amount.num_bytes * process.count
    return sizes


def _with(scenario: Scenario, path: Sequence[str], value: Any) -> Any:
    section: Any = scenario
    if len(path) == 1:
        return section.model_copy(update={path[0]: value})
    return section.model_copy(update={path[0]: _with(getattr(section, path[0]), path[1:], value)})


def yaml_of(value: Any) -> str:
    """A value as it is written in a scenario."""
    return str(value).lower() if isinstance(value, bool) else str(value)
