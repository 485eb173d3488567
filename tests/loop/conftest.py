"""One simulated run of the loop, described by what differs from the usual one, and everything that was seen of it.

The usual run: 3 steps of 4 prompts, 2 rollouts of 8 tokens each; generate 8 s, score 1 s, update 5 s, publish 1 s,
evaluate 2 s; transfer and load are free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import ScoredBatch
from harness.loop import LoopPlan, Observer, RolloutCounts, StepReport, Throttle, run_loop
from harness.simulate.clock import VirtualClockLoop, run_virtual
from harness.simulate.parts import SimulatedGenerator, SimulatedLearner
from tests.stand_ins.simulated_parts import (
    Cost,
    Fails,
    Lengths,
    constant,
    equal_lengths,
    simulated_generator,
    simulated_learner,
    simulated_scorer,
)

Seconds = float | Cost
Row = tuple[str, str, float, float, int]
"""(lane, stage, start in seconds, end in seconds, policy version)."""


@dataclass
class Story(Observer):
    """An observer that remembers everything, in order, and when each step was complete."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    facts: list[StepReport] = field(default_factory=list)
    done_ns: list[int] = field(default_factory=list)
    ledger: RolloutCounts | None = None

    def on_version(self, lane: str, version: int) -> None:
        self.events.append(("version", lane, version))

    def on_step(self, facts: StepReport) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        self.done_ns.append(loop.time_ns())
        self.facts.append(facts)
        self.events.append(("step", facts.step))

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        self.events.append(("evaluation", version, scored.item.prompt_ids))

    def on_replaced(self, lane: str, reason: str) -> None:
        self.events.append(("replaced", lane, reason))

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.ledger = ledger

    def on_broken_off(self, ledger: RolloutCounts) -> None:
        self.events.append(("broken off", ledger.generated, ledger.failed))


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

    def of(self, stage: str, lane: str = "") -> list[tuple[float, float, int]]:
        """(start, end, version) of the work in a stage, on one lane or on all."""
        return [row[2:] for row in self.work if row[1] == stage and lane in ("", row[0])]

    def waits(self, lane: str) -> list[tuple[str, float, float]]:
        """(wait, start, end) of a lane, those of no length left out."""
        rows = [_row(s) for s in self.spans if s.lane == lane and s.stage.is_wait and s.end_ns > s.start_ns]
        return [(stage, start, end) for _, stage, start, end, _ in rows]

    def ends(self, stage: Stage) -> list[int]:
        """When the spans of a stage ended, in nanoseconds."""
        return [span.end_ns for span in self.spans if span.stage is stage]

    @property
    def ledger(self) -> RolloutCounts:
        assert self.story.ledger is not None
        return self.story.ledger

    @property
    def trained(self) -> list[list[int]]:
        """Batch numbers of the groups that each step trained on."""
        return [[group.step for group in facts.groups] for facts in self.story.facts]

    def told(self, *of: str) -> list[tuple[object, ...]]:
        """(what, number) of the Learner's versions, the steps and the evaluations, or of some of them, in order."""
        events = [(what, more[-1] if what == "version" else more[0], *more[:1]) for what, *more in self.story.events]
        return [event[:2] for event in events if event[0] in of and (event[0] != "version" or event[2] == "learner")]


def _row(span: Span) -> Row:
    return span.lane, span.stage.value, span.start_ns / 1e9, span.end_ns / 1e9, span.version


def simulate_run(
    story: Story | None = None,
    *,
    generate: Sequence[Seconds] = (8.0,),
    transfer: Seconds = 0.0,
    load: Sequence[Seconds] = (),
    score: Sequence[Seconds] = (1.0,),
    update: Seconds = 5.0,
    publish: Seconds = 1.0,
    epochs: int = 1,
    lengths: Lengths = equal_lengths(8),  # noqa: B008 (a pure function)
    fails: Fails = lambda item, prompt_id: False,
    is_flat: Fails = lambda item, prompt_id: True,
    throttle: Throttle | None = None,
    learner_of: type[SimulatedLearner] = SimulatedLearner,
    generator_of: type[SimulatedGenerator] = SimulatedGenerator,
    **plan: Any,
) -> Seen:
    """Run the loop on simulated stages.

    Args:
        story: the observer, if it is wanted even where the run stops.
        generate, load, score: an item for each part; Generators for which ``load`` has none load for free.
        plan: fields of ``LoopPlan`` that are not as usual.
    """
    usual = {"steps": 3, "group_size": 2, "max_lag": 1, "evaluate_every": 1, "validation_prompts": ()}
    story, asked = story or Story(), LoopPlan(**(usual | {"batch_prompts": lambda step: (0, 1, 2, 3)} | plan))
    loads = [*load, *[0.0] * len(generate)]

    async def main(tracer: RecordingTracer) -> float:
        generators = [
            simulated_generator(
                tracer, _cost(seconds), constant(2.0), _cost(transfer), _cost(loads[index]), lane, lengths, generator_of
            )
            for index, (lane, seconds) in enumerate(_lanes("generator", generate))
        ]
        scorers = [
            simulated_scorer(tracer, _cost(seconds), lane, fails=fails, is_flat=is_flat)
            for lane, seconds in _lanes("scorer", score)
        ]
        learner = simulated_learner(
            tracer,
            _cost(update),
            _cost(publish),
            epochs,
            of=learner_of,
            overlapped=asked.overlapped_publish,
            groups=len(asked.batch_prompts(0)),
        )
        await run_loop(generators, scorers, learner, asked, tracer, story, throttle)
        return asyncio.get_running_loop().time()

    seconds, tracer = run_virtual(main)
    return Seen(seconds, tracer.drain(), story)


def _lanes(part: str, costs: Sequence[Seconds]) -> list[tuple[str, Seconds]]:
    return [(part if len(costs) == 1 else f"{part}{index}", seconds) for index, seconds in enumerate(costs)]


def _cost(seconds: Seconds) -> Cost:
    return constant(seconds) if isinstance(seconds, float | int) else seconds


@pytest.fixture
def simulate() -> Callable[..., Seen]:
    """``simulate(**settings)`` runs the loop once; see ``simulate_run`` for the settings."""
    return simulate_run


@pytest.fixture
def story() -> Story:
    """An observer, for a run that stops."""
    return Story()
