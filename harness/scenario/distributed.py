"""Where the parts run, how weights move, how far a Generator may lag, and what happens on faults, with their rules."""

from __future__ import annotations

from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario
from harness.settings.replay import ReplaySettings


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
