"""How much memory vLLM is told to take, from sizes alone: the engine and the memory plan ask the same functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.core.errors import UserError

BLOCK_SIZE = 32
"""Tokens in one block of vLLM's key/value cache. Only whole blocks of a prompt are shared between its samples."""
SPARE_ROWS = 8
"""Rows beyond ``max_batch`` that have room, for the proof of a weight sync while a batch is being sampled."""
MOST_CACHE_BYTES = 4 << 30
"""Memory for keys and values on a CPU, where the scenario names none; beyond it rows wait for each other."""
CACHE_SHARE = 0.5
"""The same on a GPU, as a share of what is left there: arms side by side and other programs are not known here."""
WORKSPACE_BYTES = 2 << 30
"""What vLLM takes on a GPU beside weights, keys and values: activations of its longest step, logits, CUDA graphs. An
assumption: no GPU was to be had to measure it."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of vLLM.

    Attributes:
        of_token: bytes of one token, in each worker.
        context: most tokens of a row; None where nobody says.
        max_batch: rows sampled at a time.
        asked_gib: GiB that the scenario names for each worker (its share of ``engine.kv_cache_gib``), or None.
        asked_share: of the GPU's memory for all of vLLM (``engine.gpu_memory_utilization``), or None.
    """

    of_token: int
    context: int | None
    max_batch: int
    asked_gib: float | None = None
    asked_share: float | None = None

    @property
    def of_row(self) -> int:
        """Bytes of one row of full length, in whole blocks: vLLM does not start with less."""
        return -(-(self.context or 0) // BLOCK_SIZE) * BLOCK_SIZE * self.of_token

    def num_bytes(self, room: int | None) -> int:
        """Return the bytes to take: what all rows of full length need, bounded by what the scenario names, else by
        ``room`` (None: not bounded), and one row at least."""
        most = room if self.asked_gib is None else round(self.asked_gib * 2**30)
        if self.context is None:
            return most or 0
        needed = (self.max_batch + SPARE_ROWS + 1) * self.of_row
        return max(self.of_row, needed if most is None else min(needed, most))


def cache_of(settings: Any, of_token: int, context: int | None) -> Cache:
    """Return what each of the engine's workers keeps: the heads are dealt out, so all have the same part of each token.

    Args:
        settings: see ``VllmEngineSettings``.
        of_token: bytes of one token in all workers together.
        context: most tokens of a row; None where nobody says.
    """
    workers, gib = settings.tensor_parallel, settings.kv_cache_gib
    share = settings.gpu_memory_utilization
    return Cache(of_token // workers, context, settings.max_batch, gib and gib / workers, share)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the memory plan puts on a vLLM's GPU beside it.

    Attributes:
        num_bytes: of everything but the vLLMs themselves, at its most.
        engines: vLLMs on the GPU, this one included.
    """

    num_bytes: int = 0
    engines: int = 1


ALONE = Neighbours()


def gpu_share(cache: Cache, weights: int, neighbours: Neighbours, free: int, total: int) -> dict[str, Any]:
    """Return vLLM's settings of memory on a GPU: the size of its cache, and ``gpu_memory_utilization``.

    Where the scenario names the share, vLLM itself measures what it needs to work in, and gives the rest of the share
    to keys and values.

    At its start vLLM 0.32 refuses a GPU of which less than that share is free (``v1/worker/utils.py``,
    ``request_memory``), also where the cache's size is given; then the share has no other effect
    (``v1/worker/gpu_worker.py``, ``determine_available_memory``). So it is what this vLLM needs, not the 0.92 that vLLM
    takes by itself. What the plan gives to the neighbours stays theirs; what is taken already counts as theirs.

    Args:
        cache: keys and values.
        weights: bytes of the engine's weights there.
        neighbours: what else the plan puts there.
        free: bytes of the GPU that nobody has taken yet.
        total: all its bytes.

    Raises:
        UserError: weights, workspace and keys and values do not fit.
    """
    room = min(free, (total - neighbours.num_bytes) // neighbours.engines)
    fixed = weights + WORKSPACE_BYTES
    if cache.asked_share is not None:
        _check_share(cache.asked_share, fixed + cache.of_row, room, total)
        return {"gpu_memory_utilization": cache.asked_share}
    keys_and_values = cache.num_bytes(max(0, int(CACHE_SHARE * (room - fixed))))
    needed = fixed + keys_and_values
    if needed > room:
        vllms = f", for {neighbours.engines} vLLMs" if neighbours.engines > 1 else ""
        raise UserError(
            f"vLLM needs {_gib(needed)} of the GPU ({_gib(weights)} for weights, {_gib(keys_and_values)} for keys and "
            f"values, {_gib(WORKSPACE_BYTES)} to work in), and {_gib(max(0, room))} are left for it: of "
            f"{_gib(total)} {_gib(free)} are free, and the memory plan gives {_gib(neighbours.num_bytes)} to the other "
            f"parts{vllms}",
            "engine.type: vllm",
            "give Generator and Learner a GPU each (placement.colocated: false, gpus: 1 for both), lower "
            "engine.context or engine.kv_cache_gib, or set engine.precision or model.dtype to bfloat16",
        )
    return {"kv_cache_memory_bytes": keys_and_values, "gpu_memory_utilization": (needed - 1) / total}


def _check_share(share: float, least: int, room: int, total: int) -> None:
    """Check that there is room for this share of the GPU, and that it is enough for weights and one response."""
    if least <= share * total <= room:
        return
    taken = f"engine.gpu_memory_utilization {share:g} is {_gib(int(share * total))} of the GPU's {_gib(total)}"
    if share * total > room:
        what = f"{taken}, and {_gib(max(0, room))} are left for it beside the other parts"
        fix = f"set it to at most {max(0.0, int(100 * room / total) / 100):g}, or give the Generator a GPU of its own"
    else:
        what = f"{taken}, and weights, workspace and one full response need {_gib(least)}"
        fix = f"set it to at least {min(1.0, -(-100 * least // total) / 100):g}, or lower engine.context"
    raise UserError(what, "engine.gpu_memory_utilization", fix)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
