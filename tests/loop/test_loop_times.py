"""The loop on simulated stages: exact times, exact orders of events. Arithmetic stands beside each number.

Unless a test says otherwise: generate 8 s, score 1 s, update 5 s, publish 1 s, transfer and load free.
"""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import RunStopped
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, WeightHandle, WorkItem
from harness.loop import LoopPlan, Observer, StepReport, run_loop
from harness.simulate.clock import run_virtual
from harness.simulate.parts import SimulatedGenerator
from tests.stand_ins.simulated_parts import Cost, constant, simulated_generator, simulated_learner, simulated_scorer


@dataclass
class Story(Observer):
    """An observer that remembers everything, in order."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    facts: list[StepReport] = field(default_factory=list)

    def on_version(self, lane: str, version: int) -> None:
        self.events.append(("version", lane, version))

    def on_step(self, facts: StepReport) -> None:
        self.facts.append(facts)
        self.events.append(("step", facts.step))

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        self.events.append(("evaluation", version, scored.item.prompt_ids))


def simulate(
    steps: int = 3,
    max_lag: int = 0,
    generate: Cost = constant(8.0),  # noqa: B008 (a pure function)
    update: Cost = constant(5.0),  # noqa: B008
    load: float = 0.0,
    generators: int = 1,
    epochs_per_batch: int = 1,
    evaluate_every: int = 1,
    validation_prompts: tuple[int, ...] = (),
    batch_prompts: tuple[int, ...] = (0, 1, 2, 3),
) -> tuple[float, list[Span], Story]:
    """Run the loop on simulated stages; return (seconds, spans, what the observer heard)."""
    story = Story()

    async def main(tracer: RecordingTracer) -> float:
        names = ["generator"] if generators == 1 else [f"generator{i}" for i in range(generators)]
        await run_loop(
            [
                simulated_generator(tracer, generate, constant(2.0), load_cost=constant(load), lane=name)
                for name in names
            ],
            [simulated_scorer(tracer, constant(1.0))],
            simulated_learner(tracer, update, constant(1.0), epochs_per_batch),
            LoopPlan(steps, 2, max_lag, evaluate_every, lambda step: batch_prompts, validation_prompts),
            tracer,
            story,
        )
        return asyncio.get_running_loop().time()

    seconds, tracer = run_virtual(main)
    return seconds, tracer.drain(), story


def work(spans: list[Span]) -> list[tuple[str, str, float, float, int]]:
    """(lane, stage, start, end, version) of everything that is not a wait and takes time, by start."""
    rows = [
        (s.lane, s.stage.value, s.start_ns / 1e9, s.end_ns / 1e9, s.version)
        for s in spans
        if not s.stage.is_wait and s.end_ns > s.start_ns
    ]
    return sorted(rows, key=lambda row: (row[2], row[3], row[0]))


def lane_seconds(spans: list[Span], lane: str) -> dict[str, float]:
    """Seconds of each stage and wait of a lane."""
    totals: dict[str, float] = {}
    for span in spans:
        if span.lane == lane:
            totals[span.stage.value] = totals.get(span.stage.value, 0) + (span.end_ns - span.start_ns) / 1e9
    return {stage: seconds for stage, seconds in totals.items() if seconds}


def test_synchronous_steps_follow_each_other() -> None:
    seconds, spans, _ = simulate(steps=2, max_lag=0)
    assert work(spans) == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "generate", 1, 9, 0),
        ("scorer", "score", 9, 10, 0),
        ("learner", "update", 10, 15, 0),
        ("learner", "weight_publish", 15, 16, 1),
        ("generator", "generate", 16, 24, 1),
        ("scorer", "score", 24, 25, 1),
        ("learner", "update", 25, 30, 1),
        ("learner", "weight_publish", 30, 31, 2),
    ]
    assert seconds == 31  # 1 + 2 * (8 + 1 + 5 + 1)


def test_lag_one_overlaps_generation_with_training() -> None:
    seconds, spans, _ = simulate(steps=3, max_lag=1)
    assert work(spans) == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "generate", 1, 9, 0),
        ("scorer", "score", 9, 10, 0),
        ("generator", "generate", 9, 17, 0),  # batch 1 with version 0: lag 1
        ("learner", "update", 10, 15, 0),
        ("learner", "weight_publish", 15, 16, 1),
        ("scorer", "score", 17, 18, 0),
        ("generator", "generate", 17, 25, 1),  # batch 2 with version 1: lag 1
        ("learner", "update", 18, 23, 1),
        ("learner", "weight_publish", 23, 24, 2),
        ("scorer", "score", 25, 26, 1),
        ("learner", "update", 26, 31, 2),
        ("learner", "weight_publish", 31, 32, 3),
    ]
    assert seconds == 32  # 1 + 3 * 8 + 1 + 5 + 1: generation-bound


def test_a_bound_that_does_not_bite_changes_nothing() -> None:
    assert simulate(max_lag=2)[0] == simulate(max_lag=1)[0] == 32


def test_the_bound_bites_where_training_is_slower() -> None:
    seconds, spans, _ = simulate(steps=4, max_lag=1, generate=constant(2.0))
    # Training-bound: 1 publish, 2 generate, 1 score, then 4 * (5 + 1). Batch 2 needs version 1, published at 10.
    assert seconds == 28
    starts = [(s.start_ns / 1e9, s.version) for s in spans if s.stage is Stage.GENERATE]
    assert starts == [(1, 0), (3, 0), (10, 1), (16, 2)]
    assert lane_seconds(spans, "generator") == {
        "generate": 8.0,  # 4 * 2
        "wait_for_weights": 20.0,  # 0-1, 5-10, 12-16, and 18-28 with no work left
    }


@pytest.mark.parametrize(("epochs", "expected"), [(1, 46), (2, 61), (4, 91), (8, 151)])
def test_k_passes_cost_k_updates(epochs: int, expected: float) -> None:
    seconds, _, story = simulate(steps=3, epochs_per_batch=epochs)
    assert seconds == expected  # 1 + 3 * (8 + 1 + 5 k + 1)
    assert [facts.result.optimizer_steps for facts in story.facts] == [epochs] * 3


def test_several_generators_share_a_batch() -> None:
    seconds, _, story = simulate(steps=2, generators=2, batch_prompts=(5, 6, 7))
    # The two shards are scored one after the other: 1 + 2 * (8 + 2 * 1 + 5 + 1).
    assert seconds == 33
    assert [[g.prompt_id for g in facts.groups] for facts in story.facts] == [[5, 6, 7]] * 2
    assert [part.item.prompt_ids for part in story.facts[0].scored] == [(5,), (6, 7)]
    streams = {(part.item.seed, part.item.first) for facts in story.facts for part in facts.scored}
    assert len(streams) == 4
    assert {first for _, first in streams} == {0, 1}


def test_more_generators_than_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="3 Generators cannot share the 2 prompts"):
        simulate(generators=3, batch_prompts=(0, 1))


def test_evaluation_of_every_second_version_first_and_last() -> None:
    seconds, spans, story = simulate(steps=3, evaluate_every=2, validation_prompts=(7, 8))
    assert story.events == [
        ("version", "learner", 0),
        ("version", "generator", 0),
        ("evaluation", 0, (7, 8)),
        ("version", "learner", 1),
        ("version", "generator", 1),
        ("step", 0),
        ("version", "learner", 2),
        ("version", "generator", 2),
        ("evaluation", 2, (7, 8)),
        ("step", 1),
        ("version", "learner", 3),
        ("version", "generator", 3),
        ("evaluation", 3, (7, 8)),
        ("step", 2),
    ]
    assert seconds == 1 + 3 * 15 + 3 * (2 + 1)  # three evaluations, each sampled (2 s) and then scored (1 s)
    assert lane_seconds(spans, "scorer")["evaluate"] == 3.0


def test_the_evaluated_version_is_exact_even_when_generation_lags() -> None:
    _, spans, story = simulate(steps=6, max_lag=2, evaluate_every=1, validation_prompts=(1,), update=constant(1.0))
    evaluated = [event[1] for event in story.events if event[0] == "evaluation"]
    assert evaluated == [0, 1, 2, 3, 4, 5, 6]
    spans_of = [s.version for s in spans if s.stage is Stage.EVALUATE and s.lane == "generator"]
    assert spans_of == evaluated


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_every_lane_accounts_for_all_of_its_time(max_lag: int) -> None:
    seconds, spans, _ = simulate(steps=5, max_lag=max_lag, load=0.5, evaluate_every=2, validation_prompts=(1,))
    for lane in ("generator", "scorer", "learner"):
        assert sum(lane_seconds(spans, lane).values()) == pytest.approx(seconds, abs=1e-9)


def test_a_generator_that_lies_about_its_version_stops_the_run() -> None:
    class Stale(SimulatedGenerator):
        async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
            groups = await super().generate(item)
            return tuple(RolloutGroup(g.prompt_id, g.step, 0, g.max_version, g.lengths) for g in groups)

    async def main(tracer: RecordingTracer) -> None:
        await run_loop(
            [simulated_generator(tracer, constant(1.0), of=Stale)],
            [simulated_scorer(tracer, constant(0.0))],
            simulated_learner(tracer, constant(1.0)),
            LoopPlan(4, 2, 1, 1, lambda step: (0,), ()),
            tracer,
        )

    with pytest.raises(RunStopped, match=r"shard 0 of batch 2 with version 1, and sampled with the versions 0 to 1"):
        run_virtual(main)


def test_the_error_of_a_part_ends_the_run_and_is_the_error_of_the_run() -> None:
    class LosesWeights(SimulatedGenerator):
        async def load_weights(self, weight_handle: WeightHandle) -> None:
            if weight_handle.version == 2:
                raise RuntimeError(f"version {weight_handle.version} did not arrive")
            await super().load_weights(weight_handle)

    story = Story()

    async def main(tracer: RecordingTracer) -> None:
        await run_loop(
            [simulated_generator(tracer, constant(1.0), of=LosesWeights)],
            [simulated_scorer(tracer, constant(0.0))],
            simulated_learner(tracer, constant(1.0)),
            LoopPlan(4, 2, 0, 1, lambda step: (0,), ()),
            tracer,
            story,
        )

    with pytest.raises(RuntimeError, match="version 2 did not arrive"):
        run_virtual(main)
    assert [event for event in story.events if event[0] == "step"] == [("step", 0)]


@settings(max_examples=150, deadline=None)
@given(
    durations=st.lists(st.tuples(st.floats(0.01, 9), st.floats(0.01, 9)), min_size=1, max_size=12),
    max_lag=st.integers(0, 4),
    generators=st.integers(1, 3),
    evaluate_every=st.integers(1, 5),
)
def test_lag_bound_and_conservation_on_random_schedules(
    durations: list[tuple[float, float]], max_lag: int, generators: int, evaluate_every: int
) -> None:
    steps = len(durations)
    _, spans, story = simulate(
        steps,
        max_lag,
        lambda step: durations[step % steps][0],
        lambda step: durations[step % steps][1],
        generators=generators,
        evaluate_every=evaluate_every,
        validation_prompts=(9,),
    )
    assert [facts.step for facts in story.facts] == list(range(steps))
    for facts in story.facts:
        assert [group.prompt_id for group in facts.groups] == [0, 1, 2, 3]  # none lost, none twice
        assert all(0 <= facts.step - group.min_version <= max_lag for group in facts.groups)
    due = {version for version in range(steps + 1) if version % evaluate_every == 0} | {steps}
    assert [event[1] for event in story.events if event[0] == "evaluation"] == sorted(due)
    purposes = {part.item.purpose for facts in story.facts for part in facts.scored}
    assert purposes == {Purpose.TRAIN}
    assert all(span.end_ns >= span.start_ns for span in spans)
