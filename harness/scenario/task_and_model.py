"""What is trained on what: task, policy, engine and sampling, with the rules that tie them together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from harness.core.named_files import nearest
from harness.core.types import SamplingParams
from harness.scenario.problems import Problem, broken
from harness.scenario.sections import (
    BY_COLON,
    BY_TYPE,
    FUNCTION,
    NAME,
    OF_HARNESS,
    OF_USER,
    AtLeast0,
    AtLeast1,
    Fraction,
    FromList,
    NonEmptyText,
    OwnName,
    OwnOptions,
    Parts,
    Positive,
    Precision,
    Seconds,
    SecondsOr0,
    Section,
    Seed,
    usual_type,
)

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario


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


class ChatSettings(Section):
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


class RewardFunctionSettings(Section):
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
    if not isinstance(value, dict | list):
        return value
    parts = value if isinstance(value, list) else [value]
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
    symbolic_timeout_s: Seconds = 2.0
    """Time limit for the symbolic comparison of one answer; an answer that exceeds it counts as wrong."""


class ArithmeticTaskSettings(Section):
    """Generated arithmetic problems with verified answers, which a small model can learn on a CPU."""

    type: Literal["arithmetic"] = "arithmetic"
    """Generated arithmetic problems."""
    train_prompts: Annotated[int, Field(ge=1, le=20_000)] = 4096
    """How many different training problems there are."""
    validation_prompts: Annotated[int, Field(ge=1, le=2000)] = 256
    """How many held-out problems there are; none of them occurs in training."""
    seed: Seed = 0
    """Seed of the problems. Independent of the scenario's seed, so that seeds share one set of problems."""


class SortingTaskSettings(Section):
    """Sort three numbers: the smallest task on which policy gradients can be watched."""

    type: Literal["sorting"] = "sorting"
    """Three prompts of three numbers each; needs `model.type: sorting`."""
    reward: Literal["positions", "inclusion_ordering"] = "inclusion_ordering"
    """`positions`: numbers at their sorted place; `inclusion_ordering`: numbers that occur, and ordered neighbours."""


class OwnTaskSettings(ChatSettings):
    """A task of your own: a class with prompts and a reward, see docs/extending.md."""

    type: OwnName
    """Your class as `package.module:Name`."""
    options: OwnOptions = Field(default_factory=dict)
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
    | Annotated[OwnTaskSettings, OF_USER],
    BY_COLON,
    usual_type("keywords"),
]


class PolicySettings(Section):
    """What every kind of policy has."""

    precision: Precision = "float32"
    """Training arithmetic; bfloat16 and float16 mean autocast over float32 weights, float16 with loss scaling."""
    threads: Parts | None = None
    """CPU threads of the training process; null takes all cores."""


class PresetModelSettings(PolicySettings):
    """The project's own language model, in a ready-made size."""

    type: Literal["preset"] = "preset"
    """One of the project's own models."""
    preset: Literal["tiny", "small", "course", "maths"] = "small"
    """`tiny` for tests, `small` 3 million parameters, `course` 4 layers of width 512, `maths` for maths tasks."""
    warm_start: bool = True
    """Train on example sentences first (cached): from random weights the reward is always 0."""
    warm_start_seed: Seed = 0
    """Seed of the initial weights and of the warm start."""


class FolderModelSettings(PolicySettings):
    """Any Hugging Face causal language model."""

    type: Literal["folder"] = "folder"
    """A Hugging Face model."""
    path: NonEmptyText
    """Model folder, or name on the Hugging Face hub."""
    dtype: Precision = "float32"
    """Type of the trained weights; bfloat16 halves weights, gradients and Adam's averages, and loses small updates."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer and compute the rest again: less memory, about a third more time."""


class PacedModelSettings(PolicySettings):
    """A Learner that sleeps instead of training, with made-up weights: to measure transports and the loop itself."""

    type: Literal["paced"] = "paced"
    """Sleeps instead of training; the weights it publishes are real bytes that change at each step."""
    update_s: SecondsOr0 = 0.4
    """Seconds of one update."""
    megabytes: Positive = 1.0
    """Size of the weights, in units of 10^6 bytes."""
    tensors: AtLeast1 = 1
    """Number of tensors that the weights are split into."""


class SortingModelSettings(PolicySettings):
    """The model of the sorting task: it writes all positions at once, each from its own matrix."""

    type: Literal["sorting"] = "sorting"
    """The model of `task.type: sorting`."""
    seed: Seed | None = None
    """Seed of the initial weights; null takes the scenario's."""


ModelSettings = Annotated[
    PresetModelSettings | FolderModelSettings | PacedModelSettings | SortingModelSettings,
    BY_TYPE,
    usual_type("preset"),
]


class NativeEngineSettings(Section):
    """The project's own sampling engine."""

    type: Literal["native"] = "native"
    """The project's own engine."""
    precision: Precision = "float32"
    """Sampling arithmetic."""
    kv_cache: Literal["float32", "bfloat16"] = "float32"
    """Precision of cached keys and values; bfloat16 halves their memory and moves log-probs a little."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync, else the run stops; null: not measured."""


class FakeEngineSettings(Section):
    """An engine that returns invented tokens at once, for tests."""

    type: Literal["fake"] = "fake"
    """The engine of the tests."""


class PacedEngineSettings(Section):
    """An engine that sleeps instead of sampling; needs `model.type: paced`."""

    type: Literal["paced"] = "paced"
    """Sleeps instead of sampling; the weights it loads are copied into its own tensors."""
    generate_s: SecondsOr0 = 0.5
    """Seconds of one batch; several Generators divide it."""
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How far the seconds of one batch may differ from that, as a fraction; drawn from the seed."""


class ServingEngineSettings(Section):
    """What engines of other makers have in common."""

    precision: Precision = "float32"
    """Sampling arithmetic."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync; null: 1e-4 in float32, else 0.5."""


class VllmEngineSettings(ServingEngineSettings):
    """vLLM, in the Generator's process."""

    type: Literal["vllm"] = "vllm"
    """vLLM, an optional part of the installation."""
    tensor_parallel: Parts = 1
    """Workers that split each layer's matrices and key/value heads; more than 1 are processes with a GPU each."""
    context: AtLeast1 | None = None
    """Most tokens of a prompt and its response; null: the model's own limit. Less needs less memory."""
    kv_cache_gib: Positive | None = None
    """GiB for keys and values; null: what max_batch full responses need, at most 4, or half a GPU's free memory."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a GPU's whole memory that vLLM takes; the rest of it goes to keys and values. Not with kv_cache_gib."""


def workers_of(scenario: Scenario) -> int:
    """Return the workers that the engine's model is cut over; 1 where an engine has no others."""
    return getattr(scenario.engine, "tensor_parallel", 1)


class SglangEngineSettings(ServingEngineSettings):
    """SGLang, for machines with a GPU."""

    type: Literal["sglang"] = "sglang"
    """SGLang; it must be installed separately."""
    memory_fraction: Fraction = 0.4
    """Share of the GPU's memory that SGLang takes for weights, keys and values."""


class OwnEngineSettings(ServingEngineSettings):
    """An engine of your own: a class that samples with the weights it is given, see docs/extending.md."""

    type: OwnName
    """Your class as `package.module:Name`."""
    options: OwnOptions = Field(default_factory=dict)
    """Keyword arguments of the class, in addition to those that every engine gets."""
    mismatch_bound: Positive | None = None
    """Largest gap between engine and Learner log-probs after a weight sync, else the run stops; null: not measured."""


EngineSettings = Annotated[
    Annotated[
        NativeEngineSettings | FakeEngineSettings | PacedEngineSettings | VllmEngineSettings | SglangEngineSettings,
        BY_TYPE,
        OF_HARNESS,
    ]
    | Annotated[OwnEngineSettings, OF_USER],
    BY_COLON,
    usual_type("native"),
]


class SamplingSettings(Section):
    """How responses are sampled."""

    temperature: Positive = 1.0
    """Divides the logits; above 0, since equal responses in a group teach nothing."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with at least this probability; 1 is all of them."""
    min_tokens: AtLeast0 = 1
    """A response cannot end before this many tokens. Ratios and KL allow for that only with `loss.ban_eos`."""
    max_tokens: AtLeast1 = 32
    """A response is cut after this many tokens."""
    stop: Annotated[tuple[NonEmptyText, ...], FromList] = ()
    """Strings that end a response; they stay part of it. A special or added token of the tokenizer ends by its id."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the texts that are rewarded; false keeps those that do not end a response."""
    pinned_lengths: Annotated[tuple[AtLeast1, AtLeast1] | None, FromList] = None
    """[shortest, longest]: lengths are drawn from the seed and nothing ends a response early: arms do equal work."""

    def to_params(self) -> SamplingParams:
        """Return these settings in the form that engines take."""
        return SamplingParams(
            self.temperature, self.top_p, self.min_tokens, self.max_tokens, self.stop, self.pinned_lengths
        )


class EvaluationSettings(Section):
    """Validation on held-out prompts: before the first step, every `every` steps, and after the last."""

    every: AtLeast1 = 10
    """Training steps between two validations."""
    prompts: AtLeast1 = 256
    """Validation prompts used, one response each."""
    examples: AtLeast0 = 4
    """Rollouts of each validation kept in the results, to be read; all where there are fewer."""


def sorting_goes_together(scenario: Scenario) -> Problem | None:
    """The sorting model reads and writes numbers only, and no other model knows them as tokens."""
    task, model = scenario.task.type, scenario.model.type
    if (task == "sorting") == (model == "sorting"):
        return None
    if model == "paced":  # it trains nothing, and its engine reads no prompt
        return None
    what = f"task.type is {task} and model.type is {model}: the sorting task and its model go together"
    return broken(what, "set both to sorting, or neither", "task.type", "model.type")


def trained_weights_are_no_float16(scenario: Scenario) -> Problem | None:
    """Most updates of an optimizer step are too small for float16 weights.

    Adam's epsilon of 1e-8 is 0 there too, and torch's loss scaling takes no gradients of float16.
    """
    if getattr(scenario.model, "dtype", None) != "float16":
        return None
    what = (
        "model.dtype is float16: weights of float16 lose small updates, and Adam divides by an epsilon that is 0 there"
    )
    fix = (
        "set model.precision to float16 (float32 weights, float16 arithmetic, loss scaling), or model.dtype to bfloat16"
    )
    return broken(what, fix, "model.dtype")


def sorting_engine(scenario: Scenario) -> Problem | None:
    """Other engines serve language models."""
    engine = scenario.engine.type
    if scenario.model.type != "sorting" or engine in ("native", "fake", "paced"):
        return None
    what = f"engine.type is {engine}, must be native with model.type sorting, which is no language model"
    return broken(what, "set engine.type to native", "engine.type", "model.type")


def paced_goes_together(scenario: Scenario) -> Problem | None:
    """A Learner that trains nothing needs an engine that samples nothing."""
    model, engine = scenario.model.type, scenario.engine.type
    if (model == "paced") == (engine == "paced"):
        return None
    what = f"model.type is {model} and engine.type is {engine}: paced parts go together"
    return broken(what, "set both to paced, or neither", "model.type", "engine.type")


def warm_start_suits_the_task(scenario: Scenario) -> Problem | None:
    """A warm-started preset has learnt one kind of text; on the other kind every reward would be 0."""
    model, task = scenario.model, scenario.task.type
    if (
        not isinstance(model, PresetModelSettings)
        or not model.warm_start
        or task in ("jsonl", "sorting")
        or ":" in task
    ):
        return None
    knows, learnt = ("maths", "arithmetic") if model.preset == "maths" else ("keywords", "to use given words")
    if (knows == "maths") == (task in ("maths", "arithmetic")):
        return None
    what = f"the warm start of model.preset {model.preset} teaches {learnt}, and task.type is {task}"
    preset = "small" if knows == "maths" else "maths"
    fix = f"set model.preset to {preset}, or model.warm_start to false"
    return broken(what, fix, "model.preset", "task.type")


def keyword_files_come_together(scenario: Scenario) -> Problem | None:
    """The keyword task reads both of its files or none, and with files it draws no prompts."""
    task = scenario.task
    if not isinstance(task, KeywordsTaskSettings):
        return None
    if (task.train is None) != (task.validation is None):
        given, missing = ("train", "validation") if task.validation is None else ("validation", "train")
        what = f"task.{given} names a file and task.{missing} is null; the keyword task reads both or none"
        return broken(what, f"set task.{missing} too", f"task.{given}", f"task.{missing}")
    if task.train is None:
        return None
    for name in ("train_prompts", "validation_prompts", "seed"):
        value, default = getattr(task, name), KeywordsTaskSettings.model_fields[name].default
        if value != default:
            what = f"task.{name} is {value}, and with task.train all prompts come from the files"
            return broken(what, f"leave task.{name} out", f"task.{name}", "task.train")
    return None


def keyword_prompts_are_there(scenario: Scenario) -> Problem | None:
    """No two prompts ask for the same set of words, and the word list has only so many sets."""
    task = scenario.task
    if not isinstance(task, KeywordsTaskSettings) or task.train is not None:
        return None
    words, size = task.keywords_per_prompt, KEYWORDS_OF_A_BLOCK
    there = {
        "train_prompts": math.comb(KEYWORD_BLOCKS, words) * size**words,
        "validation_prompts": KEYWORD_BLOCKS * math.comb(size, words),
    }
    for name, most in there.items():
        if getattr(task, name) > most:
            what = f"task.{name} is {getattr(task, name)}, and there are {most} sets of {words} words"
            return broken(what, f"set task.{name} to at most {most}", f"task.{name}", "task.keywords_per_prompt")
    return None


def rewards_have_names(scenario: Scenario) -> Problem | None:
    """A list of rewards has parts, and each has a metric of its own."""
    task = scenario.task
    if not isinstance(task, JsonlTaskSettings) or isinstance(task.reward, str):
        return None
    labels = [part.label for part in task.reward]
    if not labels:
        return broken("task.reward is an empty list", "name at least one function", "task.reward")
    for label in labels:
        if label in TAKEN_NAMES:
            what = f"task.reward has a part called {label!r}, and reward/{label} is a metric of every run"
            return broken(what, "give it another `name`", "task.reward")
        if labels.count(label) > 1:
            what = f"task.reward has {labels.count(label)} parts called {label!r}, and one metric reward/{label}"
            return broken(what, "give each a `name` of its own", "task.reward")
    return None


def chat_template_of_a_folder(scenario: Scenario) -> Problem | None:
    """Chats need a tokenizer with a chat template, which only models of others have."""
    task, model = scenario.task, scenario.model.type
    if not isinstance(task, ChatSettings):
        return None
    if task.chat_template and model != "folder":
        what = f"task.chat_template is true with model.type {model}, whose tokenizer has no chat template"
        return broken(what, "set model.type to folder, or leave it out", "task.chat_template", "model.type")
    if task.system_prompt is not None and not task.chat_template:
        what = "task.system_prompt is a turn of a chat, and task.chat_template is false"
        return broken(what, "set task.chat_template to true", "task.system_prompt", "task.chat_template")
    if not task.chat_template_kwargs:
        return None
    key = "task.chat_template_kwargs"
    if not task.chat_template:
        what = f"{key} has arguments of a template, and task.chat_template is false"
        return broken(what, "set task.chat_template to true", key, "task.chat_template")
    taken = sorted(set(OF_CHATS) & set(task.chat_template_kwargs))
    if taken:
        return broken(f"{key} has {taken[0]}, which is set for every prompt", "leave it out", key)
    return None


def own_prompt_names_its_reward(scenario: Scenario) -> Problem | None:
    """Only the project's own templates say by themselves how the answer is found in a response."""
    task = scenario.task
    if not isinstance(task, MathsTaskSettings) or task.prompt in PROMPT_TEMPLATES or task.reward is not None:
        return None
    near = nearest(task.prompt, PROMPT_TEMPLATES)
    guess = f"did you mean `{near[0]}`? " if near else ""
    what = (
        f"task.prompt is {task.prompt!r}, a file of your own, and task.reward is null: nothing says what an answer is"
    )
    fix = f"{guess}set task.reward to r1_zero (tags behind </think>) or question_only (a box, or the end)"
    return broken(what, fix, "task.prompt", "task.reward")


def enough_validation_prompts(scenario: Scenario) -> Problem | None:
    """Validation uses each held-out prompt once at most."""
    task = scenario.task
    if not isinstance(task, KeywordsTaskSettings | ArithmeticTaskSettings) or getattr(task, "validation", None):
        return None
    wanted, present = scenario.evaluation.prompts, task.validation_prompts
    if wanted <= present:
        return None
    what = f"evaluation.prompts is {wanted}, must be at most task.validation_prompts {present}"
    fix = f"set evaluation.prompts to at most {present}, or task.validation_prompts to at least {wanted}"
    return broken(what, fix, "evaluation.prompts", "task.validation_prompts")


def one_size_of_vllms_cache(scenario: Scenario) -> Problem | None:
    """vLLM's memory is said in one way, and a share of a GPU needs a GPU."""
    engine = scenario.engine
    if not isinstance(engine, VllmEngineSettings) or engine.gpu_memory_utilization is None:
        return None
    share = f"engine.gpu_memory_utilization is {engine.gpu_memory_utilization:g}"
    if engine.kv_cache_gib is not None:
        what = f"{share} and engine.kv_cache_gib is {engine.kv_cache_gib:g}: both say how much vLLM takes"
        return broken(what, "leave one of them out", "engine.gpu_memory_utilization", "engine.kv_cache_gib")
    if scenario.device_of(scenario.placement.generator, has_gpu=True) == "cpu":
        what = f"{share}, and the Generator is on the CPU"
        fix = "set engine.kv_cache_gib instead, or give the Generator a GPU (placement.generator.gpus: 1)"
        return broken(what, fix, "engine.gpu_memory_utilization")
    return None


def workers_have_gpus(scenario: Scenario) -> Problem | None:
    """Workers that compute on GPUs have a whole one each, which Ray gives to the Generator alone."""
    workers, placement = workers_of(scenario), scenario.placement
    if workers == 1 or scenario.device_of(placement.generator, has_gpu=True) == "cpu":
        return None
    key, gpus, count = "engine.tensor_parallel", placement.generator.gpus, placement.generator.count
    if not scenario.uses_ray:
        what = f"{key} is {workers} with transport.type in_process, where all parts have the first GPU"
        fix = f"set transport.type to nixl and placement.generator.gpus to {workers}, or placement.device to cpu"
        return broken(what, fix, key, "transport.type", "placement.device")
    if gpus != workers:
        what = f"placement.generator.gpus is {gpus:g}, must be {workers}, one for each worker of {key}"
        learner = placement.learner.ranks * placement.learner.gpus
        total = f"{count} x {workers} for Generators and {learner:g} for the Learner"
        return broken(what, f"set it to {workers}: the run then reserves {total}", "placement.generator.gpus", key)
    if placement.colocated:
        what = f"{key} is {workers} with placement.colocated: Ray gives parts that share GPUs a part of one each"
        return broken(what, "set placement.colocated to false", key, "placement.colocated")
    return None


def token_bounds(scenario: Scenario) -> Problem | None:
    """A response can be long enough."""
    low, high = scenario.sampling.min_tokens, scenario.sampling.max_tokens
    if low <= high:
        return None
    what = f"sampling.min_tokens is {low}, must be at most sampling.max_tokens {high}"
    fix = f"set sampling.min_tokens to at most {high}, or sampling.max_tokens to at least {low}"
    return broken(what, fix, "sampling.min_tokens", "sampling.max_tokens")


def pinned_lengths_fit(scenario: Scenario) -> Problem | None:
    """Pinned lengths are a range of tokens that fits into a response, of an engine that samples."""
    pinned, most = scenario.sampling.pinned_lengths, scenario.sampling.max_tokens
    if pinned is None:
        return None
    shown = f"sampling.pinned_lengths is {list(pinned)}"
    if scenario.engine.type == "paced":
        what = f"{shown} with engine.type paced, whose responses all have one length"
        return broken(what, "leave it out", "sampling.pinned_lengths", "engine.type")
    if pinned[0] <= pinned[1] <= most:
        return None
    what = f"{shown}, must rise and end at most at sampling.max_tokens {most}"
    fix = f"write for example pinned_lengths: [{min(4, most)}, {most}]"
    return broken(what, fix, "sampling.pinned_lengths", "sampling.max_tokens")


def pinned_lengths_end_responses(scenario: Scenario) -> Problem | None:
    """Where lengths are drawn, nothing else ends a response."""
    sampling = scenario.sampling
    for key, ends, value in (
        ("sampling.stop", bool(sampling.stop), list(sampling.stop)),
        ("sampling.min_tokens", sampling.min_tokens > SamplingSettings().min_tokens, sampling.min_tokens),
    ):
        if sampling.pinned_lengths is not None and ends:
            what = f"{key} is {value}, and sampling.pinned_lengths alone says where a response ends"
            return broken(what, "leave one of the two out", key, "sampling.pinned_lengths")
    return None


def held_out_once(scenario: Scenario) -> Problem | None:
    """With a file of its own, validation takes nothing of the training file."""
    task = scenario.task
    if not isinstance(task, JsonlTaskSettings | MathsTaskSettings) or task.validation is None:
        return None
    fraction = task.validation_fraction
    if fraction == JsonlTaskSettings.model_fields["validation_fraction"].default:
        return None
    what = f"task.validation_fraction is {fraction:g}, and task.validation names a file"
    return broken(what, "leave one of the two out", "task.validation_fraction", "task.validation")


TASK_AND_MODEL_RULES = (
    sorting_goes_together,
    trained_weights_are_no_float16,
    sorting_engine,
    paced_goes_together,
    warm_start_suits_the_task,
    keyword_files_come_together,
    keyword_prompts_are_there,
    rewards_have_names,
    chat_template_of_a_folder,
    own_prompt_names_its_reward,
    enough_validation_prompts,
    one_size_of_vllms_cache,
    workers_have_gpus,
    token_bounds,
    pinned_lengths_fit,
    pinned_lengths_end_responses,
    held_out_once,
)
