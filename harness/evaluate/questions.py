"""What an evaluation asks: prompts, how answers are graded, and where both come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.core.errors import UserError
from harness.core.types import Prompt
from harness.tasks.maths.prompts import PromptTemplate, prompt_template
from harness.tasks.maths.reward import REWARD_FUNCTIONS, STOP_STRINGS, MathsReward, reward_of
from harness.tasks.scoring import DirectRewards, GroupRewards, Reward, TimedRewards

TaskName = Literal["maths", "keywords", "arithmetic", "own"]
TASKS = ("maths", "keywords", "arithmetic", "own")
BUILT_IN_PROMPTS = 1024
"""Held-out prompts of a built-in set, where it has so many."""
REWARD_TIMEOUT_S = 30.0
"""Seconds that a user's reward function may take for one response."""


@dataclass(frozen=True)
class Questions:
    """The prompts of an evaluation.

    Attributes:
        name: of the file, or of the built-in set.
        task: how answers are graded.
        prompts: by prompt id.
        reward: grades one response.
        template: the prompt template; None where rows hold whole prompts.
        stop: strings that end a response.
        sha256: of the file; None for a built-in set.
        is_users: whether the reward function is a user's own, and so needs a time limit.
    """

    name: str
    task: TaskName
    prompts: tuple[Prompt, ...]
    reward: Reward
    template: PromptTemplate | None = None
    stop: tuple[str, ...] = ()
    sha256: str | None = None
    is_users: bool = False

    def first(self, limit: int | None) -> Questions:
        """Return the first ``limit`` of them; None takes all."""
        return self if limit is None else replace(self, prompts=self.prompts[:limit])

    def rewards(self, should_stop: Callable[[], bool]) -> GroupRewards:
        """Return what grades responses: in a process of its own where the function is a user's."""
        if self.is_users:
            return TimedRewards(self.reward, REWARD_TIMEOUT_S, should_stop)
        return DirectRewards(self.reward, should_stop)


def read_questions(data: Path | None, task: TaskName | None, template: str | None, reward: str | None) -> Questions:
    """Read a file, or make up a built-in set.

    Args:
        data: JSONL file; None for the built-in prompts of ``task``.
        task: how answers are graded; None takes what the file's first row looks like.
        template: prompt template of a maths task, by its name or as a file.
        reward: a user's reward function as ``package.module:function``, for rows with prompt and answer; or for maths
            how answers are found, one of ``REWARD_FUNCTIONS``.

    Raises:
        UserError: the arguments do not fit together, or the file cannot be used.
    """
    task = task or _task_of(data, reward)
    _check_arguments(data, task, template, reward)
    if data is None:
        return _built_in(task)
    questions = _maths(data, template or "r1_zero", reward) if task == "maths" else _from_file(data, task, reward)
    return replace(questions, name=data.name, sha256=hashlib.sha256(data.read_bytes()).hexdigest())


def _from_file(data: Path, task: TaskName, reward: str | None) -> Questions:
    if task == "keywords":
        from harness.tasks.keyword_files import read_keyword_prompts
        from harness.tasks.keywords import keyword_reward

        return Questions("", task, read_keyword_prompts(data), keyword_reward)
    from harness.tasks.jsonl import read_prompts
    from harness.tasks.rewards import UserReward

    assert reward is not None
    prompts, function = read_prompts(data, "prompt", "answer"), UserReward(reward)
    function.try_out(prompts[0].ground_truth)  # a broken one is told before any model is loaded
    return Questions("", task, prompts, function, is_users=True)


def _built_in(task: TaskName) -> Questions:
    if task == "keywords":
        from harness.tasks.keywords import KeywordTask

        made = KeywordTask(train_prompts=1, validation_prompts=BUILT_IN_PROMPTS)
        return Questions("keywords", task, made.validation_prompts, made.reward)
    from harness.tasks.arithmetic import PROMPT, ArithmeticTask

    sums = ArithmeticTask(train_prompts=1, validation_prompts=BUILT_IN_PROMPTS)
    return Questions("arithmetic", task, sums.validation_prompts, sums.reward, prompt_template(PROMPT), sums.stop)


def _check_arguments(data: Path | None, task: TaskName, template: str | None, reward: str | None) -> None:
    """Refuse arguments that would be ignored, and those that are missing.

    Raises:
        UserError: which one.
    """
    if data is None and task in ("maths", "own"):
        raise UserError(f"--task {task} has no built-in prompts", "--data", "name a file: --data test.jsonl")
    if data is not None and task == "arithmetic":
        raise UserError("--task arithmetic makes its own prompts", "--data", "leave --data out")
    finds_answers = task == "maths" and reward in REWARD_FUNCTIONS
    if (task == "own") != (reward is not None) and not finds_answers:
        fix = "leave --reward out" if reward else "--reward package.module:function"
        raise UserError("--task own and --reward go together", "--task and --reward", fix)
    if template is not None and task != "maths":
        raise UserError(f"--prompt is for maths; the prompts of --task {task} are whole", "--prompt", "leave it out")


def _task_of(data: Path | None, reward: str | None) -> TaskName:
    """Return the task that the file's first row looks like.

    Raises:
        UserError: it looks like none.
    """
    if reward is not None and reward not in REWARD_FUNCTIONS:
        return "own"
    if data is None:
        raise UserError("there is nothing to ask", "--data", "--data FILE.jsonl, or --task keywords or arithmetic")
    keys = _first_keys(data)
    if {"question", "answer"} <= keys or {"problem"} <= keys:
        return "maths"
    found = ", ".join(map(repr, sorted(keys))) or "no field"
    raise UserError(
        f"the rows have {found}: neither question and answer as in GSM8K, nor problem and solution as in MATH",
        str(data),
        "for rows with prompt and answer, add --task keywords, or --reward package.module:function",
    )


def _first_keys(data: Path) -> set[str]:
    from harness.tasks.jsonl import parse_object, read_lines

    for number, line in read_lines(data)[:1]:
        return set(parse_object(line, f"{data}, line {number}", '{"question": "...", "answer": "... #### 18"}'))
    return set()


def _maths(data: Path, named: str, reward: str | None) -> Questions:
    from harness.tasks.maths.symbolic import SYMBOLIC_TIMEOUT_S
    from harness.tasks.maths.task import asked, bare_prompts, check_installed

    template, graded = prompt_template(named), reward_of(named, reward)
    check_installed()
    prompts = asked(bare_prompts(data, "auto"), template)
    return Questions("", "maths", prompts, MathsReward(graded, SYMBOLIC_TIMEOUT_S), template, STOP_STRINGS[graded])
