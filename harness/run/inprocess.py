"""Shells that run workers on threads of this process, so that the event loop stays free.

Colocated parts share one thread and therefore take turns, as they would share one device; disaggregated ones have a
thread each and overlap wherever torch releases the interpreter lock. On a GPU each of those has a CUDA stream of its
own: on the default stream all their work would wait in one queue, every sampled token behind a training step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.core.types import Metrics, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.run.workers import GeneratorWorker, LearnerWorker, ScorerWorker

T = TypeVar("T")


async def _on(executor: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, call)


class PartStreams:
    """A CUDA stream for each part.

    Sampling and loading are two threads of one part and share its stream, so that weights which come in the middle of a
    batch stand between two of its kernels, and their memory is reused behind its last reader, without further marks.

    Args:
        cuda: stands for ``torch.cuda``.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self.generator, self.scorer, self.learner = cuda.Stream(), cuda.Stream(), cuda.Stream()

    def enter(self, stream: torch.cuda.Stream) -> None:
        """Have the calling thread launch on this stream, behind what was launched to make the parts."""
        stream.wait_stream(self._cuda.default_stream())
        self._cuda.set_stream(stream)

    def synchronize(self) -> None:
        """Return when the GPU has done what the calling thread's stream was given."""
        self._cuda.current_stream().synchronize()


class InProcessGenerator:
    """A Generator on a thread of this process.

    Args:
        worker: does the work.
        executor: the thread it samples on.
        loader: the thread it loads weights on; one of its own lets them come in the middle of a batch.
    """

    def __init__(
        self, worker: GeneratorWorker, executor: ThreadPoolExecutor, loader: ThreadPoolExecutor | None = None
    ) -> None:
        self._worker, self._executor, self._loader, self.lane = worker, executor, loader or executor, worker.lane

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """See ``protocols.Generator``."""
        return await _on(self._loader, lambda: self._worker.load_weights(weight_handle))

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """See ``protocols.Generator``."""
        return await _on(self._executor, lambda: self._worker.generate(item))


class InProcessScorer:
    """A Scorer on a thread of this process."""

    def __init__(self, worker: ScorerWorker, executor: ThreadPoolExecutor) -> None:
        self._worker, self._executor, self.lane = worker, executor, worker.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """See ``protocols.Scorer``."""
        return await _on(self._executor, lambda: self._worker.score(item, groups))


class InProcessLearner:
    """A Learner on a thread of this process.

    Attributes:
        policy_folder: where ``checkpoint`` saves the policy; None saves nothing.
    """

    def __init__(self, worker: LearnerWorker, executor: ThreadPoolExecutor) -> None:
        self._worker, self._executor, self.lane = worker, executor, worker.lane
        self.policy_folder: Path | None = None

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """See ``protocols.Learner``."""
        return await _on(self._executor, lambda: self._worker.update(step, groups))

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """See ``protocols.Learner``."""
        return await _on(self._executor, lambda: self._worker.publish_weights(version, still_needed))

    async def checkpoint(self, version: int) -> None:
        """See ``protocols.Learner``."""
        await _on(self._executor, lambda: self._worker.checkpoint(version, self.policy_folder))
