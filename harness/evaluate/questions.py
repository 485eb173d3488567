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
from harness.tasks.rows import AUTO, Fields, read_prompts, read_rows
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
        repeated: rows of the file that repeat an earlier one and are not asked again.
    """

    name: str
    task: TaskName
    prompts: tuple[Prompt, ...]
    reward: Reward
    template: PromptTemplate | None = None
    stop: tuple[str, ...] = ()
    sha256: str | None = None
    is_users: bool = False
    repeated: int = 0

    def rewards(self, should_stop: Callable[[], bool]) -> GroupRewards:
        """Return what grades responses: in a process of its own where the function is a user's."""
        if self.is_users:
            return TimedRewards(self.reward, REWARD_TIMEOUT_S, should_stop)
        return DirectRewards(self.reward, should_stop)


def read_questions(
    data: Path | None, task: TaskName | None, template: str | None, reward: str | None, fields: Fields = AUTO
) -> Questions:
    """Read a file, or make up a built-in set.

    Args:
        data: JSONL file; None for the built-in prompts of ``task``.
        task: how answers are graded; None takes what the file's first row looks like.
        template: prompt template of a maths task, by its name or as a file.
        reward: a user's reward function as ``package.module:function``, for rows with prompt and answer; or for maths
            how answers are found, one of ``REWARD_FUNCTIONS``.
        fields: keys of the rows where they are not the usual ones, and whether prompts may be turns of a chat.

    Raises:
        UserError: the arguments do not fit together, or the file cannot be used.
    """
    task = task or _task_of(data, reward, fields)
    _check_arguments(data, task, template, reward)
    if data is None:
        return _built_in(task)
    if task == "maths":
        questions = _maths(data, template or "r1_zero", reward, fields)
    else:
        answer = "answer" if fields.answer is None else fields.answer if fields.answer != "null" else None
        questions = _from_file(data, task, reward, replace(fields, prompt=fields.prompt or "prompt", answer=answer))
    return replace(questions, name=data.name, sha256=hashlib.sha256(data.read_bytes()).hexdigest())


def _from_file(data: Path, task: TaskName, reward: str | None, fields: Fields) -> Questions:
    if task == "keywords":
        from harness.tasks.keyword_files import read_keyword_prompts
        from harness.tasks.keywords import keyword_reward

        read = read_keyword_prompts(data, fields)
        return Questions("", task, read.prompts, keyword_reward, repeated=read.repeated)
    from harness.tasks.rewards import UserReward

    assert reward is not None
    read, function = read_prompts(data, fields), UserReward(reward)
    function.try_out(read.prompts[0].ground_truth)  # a broken one is told before any model is loaded
    return Questions("", task, read.prompts, function, is_users=True, repeated=read.repeated)


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


def _task_of(data: Path | None, reward: str | None, fields: Fields) -> TaskName:
    """Return the task that the file's first row looks like.

    Raises:
        UserError: it looks like none.
    """
    if reward is not None and reward not in REWARD_FUNCTIONS:
        return "own"
    if data is None:
        raise UserError("there is nothing to ask", "--data", "--data FILE.jsonl, or --task keywords or arithmetic")
    rows = read_rows(data, '{"question": "...", "answer": "... #### 18"}')
    keys = set(rows[0].fields) if rows else set()
    if fields.prompt or {"question", "answer"} <= keys or {"problem"} <= keys:
        return "maths"
    found = ", ".join(map(repr, sorted(keys))) or "no field"
    raise UserError(
        f"the rows have {found}: neither question and answer as in GSM8K, nor problem and solution as in MATH",
        str(data),
        "for maths under other names, add --prompt-field and --answer-field; for rows with prompt and answer, add "
        "--task keywords, or --reward package.module:function",
    )


def _maths(data: Path, named: str, reward: str | None, fields: Fields) -> Questions:
    from harness.tasks.maths.task import asked, check_installed, read_problems

    template, graded = prompt_template(named), reward_of(named, reward)
    check_installed()
    read = read_problems(data, "auto", fields)
    prompts, function = asked(read.prompts, template), MathsReward(graded)
    return Questions("", "maths", prompts, function, template, STOP_STRINGS[graded], repeated=read.repeated)
