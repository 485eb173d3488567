"""A policy that GRPO can begin with: a preset trained on examples of its task, deterministic and kept on disk.

From random weights the reward is 0 for every rollout, and a group of equal rewards teaches nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from harness.core.cache_folder import default_cache_folder
from harness.core.progress import progress_bars
from harness.learner.warm_start import lessons as lessons_module
from harness.learner.warm_start import training as training_module
from harness.learner.warm_start.cache import read_entry, write_entry
from harness.learner.warm_start.lessons import RECIPES, Lessons, Recipe, lessons_of
from harness.learner.warm_start.training import Listener, WarmStartTraining, initialize_as_copier
from harness.models.config import preset_shape
from harness.models.decoder import DecoderLM, decoder_without_weights

VERSION = 2
"""Part of the cache key: raise it when a change outside the hashed sources changes the result."""


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


def initial_policy(preset: str, seed: int = 0) -> tuple[DecoderLM, PreTrainedTokenizerBase]:
    """Return the preset untrained, as a warm start with this seed begins, and its tokenizer.

    Raises:
        UserError: there is no such preset.
    """
    tokenizer = lessons_of(preset).train_tokenizer()
    model = DecoderLM(preset_shape(preset), seed=None)
    initialize_as_copier(model, seed)
    return model.eval(), tokenizer


def policy_without_weights(preset: str) -> tuple[DecoderLM, PreTrainedTokenizerBase]:
    """Return the preset on the device ``meta``, and its tokenizer."""
    return decoder_without_weights(preset_shape(preset)), lessons_of(preset).train_tokenizer()


def warm_start_policy(
    preset: str,
    seed: int = 0,
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
    lessons = lessons_of(preset, recipe, keywords_per_prompt)
    recipe = recipe or RECIPES[preset]
    entry = (
        Path(cache_dir or default_cache_folder()) / f"warm-start-{preset}-{content_key(preset, recipe, seed, lessons)}"
    )
    if (kept := read_entry(entry)) is not None:
        model, tokenizer, stored = kept
        assert isinstance(model, DecoderLM)
        examples = tuple((prompt, response) for prompt, response in stored.pop("examples"))
        return model, tokenizer, WarmStartReport(**stored, examples=examples)
    with torch_threads(threads), shown_progress(preset, lessons, Console(stderr=True), quiet=not progress) as listener:
        started, cpu_started = time.perf_counter(), time.process_time()
        model, tokenizer = initial_policy(preset, seed)
        training = WarmStartTraining(model.train(), tokenizer, lessons, recipe, seed, listener, should_stop)
        evaluation = training.run()
        report = WarmStartReport(
            preset=preset,
            seed=seed,
            parameters=model.config.num_parameters,
            steps=training.steps,
            **asdict(evaluation),
            precision=str(recipe.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - cpu_started,
        )
    write_entry(entry, training.average.model, tokenizer, asdict(replace(report, from_cache=True)))
    return training.average.model, tokenizer, report


def content_key(preset: str, recipe: Recipe, seed: int, lessons: Lessons) -> str:
    """Return 16 hex digits that change with anything the warm-started policy depends on."""
    parts = {
        "version": VERSION,
        "torch": torch.__version__,
        "model": asdict(preset_shape(preset)),
        "recipe": asdict(recipe),
        "precision": str(recipe.dtype),
        "seed": seed,
        **lessons.key,
        "sources": [inspect.getsource(each) for each in (*lessons.sources, lessons_module, training_module)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def shown_progress(preset: str, lessons: Lessons, console: Console, *, quiet: bool) -> Iterator[Listener]:
    """Say a line before and after; the bar between is the reward on its way to where right examples end."""
    title = f"warm start of {preset} ({preset_shape(preset).num_parameters / 1e6:.1f}M parameters)"
    console.quiet = quiet
    reward = 0.0

    def say(line: str) -> None:
        console.print(f"{title}: {line}", highlight=False, markup=False)

    say("it is trained first, once, and then kept; about half a minute for the preset small, minutes for maths")
    with progress_bars(console, quiet=quiet, counts=False, facts=True, transient=True) as bars:
        task = bars.add_task(title, total=lessons.taught_reward, facts="starting")

        def show(step: int, loss: float, measured: float | None, wanted: str) -> None:
            nonlocal reward
            reward = reward if measured is None else measured
            facts = f"step {step}, loss {loss:.2f}, validation reward {reward:.2f}, to {wanted}"
            bars.update(task, completed=reward, facts=facts)

        yield show
    say(f"validation reward {reward:.2f}")


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Compute with so many threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
