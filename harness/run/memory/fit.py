"""Whether runs fit into what a machine has free, and which setting to change where they do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.core.errors import UserError
from harness.run.memory.table import CACHE, Device, MemoryPlan, ProcessPlan
from harness.scenario.schema import Scenario

MAIN = "main memory"
Plans = Sequence[MemoryPlan]
"""Of runs side by side: their parts are alive at the same time."""
_BATCH = ("activations", "logits", "one layer's way back")
_MODEL = ("policy", "optimizer", "gradients", "gradient buckets", "whole for a while")
_COPIES = ("reference and previous policy", "float32 average of the reference policy")
_ENGINE = ("engine weights", "new engine weights", "engine weights, asleep")
WAYS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("gradient_accumulation_steps", _BATCH, "raise"),
    ("model.gradient_checkpointing", _BATCH, "true"),
    ("placement.learner.ranks", (*_MODEL, *_BATCH), "raise"),
    ("learner.sharding", (*_MODEL, *_COPIES), "fsdp2"),
    ("learner.publish", ("gathered weights", "published weights"), "shards"),
    ("engine.max_batch", (CACHE, "sampling logits"), "lower"),
    ("engine.precision", (*_ENGINE, CACHE), "bfloat16"),
    ("placement.generator.count", (*_ENGINE, CACHE, "received weights", "Python and its libraries"), "lower"),
    ("model.dtype", (*_MODEL, *_COPIES, "published weights", "received weights", "offloaded"), "bfloat16"),
    ("loss.kl.monitor", ("reference and previous policy",), "false"),
    ("checkpoint.asynchronous", ("copy for checkpoints",), "false"),
    ("save_policy", ("policy, to be saved",), "false"),
    ("sampling.max_tokens", (*_BATCH, CACHE), "lower"),
)
"""A setting, the parts that are smaller by it, and how to change it; those that change seconds alone come first."""


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
    """Return the bytes that new processes can take now: the smaller of the system's and the cgroup's.

    Files in memory that the cgroup counts as used are given back when asked for.
    """
    free: int = psutil.virtual_memory().available
    try:
        limit, used = (int((cgroup / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # "max" where there is no limit
        return free
    try:
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
        files = sum(int(line.split()[1]) for line in lines if line.split()[:1] in (["inactive_file"], ["active_file"]))
    except (OSError, ValueError, IndexError):
        files = 0
    return max(0, min(free, limit - used + files))


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
    once = [sum(amount.num_bytes for process in plan.processes for amount in process.once) for plan in plans]
    return sum(plan.total("cpu") for plan in plans) - sum(once) + max(once, default=0)


def amounts_by_name(plans: Plans, device: Device | None = None) -> dict[str, int]:
    """Bytes of each part, of all processes (on a device) together, the largest first; what plans share counts once."""
    sizes: dict[str, int] = {}
    for number, plan in enumerate(plans):
        for process in plan.processes:
            for amount in process.amounts if device in (None, process.device) else ():
                if number == 0 or amount not in process.once:
                    sizes[amount.name] = sizes.get(amount.name, 0) + amount.num_bytes * process.count
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def shortages(plans: Plans, free: FreeMemory) -> list[Shortage]:
    """Return where runs do not fit. A GPU whose memory is not known is taken to be large enough."""
    present: dict[str, int | None] = {MAIN: free.main}
    present |= {f"GPU {index}": size for index, size in enumerate(free.gpus)}
    beyond = 0 if free.has_gpu else None
    each = [(memory, needed, present.get(memory, beyond)) for memory, needed in needs(plans, free.gpu_sizes).items()]
    return [Shortage(memory, needed, there) for memory, needed, there in each if there is not None and needed > there]


def require_fit(plans: Plans, free: FreeMemory) -> None:
    """Refuse runs that cannot fit.

    Raises:
        UserError: with what is needed, what there is, the largest part, and which settings change it.
    """
    first = next(iter(shortages(plans, free)), None)
    if first is None:
        return
    sizes = amounts_by_name(plans, "cpu" if first.memory == MAIN else "cuda")
    name, num_bytes = next(iter(sizes.items()))
    if len(plans) > 1 and not any(shortages([plan], free) for plan in plans):
        largest = max(needs([plan]).get(first.memory, 0) for plan in plans)
        fix = (
            "set interleaving to run: the arms then run one after the other, each in the memory of the one before, "
            f"and the largest needs about {gib(largest)}"
        )
    else:
        machine = "a machine with more memory" if first.memory == MAIN else "a GPU with more memory"
        fix = ", or ".join([*ways_to_lower(sizes, plans[0].scenario), f"take a smaller model or {machine}"])
    raise UserError(
        f"the run needs about {gib(first.needed)} of {first.memory}, and {gib(first.present)} are free; the largest "
        f"part is {gib(num_bytes)} for {name}",
        "memory plan",
        fix,
    )


def ways_to_lower(sizes: Mapping[str, int], scenario: Scenario) -> list[str]:
    """Return what to write for less of the largest part that a setting changes.

    Args:
        sizes: bytes of each part, the largest first; another part than the first is named.
        scenario: whose settings are changed.
    """
    for number, (name, num_bytes) in enumerate(sizes.items()):
        ways = list(_ways(name, scenario))
        if ways:
            ways[0] = f"{ways[0]} (for {name}, {gib(num_bytes)})" if number else ways[0]
            return ways
    return []


def _ways(part: str, scenario: Scenario) -> Iterable[str]:
    ranks = scenario.placement.learner.ranks
    highest = {
        "gradient_accumulation_steps": scenario.train_batch_size,
        "placement.learner.ranks": 10**9 if ranks > 1 and scenario.learner.sharding != "ddp" else ranks,
    }
    for key, parts, change in WAYS:
        now: Any = scenario
        for name in key.split("."):
            now = getattr(now, name, None)
        alone = ranks == 1 and key in ("learner.sharding", "learner.publish")
        if part not in parts or now is None or alone:
            continue
        if change in ("raise", "lower"):
            if now < highest[key] if change == "raise" else now > 1:
                yield f"{change} {key} (now {now})"
        elif (str(now).lower() if isinstance(now, bool) else str(now)) != change and not (
            change == "bfloat16" and now != "float32"
        ):
            yield f"set {key} to {change}"


def gib(num_bytes: float) -> str:
    """A size in GiB with one or two decimals."""
    size = num_bytes / 2**30
    return f"{size:.1f} GiB" if size >= 1 else f"{size:.2f} GiB"
