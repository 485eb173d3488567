"""How the Learner is spread over ranks, with the rules that bind it."""

from __future__ import annotations

from typing import Any

from harness.scenario.derived import mesh_shape, offloaded, zero_stage
from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario
from harness.settings.learner import BATCH_WIDE

ONE_STEP = "since the weights change once, behind the last part"


def ranks_share_something(scenario: Scenario) -> Problem | None:
    """Several ranks need a way to share the model, and parts that are processes."""
    ranks, sharding = scenario.placement.learner.ranks, scenario.learner.sharding
    if ranks == 1:
        return None
    keys = "placement.learner.ranks", "learner.sharding"
    if sharding == "none":
        what = f"placement.learner.ranks is {ranks}, must be 1 with learner.sharding none"
        fix = "set learner.sharding to ddp, fsdp2 or deepspeed, or placement.learner.ranks to 1"
        return broken(what, fix, *keys)
    if not scenario.uses_ray:
        what = f"placement.learner.ranks is {ranks}, must be 1 with transport.type in_process"
        fix = "set transport.type to shared_memory or object_store_numpy, so that each rank is a process"
        return broken(what, fix, "placement.learner.ranks", "transport.type")
    address, interface = scenario.placement.address, scenario.placement.interface
    if address != "local" and interface == "lo":
        what = f"placement.interface is lo with {ranks} placement.learner.ranks at placement.address {address}"
        fix = "set placement.interface to the network interface that connects the machines"
        return broken(what, fix, "placement.interface", "placement.learner.ranks")
    if scenario.transport.type in ("gloo", "nccl"):
        what = (
            f"transport.type is {scenario.transport.type} with {ranks} placement.learner.ranks: Ray makes the group of "
            "such a transport torch's default one, which the ranks have already"
        )
        fix = "set transport.type to shared_memory, nixl or object_store_numpy"
        return broken(what, fix, "transport.type", "placement.learner.ranks")
    if scenario.model.type == "paced":
        what = f"placement.learner.ranks is {ranks}, must be 1 with model.type paced, which trains nothing"
        return broken(what, "set placement.learner.ranks to 1", "placement.learner.ranks", "model.type")
    return None


def mesh_takes_all_ranks(scenario: Scenario) -> Problem | None:
    """The ranks are a whole number of copies and tensor groups."""
    ranks, mesh, sharding = scenario.placement.learner.ranks, scenario.learner.mesh, scenario.learner.sharding
    if ranks == 1 or sharding == "none":
        return None
    keys = "placement.learner.ranks", "learner.mesh.replicate", "learner.mesh.tensor"
    if sharding == "ddp" and mesh.replicate not in (None, ranks // mesh.tensor):
        what = (
            f"learner.mesh.replicate is {mesh.replicate} with learner.sharding ddp, which copies the model to each rank"
        )
        return broken(
            what, "leave it out, or set learner.sharding to fsdp2", "learner.mesh.replicate", "learner.sharding"
        )
    copies = 1 if sharding == "ddp" else mesh.replicate or 1
    parts = copies * mesh.tensor
    if ranks % parts == 0:
        return None
    what = (
        f"placement.learner.ranks is {ranks}, must be a multiple of {parts} "
        f"(learner.mesh.replicate {copies} x learner.mesh.tensor {mesh.tensor})"
    )
    return broken(what, f"set it to {-(-ranks // parts) * parts}, or make the mesh smaller", *keys)


def ranks_stand_on_nodes(scenario: Scenario) -> Problem | None:
    """Ranks per node add up to all ranks, keep tensor groups whole, and are not colocated."""
    ranks, per_node = scenario.placement.learner.ranks, scenario.placement.learner.per_node
    if per_node is None:
        return None
    said, tensor = list(per_node), scenario.learner.mesh.tensor
    if sum(said) != ranks:
        what = f"placement.learner.per_node is {said}, {sum(said)} in all, and placement.learner.ranks is {ranks}"
        keys = "placement.learner.per_node", "placement.learner.ranks"
        return broken(what, f"set placement.learner.ranks to {sum(said)}", *keys)
    if any(count % tensor for count in said):
        what = f"placement.learner.per_node is {said}, must be multiples of learner.mesh.tensor {tensor}"
        fix = "keep the ranks that cut a matrix on one node"
        return broken(what, fix, "placement.learner.per_node", "learner.mesh.tensor")
    if scenario.placement.colocated:
        what = f"placement.learner.per_node is {said} with placement.colocated, where all parts share one place"
        keys = "placement.learner.per_node", "placement.colocated"
        return broken(what, "set placement.colocated to false, or leave per_node out", *keys)
    if not (scenario.placement.learner.cpus or scenario.placement.learner.gpus):
        what = f"placement.learner.per_node is {said}, and the ranks reserve neither cpus nor gpus"
        return broken(what, "set placement.learner.cpus to 1", "placement.learner.per_node", "placement.learner.cpus")
    return None


def ranks_have_a_gpu_each(scenario: Scenario) -> Problem | None:
    """NCCL refuses two ranks on one GPU."""
    learner = scenario.placement.learner
    if learner.ranks == 1 or not 0 < learner.gpus < 1 or scenario.placement.device == "cpu":
        return None
    what = (
        f"placement.learner.gpus is {learner.gpus:g} with {learner.ranks} placement.learner.ranks, must be at least 1: "
        "NCCL refuses two ranks on one GPU"
    )
    fix = "set it to 1; with placement.colocated true each rank shares its GPU with Generators all the same"
    return broken(what, fix, "placement.learner.gpus", "placement.learner.ranks")


def zero_stage_is_deepspeeds(scenario: Scenario) -> Problem | None:
    """Only DeepSpeed has stages."""
    stage, sharding = scenario.learner.zero_stage, scenario.learner.sharding
    if stage is None or sharding == "deepspeed":
        return None
    what = f"learner.zero_stage is {stage} with learner.sharding {sharding}, which has no stages"
    return broken(what, "set learner.sharding to deepspeed, or leave it out", "learner.zero_stage", "learner.sharding")


def deepspeed_takes_one_dimension(scenario: Scenario) -> Problem | None:
    """DeepSpeed shards over all ranks, and weights that it has sharded are gathered tensor by tensor."""
    learner = scenario.learner
    if learner.sharding != "deepspeed":
        return None
    for name, parts in (("tensor", learner.mesh.tensor), ("replicate", learner.mesh.replicate)):
        if parts not in (None, 1):
            what = (
                f"learner.mesh.{name} is {parts}, must be 1 with learner.sharding deepspeed, which cuts over all ranks"
            )
            fix = "leave it out, or set learner.sharding to fsdp2"
            return broken(what, fix, f"learner.mesh.{name}", "learner.sharding")
    if zero_stage(scenario) == 3 and scenario.placement.learner.ranks > 1 and learner.publish != "per_tensor":
        what = f"learner.publish is {learner.publish} with learner.zero_stage 3, whose pieces are no blocks of a tensor"
        return broken(what, "set learner.publish to per_tensor", "learner.publish", "learner.zero_stage")
    return None


def deepspeed_trains_float32(scenario: Scenario) -> Problem | None:
    """DeepSpeed handles weights and losses of 16 bits differently."""
    if scenario.learner.sharding != "deepspeed" or scenario.placement.learner.ranks == 1:
        return None
    model: Any = scenario.model
    if model.precision == "float16":
        what = "model.precision is float16 with learner.sharding deepspeed: its optimizer steps past our loss scaling"
        return broken(what, "set model.precision to bfloat16 or float32", "model.precision", "learner.sharding")
    dtype = getattr(model, "dtype", "float32")
    if dtype == "float32":
        return None
    what = f"model.dtype is {dtype} with learner.sharding deepspeed, which would train float32 copies of the weights"
    fix = f"set model.dtype to float32 and model.precision to {dtype}, or learner.sharding to fsdp2"
    return broken(what, fix, "model.dtype", "learner.sharding")


def publish_overlaps_training(scenario: Scenario) -> Problem | None:
    """Weights can leave during a training step if only a copy is left to be made."""
    learner = scenario.learner
    if not learner.overlapped_publish:
        return None
    key = "learner.overlapped_publish"
    if scenario.is_synchronous:
        what = (
            f"{key} is true with max_lag 0: Generators wait for the weights before the next training step has a batch"
        )
        return broken(what, f"set max_lag to 1 or more, or {key} to false", key, "max_lag")
    if scenario.transport.type in ("gloo", "nccl"):
        what = (
            f"{key} is true with transport.type {scenario.transport.type}, whose sender takes part in each transfer "
            "and would do so between training steps"
        )
        return broken(what, "set transport.type to shared_memory, nixl or object_store_numpy", key, "transport.type")
    if scenario.placement.learner.ranks > 1 and learner.publish != "shards":
        what = (
            f"{key} is true with learner.publish {learner.publish}, which gathers weights by collectives of the group "
            "that trains meanwhile"
        )
        return broken(what, f"set learner.publish to shards, or {key} to false", key, "learner.publish")
    if learner.offload is not None:
        what = f"{key} is true with learner.offload, which moves away what the training step beside it works with"
        return broken(what, f"leave learner.offload out, or set {key} to false", key, "learner.offload")
    return None


def stream_adds_up(scenario: Scenario) -> Problem | None:
    """Parts of a batch add up if it is all fresh, has one optimizer step, and no rollout depends on the others."""
    key, delta = "learner.stream", scenario.advantage.delta_for(scenario.loss.type)
    how = scenario.learner.stream
    if how is None:
        return None
    generators, sharding = scenario.placement.generator.count, scenario.learner.sharding
    several_ranks = scenario.placement.learner.ranks > 1
    refused: tuple[tuple[bool, str, object, str, str], ...] = (
        (generators == 1, "placement.generator.count", generators, "2 or more", "which makes the parts of a batch"),
        (scenario.placement.colocated, "placement.colocated", "true", "false", "since it trains beside Generators"),
        (scenario.epochs_per_batch > 1, "epochs_per_batch", scenario.epochs_per_batch, "1", ONE_STEP),
        (scenario.minibatches_per_epoch > 1, "minibatches_per_epoch", scenario.minibatches_per_epoch, "1", ONE_STEP),
        (
            scenario.replay.capacity > 0,
            "replay.capacity",
            scenario.replay.capacity,
            "0",
            "since it draws from whole batches",
        ),
        (
            scenario.lag_control == "drop",
            "lag_control",
            "drop",
            "wait or in_flight",
            "since a batch is then what came first",
        ),
        (
            delta in (*BATCH_WIDE, "own"),
            "advantage.delta",
            delta,
            "one of a group alone, such as normalized_rewards",
            "since others are of the whole batch",
        ),
        (
            scenario.model.precision == "float16",
            "model.precision",
            "float16",
            "bfloat16 or float32",
            "since a gradient that does not fit would need all parts again",
        ),
        (
            several_ranks and sharding == "deepspeed",
            "learner.sharding",
            sharding,
            "ddp or fsdp2",
            "since its engine keeps the gradients",
        ),
        (
            bool(offloaded(scenario)),
            "learner.offload",
            "set",
            "null",
            "since the Learner would not be without work while Generators sample",
        ),
    )
    for breaks, other, value, bound, why in refused:
        if breaks:
            what = f"{key} is {how} and {other} is {value}, must be {bound}, {why}"
            return broken(what, f"set {other} to {bound}, or {key} to null", key, other)
    return None


def ranks_have_rows(scenario: Scenario) -> Problem | None:
    """Each rank that takes rollouts of its own has some in every optimizer step."""
    if scenario.placement.learner.ranks == 1 or scenario.learner.sharding == "none":
        return None
    data_ranks, rows = mesh_shape(scenario).data_ranks, scenario.train_batch_size
    if data_ranks <= rows:
        return None
    what = f"{data_ranks} ranks take rollouts of their own, and the train batch has {rows}"
    fix = f"set placement.learner.ranks to at most {rows * scenario.learner.mesh.tensor}, or raise rollout_batch_size"
    return broken(what, fix, "placement.learner.ranks", "rollout_batch_size", "minibatches_per_epoch")


def offload_has_something(scenario: Scenario) -> Problem | None:
    """DeepSpeed keeps its own buffers, and a paced Learner has nothing to offload."""
    if not offloaded(scenario):
        return None
    settings = scenario.learner.offload
    given = [f"learner.offload.{name}" for name in ("weights", "gradients", "optimizer") if getattr(settings, name)]
    if scenario.learner.sharding == "deepspeed" and scenario.placement.learner.ranks > 1:
        what = f"{' and '.join(given)} with learner.sharding deepspeed, whose engine holds its own copies of all of it"
        return broken(what, "leave learner.offload out, or set learner.sharding to fsdp2", *given, "learner.sharding")
    if scenario.model.type == "paced":
        what = f"{' and '.join(given)} with model.type paced, which trains nothing"
        return broken(what, "leave learner.offload out", *given, "model.type")
    return None


def rank_faults_strike(scenario: Scenario) -> Problem | None:
    """A fault of a rank needs an existing rank."""
    ranks, fault, key = scenario.placement.learner.ranks, scenario.faults.slow_rank, "faults.slow_rank"
    if fault is None:
        return None
    if ranks == 1:
        what = f"{key} is set with placement.learner.ranks 1, must be 2 or more"
        return broken(what, f"leave {key} out, or set placement.learner.ranks to 2", key, "placement.learner.ranks")
    if fault.rank >= ranks:
        what = f"{key}.rank is {fault.rank} with placement.learner.ranks {ranks}, must be at most {ranks - 1}"
        return broken(what, f"set {key}.rank to {ranks - 1} or less", key, "placement.learner.ranks")
    return None


LEARNER_RULES = (
    offload_has_something,
    ranks_share_something,
    zero_stage_is_deepspeeds,
    deepspeed_takes_one_dimension,
    deepspeed_trains_float32,
    mesh_takes_all_ranks,
    publish_overlaps_training,
    stream_adds_up,
    ranks_have_rows,
    rank_faults_strike,
    ranks_stand_on_nodes,
    ranks_have_a_gpu_each,
)
