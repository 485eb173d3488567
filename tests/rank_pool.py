"""Processes that play the ranks of a torch process group (gloo), started once for all tests that need some."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

START_S, GROUP_S = 120.0, 60.0
"""Seconds that a rank's answer may take, and that a collective may wait for the others."""


class RankFailed(AssertionError):
    """A rank raised; its traceback is the message."""


class RankPool:
    """Ranks as processes. They outlive a job, whose process group is made for it alone.

    A job that fails ends the processes, since its other ranks may wait in a collective; the next one starts new ones.
    """

    def __init__(self) -> None:
        self._ranks: list[tuple[Any, Connection]] = []

    def run(self, ranks: int, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``job(rank, *arguments)``, a function of a module, on so many ranks of one group.

        Returns:
            What each rank returned.

        Raises:
            RankFailed: a rank raised, died or took too long.
        """
        self._start(ranks)
        with tempfile.TemporaryDirectory() as folder:
            connections = [connection for _, connection in self._ranks[:ranks]]
            for rank, connection in enumerate(connections):
                connection.send((rank, ranks, str(Path(folder, "rendezvous")), job, arguments))
            answers: dict[int, Any] = {}
            while len(answers) < ranks:
                left = {connection: rank for rank, connection in enumerate(connections) if rank not in answers}
                ready = set(wait(list(left), START_S))
                for connection, rank in left.items():
                    if connection not in ready:
                        continue
                    try:
                        answers[rank], error = connection.recv()
                    except EOFError:
                        error = "died"
                    if error:
                        self.close()
                        raise RankFailed(f"rank {rank} of {ranks}: {error}")
                if not ready:
                    self.close()
                    raise RankFailed(f"ranks {sorted(set(range(ranks)) - answers.keys())} did not answer")
        return [answers[rank] for rank in range(ranks)]

    def close(self) -> None:
        """End the processes."""
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._ranks = []

    def _start(self, ranks: int) -> None:
        context = multiprocessing.get_context("spawn")
        while len(self._ranks) < ranks:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._ranks.append((process, here))


def _serve(connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            rank, ranks, rendezvous, job, arguments = connection.recv()
        except EOFError:
            os._exit(0)  # gloo's threads abort a process that ends in the usual way
        try:
            limit = timedelta(seconds=GROUP_S)
            dist.init_process_group(
                "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks, timeout=limit
            )
            result = job(rank, *arguments)
            dist.barrier()
            dist.destroy_process_group()
        except BaseException:
            connection.send((None, traceback.format_exc()))
        else:
            connection.send((result, None))


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """The ranks of all tests of this session."""
    pool = RankPool()
    yield pool
    pool.close()
