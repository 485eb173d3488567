"""Rules of lag, replay, placement and transport."""

from __future__ import annotations

from harness.scenario.problems import Problem, dotted_paths
from harness.scenario.schema import Scenario
from harness.scenario.sections import ReplaySettings


def lag_control_has_lag(scenario: Scenario) -> Problem | None:
    """Without lag there is nothing to drop and no weights to swap."""
    if scenario.lag_control == "wait" or scenario.max_lag > 0:
        return None
    what = f"lag_control is {scenario.lag_control} with max_lag 0, and without lag its bound never bites that way"
    return Problem(what, "set max_lag to 1 or more, or lag_control to wait", dotted_paths("lag_control", "max_lag"))


def in_flight_engine(scenario: Scenario) -> Problem | None:
    """Only an engine that says which weights sampled each token can change them on the way."""
    if scenario.lag_control != "in_flight":
        return None
    if scenario.engine.type == "vllm":
        return None
    if scenario.model.type == "folder":
        what = "model.type is folder with lag_control in_flight: models of transformers take weights between batches"
        fix = "set lag_control to wait, model.type to preset, or engine.type to vllm"
        return Problem(what, fix, dotted_paths("model.type", "lag_control"))
    if scenario.engine.type in ("native", "paced"):
        return None
    what = f"engine.type is {scenario.engine.type}, must be native or vllm with lag_control in_flight"
    fix = "set engine.type to native or vllm, or lag_control to wait"
    return Problem(what, fix, dotted_paths("engine.type", "lag_control"))


def vllm_owns_its_group(scenario: Scenario) -> Problem | None:
    """vLLM makes a torch process group of its own, of one process; gloo would need one of all actors in that place."""
    if scenario.engine.type != "vllm" or scenario.transport.type != "gloo":
        return None
    what = "transport.type is gloo with engine.type vllm, which holds its process's only torch process group already"
    fix = "set transport.type to nixl, shared_memory or object_store_numpy"
    return Problem(what, fix, dotted_paths("transport.type", "engine.type"))


def sglang_has_its_process(scenario: Scenario) -> Problem | None:
    """SGLang ends all children of its process when it ends, and reports log-probs of the whole distribution."""
    if scenario.engine.type != "sglang":
        return None
    if not scenario.uses_ray:
        what = "transport.type is in_process with engine.type sglang, which at its end ends every child of its process"
        fix = "set transport.type to cuda_ipc or object_store_numpy, so that it has a process of its own"
        return Problem(what, fix, dotted_paths("transport.type", "engine.type"))
    top_p = scenario.sampling.top_p
    if top_p == 1:
        return None
    what = f"sampling.top_p is {top_p}, must be 1 with engine.type sglang: its log-probs are of the whole distribution"
    fix = "set sampling.top_p to 1, or engine.type to native or vllm"
    return Problem(what, fix, dotted_paths("sampling.top_p", "engine.type"))


def shards_share_a_batch(scenario: Scenario) -> Problem | None:
    """Several Generators share a rollout batch; where batches are made of what comes first, in equal parts."""
    count, prompts = scenario.placement.generator.count, scenario.prompts_per_batch
    paths = dotted_paths("placement.generator.count", "rollout_batch_size", "group_size")
    if count > prompts > 0:
        what = f"placement.generator.count is {count}, must be at most {prompts}, the prompts of a rollout batch"
        return Problem(what, f"set it to at most {prompts}, or raise rollout_batch_size", paths)
    if scenario.lag_control == "drop" and prompts % count:
        what = f"placement.generator.count {count} does not divide the {prompts} prompts of a rollout batch"
        return Problem(
            what, "with lag_control drop, set it to a divisor, so that all parts of a batch are alike", paths
        )
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
            return Problem(what, fix, dotted_paths(key, "transport.type"))
    return None


def one_host_transport(scenario: Scenario) -> Problem | None:
    """Shared memory and one GPU's memory end at the host."""
    kind, address = scenario.transport.type, scenario.placement.address
    if kind not in ("shared_memory", "cuda_ipc") or address == "local":
        return None
    what = f"transport.type is {kind}, which works within one host, and placement.address is {address}"
    fix = "set transport.type to nixl or object_store_numpy, or placement.address to local"
    return Problem(what, fix, dotted_paths("transport.type", "placement.address"))


def gpu_transport(scenario: Scenario) -> Problem | None:
    """NCCL and CUDA IPC move GPU memory."""
    kind, device = scenario.transport.type, scenario.placement.device
    if kind not in ("nccl", "cuda_ipc") or device == "cuda":
        return None
    what = f"transport.type is {kind}, which moves GPU memory, and placement.device is {device}"
    fix = "set placement.device to cuda, or transport.type to gloo or nixl"
    return Problem(what, fix, dotted_paths("transport.type", "placement.device"))


def nccl_parts_have_a_gpu_each(scenario: Scenario) -> Problem | None:
    """NCCL refuses two members of one group on the same GPU."""
    placement, sweep = scenario.placement, scenario.transport_sweep
    key = "transport_sweep.transports" if sweep else "transport.type"
    named = sweep.transports if sweep else (scenario.transport.type,)
    if "nccl" not in named or placement.device != "cuda":
        return None
    shares = {f"placement.{name}.gpus": getattr(placement, name).gpus for name in ("generator", "learner")}
    wrong = {share: f"{share} is {gpus:g}, must be at least 1" for share, gpus in shares.items() if 0 < gpus < 1}
    if placement.colocated and not sweep:
        wrong["placement.colocated"] = "placement.colocated is true, must be false"
    if not wrong:
        return None
    what = (
        f"{key} {'names' if sweep else 'is'} nccl, which needs a GPU for each part, and {' and '.join(wrong.values())}"
    )
    fix = "set placement.colocated to false and both gpus to 1; parts that share a GPU have cuda_ipc and nixl"
    return Problem(what, fix, dotted_paths(key, *wrong))


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
    return Problem(what, fix, dotted_paths(*keys, "placement.device"))


def sweep_on_one_machine(scenario: Scenario) -> Problem | None:
    """A transport sweep measures within one machine, and moves GPU memory only where there is some."""
    sweep, placement = scenario.transport_sweep, scenario.placement
    if sweep is None:
        return None
    if placement.address != "local":
        what = f"placement.address is {placement.address}, must be local with transport_sweep"
        return Problem(what, "set placement.address to local", dotted_paths("placement.address", "transport_sweep"))
    moved = [name for name in sweep.transports if name in ("nccl", "cuda_ipc")]
    if not moved or placement.device == "cuda":
        return None
    names = " and ".join(moved)
    what = f"transport_sweep.transports names {names}, for GPU memory, and placement.device is {placement.device}"
    fix = f"set placement.device to cuda, or leave {names} out"
    return Problem(what, fix, dotted_paths("transport_sweep.transports", "placement.device"))


def paced_goes_together(scenario: Scenario) -> Problem | None:
    """A Learner that trains nothing needs an engine that samples nothing."""
    model, engine = scenario.model.type, scenario.engine.type
    if (model == "paced") == (engine == "paced"):
        return None
    what = f"model.type is {model} and engine.type is {engine}: paced parts go together"
    return Problem(what, "set both to paced, or neither", dotted_paths("model.type", "engine.type"))


def replay_holds_a_batch(scenario: Scenario) -> Problem | None:
    """A buffer has room for the batch that enters it and for the sample that is taken."""
    capacity, prompts, sample = scenario.replay.capacity, scenario.prompts_per_batch, scenario.replay_sample_groups
    if capacity == 0:
        return _settings_without_buffer(scenario)
    if capacity < prompts:
        what = f"replay.capacity is {capacity} groups, must be at least the {prompts} groups of a rollout batch"
        fix = f"set replay.capacity to {prompts} or more, or to 0 for no replay"
        return Problem(what, fix, dotted_paths("replay.capacity", "rollout_batch_size"))
    if sample > capacity:
        what = f"replay.sample_groups is {sample}, must be at most replay.capacity {capacity}"
        return Problem(what, f"set it to at most {capacity}", dotted_paths("replay.sample_groups", "replay.capacity"))
    return None


def _settings_without_buffer(scenario: Scenario) -> Problem | None:
    """What would be ignored in silence is refused."""
    given = [name for name, value in scenario.replay if value != getattr(ReplaySettings(), name)]
    if not given:
        return None
    keys = [f"replay.{name}" for name in given]
    what = f"replay.capacity is 0, so there is no buffer for which {' and '.join(keys)} could mean anything"
    return Problem(what, f"set replay.capacity, or leave {' and '.join(keys)} out", dotted_paths(*keys))


def replay_age_covers_lag(scenario: Scenario) -> Problem | None:
    """A group that may be max_lag versions old when it enters the buffer must be allowed to be that old in it."""
    age, lag = scenario.replay.max_age, scenario.max_lag
    if scenario.replay.capacity == 0 or age is None or age >= lag:
        return None
    what = f"replay.max_age is {age}, must be at least max_lag {lag}"
    return Problem(what, f"set replay.max_age to {lag} or more", dotted_paths("replay.max_age", "max_lag"))


def importance_has_two_policies(scenario: Scenario) -> Problem | None:
    """The weight is proximal / engine; where the engine's log-probs are the proximal ones, it is always 1."""
    loss = scenario.loss
    if loss.importance.mode == "off" or loss.proximal == "recompute" or not scenario.behaviour_is_older:
        return None
    what = (
        f"loss.importance.mode is {loss.importance.mode}, which with max_lag {scenario.max_lag} and replay.capacity "
        f"{scenario.replay.capacity} does nothing while loss.proximal is engine"
    )
    fix = "set loss.proximal to recompute, or loss.importance.mode to off"
    return Problem(what, fix, dotted_paths("loss.importance.mode", "loss.proximal"))


def sequence_mask_weighs_tokens(scenario: Scenario) -> Problem | None:
    """``seq-mask-tis`` masks whole sequences and weighs single tokens, by its definition."""
    importance = scenario.loss.importance
    if importance.mode != "seq-mask-tis" or importance.level == "token":
        return None
    what = "loss.importance.level is sequence, must be token with loss.importance.mode seq-mask-tis"
    fix = "set loss.importance.level to token, or loss.importance.mode to tis or icepop"
    return Problem(what, fix, dotted_paths("loss.importance.level", "loss.importance.mode"))


DISTRIBUTED_RULES = (
    lag_control_has_lag,
    in_flight_engine,
    vllm_owns_its_group,
    sglang_has_its_process,
    shards_share_a_batch,
    actors_for_several_parts,
    one_host_transport,
    gpu_transport,
    nccl_parts_have_a_gpu_each,
    cuda_actors_reserve_gpus,
    sweep_on_one_machine,
    paced_goes_together,
    replay_holds_a_batch,
    replay_age_covers_lag,
    importance_has_two_policies,
    sequence_mask_weighs_tokens,
)
