"""Whether runs fit into what a machine has free, and which number to lower where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.core.errors import UserError
from harness.models.config import can_be_cut
from harness.run.memory.plan import MemoryPlan, ProcessPlan, make_plan
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario

MAIN = "main memory"
SHARED = {
    "run": ("Python and its libraries",),
    "host of the GPU": ("Python and its libraries", "CUDA and its libraries"),
    "ray and driver": ("Python and its libraries", "Ray"),
}
"""What runs side by side have once, by process."""

Plans = Sequence[MemoryPlan]
"""Of runs side by side: their parts are alive at the same time."""
Change = tuple[str, Any]
"""A dotted key and its new value."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that a machine has left.

    Attributes:
        main: of main memory.
        gpus: of each GPU which a run may use; None where not known.
        gpu_sizes: all bytes of those GPUs, rounded to GiB, where known.
    """

    main: int
    gpus: tuple[int | None, ...] = ()
    gpu_sizes: tuple[int | None, ...] = ()

    @property
    def has_gpu(self) -> bool:
        """Whether there is a GPU for a run, however little is known of it."""
        return bool(self.gpus)


def free_main_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that new processes can take now: the smaller of the system's and the cgroup's."""
    free: int = psutil.virtual_memory().available
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _reclaimable(cgroup / "memory.stat")))


def _reclaimable(path: Path) -> int:
    """Bytes of files in memory that the cgroup counts as used and gives back when asked for."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split()[:1] in (["inactive_file"], ["active_file"]))
    except (OSError, ValueError, IndexError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" where there is no limit
        return None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where runs do not fit: on which memory, how much they need there and how much there is."""

    memory: str
    needed: int
    present: int


def needs(plans: Plans, gpu_sizes: Sequence[int | None] = ()) -> dict[str, int]:
    """Return the bytes needed of ``main memory``, ``GPU 0`` and so on.

    Processes of one run that compute on GPUs are laid onto them one after the other, as Ray does it with the shares
    that they reserve: each onto the first one with enough share left. What takes turns there is ``at_once``.

    Args:
        plans: of runs side by side.
        gpu_sizes: all bytes of each GPU, for a vLLM that is told to take a share of one.
    """
    left: list[float] = []
    on_gpus: list[int] = []
    for plan in plans:
        together: dict[int, list[ProcessPlan]] = {}
        for process in plan.on("cuda"):
            share = min(process.gpus, 1.0)
            index = next((index for index, free in enumerate(left) if free + 1e-9 >= share), len(left))
            if index == len(left):
                left.append(1.0)
                on_gpus.append(0)
            left[index] -= share
            together.setdefault(index, []).append(process)
        for index, processes in together.items():
            on_gpus[index] += plan.at_once(processes, gpu_sizes[index] if index < len(gpu_sizes) else None)
    return {MAIN: needed_main(plans)} | {f"GPU {index}": needed for index, needed in enumerate(on_gpus)}


def needed_main(plans: Plans) -> int:
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


def amounts_by_name(plans: Plans, device: str | None = None) -> dict[str, int]:
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


def shortages(plans: Plans, free: FreeMemory) -> list[Shortage]:
    """Return where runs do not fit. A GPU whose memory is not known is taken to be large enough."""
    present: dict[str, int | None] = {MAIN: free.main}
    present |= {f"GPU {index}": size for index, size in enumerate(free.gpus)}
    beyond = 0 if free.has_gpu else None
    found = [(memory, needed, present.get(memory, beyond)) for memory, needed in needs(plans, free.gpu_sizes).items()]
    return [Shortage(memory, needed, there) for memory, needed, there in found if there is not None and needed > there]


def require_fit(plans: Plans, free: FreeMemory) -> None:
    """Refuse runs that cannot fit.

    Raises:
        UserError: with what is needed, what there is, and what to write instead; that was computed again and fits.
    """
    found = shortages(plans, free)
    if not found:
        return
    first = found[0]
    sizes = amounts_by_name(plans, "cpu" if first.memory == MAIN else "cuda")
    name, num_bytes = max(sizes.items(), key=lambda item: item[1])
    raise UserError(
        f"the run needs about {gib(first.needed)} of {first.memory}, and {gib(first.present)} are free; the largest "
        f"part is {gib(num_bytes)} for {name}",
        "memory plan",
        _advice(plans, free, first.memory),
    )


def _advice(plans: Plans, free: FreeMemory, memory: str) -> str:
    """Return what to write so that the runs fit, neutral changes first."""
    changes = smallest_changes(plans, free)
    neutral = {tunable.key for tunable in TUNABLES if tunable.neutral}
    fit_alone = len(plans) > 1 and not any(shortages([plan], free) for plan in plans)
    if fit_alone and (not changes or not {key for key, _ in changes} <= neutral):
        largest = max(needs([plan]).get(memory, 0) for plan in plans)
        return (
            "set interleaving to run: the arms then run one after the other, each in the memory of the one before, "
            f"and the largest needs about {gib(largest)}"
        )
    if changes is None:
        what = "no setting makes it fit: take a smaller model"
        return what + (" or a machine with more memory" if memory == MAIN else " or a GPU with more memory")
    text = " and ".join(f"{key} to {yaml_of(value)}" for key, value in changes)
    return f"set {text}: then it needs about {gib(needs(changed(plans, changes)).get(memory, 0))}"


def smallest_changes(plans: Plans, free: FreeMemory) -> list[Change] | None:
    """Return the changes after which the runs fit; None where all tunables together do not suffice.

    First every neutral tunable alone, the one that saves most first, then the others likewise; then tunables put
    together in the same order until it fits, each at the first value that suffices or else at its last.
    """
    short = [found.memory for found in shortages(plans, free)]
    ordered = _tunables_in_order(plans, lambda of: sum(needs(of).get(memory, 0) for memory in short))
    for tunable in ordered:
        for value in tunable.values(plans[0].scenario):
            alone = changed(plans, [(tunable.key, value)])
            if _is_valid(alone) and not shortages(alone, free):
                return [(tunable.key, value)]
    together: list[Change] = []
    for tunable in ordered:
        last: Change | None = None
        for value in tunable.values(plans[0].scenario):
            after = changed(plans, [*together, (tunable.key, value)])
            if _is_valid(after):
                last = (tunable.key, value)
                if not shortages(after, free):
                    return [*together, last]
        together += [last] if last else []
    return None


def first_changes(plan: MemoryPlan, part: str) -> list[Change]:
    """Return the first change of each neutral tunable that saves GPU memory of a part; else of one that is not neutral.

    Args:
        plan: of the run whose numbers may be lowered.
        part: ``learner`` or ``generator``; parts of one process are planned together.
    """

    def need(plans: Plans) -> int:
        processes = plans[0].processes
        return max((each.peak for each in processes if each.device == "cuda" and each.kind in (part, "run")), default=0)

    found: list[Change] = []
    tunables = _tunables_in_order([plan], need)
    for tunable in [tunable for tunable in tunables if tunable.neutral] or tunables[:1]:
        after = ((value, changed([plan], [(tunable.key, value)])) for value in tunable.values(plan.scenario))
        saves = (value for value, plans in after if _is_valid(plans) and need(plans) < need([plan]))
        found.append((tunable.key, next(saves)))
    return found


def changed(plans: Plans, changes: Sequence[Change]) -> list[MemoryPlan]:
    """Return the plans of the same runs with these settings in the place of their own."""
    result = []
    for plan in plans:
        scenario = plan.scenario
        for key, value in changes:
            scenario = _with(scenario, key.split("."), value)
        result.append(make_plan(scenario, plan.shape, has_gpu=plan.has_gpu))
    return result


def _with(section: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    return section.model_copy(update={name: _with(getattr(section, name), rest, value) if rest else value})


def _is_valid(plans: Plans) -> bool:
    """Whether every scenario keeps the rules, and its model can be cut over its tensor ranks."""
    return not any(broken_rules(plan.scenario) for plan in plans) and all(
        can_be_cut(plan.shape, plan.scenario.learner.mesh.tensor) for plan in plans
    )


def _tunables_in_order(plans: Plans, need: Callable[[Plans], int]) -> list[Tunable]:
    """Return the tunables that can save something, neutral ones first, those that save most at their last value first.

    Args:
        plans: of the runs whose numbers may be lowered.
        need: the bytes to be saved.
    """
    now = need(plans)
    savings = []
    for tunable in TUNABLES:
        changes = [[(tunable.key, value)] for value in tunable.values(plans[0].scenario)]
        valid = [after for after in (changed(plans, change) for change in changes) if _is_valid(after)]
        saving = now - need(valid[-1]) if valid else 0
        if saving > 0:
            savings.append((not tunable.neutral, -saving, tunable.key, tunable))
    return [tunable for *_, tunable in sorted(savings, key=lambda entry: entry[:3])]


def gib(num_bytes: float) -> str:
    """A size in GiB with one or two decimals."""
    size = num_bytes / 2**30
    return f"{size:.1f} GiB" if size >= 1 else f"{size:.2f} GiB"


def yaml_of(value: Any) -> str:
    """A value as it is written in a scenario."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Tunable:
    """A number that decides about memory: its values from the present one on, each smaller than the one before.

    ``neutral`` ones change seconds and nothing else; the others change the experiment.
    """

    key: str
    neutral: bool
    values: Callable[[Scenario], Iterator[Any]]


def _more_microbatches(scenario: Scenario) -> Iterator[int]:
    size, now = scenario.train_batch_size, scenario.gradient_accumulation_steps
    yield from (steps for steps in range(now + 1, size + 1) if size % steps == 0)


def _halves(now: int, least: int) -> Iterator[int]:
    while now // 2 >= least:
        now //= 2
        yield now


def _checkpointing(scenario: Scenario) -> Iterator[bool]:
    if getattr(scenario.model, "gradient_checkpointing", None) is False:
        yield True


def _bfloat16(section: str, name: str) -> Callable[[Scenario], Iterator[str]]:
    def values(scenario: Scenario) -> Iterator[str]:
        if getattr(getattr(scenario, section), name, None) == "float32":
            yield "bfloat16"

    return values


def _smaller_engine_batch(scenario: Scenario) -> Iterator[int]:
    now = getattr(scenario.engine, "max_batch", 1)
    used = max(scenario.rollout_batch_size, scenario.evaluation.prompts)
    yield from _halves(min(now, used), 1)


def _to(key: str, best: str) -> Callable[[Scenario], Iterator[str]]:
    def values(scenario: Scenario) -> Iterator[str]:
        if scenario.placement.learner.ranks > 1 and getattr(scenario.learner, key) != best:
            yield best

    return values


def _more_ranks(scenario: Scenario) -> Iterator[int]:
    now = scenario.placement.learner.ranks
    if now > 1 and scenario.learner.sharding != "ddp":
        yield from (now * 2**power for power in range(1, 7))


def _more_tensor_ranks(scenario: Scenario) -> Iterator[int]:
    now, ranks = scenario.learner.mesh.tensor, scenario.placement.learner.ranks
    yield from (size for size in range(now + 1, ranks + 1) if ranks % size == 0)


TUNABLES = (
    Tunable("gradient_accumulation_steps", True, _more_microbatches),
    Tunable("engine.max_batch", True, _smaller_engine_batch),
    Tunable("model.gradient_checkpointing", True, _checkpointing),
    Tunable("learner.sharding", True, _to("sharding", "fsdp2")),
    Tunable("learner.publish", True, _to("publish", "shards")),
    Tunable("learner.mesh.tensor", True, _more_tensor_ranks),
    Tunable("placement.learner.ranks", True, _more_ranks),
    Tunable("engine.precision", False, _bfloat16("engine", "precision")),
    Tunable("model.precision", False, _bfloat16("model", "precision")),
    Tunable("model.dtype", False, _bfloat16("model", "dtype")),
    Tunable("sampling.max_tokens", False, lambda scenario: _halves(scenario.sampling.max_tokens, 1)),
    Tunable("placement.generator.count", True, lambda scenario: _halves(scenario.placement.generator.count, 1)),
)
"""What decides about memory. Not among them: ``rollout_batch_size``, which ``gradient_accumulation_steps`` stands for
as far as memory goes."""
