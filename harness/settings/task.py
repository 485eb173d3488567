"""What is trained on: prompts and their reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from harness.settings.base import (
    BY_COLON,
    BY_TYPE,
    FUNCTION,
    NAME,
    OF_HARNESS,
    OF_PLUGIN,
    Fraction,
    NonEmptyText,
    PluginName,
    PluginOptions,
    Seconds,
    Seed,
    Settings,
)

TAKEN_NAMES = ("total", "format", "answer")
"""Names that no part of a reward may have."""
KEYWORD_BLOCKS, KEYWORDS_OF_A_BLOCK = 50, 8
"""How the word list of the keyword task is dealt: a prompt to train on takes its words from as many blocks, a held-out
one from one block."""
MOST_PROMPTS = 1_000_000
PROMPT_TEMPLATES = ("r1_zero", "question_only", "r1_zero_reworded")
"""Names of the prompt templates that come with the project."""
OF_CHATS = ("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "messages",
            "max_length", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize",
            "tokenizer_kwargs", "tools", "truncation")  # fmt: skip
"""Arguments of ``apply_chat_template`` that are no template's own."""
ChatArguments = Annotated[dict[str, bool | int | float | str | None], Field(max_length=100)]


class ChatSettings(Settings):
    """What tasks of language models have: prompts as turns of a chat."""

    chat_template: bool = False
    """Ask through the chat template of the model's tokenizer, each prompt as a user's turn."""
    system_prompt: NonEmptyText | None = None
    """System message before each prompt; null leaves it to the template. Needs `chat_template`."""
    chat_template_kwargs: ChatArguments = Field(default_factory=dict)
    """Arguments of the template, such as `enable_thinking: false` for Qwen3; each must occur in it."""


class KeywordsTaskSettings(ChatSettings):
    """Write a sentence that includes the given words; reward 1 if every word occurs, else 0."""

    type: Literal["keywords"] = "keywords"
    """Keyword inclusion, with prompts made from the project's own word list, or from files."""
    train: NonEmptyText | None = None
    """JSONL file with training prompts and answers, as `dataset keywords` writes it; null: made from the word list."""
    validation: NonEmptyText | None = None
    """JSONL file with the held-out prompts; needs `train`."""
    keywords_per_prompt: Annotated[int, Field(ge=2, le=8)] = 2
    """How many words a sentence must include; at least 2. With files, what the warm start is taught."""
    train_prompts: Annotated[int, Field(ge=1, le=MOST_PROMPTS)] = 4096
    """How many different training prompts there are."""
    validation_prompts: Annotated[int, Field(ge=1, le=MOST_PROMPTS)] = 256
    """How many held-out prompts there are; their word combinations never occur in training."""
    seed: Seed = 0
    """Seed of the prompts. Independent of the scenario's seed, so that seeds share one set of prompts."""


class RewardFunctionSettings(Settings):
    """One of several reward functions, or one with other arguments."""

    function: Annotated[str, Field(pattern=FUNCTION)]
    """The function as `package.module:function`."""
    weight: float = 1.0
    """Its weight in the sum of all rewards."""
    per: Literal["response", "group"] = "response"
    """Called for each `response`, or once for the `group` of responses to one prompt: a list in, a list out."""
    takes: Literal["ground_truth", "row"] = "ground_truth"
    """Its second argument: the `ground_truth`, or the whole `row` of the data file."""
    name: Annotated[str, Field(pattern=NAME)] | None = None
    """Its name in the metrics: `reward/<name>`; null: the function's name."""

    @property
    def label(self) -> str:
        """What its part is called in the metrics."""
        return self.name or self.function.rpartition(":")[2]


def _as_functions(value: object) -> object:
    """Return a list of rewards as a tuple of mappings; what has one mapping alone is a list too."""
    parts = (value,) if isinstance(value, dict) else value
    if not isinstance(parts, tuple):
        return value
    return tuple({"function": part} if isinstance(part, str) else part for part in parts)


FORMS_OF_REWARD = ("[function]", "[list]")
"""What pydantic calls the two forms of a reward, in the places of its errors."""
Reward = Annotated[
    Annotated[str, Field(pattern=FUNCTION), Tag("[function]")]
    | Annotated[tuple[RewardFunctionSettings, ...], Tag("[list]")],
    Discriminator(lambda value: "[list]" if isinstance(value, tuple) else "[function]"),
    BeforeValidator(_as_functions),
]


class JsonlTaskSettings(ChatSettings):
    """Your own task: prompts from JSONL files, reward from a Python function."""

    type: Literal["jsonl"] = "jsonl"
    """Prompts from JSONL files, one JSON object a line."""
    train: NonEmptyText
    """File with the training prompts."""
    validation: NonEmptyText | None = None
    """File with the validation prompts; null holds out a part of the training file."""
    validation_fraction: Fraction = 0.1
    """Share of the training file held out where there is no validation file."""
    reward: Reward
    """Reward function as `package.module:function`, called with (response, ground_truth); or a weighted list."""
    reward_timeout_s: Seconds | None = 30.0
    """Time limit for one group's rewards; a group that exceeds it is left out and counted. null: no limit, and
    no process of its own: a function that ends its process then ends the run."""
    prompt_field: NonEmptyText = "prompt"
    """Key of the prompt in each row: text, or turns of a chat. Dots lead into nested objects: `extra_info.question`."""
    answer_field: NonEmptyText | None = "answer"
    """Key of the ground truth in each row, of any JSON type; null: there is none, and the reward gets ""."""
    filter_overlong_prompts: bool = False
    """Leave prompts out that do not fit the context beside `sampling.max_tokens`; false refuses them."""


class MathsTaskSettings(ChatSettings):
    """Maths problems from MATH or GSM8K files; the reward is for a verified answer in the asked format."""

    type: Literal["maths"] = "maths"
    """Maths problems with verified answers."""
    train: NonEmptyText
    """JSONL file with the training problems, as in MATH, as in GSM8K, or with bare answers."""
    validation: NonEmptyText | None = None
    """File with the validation problems; null holds out a part of the training file."""
    validation_fraction: Fraction = 0.1
    """Share of the training file held out where there is no validation file."""
    format: Literal["auto", "gsm8k", "math"] = "auto"
    """`gsm8k`: `question`, and `answer` behind ####; `math`: `problem`, and `answer` or the box of `solution`; `auto`
    looks at the first row."""
    prompt_field: NonEmptyText | None = None
    """Key of the problem in each row, as for `jsonl`; null: `problem` or `question`."""
    answer_field: NonEmptyText | None = None
    """Key of the answer in each row: text or a number, alone, behind #### or boxed as in the first row; null: `answer`,
    or the box of `solution`."""
    filter_overlong_prompts: bool = False
    """Leave prompts out that do not fit the context beside `sampling.max_tokens`; false refuses them."""
    prompt: NonEmptyText = "r1_zero"
    """`r1_zero` (thoughts, then tags), `question_only`, `r1_zero_reworded`, or a text file with `{question}` in it."""
    reward: Literal["r1_zero", "question_only"] | None = None
    """How answers are found: in the tags of `r1_zero`, or anywhere; null: as the prompt asks, if it is no file."""


class ArithmeticTaskSettings(Settings):
    """Generated arithmetic problems with verified answers, which a small model can learn on a CPU."""

    type: Literal["arithmetic"] = "arithmetic"
    """Generated arithmetic problems."""
    train_prompts: Annotated[int, Field(ge=1, le=20_000)] = 4096
    """How many different training problems there are."""
    validation_prompts: Annotated[int, Field(ge=1, le=2000)] = 256
    """How many held-out problems there are; none of them occurs in training."""
    seed: Seed = 0
    """Seed of the problems. Independent of the scenario's seed, so that seeds share one set of problems."""


class SortingTaskSettings(Settings):
    """Sort three numbers: the smallest task on which policy gradients can be watched."""

    type: Literal["sorting"] = "sorting"
    """Three prompts of three numbers each; needs `model.type: sorting`."""
    reward: Literal["positions", "inclusion_ordering"] = "inclusion_ordering"
    """`positions`: numbers at their sorted place; `inclusion_ordering`: numbers that occur, and ordered neighbours."""


class PluginTaskSettings(ChatSettings):
    """A task of your own: a class with prompts and a reward, see docs/extending.md."""

    type: PluginName
    """Your class as `package.module:Name`."""
    options: PluginOptions = Field(default_factory=dict)
    """Keyword arguments of the class."""
    reward_timeout_s: Seconds | None = 30.0
    """Time limit for one group's rewards; a group that exceeds it is left out and counted. null: no limit, and
    no process of its own: a function that ends its process then ends the run."""


TaskSettings = Annotated[
    Annotated[
        KeywordsTaskSettings | JsonlTaskSettings | MathsTaskSettings | ArithmeticTaskSettings | SortingTaskSettings,
        BY_TYPE,
        OF_HARNESS,
    ]
    | Annotated[PluginTaskSettings, OF_PLUGIN],
    BY_COLON,
]
