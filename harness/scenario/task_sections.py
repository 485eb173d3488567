"""The kinds of task a scenario may name, and what may be written about each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.scenario.sections import FUNCTION, AtLeast1, Fraction, NonEmptyText, Positive, Section, Seed


class KeywordsTaskSettings(Section):
    """Write a sentence that includes the given words; reward 1 if every word occurs, else 0."""

    type: Literal["keywords"] = "keywords"
    """Keyword inclusion, with prompts made from the project's own word list, or from files."""
    train: NonEmptyText | None = None
    """JSONL file with training prompts and answers, as `dataset keywords` writes it; null: made from the word list."""
    validation: NonEmptyText | None = None
    """JSONL file with the held-out prompts; goes with `train`."""
    keywords_per_prompt: Annotated[int, Field(ge=2, le=8)] = 2
    """How many words a sentence must include; at least 2. With files, what the warm start is taught."""
    train_prompts: AtLeast1 = 4096
    """How many different training prompts there are."""
    validation_prompts: AtLeast1 = 256
    """How many held-out prompts there are; their word combinations never occur in training."""
    seed: Seed = 0
    """Seed of the prompts. It is apart from the scenario's seed, so that seeds share one set of prompts."""


class JsonlTaskSettings(Section):
    """Your own task: prompts from JSONL files, reward from a Python function."""

    type: Literal["jsonl"] = "jsonl"
    """Prompts from JSONL files, one JSON object a line."""
    train: NonEmptyText
    """File with the training prompts."""
    validation: NonEmptyText | None = None
    """File with the validation prompts; null holds out a part of the training file."""
    validation_fraction: Fraction = 0.1
    """Share of the training file held out where there is no validation file."""
    reward: Annotated[str, Field(pattern=FUNCTION)]
    """Reward function as `package.module:function`, called with (response, ground_truth)."""
    reward_timeout_s: Positive | None = 30.0
    """Seconds that one group's rewards may take; then the group is given up and counted. null: no limit."""
    prompt_field: NonEmptyText = "prompt"
    """Key of the prompt in each row."""
    answer_field: NonEmptyText = "answer"
    """Key of the ground truth in each row."""


class MathsTaskSettings(Section):
    """Maths problems from MATH or GSM8K files; the reward is for a verified answer in the asked format."""

    type: Literal["maths"] = "maths"
    """Maths problems with verified answers."""
    train: NonEmptyText
    """JSONL file with the training problems, in the format of MATH or GSM8K."""
    validation: NonEmptyText | None = None
    """File with the validation problems; null holds out a part of the training file."""
    validation_fraction: Fraction = 0.1
    """Share of the training file held out where there is no validation file."""
    format: Literal["auto", "gsm8k", "math"] = "auto"
    """Which fields a row has; `auto` looks at the first row."""
    prompt: Literal["r1_zero", "question_only"] = "r1_zero"
    """`r1_zero` asks for thoughts and an answer in tags, `question_only` is the problem alone."""
    symbolic_timeout_s: Positive = 2.0
    """Seconds that the symbolic comparison of one answer may take; then the answer counts as wrong."""


class ArithmeticTaskSettings(Section):
    """Sums that the harness makes up, with verified answers: maths that a small model can learn on a CPU."""

    type: Literal["arithmetic"] = "arithmetic"
    """Made-up arithmetic problems."""
    train_prompts: AtLeast1 = 4096
    """How many different training problems there are."""
    validation_prompts: AtLeast1 = 256
    """How many held-out problems there are; none of them occurs in training."""
    seed: Seed = 0
    """Seed of the problems. It is apart from the scenario's seed, so that seeds share one set of problems."""


class SortingTaskSettings(Section):
    """Sort three numbers: the smallest task on which policy gradients can be watched."""

    type: Literal["sorting"] = "sorting"
    """Three prompts of three numbers each; goes with `model.type: sorting`."""
    reward: Literal["positions", "inclusion_ordering"] = "inclusion_ordering"
    """`positions`: numbers at their sorted place; `inclusion_ordering`: numbers that occur, and ordered neighbours."""
