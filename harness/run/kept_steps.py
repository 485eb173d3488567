"""Training steps that a run keeps whole, so that ``oracle`` can make them again.

``RUN_FOLDER/kept_steps/step_N`` has what the Learner had learnt before training step N (a checkpoint's half), what it
was given (``batch.json``, ``batch.safetensors``) and what it returned (``result.json``). It is there when the step is
made, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from harness.core.checkpoints import Checkpoint, WrittenFile, begin, commit, listed, steps_in, write_file
from harness.core.errors import Diverged
from harness.core.trace import Stage, Tracer
from harness.core.types import Metric, RolloutGroup, UpdateResult
from harness.learner.checkpoint import reference_file
from harness.loop.state import with_data
from harness.loop.state_files import KeptBatch, write_files
from harness.results.jsonl import read_json
from harness.results.writer import KEPT_STEPS
from harness.run.checkpoints import RunCheckpoints, writable
from harness.run.handles import LearnerHandle
from harness.run.parts import RunningParts
from harness.scenario.schema import Scenario

RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class KeptResult:
    """What a training step returned, with all digits.

    Attributes:
        metrics: of each optimizer step: name to figure.
        advantages: of each rollout, group by group.
        diverged: what was said in place of all that, where the step diverged.
    """

    metrics: tuple[dict[str, Metric], ...] = ()
    advantages: tuple[float, ...] = ()
    diverged: str | None = None


def read_result(folder: Path) -> KeptResult:
    """Read what a kept training step returned; UserError where it is missing, or not what it must be."""
    return read_json(folder / RESULT, KeptResult)


@dataclass
class _Draft:
    """A training step that is being kept: its folder, what was written there, and the groups of each call."""

    folder: Path
    files: list[WrittenFile]
    parts: list[tuple[RolloutGroup, ...]] = field(default_factory=list)


class KeptSteps:
    """Keeps the training steps of a run that its scenario names.

    Saving holds the Learner up: the stage ``checkpoint`` of these steps. A checkpoint that is being written is waited
    for.
    """

    def __init__(
        self, folder: Path, scenario: Scenario, parts: RunningParts, checkpoints: RunCheckpoints, tracer: Tracer
    ) -> None:
        self._parts, self._checkpoints, self._tracer = parts, checkpoints, tracer
        self._folder, self._settings = folder.resolve() / KEPT_STEPS, scenario.checkpoint
        self._with_reference = scenario.needs_reference
        self._draft: _Draft | None = None

    async def note(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        """Take in groups that the Learner is about to be given; before the first ones, save what it has learnt.

        Raises:
            RunStopped: that cannot be written.
        """
        if self._settings.keeps(step):
            if self._draft is None:
                with writable(f"training step {step}"):
                    self._draft = await self._begin(step)
            self._draft.parts.append(groups)

    async def keep(self, step: int, outcome: UpdateResult | Diverged) -> None:
        """Write the step down, if it is to be kept.

        Raises:
            RunStopped: it cannot be written.
        """
        draft, self._draft = self._draft, None
        if draft is None:
            return
        if isinstance(outcome, Diverged):
            result = KeptResult(diverged=str(outcome))
        else:
            by_step = tuple(dict(metrics) for metrics in outcome.optimizer_step_metrics)
            result = KeptResult(metrics=by_step, advantages=outcome.advantages)

        def write() -> None:
            batch = with_data(KeptBatch(step, tuple(draft.parts)), self._parts.data_of)
            as_json = json.dumps(msgspec.to_builtins(result)).encode()
            files = [*draft.files, *write_files(batch, draft.folder), write_file(draft.folder, RESULT, [as_json])]
            commit(draft.folder, files, keep=sys.maxsize)

        with (
            writable(f"training step {step}"),
            self._tracer.span(self._parts.learner.lane, Stage.CHECKPOINT, step, step),
        ):
            await asyncio.to_thread(write)

    async def _begin(self, step: int) -> _Draft:
        """Save what was learnt before the step."""
        await self._checkpoints.finish(step)
        learner = cast(LearnerHandle, self._parts.learner)
        draft = await asyncio.to_thread(begin, self._folder, step)
        before = self._reference_before()
        reference = self._with_reference and not before
        await learner.save_state(draft, step, asynchronous=False, with_reference=reference)
        saved = await learner.finish_save()
        assert saved is not None  # it was waited for
        linked = await asyncio.to_thread(_linked, before, draft)
        return _Draft(draft, [*(file for rank in saved for file in rank.files), *linked])

    def _reference_before(self) -> list[tuple[Path, WrittenFile]]:
        """The files with the reference policy of a step that was kept before: it stays, so one copy is enough."""
        for step in steps_in(self._folder):
            kept = listed(self._folder / f"step_{step}")
            if isinstance(kept, Checkpoint):
                names = [name for name in kept.files if Path(name).match(reference_file("*"))]
                if names:
                    return [(kept.folder / name, kept.files[name]) for name in names]
        return []


def _linked(files: Sequence[tuple[Path, WrittenFile]], folder: Path) -> list[WrittenFile]:
    """Have files stand in another folder as well, without a copy where the file system can do that."""
    for path, _ in files:
        try:
            os.link(path, folder / path.name)
        except OSError:
            shutil.copyfile(path, folder / path.name)
    return [file for _, file in files]
