"""What a Learner has learnt, on disk and back: each rank writes what it holds, and any number of ranks can read it.

A training step changes this, and nothing else of the Learner that the next one depends on:

=============================  ==========================================================================
policy                         saved, tensor by tensor
AdamW: both averages, steps    saved for each parameter, under its name; its learning rate is set anew at each
                               optimizer step
number of the optimizer step   not saved: (training step x epochs + epoch) x minibatches + minibatch
learning rate                  not saved: a function of that number (``optimizer.Schedule``)
order of rows                  not saved: a function of seed, training step and epoch (``batch_plan``)
reference policy that follows  saved; where its averages are wider than its parameters these, whose rounding it is
reference policy that stays    not saved: it is the policy that training began with, and the trainer of a resumed run
                               is made from that too. Its checksums are saved, and a load compares them. For a machine
                               that cannot make it, it is saved in files of its own, and a load takes it from there
previous policy (for KL)       saved: it is the one before the last training step
loss scale of float16          saved, with the count of steps since it last changed
what the last good step was    saved, for the message of a later one that diverges
rows that prove weight syncs   saved: with others the first sync after a resume would log other figures
gradients, prepared batch      none is left between two training steps
random numbers                 none: dropout is off, all draws come from seeds
=============================  ==========================================================================

The trainer is made as at the first start and then ``load`` overwrites it. Buffers of a model (rotary tables) are not
trained, and are made with it. DDP may group its gradients otherwise in its first backward pass than later, so that with
three or more ranks sums may be added in another order after a resume; with two there is one order.

Files are safetensors: ``learner_rank_R.safetensors`` has rank R's pieces, named ``role/parameter``, and in its metadata
where each lies in the whole tensor. What several ranks hold is divided between them, as when weights are published
(``transports.shards``), so that every element is written once. ``learner.json`` of rank 0 has the numbers. A load takes
from all files what this rank holds, whoever wrote it: other numbers of ranks, and other ways to cut a model, are the
same to it. DeepSpeed's optimizer keeps flat pieces without the parameters' names, and is refused.

torch.distributed.checkpoint cuts and joins too. It was left out because it has no checksums, raises BaseExceptions,
makes collectives in the thread of an asynchronous save, where there are none here, and took 3 to 4 times as long to
save safetensors (docs/measured/checkpoints.md).
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from harness.core.checkpoints import WrittenFile, write_file
from harness.core.errors import UserError
from harness.learner.offload import pinned_memory
from harness.learner.trainer import PolicyTrainer
from harness.transports.checksum import bytes_of, checksum
from harness.transports.shards import Shard, TensorSlice, WritePlan, held_slices, shards_of, write_plans

NUMBERS = "learner.json"
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64"}
Blocks = dict[str, tuple[TensorSlice, Tensor]]
"""By the name in the files: which block of a tensor this rank holds, and the block."""
Pieces = dict[str, list[tuple[TensorSlice, Any]]]
"""By the name in the files: which block of a tensor is in which open file."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a rank has written of a checkpoint.

    Attributes:
        files: in the folder.
        num_bytes: of all of them.
        blocked_s: seconds in which the Learner did nothing else.
        begin_ns, end_ns: of the writing, by ``time.perf_counter_ns``; the blocked seconds end where it begins, if it
            was asynchronous, and else contain it.
    """

    files: tuple[WrittenFile, ...]
    num_bytes: int
    blocked_s: float
    begin_ns: int
    end_ns: int


class LearnerState:
    """Saves and loads what one rank holds of a Learner's state; all ranks call it together.

    Args:
        trainer: whose state it is.
        rank, ranks: this rank, and how many there are.
        group: of these ranks, in which nothing else happens; None: there is one.
    """

    def __init__(
        self, trainer: PolicyTrainer, rank: int = 0, ranks: int = 1, group: dist.ProcessGroup | None = None
    ) -> None:
        self._trainer, self._rank, self._ranks, self._group = trainer, rank, ranks, group
        self._plan: WritePlan | None = None
        self._copy: tuple[list[TensorSlice], Tensor, list[Tensor]] | None = None
        self._frozen: dict[str, dict[str, Any]] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[SavedState] | None = None

    def save(
        self,
        folder: Path,
        numbers: Mapping[str, Any],
        *,
        asynchronous: bool = False,
        beside: Callable[[], AbstractContextManager[None]] = nullcontext,
        with_reference: bool = False,
    ) -> float:
        """Write this rank's files; all but the pieces is rank 0's. What is written is the state at the call.

        Who writes which piece is agreed upon in the first call, and after the first training step, which adds the
        optimizer's averages. Else ranks do not wait for each other.

        Args:
            folder: of the checkpoint; see ``harness.core.checkpoints.begin``.
            numbers: what else to save, as JSON.
            asynchronous: return when the state is copied to memory of this host, which is kept for the next save; a
                thread writes it.
            beside: entered in that thread while it writes.
            with_reference: write the reference policy that stays, too, in ``reference_rank_R.safetensors``.

        Returns:
            Seconds in which nothing else could be done.

        Raises:
            UserError: the optimizer's state is not of the policy's parameters.
            OSError: a file cannot be written; of an asynchronous save ``finish`` raises it.
            RuntimeError: the result of the save before was not asked for.
        """
        if self._saving is not None:
            raise RuntimeError("a save is under way: finish() comes before the next one")
        trainer, begin = self._trainer, time.perf_counter_ns()
        blocks = _blocks_of(trainer, trainer.optimizer.state)
        shards = sorted(self._shards(blocks), key=lambda shard: -shard.tensor.element_size())  # aligned, without gaps
        header = _header(shards, {"frozen": json.dumps(self._checksums_of_frozen())})
        reference = self._shards(_frozen_blocks_of(trainer)) if with_reference else []
        body = [self._copied(shards)] if asynchronous else (bytes_of(shard.tensor) for shard in shards)
        said = {**numbers, "ranks": self._ranks, "last_good": trainer.last_good}
        if trainer.loss_scale.is_enabled():
            said["loss_scale"] = trainer.loss_scale.state_dict()
        blocked_s = (time.perf_counter_ns() - begin) / 1e9

        def write() -> SavedState:
            start = time.perf_counter_ns()
            files = [write_file(folder, _file_of(self._rank), chain([header], body))]
            if reference:
                head, chunks = _header(reference, {}), (bytes_of(shard.tensor) for shard in reference)
                files.append(write_file(folder, reference_file(self._rank), chain([head], chunks)))
            if self._rank == 0:
                files.append(write_file(folder, NUMBERS, [json.dumps(said, indent=1).encode()]))
            end = time.perf_counter_ns()
            blocked = blocked_s if asynchronous else (end - begin) / 1e9
            return SavedState(tuple(files), sum(file.num_bytes for file in files), blocked, start, end)

        def write_beside() -> SavedState:
            with beside():
                return write()

        if asynchronous:
            self._saving = self._thread.submit(write_beside)
            return (time.perf_counter_ns() - begin) / 1e9
        written = write()
        self._saving = Future()
        self._saving.set_result(written)
        return written.blocked_s

    def finish(self, *, wait: bool = True) -> SavedState | None:
        """Return what was written; None where no save was begun, or it is not done and is not waited for.

        Raises:
            OSError: it could not be written.
        """
        saving = self._saving
        if saving is None or not (wait or saving.done()):
            return None
        self._saving = None
        return saving.result()

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over a saved state; return the numbers that it was saved with.

        Nothing is changed where it is refused, but for a reference policy that is in the files.

        Args:
            folder: of a checkpoint that was found to be whole; see ``harness.core.checkpoints.newest_whole``.

        Raises:
            UserError: the state is of another model, optimizer or set of policies, with both.
        """
        trainer = self._trainer
        numbers: dict[str, Any] = json.loads((folder / NUMBERS).read_bytes())
        with ExitStack() as opened:
            files = [opened.enter_context(safe_open(folder / _file_of(rank), "pt")) for rank in range(numbers["ranks"])]
            references = [opened.enter_context(safe_open(path, "pt")) for path in folder.glob(reference_file("*"))]
            if references:
                _fill(_frozen_blocks_of(trainer), _pieces_by_name(references))
            for file in files:
                _check_frozen(trainer, json.loads(file.metadata()["frozen"]), folder)
            pieces = _pieces_by_name(files)
            optimizer_state = _empty_optimizer_state(trainer, pieces)
            blocks = _blocks_of(trainer, optimizer_state)
            _check_fits(blocks, pieces, numbers["ranks"], self._ranks, folder)
            if trainer.loss_scale.is_enabled() != ("loss_scale" in numbers):
                raise _refused("a loss scale of float16 is in one of the two", folder)
            _fill(blocks, pieces)
        trainer.optimizer.state.clear()
        for parameter, values in optimizer_state.items():
            trainer.optimizer.state[parameter].update(values)
        if trainer.reference is not None:
            named = dict(trainer.reference.model.named_parameters())
            with torch.no_grad():
                for name, average in trainer.reference.averages.items():
                    trainer.ranks.held(named[name]).copy_(average)
        if "loss_scale" in numbers:
            trainer.loss_scale.load_state_dict(numbers["loss_scale"])
        trainer.last_good = numbers["last_good"]
        return numbers

    def close(self) -> None:
        """Wait for the thread; what it wrote does not count, since nobody has asked for it."""
        self._thread.shutdown()

    def _shards(self, blocks: Blocks) -> list[Shard]:
        """Return what this rank writes, as views of live tensors."""
        held = tuple(block for block, _ in blocks.values())
        if self._plan is None or self._plan.held != held:
            by_rank: list[tuple[TensorSlice, ...]] = [held]
            if self._group is not None:
                by_rank = [()] * self._ranks
                dist.all_gather_object(by_rank, held, group=self._group)
            self._plan = write_plans(by_rank)[self._rank]
        return shards_of({name: tensor for name, (_, tensor) in blocks.items()}, self._plan)

    def _copied(self, shards: Sequence[Shard]) -> memoryview:
        """Copy the pieces to this host's memory, which is kept: fresh memory costs several times the copy."""
        pieces, on_gpu = [shard.slice for shard in shards], any(shard.tensor.is_cuda for shard in shards)
        if self._copy is None or self._copy[0] != pieces:
            self._copy = None  # before there is another one
            sizes = [piece.numel * piece.dtype.itemsize for piece in pieces]
            whole = pinned_memory(sum(sizes)) if on_gpu else torch.empty(sum(sizes), dtype=torch.uint8)
            parts = zip(pieces, whole.split(sizes), strict=True)
            self._copy = pieces, whole, [part.view(piece.dtype).view(piece.sizes) for piece, part in parts]
        _, whole, copies = self._copy
        torch._foreach_copy_(copies, [shard.tensor for shard in shards], non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.current_stream().synchronize()  # a Generator beside it goes on
        return whole.numpy().data

    def _checksums_of_frozen(self) -> dict[str, dict[str, Any]]:
        """Return the checksums of what this rank holds of a reference policy that stays; taken once."""
        if self._frozen is None:
            self._frozen = {
                name.removeprefix("reference/"): {
                    "offsets": block.offsets,
                    "sizes": block.sizes,
                    "checksum": checksum({"": tensor.cpu()}),
                }
                for name, (block, tensor) in _frozen_blocks_of(self._trainer).items()
                if block.numel
            }
        return self._frozen


def _blocks_of(trainer: PolicyTrainer, optimizer_state: Mapping[Any, Mapping[str, Any]]) -> Blocks:
    """Return all tensors that are saved, as this rank holds them, with this state of the optimizer.

    Raises:
        UserError: the optimizer's state is not of the policy's parameters.
    """
    named = dict(trainer.model.named_parameters())
    tensors = {f"policy/{name}": parameter for name, parameter in named.items()}
    names = {parameter: name for name, parameter in named.items()}
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise UserError(
                    f"the optimizer {type(trainer.optimizer).__name__} keeps its state in pieces that are not the "
                    "policy's parameters, as DeepSpeed's does: it cannot be saved by name",
                    "learner.sharding",
                    "set it to fsdp2 or ddp, or save no checkpoints",
                )
            for key, value in optimizer_state.get(parameter, {}).items():
                tensors[f"optimizer.{key}/{names[parameter]}"] = value
    if trainer.previous is not None:
        tensors |= {f"previous/{name}": parameter for name, parameter in trainer.previous.named_parameters()}
    blocks = _as_held(trainer, tensors)
    if trainer.reference is not None and trainer.reference.moves:
        blocks |= _as_held(trainer, _reference_tensors(trainer))
        for name, average in trainer.reference.averages.items():
            block, _ = blocks[f"reference/{name}"]
            blocks[f"reference/{name}"] = replace(block, dtype=average.dtype), average
    return blocks


def _frozen_blocks_of(trainer: PolicyTrainer) -> Blocks:
    """Return a reference policy that stays, as this rank holds it; nothing where there is none."""
    moves = trainer.reference is None or trainer.reference.moves
    return {} if moves else _as_held(trainer, _reference_tensors(trainer))


def _reference_tensors(trainer: PolicyTrainer) -> dict[str, Tensor]:
    assert trainer.reference is not None
    return {f"reference/{name}": parameter for name, parameter in trainer.reference.model.named_parameters()}


def _as_held(trainer: PolicyTrainer, tensors: Mapping[str, Tensor]) -> Blocks:
    held = zip(tensors.items(), held_slices(tensors), strict=True)
    return {name: (block, trainer.ranks.held(tensor.detach())) for (name, tensor), block in held}


def _empty_optimizer_state(trainer: PolicyTrainer, pieces: Pieces) -> dict[Tensor, dict[str, Tensor]]:
    """Return tensors for what the files have of each parameter, cut as it is; a new optimizer has none yet.

    Steps are counted where the optimizer would: on the parameter's device if that is where it adds them up.
    """
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    saved: dict[str, list[tuple[str, TensorSlice]]] = {}
    for path, ((piece, _), *_) in pieces.items():
        role, _, name = path.partition("/")
        if role.startswith("optimizer."):
            saved.setdefault(name, []).append((role.removeprefix("optimizer."), piece))
    made: dict[Tensor, dict[str, Tensor]] = {}
    for group in trainer.optimizer.param_groups:
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            for key, piece in saved.get(names.get(parameter, ""), ()):
                value = torch.zeros((), dtype=piece.dtype, device=parameter.device if on_device else "cpu")
                if piece.shape:
                    value = torch.zeros_like(parameter, dtype=piece.dtype, memory_format=torch.preserve_format)
                made.setdefault(parameter, {})[key] = value.detach()
    return made


def _check_fits(blocks: Blocks, pieces: Pieces, saved_by: int, ranks: int, folder: Path) -> None:
    """Refuse files that are not this state, or leave some of it out."""
    whose = f"it was saved by {saved_by} ranks and is loaded by {ranks}"
    for there, here, what in (
        (pieces.keys(), blocks.keys(), "has {0} tensors that this Learner does not, {1} among them"),
        (blocks.keys(), pieces.keys(), "lacks {0} tensors of this Learner, {1} among them"),
    ):
        missing = sorted(name for name in there - here if name not in blocks or 0 not in blocks[name][0].shape)
        if missing:
            raise _refused(what.format(len(missing), missing[0]), folder)
    for name, (block, _) in blocks.items():
        saved = [piece for piece, _ in pieces.get(name, ())]
        for piece in saved:
            if (piece.dtype, piece.shape) != (block.dtype, block.shape):
                both = f"{name} as {piece.dtype} {piece.shape}, this Learner {block.dtype} {block.shape}"
                raise _refused(f"has {both}; {whose}", folder)
        covered = sum(math.prod(length for _, _, length in _shared(block, piece)) for piece in saved)
        if covered != block.numel:
            raise _refused(f"has {covered} of the {block.numel} elements of {block}; {whose}", folder)


def _refused(what: str, folder: Path) -> UserError:
    return UserError(
        f"the checkpoint {what}", str(folder), "resume with the model and the settings that it was saved with"
    )


def _shared(block: TensorSlice, piece: TensorSlice) -> list[tuple[int, int, int]]:
    """Return where two blocks of one tensor meet: in each dimension where in either that begins, and its length."""
    met = []
    for at, size, there, long in zip(block.offsets, block.sizes, piece.offsets, piece.sizes, strict=True):
        start = max(at, there)
        met.append((start - at, start - there, max(0, min(at + size, there + long) - start)))
    return met


@torch.no_grad()
def _fill(blocks: Blocks, pieces: Pieces) -> None:
    for name, (block, tensor) in blocks.items():
        for piece, file in pieces.get(name, ()):
            met = _shared(block, piece)
            if all(length for _, _, length in met):
                into = tensor[tuple(slice(here, here + length) for here, _, length in met)]
                saved: Tensor = file.get_tensor(name)  # a view of the file
                into.copy_(saved[tuple(slice(there, there + length) for _, there, length in met)])


def _check_frozen(trainer: PolicyTrainer, saved: Mapping[str, Any], folder: Path) -> None:
    """Compare a reference policy that stays with the one that was kept, where this rank holds a block of a checksum."""
    if trainer.reference is None or trainer.reference.moves:
        return
    blocks = _frozen_blocks_of(trainer)
    for name, said in saved.items():
        if f"reference/{name}" not in blocks:
            raise _refused(f"has a reference policy with {name}, which this Learner lacks", folder)
        own, tensor = blocks[f"reference/{name}"]
        block = replace(own, name=name, offsets=tuple(said["offsets"]), sizes=tuple(said["sizes"]))
        met = _shared(own, block)
        if [length for _, _, length in met] != list(block.sizes):
            continue  # another rank holds some of it
        here = checksum({"": tensor[tuple(slice(at, at + length) for at, _, length in met)].cpu()})
        if here != said["checksum"]:
            what = f"was made with another initial policy, which the KL reference is: {block} has the checksum"
            raise _refused(f"{what} {said['checksum']}, here {here}", folder)


def _file_of(rank: int) -> str:
    return f"learner_rank_{rank}.safetensors"


def reference_file(rank: int | Literal["*"]) -> str:
    """Return the name of the file with what a rank holds of a reference policy that stays."""
    return f"reference_rank_{rank}.safetensors"


def _header(shards: Sequence[Shard], metadata: dict[str, str]) -> bytes:
    """Return the start of a safetensors file: the length of the JSON that follows, and what lies where behind it.

    The package writes whole files only; here the bytes are hashed on their way.
    """
    entries, slices, end = dict[str, Any](), dict[str, Any](), 0
    for piece, _ in shards:
        start, end = end, end + piece.numel * piece.dtype.itemsize
        entries[piece.name] = {"dtype": _DTYPES[piece.dtype], "shape": piece.sizes, "data_offsets": (start, end)}
        slices[piece.name] = {"offsets": piece.offsets, "shape": piece.shape}
    entries["__metadata__"] = {**metadata, "slices": json.dumps(slices)}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _pieces_by_name(files: Iterable[Any]) -> Pieces:
    dtypes: dict[str, torch.dtype] = {name: dtype for dtype, name in _DTYPES.items()}
    pieces: Pieces = {}
    for file in files:
        for name, where in json.loads(file.metadata()["slices"]).items():
            stored = file.get_slice(name)
            shape, offsets, sizes = tuple(where["shape"]), tuple(where["offsets"]), tuple(stored.get_shape())
            piece = TensorSlice(name, dtypes[stored.get_dtype()], shape, offsets, sizes)
            pieces.setdefault(name, []).append((piece, file))
    return pieces
