"""Everything that decides how one run goes: plain values, so that a schedule can be compared, shrunk and printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

from harness.core.seeds import derive_seed
from harness.core.types import Purpose, WorkItem
from harness.loop import LagControl, LoopPlan
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings

Call = Literal["load", "generate", "score", "update", "publish", "save_policy"]
LEARNER = "learner"


class FaultKind(StrEnum):
    """What can go wrong in a call."""

    KILLED = "killed"
    """The part dies ``amount`` seconds into the call, or at its end where that comes first: what it did is lost."""
    SLOW = "slow"
    """The call takes ``amount`` seconds more, maybe longer than a whole run."""
    HUNG = "hung"
    """The call never answers; the watchdog ends the run."""
    HELD_BACK = "held back"
    """The answer is ``amount`` seconds on its way, so that others overtake it."""
    FAILS = "fails"
    """The call raises an error of its own."""
    OLD_ANSWER = "old answer"
    """The part's previous answer is delivered a second time, in the place of this one."""
    LOST_GROUPS = "lost groups"
    """The answer leaves ``amount`` groups out, the last ones, and does not count them; 0 leaves all out."""
    LOST_WEIGHTS = "lost weights"
    """The load reports success, but the part keeps what it held, and its rollouts carry that version."""
    SECOND_LOAD = "second load"
    """The request of the load is delivered once more, when newer weights have been loaded since."""
    OLD_TICKET = "old weight_handle"
    """The Learner's weight_handle of the version before is delivered a second time, in the place of this one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong in one call."""

    kind: FaultKind
    lane: str
    call: Call  # ``generate`` counts evaluations too
    number: int  # the how-manieth call of that name it is, from 1, over all parts that stood on the lane
    amount: float = 0.0  # see ``FaultKind``


@dataclass(frozen=True, slots=True)
class Unrewarded:
    """A group whose reward never comes: prompt number ``place`` of this batch, or of the evaluation of this version."""

    purpose: Purpose
    step: int
    place: int
    attempt: int = 0  # under dynamic sampling


@dataclass(frozen=True, slots=True)
class Timing:
    """How many seconds a call takes, by the step (or version) it is for: the table is repeated."""

    lane: str
    call: Call
    table: tuple[float, ...]

    def seconds(self, step: int) -> float:
        return self.table[step % len(self.table)]


@dataclass(frozen=True)
class Schedule:
    """One run: what is asked of the loop (as in ``LoopPlan``), how long everything takes, and what goes wrong."""

    seed: int  # root of the loop's own draws (replay), and the number under which the schedule was drawn
    steps: int = 1
    generators: int = 1
    scorers: int = 1
    prompts: int = 1  # of a batch, at least one for each Generator
    group_size: int = 1
    max_lag: int = 0
    lag_control: LagControl = "wait"
    epochs: int = 1  # an update takes so many times its seconds
    validates: bool = False
    evaluate_every: int = 1
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    max_replacements: int = 10  # dead parts that are replaced; the next one ends the run
    restart_s: float = 0.0  # until a new part stands there
    timings: tuple[Timing, ...] = ()  # of every call; what is not there takes no time
    faults: tuple[Fault, ...] = ()
    unrewarded: tuple[Unrewarded, ...] = ()
    max_failed_batches: int = 0
    dynamic_sampling: DynamicSamplingSettings = field(default_factory=DynamicSamplingSettings)
    num_prompts: int = 0
    flat_share: float = 0.0  # share of the groups whose rewards are all equal
    checkpoint_every: int = 0
    save_s: float = 0.0  # that a checkpoint holds the Learner up
    write_s: float = 0.0  # after which it is whole
    kills: tuple[int, ...] = ()
    """Everything dies after so many callbacks of the event loop, and goes on from the newest whole checkpoint; the
    first number is of the run's beginning, the next one is counted from there on, and so forth."""

    @cached_property
    def generator_lanes(self) -> tuple[str, ...]:
        return tuple(f"generator{index}" for index in range(self.generators))

    @cached_property
    def scorer_lanes(self) -> tuple[str, ...]:
        return tuple(f"scorer{index}" for index in range(self.scorers))

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        return (LEARNER, *self.generator_lanes, *self.scorer_lanes)

    @cached_property
    def plan(self) -> LoopPlan:
        """What is asked of the loop. No prompt is ordered twice, so that (batch, prompt) names a group."""
        return LoopPlan(
            self.steps,
            self.group_size,
            self.max_lag,
            self.evaluate_every,
            lambda step: tuple(range(step * self.prompts, (step + 1) * self.prompts)),
            (0, 1) if self.validates else (),
            self.seed,
            self.lag_control,
            self.replay,
            self.dynamic_sampling,
            self.num_prompts,
            checkpoint_every=self.checkpoint_every,
            max_failed_batches=self.max_failed_batches,
        )

    def is_flat(self, item: WorkItem, prompt_id: int) -> bool:
        drawn = derive_seed(self.seed, "flat", item.step, prompt_id, item.attempt)
        return drawn / 2**63 < self.flat_share

    @cached_property
    def never_rewarded(self) -> frozenset[tuple[Purpose, int, int, int]]:
        return frozenset((group.purpose, group.step, group.place, group.attempt) for group in self.unrewarded)

    @cached_property
    def evaluated(self) -> list[int]:
        """Versions that are to be evaluated, in order."""
        return [version for version in range(self.steps + 1) if self.plan.is_evaluated(version)]

    def faults_of(self, lane: str) -> dict[tuple[Call, int], Fault]:
        """A lane's faults, by call and its number; a call has one at most."""
        return {(fault.call, fault.number): fault for fault in self.faults if fault.lane == lane}
