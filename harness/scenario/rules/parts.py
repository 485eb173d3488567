"""Rules of where the parts run, how weights move, how far a Generator may lag, and of replay."""

from __future__ import annotations

import re

from harness.scenario.rules.rule import Rule, given, must
from harness.scenario.schema import Scenario
from harness.settings.command import SCENARIO_FILE, SEED
from harness.settings.replay import ReplaySettings
from harness.settings.transport import ActorTransportSettings

_FOR_GPUS = ("nccl", "cuda_ipc")
_WITH_ACTORS = "transport.type to object_store_numpy, which runs the parts as Ray actors"
_OF_REPLAY = tuple(f"replay.{name}" for name in ReplaySettings.model_fields)


def _in_engines_type(scenario: Scenario) -> bool:
    return isinstance(scenario.transport, ActorTransportSettings) and scenario.transport.dtype == "engine"


def _stays_on_one_host(scenario: Scenario) -> bool:
    return isinstance(scenario.transport, ActorTransportSettings) and scenario.transport.one_host


def _parts_of_nccl_share_a_gpu(scenario: Scenario) -> object:
    """NCCL, which broadcast uses for GPU memory, refuses two members of one group on the same GPU."""
    placement, sweep = scenario.placement, scenario.transport_sweep
    names = [
        name for name in (sweep.transports if sweep else [scenario.transport.type]) if name in ("nccl", "broadcast")
    ]
    wrong = [
        f"placement.{part}.gpus is {gpus:g}, must be at least 1"
        for part, gpus in (("generator", placement.generator.gpus), ("learner", placement.learner.gpus))
        if 0 < gpus < 1
    ]
    wrong += ["placement.colocated is true, must be false"] if placement.colocated and not sweep else []
    if not names or not wrong or placement.device != "cuda":
        return None
    subject = "transport_sweep.transports names" if sweep else "transport.type is"
    return {"subject": subject, "names": " and ".join(names), "wrong": " and ".join(wrong)}


def _actors_without_gpus(scenario: Scenario) -> object:
    placement = scenario.placement
    if placement.device != "cuda" or not (scenario.uses_ray or scenario.transport_sweep):
        return None
    parts = {"placement.generator.gpus": placement.generator.gpus, "placement.learner.gpus": placement.learner.gpus}
    bare = [key for key, gpus in parts.items() if gpus == 0]
    return bare and {"bare": " and ".join(bare), "are": "are" if len(bare) > 1 else "is"}


def _swept_over_gpus(scenario: Scenario) -> object:
    sweep = scenario.transport_sweep
    names = " and ".join(name for name in sweep.transports if name in _FOR_GPUS) if sweep else ""
    return scenario.placement.device != "cuda" and names and {"names": names}


def _unknown_words(scenario: Scenario) -> str:
    """Return what looks like a word to be filled in, and is none."""
    found = re.findall(r"\{[a-z_]+\}", " ".join(scenario.command))
    return " and ".join(word[1:-1] for word in found if word not in (SEED, SCENARIO_FILE))


RULES = (
    must("colocated_parts_take_turns", "max_lag", "0", "placement.colocated true", "placement.colocated to false"),
    must(
        "arms_that_take_steps",
        "max_lag",
        "0",
        "interleaving step",
        "interleaving to run",
        ": lagged parts work on while another arm has its turn",
    ),
    Rule(
        "programs_run_alone",
        lambda s: s.command and s.interleaving == "step",
        "interleaving is step with a command, which is a process of its own from start to end",
        "set interleaving to run or auto",
        ("interleaving", "command"),
    ),
    Rule(
        "programs_run_alone",
        lambda s: s.command and s.transport_sweep,
        "transport_sweep is set with a command, and measures syncs of the harness' own parts",
        "leave one of them out",
        ("command",),
    ),
    Rule(
        "words_of_a_command",
        lambda s: {"words": words} if (words := _unknown_words(s)) else None,
        "command holds {words} in brackets, which nothing fills in",
        "write seed or scenario in the brackets, or leave them out",
        ("command",),
    ),
    Rule(
        "lag_control_has_lag",
        lambda s: s.lag_control != "wait" and not s.max_lag,
        "lag_control is {lag_control} with max_lag 0, and without lag its bound never bites that way",
        "set max_lag to 1 or more, or lag_control to wait",
    ),
    Rule(
        "in_flight_engine",
        lambda s: s.lag_control == "in_flight" and s.engine.type != "vllm" and s.model.type == "folder",
        "model.type is folder with lag_control in_flight: models of transformers take weights between batches",
        "set lag_control to wait, model.type to preset, or engine.type to vllm",
    ),
    Rule(
        "in_flight_engine",
        lambda s: s.lag_control == "in_flight" and s.engine.type not in ("native", "vllm", "paced"),
        "engine.type is {engine.type}, must be native or vllm with lag_control in_flight",
        "set engine.type to native or vllm, or lag_control to wait",
    ),
    Rule(
        "vllm_owns_its_group",
        lambda s: s.engine.type == "vllm" and s.transport.type == "gloo",
        "transport.type is gloo with engine.type vllm, which holds its process's only torch process group already",
        "set transport.type to nixl, shared_memory or object_store_numpy",
    ),
    Rule(
        "sglang_has_its_process",
        lambda s: s.engine.type == "sglang" and not s.uses_ray,
        "transport.type is in_process with engine.type sglang, which at its end ends every child of its process",
        "set transport.type to cuda_ipc or object_store_numpy, so that it has a process of its own",
    ),
    must(
        "sglang_has_its_process",
        "sampling.top_p",
        "1",
        "engine.type sglang",
        "engine.type to native or vllm",
        ": its log-probs are of the whole distribution",
    ),
    Rule(
        "shards_share_a_batch",
        lambda s: s.placement.generator.count > s.prompts_per_batch > 0,
        "placement.generator.count is {placement.generator.count}, must be at most {prompts_per_batch}, the prompts of "
        "a rollout batch",
        "set it to at most {prompts_per_batch}, or raise rollout_batch_size",
        ("rollout_batch_size", "group_size"),
    ),
    Rule(
        "shards_share_a_batch",
        lambda s: s.lag_control == "drop" and s.prompts_per_batch % s.placement.generator.count,
        "placement.generator.count {placement.generator.count} does not divide the {prompts_per_batch} prompts of a "
        "rollout batch",
        "with lag_control drop, set it to a divisor, so that all parts of a batch are alike",
        ("rollout_batch_size", "group_size"),
    ),
    Rule(
        "weights_have_the_engines_type",
        lambda s: _in_engines_type(s) and s.placement.learner.ranks > 1,
        "transport.dtype is engine, must be trained with {placement.learner.ranks} placement.learner.ranks",
        "set transport.dtype to trained",
    ),
    Rule(
        "weights_have_the_engines_type",
        lambda s: _in_engines_type(s) and not s.travel_dtype,
        "transport.dtype is engine, and engine.type {engine.type} has no precision",
        "set transport.dtype to trained",
    ),
    *(
        must("actors_for_several_parts", key, usual, "transport.type in_process", _WITH_ACTORS)
        for key, usual in (
            ("placement.generator.count", "1"),
            ("placement.scorer.count", "1"),
            ("placement.address", "local"),
        )
    ),
    Rule(
        "one_host_transport",
        lambda s: _stays_on_one_host(s) and s.placement.address != "local",
        "transport.type is {transport.type}, which works within one host, and placement.address is {placement.address}",
        "set transport.type to nixl or object_store_numpy, or placement.address to local",
    ),
    Rule(
        "gpu_transport",
        lambda s: s.transport.type in _FOR_GPUS and s.placement.device != "cuda",
        "transport.type is {transport.type}, which moves GPU memory, and placement.device is {placement.device}",
        "set placement.device to cuda, or transport.type to gloo or nixl",
    ),
    Rule(
        "nccl_parts_have_a_gpu_each",
        _parts_of_nccl_share_a_gpu,
        "{subject} {names}, which needs a GPU for each part, and {wrong}",
        "set placement.colocated to false and both gpus to 1; parts that share a GPU have cuda_ipc and nixl",
    ),
    Rule(
        "cuda_actors_reserve_gpus",
        _actors_without_gpus,
        "{bare} {are} 0, must be above 0 with placement.device cuda",
        "set them to 1, or to a fraction such as 0.25 to share one GPU",
    ),
    must("sweep_on_one_machine", "placement.address", "local", "transport_sweep set"),
    Rule(
        "sweep_on_one_machine",
        _swept_over_gpus,
        "transport_sweep.transports names {names}, for GPU memory, and placement.device is {placement.device}",
        "set placement.device to cuda, or leave {names} out",
    ),
    Rule(
        "replay_holds_a_batch",
        lambda s: s.replay.capacity == 0 and given(s, *_OF_REPLAY),
        "replay.capacity is 0, so there is no buffer for which {given} could mean anything",
        "set replay.capacity, or leave {given} out",
    ),
    Rule(
        "replay_holds_a_batch",
        lambda s: 0 < s.replay.capacity < s.prompts_per_batch,
        "replay.capacity is {replay.capacity} groups, must be at least the {prompts_per_batch} groups of a rollout "
        "batch",
        "set replay.capacity to {prompts_per_batch} or more, or to 0 for no replay",
        ("rollout_batch_size",),
    ),
    Rule(
        "replay_holds_a_batch",
        lambda s: 0 < s.replay.capacity < s.replay_sample_groups,
        "replay.sample_groups is {replay.sample_groups}, must be at most replay.capacity {replay.capacity}",
        "set it to at most {replay.capacity}",
    ),
    Rule(
        "newest_replays",
        lambda s: s.replay.capacity and s.replay.sampling == "newest" and s.replay_sample_groups <= s.prompts_per_batch,
        "replay.sampling newest with {replay_sample_groups} sample_groups takes the {prompts_per_batch} fresh groups "
        "of each step and replays none",
        "set replay.sample_groups above {prompts_per_batch}, or replay.sampling to uniform, or replay.capacity to 0",
        ("replay.sample_groups",),
    ),
    Rule(
        "replay_age_covers_lag",
        lambda s: s.replay.capacity and s.replay.max_age is not None and s.replay.max_age < s.max_lag,
        "replay.max_age is {replay.max_age}, must be at least max_lag {max_lag}",
        "set replay.max_age to {max_lag} or more",
    ),
)
