"""Weights of several ranks: each writes its pieces, which together are everything once; what arrives is equal.

Ranks are processes with gloo. Each case is a way of sharding; what every rank must find is its own ``full_tensor``.
"""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from harness.core.errors import RunStopped, UserError
from harness.core.types import PartChecksum, WeightHandle
from harness.transports.catalogue import transport_kind
from harness.transports.checksum import checksum, verify
from harness.transports.protocol import TransportOptions
from harness.transports.sharded import ShardSender, check_takes_shards, rank_sender, shard_receiver, shard_sender
from harness.transports.shards import (
    DifferingReplica,
    TensorSlice,
    WritePlan,
    agree,
    check_cover,
    differing_replicas,
    gather_per_tensor,
    gather_whole,
    held_slices,
    replica_checksums,
    shards_of,
    write_plans,
)
from harness.transports.shared_memory import SharedMemoryPayload, SharedMemorySender
from tests.rank_pool import RankPool

Weights = dict[str, Tensor]


def layers() -> nn.Module:
    """Odd sizes: nothing divides by 2 and 3 at once, and the last layer has one row."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3), nn.Linear(3, 1).to(torch.float64))


def fsdp() -> nn.Module:
    model = layers()
    for layer in model:  # a group of its own for each: one group has one dtype
        fully_shard(layer)
    return model


def hsdp() -> nn.Module:
    model, mesh = layers(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return model


def tensor_parallel() -> nn.Module:
    model = layers()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}  # the norm and the last layer stay whole on each rank
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def fsdp_of_tensor_parallel() -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


def data_parallel() -> nn.Module:
    model = layers()
    model.register_parameter("scale", nn.Parameter(torch.tensor(3.0)))
    model.register_parameter("nothing", nn.Parameter(torch.empty(0, 4)))
    nn.parallel.DistributedDataParallel(model)
    return model


class Columns(nn.Module):
    """Tensors cut along their second and third dimension, a transposed one, and a block that two ranks of four hold."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (ranks,))
        square = init_device_mesh("cpu", (2, ranks // 2))
        cut = {
            "columns": distribute_tensor(torch.randn(3, 5), mesh, [Shard(1)]),
            "depth": distribute_tensor(torch.randn(2, 3, 9).to(torch.bfloat16), mesh, [Shard(2)]),
            "turned": distribute_tensor(torch.randn(6, 4).T, mesh, [Shard(1)]),
            "both": distribute_tensor(torch.randn(5, 7), square, [Shard(0), Shard(1)]),
            "shared": distribute_tensor(torch.randn(5, 1), square, [Shard(0), Replicate()]),
        }
        for name, tensor in cut.items():
            self.register_parameter(name, nn.Parameter(tensor))


CASES: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "FSDP2 on 2": (2, fsdp),
    "FSDP2 on 3": (3, fsdp),
    "HSDP 2 x 2": (4, hsdp),
    "tensor parallel": (2, tensor_parallel),
    "FSDP2 x tensor parallel": (4, fsdp_of_tensor_parallel),
    "columns": (4, Columns),
    "DDP on 2": (2, data_parallel),
    "DDP on 3": (3, data_parallel),
}


def from_rank_0(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def from_all(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def full_tensors(weights: Weights) -> Weights:
    return {name: (w.full_tensor() if isinstance(w, DTensor) else w).detach().clone() for name, w in weights.items()}


def differing(received: Any, wanted: Weights) -> list[str]:
    return sorted(received.keys() ^ wanted.keys()) + [
        name
        for name, tensor in wanted.items()
        if received[name].dtype != tensor.dtype or not torch.equal(received[name], tensor)
    ]


def published(
    sender: ShardSender, weights: Weights, plan: WritePlan, version: int, needed: tuple[int, ...] = ()
) -> WeightHandle:
    """What a driver and its actors do, with collectives in place of remote calls."""
    draft = from_rank_0(sender.begin(version, frozenset(needed), weights) if plan.rank == 0 else None)
    part = sender.add_checksum(draft, sender.write(draft, shards_of(weights, plan), plan.rank))
    parts = from_all(part)
    return from_rank_0(sender.finish(draft, parts) if plan.rank == 0 else None)


def train(weights: Weights) -> None:
    with torch.no_grad():
        for tensor in weights.values():
            tensor.mul_(-1.5)


def publish_and_receive(rank: int, case: str, transport: str, folder: str | None) -> None:
    model = CASES[case][1]()
    weights = dict(model.named_parameters())
    plans = agree(weights)
    check_cover([plan.written for plan in plans], held_slices(weights))
    first = full_tensors(weights)
    for gathered in (gather_per_tensor(weights), gather_whole(model)):  # whole, on rank 0 alone
        assert differing(gathered, {} if rank else first) == []
    options = TransportOptions(folder=folder)
    whole = rank_sender(transport, options, rank)
    sender, receiver = shard_sender(whole), shard_receiver(transport, options)
    handles, wanted = [], []
    for version in range(4):
        handles.append(published(sender, weights, plans[rank], version, (version - 1,)))
        wanted.append(full_tensors(weights))
        dist.barrier()
        train(weights)
        for held in range(max(0, version - 1), version + 1):
            received = receiver.receive(handles[held])
            assert differing(received, wanted[held]) == []
            verify(received, handles[held].checksum, held, "generator0")
        dist.barrier()
    assert handles[3].num_tensors == len(weights)
    assert handles[3].num_bytes == sum(w.numel() * w.element_size() for w in wanted[3].values())
    if transport == "shared_memory":
        assert len({handle.payload for handle in handles}) == 2  # mapped once, and used again
    with pytest.raises(RunStopped, match="version 0 holds version 2" if folder is None else "not on disk"):
        receiver.receive(handles[0])
    receiver.close()
    dist.barrier()
    whole.close()


@pytest.mark.parametrize("case", CASES)
def test_what_arrives_is_the_full_tensor_bit_for_bit(case: str, rank_pool: RankPool) -> None:
    rank_pool.run(CASES[case][0], publish_and_receive, case, "shared_memory", None)


@pytest.mark.parametrize("case", ["FSDP2 on 3", "columns"])
def test_parts_are_put_together_by_the_receiver(case: str, rank_pool: RankPool, tmp_path: Any) -> None:
    rank_pool.run(CASES[case][0], publish_and_receive, case, "disk", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank{rank}" for rank in range(CASES[case][0])]


def leave_out_and_begin_again(rank: int) -> None:
    weights = dict(CASES["FSDP2 on 2"][1]().named_parameters())
    plan = agree(weights)[rank]
    sender = SharedMemorySender(TransportOptions())
    draft = from_rank_0(sender.begin(7, frozenset(), weights) if rank == 0 else None)
    parts = from_all(sender.write(draft, shards_of(weights, plan), plan.rank))
    half_written = WeightHandle(7, 0, 0, None, draft.payload)
    receiver = shard_receiver("shared_memory", TransportOptions())
    with pytest.raises(RunStopped, match="the shared memory of version 7 holds version -1"):
        receiver.receive(half_written)
    dist.barrier()
    if rank == 0:
        with pytest.raises(RunStopped, match=r"version 7 is not complete: ranks \[0\] of the Learner wrote"):
            sender.finish(draft, parts[:1])
        with pytest.raises(RunStopped, match=r"version 7 is not complete: ranks \[0, 0\] of the Learner wrote"):
            sender.finish(draft, [parts[0], dataclasses.replace(parts[1], rank=0)])
        with pytest.raises(RunStopped, match="version 7 is not complete"):  # only one has a checksum
            sender.finish(draft, [parts[0], dataclasses.replace(parts[1], checksum="xxh3_128:0")])
    again = published(sender, weights, plan, 7)  # the first one was given up: a slow rank may still write into it
    assert again.payload != draft.payload
    wanted = full_tensors(weights)
    with pytest.raises(RunStopped, match=f"rank {rank} .* cannot write version 7 any more|cannot be opened"):
        sender.write(draft, shards_of(weights, plan), plan.rank)
    assert differing(receiver.receive(again), wanted) == []
    dist.barrier()
    if rank == 0:
        with pytest.raises(RunStopped, match="version 7 cannot be finished: the one begun is None"):
            sender.finish(draft, parts)
        with pytest.raises(ValueError, match="version 7 is published already"):
            sender.begin(7, frozenset({7}), weights)


def test_a_version_is_readable_only_when_every_rank_has_written(rank_pool: RankPool) -> None:
    rank_pool.run(2, leave_out_and_begin_again)


def fill_spares(rank: int) -> None:
    weights = dict(CASES["FSDP2 on 2"][1]().named_parameters())
    plan = agree(weights)[rank]
    sender = SharedMemorySender(TransportOptions(buffers_at_start=3))
    draft = from_rank_0(sender.begin(0, frozenset(), weights) if rank == 0 else None)
    sender.write(draft, shards_of(weights, plan), plan.rank)
    dist.barrier()
    wanted = full_tensors(weights)
    assert len(draft.spare) == 2
    for payload in (*draft.spare, draft.payload):
        assert isinstance(payload, SharedMemoryPayload)
        assert differing(sender._map(payload, rank)[1], wanted) == []
    dist.barrier()


def test_spare_segments_are_filled_with_the_first_version(rank_pool: RankPool) -> None:
    rank_pool.run(2, fill_spares)


def diverge(rank: int, case: str, changed: int, name: str) -> tuple[DifferingReplica, ...]:
    """The parameter of this name moves on one rank alone."""
    weights = dict(CASES[case][1]().named_parameters())
    plans = agree(weights)
    assert differing_replicas(plans, from_all(replica_checksums(weights, plans[rank]))) == ()
    if rank == changed:
        with torch.no_grad():
            tensor = weights[name]
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().view(-1)[0] += 1
    return differing_replicas(plans, from_all(replica_checksums(weights, plans[rank])))


@pytest.mark.parametrize(
    ("case", "changed", "name", "block", "ranks"),
    [
        # HSDP: ranks 0 and 2 hold rows 0 to 4 of 7; which of two is right cannot be known
        ("HSDP 2 x 2", 2, "0.weight", "0.weight[0:4, 0:5]", ((0,), (2,))),
        ("DDP on 3", 1, "1.bias", "1.bias[0:7]", ((0, 2), (1,))),
        ("tensor parallel", 0, "1.weight", "1.weight[0:7]", ((0,), (1,))),
    ],
)
def test_replicas_that_went_apart_are_named(
    case: str, changed: int, name: str, block: str, ranks: Any, rank_pool: RankPool
) -> None:
    for found in rank_pool.run(CASES[case][0], diverge, case, changed, name):
        assert [(str(one.slice), one.ranks) for one in found] == [(block, ranks)]


def unsharded(rank: int) -> None:
    model = fsdp()
    weights = dict(model.named_parameters())
    plan = agree(weights)[rank]
    for layer in model:
        layer.unshard()
    with pytest.raises(ValueError, match=r"of 0.weight instead of .* call reshard\(\) on the FSDP modules first"):
        shards_of(dict(model.named_parameters()), plan)
    for layer in model:
        layer.reshard()
    shards_of(dict(model.named_parameters()), plan)


def test_parameters_that_fsdp_holds_whole_are_refused(rank_pool: RankPool) -> None:
    rank_pool.run(2, unsharded)


def block(name: str, rows: tuple[int, int], columns: tuple[int, int] = (0, 4), rows_in_all: int = 6) -> TensorSlice:
    sizes = rows[1] - rows[0], columns[1] - columns[0]
    return TensorSlice(name, torch.float32, (rows_in_all, 4), (rows[0], columns[0]), sizes)


def test_replicas_divide_the_writing_by_rows() -> None:
    """Ranks 0 and 2 hold rows 0 to 5 of 6, ranks 1 and 3 the last: one row cannot be cut, so its columns are."""
    top, last = block("w", (0, 5)), block("w", (5, 6))
    plans = write_plans([[top], [last], [top], [last]])
    written = [[str(piece) for piece in plan.written] for plan in plans]
    assert written == [["w[0:2, 0:4]"], ["w[5:6, 0:2]"], ["w[2:5, 0:4]"], ["w[5:6, 2:4]"]]
    assert all(plan.replicated == {"w"} for plan in plans)
    assert pickle.loads(pickle.dumps(plans)) == plans


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ([[block("w", (0, 3))], [block("w", (4, 6))]], ("20 of the 24", "rank 0 writes w[0:3", "rank 1 writes w[4:6")),
        ([[], []], ("0 of the 24 elements of w (6, 4)", "no rank")),
        ([[block("w", (0, 4))], [block("w", (3, 6))]], ("twice", "w[0:4, 0:4] by rank 0", "w[3:6, 0:4] by rank 1")),
        (
            [[block("w", (0, 6), (0, 3))], [block("w", (2, 4), (2, 4)), block("w", (0, 2), (3, 4))]],
            ("twice", "w[0:6, 0:3] by rank 0", "w[2:4, 2:4] by rank 1"),
        ),
        ([[block("w", (0, 3)), block("w", (3, 6))]], ("rank 0 writes two pieces",)),
        ([[block("w", (0, 6))], [block("v", (0, 6))]], ("rank 1 writes v[0:6, 0:4], which nobody needs",)),
        ([[block("w", (0, 6), rows_in_all=7)]], ("rank 0 writes", "torch.float32 (7, 4), not torch.float32 (6, 4)")),
    ],
)
def test_what_is_missing_or_written_twice_is_named(written: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refused:
        check_cover(written, [block("w", (0, 6))])
    assert [part for part in parts if part not in str(refused.value)] == []


def test_a_single_element_is_written_by_one_rank() -> None:
    one = TensorSlice("scale", torch.float32, (), (), ())
    assert [plan.written for plan in write_plans([[one], [one]])] == [(one,), ()]
    with pytest.raises(ValueError, match=r"w is torch.float32 .* to the ranks"):  # which do not agree on a tensor
        write_plans([[block("w", (0, 6))], [dataclasses.replace(block("w", (0, 6)), dtype=torch.bfloat16)]])


@pytest.mark.parametrize(
    ("name", "reason"), [("gloo", "has no Generators in it"), ("nccl", "has not been run"), ("pigeon", "no transport")]
)
def test_transports_that_cannot_send_parts_are_refused(name: str, reason: str) -> None:
    for ask in (lambda: check_takes_shards(name), lambda: rank_sender(name, TransportOptions(), 0)):
        with pytest.raises(UserError, match=reason):
            ask()


def test_checksums_that_leave_something_out_are_refused() -> None:
    weights, top = {"w": torch.arange(24.0).view(6, 4)}, block("w", (0, 3))
    part = PartChecksum(0, checksum({"w": top.of(weights["w"])}), (top,))
    with pytest.raises(RunStopped, match="the checksums of version 2 cover 12 of the 24 elements that generator0"):
        verify(weights, [part], 2, "generator0")


def test_a_whole_handle_passes_through_the_assembling_receiver(tmp_path: Any) -> None:
    options = TransportOptions(folder=str(tmp_path))
    sender = transport_kind("disk").sender(options)
    received = shard_receiver("disk", options).receive(sender.publish_weights({"w": torch.ones(2)}, 0, frozenset()))
    assert received["w"].tolist() == [1, 1]
