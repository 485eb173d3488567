"""Which process of a run holds how many bytes of what. Arithmetic only: nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.errors import UserError
from harness.engines.vllm_memory import MOST_CACHE_BYTES, WORKSPACE_BYTES, Cache, Neighbours
from harness.models.shape import Shape, shape_for
from harness.run.memory.amounts import WIDTH, Amount, Phase
from harness.run.memory.learner import checkpoint_copy, learner_amounts, present, startup_amounts
from harness.scenario import Scenario
from harness.scenario.learner import in_shards
from harness.scenario.loop_plan import lanes_of, rank_lanes

Device = Literal["cpu", "cuda"]

PROMPT_TOKENS = {"keywords": 48, "arithmetic": 48}
"""Tokens assumed for the longest prompt of a task, with any tokenizer; others get ``LONG_PROMPT_TOKENS``."""
LONG_PROMPT_TOKENS = 256
PROCESS_BYTES = 576 * 2**20
"""What a run in one process holds before it loads anything: torch, transformers and the rest; see docs/memory.md."""
ACTOR_BYTES = {"learner": 320 * 2**20, "generator": 320 * 2**20, "scorer": 208 * 2**20, "ray and driver": 368 * 2**20}
"""What each process of a run with actors holds before it loads anything, pages that processes share counted in parts
(PSS): fewer libraries than a run in one process, and one copy of them for all; see docs/memory.md."""
ACTOR_OWN_BYTES = {"learner": 240 * 2**20, "generator": 240 * 2**20, "scorer": 150 * 2**20}
"""What of them is the process's alone, without pages of files."""
VLLM_BYTES = 288 * 2**20
"""What vLLM adds to its process before it loads anything, likewise."""
RAY_BYTES = 416 * 2**20
"""Ray's own processes beside the parts, likewise."""
CUDA_BYTES = 2**29
"""A CUDA context and its kernels. Not measured here: the size usually seen on recent GPUs."""
SAMPLING_COPIES = 4
"""Float32 tensors of (rows, vocabulary) while a token is drawn: logits, probabilities, their sums, and a spare one."""
STORE_SHARE = 0.3
"""Of the free main memory that Ray's object store may fill; Ray's own default, there of the memory not in use."""
_STORE_SPARE = 2**28
"""Bytes in the store beside weights: batches, and what Ray keeps for itself."""
_LEAST_STORE = 75 * 2**20
"""Ray refuses less."""
_MOST_SLOW_STORE = 10**10
"""Bytes of a store outside of shared memory; Ray refuses more."""
_VLLM_AMOUNTS = ("engine weights", "key/value cache", "vLLM's workspace")
_LIBRARIES = ("Python and its libraries", "CUDA", "Ray")
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
        count: how many such processes there are.
        gpus: share of a GPU that one reserves; 0 on a GPU takes the first, as all runs of one process do.
        vllm_share: of its GPU's whole memory that a vLLM in it is told to take; None where it is told none.
        lanes: whose processes these are.
    """

    name: str
    device: Device
    amounts: tuple[Amount, ...]
    overlapping: bool = False
    count: int = 1
    gpus: float = 0.0
    vllm_share: float | None = None
    lanes: tuple[str, ...] = ()

    def of(self, phase: Phase) -> int:
        """Bytes of this phase."""
        return sum(amount.num_bytes for amount in self.amounts if amount.phase == phase)

    @property
    def peak(self) -> int:
        """Most bytes that one such process has to hold at a time."""
        sampling, training = max(self.of("sampling"), self.of("loading")), max(self.of("update"), self.of("publish"))
        passing = sampling + training if self.overlapping else max(sampling, training)
        libraries = sum(amount.num_bytes for amount in self.amounts if amount.name in _LIBRARIES)
        return max(self.of("held") + passing, libraries + self.of("startup"))

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
        if self.vllm_share is None or gpu_size is None:
            return self.peak
        of_vllm = sum(amount.num_bytes for amount in self.amounts if amount.name in _VLLM_AMOUNTS)
        return self.peak + max(0, round(self.vllm_share * gpu_size) - of_vllm)

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
    shape: Shape
    has_gpu: bool
    prompt_tokens: int
    processes: tuple[ProcessPlan, ...]

    def total(self, device: Device) -> int:
        """Peak bytes of all processes together."""
        return sum(process.count * process.peak for process in self.processes if process.device == device)


def make_plan(
    scenario: Scenario, shape: Shape, *, has_gpu: bool = False, prompt_tokens: int | None = None
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
    generator = generator_amounts(scenario, shape, prompt, devices["generator"] == "cuda")
    if scenario.uses_ray:
        processes = _actors(scenario, shape, prompt, generator, devices)
    else:
        learner = learner_amounts(scenario, shape, prompt, on_gpu)
        base, copy = _libraries(PROCESS_BYTES + _engine_bytes(scenario)), checkpoint_copy(scenario, shape)
        amounts = (*((_cuda(),) if on_gpu else (base, *copy)), *learner, *generator)
        run = ProcessPlan(
            "run",
            devices["learner"],
            amounts,
            overlapping=not scenario.is_synchronous,
            vllm_share=vllm_share(scenario),
        )
        processes = (run, ProcessPlan("host of the GPU", "cpu", (base, *copy))) if on_gpu else (run,)
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


def longest_prompt(scenario: Scenario, shape: Shape, counted: int | None = None) -> int:
    """Tokens that the longest prompt is taken to have: as counted, else assumed for the task; the response must fit."""
    assumed = counted or PROMPT_TOKENS.get(scenario.task.type, LONG_PROMPT_TOKENS)
    return max(1, min(assumed, shape.context - scenario.sampling.max_tokens))


def _actors(
    scenario: Scenario, shape: Shape, prompt: int, generator: tuple[Amount, ...], devices: Mapping[str, Device]
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
        starting: tuple[Amount, ...] = (),
        vllm: float | None = None,
    ) -> None:
        """Plan processes; ``starting`` is main memory in any case."""
        device, gpus = devices[kind], getattr(placement, kind).gpus
        base = _libraries(ACTOR_BYTES[kind] + (_engine_bytes(scenario) if kind == "generator" else 0))
        own = (_cuda(), *held) if device == "cuda" else (base, *held, *starting)
        parts.append(ProcessPlan(name, device, own, count=len(lanes), gpus=gpus, vllm_share=vllm, lanes=tuple(lanes)))
        if device == "cuda":
            hosts.append(ProcessPlan(f"host of the {name}", "cpu", (base, *starting), count=len(lanes)))

    on_gpu = devices["learner"] == "cuda"
    for name, of_row, rank in rows:
        whole, parts_of_it = startup_amounts(scenario, shape, rank)
        held = (*learner_amounts(scenario, shape, prompt, on_gpu, rank), *parts_of_it)
        add(name, of_row, "learner", held, (*whole, *checkpoint_copy(scenario, shape)))
    add("generator", lanes_of("generator", scenario), "generator", generator, vllm=vllm_share(scenario))
    scorers = lanes_of("scorer", scenario)
    base = _libraries(ACTOR_BYTES["scorer"])
    of_driver = (_libraries(ACTOR_BYTES["ray and driver"]), Amount("Ray", RAY_BYTES))
    return (
        *parts,
        ProcessPlan("scorer", "cpu", (base,), count=len(scorers), lanes=tuple(scorers)),
        ProcessPlan("ray and driver", "cpu", of_driver),
        *hosts,
    )


def generator_amounts(scenario: Scenario, shape: Shape, prompt: int, on_gpu: bool) -> tuple[Amount, ...]:
    """What sampling holds: the engine's weights, those that arrived, its cache, and the logits of one token a row."""
    engine: Any = scenario.engine
    if engine.type == "fake":
        return ()
    width = WIDTH[engine.precision]
    rows = min(engine.max_batch, max(scenario.rollout_batch_size, scenario.evaluation.prompts))
    own = shape.runs_on == "own" and engine.type == "native"
    table = shape.embedding_parameters if shape.tied and own else 0  # its output matrix has the last norm folded in
    weights = (shape.num_parameters + table) * width
    cache_width = WIDTH[engine.kv_cache] if own else width
    cache = Amount(
        "key/value cache",
        rows * (prompt + scenario.sampling.max_tokens) * shape.key_values_per_token * cache_width,
    )
    logits = Amount("sampling logits", rows * shape.vocab_size * 4 * SAMPLING_COPIES, "sampling")
    if engine.type == "vllm":
        cache = _vllm_cache(engine, shape, width, on_gpu)
        logits = Amount("vLLM's workspace", WORKSPACE_BYTES) if on_gpu else logits
    return present(
        (
            Amount("engine weights", weights),
            Amount("received weights", _received(scenario, shape, on_gpu)),
            cache,
            Amount("new engine weights", weights if own else 0, "loading"),
            logits,
        )
    )


def vllm_share(scenario: Scenario) -> float | None:
    """Return the share of its GPU's memory that vLLM is told to take; None where the scenario names none."""
    share: float | None = getattr(scenario.engine, "gpu_memory_utilization", None)
    return share


def _vllm_cache(engine: Any, shape: Shape, width: int, on_gpu: bool) -> Amount:
    """What vLLM reserves for keys and values: on a GPU room for one row, and more as far as there is any."""
    of_token = shape.key_values_per_token * width
    cache = Cache(of_token, engine.context or shape.context, engine.max_batch, engine.kv_cache_gib)
    if not on_gpu:
        return Amount("key/value cache", cache.num_bytes(MOST_CACHE_BYTES))
    least = cache.num_bytes(0)
    return Amount("key/value cache", least, more=cache.num_bytes(None) - least)


def beside_vllm(scenario: Scenario, shape: Shape | None) -> Neighbours:
    """Return what a Generator's GPU may have to hold beside its vLLM.

    Parts of actors share a GPU where colocated, and may where the shares that they reserve leave room for each other.
    Other arms and other programs are not counted.

    Args:
        scenario: of one run on a GPU.
        shape: of its model; None, where that is not known, counts vLLMs only.
    """
    placement = scenario.placement
    learner, share, count = placement.learner.gpus, placement.generator.gpus, placement.generator.count
    together = not scenario.uses_ray or placement.colocated
    engines = count if together else min(count, max(1, int(1 / share + 1e-9)))
    if shape is None:
        return Neighbours(0, engines)
    num_bytes = engines * (_received(scenario, shape, True) + CUDA_BYTES)
    on_gpu = scenario.device_of(placement.learner, has_gpu=True) == "cuda"
    if on_gpu and (together or learner + share <= 1 + 1e-9):
        prompt = longest_prompt(scenario, shape)
        num_bytes += sum(amount.num_bytes for amount in learner_amounts(scenario, shape, prompt, True))
        num_bytes += CUDA_BYTES if scenario.uses_ray else 0
    return Neighbours(num_bytes, engines)


def _received(scenario: Scenario, shape: Shape, on_gpu: bool) -> int:
    """Bytes of the weights that lie in a Generator's process beside its engine's.

    One process has them already, and main memory that is shared holds them once, as the Learner's. Of a broadcast a
    Generator keeps every version that it may yet load, and the pieces of several ranks are put together apart.
    """
    if not scenario.uses_ray or (scenario.transport.type == "shared_memory" and not on_gpu):
        return 0
    copies = scenario.max_lag + 2 + in_shards(scenario) if scenario.transport.type == "broadcast" else 1
    return copies * shape.num_parameters * WIDTH[getattr(scenario.model, "dtype", "float32")]


def stored_weights(scenario: Scenario, shape: Shape | None) -> int:
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


def _libraries(num_bytes: int) -> Amount:
    return Amount("Python and its libraries", num_bytes)


def _engine_bytes(scenario: Scenario) -> int:
    return VLLM_BYTES if scenario.engine.type == "vllm" else 0


def _cuda() -> Amount:
    return Amount("CUDA", CUDA_BYTES)
