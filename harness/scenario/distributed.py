"""Where the parts run, how weights move, how far a Generator may lag, and what happens on faults, with their rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from harness.core.errors import UserError
from harness.scenario.problems import Problem, broken
from harness.scenario.sections import (
    BY_COLON,
    BY_TYPE,
    OF_HARNESS,
    OF_USER,
    AtLeast0,
    AtLeast1,
    EmptyIfNull,
    FromList,
    NonEmptyText,
    NotNegative,
    OwnName,
    OwnOptions,
    Parts,
    Positive,
    Seconds,
    SecondsOr0,
    Section,
    usual_type,
)

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

DelayedStage = Literal[
    "generate", "score", "prepare_batch", "old_logprobs", "reference_logprobs", "update",
    "weight_publish", "weight_transfer", "weight_load", "weight_verify", "evaluate", "checkpoint",
    "checkpoint_write", "save_policy", "offload", "onload",
]  # fmt: skip
TransportName = Literal[
    "object_store", "object_store_numpy", "nixl", "gloo", "nccl", "broadcast", "cuda_ipc", "disk", "shared_memory"
]


class PartSettings(Section):
    """What one part may use."""

    cpus: NotNegative = 1.0
    """CPUs that Ray reserves for it."""
    gpus: NotNegative = 0.0
    """GPUs that Ray reserves for it; a fraction shares one."""
    threads: Parts | None = None
    """Its CPU threads; null takes model.threads, or else its CPUs."""


class LearnerPartSettings(PartSettings):
    """What each rank of the Learner may use."""

    ranks: Parts = 1
    """Processes that train together, see `learner`; cpus, gpus and threads are those of each."""
    per_node: Annotated[tuple[Parts, ...], FromList, Field(min_length=1)] | None = None
    """Ranks on each node, in order, such as [4, 2]; null leaves it to Ray."""


class ReplicatedPartSettings(PartSettings):
    """What each of several equal parts may use."""

    count: Parts = 1
    """How many of them."""


class ScorerSettings(ReplicatedPartSettings):
    """What each Scorer may use."""

    cpus: NotNegative = 0.0
    """CPUs that Ray reserves for it; 0, since most reward functions are light."""


class PlacementSettings(Section):
    """Where the parts run: in this process with `transport.type: in_process`, else as Ray actors."""

    colocated: bool = True
    """Generator and Learner take turns on the same cores or device."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    generator: Annotated[ReplicatedPartSettings, EmptyIfNull] = ReplicatedPartSettings()
    """The Generators."""
    scorer: Annotated[ScorerSettings, EmptyIfNull] = ScorerSettings()
    """The Scorers."""
    learner: Annotated[LearnerPartSettings, EmptyIfNull] = LearnerPartSettings()
    """The Learner."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places the parts on the nodes of a cluster."""
    address: NonEmptyText = "local"
    """`local` starts Ray on this machine; `auto` or HOST:PORT joins a cluster that is running."""
    interface: NonEmptyText = "lo"
    """Network interface of the sockets that the harness opens (UCX, gloo); `lo`: this machine only."""


class ReplaySettings(Section):
    """The replay buffer: each fresh batch enters it, and each training step takes a sample of it."""

    capacity: AtLeast0 = 0
    """Groups kept; 0: no buffer, each batch is trained on directly."""
    max_age: AtLeast0 | None = None
    """Versions after which a group is discarded; null: max_lag plus the steps that refill the capacity."""
    sampling: Literal["newest", "uniform", "reward_weighted", "signal_weighted"] = "uniform"
    """Which groups a step draws: the newest; any; by mean reward, which prefers solved groups; or by the spread of
    rewards, which prefers groups with a signal."""
    sample_groups: AtLeast1 | None = None
    """Groups that a step takes; null: as many as a fresh batch has."""
    max_uses: AtLeast1 | None = None
    """How often a group may be trained on; null: no bound."""


class SlowRank(Section):
    """One of the Learner's ranks computes slowly."""

    rank: AtLeast0
    """Its number."""
    share: Positive
    """Share of its computing time that is added: 0.3 makes computing take 1.3 times as long. Waits stay as they are."""


class RankMoment(Section):
    """A moment in one of the Learner's ranks: the start of a stage in a training step."""

    rank: AtLeast0
    """Its number."""
    step: AtLeast0
    """The training step."""
    stage: Literal[
        "prepare_batch", "wait_for_ranks", "old_logprobs", "reference_logprobs", "update", "weight_publish"
    ] = "update"
    """The stage; without effect if the run does not have it."""


class FaultSettings(Section):
    """What to do when a part dies or nothing moves, and faults on purpose."""

    max_replacements: AtLeast0 = 10
    """How many dead Generators and Scorers are replaced; the next death ends the run."""
    learner_restarts: AtLeast0 = 0
    """How often a dead Learner is restarted, with all its ranks, from the newest complete checkpoint."""
    delays: Annotated[dict[DelayedStage, SecondsOr0], EmptyIfNull] = Field(default_factory=dict)
    """Seconds added to each span of a stage, by stage: to see whether a comparison finds it."""
    skip_weight_loads: Annotated[tuple[AtLeast1, ...], FromList] = ()
    """Versions whose weights the engine pretends to load: to see whether the engine mismatch finds it."""
    slow_rank: SlowRank | None = None
    """A rank of the Learner that computes slowly: to see whether the report names it and its cause."""
    dead_rank: RankMoment | None = None
    """When a rank of the Learner kills itself: to see how the run ends."""
    hung_rank: RankMoment | None = None
    """When a rank of the Learner stops for ever: to see how the run ends."""
    stall_after_s: Seconds = 600.0
    """Seconds that one stage may take, or that may pass without any ending; then the run stops and says who waits."""


class InProcessTransportSettings(Section):
    """Weights stay in the process."""

    type: Literal["in_process"] = "in_process"
    """No transport: all parts live in one process."""


class ActorTransportSettings(Section):
    """What every transport between Ray actors has."""

    verify: bool = True
    """Compare a checksum of what the engine loaded from with the published one at each sync; else the run stops."""
    dtype: Literal["trained", "engine"] = "trained"
    """Weights travel in the type in which they are trained, or in engine.precision: half the bytes for bfloat16."""


class ObjectStoreTransportSettings(ActorTransportSettings):
    """Ray's object store, given the plain state_dict of torch tensors: what Ray does by default."""

    type: Literal["object_store"] = "object_store"
    """Ray's object store with torch tensors, which Ray copies through its serialiser."""


class ObjectStoreNumpyTransportSettings(ActorTransportSettings):
    """Ray's object store, given numpy arrays, which it stores and maps without further copies."""

    type: Literal["object_store_numpy"] = "object_store_numpy"
    """Ray's object store with numpy arrays: much faster than with torch tensors."""


class FlatTransportSettings(ActorTransportSettings):
    """What the transports of Ray Direct Transport have."""

    flatten: bool = True
    """Move all tensors as one flat buffer; many small tensors are slow one by one."""


class NixlTransportSettings(FlatTransportSettings):
    """Ray Direct Transport over NIXL (UCX)."""

    type: Literal["nixl"] = "nixl"
    """Ray Direct Transport over NIXL: one-sided reads, on CPU memory and on GPUs."""
    preallocate: bool = True
    """Receive into buffers that are reused, instead of new ones at each sync."""
    progress_thread_delay_us: AtLeast0 = 1000
    """Pause of NIXL's progress thread between two polls; 0 polls without a pause and takes a whole core."""


class GlooTransportSettings(FlatTransportSettings):
    """Ray Direct Transport over gloo."""

    type: Literal["gloo"] = "gloo"
    """Ray Direct Transport over gloo: send and receive between CPUs."""


class NcclTransportSettings(FlatTransportSettings):
    """Ray Direct Transport over NCCL."""

    type: Literal["nccl"] = "nccl"
    """Ray Direct Transport over NCCL: send and receive between GPUs."""


class BroadcastTransportSettings(ActorTransportSettings):
    """One broadcast from the Learner to all Generators, in a process group of their own."""

    type: Literal["broadcast"] = "broadcast"
    """One broadcast to all Generators (gloo, or NCCL between GPUs), each of which keeps the versions it may need."""
    timeout_s: Seconds = 30.0
    """Seconds that a publish waits for a Generator before it continues without it."""


class CudaIpcTransportSettings(FlatTransportSettings):
    """Ray Direct Transport over CUDA IPC."""

    type: Literal["cuda_ipc"] = "cuda_ipc"
    """Ray Direct Transport over CUDA IPC: actors on one GPU share its memory."""


class DiskTransportSettings(ActorTransportSettings):
    """A safetensors file."""

    type: Literal["disk"] = "disk"
    """A safetensors file for each version."""
    folder: NonEmptyText | None = None
    """Folder of the files; null: a temporary one. Several nodes need one that all of them see."""


class SharedMemoryTransportSettings(ActorTransportSettings):
    """Memory that the processes of one host share."""

    type: Literal["shared_memory"] = "shared_memory"
    """One copy in shared memory, from which every Generator on the host loads."""


class OwnTransportSettings(ActorTransportSettings):
    """A transport of your own, see docs/extending.md."""

    type: OwnName
    """Your `TransportKind` as `package.module:NAME`."""
    options: OwnOptions = Field(default_factory=dict)
    """Passed to its sender and receivers as `options.own`."""


TransportSettings = Annotated[
    Annotated[
        InProcessTransportSettings
        | ObjectStoreTransportSettings
        | ObjectStoreNumpyTransportSettings
        | NixlTransportSettings
        | GlooTransportSettings
        | NcclTransportSettings
        | BroadcastTransportSettings
        | CudaIpcTransportSettings
        | DiskTransportSettings
        | SharedMemoryTransportSettings,
        BY_TYPE,
        OF_HARNESS,
    ]
    | Annotated[OwnTransportSettings, OF_USER],
    BY_COLON,
    usual_type("in_process"),
]


AnyTransportName = Annotated[Annotated[TransportName, OF_HARNESS] | Annotated[OwnName, OF_USER], BY_COLON]


class TransportSweepSettings(Section):
    """Measures weight syncs alone: every transport with every size, in turns, with real actors and no training."""

    transports: Annotated[tuple[AnyTransportName, ...], FromList, Field(min_length=1)] = (
        "object_store",
        "object_store_numpy",
        "nixl",
        "gloo",
        "disk",
        "shared_memory",
    )
    """Which transports."""
    megabytes: Annotated[tuple[Positive, ...], FromList, Field(min_length=1)] = (1.0, 10.0, 100.0, 1000.0)
    """Sizes of the weights, in units of 10^6 bytes."""
    tensors: Annotated[tuple[AtLeast1, ...], FromList, Field(min_length=1)] = (1,)
    """Numbers of tensors that the weights are split into."""
    receivers: Annotated[tuple[Parts, ...], FromList, Field(min_length=1)] = (1,)
    """Numbers of Generators that load the same weights."""
    repeats: Annotated[int, Field(ge=3)] = 9
    """Timed syncs of each kind, in turns; one more before them is not counted."""


def no_gpu_error(where: str = "placement.device: cuda") -> UserError:
    """Return the error for a scenario that asks for a GPU on a machine without one."""
    return UserError(
        "the scenario asks for a GPU (`placement.device` is cuda), and PyTorch finds none on this machine",
        where,
        "set placement.device to cpu, or to auto, which takes a GPU only where there is one; "
        "on a GPU machine check that nvidia-smi works and that PyTorch is not the CPU build",
    )


def colocated_parts_take_turns(scenario: Scenario) -> Problem | None:
    """Colocated parts never work at the same time, so they cannot lag."""
    if not scenario.placement.colocated or scenario.is_synchronous:
        return None
    what = f"max_lag is {scenario.max_lag}, must be 0 with placement.colocated true"
    fix = "set max_lag to 0, or placement.colocated to false"
    return broken(what, fix, "max_lag", "placement.colocated")


def arms_that_take_steps(scenario: Scenario) -> Problem | None:
    """Arms take turns by step only if none of them works in the background."""
    if scenario.interleaving != "step" or scenario.is_synchronous:
        return None
    what = f"interleaving is step with max_lag {scenario.max_lag}: lagged parts work on while another arm has its turn"
    fix = "set interleaving to run, or max_lag to 0"
    return broken(what, fix, "interleaving", "max_lag")


def lag_control_has_lag(scenario: Scenario) -> Problem | None:
    """Without lag there is nothing to drop and no weights to swap."""
    if scenario.lag_control == "wait" or not scenario.is_synchronous:
        return None
    what = f"lag_control is {scenario.lag_control} with max_lag 0, and without lag its bound never bites that way"
    return broken(what, "set max_lag to 1 or more, or lag_control to wait", "lag_control", "max_lag")


def in_flight_engine(scenario: Scenario) -> Problem | None:
    """Only an engine that reports which weights sampled each token can swap them during a batch."""
    if scenario.lag_control != "in_flight":
        return None
    if scenario.engine.type == "vllm":
        return None
    if scenario.model.type == "folder":
        what = "model.type is folder with lag_control in_flight: models of transformers take weights between batches"
        fix = "set lag_control to wait, model.type to preset, or engine.type to vllm"
        return broken(what, fix, "model.type", "lag_control")
    if scenario.engine.type in ("native", "paced"):
        return None
    what = f"engine.type is {scenario.engine.type}, must be native or vllm with lag_control in_flight"
    fix = "set engine.type to native or vllm, or lag_control to wait"
    return broken(what, fix, "engine.type", "lag_control")


def vllm_owns_its_group(scenario: Scenario) -> Problem | None:
    """vLLM makes a torch process group of its own, of one process; gloo would need one of all actors in that place."""
    if scenario.engine.type != "vllm" or scenario.transport.type != "gloo":
        return None
    what = "transport.type is gloo with engine.type vllm, which holds its process's only torch process group already"
    fix = "set transport.type to nixl, shared_memory or object_store_numpy"
    return broken(what, fix, "transport.type", "engine.type")


def sglang_has_its_process(scenario: Scenario) -> Problem | None:
    """SGLang ends all children of its process when it ends, and reports log-probs of the whole distribution."""
    if scenario.engine.type != "sglang":
        return None
    if not scenario.uses_ray:
        what = "transport.type is in_process with engine.type sglang, which at its end ends every child of its process"
        fix = "set transport.type to cuda_ipc or object_store_numpy, so that it has a process of its own"
        return broken(what, fix, "transport.type", "engine.type")
    top_p = scenario.sampling.top_p
    if top_p == 1:
        return None
    what = f"sampling.top_p is {top_p}, must be 1 with engine.type sglang: its log-probs are of the whole distribution"
    fix = "set sampling.top_p to 1, or engine.type to native or vllm"
    return broken(what, fix, "sampling.top_p", "engine.type")


def weights_have_the_engines_type(scenario: Scenario) -> Problem | None:
    """Weights that travel in the engine's type need an engine that has one, and leave one Learner whole."""
    if getattr(scenario.transport, "dtype", "trained") == "trained":
        return None
    keys = "transport.dtype", "placement.learner.ranks"
    if scenario.placement.learner.ranks > 1:
        what = f"transport.dtype is engine, must be trained with {scenario.placement.learner.ranks} {keys[1]}"
        return broken(what, "set transport.dtype to trained", *keys)
    if not scenario.travel_dtype:
        what = f"transport.dtype is engine, and engine.type {scenario.engine.type} has no precision"
        return broken(what, "set transport.dtype to trained", "transport.dtype", "engine.type")
    return None


def shards_share_a_batch(scenario: Scenario) -> Problem | None:
    """Several Generators share a rollout batch; if batches take what comes first, in equal parts."""
    count, prompts = scenario.placement.generator.count, scenario.prompts_per_batch
    keys = "placement.generator.count", "rollout_batch_size", "group_size"
    if count > prompts > 0:
        what = f"placement.generator.count is {count}, must be at most {prompts}, the prompts of a rollout batch"
        return broken(what, f"set it to at most {prompts}, or raise rollout_batch_size", *keys)
    if scenario.lag_control == "drop" and prompts % count:
        what = f"placement.generator.count {count} does not divide the {prompts} prompts of a rollout batch"
        fix = "with lag_control drop, set it to a divisor, so that all parts of a batch are alike"
        return broken(what, fix, *keys)
    return None


def actors_for_several_parts(scenario: Scenario) -> Problem | None:
    """Several Generators or Scorers, or another machine, need Ray actors."""
    placement = scenario.placement
    if scenario.uses_ray:
        return None
    for key, value, alone in (
        ("placement.generator.count", placement.generator.count, 1),
        ("placement.scorer.count", placement.scorer.count, 1),
        ("placement.address", placement.address, "local"),
    ):
        if value != alone:
            what = f"{key} is {value}, must be {alone} with transport.type in_process"
            fix = f"set transport.type to object_store_numpy, which runs the parts as Ray actors, or {key} to {alone}"
            return broken(what, fix, key, "transport.type")
    return None


def one_host_transport(scenario: Scenario) -> Problem | None:
    """Shared memory and CUDA IPC work within one host."""
    kind, address = scenario.transport.type, scenario.placement.address
    if kind not in ("shared_memory", "cuda_ipc") or address == "local":
        return None
    what = f"transport.type is {kind}, which works within one host, and placement.address is {address}"
    fix = "set transport.type to nixl or object_store_numpy, or placement.address to local"
    return broken(what, fix, "transport.type", "placement.address")


def gpu_transport(scenario: Scenario) -> Problem | None:
    """NCCL and CUDA IPC move GPU memory."""
    kind, device = scenario.transport.type, scenario.placement.device
    if kind not in ("nccl", "cuda_ipc") or device == "cuda":
        return None
    what = f"transport.type is {kind}, which moves GPU memory, and placement.device is {device}"
    fix = "set placement.device to cuda, or transport.type to gloo or nixl"
    return broken(what, fix, "transport.type", "placement.device")


def nccl_parts_have_a_gpu_each(scenario: Scenario) -> Problem | None:
    """NCCL, which broadcast uses for GPU memory, refuses two members of one group on the same GPU."""
    placement, sweep = scenario.placement, scenario.transport_sweep
    key = "transport_sweep.transports" if sweep else "transport.type"
    named = sweep.transports if sweep else (scenario.transport.type,)
    over_nccl = [name for name in named if name in ("nccl", "broadcast")]
    if not over_nccl or placement.device != "cuda":
        return None
    shares = {f"placement.{name}.gpus": getattr(placement, name).gpus for name in ("generator", "learner")}
    wrong = {share: f"{share} is {gpus:g}, must be at least 1" for share, gpus in shares.items() if 0 < gpus < 1}
    if placement.colocated and not sweep:
        wrong["placement.colocated"] = "placement.colocated is true, must be false"
    if not wrong:
        return None
    what = (
        f"{key} {'names' if sweep else 'is'} {' and '.join(over_nccl)}, which needs a GPU for each part, and "
        f"{' and '.join(wrong.values())}"
    )
    fix = "set placement.colocated to false and both gpus to 1; parts that share a GPU have cuda_ipc and nixl"
    return broken(what, fix, key, *wrong)


def cuda_actors_reserve_gpus(scenario: Scenario) -> Problem | None:
    """A Ray actor computes on a GPU only if it reserves one, or a part of one."""
    placement = scenario.placement
    if placement.device != "cuda" or not (scenario.uses_ray or scenario.transport_sweep):
        return None
    bare = [name for name in ("generator", "learner") if getattr(placement, name).gpus == 0]
    if not bare:
        return None
    keys = [f"placement.{name}.gpus" for name in bare]
    what = f"{' and '.join(keys)} {'are' if len(keys) > 1 else 'is'} 0, must be above 0 with placement.device cuda"
    fix = "set them to 1, or to a fraction such as 0.25 to share one GPU"
    return broken(what, fix, *keys, "placement.device")


def sweep_on_one_machine(scenario: Scenario) -> Problem | None:
    """A transport sweep measures within one machine, and moves GPU memory only if there is a GPU."""
    sweep, placement = scenario.transport_sweep, scenario.placement
    if sweep is None:
        return None
    if placement.address != "local":
        what = f"placement.address is {placement.address}, must be local with transport_sweep"
        return broken(what, "set placement.address to local", "placement.address", "transport_sweep")
    moved = [name for name in sweep.transports if name in ("nccl", "cuda_ipc")]
    if not moved or placement.device == "cuda":
        return None
    names = " and ".join(moved)
    what = f"transport_sweep.transports names {names}, for GPU memory, and placement.device is {placement.device}"
    fix = f"set placement.device to cuda, or leave {names} out"
    return broken(what, fix, "transport_sweep.transports", "placement.device")


def replay_holds_a_batch(scenario: Scenario) -> Problem | None:
    """A buffer has room for the batch that enters it and for the sample that is taken."""
    capacity, prompts, sample = scenario.replay.capacity, scenario.prompts_per_batch, scenario.replay_sample_groups
    if capacity == 0:
        return _settings_without_buffer(scenario)
    if capacity < prompts:
        what = f"replay.capacity is {capacity} groups, must be at least the {prompts} groups of a rollout batch"
        fix = f"set replay.capacity to {prompts} or more, or to 0 for no replay"
        return broken(what, fix, "replay.capacity", "rollout_batch_size")
    if sample > capacity:
        what = f"replay.sample_groups is {sample}, must be at most replay.capacity {capacity}"
        return broken(what, f"set it to at most {capacity}", "replay.sample_groups", "replay.capacity")
    return None


def newest_replays(scenario: Scenario) -> Problem | None:
    """The newest groups are the fresh batch: only a larger sample takes any of the others."""
    prompts, sample = scenario.prompts_per_batch, scenario.replay_sample_groups
    if scenario.replay.capacity == 0 or scenario.replay.sampling != "newest" or sample > prompts:
        return None
    what = (
        f"replay.sampling newest with {sample} sample_groups takes the {prompts} fresh groups of each step and replays "
        "none"
    )
    fix = f"set replay.sample_groups above {prompts}, or replay.sampling to uniform, or replay.capacity to 0"
    return broken(what, fix, "replay.sampling", "replay.sample_groups")


def groups_stay_to_be_replayed(scenario: Scenario) -> Problem | None:
    """Groups that are all used up in the step that they come in with are not replayed."""
    key, sample, prompts = "replay.max_uses", scenario.replay_sample_groups, scenario.prompts_per_batch
    if scenario.replay.capacity == 0 or scenario.replay.max_uses != 1 or sample < prompts:
        return None
    what = f"{key} is 1 and a step takes {sample} groups, as all {prompts} fresh ones are: no group is replayed"
    return broken(what, f"set {key} to 2 or more, or replay.capacity to 0", key, "replay.sample_groups")


def _settings_without_buffer(scenario: Scenario) -> Problem | None:
    """Settings that would be ignored silently are refused."""
    given = [name for name, value in scenario.replay if value != getattr(ReplaySettings(), name)]
    if not given:
        return None
    keys = [f"replay.{name}" for name in given]
    what = f"replay.capacity is 0, so there is no buffer for which {' and '.join(keys)} could mean anything"
    return broken(what, f"set replay.capacity, or leave {' and '.join(keys)} out", *keys)


def replay_age_covers_lag(scenario: Scenario) -> Problem | None:
    """A group that may be max_lag versions old when it enters the buffer must be allowed to be that old in it."""
    age, lag = scenario.replay.max_age, scenario.max_lag
    if scenario.replay.capacity == 0 or age is None or age >= lag:
        return None
    what = f"replay.max_age is {age}, must be at least max_lag {lag}"
    return broken(what, f"set replay.max_age to {lag} or more", "replay.max_age", "max_lag")


DISTRIBUTED_RULES = (
    colocated_parts_take_turns,
    arms_that_take_steps,
    lag_control_has_lag,
    in_flight_engine,
    vllm_owns_its_group,
    sglang_has_its_process,
    shards_share_a_batch,
    weights_have_the_engines_type,
    actors_for_several_parts,
    one_host_transport,
    gpu_transport,
    nccl_parts_have_a_gpu_each,
    cuda_actors_reserve_gpus,
    sweep_on_one_machine,
    replay_holds_a_batch,
    newest_replays,
    groups_stay_to_be_replayed,
    replay_age_covers_lag,
)
