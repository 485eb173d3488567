"""One simulated run of the loop, described by what differs from the usual one, and everything that was seen of it.

The usual run: 3 steps of 4 prompts, 2 rollouts of 8 tokens each; generate 8 s, score 1 s, update 5 s, publish 1 s,
evaluate 2 s; loading is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from harness.core.protocols import Generator, Scorer
from harness.core.trace import RecordingTracer, Span
from harness.core.types import ScoredBatch
from harness.loop import LagControl, LoopPlan, Observer, RolloutCounts, StepReport, Throttle, run_loop
from harness.loop.plan import Stream
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from harness.simulate.clock import run_virtual
from tests.stand_ins.simulated_parts import (
    Cost,
    Dies,
    Fails,
    Lengths,
    MortalGenerator,
    MortalScorer,
    constant,
    simulated_generator,
    simulated_learner,
    simulated_scorer,
)

Row = tuple[str, str, float, float, int]
"""(lane, stage, start in seconds, end in seconds, policy version)."""


@dataclass
class Story(Observer):
    """An observer that remembers everything, in order."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    facts: list[StepReport] = field(default_factory=list)
    ledger: RolloutCounts | None = None

    def on_version(self, lane: str, version: int) -> None:
        self.events.append(("version", lane, version))

    def on_step(self, facts: StepReport) -> None:
        self.facts.append(facts)
        self.events.append(("step", facts.step))

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        self.events.append(("evaluation", version, scored.item.prompt_ids))

    def on_replaced(self, lane: str, reason: str) -> None:
        self.events.append(("replaced", lane, reason))

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.ledger = ledger


@dataclass(frozen=True)
class Setup:
    """What is simulated. Sequences have an item for each part; those that may be shorter are free or never die."""

    steps: int = 3
    max_lag: int = 1
    lag_control: LagControl = "wait"
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    evaluate_every: int = 1
    validation_prompts: tuple[int, ...] = ()
    batch_prompts: Callable[[int], tuple[int, ...]] = lambda step: (0, 1, 2, 3)
    generate: Sequence[float | Cost] = (8.0,)
    load: Sequence[float | Cost] = ()
    score: Sequence[float] = (1.0,)
    update: float = 5.0
    publish: float = 1.0
    lengths: Lengths = lambda item, prompt_id: (8,) * item.group_size
    fails: Fails = lambda item, prompt_id: False
    dynamic_sampling: DynamicSamplingSettings = field(default_factory=DynamicSamplingSettings)
    num_prompts: int = 0
    overlapped_publish: bool = False
    stream: Stream | None = None
    max_failed_batches: int = 0
    is_flat: Fails = lambda item, prompt_id: True
    generator_dies: Sequence[Dies] = ()
    scorer_dies: Sequence[Dies] = ()
    throttle: Throttle | None = None

    @property
    def plan(self) -> LoopPlan:
        return LoopPlan(
            self.steps,
            2,
            self.max_lag,
            self.evaluate_every,
            self.batch_prompts,
            self.validation_prompts,
            lag_control=self.lag_control,
            replay=self.replay,
            dynamic_sampling=self.dynamic_sampling,
            num_prompts=self.num_prompts,
            overlapped_publish=self.overlapped_publish,
            stream=self.stream,
            max_failed_batches=self.max_failed_batches,
        )

    def generator(self, index: int, tracer: RecordingTracer) -> Generator:
        lane = "generator" if len(self.generate) == 1 else f"generator{index}"
        generate, load = (_cost(seconds, index) for seconds in (self.generate, self.load))

        def make() -> Generator:
            return simulated_generator(tracer, generate, constant(2.0), load_cost=load, lane=lane, lengths=self.lengths)

        return MortalGenerator(make, self.generator_dies[index]) if index < len(self.generator_dies) else make()

    def scorer(self, index: int, tracer: RecordingTracer) -> Scorer:
        lane = "scorer" if len(self.score) == 1 else f"scorer{index}"

        def make() -> Scorer:
            return simulated_scorer(tracer, constant(self.score[index]), lane, fails=self.fails, is_flat=self.is_flat)

        return MortalScorer(make, self.scorer_dies[index]) if index < len(self.scorer_dies) else make()


def _cost(seconds: Sequence[float | Cost], index: int) -> Cost:
    mine = seconds[index] if index < len(seconds) else 0.0
    return constant(mine) if isinstance(mine, float | int) else mine


@dataclass(frozen=True)
class Seen:
    """A finished run: its virtual seconds, its spans, and what the observer heard."""

    seconds: float
    spans: list[Span]
    story: Story

    @property
    def work(self) -> list[Row]:
        """Everything that is not a wait and takes time, by start, then end, then lane."""
        return sorted(
            (_row(span) for span in self.spans if not span.stage.is_wait and span.end_ns > span.start_ns),
            key=lambda row: (row[2], row[3], row[0]),
        )

    def waits(self, lane: str) -> list[tuple[str, float, float]]:
        """(wait, start, end) of a lane, those of no length left out."""
        rows = [_row(s) for s in self.spans if s.lane == lane and s.stage.is_wait and s.end_ns > s.start_ns]
        return [(stage, start, end) for _, stage, start, end, _ in rows]

    @property
    def ledger(self) -> RolloutCounts:
        assert self.story.ledger is not None
        return self.story.ledger

    @property
    def trained(self) -> list[list[int]]:
        """Batch numbers of the groups that each step trained on."""
        return [[group.step for group in facts.groups] for facts in self.story.facts]


def _row(span: Span) -> Row:
    return span.lane, span.stage.value, span.start_ns / 1e9, span.end_ns / 1e9, span.version


def simulate_run(story: Story | None = None, **settings: object) -> Seen:
    """Run the loop on simulated stages.

    Args:
        story: the observer, if it is wanted even where the run stops.
        settings: fields of ``Setup``.
    """
    setup, story = Setup(**settings), story or Story()  # type: ignore[arg-type]

    async def main(tracer: RecordingTracer) -> float:
        await run_loop(
            [setup.generator(index, tracer) for index in range(len(setup.generate))],
            [setup.scorer(index, tracer) for index in range(len(setup.score))],
            simulated_learner(
                tracer,
                constant(setup.update),
                constant(setup.publish),
                overlapped=setup.overlapped_publish,
                groups=len(setup.batch_prompts(0)),
            ),
            setup.plan,
            tracer,
            story,
            setup.throttle,
        )
        return asyncio.get_running_loop().time()

    seconds, tracer = run_virtual(main)
    return Seen(seconds, tracer.drain(), story)


@pytest.fixture
def simulate() -> Callable[..., Seen]:
    """``simulate(**settings)`` runs the loop once; see ``Setup`` for the settings."""
    return simulate_run


@pytest.fixture
def story() -> Story:
    """An observer, for a run that stops."""
    return Story()
