"""How many prompts a task has, told without a model."""

from __future__ import annotations

import math
from typing import Any

from harness.core.errors import UserError
from harness.scenario import Scenario
from harness.tasks.jsonl import read_lines

UNKNOWN_PROMPTS = 4096
"""Training prompts that a simulation takes a data set to have where its files are not here."""


def number_of_prompts(scenario: Scenario) -> tuple[int, int]:
    """Return how many training and validation prompts the task has, without a model.

    Where the task's files are not here, so many that no batch and no evaluation lacks any: what a run costs does not
    depend on which prompts it draws.
    """
    settings: Any = scenario.task
    if settings.type == "sorting":
        return 3, 3
    if settings.type == "arithmetic" or settings.train is None:
        return settings.train_prompts, settings.validation_prompts
    try:
        return _count_rows(settings)
    except UserError:
        return max(UNKNOWN_PROMPTS, scenario.prompts_per_batch), scenario.evaluation.prompts


def _count_rows(settings: Any) -> tuple[int, int]:
    """Count the lines of the task's files; a part of the training file is held out where there is no other."""
    rows = len(read_lines(settings.train))
    if settings.validation is not None:
        return max(1, rows), len(read_lines(settings.validation))
    held_out = math.ceil(rows * settings.validation_fraction)
    return max(1, rows - held_out), held_out
