"""A Learner that died is made again, and the loop goes on from the newest whole checkpoint; the other parts live on.

Generators keep their processes and engines, Scorers theirs. All else goes back to the checkpoint's cut, as in a resume:
the loop is made anew from the state that was saved, so no version, order or rollout of after the cut is known to it.
A Generator counts as one without weights, whichever version it holds, and loads the version that is published next.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from harness.core.errors import PartDied, RunStopped, UserError
from harness.run.checkpoints import RunCheckpoints
from harness.run.parts import RunningParts
from harness.run.resume import Restart, Resume, newest_of
from harness.run.session import RunSession


class LearnerRestarts:
    """How often the Learner of one run may still be made again.

    Args:
        most: ``faults.learner_restarts``.
    """

    def __init__(self, most: int) -> None:
        self._most, self._made = most, 0

    async def after(self, error: RunStopped, session: RunSession, checkpoints: RunCheckpoints) -> Resume:
        """Make the Learner again; return where the loop goes on.

        Args:
            error: what broke the loop off.
            session: of the run until now.
            checkpoints: of the loop that was broken off.

        Raises:
            RunStopped: ``error``, where no process of the Learner has died, no checkpoint is whole, or the Learner was
                made again as often as it may be.
            UserError: the Learner cannot be made.
        """
        parts, began_s = session.arm.parts, time.perf_counter()
        if not self._most or not (isinstance(error, PartDied) or await parts.learner_is_dead()):
            raise error
        await checkpoints.settle()
        manifest = session.folder.manifest
        assert manifest is not None
        try:
            resume = await asyncio.to_thread(newest_of, session.folder.folder, manifest)
        except UserError as none:
            raise PartDied(f"{error}; {none.what}") from error
        await self._make_again(error, session, parts)
        return replace(resume, restart=Restart(time.perf_counter() - began_s, session.recorder.generated))

    async def _make_again(self, error: RunStopped, session: RunSession, parts: RunningParts) -> None:
        while True:
            if self._made >= self._most:
                raise PartDied(
                    f"{error}; faults.learner_restarts is {self._most}, so often it was made again"
                ) from error
            self._made += 1
            session.log_lines([f"{error}; it is made again ({self._made} of {self._most})"])
            try:
                return await parts.restart_learner()
            except RunStopped as again:
                error = again
