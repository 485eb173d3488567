"""A policy that GRPO can begin with: a preset trained on examples of its task, deterministic and kept on disk.

From random weights the reward is 0 for every rollout, and a group of equal rewards teaches nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from harness.core.cache_folder import default_cache_folder
from harness.learner.warm_start.cache import read_entry, write_entry
from harness.learner.warm_start.curriculum import RECIPES, Curriculum, Recipe, training_precision
from harness.learner.warm_start.presets import content_key, preset_config, preset_curriculum
from harness.learner.warm_start.progress import WarmStartProgress
from harness.learner.warm_start.training import WarmStartTraining, initialize_as_copier
from harness.models.decoder import DecoderLM, decoder_without_weights

__all__ = [
    "RECIPES",
    "Recipe",
    "WarmStartReport",
    "initial_policy",
    "policy_without_weights",
    "warm_start_policy",
]


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """How a warm start went.

    ``reward`` and ``response_tokens`` are means over one sampled response to each held-out prompt, ``examples`` are
    some of these as (prompt, response). Seconds are those of the training, also when the policy came from the cache.
    """

    preset: str
    seed: int
    parameters: int
    steps: int
    reward: float
    response_tokens: float
    examples: tuple[tuple[str, str], ...]
    precision: str
    threads: int
    seconds: float
    cpu_seconds: float
    from_cache: bool = False


def initial_policy(preset: str, seed: int) -> tuple[DecoderLM, PreTrainedTokenizerBase]:
    """Return the preset untrained, as a warm start with this seed begins, and its tokenizer.

    Raises:
        UserError: there is no such preset.
    """
    model = DecoderLM(preset_config(preset), seed=None)
    initialize_as_copier(model, seed)
    return model.eval(), preset_curriculum(preset).train_tokenizer()


def policy_without_weights(preset: str) -> tuple[DecoderLM, PreTrainedTokenizerBase]:
    """Return the preset on the device ``meta``, and its tokenizer.

    Raises:
        UserError: there is no such preset.
    """
    return decoder_without_weights(preset_config(preset)), preset_curriculum(preset).train_tokenizer()


def warm_start_policy(
    preset: str,
    seed: int,
    *,
    progress: bool = True,
    cache_dir: str | Path | None = None,
    threads: int | None = None,
    keywords_per_prompt: int = 2,
    should_stop: Callable[[], bool] = lambda: False,
    recipe: Recipe | None = None,
) -> tuple[DecoderLM, PreTrainedTokenizerBase, WarmStartReport]:
    """Return a preset's policy trained on demonstrations, from the cache if it was trained before.

    The same arguments give the same policy on the same machine with the same number of threads. No random state
    outside is read or changed.

    Args:
        preset: ``tiny``, ``small``, ``course`` or ``maths``.
        seed: of weights, demonstrations and evaluations.
        progress: say what is trained before and after, with a progress bar between on a terminal.
        cache_dir: where policies are kept; None takes ``default_cache_folder()``.
        threads: of the training; None leaves torch's number as it is.
        keywords_per_prompt: keywords of the prompts that the policy is to begin on; ``maths`` has none.
        should_stop: polled before each step and each sampled token.
        recipe: how to train; None takes the preset's.

    Raises:
        UserError: there is no such preset, or ``keywords_per_prompt`` is out of its bounds.
        RunStopped: training did not reach its reward.
        Interrupted: ``should_stop`` said so.
    """
    curriculum = preset_curriculum(preset, keywords_per_prompt)
    config, recipe = preset_config(preset), recipe or RECIPES[preset]
    folder = Path(cache_dir) if cache_dir is not None else default_cache_folder()
    entry = folder / f"warm-start-{preset}-{content_key(preset, recipe, seed, curriculum)}"
    kept = read_entry(entry)
    if kept is not None:
        model, tokenizer, stored = kept
        examples = tuple((prompt, response) for prompt, response in stored.pop("examples"))
        assert isinstance(model, DecoderLM)
        return model, tokenizer, WarmStartReport(**stored, examples=examples, from_cache=True)
    title = f"warm start of {preset} ({config.num_parameters / 1e6:.1f}M parameters)"
    lessons = curriculum.lessons(recipe, seed)
    with torch_threads(threads), WarmStartProgress(Console(stderr=True), title, lessons, not progress) as bar:
        model, tokenizer, report = _train(preset, seed, recipe, curriculum, bar, should_stop)
    stored = asdict(report)
    del stored["from_cache"]
    write_entry(entry, model, tokenizer, stored)
    return model, tokenizer, report


def _train(
    preset: str,
    seed: int,
    recipe: Recipe,
    curriculum: Curriculum,
    bar: WarmStartProgress,
    should_stop: Callable[[], bool],
) -> tuple[DecoderLM, PreTrainedTokenizerBase, WarmStartReport]:
    started, cpu_started = time.perf_counter(), time.process_time()
    model, tokenizer = initial_policy(preset, seed)
    training = WarmStartTraining(model.train(), tokenizer, recipe, seed, curriculum, bar.show, should_stop)
    evaluation = training.run()
    report = WarmStartReport(
        preset=preset,
        seed=seed,
        parameters=model.config.num_parameters,
        steps=training.steps,
        reward=evaluation.reward,
        response_tokens=evaluation.response_tokens,
        examples=evaluation.examples,
        precision=str(training_precision(recipe)).removeprefix("torch."),
        threads=torch.get_num_threads(),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
    )
    return training.average.model, tokenizer, report


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Compute with so many threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
