"""The task of a scenario's section. What a task needs is imported when it is made."""

from __future__ import annotations

from typing import Any, assert_never

from harness.core.plugins import PluginKind, make_plugin
from harness.core.protocols import Task
from harness.settings.task import (
    ArithmeticTaskSettings,
    JsonlTaskSettings,
    KeywordsTaskSettings,
    MathsTaskSettings,
    PluginTaskSettings,
    SortingTaskSettings,
    TaskSettings,
)
from harness.tasks.rows import Fields

TASK_PLUGIN = PluginKind(
    "task", "task.type", "(**options) -> Task", "docs.examples.own_parts.parts:Counting", protocol=Task
)
"""Made with the scenario's ``task.options``."""


def fields_of(settings: Any) -> Fields:
    """Return where prompt and answer stand in the rows of a task's files."""
    chat, system = settings.chat_template, settings.system_prompt is not None
    if settings.type == "keywords":
        return Fields(chat=chat, system=system)
    return Fields(settings.prompt_field or "", settings.answer_field, chat=chat, system=system)


def make_task(settings: TaskSettings) -> Task:
    """Return the task; UserError where a file or a reward function cannot be used."""
    task: Task
    match settings:
        case KeywordsTaskSettings():
            if settings.train is not None and settings.validation is not None:
                from harness.tasks.keyword_files import KeywordFileTask

                return KeywordFileTask(settings.train, settings.validation, fields_of(settings))
            from harness.tasks.keywords import KeywordTask

            words, sizes = settings.keywords_per_prompt, (settings.train_prompts, settings.validation_prompts)
            return KeywordTask(words, *sizes, settings.seed)
        case JsonlTaskSettings() | MathsTaskSettings():
            given = settings.model_dump(include={"train", "validation", "validation_fraction"})
            if isinstance(settings, JsonlTaskSettings):
                from harness.tasks.jsonl import JsonlTask

                return JsonlTask(reward=settings.reward, fields=fields_of(settings), **given)
            from harness.tasks.maths.task import MathsTask

            given |= settings.model_dump(include={"format", "prompt", "reward"})
            return MathsTask(fields=fields_of(settings), **given)
        case ArithmeticTaskSettings():
            from harness.tasks.arithmetic import ArithmeticTask

            return ArithmeticTask(settings.train_prompts, settings.validation_prompts, settings.seed)
        case SortingTaskSettings():
            from harness.tasks.sorting import SortingTask

            return SortingTask(settings.reward)
        case PluginTaskSettings():
            task = make_plugin(settings.type, TASK_PLUGIN, {}, settings.options)
            return task
        case _:
            assert_never(settings)
