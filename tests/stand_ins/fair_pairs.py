"""Pairs of arms whose truth is known: what is unequal between them, and how fast each is at equal work.

A step takes 0.3 s and 1 ms for each of its response tokens, about 700. Its noise and its mean response length are AR(1)
from step to step. In a block both arms have the same weather and the same prompts, which give most of the length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.signal import lfilter

from harness.compare.experiment import Experiment, Member
from harness.results.rows import StepSeconds
from harness.results.warmup import warm_up_of
from tests.stand_ins.members import MACHINE, made_experiment, made_run

FIXED_S, TOKEN_S, ROLLOUTS, EVALUATION_S = 0.3, 0.001, 64, 0.5
LENGTH = 11.0
WEATHER = 0.05
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}


@dataclass(frozen=True)
class Arm:
    """How an arm differs from the other.

    Attributes:
        pace: seconds of a step over those of the other at equal work.
        longer: responses over those of the other.
        spread, own: of the mean response length from step to step, in log units: with the prompts, and of its own.
        evaluated: steps between two evaluations; 0 has none.
        slow: first steps that take twice as long.
        noise, memory: of a step's seconds, in log units, and its correlation from one step to the next.
        about: fields of the manifest.
    """

    pace: float = 1.0
    longer: float = 1.0
    spread: float = 0.08
    own: float = 0.02
    evaluated: int = 0
    slow: int = 0
    noise: float = 0.015
    memory: float = 0.3
    about: Mapping[str, Any] | None = None


def wandering(generator: np.random.Generator, steps: int, memory: float) -> np.ndarray:
    """Return AR(1) noise of a standard deviation of 1, begun in its steady state."""
    shocks = generator.normal(0, (1 - memory**2) ** 0.5, steps)
    shocks[0] /= (1 - memory**2) ** 0.5
    return np.asarray(lfilter([1.0], [1.0, -memory], shocks))


def run_of(
    name: str, arm: Arm, block: int, prompts: np.ndarray, weather: float, generator: np.random.Generator
) -> Member:
    """Return one run of an arm, with its warm-up found as that of a recorded one is."""
    steps = len(prompts)
    length = LENGTH * arm.longer * np.exp(arm.spread * prompts + arm.own * wandering(generator, steps, 0.8))
    noise = arm.noise * wandering(generator, steps, arm.memory)
    work_s = arm.pace * (FIXED_S + TOKEN_S * ROLLOUTS * length) * np.exp(weather + noise)
    work_s[: arm.slow] *= 2
    is_evaluated = np.arange(1, steps + 1) % arm.evaluated == 0 if arm.evaluated else np.zeros(steps, dtype=bool)
    wall_s = work_s + EVALUATION_S * is_evaluated
    plain = [StepSeconds(step, float(wall_s[step]), not is_evaluated[step]) for step in range(steps)]
    warm_up = warm_up_of(plain)
    about: dict[str, Any] = {"versions": VERSIONS, "machine": MACHINE, "threads": 2} | dict(arm.about or {})
    return made_run(
        name,
        block,
        steps,
        wall_s=wall_s,
        stages_s={"update": work_s.tolist(), "evaluate": (EVALUATION_S * is_evaluated).tolist()},
        metrics={"response_tokens": (ROLLOUTS * length).tolist(), "response_length": length.tolist()},
        warm_up=warm_up,
        flags=["w" if step < warm_up.steps else "" for step in range(steps)],
        settings={"max_lag": 0, "epochs_per_batch": 1 + (name == "b")},
        block=block,
        started_at=f"2026-11-20T11:{block // 60:02}:{block % 60:02}.000Z",
        **about,
    )


def pair_of(other: Arm, blocks: int = 10, steps: int = 40, seed: int = 0, base: Arm | None = None) -> Experiment:
    """Return an experiment of the arms ``a`` and ``b`` that took turns by step."""
    generator = np.random.default_rng(seed)
    members = []
    for block in range(blocks):
        weather, prompts = WEATHER * float(generator.normal()), wandering(generator, steps, 0.8)
        members += [run_of("a", base or Arm(), block, prompts, weather, generator)]
        members += [run_of("b", other, block, prompts, weather, generator)]
    return made_experiment(*members)


ELSEWHERE = MACHINE | {"cpu": "Abacus 4000", "fingerprint": "ba9876543210"}
PAIRS: dict[str, Callable[[], Experiment]] = {
    "equal": lambda: pair_of(Arm()),
    "responses 15% longer, as fast per token": lambda: pair_of(Arm(longer=1.15)),
    "other threads": lambda: pair_of(Arm(pace=1.2, about={"threads": 1})),
    "half of the steps evaluated": lambda: pair_of(Arm(evaluated=2)),
    "5% faster": lambda: pair_of(Arm(pace=0.95)),
    "other versions": lambda: pair_of(Arm(pace=0.9, about={"versions": VERSIONS | {"torch": "2.12.0"}})),
    "lengths that do not overlap": lambda: pair_of(Arm(longer=1.5, spread=0.02), base=Arm(spread=0.02)),
    "one run a side, responses 15% longer": lambda: pair_of(Arm(longer=1.15), blocks=1),
    "a slow warm-up on one side": lambda: pair_of(Arm(slow=10)),
    "another machine": lambda: pair_of(Arm(pace=0.8, about={"machine": ELSEWHERE})),
}
