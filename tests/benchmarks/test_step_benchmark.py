"""One whole GRPO step of the `small` preset: publish, load, generate, score, update; forced lengths, one thread."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.core.trace import RecordingTracer
from harness.core.types import Purpose, ScoredBatch, WorkItem
from harness.run.inprocess import InProcessParts
from harness.run.parts import RunningParts
from harness.scenario.load import load_scenario

TOKENS, PROMPTS, GROUP_SIZE = 32, 8, 8


async def make_step(parts: RunningParts, step: int) -> ScoredBatch:
    generator, scorer, learner = parts.generators[0], parts.scorers[0], parts.learner
    await generator.load_weights(await learner.publish_weights(step, frozenset()))
    prompt_ids = tuple(range(step * PROMPTS, (step + 1) * PROMPTS))
    item = WorkItem(Purpose.TRAIN, step, 0, prompt_ids, GROUP_SIZE, seed=step)
    scored = await scorer.score(item, await generator.generate(item))
    await learner.update(step, scored.groups)
    return scored


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_whole_step(benchmark: BenchmarkFixture, timed: bool, precision: str) -> None:
    tokens = TOKENS if timed else 4
    settings = {
        "model.warm_start": "false",
        "model.precision": precision,
        "engine.precision": precision,
        "model.threads": 1,
        "sampling.min_tokens": tokens,
        "sampling.max_tokens": tokens,
        "optimizer.learning_rate": "1.0e-6",
    }
    shipped = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    scenario = load_scenario(str(shipped), [f"{key}={value}" for key, value in settings.items()])
    parts = InProcessParts(scenario, RecordingTracer(time.perf_counter_ns), lambda: False)
    steps = itertools.count()
    benchmark.extra_info |= {"tokens": tokens * PROMPTS * GROUP_SIZE, "parameters": parts.num_parameters}
    scored = benchmark.pedantic(
        lambda: asyncio.run(make_step(parts, next(steps))), rounds=5, warmup_rounds=1, iterations=1
    )
    parts.close()
    assert [group.lengths for group in scored.groups] == [(tokens,) * GROUP_SIZE] * PROMPTS
