"""The one function that makes the table of a run's memory. Arithmetic only: nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.errors import UserError
from harness.models.config import ModelConfig
from harness.run.memory.generator import CUDA_BYTES, generator_amounts, longest_prompt, sleeps
from harness.run.memory.learner import gives_back, learner_amounts
from harness.run.memory.shape import shape_for
from harness.run.memory.table import ALWAYS, WIDTH, Amount, Device, MemoryPlan, ProcessPlan
from harness.scenario.derived import places_of_colocated, workers_of
from harness.scenario.lanes import lanes_of, rank_lanes
from harness.scenario.schema import Scenario

PROCESS_BYTES = 552 * 2**20
"""What a run in one process holds before it loads anything: torch, transformers and the rest; see docs/memory.md."""
ACTOR_BYTES = {"learner": 320 * 2**20, "generator": 320 * 2**20, "scorer": 240 * 2**20, "ray and driver": 368 * 2**20}
"""What each process of a run with actors holds before it loads anything, pages that processes share counted in parts
(PSS): fewer libraries than a run in one process, and one copy of them for all; see docs/memory.md."""
DEEPSPEED_BYTES = 72 * 2**20
"""What DeepSpeed adds to each rank by its first step: two of a tiny model held 70 to 87 MiB beyond all else that is
planned (ZeRO 1 to 3, DeepSpeed 0.19)."""
VLLM_BYTES = 288 * 2**20
"""What vLLM adds to its process before it loads anything, likewise."""
RAY_BYTES = 416 * 2**20
"""Ray's own processes beside the parts, likewise."""
CUDA_HOST_BYTES = 2**29
"""What CUDA and its libraries take of main memory in each process that uses a GPU. Not measured apart: with it, what a
run on an H100 held while it loaded 1.5 billion weights (torch 2.11, CUDA 13) is 9.7 GiB by count, and was 9.56."""
STORE_SHARE = 0.3
"""Of the free main memory that Ray's object store may fill; Ray's own default, there of the memory not in use."""
_STORE_SPARE = 2**28
"""Bytes in the store beside weights: batches, and what Ray keeps for itself."""
_LEAST_STORE = 75 * 2**20
"""Ray refuses less."""
_MOST_SLOW_STORE = 10**10
"""Bytes of a store outside of shared memory; Ray refuses more."""
_RANKS_SHARE = 0.6
"""Of a GPU, of a rank that shares it with Generators: more than a half, so that no GPU is planned for two ranks."""
_PUBLISHED_COPIES = 2
"""Versions that a transport keeps at the sender: the one in use, and the one being published."""


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
    placement = scenario.placement
    devices: dict[str, Device] = {
        "learner": scenario.device_of(placement.learner, has_gpu),
        "generator": scenario.device_of(placement.generator, has_gpu),
    }
    make = _actors if scenario.uses_ray else _one_process
    return MemoryPlan(scenario, shape, prompt, tuple(make(scenario, shape, prompt, devices)))


def plan_of(scenario: Scenario, has_gpu: bool) -> tuple[MemoryPlan | None, str]:
    """Return the plan of one run, or None and why there is none; for the arguments see ``make_plan``."""
    shape, reason = shape_for(scenario)
    return (None, reason) if shape is None else (make_plan(scenario, shape, has_gpu=has_gpu), "")


def plans_of(scenarios: Sequence[Scenario], has_gpu: bool) -> tuple[list[MemoryPlan], str]:
    """Return the plans of runs side by side on this machine, or none and why."""
    plans = list[MemoryPlan]()
    for scenario in scenarios:
        plan, reason = plan_of(scenario, has_gpu)
        if plan is None:
            return [], reason
        plans.append(plan)
    if any(scenario.placement.address != "local" for scenario in scenarios):
        return [], "the parts run on a cluster"
    return plans, ""


def _processes(
    name: str,
    device: Device,
    libraries: int,
    held: Sequence[Amount],
    in_main: Sequence[Amount] = (),
    **of_process: Any,
) -> list[ProcessPlan]:
    """A process where it computes; one on a GPU has libraries and ``in_main`` in main memory."""
    base = Amount("Python and its libraries", libraries, ALWAYS)
    if device == "cpu":
        return [ProcessPlan(name, "cpu", (base, *held, *in_main), **of_process)]
    cuda, host = Amount("CUDA", CUDA_BYTES, ALWAYS), Amount("CUDA and its libraries", CUDA_HOST_BYTES, ALWAYS)
    of = "GPU" if name == "run" else name
    return [
        ProcessPlan(name, "cuda", (cuda, *held), **of_process),
        ProcessPlan(f"host of the {of}", "cpu", (base, host, *in_main), count=of_process.get("count", 1)),
    ]


def _one_process(
    scenario: Scenario, shape: ModelConfig, prompt: int, devices: Mapping[str, Device]
) -> list[ProcessPlan]:
    device, workers = devices["learner"], workers_of(scenario)
    learner, copies = learner_amounts(scenario, shape, prompt, device == "cuda")
    generator, engine, in_main = generator_amounts(scenario, shape, prompt, device == "cuda")
    held = (*learner, *generator, *(engine if workers == 1 else ()))
    kind = {"overlapping": not scenario.is_synchronous, "vllm_share": _vllm_share(scenario)}
    run = _processes("run", device, PROCESS_BYTES + _vllm_bytes(scenario), held, (*copies, *in_main), **kind)
    return run if workers == 1 else [*run, *_workers(scenario, engine, 1, "cpu")]


def _actors(scenario: Scenario, shape: ModelConfig, prompt: int, devices: Mapping[str, Device]) -> list[ProcessPlan]:
    placement, workers, device = scenario.placement, workers_of(scenario), devices["learner"]
    learner_gpus, generator_gpus = placement.learner.gpus, placement.generator.gpus
    if placement.colocated:
        # all on the first GPU, or Generators are dealt to those of the ranks, which have room for no two
        places = places_of_colocated(scenario)
        per_place = -(-placement.generator.count // places)
        learner_gpus, generator_gpus = (0.0, 0.0) if places == 1 else (_RANKS_SHARE, (1 - _RANKS_SHARE) / per_place)
    found, lanes = list[ProcessPlan](), tuple(rank_lanes(scenario))
    libraries = ACTOR_BYTES["learner"] + (DEEPSPEED_BYTES if scenario.learner.sharding == "deepspeed" else 0)
    of_ranks: dict[str, Any] = {"gpus": learner_gpus, "gives_back": gives_back(scenario)}
    for rank, (name, of_row) in enumerate((("learner", lanes[:1]), ("learner, other ranks", lanes[1:]))):
        if of_row:
            amounts = learner_amounts(scenario, shape, prompt, device == "cuda", rank)
            found += _processes(name, device, libraries, *amounts, count=len(of_row), lanes=of_row, **of_ranks)

    lanes, device = tuple(lanes_of("generator", scenario)), devices["generator"]
    held, engine, in_main = generator_amounts(scenario, shape, prompt, device == "cuda")
    if workers == 1:
        held += engine
    elif device == "cuda":  # its first GPU is that of one of them
        held += (Amount("CUDA of its first worker", CUDA_BYTES), *engine)
    of_engine: dict[str, Any] = {
        "gpus": generator_gpus if workers == 1 else 1.0,
        "vllm_share": _vllm_share(scenario),
        "gives_back": sleeps(scenario, device == "cuda"),
    }
    libraries = ACTOR_BYTES["generator"] + _vllm_bytes(scenario)
    found += _processes("generator", device, libraries, held, in_main, count=len(lanes), lanes=lanes, **of_engine)
    found += _workers(scenario, engine, len(lanes), device) if workers > 1 else []
    lanes = tuple(lanes_of("scorer", scenario))
    found += _processes("scorer", "cpu", ACTOR_BYTES["scorer"], (), count=len(lanes), lanes=lanes)
    found += _processes("ray and driver", "cpu", ACTOR_BYTES["ray and driver"], (Amount("Ray", RAY_BYTES, ALWAYS),))
    return sorted(found, key=lambda process: process.name.startswith("host of"))


def _workers(scenario: Scenario, engine: Sequence[Amount], engines: int, device: Device) -> list[ProcessPlan]:
    """The workers of engines that have several; on GPUs the first of each is planned with its Generator."""
    libraries, count = ACTOR_BYTES["generator"] + VLLM_BYTES, engines * workers_of(scenario)
    if device == "cpu":
        return _processes("generator, workers", "cpu", libraries, engine, count=count)
    on_gpu: dict[str, Any] = {"gpus": 1.0, "vllm_share": _vllm_share(scenario)}
    others, _ = _processes("generator, other workers", "cuda", 0, engine, count=count - engines, **on_gpu)
    return [others, _processes("generator, workers", "cuda", libraries, (), count=count)[1]]


def _vllm_share(scenario: Scenario) -> float | None:
    share: float | None = getattr(scenario.engine, "gpu_memory_utilization", None)
    return share


def _vllm_bytes(scenario: Scenario) -> int:
    return VLLM_BYTES if scenario.engine.type == "vllm" else 0


def stored_weights(scenario: Scenario, shape: ModelConfig | None) -> int:
    """Return the bytes of weights that Ray's object store holds at a time for this scenario, or transport sweep.

    Those of a model whose shape is not known count as nothing.
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
