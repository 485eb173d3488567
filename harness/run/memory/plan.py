"""Which process of a run holds how many bytes of what. Arithmetic only: nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.errors import UserError
from harness.models.config import ModelConfig
from harness.run.memory.amounts import CUDA_BYTES, CUDA_HOST_BYTES, RUNNING, SAMPLING, TRAINING, WIDTH, Amount, Phase
from harness.run.memory.generator import CACHE, generator_amounts, in_main_memory, longest_prompt, sleeps, vllm_share
from harness.run.memory.learner import (
    checkpoint_copy,
    gives_back,
    kept_in_main_memory,
    learner_amounts,
    startup_amounts,
)
from harness.run.memory.shape import shape_for
from harness.scenario.derived import places_of_colocated, workers_of
from harness.scenario.lanes import lanes_of, rank_lanes
from harness.scenario.schema import Scenario

Device = Literal["cpu", "cuda"]

PROCESS_BYTES = 552 * 2**20
"""What a run in one process holds before it loads anything: torch, transformers and the rest; see docs/memory.md."""
ACTOR_BYTES = {"learner": 320 * 2**20, "generator": 320 * 2**20, "scorer": 240 * 2**20, "ray and driver": 368 * 2**20}
"""What each process of a run with actors holds before it loads anything, pages that processes share counted in parts
(PSS): fewer libraries than a run in one process, and one copy of them for all; see docs/memory.md."""
ACTOR_OWN_BYTES = {"learner": 240 * 2**20, "generator": 280 * 2**20, "scorer": 236 * 2**20}
"""What of them is the process's alone, without pages of files."""
DEEPSPEED_BYTES = 72 * 2**20
"""What DeepSpeed adds to each rank by its first step: two of a tiny model held 70 to 87 MiB beyond all else that is
planned (ZeRO 1 to 3, DeepSpeed 0.19)."""
VLLM_BYTES = 288 * 2**20
"""What vLLM adds to its process before it loads anything, likewise."""
RAY_BYTES = 416 * 2**20
"""Ray's own processes beside the parts, likewise."""
STORE_SHARE = 0.3
"""Of the free main memory that Ray's object store may fill; Ray's own default, there of the memory not in use."""
_STORE_SPARE = 2**28
"""Bytes in the store beside weights: batches, and what Ray keeps for itself."""
_LEAST_STORE = 75 * 2**20
"""Ray refuses less."""
_MOST_SLOW_STORE = 10**10
"""Bytes of a store outside of shared memory; Ray refuses more."""
_VLLM_AMOUNTS = ("engine weights", CACHE, "vLLM's workspace")
_LIBRARIES = ("Python and its libraries", "CUDA", "CUDA and its libraries", "Ray")
_RANKS_SHARE = 0.6
"""Of a GPU, of a rank that shares it with Generators: more than a half, so that no GPU is planned for two ranks."""
_PUBLISHED_COPIES = 2
"""Versions that a transport keeps at the sender: the one in use, and the one being published."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What one process of a run holds.

    Attributes:
        name: the part, or ``run`` for all parts in one process.
        device: where the amounts lie.
        amounts: purposes and bytes.
        overlapping: whether the Generator samples while the Learner trains, so that their phases add up.
        gives_back: whether it leaves what it does not hold in a phase to others; else its allocator keeps its peak.
        count: how many such processes there are.
        gpus: share of a GPU that one reserves; 0 on a GPU takes the first, as all runs of one process do.
        vllm_share: of its GPU's whole memory that a vLLM in it is told to take; None where it is told none.
        lanes: whose processes these are.
    """

    name: str
    device: Device
    amounts: tuple[Amount, ...]
    overlapping: bool = False
    gives_back: bool = False
    count: int = 1
    gpus: float = 0.0
    vllm_share: float | None = None
    lanes: tuple[str, ...] = ()

    def at(self, phase: Phase) -> int:
        """Bytes that one such process holds in a phase; where it is overlapping, for that phase alone."""
        held = sum(amount.num_bytes for amount in self.amounts if phase in amount.phases)
        return held + (self._libraries if phase == "startup" else 0) - (self._always if self.overlapping else 0)

    @property
    def _libraries(self) -> int:
        return sum(amount.num_bytes for amount in self.amounts if amount.name in _LIBRARIES)

    @property
    def _always(self) -> int:
        return sum(amount.num_bytes for amount in self.amounts if amount.phases == RUNNING)

    @property
    def peak(self) -> int:
        """Most bytes that one such process has to hold at a time."""
        if self.overlapping:
            return self._always + max(map(self.at, SAMPLING)) + max(map(self.at, TRAINING))
        return max(map(self.at, ("startup", *RUNNING)))

    @property
    def kind(self) -> str:
        """The part, whichever of its ranks."""
        return self.name.partition(",")[0]

    @property
    def own_peak(self) -> int:
        """What of its peak no other process maps; of the libraries that is what ``ACTOR_OWN_BYTES`` says."""
        shared = sum(amount.num_bytes for amount in self.amounts if amount.shared)
        return self.peak - shared - ACTOR_BYTES.get(self.kind, 0) + ACTOR_OWN_BYTES.get(self.kind, 0)

    def peak_on(self, gpu_size: int | None) -> int:
        """Most bytes that one holds at a time on a GPU of this size (None: not known): a vLLM takes all of its share.

        ``engine weights``, ``key/value cache`` and ``vLLM's workspace`` are what the share is for.
        """
        return self.peak + self._beyond(gpu_size)

    def _beyond(self, gpu_size: int | None) -> int:
        """What a vLLM takes of its share beyond what is planned by purpose."""
        if self.vllm_share is None or gpu_size is None:
            return 0
        of_vllm = sum(amount.num_bytes for amount in self.amounts if amount.name in _VLLM_AMOUNTS)
        return max(0, round(self.vllm_share * gpu_size) - of_vllm)

    def keeps(self, phase: Phase, gpu_size: int | None) -> int:
        """Bytes that one keeps from others in a phase, on a GPU of this size."""
        if not self.gives_back:
            return self.peak_on(gpu_size)
        has_cache = any(amount.name == CACHE and phase in amount.phases for amount in self.amounts)
        return self.at(phase) + (self._beyond(gpu_size) if has_cache else 0)

    @property
    def more(self) -> int:
        """Bytes that one such process takes beyond its peak where there is room for them."""
        return sum(amount.more for amount in self.amounts)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run holds, process by process.

    Attributes:
        scenario: of the run, resolved.
        shape: of its model.
        has_gpu: whether the machine has a GPU.
        prompt_tokens: the prompt length that was assumed.
        processes: of the run.
    """

    scenario: Scenario
    shape: ModelConfig
    has_gpu: bool
    prompt_tokens: int
    processes: tuple[ProcessPlan, ...]

    def on(self, device: Device) -> list[ProcessPlan]:
        """Return the plan of each process on a device, as often as there are such processes."""
        return [process for process in self.processes for _ in range(process.count) if process.device == device]

    def at_once(self, processes: Sequence[ProcessPlan], gpu_size: int | None = None) -> int:
        """Return the most bytes that processes in one memory hold together.

        Without lag, Generators and Learner take turns wherever they are: the largest phase decides.

        Args:
            processes: of this plan.
            gpu_size: all bytes of their GPU, where known.
        """
        if not self.scenario.is_synchronous:
            return sum(process.peak_on(gpu_size) for process in processes)
        phases: tuple[Phase, ...] = ("startup", *RUNNING)
        return max(sum(process.keeps(phase, gpu_size) for process in processes) for phase in phases)

    def total(self, device: Device) -> int:
        """Bytes of all processes together, at most."""
        return self.at_once(self.on(device))


def make_plan(
    scenario: Scenario, shape: ModelConfig, *, has_gpu: bool = False, prompt_tokens: int | None = None
) -> MemoryPlan:
    """Add up what a run of this scenario holds.

    Args:
        scenario: the resolved scenario; its model must have weights.
        shape: of the model that the scenario names.
        has_gpu: whether the machine has one; each part is planned where ``Scenario.device_of`` puts it.
        prompt_tokens: of the longest prompt; None assumes a number for the task.
    """
    prompt = longest_prompt(scenario, shape, prompt_tokens)
    parts = {"learner": scenario.placement.learner, "generator": scenario.placement.generator}
    devices = {name: scenario.device_of(part, has_gpu) for name, part in parts.items()}
    on_gpu = devices["learner"] == "cuda"
    if scenario.uses_ray:
        processes = _actors(scenario, shape, prompt, devices)
    else:
        learner = learner_amounts(scenario, shape, prompt, on_gpu)
        generator, engine = generator_amounts(scenario, shape, prompt, on_gpu)
        base = _libraries(PROCESS_BYTES + _engine_bytes(scenario))
        copies = (*checkpoint_copy(scenario, shape), *kept_in_main_memory(scenario, shape, on_gpu))
        apart = workers_of(scenario) > 1
        in_main = (base, *copies, *in_main_memory(scenario, shape, on_gpu))
        own = (*learner, *generator, *(() if apart else engine))
        run = ProcessPlan(
            "run",
            devices["learner"],
            (_cuda(), *own) if on_gpu else (*in_main, *own),
            overlapping=not scenario.is_synchronous,
            vllm_share=vllm_share(scenario),
        )
        host = (ProcessPlan("host of the GPU", "cpu", (_cuda_host(), *in_main)),) if on_gpu else ()
        processes = (run, *host, *(_workers(scenario, engine, 1) if apart else ()))
    return MemoryPlan(scenario, shape, has_gpu, prompt, processes)


def plan_of(scenario: Scenario, has_gpu: bool) -> tuple[MemoryPlan | None, str]:
    """Return the plan of one run, or None and why there is none; for the arguments see ``make_plan``."""
    shape, reason = shape_for(scenario)
    return (None, reason) if shape is None else (make_plan(scenario, shape, has_gpu=has_gpu), "")


def plans_of(scenarios: Sequence[Scenario], has_gpu: bool) -> tuple[list[MemoryPlan], str]:
    """Return the plans of runs side by side on this machine, or none and why.

    Args:
        scenarios: of those runs, resolved.
        has_gpu: whether this machine has a GPU.
    """
    plans = list[MemoryPlan]()
    for scenario in scenarios:
        plan, reason = plan_of(scenario, has_gpu)
        if plan is None:
            return [], reason
        plans.append(plan)
    if any(scenario.placement.address != "local" for scenario in scenarios):
        return [], "the parts run on a cluster"
    return plans, ""


def _actors(
    scenario: Scenario, shape: ModelConfig, prompt: int, devices: Mapping[str, Device]
) -> tuple[ProcessPlan, ...]:
    """The processes of a run with Ray actors; a part on a GPU has a process in main memory too."""
    placement, lanes = scenario.placement, rank_lanes(scenario)
    rows = [("learner", lanes[:1], 0)] + ([("learner, other ranks", lanes[1:], 1)] if lanes[1:] else [])
    parts, hosts = [], []

    def add(
        name: str,
        lanes: Sequence[str],
        kind: str,
        held: tuple[Amount, ...],
        in_main: tuple[Amount, ...] = (),
        **of_process: Any,
    ) -> None:
        """Plan processes; ``in_main`` is main memory in any case."""
        device, gpus = devices[kind], _colocated_share(scenario, kind)
        gpus = getattr(placement, kind).gpus if gpus is None else gpus
        base = _libraries(ACTOR_BYTES[kind] + _beside(scenario, kind))
        own = (_cuda(), *held) if device == "cuda" else (base, *held, *in_main)
        row: dict[str, Any] = {"count": len(lanes), "gpus": gpus, "lanes": tuple(lanes)} | of_process
        parts.append(ProcessPlan(name, device, own, **row))
        if device == "cuda":
            hosts.append(ProcessPlan(f"host of the {name}", "cpu", (base, _cuda_host(), *in_main), count=len(lanes)))

    on_gpu = devices["learner"] == "cuda"
    for name, of_row, rank in rows:
        whole, parts_of_it = startup_amounts(scenario, shape, rank)
        held = (*learner_amounts(scenario, shape, prompt, on_gpu, rank), *parts_of_it)
        copies = (*checkpoint_copy(scenario, shape), *kept_in_main_memory(scenario, shape, on_gpu))
        add(name, of_row, "learner", held, (*whole, *copies), gives_back=gives_back(scenario))
    generators, on_gpu = lanes_of("generator", scenario), devices["generator"] == "cuda"
    generator, engine = generator_amounts(scenario, shape, prompt, on_gpu)
    in_main, workers = in_main_memory(scenario, shape, on_gpu), workers_of(scenario)
    if workers == 1:
        generator += engine
    elif on_gpu:  # its first GPU is that of one of them
        generator += (Amount("CUDA of its first worker", CUDA_BYTES), *engine)
    add(
        "generator",
        generators,
        "generator",
        generator,
        in_main,
        vllm_share=vllm_share(scenario),
        gives_back=sleeps(scenario, on_gpu),
        **({"gpus": 1.0} if workers > 1 else {}),
    )
    if workers > 1:
        parts += _workers(scenario, engine, len(generators), on_gpu)
    scorers = lanes_of("scorer", scenario)
    base = _libraries(ACTOR_BYTES["scorer"])
    of_driver = (_libraries(ACTOR_BYTES["ray and driver"]), Amount("Ray", RAY_BYTES))
    return (
        *parts,
        ProcessPlan("scorer", "cpu", (base,), count=len(scorers), lanes=tuple(scorers)),
        ProcessPlan("ray and driver", "cpu", of_driver),
        *hosts,
    )


def _colocated_share(scenario: Scenario, kind: str) -> float | None:
    """The share of a GPU that a part of this kind is taken to reserve where parts are colocated; None where not.

    All are on the first GPU, or Generators are dealt to those of the ranks: no two ranks have room on one.
    """
    placement, places = scenario.placement, places_of_colocated(scenario)
    if not placement.colocated:
        return None
    if places == 1:
        return 0.0
    return _RANKS_SHARE if kind == "learner" else (1 - _RANKS_SHARE) / -(-placement.generator.count // places)


def _workers(scenario: Scenario, engine: tuple[Amount, ...], engines: int, on_gpu: bool = False) -> list[ProcessPlan]:
    """The workers of engines that have several; on GPUs the first of each is planned with its Generator."""
    base, count = _libraries(ACTOR_BYTES["generator"] + VLLM_BYTES), engines * workers_of(scenario)
    if not on_gpu:
        return [ProcessPlan("generator, workers", "cpu", (base, *engine), count=count)]
    share = vllm_share(scenario)
    others = (_cuda(), *engine)
    return [
        ProcessPlan("generator, other workers", "cuda", others, count=count - engines, gpus=1.0, vllm_share=share),
        ProcessPlan("host of the generator, workers", "cpu", (base, _cuda_host()), count=count),
    ]


def stored_weights(scenario: Scenario, shape: ModelConfig | None) -> int:
    """Return the bytes of weights that Ray's object store holds at a time for this scenario.

    Args:
        scenario: the resolved scenario; also a transport sweep.
        shape: of its model; None where that is not known, which counts as nothing.
    """
    sweep = scenario.transport_sweep
    if not any(kind.startswith("object_store") for kind in (sweep.transports if sweep else [scenario.transport.type])):
        return 0
    if sweep:
        return round(_PUBLISHED_COPIES * max(sweep.megabytes) * 1e6)
    width = WIDTH[getattr(scenario.model, "dtype", "float32")]
    return _PUBLISHED_COPIES * shape.num_parameters * width if shape else 0


def object_store_bytes(weights: int, free: int, shared: int) -> int:
    """Return how large to make Ray's object store, so that weights stay in memory and are not written to a disk.

    Ray alone takes a share of the memory at its start, whatever is asked of it: where a machine's memory starts small
    and grows, or a container has a limit, that may be less than the weights that a transport keeps there. Where
    /dev/shm is smaller, as in a container by default, Ray keeps its store in a file and warns of it.

    Args:
        weights: bytes of those; 0 where the transport passes them by another way.
        free: bytes of main memory that are available now.
        shared: bytes that are free in /dev/shm.

    Raises:
        UserError: the weights do not fit into the main memory that is free.
    """
    needed = weights + _STORE_SPARE if weights else _LEAST_STORE
    if weights and needed > free:
        raise UserError(
            f"the transport keeps {weights / 2**30:.2f} GiB of weights in Ray's object store, which needs "
            f"{needed / 2**30:.2f} GiB; free are {free / 2**30:.2f} GiB of main memory",
            "transport.type",
            "take smaller weights (model, transport_sweep.megabytes), set transport.type to disk, or free memory (in a "
            "container: raise its limit)",
        )
    in_memory = shared >= 2**30 or (weights and needed <= 0.95 * shared)
    most = round(0.95 * shared) if in_memory else _MOST_SLOW_STORE
    return max(min(round(STORE_SHARE * free), most), needed)


def _beside(scenario: Scenario, kind: str) -> int:
    """Bytes of the libraries that a part of this kind needs beside the usual ones."""
    if kind == "generator":
        return _engine_bytes(scenario)
    return DEEPSPEED_BYTES if kind == "learner" and scenario.learner.sharding == "deepspeed" else 0


def _libraries(num_bytes: int) -> Amount:
    return Amount("Python and its libraries", num_bytes)


def _engine_bytes(scenario: Scenario) -> int:
    return VLLM_BYTES if scenario.engine.type == "vllm" else 0


def _cuda() -> Amount:
    return Amount("CUDA", CUDA_BYTES)


def _cuda_host() -> Amount:
    return Amount("CUDA and its libraries", CUDA_HOST_BYTES)
