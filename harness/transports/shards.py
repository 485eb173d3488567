"""Which pieces of the weights each rank of a Learner writes, so that together they write everything exactly once.

A rank holds one block of each tensor: a shard of it (FSDP2, tensor parallel), or the whole (DDP, a norm beside sharded
layers). Blocks that several ranks hold are divided between them. Who holds what is exchanged once (``agree``); after
that no rank needs another to know its pieces, and publishing needs no collective. What publishing pieces is compared
with, whole weights gathered on rank 0, is here too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from harness.core.errors import RunStopped
from harness.core.types import PartChecksum, WeightHandle
from harness.models.flat_layout import BucketLayout
from harness.transports.checksum import checksum


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A block of a tensor.

    Attributes:
        name, dtype, shape: of the whole tensor.
        offsets: index of the block's first element in each dimension of the whole tensor.
        sizes: shape of the block; with a 0 in it, it is empty.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        pairs = zip(self.offsets, self.sizes, strict=True)
        return f"{self.name}[{', '.join(f'{offset}:{offset + size}' for offset, size in pairs)}]"

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    def of(self, whole: Tensor) -> Tensor:
        """Return the view of this block in the whole tensor (``shape``)."""
        return whole if self.sizes == self.shape else _block(whole, self.offsets, self.sizes)

    def overlaps(self, other: TensorSlice) -> bool:
        """Whether the two blocks of one tensor have an element in common."""
        pairs = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(max(at, there) < min(at + size, there + long) for at, size, there, long in pairs)


def _block(tensor: Tensor, start: Sequence[int], sizes: Sequence[int]) -> Tensor:
    return tensor[tuple(slice(at, at + size) for at, size in zip(start, sizes, strict=True))]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What one rank holds, and what of it this rank writes.

    Attributes:
        held: its block of each tensor, empty ones too.
        written: the pieces of them that it writes, none of them empty; at most one of each tensor.
        replicated: names of the tensors whose block other ranks hold too.
    """

    rank: int
    held: tuple[TensorSlice, ...] = field(repr=False)
    written: tuple[TensorSlice, ...] = field(repr=False)
    replicated: frozenset[str] = field(repr=False)


class Shard(NamedTuple):
    """A piece that this rank writes, and its live values: a view of the parameter, ``slice.sizes``."""

    slice: TensorSlice
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """A version that the ranks of a Learner are about to write.

    Attributes:
        version, still_needed: as in ``protocol.WeightSender.publish_weights``.
        layout: of the whole tensors.
        payload: where to write, if all ranks write to one place.
        spare: other such places, to be filled only so that they are not fresh later.
    """

    version: int
    still_needed: frozenset[int]
    layout: BucketLayout = field(repr=False)
    payload: Any = field(repr=False, default=None)
    spare: tuple[Any, ...] = field(repr=False, default=())


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has written of a version.

    Attributes:
        checksum: of the values of its pieces by name; None: not taken.
        handle: of these pieces alone, where each rank publishes its own.
    """

    rank: int
    slices: tuple[TensorSlice, ...] = field(repr=False)
    checksum: str | None = None
    handle: WeightHandle | None = field(repr=False, default=None)

    def with_checksum(self, blocks: Iterable[Tensor]) -> Part:
        """Return the part with the checksum of these values of its slices."""
        names = (block.name for block in self.slices)
        return replace(self, checksum=checksum(dict(zip(names, blocks, strict=True))))


def weight_handle_of(draft: Draft, parts: Sequence[Part], payload: object) -> WeightHandle:
    """Return the handle of a version whose parts are all written; it has checksums if every part has one.

    Raises:
        RunStopped: the parts do not add up to all elements, two are of one rank, or only some have checksums.
    """
    layout, ranks = draft.layout, [part.rank for part in parts]
    elements = sum(math.prod(entry.shape) for entry in layout.entries)
    written = sum(block.numel for part in parts for block in part.slices)
    checksums = tuple(PartChecksum(part.rank, part.checksum, part.slices) for part in parts if part.checksum)
    if written != elements or len(set(ranks)) != len(ranks) or len(checksums) not in (0, len(parts)):
        raise RunStopped(
            f"version {draft.version} is not complete: ranks {ranks} of the Learner wrote {written} of {elements} "
            f"elements, and {len(checksums)} of them took a checksum"
        )
    return WeightHandle(draft.version, layout.payload_bytes, len(layout.entries), checksums or None, payload)


def held_slices(weights: Mapping[str, Tensor]) -> tuple[TensorSlice, ...]:
    """Return the block of each parameter that this rank holds.

    Raises:
        ValueError: a tensor is a sum over ranks that was not formed.
    """
    slices = []
    for name, tensor in weights.items():
        sizes = shape = tuple(tensor.shape)
        offsets: tuple[int, ...] = (0,) * len(shape)
        if isinstance(tensor, DTensor):
            if any(placement.is_partial() for placement in tensor.placements):
                what = f"{name} is a sum over ranks that was not formed: its placements are {tensor.placements}"
                raise ValueError(what)
            sizes, offsets = compute_local_shape_and_global_offset(shape, tensor.device_mesh, tensor.placements)
        slices.append(TensorSlice(name, tensor.dtype, shape, tuple(offsets), tuple(sizes)))
    return tuple(slices)


def agree(weights: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> tuple[WritePlan, ...]:
    """Exchange what each rank holds, and return the plans of all ranks; a collective of small objects, needed once.

    Raises:
        ValueError: see ``write_plans``.
    """
    held: list[tuple[TensorSlice, ...]] = [()] * dist.get_world_size(group)
    dist.all_gather_object(held, held_slices(weights), group=group)
    return write_plans(held)


def write_plans(held: Sequence[Sequence[TensorSlice]]) -> tuple[WritePlan, ...]:
    """Divide what the ranks hold, listed by rank, so that every element is written once.

    Equal blocks are cut into as many pieces as ranks hold them, along the first dimension that is long enough.

    Raises:
        ValueError: see ``check_cover``.
    """
    holders: dict[TensorSlice, list[int]] = defaultdict(list)
    for rank, slices in enumerate(held):
        for block in slices:
            holders[block].append(rank)
    written: list[list[TensorSlice]] = [[] for _ in held]
    for block, ranks in holders.items():
        for rank, piece in zip(ranks, _pieces(block, len(ranks)), strict=False):
            if piece.numel:
                written[rank].append(piece)
    check_cover(written, (block for slices in held for block in slices))
    return tuple(
        WritePlan(rank, tuple(slices), tuple(pieces), frozenset(b.name for b in slices if len(holders[b]) > 1))
        for rank, (slices, pieces) in enumerate(zip(held, written, strict=True))
    )


def _pieces(block: TensorSlice, count: int) -> list[TensorSlice]:
    """Cut a block; where it has too few elements, some pieces are empty, and a number without dimensions stays one."""
    if not block.sizes:
        return [block]
    long_enough = (axis for axis, size in enumerate(block.sizes) if size >= count)
    axis = next(long_enough, max(range(len(block.sizes)), key=lambda axis: block.sizes[axis]))
    pieces = []
    for start, end in pairwise(block.sizes[axis] * part // count for part in range(count + 1)):
        offsets, sizes = list(block.offsets), list(block.sizes)
        offsets[axis] += start
        sizes[axis] = end - start
        pieces.append(replace(block, offsets=tuple(offsets), sizes=tuple(sizes)))
    return pieces


def check_cover(written: Sequence[Sequence[TensorSlice]], needed: Iterable[TensorSlice]) -> None:
    """Prove that the pieces of all ranks, listed by rank, are every element exactly once.

    Args:
        written: of each rank.
        needed: any block of each tensor that must be covered.

    Raises:
        ValueError: an element is written by nobody or twice, a rank writes two pieces of one tensor, or two blocks
            do not agree about dtype and shape of their tensor; with name and ranks.
    """
    whole: dict[str, TensorSlice] = {}
    for block in needed:
        known = whole.setdefault(block.name, block)
        if (known.dtype, known.shape) != (block.dtype, block.shape):
            kinds = f"{known.dtype} {known.shape} and {block.dtype} {block.shape}"
            raise ValueError(f"{block.name} is {kinds} to the ranks")
    pieces: dict[str, list[tuple[int, TensorSlice]]] = {name: [] for name in whole}
    for rank, slices in enumerate(written):
        for piece in slices:
            if piece.name not in whole:
                raise ValueError(f"rank {rank} writes {piece}, which nobody needs")
            known = whole[piece.name]
            if (known.dtype, known.shape) != (piece.dtype, piece.shape):
                kinds = f"{piece.dtype} {piece.shape}, not {known.dtype} {known.shape}"
                raise ValueError(f"rank {rank} writes {piece} of {kinds}")
            pieces[piece.name].append((rank, piece))
    for name, found in pieces.items():
        for (rank, piece), (other_rank, other) in combinations(found, 2):
            if piece.overlaps(other):
                raise ValueError(f"written twice: {piece} by rank {rank} and {other} by rank {other_rank}")
            if rank == other_rank:
                raise ValueError(f"rank {rank} writes two pieces of one tensor: {piece} and {other}")
        covered, needs = sum(piece.numel for _, piece in found), math.prod(whole[name].shape)
        if covered != needs:
            by_rank = ", ".join(f"rank {rank} writes {piece}" for rank, piece in found) or "no rank writes any"
            raise ValueError(f"{covered} of the {needs} elements of {name} {whole[name].shape} are written: {by_rank}")


def shards_of(weights: Mapping[str, Tensor], plan: WritePlan) -> list[Shard]:
    """Return what this rank writes, as views of its live parameters.

    Raises:
        ValueError: this rank does not hold the block of the plan now: FSDP2 keeps parameters whole between forward and
            backward pass, or the model was sharded anew.
    """
    held = {block.name: (block, local) for block, local in _held_blocks(weights, plan)}
    shards = []
    for piece in plan.written:
        whole, block = held[piece.name]
        if piece.sizes != whole.sizes:
            start = [at - zero for at, zero in zip(piece.offsets, whole.offsets, strict=True)]
            block = _block(block, start, piece.sizes)
        shards.append(Shard(piece, block))
    return shards


def _held_blocks(weights: Mapping[str, Tensor], plan: WritePlan) -> list[tuple[TensorSlice, Tensor]]:
    blocks = []
    with torch.no_grad():
        for held in plan.held:
            tensor = weights[held.name]
            local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
            if tuple(local.shape) != held.sizes:
                raise ValueError(
                    f"rank {plan.rank} holds {tuple(local.shape)} of {held.name} instead of {held.sizes} ({held}): "
                    "call reshard() on the FSDP modules first, or agree anew"
                )
            blocks.append((held, local))
    return blocks


class DifferingReplica(NamedTuple):
    """A block that should be equal on several ranks and is not: ranks that agree stand together, most of them first."""

    slice: TensorSlice
    ranks: tuple[tuple[int, ...], ...]


def replica_checksums(weights: Mapping[str, Tensor], plan: WritePlan) -> dict[str, str]:
    """Return the checksum of each block of this rank that others hold too, by name; errors as of ``shards_of``."""
    blocks = ((held.name, local) for held, local in _held_blocks(weights, plan) if held.name in plan.replicated)
    return {name: checksum({name: local}) for name, local in blocks}


def differing_replicas(
    plans: Sequence[WritePlan], checksums: Sequence[Mapping[str, str]]
) -> tuple[DifferingReplica, ...]:
    """Compare the replicas of all ranks by their ``replica_checksums``: training that silently went apart shows here.

    Raises:
        ValueError: a rank's checksums are not of the blocks of its plan.
    """
    found: dict[TensorSlice, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for plan, by_name in zip(plans, checksums, strict=True):
        if by_name.keys() != plan.replicated:
            other = sorted(by_name.keys() ^ plan.replicated)
            raise ValueError(f"rank {plan.rank} has checksums of other blocks than it shares: {other}")
        for block in plan.held:
            if block.name in by_name:
                found[block][by_name[block.name]].append(plan.rank)
    return tuple(
        DifferingReplica(block, tuple(sorted((tuple(ranks) for ranks in alike.values()), key=lambda r: (-len(r), r))))
        for block, alike in found.items()
        if len(alike) > 1
    )


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, a collective call where it is a DTensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def gather_per_tensor(weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor] = whole) -> dict[str, Tensor]:
    """Gather one tensor after the other by ``whole``, on all ranks together; at most one is whole beside the result.

    Returns:
        On rank 0 the whole tensors by name, on the CPU: those that were whole already may be the live ones. On other
        ranks nothing.
    """
    keeps, gathered = dist.get_rank() == 0, {}
    for name, tensor in weights.items():
        full = whole(tensor).detach()
        if keeps:
            gathered[name] = full.cpu()
    return gathered


def gather_whole(model: nn.Module) -> dict[str, Tensor]:
    """Gather the model's parameters at once, by torch's ``get_model_state_dict``, on all ranks together.

    Returns:
        On rank 0 the whole parameters by name, on the CPU; on other ranks nothing.
    """
    whole_on_rank_0 = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(model, options=whole_on_rank_0)
    names = (name.removeprefix("module.") for name, _ in model.named_parameters())  # a name that only DDP gives
    return {name: state[name] for name in names if name in state}
