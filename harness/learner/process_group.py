"""The process groups of a Learner's ranks: made from a store on rank 0, ended with the rank."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from harness.core.errors import RunStopped
from harness.learner.flight_recorder import FlightRecorder


class RankGroup:
    """This process as one of the ranks.

    There are three groups: the default one, in which the model trains; one for agreements, so that they are never mixed
    up with the model's collectives; and one for checkpoints, which another thread may save.

    Args:
        rank: its number.
        ranks: how many there are.
        store: rank 0's, or where it is.
        cuda: whether the model is on a GPU.
        timeout_s: seconds that a collective may wait for the others.
        calls: takes note of each agreement.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        store: Any | tuple[str, int],
        *,
        cuda: bool,
        timeout_s: float,
        calls: FlightRecorder | None = None,
    ) -> None:
        self.calls = calls or FlightRecorder(None)
        limit = timedelta(seconds=timeout_s)
        if isinstance(store, tuple):
            host, port = store
            store = dist.TCPStore(host, port, is_master=False, timeout=limit)  # type: ignore[attr-defined]
        self._store = store  # rank 0's must live as long as the group
        self.rank, self.ranks = rank, ranks
        dist.init_process_group(
            "cuda:nccl,cpu:gloo" if cuda else "gloo", store=store, rank=rank, world_size=ranks, timeout=limit
        )
        self._control, self.checkpoints = (dist.new_group(backend="gloo", timeout=limit) for _ in range(2))

    def agree(self, what: str, digest: str) -> float:
        """Return when all ranks are there and have the same digest; return the seconds that this one waited for it.

        All leave together, so the one that waited least came last, whatever the clocks of their machines say.

        Raises:
            RunStopped: they differ; what follows would hang or be wrong.
        """
        word = int.from_bytes(hashlib.sha256(digest.encode()).digest()[:7])
        words = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        self.calls.note(f"agreement on {what} began")
        start_s = time.perf_counter()
        dist.all_gather(words, torch.tensor([word]), group=self._control)
        waited_s = time.perf_counter() - start_s
        self.calls.note(f"agreement on {what} ended")
        others = [rank for rank, other in enumerate(words) if int(other) != int(words[0])]
        if others:
            raise RunStopped(f"the Learner's ranks do not agree on {what}: {others} have another one than rank 0")
        return waited_s

    def close(self) -> None:
        """End the groups."""
        if dist.is_initialized():
            dist.destroy_process_group()
