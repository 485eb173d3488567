"""How long collectives between the ranks of this machine take by themselves: what ``calibrate`` prices exchanges by.

As benchmarks of collectives do it: all ranks make the same one again and again, the first ones uncounted, and the
median counts, for sizes from latency to bandwidth. They are those that DDP and FSDP2 make.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from harness.core.errors import RunStopped

SIZES = (2**14, 2**18, 2**21, 2**24)
"""Bytes of the whole tensor."""
WARM_UP, REPEATS = 5, 30
LIMIT_S = 120.0
Times = dict[str, object]
"""``name``, ``bytes`` and ``seconds`` of each repeat."""


def measure_collectives(ranks: int = 2, device: str = "cpu", repeats: int = REPEATS) -> list[Times]:
    """Start so many ranks with one thread each, and return how long their collectives take on rank 0.

    Raises:
        RunStopped: a rank failed, or they took too long.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, device, repeats, folder)
        processes = [context.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT_S)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        if any(code != 0 for code in codes):
            raise RunStopped(f"the ranks that measure collectives ended with {codes} (None: not within {LIMIT_S:g} s)")
        found: list[Times] = json.loads(Path(folder, "times.json").read_text(encoding="utf-8"))
        return found


def _rank(rank: int, ranks: int, device: str, repeats: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=LIMIT_S),
    )
    found = time_collectives(ranks, device, repeats)
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def time_collectives(
    ranks: int, device: str = "cpu", repeats: int = REPEATS, sizes: Sequence[int] = SIZES
) -> list[Times]:
    """Time every collective of the default group at every size, on this rank; all ranks call it together."""
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the name that torch 2.13 has for it
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    found: list[Times] = []
    for num_bytes in sizes:
        whole = torch.ones(num_bytes // 4 // ranks * ranks, device=device)
        part = torch.ones(len(whole) // ranks, device=device)
        works: dict[str, Callable[[], object]] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(gather, whole, part),
            "reduce_scatter": partial(scatter, part, whole),
        }
        for name, work in works.items():
            seconds = []
            for repeat in range(-WARM_UP, repeats):
                whole.fill_(1.0)
                start = time.perf_counter()
                work()
                if device == "cuda":
                    torch.cuda.synchronize()
                if repeat >= 0:
                    seconds.append(time.perf_counter() - start)
            found.append({"name": name, "bytes": 4 * len(whole), "seconds": seconds})
    return found
