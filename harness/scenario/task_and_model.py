"""What is trained on what: task, policy, engine and sampling, with the rules that tie them together."""

from __future__ import annotations

import math

from harness.core.named_files import nearest
from harness.scenario.derived import workers_of
from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario
from harness.settings.engine import VllmEngineSettings
from harness.settings.model import PresetModelSettings
from harness.settings.sampling import SamplingSettings
from harness.settings.task import (
    KEYWORD_BLOCKS,
    KEYWORDS_OF_A_BLOCK,
    OF_CHATS,
    PROMPT_TEMPLATES,
    TAKEN_NAMES,
    ArithmeticTaskSettings,
    ChatSettings,
    JsonlTaskSettings,
    KeywordsTaskSettings,
    MathsTaskSettings,
)


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
    if scenario.model.type != "sorting" or engine in ("native", "paced"):
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
