"""The data files that a scenario's task names, read without its reward functions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.scenario.schema import Scenario
from harness.tasks.jsonl import Parts, read_parts
from harness.tasks.make import fields_of
from harness.tasks.rows import read_prompts


def read_data(settings: Any) -> Parts | None:
    """Return the prompts of a task's files; None for a task that has none.

    Raises:
        UserError: a file cannot be read, has bad rows, or a prompt is both trained on and held out.
    """
    if settings.type not in ("jsonl", "maths", "keywords") or settings.train is None:
        return None
    fields = fields_of(settings)
    if settings.type == "jsonl":
        fraction = settings.validation_fraction
        return read_parts(settings.train, settings.validation, fraction, lambda file: read_prompts(file, fields))
    if settings.type == "maths":
        from harness.tasks.maths.task import read_problems

        fraction = settings.validation_fraction
        return read_parts(
            settings.train, settings.validation, fraction, lambda file: read_problems(file, settings.format, fields)
        )
    from harness.tasks.keyword_files import KeywordFileTask

    task = KeywordFileTask(settings.train, settings.validation, fields)
    return Parts(task.train_prompts, task.validation_prompts, task.notes)


def data_lines(scenarios: Iterable[Scenario]) -> list[str]:
    """Return what is to be said about the files of these scenarios' tasks, a line once.

    Raises:
        UserError: see ``read_data``.
    """
    lines: dict[str, None] = {}
    read: dict[str, Parts | None] = {}
    for scenario in scenarios:
        settings: Any = scenario.task
        files = [getattr(settings, name, None) for name in ("train", "validation")]
        missing = [file for file in files if file is not None and not Path(file).exists()]
        if missing:
            lines[f"not read: {missing[0]} is not here"] = None
            continue
        key = settings.model_dump_json()
        if key not in read:
            read[key] = read_data(settings)
        parts = read[key]
        if parts is not None:
            train, held_out = len(parts.train), len(parts.validation)
            said = [f"{settings.train}: {train:,} prompts to train on, {held_out:,} held out", *parts.notes]
            lines |= dict.fromkeys([*said, *few_held_out(scenario, held_out)])
    return list(lines)


def few_held_out(scenario: Scenario, held_out: int) -> list[str]:
    """Return a line where fewer prompts are held out than are asked for."""
    wanted = scenario.evaluation.prompts
    return [f"evaluation.prompts is {wanted:,}, and {held_out:,} are held out: each is used once"] * (wanted > held_out)
