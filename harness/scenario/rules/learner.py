"""Rules of the Learner: its ranks, what it publishes and offloads."""

from __future__ import annotations

from collections.abc import Callable

from harness.scenario.derived import mesh_shape, offloaded, zero_stage
from harness.scenario.rules.rule import Rule, given
from harness.scenario.schema import Scenario
from harness.settings.learner import BATCH_WIDE


def _ranks(scenario: Scenario) -> bool:
    return scenario.placement.learner.ranks > 1


def deepspeed_ranks(scenario: Scenario) -> bool:
    return scenario.learner.sharding == "deepspeed" and _ranks(scenario)


def _mesh_leaves_ranks_over(scenario: Scenario) -> object:
    ranks, mesh, sharding = scenario.placement.learner.ranks, scenario.learner.mesh, scenario.learner.sharding
    copies = 1 if sharding == "ddp" else mesh.replicate or 1
    parts = copies * mesh.tensor
    if ranks == 1 or sharding == "none" or ranks % parts == 0:
        return None
    return {"parts": parts, "copies": copies, "enough": -(-ranks // parts) * parts}


def _too_many_data_ranks(scenario: Scenario) -> object:
    if not _ranks(scenario) or scenario.learner.sharding == "none":
        return None
    data_ranks, rows = mesh_shape(scenario).data_ranks, scenario.train_batch_size
    return data_ranks > rows and {"data_ranks": data_ranks, "most": rows * scenario.learner.mesh.tensor}


def _per_node(scenario: Scenario) -> tuple[int, ...]:
    return scenario.placement.learner.per_node or ()


def _offloaded(scenario: Scenario) -> dict[str, str] | None:
    if scenario.learner.offload is None:
        return None
    return given(scenario, *(f"learner.offload.{kind}" for kind in ("weights", "gradients", "optimizer")))


def _without_ranks_mesh(name: str) -> Rule:
    return Rule(
        "deepspeed_takes_one_dimension",
        lambda s: s.learner.sharding == "deepspeed" and getattr(s.learner.mesh, name) not in (None, 1),
        f"learner.mesh.{name} is {{learner.mesh.{name}}}, must be 1 with learner.sharding deepspeed, which cuts over "
        "all ranks",
        "leave it out, or set learner.sharding to fsdp2",
    )


def _stream(breaks: Callable[[Scenario], object], key: str, bound: str, why: str) -> Rule:
    """Return what a Learner that trains on parts of a batch needs, so that they add up."""
    return Rule(
        "stream_adds_up",
        lambda s: s.learner.stream and breaks(s),
        f"learner.stream is {{learner.stream}} and {key} is {{{key}}}, must be {bound}, {why}",
        f"set {key} to {bound}, or learner.stream to null",
    )


_ONE_STEP = "since the weights change once, behind the last part"
RULES = (
    Rule(
        "offload_has_something",
        lambda s: deepspeed_ranks(s) and _offloaded(s),
        "{given} with learner.sharding deepspeed, whose engine holds its own copies of all of it",
        "leave learner.offload out, or set learner.sharding to fsdp2",
    ),
    Rule(
        "offload_has_something",
        lambda s: s.model.type == "paced" and _offloaded(s),
        "{given} with model.type paced, which trains nothing",
        "leave learner.offload out",
    ),
    Rule(
        "ranks_share_something",
        lambda s: _ranks(s) and s.learner.sharding == "none",
        "placement.learner.ranks is {placement.learner.ranks}, must be 1 with learner.sharding none",
        "set learner.sharding to ddp, fsdp2 or deepspeed, or placement.learner.ranks to 1",
    ),
    Rule(
        "ranks_share_something",
        lambda s: _ranks(s) and not s.uses_ray,
        "placement.learner.ranks is {placement.learner.ranks}, must be 1 with transport.type in_process",
        "set transport.type to shared_memory or object_store_numpy, so that each rank is a process",
    ),
    Rule(
        "ranks_share_something",
        lambda s: _ranks(s) and s.placement.address != "local" and s.placement.interface == "lo",
        "placement.interface is lo with {placement.learner.ranks} placement.learner.ranks at placement.address "
        "{placement.address}",
        "set placement.interface to the network interface that connects the machines",
    ),
    Rule(
        "ranks_share_something",
        lambda s: _ranks(s) and s.transport.type in ("gloo", "nccl"),
        "transport.type is {transport.type} with {placement.learner.ranks} placement.learner.ranks: Ray makes the "
        "group of such a transport torch's default one, which the ranks have already",
        "set transport.type to shared_memory, nixl or object_store_numpy",
    ),
    Rule(
        "ranks_share_something",
        lambda s: _ranks(s) and s.model.type == "paced",
        "placement.learner.ranks is {placement.learner.ranks}, must be 1 with model.type paced, which trains nothing",
        "set placement.learner.ranks to 1",
    ),
    Rule(
        "zero_stage_is_deepspeeds",
        lambda s: s.learner.zero_stage and s.learner.sharding != "deepspeed",
        "learner.zero_stage is {learner.zero_stage} with learner.sharding {learner.sharding}, which has no stages",
        "set learner.sharding to deepspeed, or leave it out",
    ),
    _without_ranks_mesh("tensor"),
    _without_ranks_mesh("replicate"),
    Rule(
        "deepspeed_takes_one_dimension",
        lambda s: deepspeed_ranks(s) and zero_stage(s) == 3 and s.learner.publish != "per_tensor",
        "learner.publish is {learner.publish} with learner.zero_stage 3, whose pieces are no blocks of a tensor",
        "set learner.publish to per_tensor",
    ),
    Rule(
        "deepspeed_trains_float32",
        lambda s: deepspeed_ranks(s) and s.model.precision == "float16",
        "model.precision is float16 with learner.sharding deepspeed: its optimizer steps past our loss scaling",
        "set model.precision to bfloat16 or float32",
    ),
    Rule(
        "deepspeed_trains_float32",
        lambda s: deepspeed_ranks(s) and getattr(s.model, "dtype", "float32") != "float32",
        "model.dtype is {model.dtype} with learner.sharding deepspeed, which would train float32 copies of the weights",
        "set model.dtype to float32 and model.precision to {model.dtype}, or learner.sharding to fsdp2",
    ),
    Rule(
        "mesh_takes_all_ranks",
        lambda s: (
            _ranks(s)
            and s.learner.sharding == "ddp"
            and s.learner.mesh.replicate not in (None, s.placement.learner.ranks // s.learner.mesh.tensor)
        ),
        "learner.mesh.replicate is {learner.mesh.replicate} with learner.sharding ddp, which copies the model to each "
        "rank",
        "leave it out, or set learner.sharding to fsdp2",
    ),
    Rule(
        "mesh_takes_all_ranks",
        _mesh_leaves_ranks_over,
        "placement.learner.ranks is {placement.learner.ranks}, must be a multiple of {parts} (learner.mesh.replicate "
        "{copies} x learner.mesh.tensor {learner.mesh.tensor})",
        "set it to {enough}, or make the mesh smaller",
    ),
    Rule(
        "publish_overlaps_training",
        lambda s: s.learner.overlapped_publish and s.max_lag == 0,
        "learner.overlapped_publish is true with max_lag 0: Generators wait for the weights before the next training "
        "step has a batch",
        "set max_lag to 1 or more, or learner.overlapped_publish to false",
    ),
    Rule(
        "publish_overlaps_training",
        lambda s: s.learner.overlapped_publish and s.transport.type in ("gloo", "nccl"),
        "learner.overlapped_publish is true with transport.type {transport.type}, whose sender takes part in each "
        "transfer and would do so between training steps",
        "set transport.type to shared_memory, nixl or object_store_numpy",
    ),
    Rule(
        "publish_overlaps_training",
        lambda s: s.learner.overlapped_publish and _ranks(s) and s.learner.publish != "shards",
        "learner.overlapped_publish is true with learner.publish {learner.publish}, which gathers weights by "
        "collectives of the group that trains meanwhile",
        "set learner.publish to shards, or learner.overlapped_publish to false",
    ),
    Rule(
        "publish_overlaps_training",
        lambda s: s.learner.overlapped_publish and s.learner.offload,
        "learner.overlapped_publish is true with learner.offload, which moves away what the training step beside it "
        "works with",
        "leave learner.offload out, or set learner.overlapped_publish to false",
    ),
    _stream(
        lambda s: s.placement.generator.count == 1,
        "placement.generator.count",
        "2 or more",
        "which makes the parts of a batch",
    ),
    _stream(lambda s: s.placement.colocated, "placement.colocated", "false", "since it trains beside Generators"),
    _stream(lambda s: s.epochs_per_batch > 1, "epochs_per_batch", "1", _ONE_STEP),
    _stream(lambda s: s.minibatches_per_epoch > 1, "minibatches_per_epoch", "1", _ONE_STEP),
    _stream(lambda s: s.replay.capacity, "replay.capacity", "0", "since it draws from whole batches"),
    _stream(
        lambda s: s.lag_control == "drop", "lag_control", "wait or in_flight", "since a batch is then what came first"
    ),
    _stream(
        lambda s: s.advantage.delta in (*BATCH_WIDE, "own"),
        "advantage.delta",
        "one of a group alone, such as normalized_rewards",
        "since others are of the whole batch",
    ),
    _stream(
        lambda s: s.model.precision == "float16",
        "model.precision",
        "bfloat16 or float32",
        "since a gradient that does not fit would need all parts again",
    ),
    _stream(deepspeed_ranks, "learner.sharding", "ddp or fsdp2", "since its engine keeps the gradients"),
    _stream(
        offloaded, "learner.offload", "null", "since the Learner would not be without work while Generators sample"
    ),
    Rule(
        "ranks_have_rows",
        _too_many_data_ranks,
        "{data_ranks} ranks take rollouts of their own, and the train batch has {train_batch_size}",
        "set placement.learner.ranks to at most {most}, or raise rollout_batch_size",
        ("placement.learner.ranks", "rollout_batch_size", "minibatches_per_epoch"),
    ),
    Rule(
        "rank_faults_strike",
        lambda s: s.faults.slow_rank and not _ranks(s),
        "faults.slow_rank is set with placement.learner.ranks 1, must be 2 or more",
        "leave faults.slow_rank out, or set placement.learner.ranks to 2",
    ),
    Rule(
        "rank_faults_strike",
        lambda s: (
            s.faults.slow_rank
            and s.faults.slow_rank.rank >= s.placement.learner.ranks
            and {"most": s.placement.learner.ranks - 1}
        ),
        "faults.slow_rank.rank is {faults.slow_rank.rank} with placement.learner.ranks {placement.learner.ranks}, must "
        "be at most {most}",
        "set faults.slow_rank.rank to {most} or less",
    ),
    Rule(
        "ranks_stand_on_nodes",
        lambda s: _per_node(s) and sum(_per_node(s)) != s.placement.learner.ranks and {"in_all": sum(_per_node(s))},
        "placement.learner.per_node is {placement.learner.per_node}, {in_all} in all, and placement.learner.ranks is "
        "{placement.learner.ranks}",
        "set placement.learner.ranks to {in_all}",
    ),
    Rule(
        "ranks_stand_on_nodes",
        lambda s: any(count % s.learner.mesh.tensor for count in _per_node(s)),
        "placement.learner.per_node is {placement.learner.per_node}, must be multiples of learner.mesh.tensor "
        "{learner.mesh.tensor}",
        "keep the ranks that cut a matrix on one node",
    ),
    Rule(
        "ranks_stand_on_nodes",
        lambda s: _per_node(s) and s.placement.colocated,
        "placement.learner.per_node is {placement.learner.per_node} with placement.colocated, where all parts share "
        "one place",
        "set placement.colocated to false, or leave per_node out",
    ),
    Rule(
        "ranks_stand_on_nodes",
        lambda s: _per_node(s) and not (s.placement.learner.cpus or s.placement.learner.gpus),
        "placement.learner.per_node is {placement.learner.per_node}, and the ranks reserve neither cpus nor gpus",
        "set placement.learner.cpus to 1",
        ("placement.learner.cpus",),
    ),
    Rule(
        "ranks_have_a_gpu_each",
        lambda s: _ranks(s) and 0 < s.placement.learner.gpus < 1 and s.placement.device != "cpu",
        "placement.learner.gpus is {placement.learner.gpus} with {placement.learner.ranks} placement.learner.ranks, "
        "must be at least 1: NCCL refuses two ranks on one GPU",
        "set it to 1; with placement.colocated true each rank shares its GPU with Generators all the same",
    ),
)
