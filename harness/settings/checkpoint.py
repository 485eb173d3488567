"""Checkpoints from which a run goes on, and training steps that it keeps."""

from __future__ import annotations

from harness.settings.base import AtLeast0, AtLeast1, Settings


class CheckpointSettings(Settings):
    """Checkpoints of the whole run, from which `run --resume` and `sweep` go on."""

    every: AtLeast1 | None = None
    """Training steps from one checkpoint to the next; null makes none."""
    keep: AtLeast1 = 2
    """How many are kept; if the newest is damaged, the one before it is used."""
    asynchronous: bool = False
    """Continue training while it is written; the Learner waits only for a copy in main memory."""
    keep_steps: tuple[AtLeast0, ...] = ()
    """Training steps, counted from 0, that are kept whole for `oracle`."""
    keep_steps_every: AtLeast1 | None = None
    """The same for every training step that this number divides; null: no others."""

    @property
    def keeps_any(self) -> bool:
        """Whether training steps are kept."""
        return bool(self.keep_steps) or self.keep_steps_every is not None

    def keeps(self, step: int) -> bool:
        """Whether all is kept of this training step."""
        every = self.keep_steps_every
        return step in self.keep_steps or (every is not None and step % every == 0)
