"""The numbers of a scenario that decide about memory, and the smaller values that each may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Lever:
    """A number that decides about memory: its values from the present one on, each smaller than the one before.

    ``neutral`` ones change seconds and nothing else; the others change the experiment.
    """

    key: str
    neutral: bool
    values: Callable[[Scenario], Iterator[Any]]


def _more_microbatches(scenario: Scenario) -> Iterator[int]:
    size, now = scenario.train_batch_size, scenario.gradient_accumulation_steps
    yield from (steps for steps in range(now + 1, size + 1) if size % steps == 0)


def _halves(now: int, least: int) -> Iterator[int]:
    while now // 2 >= least:
        now //= 2
        yield now


def _checkpointing(scenario: Scenario) -> Iterator[bool]:
    if getattr(scenario.model, "gradient_checkpointing", None) is False:
        yield True


def _bfloat16(section: str, name: str) -> Callable[[Scenario], Iterator[str]]:
    def values(scenario: Scenario) -> Iterator[str]:
        if getattr(getattr(scenario, section), name, None) == "float32":
            yield "bfloat16"

    return values


def _smaller_engine_batch(scenario: Scenario) -> Iterator[int]:
    now = getattr(scenario.engine, "max_batch", 1)
    used = max(scenario.rollout_batch_size, scenario.evaluation.prompts)
    yield from _halves(min(now, used), 1)


LEVERS = (
    Lever("gradient_accumulation_steps", True, _more_microbatches),
    Lever("engine.max_batch", True, _smaller_engine_batch),
    Lever("model.gradient_checkpointing", True, _checkpointing),
    Lever("engine.precision", False, _bfloat16("engine", "precision")),
    Lever("model.precision", False, _bfloat16("model", "precision")),
    Lever("model.dtype", False, _bfloat16("model", "dtype")),
    Lever("sampling.max_tokens", False, lambda scenario: _halves(scenario.sampling.max_tokens, 1)),
    Lever(
        "placement.generator.count",
        True,
        lambda scenario: _halves(scenario.placement.generator.count, 1),
    ),
)
"""What decides about memory. Not among them: ``rollout_batch_size``, which ``gradient_accumulation_steps`` stands for
as far as memory goes."""
