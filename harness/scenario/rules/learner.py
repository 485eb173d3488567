"""Rules of the Learner: its ranks, what it publishes and offloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.scenario.derived import mesh_shape, offloaded
from harness.scenario.rules.rule import Rule, fits, given, must, only_with
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


_ONE_STEP = "since the weights change once, behind the last part"
_PARTS_ADD_UP: tuple[tuple[str, str | Callable[[Scenario], object], str, str], ...] = (
    ("placement.generator.count", "1", "2 or more", "which makes the parts of a batch"),
    ("placement.colocated", "true", "false", "since it trains beside Generators"),
    ("epochs_per_batch", "not 1", "1", _ONE_STEP),
    ("minibatches_per_epoch", "not 1", "1", _ONE_STEP),
    ("replay.capacity", "not 0", "0", "since it draws from whole batches"),
    ("lag_control", "drop", "wait or in_flight", "since a batch is then what came first"),
    (
        "advantage.delta",
        " or ".join((*BATCH_WIDE, "own")),
        "one of a group alone, such as normalized_rewards",
        "since others are of the whole batch",
    ),
    (
        "model.precision",
        "float16",
        "bfloat16 or float32",
        "since a gradient that does not fit would need all parts again",
    ),
    ("learner.sharding", deepspeed_ranks, "ddp or fsdp2", "since its engine keeps the gradients"),
    ("learner.offload", offloaded, "null", "since the Learner would not be without work while Generators sample"),
)
"""What a Learner that trains on parts of a batch needs: key, values or scenarios that break it, bound and reason."""


def _stream(key: str, wrong: str | Callable[[Scenario], object], bound: str, why: str) -> Rule:
    breaks = wrong if callable(wrong) else lambda scenario: fits(scenario, f"{key} {wrong}")
    return Rule(
        "stream_adds_up",
        lambda s: s.learner.stream and breaks(s),
        f"learner.stream is {{learner.stream}} and {key} is {{{key}}}, must be {bound}, {why}",
        f"set {key} to {bound}, or learner.stream to null",
    )


_no_overlap = partial(must, "publish_overlaps_training", "learner.overlapped_publish", "false")

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
    must(
        "ranks_share_something",
        "placement.learner.ranks",
        "1",
        "learner.sharding none",
        "learner.sharding to ddp, fsdp2 or deepspeed",
    ),
    must(
        "ranks_share_something",
        "placement.learner.ranks",
        "1",
        "transport.type in_process",
        "transport.type to shared_memory or object_store_numpy, so that each rank is a process",
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
    must("ranks_share_something", "placement.learner.ranks", "1", "model.type paced", why=", which trains nothing"),
    only_with("zero_stage_is_deepspeeds", "learner.zero_stage", "learner.sharding", "deepspeed"),
    *(
        must(
            "deepspeed_takes_one_dimension",
            f"learner.mesh.{name}",
            bound,
            "learner.sharding deepspeed",
            "learner.sharding to fsdp2",
            ", which cuts over all ranks",
        )
        for name, bound in (("tensor", "1"), ("replicate", "null or 1"))
    ),
    must(
        "deepspeed_takes_one_dimension",
        "learner.publish",
        "per_tensor",
        "learner.zero_stage 3",
        why=", whose pieces are no blocks of a tensor",
        when=deepspeed_ranks,
    ),
    must(
        "deepspeed_trains_float32",
        "model.precision",
        "bfloat16 or float32",
        "learner.sharding deepspeed",
        why=": its optimizer steps past our loss scaling",
        when=_ranks,
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
    _no_overlap(
        "max_lag 0",
        "max_lag to 1 or more",
        ": Generators wait for the weights before the next training step has a batch",
    ),
    _no_overlap(
        "transport.type gloo or nccl",
        "transport.type to shared_memory, nixl or object_store_numpy",
        ", whose sender takes part in each transfer and would do so between training steps",
    ),
    _no_overlap(
        "learner.publish per_tensor or rank0",
        "learner.publish to shards",
        ", which gathers weights by collectives of the group that trains meanwhile",
        when=_ranks,
    ),
    _no_overlap(
        "learner.offload set",
        "learner.offload to null",
        ", which moves away what the training step beside it works with",
    ),
    *(_stream(*row) for row in _PARTS_ADD_UP),
    Rule(
        "ranks_have_rows",
        _too_many_data_ranks,
        "{data_ranks} ranks take rollouts of their own, and the train batch has {train_batch_size}",
        "set placement.learner.ranks to at most {most}, or raise rollout_batch_size",
        ("placement.learner.ranks", "rollout_batch_size", "minibatches_per_epoch"),
    ),
    must("rank_faults_strike", "faults.slow_rank", "null", "placement.learner.ranks 1", "placement.learner.ranks to 2"),
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
    must(
        "ranks_stand_on_nodes",
        "placement.learner.per_node",
        "null",
        "placement.colocated true",
        "placement.colocated to false",
        ", where all parts share one place",
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
