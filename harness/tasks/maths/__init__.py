"""Maths with verified answers: prompt templates, data files of two formats, and rewards. No torch in here.

Whether two answers mean the same is told by rules of our own first (``answers``; start there: it reads ``spelling``,
``units``, ``numbers`` and ``intervals``), and by a library after that, in a process of its own with a time limit
(``symbolic``).
"""

from harness.tasks.maths.prompts import TEMPLATES, PromptTemplate, prompt_template
from harness.tasks.maths.reward import (
    REWARD_FUNCTIONS,
    STOP_STRINGS,
    MathsReward,
    question_only_reward_fn,
    r1_zero_reward_fn,
)
from harness.tasks.maths.symbolic import AnswerGrader
from harness.tasks.maths.task import MathsTask, read_problems

__all__ = [
    "REWARD_FUNCTIONS",
    "STOP_STRINGS",
    "TEMPLATES",
    "AnswerGrader",
    "MathsReward",
    "MathsTask",
    "PromptTemplate",
    "prompt_template",
    "question_only_reward_fn",
    "r1_zero_reward_fn",
    "read_problems",
]
