"""Maths problems from files, asked through a prompt template, rewarded for verified answers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from harness.core.errors import UserError
from harness.core.types import Prompt
from harness.tasks.jsonl import refuse_shared, split_prompts
from harness.tasks.maths.grader import SYMBOLIC_TIMEOUT_S
from harness.tasks.maths.loaders import FileFormat, read_problems
from harness.tasks.maths.prompts import PROMPT_TEMPLATES
from harness.tasks.maths.reward import MathsReward


class MathsTask:
    """Maths problems from files in the format of MATH or GSM8K.

    Args:
        train: file with the training problems, see ``read_problems``.
        validation: file with the held-out problems; None splits them off ``train``.
        validation_fraction: share of ``train`` that is split off, above 0 and below 1; unused with a validation file.
        format: which fields the lines have; ``auto`` goes by a file's first line.
        prompt: name of the prompt template, which also says how a response is rewarded.
        symbolic_timeout_s: seconds that the symbolic comparison of one answer may take; then the answer is wrong.

    Attributes:
        reward: the reward function, with a grader of its own; it pickles without the prompts.
        stop: strings that end a response to these prompts; ``sampling.stop`` may add others.

    Raises:
        UserError: a file is missing, empty or has bad lines, a problem is in both splits, the template is not known, or
            math-verify is not installed.
    """

    def __init__(
        self,
        train: str | Path,
        validation: str | Path | None = None,
        validation_fraction: float = 0.1,
        format: FileFormat = "auto",
        prompt: str = "r1_zero",
        symbolic_timeout_s: float = SYMBOLIC_TIMEOUT_S,
    ) -> None:
        _check_prompt(prompt)
        check_installed()
        prompts = read_maths_prompts(train, format, prompt)
        if validation is None:
            self.train_prompts, self.validation_prompts = split_prompts(prompts, validation_fraction, str(train))
        else:
            self.train_prompts, self.validation_prompts = prompts, read_maths_prompts(validation, format, prompt)
            refuse_shared(prompts, self.validation_prompts, str(train), str(validation))
        self.stop = PROMPT_TEMPLATES[prompt].stop
        self.reward = MathsReward(prompt, symbolic_timeout_s)


def read_maths_prompts(file: str | Path, file_format: FileFormat, prompt: str) -> tuple[Prompt, ...]:
    """Return the problems of a file as prompts, in its order.

    Raises:
        UserError: see ``read_problems``.
    """
    template = PROMPT_TEMPLATES[prompt]
    return tuple(Prompt(template.render(one.question), one.answer) for one in read_problems(file, file_format))


def _check_prompt(prompt: str) -> None:
    if prompt not in PROMPT_TEMPLATES:
        raise UserError(
            f"the prompt template {prompt!r} is not known; there are {', '.join(PROMPT_TEMPLATES)}",
            where="task.prompt",
            fix="set task.prompt to r1_zero",
        )


def check_installed() -> None:
    """Refuse to run without the library, since what only algebra can judge could not be graded.

    Raises:
        UserError: math-verify is not installed.
    """
    if find_spec("math_verify") is None:
        raise UserError(
            "math-verify is not installed, which compares answers by algebra",
            where="task.type: maths",
            fix="pip install math-verify, or make install",
        )
