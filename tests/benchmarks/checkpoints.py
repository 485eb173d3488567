"""Saving and loading a Learner's state: seconds for each gigabyte, beside torch.save, plain DCP and the disk itself.

A decoder in float32 with its AdamW averages in one process. The ways take turns in every round, each time another one
begins, in folders of their own that are removed before the next one, which begins when the disk has nothing left to
write. A first round, in which memory and files are new, is told apart. Whoever does not wait for the disk himself is
made to: every file is synced before the clock stops. Of each way the least and the median are said, since others may
load the machine.

- ours: hash, write, sync, manifest, rename, pointer; read every byte against the manifest, then load.
- ours, asynchronous: blocked is the copy to memory that is kept; total goes from the call to the pointer.
- torch.save, DCP: the same tensors; neither has checksums. DCP's asynchronous save has a process group of its own.
- disk: the same bytes, one file, written and synced; read, from the file cache, into memory.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.checkpoints --megabytes 120 --rounds 5

With ``--rows RUN_FOLDER`` instead: how long the disk takes for the rows that a run logs between two checkpoints.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from harness.core.checkpoints import begin, commit, newest_whole
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.checkpoint import LearnerState
from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM
from harness.results.segments import ROW_FILES, sync_rows

SHAPES = {  # megabytes of state: vocabulary, hidden, intermediate, layers, heads, key/value heads, head size, context
    120: ModelConfig(12_000, 256, 768, 8, 4, 4, 64, 64),
    1200: ModelConfig(20_000, 768, 2_048, 12, 12, 12, 64, 64),
}
FIFTHS = 5
WAYS = ("ours", "ours, asynchronous", "torch.save", "DCP", "DCP, asynchronous", "disk")
Seconds = tuple[float, float, float]
"""Blocked, total and load."""


class Learner:
    """A trainer after its first step, as the optimizer knows it: random gradients."""

    def __init__(self, megabytes: int) -> None:
        options = TrainerOptions(group_size=2)
        self.trainer = PolicyTrainer(DecoderLM(SHAPES[megabytes], seed=0), 0, options)
        for parameter in self.trainer.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.trainer.optimizer.step()
        self.trainer.optimizer.zero_grad()
        self.saving, self.group = LearnerState(self.trainer), dist.new_group(backend="gloo")

    def tensors(self) -> dict[str, Tensor]:
        trainer = self.trainer
        found = {f"policy/{name}": parameter.detach() for name, parameter in trainer.model.named_parameters()}
        for name, parameter in trainer.model.named_parameters():
            found |= {f"{key}/{name}": value for key, value in trainer.optimizer.state[parameter].items()}
        return found

    def ours(self, folder: Path, *, asynchronous: bool) -> Seconds:
        start = time.perf_counter()
        draft = begin(folder, 1)
        blocked = self.saving.save(draft, {}, asynchronous=asynchronous)
        written = self.saving.finish()
        assert written is not None
        commit(draft, written.files, 1)
        total = time.perf_counter() - start
        start = time.perf_counter()
        checkpoint, _ = newest_whole(folder)
        assert checkpoint is not None
        self.saving.load(checkpoint.folder)
        return blocked if asynchronous else total, total, time.perf_counter() - start

    def torch_save(self, folder: Path) -> Seconds:
        start = time.perf_counter()
        torch.save(self.tensors(), folder / "state.pt")
        synced(folder)
        total = time.perf_counter() - start
        start = time.perf_counter()
        loaded = torch.load(folder / "state.pt", weights_only=True)
        for name, tensor in self.tensors().items():
            tensor.copy_(loaded[name])
        return total, total, time.perf_counter() - start

    def dcp(self, folder: Path, *, asynchronous: bool) -> Seconds:
        start = time.perf_counter()
        if asynchronous:
            saving: Any = async_save(self.tensors(), checkpoint_id=folder, process_group=self.group)
            blocked = time.perf_counter() - start
            saving.result()
        else:
            save(self.tensors(), checkpoint_id=folder, process_group=self.group)
        synced(folder)
        total = time.perf_counter() - start
        start = time.perf_counter()
        load(self.tensors(), checkpoint_id=folder, process_group=self.group)
        return blocked if asynchronous else total, total, time.perf_counter() - start

    def disk(self, folder: Path) -> Seconds:
        whole = memoryview(bytearray(b"".join(tensor.numpy().tobytes() for tensor in self.tensors().values())))
        start = time.perf_counter()
        with (folder / "bytes").open("wb", buffering=0) as stream:
            for at in range(0, len(whole), 1 << 23):
                stream.write(whole[at : at + (1 << 23)])
            os.fsync(stream.fileno())
        total = time.perf_counter() - start
        start = time.perf_counter()
        with (folder / "bytes").open("rb", buffering=0) as stream:
            stream.readinto(whole)
        return total, total, time.perf_counter() - start

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def ways(self) -> dict[str, Callable[[Path], Seconds]]:
        return {
            "ours": lambda folder: self.ours(folder, asynchronous=False),
            "ours, asynchronous": lambda folder: self.ours(folder, asynchronous=True),
            "torch.save": self.torch_save,
            "DCP": lambda folder: self.dcp(folder, asynchronous=False),
            "DCP, asynchronous": lambda folder: self.dcp(folder, asynchronous=True),
            "disk": self.disk,
        }


def synced(folder: Path) -> None:
    """Return when all files of a folder are on the disk."""
    for file in (*folder.iterdir(), folder):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def measure(megabytes: int, rounds: int, where: Path) -> str:
    """Return the table of one size."""
    learner = Learner(megabytes)
    found: dict[str, list[Seconds]] = {way: [] for way in WAYS}
    for number in range(1 + rounds):
        ways = list(learner.ways().items())
        for way, run in ways[number % len(ways) :] + ways[: number % len(ways)]:
            folder = where / way.replace(", ", "-")
            folder.mkdir()
            os.sync()
            found[way].append(run(folder))
            shutil.rmtree(folder)
    gigabytes = learner.num_bytes / 1e9
    lines = [
        f"{1e3 * gigabytes:.0f} MB in {len(learner.tensors())} tensors; s/GB, least / median of {rounds} rounds; total "
        "beside the disk: least over least / median over median:",
        "",
        "| way | blocked | total | total, times the disk's | load | first blocked | first total |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, (first, *rest) in found.items():
        columns = [[seconds / gigabytes for seconds in column] for column in zip(*rest, strict=True)]
        disk = [seconds / gigabytes for _, seconds, _ in found["disk"][1:]]
        beside = " / ".join(f"{of(columns[1]) / of(disk):.2f}" for of in (min, statistics.median))
        cells = [_cell(columns[0]), _cell(columns[1]), beside, _cell(columns[2])]
        cells += [f"{seconds / gigabytes:.2f}" for seconds in first[:2]]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def time_of_rows(run: Path, rounds: int, where: Path) -> str:
    """Append a run's rows a fifth at a time to new files, and say how long the disk takes to have each fifth."""
    rows = {name: (run / name).read_bytes().splitlines(keepends=True) for name in ROW_FILES if (run / name).exists()}
    took, sizes = [], []
    for number in range(rounds * FIFTHS):
        folder, part = where / str(number // FIFTHS), number % FIFTHS
        folder.mkdir(exist_ok=True)
        pieces = {
            name: b"".join(lines[len(lines) * part // FIFTHS : len(lines) * (part + 1) // FIFTHS])
            for name, lines in rows.items()
        }
        for name, piece in pieces.items():
            with (folder / name).open("ab", buffering=0) as file:
                file.write(piece)
        start = time.perf_counter()
        sync_rows(folder)
        took.append(1e3 * (time.perf_counter() - start))
        sizes.append(sum(map(len, pieces.values())) / 1e3)
    return f"{statistics.mean(sizes):.0f} kB in {len(rows)} files, {len(took)} times; ms: {_cell(took)}"


def _cell(values: list[float]) -> str:
    return f"{min(values):.2f} / {statistics.median(values):.2f}"


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(
        description="Time saves and loads of a Learner's state.",
        epilog="example:\n  OMP_NUM_THREADS=1 python -m tests.benchmarks.checkpoints --megabytes 120 --rounds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=int, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds, after a first one")
    parser.add_argument("--rows", type=Path, metavar="RUN_FOLDER", help="time the rows of this run instead")
    parser.add_argument("--folder", type=Path, help="where to write; default: where temporary files go")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.rows is not None:
            print(time_of_rows(arguments.rows, arguments.rounds, Path(folder)))
            return
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        for size in arguments.megabytes:
            print(measure(size, arguments.rounds, Path(folder)), end="\n\n", flush=True)
        print(f"load average of the last minute at the end: {os.getloadavg()[0]:.0f}, of {os.cpu_count()} cores")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
