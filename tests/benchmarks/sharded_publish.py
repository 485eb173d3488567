"""Publishing a sharded Learner's weights three ways: each rank its shards, gathered tensor by tensor, gathered whole.

A decoder in float32 under FSDP2 on gloo ranks, one thread each; all publish to shared memory of this host. The ways
take turns in every round, after rounds that warm memory up; a stage's seconds are those of its slowest rank, and CPU
seconds those of its busiest: other work on the machine moves them less.

- gather: collectives until rank 0 has the whole weights; none for shards.
- copy: into the shared memory, with laying out and sealing it; for shards, each rank its own.
- plain: the bound of copy, the same bytes on the same ranks from tensors to tensors of their own.
- checksum: of what was published; for shards, each rank its own.
- load: one Generator copies the weights into tensors of its own; verify: it takes the checksum of what it received.

Messages between driver and actors are not counted: two calls to rank 0 and one to all ranks for shards.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.sharded_publish --rounds 9
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from harness.core.types import WeightHandle
from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.flat_layout import copy_weights
from harness.transports.catalogue import transport_kind
from harness.transports.checksum import checksum, verify
from harness.transports.protocol import TransportOptions
from harness.transports.shards import agree, gather_per_tensor, gather_whole, shards_of
from harness.transports.shared_memory import SharedMemorySender
from tests.rank_pool import RankPool

WARM_UP = 3
SHAPES = {  # megabytes: vocabulary, hidden, intermediate, layers, heads, key/value heads, head size, context
    40: ModelConfig(12_000, 256, 768, 8, 4, 4, 64, 64),
    400: ModelConfig(20_000, 768, 2_048, 12, 12, 12, 64, 64),
}
WAYS = ("shards", "per_tensor", "rank0")
STAGES = ("gather", "copy", "plain", "checksum", "load", "verify")
Seconds = dict[str, float]
T = TypeVar("T")


@contextmanager
def timed(seconds: Seconds, stage: str) -> Iterator[None]:
    """Measure a stage that all ranks begin together, and its CPU seconds."""
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    yield
    seconds[stage] = time.perf_counter() - begin
    seconds[f"{stage} CPU"] = time.process_time() - cpu


def from_rank_0(value: T) -> T:
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


class Learner:
    """One rank, with a Generator's end in the last of them."""

    def __init__(self, rank: int, megabytes: int) -> None:
        torch.manual_seed(0)
        self.model = DecoderLM(SHAPES[megabytes])
        self.own = {name: torch.zeros_like(tensor) for name, tensor in self.model.named_parameters()}
        for layer in self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.rank, self.weights = rank, dict(self.model.named_parameters())
        self.loads = rank == dist.get_world_size() - 1
        options, kind = TransportOptions(), transport_kind("shared_memory")
        self.plan = agree(self.weights)[rank]
        self.pieces = [shard.tensor.clone() for shard in shards_of(self.weights, self.plan)]
        self.shards, self.whole = SharedMemorySender(options), SharedMemorySender(options)
        self.receivers = {way: kind.receiver(options) for way in WAYS}

    def publish(self, way: str, version: int) -> Seconds:
        """Publish and load one version; return this rank's seconds of each stage."""
        seconds: Seconds = {}
        if way == "shards":
            handle = self.publish_shards(version, seconds)
        else:
            gather: Callable[[], Mapping[str, Tensor]] = (
                (lambda: gather_per_tensor(self.weights)) if way == "per_tensor" else lambda: gather_whole(self.model)
            )
            handle = self.publish_gathered(gather, version, seconds)
        received = self.receivers[way].receive(handle) if self.loads else {}
        with timed(seconds, "load"):
            copy_weights(received, self.own if self.loads else {})
        with timed(seconds, "verify"):
            if self.loads:
                assert handle.checksum is not None
                verify(received, handle.checksum, version, "generator0")
        return seconds

    def publish_shards(self, version: int, seconds: Seconds) -> WeightHandle:
        parts: list[Any] = [None] * dist.get_world_size()
        draft, handle, pieces = None, None, Seconds()
        first = self.rank == 0
        with timed(pieces, "begin"):
            draft = self.shards.begin(version, frozenset(), self.weights) if first else None
        draft = from_rank_0(draft)
        assert draft is not None
        with timed(pieces, "write"):
            part = self.shards.write(draft, shards_of(self.weights, self.plan), self.rank)
        with timed(seconds, "plain"):
            for own, shard in zip(self.pieces, shards_of(self.weights, self.plan), strict=True):
                own.copy_(shard.tensor)
        with timed(seconds, "checksum"):
            part = self.shards.add_checksum(draft, part)
        dist.all_gather_object(parts, part)
        with timed(pieces, "finish"):
            handle = self.shards.finish(draft, parts) if first else None
        for kind in ("", " CPU"):
            seconds[f"gather{kind}"] = 0.0
            seconds[f"copy{kind}"] = sum(pieces[f"{name}{kind}"] for name in ("begin", "write", "finish"))
        handle = from_rank_0(handle)
        assert handle is not None
        return handle

    def publish_gathered(
        self, gather: Callable[[], Mapping[str, Tensor]], version: int, seconds: Seconds
    ) -> WeightHandle:
        with timed(seconds, "gather"):
            weights = gather()
        handle = None
        with timed(seconds, "copy"):
            if self.rank == 0:
                handle = self.whole.publish_weights(weights, version, frozenset())
        with timed(seconds, "plain"):
            copy_weights(weights, self.own if self.rank == 0 else {})
        with timed(seconds, "checksum"):
            taken = checksum(self.whole.published(version)) if self.rank == 0 else None
        handle = from_rank_0(handle)
        assert handle is not None
        return WeightHandle(
            version, handle.num_bytes, handle.num_tensors, checksum=from_rank_0(taken), payload=handle.payload
        )


def measure(rank: int, megabytes: int, rounds: int) -> dict[str, Any]:
    """Return every way's stages, a list of seconds each, of this rank."""
    learner, found = Learner(rank, megabytes), {way: defaultdict[str, list[float]](list) for way in WAYS}
    sums = set()
    for number in range(WARM_UP + rounds):
        for place, way in enumerate(WAYS):
            seconds = learner.publish(way, number * len(WAYS) + place)
            if number == 0 and learner.loads:
                sums.add(checksum(learner.own))
            for stage in seconds if number >= WARM_UP else ():
                found[way][stage].append(seconds[stage])
    assert len(sums) == (1 if learner.loads else 0), "the ways did not publish the same weights"
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in learner.own.values())
    return {"bytes": num_bytes, "tensors": len(learner.own), "seconds": found}


def run(megabytes: int, ranks: int, rounds: int) -> dict[str, Any]:
    """Return the figures of one size, each stage's seconds being those of its slowest rank."""
    pool = RankPool()
    try:
        by_rank = pool.run(ranks, measure, megabytes, rounds)
    finally:
        pool.close()
    seconds = {
        way: {
            stage: [max(each) for each in zip(*(one["seconds"][way][stage] for one in by_rank), strict=True)]
            for stage in by_rank[0]["seconds"][way]
        }
        for way in WAYS
    }
    return {"bytes": by_rank[0]["bytes"], "tensors": by_rank[0]["tensors"], "ranks": ranks, "seconds": seconds}


def table(figures: dict[str, Any]) -> str:
    """Return milliseconds of each way, medians with ranges, and what gathering and copying costs for each gigabyte."""
    lines = [
        f"{figures['bytes'] / 1e6:.0f} MB in {figures['tensors']} tensors, {figures['ranks']} ranks; milliseconds, "
        "median (range):",
        "",
        f"| publish | {' | '.join(STAGES)} | gather + copy, s/GB | CPU s/GB | plain, CPU s/GB | times shards "
        "| CPU, times shards |",
        f"|---|{'---|' * len(STAGES)}---|---|---|---|---|",
    ]
    totals = {
        (way, kind): [sum(pair) for pair in zip(stages[f"gather{kind}"], stages[f"copy{kind}"], strict=True)]
        for way, stages in figures["seconds"].items()
        for kind in ("", " CPU")
    }
    for way, stages in figures["seconds"].items():
        cells = [_cell([1e3 * s for s in stages[stage]]) if any(stages[stage]) else "-" for stage in STAGES]
        wall, cpu = totals[way, ""], totals[way, " CPU"]
        cells += [
            f"{statistics.median(total) / figures['bytes'] * 1e9:.3f}" for total in (wall, cpu, stages["plain CPU"])
        ]
        for total, shards in ((wall, totals["shards", ""]), (cpu, totals["shards", " CPU"])):
            cells.append(_cell([one / other for one, other in zip(total, shards, strict=True)]))
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(
        description="Time three ways to publish the weights of a sharded Learner.",
        epilog="example:\n  OMP_NUM_THREADS=1 python -m tests.benchmarks.sharded_publish --megabytes 40 --rounds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=int, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help=f"timed rounds, after {WARM_UP} that warm up")
    parser.add_argument("--json", type=Path, help="also write every timing to this file")
    arguments = parser.parse_args()
    figures = [run(megabytes, arguments.ranks, arguments.rounds) for megabytes in arguments.megabytes]
    print("\n\n".join(table(one) for one in figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
