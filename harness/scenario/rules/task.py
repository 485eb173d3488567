"""Rules of what is trained on what: task, policy, engine and sampling."""

from __future__ import annotations

import math

from harness.core.named_files import nearest
from harness.scenario.derived import workers_of
from harness.scenario.rules.rule import Rule, must, value_of
from harness.scenario.schema import Scenario
from harness.settings.model import PresetModelSettings
from harness.settings.task import (
    KEYWORD_BLOCKS,
    KEYWORDS_OF_A_BLOCK,
    OF_CHATS,
    PROMPT_TEMPLATES,
    TAKEN_NAMES,
    ArithmeticTaskSettings,
    JsonlTaskSettings,
    KeywordsTaskSettings,
    MathsTaskSettings,
)


def _wrong_warm_start(scenario: Scenario) -> object:
    """A warm-started preset has learnt one kind of text; on the other kind every reward would be 0."""
    model, task = scenario.model, scenario.task.type
    if (
        not isinstance(model, PresetModelSettings)
        or not model.warm_start
        or task in ("jsonl", "sorting")
        or ":" in task
    ):
        return None
    if (model.preset == "maths") == (task in ("maths", "arithmetic")):
        return None
    learnt, other = ("arithmetic", "small") if model.preset == "maths" else ("to use given words", "maths")
    return {"learnt": learnt, "other": other}


def _of_keywords(scenario: Scenario) -> bool:
    return isinstance(scenario.task, KeywordsTaskSettings)


def _sets_of_words(scenario: Scenario) -> object:
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
            return {"name": name, "count": getattr(task, name), "most": most}
    return None


def _labels(scenario: Scenario) -> list[str] | None:
    task = scenario.task
    listed = isinstance(task, JsonlTaskSettings) and not isinstance(task.reward, str)
    return [part.label for part in task.reward] if listed else None  # type: ignore[union-attr]


def _repeated(labels: list[str]) -> object:
    twice = [label for label in labels if labels.count(label) > 1]
    return twice and {"label": twice[0], "times": labels.count(twice[0])}


def _unknown_prompt(scenario: Scenario) -> object:
    """Only the project's own templates say by themselves how the answer is found in a response."""
    task = scenario.task
    if not isinstance(task, MathsTaskSettings) or task.prompt in PROMPT_TEMPLATES or task.reward is not None:
        return None
    near = nearest(task.prompt, PROMPT_TEMPLATES)
    return {"prompt": repr(task.prompt), "guess": f"did you mean `{near[0]}`? " if near else ""}


def _workers(scenario: Scenario) -> dict[str, object] | None:
    """Return the workers of the engine's model, if there are several on GPUs, and the GPUs that the run reserves."""
    workers, placement = workers_of(scenario), scenario.placement
    if workers == 1 or scenario.device_of(placement.generator, has_gpu=True) == "cpu":
        return None
    return {"workers": workers, "of_learner": placement.learner.ranks * placement.learner.gpus}


_ENDS = ", which alone say where a response ends"
RULES = (
    Rule(
        "sorting_goes_together",  # a paced model trains nothing, and its engine reads no prompt
        lambda s: (s.task.type == "sorting") != (s.model.type == "sorting") and s.model.type != "paced",
        "task.type is {task.type} and model.type is {model.type}: the sorting task and its model go together",
        "set both to sorting, or neither",
    ),
    Rule(  # most updates are too small for float16; torch's loss scaling takes no gradients of float16 either
        "trained_weights_are_no_float16",
        lambda s: value_of(s, "model.dtype") == "float16",
        "model.dtype is float16: weights of float16 lose small updates, and Adam divides by an epsilon that is 0 there",
        "set model.precision to float16 (float32 weights, float16 arithmetic, loss scaling), or model.dtype to "
        "bfloat16",
    ),
    Rule(
        "sorting_engine",
        lambda s: s.model.type == "sorting" and s.engine.type not in ("native", "paced"),
        "engine.type is {engine.type}, must be native with model.type sorting, which is no language model",
        "set engine.type to native",
    ),
    Rule(
        "paced_goes_together",
        lambda s: (s.model.type == "paced") != (s.engine.type == "paced"),
        "model.type is {model.type} and engine.type is {engine.type}: paced parts go together",
        "set both to paced, or neither",
    ),
    Rule(
        "warm_start_suits_the_task",
        _wrong_warm_start,
        "the warm start of model.preset {model.preset} teaches {learnt}, and task.type is {task.type}",
        "set model.preset to {other}, or model.warm_start to false",
    ),
    *(
        must("keyword_files_come_together", key, None, beside, way_out, why, _of_keywords)
        for key, beside, way_out, why in (
            ("task.train", "task.validation null", "task.validation too", ": the keyword task reads both or none"),
            ("task.validation", "task.train null", "task.train too", ": the keyword task reads both or none"),
            ("task.train_prompts", "task.train not null", "", ": all prompts come from the files"),
            ("task.validation_prompts", "task.train not null", "", ": all prompts come from the files"),
            ("task.seed", "task.train not null", "", ": all prompts come from the files"),
        )
    ),
    Rule(
        "keyword_prompts_are_there",
        _sets_of_words,
        "task.{name} is {count}, and there are {most} sets of {task.keywords_per_prompt} words",
        "set task.{name} to at most {most}",
    ),
    Rule(
        "rewards_have_names",
        lambda s: _labels(s) == [],
        "task.reward is an empty list",
        "name at least one function",
    ),
    Rule(
        "rewards_have_names",
        lambda s: next(({"label": label} for label in _labels(s) or () if label in TAKEN_NAMES), None),
        "task.reward has a part called '{label}', and reward/{label} is a metric of every run",
        "give it another `name`",
    ),
    Rule(
        "rewards_have_names",
        lambda s: _repeated(_labels(s) or []),
        "task.reward has {times} parts called '{label}', and one metric reward/{label}",
        "give each a `name` of its own",
    ),
    must(
        "chat_template_of_a_folder",
        "task.chat_template",
        None,
        "model.type not folder",
        "model.type to folder",
        ", whose tokenizer has no chat template",
    ),
    *(
        must("chat_template_of_a_folder", key, None, "task.chat_template false", "task.chat_template to true")
        for key in ("task.system_prompt", "task.chat_template_kwargs")
    ),
    Rule(
        "chat_template_of_a_folder",
        lambda s: next(
            ({"name": name} for name in sorted(getattr(s.task, "chat_template_kwargs", ())) if name in OF_CHATS), None
        ),
        "task.chat_template_kwargs has {name}, which is set for every prompt",
        "leave it out",
    ),
    Rule(
        "own_prompt_names_its_reward",
        _unknown_prompt,
        "task.prompt is {prompt}, a file of your own, and task.reward is null: nothing says what an answer is",
        "{guess}set task.reward to r1_zero (tags behind </think>) or question_only (a box, or the end)",
    ),
    Rule(
        "enough_validation_prompts",
        lambda s: (
            isinstance(s.task, KeywordsTaskSettings | ArithmeticTaskSettings)
            and not getattr(s.task, "validation", None)
            and s.evaluation.prompts > s.task.validation_prompts
        ),
        "evaluation.prompts is {evaluation.prompts}, must be at most task.validation_prompts {task.validation_prompts}",
        "set evaluation.prompts to at most {task.validation_prompts}, or task.validation_prompts to at least "
        "{evaluation.prompts}",
    ),
    must(
        "one_size_of_vllms_cache",
        "engine.kv_cache_gib",
        None,
        "engine.gpu_memory_utilization not null",
        "engine.gpu_memory_utilization to null",
        ": both say how much vLLM takes",
    ),
    Rule(
        "one_size_of_vllms_cache",
        lambda s: (
            value_of(s, "engine.gpu_memory_utilization") and s.device_of(s.placement.generator, has_gpu=True) == "cpu"
        ),
        "engine.gpu_memory_utilization is {engine.gpu_memory_utilization}, and the Generator is on the CPU",
        "set engine.kv_cache_gib instead, or give the Generator a GPU (placement.generator.gpus: 1)",
    ),
    Rule(
        "workers_have_gpus",
        lambda s: not s.uses_ray and _workers(s),
        "engine.tensor_parallel is {workers} with transport.type in_process, where all parts have the first GPU",
        "set transport.type to nixl and placement.generator.gpus to {workers}, or placement.device to cpu",
        ("placement.device",),
    ),
    Rule(
        "workers_have_gpus",
        lambda s: (workers := _workers(s)) and workers["workers"] != s.placement.generator.gpus and workers,
        "placement.generator.gpus is {placement.generator.gpus}, must be {workers}, one for each worker of "
        "engine.tensor_parallel",
        "set it to {workers}: the run then reserves {placement.generator.count} x {workers} for Generators and "
        "{of_learner} for the Learner",
    ),
    Rule(
        "workers_have_gpus",
        lambda s: s.placement.colocated and _workers(s),
        "engine.tensor_parallel is {workers} with placement.colocated: Ray gives parts that share GPUs a part of one "
        "each",
        "set placement.colocated to false",
    ),
    Rule(
        "token_bounds",
        lambda s: s.sampling.min_tokens > s.sampling.max_tokens,
        "sampling.min_tokens is {sampling.min_tokens}, must be at most sampling.max_tokens {sampling.max_tokens}",
        "set sampling.min_tokens to at most {sampling.max_tokens}, or sampling.max_tokens to at least "
        "{sampling.min_tokens}",
    ),
    must(
        "pinned_lengths_fit",
        "sampling.pinned_lengths",
        None,
        "engine.type paced",
        why=", whose lengths are equal",
    ),
    Rule(
        "pinned_lengths_fit",
        lambda s: (
            s.sampling.pinned_lengths
            and not s.sampling.pinned_lengths[0] <= s.sampling.pinned_lengths[1] <= s.sampling.max_tokens
            and {"short": min(4, s.sampling.max_tokens)}
        ),
        "sampling.pinned_lengths is {sampling.pinned_lengths}, must rise and end at most at sampling.max_tokens "
        "{sampling.max_tokens}",
        "for example --set sampling.pinned_lengths=[{short},{sampling.max_tokens}]",
    ),
    *(
        must("pinned_lengths_end_responses", key, bound, "sampling.pinned_lengths not null", why=_ENDS)
        for key, bound in (("sampling.stop", None), ("sampling.min_tokens", "0 or 1"))
    ),
    must("held_out_once", "task.validation_fraction", None, "task.validation not null", "task.validation to null"),
)
