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
        of_token: bytes of one token.
        context: most tokens of a row; None where nobody says.
        max_batch: rows sampled at a time.
        asked_gib: GiB that the scenario names (``engine.kv_cache_gib``), or None.
    """

    of_token: int
    context: int | None
    max_batch: int
    asked_gib: float | None = None

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

    At its start vLLM 0.32 refuses a GPU of which less than that share is free (``v1/worker/utils.py``,
    ``request_memory``), also where the cache's size is given; then the share has no other effect
    (``v1/worker/gpu_worker.py``, ``determine_available_memory``). So it is what this vLLM needs, not the 0.92 that vLLM
    takes by itself. What the plan gives to the neighbours stays theirs; what is taken already counts as theirs.

    Args:
        cache: keys and values.
        weights: bytes of the engine's weights.
        neighbours: what else the plan puts there.
        free: bytes of the GPU that nobody has taken yet.
        total: all its bytes.

    Raises:
        UserError: weights, workspace and keys and values do not fit.
    """
    room = min(free, (total - neighbours.num_bytes) // neighbours.engines)
    fixed = weights + WORKSPACE_BYTES
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


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
