"""What to do when a part dies or hangs, and faults on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from harness.core.trace import Stage
from harness.settings.base import AtLeast0, Positive, Seconds, SecondsOr0, Settings

if TYPE_CHECKING:
    DelayedStage = str
else:
    DelayedStage = Literal[tuple(stage.value for stage in Stage if not stage.is_wait and stage is not Stage.STARTUP)]


class SlowRank(Settings):
    """One of the Learner's ranks computes slowly."""

    rank: AtLeast0
    """Its number."""
    share: Positive
    """Share of its computing time that is added: 0.3 makes computing take 1.3 times as long. Waits stay as they are."""


class FaultSettings(Settings):
    """What to do when a part dies or nothing moves, and faults on purpose."""

    max_replacements: AtLeast0 = 10
    """How many dead Generators and Scorers are replaced; the next death ends the run."""
    delays: dict[DelayedStage, SecondsOr0] = Field(default_factory=dict)
    """Seconds added to each span of a stage, by stage: to see whether a comparison finds it."""
    slow_rank: SlowRank | None = None
    """A rank of the Learner that computes slowly: to see whether the report names it and its cause."""
    stall_after_s: Seconds = 600.0
    """Seconds that one stage may take, or that may pass without any ending; then the run stops and says who waits."""
