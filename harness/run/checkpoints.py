"""The checkpoints of a run: what the Learner has learnt, the loop around it, and what the recorder knows.

``RUN_FOLDER/checkpoints/step_N`` holds all three or does not count, so a process that is killed at any moment leaves
the checkpoint before it. The run's rows up to it are on the disk before it counts. An asynchronous save counts soon
after the end of the training step in which it was written; until then the former one does. What is done of it beside
training is stage ``checkpoint_write`` of lanes of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from harness.core.checkpoints import Checkpoint, WrittenFile, begin, commit, step_of, write_file
from harness.core.errors import Diverged, RunStopped
from harness.core.protocols import Learner
from harness.core.trace import SpanContext, Stage, Tracer
from harness.core.types import RolloutGroup, UpdateResult, WeightHandle
from harness.loop.state import LoopState, with_data
from harness.loop.state_files import write_files
from harness.results.recorder import RunRecorder
from harness.results.segments import RECORDED, Recorded, sync_rows
from harness.results.writer import CHECKPOINTS
from harness.run.handles import LearnerHandle
from harness.run.parts import RunningParts
from harness.scenario.lanes import writer_lane
from harness.settings.checkpoint import CheckpointSettings

if TYPE_CHECKING:
    from harness.run.kept_steps import KeptSteps


class RunCheckpoints:
    """Saves a run between two training steps; a ``loop.state.Checkpoints``."""

    def __init__(
        self, folder: Path, settings: CheckpointSettings, parts: RunningParts, recorder: RunRecorder, tracer: Tracer
    ) -> None:
        self._folder, self._settings, self._parts = folder.resolve() / CHECKPOINTS, settings, parts
        self._recorder, self._tracer = recorder, tracer
        self._learner, self._lane = cast(LearnerHandle, parts.learner), parts.learner.lane
        self._draft: Path | None = None
        self._writing: asyncio.Task[tuple[WrittenFile, ...]] | None = None
        self._committing: asyncio.Task[Checkpoint] | None = None
        self._beginning: asyncio.Task[Path] | None = None

    async def save(self, state: LoopState) -> None:
        recorded, version = self._recorder.recorded(), state.version  # before anything is awaited
        with writable():
            await self.finish(version)
            with self._blocking(version):
                self._beginning = asyncio.create_task(asyncio.to_thread(begin, self._folder, version))
                self._draft = draft = await asyncio.shield(self._beginning)
            await self._learner.save_state(draft, version, asynchronous=self._settings.asynchronous)
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, draft, state, recorded))
            if not self._settings.asynchronous:
                with self._blocking(version):
                    await self._complete()

    async def look(self) -> None:
        """Let a save that is written by now count, beside what comes next.

        Raises:
            RunStopped: it, or the one before it, could not be written.
        """
        with writable():
            if self._committing is not None and self._committing.done():
                await self._complete()
            if self._writing is not None and self._writing.done():
                await self._commit_written(wait=False)

    async def finish(self, version: int) -> None:
        """Wait until an asynchronous save counts; the Learner is at this version of the policy.

        Raises:
            RunStopped: it cannot be written.
        """
        if self._writing is not None or self._committing is not None:
            with writable(), self._tracer.span(self._lane, Stage.WAIT_FOR_CHECKPOINT, version, version):
                await self._complete()

    async def _complete(self) -> None:
        if self._writing is not None:
            await self._commit_written(wait=True)
        if self._committing is not None:
            await asyncio.shield(self._committing)
            self._committing = None

    async def _commit_written(self, *, wait: bool) -> None:
        """Have what is written count, as soon as all ranks have written theirs."""
        saved = await self._learner.finish_save(wait=wait)
        if saved is None or self._draft is None or self._writing is None:
            return
        files = [*await asyncio.shield(self._writing), *(file for rank in saved for file in rank.files)]
        draft, self._draft, self._writing = self._draft, None, None
        self._committing = asyncio.create_task(asyncio.to_thread(self._commit, draft, files))

    async def settle(self) -> None:
        """Return when nothing is being written any more, the loop having stopped; a save under way does not count."""
        left = [task for task in (self._beginning, self._writing, self._committing) if task is not None]
        await asyncio.gather(*left, return_exceptions=True)

    def _write(self, draft: Path, state: LoopState, recorded: Recorded) -> tuple[WrittenFile, ...]:
        with self._beside(state.version):
            sync_rows(self._folder.parent)
            loop = write_files(with_data(state, self._parts.data_of), draft)
            return (*loop, write_file(draft, RECORDED, [recorded.to_json()]))

    def _commit(self, draft: Path, files: Sequence[WrittenFile]) -> Checkpoint:
        with self._beside(step_of(draft)):
            return commit(draft, files, self._settings.keep)

    def _blocking(self, version: int) -> SpanContext:
        return self._tracer.span(self._lane, Stage.CHECKPOINT, version, version)

    def _beside(self, version: int) -> AbstractContextManager[None]:
        """What the Learner does not wait for; where it does, that is its own stage."""
        if not self._settings.asynchronous:
            return nullcontext()
        return self._tracer.span(writer_lane(self._lane), Stage.CHECKPOINT_WRITE, version, version)


@contextmanager
def writable(what: str = "the checkpoint") -> Iterator[None]:
    """Say it as it is where the disk is full or gone; raises RunStopped."""
    try:
        yield
    except OSError as error:
        raise RunStopped(f"{what} cannot be written: {error}") from error


class SavingLearner:
    """A Learner whose run is saved around its training steps: those to be kept are, and what was written counts.

    An asynchronous save counts after the training step in which it was written. The loop calls all this in one lane,
    so that a rank is never asked while it trains.
    """

    def __init__(self, learner: Learner, checkpoints: RunCheckpoints, kept: KeptSteps | None) -> None:
        self._learner, self.lane, self._checkpoints, self._kept = learner, learner.lane, checkpoints, kept

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        if self._kept is not None:
            await self._kept.note(step, groups)
        await self._learner.accumulate(step, groups)

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        if self._kept is not None:
            await self._kept.note(step, groups)
        try:
            result = await self._learner.update(step, groups)
            await self._checkpoints.look()
        except Diverged as error:
            if self._kept is not None:
                await self._kept.keep(step, error)
            raise
        if self._kept is not None:
            await self._kept.keep(step, result)
        return result

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        return await self._learner.publish_weights(version, still_needed)

    async def save_policy(self, version: int, *, last: bool) -> None:
        if last:
            await self._checkpoints.finish(version)
        await self._learner.save_policy(version, last=last)
