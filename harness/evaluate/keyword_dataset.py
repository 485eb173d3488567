"""A data set for keyword inclusion: a model writes sentences, and those with every keyword in them are kept.

The harness draws the keywords and asks; the model answers, several times for each prompt; the first answer that passes
every check becomes the row's. Training prompts take each word from a different block of the word list, and validation
prompts take theirs from one block (``harness.tasks.keywords``): no two words that stand together in validation stand
together in training. The folder of the data set appears whole or not at all.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.interrupts import signals_as_interrupts
from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.core.progress import progress_bars
from harness.core.seeds import derive_seed
from harness.core.terminal_text import plain
from harness.core.types import Prompt, SamplingParams
from harness.engines.limits import check_sampling
from harness.evaluate.evaluation import sampler_of
from harness.models.chat import asks_date, chat_encoder, on_date, text_encoder, today
from harness.probes.provenance import package_versions
from harness.report.console import Output
from harness.report.document import Table
from harness.report.terminal import print_table
from harness.run.errors import settings_as_arguments
from harness.run.standalone_sampler import Sampler, model_name
from harness.tasks.keywords import (
    BLOCK_SIZE,
    check_keyword_count,
    draw_held_out_keywords,
    draw_training_keywords,
    keyword_blocks,
    keyword_prompt,
)

VALIDATION_SHARE = 0.2
MOST_ASKED = 50
"""Giving up: prompts asked for each row that is wanted."""

Split = Literal["train", "validation"]
Ask = Callable[[Sequence[Prompt], int], Sequence[Sequence[str]]]
"""Has the model answer prompts, several answers to each; the number is that of the request, from 0."""
Row = dict[str, str]
"""A ``prompt``, and an ``answer``: a sentence with all of its keywords."""
REASONS = ("empty", "control characters", "keyword missing", "no sentence", "unfinished", "said before")
"""Why an answer is not kept: the first of these that holds."""


@dataclass
class Yield:
    """What came of asking for one split: prompts asked; answers up to each prompt's first good one; those rejected."""

    rows: list[Row] = field(default_factory=list)
    asked: int = 0
    answers: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def split_sizes(rows: int, keywords: int) -> dict[Split, int]:
    """Return how many of so many rows are for training and for validation, 80 to 20.

    Raises:
        UserError: there are too few for both, or more than there are sets of so many words.
    """
    validation = round(VALIDATION_SHARE * rows)
    if rows < 1 or validation < 1:
        raise UserError(f"-n is {rows}; it must be at least 3, so that 20% of it is a row", "-n", "-n 1000")
    sizes: dict[Split, int] = {"train": rows - validation, "validation": validation}
    for split, available in most_prompts(keywords).items():
        if sizes[split] > available:
            sets = f"there are {available} different sets of {keywords} words for {split}"
            fix = "lower -n, or ask for more words with --keywords"
            raise UserError(f"{sizes[split]} {split} rows are asked for; {sets}", "-n", fix)
    return sizes


def fill(split: Split, wanted: int, keywords: int, seed: int, batch: int, ask: Ask, said: set[str]) -> Iterator[Yield]:
    """Ask ``batch`` prompts at a time until ``wanted`` rows are there: the first answer without fault to each prompt.

    ``said`` has every sentence kept so far, folded, and grows. What came so far is yielded after each request.

    Raises:
        RunStopped: the model writes too few good sentences, with the counts.
    """
    yielded, prompts = Yield(), draw_prompts(split, keywords, seed)
    for request in itertools.count():
        asked = list(itertools.islice(prompts, batch))
        if not asked or yielded.asked >= MOST_ASKED * wanted:
            counts = [f"{name} {yielded.rejected[name]:,}" for name in REASONS if yielded.rejected[name]]
            why = f"more than {MOST_ASKED} prompts a row" if asked else "all the prompts there are"
            raise RunStopped(
                f"{len(yielded.rows)} of {wanted} {split} rows were found after {yielded.asked:,} prompts, which is "
                f"{why}; answers that were rejected: {', '.join(counts) or 'none'}\n"
                "  fix:   take a model that follows the prompt, more --samples, or a smaller -n; nothing was written"
            )
        for prompt, answers in zip(asked, ask(asked, request), strict=True):
            if len(yielded.rows) == wanted:
                break
            yielded.asked += 1
            for answer in map(tidy, answers):
                yielded.answers += 1
                reason = fault(answer, prompt.ground_truth, said)
                if reason is None:
                    yielded.rows.append({"prompt": prompt.text, "answer": answer})
                    said.add(answer.casefold())
                    break
                yielded.rejected[reason] += 1
        yield yielded
        if len(yielded.rows) == wanted:
            return


def draw_prompts(split: Split, keywords: int, seed: int) -> Iterator[Prompt]:
    """Yield prompts with different sets of words, until there are no more."""
    rng = random.Random(derive_seed("keyword data set", split, keywords, seed))
    draw = draw_training_keywords if split == "train" else draw_held_out_keywords
    drawn: set[frozenset[str]] = set()
    while len(drawn) < most_prompts(keywords)[split]:
        words = draw(rng, keywords)
        if frozenset(words) not in drawn:
            drawn.add(frozenset(words))
            yield keyword_prompt(words)


def most_prompts(keywords: int) -> dict[Split, int]:
    """Return how many different sets of so many words there are for each split."""
    blocks = len(keyword_blocks())
    return {
        "train": math.comb(blocks, keywords) * BLOCK_SIZE**keywords,
        "validation": blocks * math.comb(BLOCK_SIZE, keywords),
    }


def tidy(answer: str) -> str:
    """Return the first line of the answer that has something on it, without blanks around it."""
    return answer.strip().partition("\n")[0].strip()


def fault(sentence: str, keywords: str, said: set[str]) -> str | None:
    """Return the first of ``REASONS`` for which a tidy answer is not kept, or None; commas part ``keywords``."""
    if not sentence:
        return "empty"
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in sentence):
        return "control characters"
    if not keyword_inclusion_reward_fn(sentence, keywords):
        return "keyword missing"
    if len(sentence.split()) <= len(keywords.split(",")):
        return "no sentence"
    if sentence[-1] not in ".!?":
        return "unfinished"
    return "said before" if sentence.casefold() in said else None


FACTS = "dataset.json"


def check_target(folder: Path) -> None:
    """Refuse a folder that holds something, or cannot be made. Nothing is left behind.

    Raises:
        UserError: why.
    """
    if folder.resolve() == Path.cwd():
        raise UserError("the data set's folder is the current one; it must be new", str(folder), "-o FOLDER")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError("the folder is not empty, and a data set is never overwritten", str(folder), "-o FOLDER")
        existing = next(each for each in (folder, *folder.resolve().parents) if each.exists())
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from error


def write_dataset(folder: Path, splits: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> None:
    """Write a JSONL file for each split and what is known about them; the folder appears when all is written.

    Raises:
        UserError: it cannot be written, or holds something by now.
    """
    folder = folder.resolve()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    files: dict[str, Any] = {}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        for split, rows in splits.items():
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
            (draft / f"{split}.jsonl").write_bytes(content)
            files[f"{split}.jsonl"] = {"rows": len(rows), "sha256": hashlib.sha256(content).hexdigest()}
        (draft / FACTS).write_text(json.dumps({**facts, "files": files}, indent=2, allow_nan=False) + "\n")
        os.replace(draft, folder)  # takes the place of an empty folder, never of a full one
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write the data set: {error.strerror or error}", str(folder), "give another folder: -o FOLDER"
    )


SETTINGS = (
    *("model", "rows", "keywords", "engine", "precision", "chat", "samples"),
    *("temperature", "max_tokens", "seed", "batch"),
)
"""Arguments that decide what is written."""
MIN_TOKENS = 4
"""Before that no line break ends an answer: models like to begin with one."""


def make_keyword_dataset(options: argparse.Namespace, errors: Console) -> None:
    """Carry out ``dataset keywords``.

    Raises:
        UserError: an argument, a model or the folder cannot be used.
        RunStopped: the model writes too few good sentences.
        Interrupted: Ctrl-C or SIGTERM; nothing was written.
    """
    with settings_as_arguments():
        check_keyword_count(options.keywords)
        sizes = split_sizes(options.rows, options.keywords)
        if options.max_tokens < MIN_TOKENS:
            what = f"--max-tokens is {options.max_tokens}, must be at least {MIN_TOKENS}"
            raise UserError(what, "--max-tokens", "--max-tokens 48")
        sampling = SamplingParams(options.temperature, 1.0, MIN_TOKENS, options.max_tokens, ("\n",))
        check_sampling(sampling, options.samples)
    check_target(options.out)
    with signals_as_interrupts(), settings_as_arguments(), on_date(today()):
        try:
            with closing(sampler_of(options)) as sampler:
                splits = _ask_model(options, sampler, sizes, sampling, errors)
        except KeyboardInterrupt:
            raise Interrupted("nothing was written") from None
        dated = options.chat and asks_date(sampler.policy.tokenizer)
        settings = settings_of(options) | {"model": model_name(options.model), "device": sampler.device}
        facts = {
            "schema": "harness.dataset",
            "schema_version": 1,
            "kind": "keywords",
            "settings": settings | sampler.checksums,
            "versions": package_versions(),
            **({"chat_date": today().isoformat()} if dated else {}),
            "splits": {
                split: {"asked": each.asked, "answers": each.answers, "rejected": dict(each.rejected)}
                for split, each in splits.items()
            },
        }
        write_dataset(options.out, {split: each.rows for split, each in splits.items()}, facts)
    if options.quiet:
        kept = ", ".join(f"{len(each.rows):,} rows in {split}" for split, each in splits.items())
        print(plain(f"{kept}: {options.out}"))
        return
    lines = {
        "prompts asked": [each.asked for each in splits.values()],
        "answers looked at": [each.answers for each in splits.values()],
        "kept": [len(each.rows) for each in splits.values()],
        **{f"rejected: {reason}": [each.rejected[reason] for each in splits.values()] for reason in REASONS},
    }
    rows = [(name, *(f"{count:,}" for count in counts)) for name, counts in lines.items() if any(counts)]
    output = Output()
    print_table(output, Table("Keyword data set, written by a model", ("", *splits), tuple(rows)))
    for split, each in splits.items():
        output.print(f"{plain(str(options.out / split))}.jsonl: {len(each.rows):,} rows", highlight=False, markup=False)


def _ask_model(
    options: argparse.Namespace, sampler: Sampler, sizes: dict[Split, int], sampling: SamplingParams, errors: Console
) -> dict[Split, Yield]:
    encode = (chat_encoder if options.chat else text_encoder)(sampler.policy.tokenizer)
    splits: dict[Split, Yield] = {}
    said: set[str] = set()
    for split, wanted in sizes.items():

        def ask(prompts: Sequence[Prompt], request: int, split: Split = split) -> list[list[str]]:
            token_ids = [encode(prompt.asked) for prompt in prompts]
            seed = derive_seed("keyword data set", options.seed, split, request)
            groups = sampler.engine.generate(token_ids, options.samples, sampling, seed)
            return [[completion.text for completion in group] for group in groups]

        with progress_bars(errors, quiet=options.quiet) as bar:
            task = bar.add_task(split, total=wanted)
            for so_far in fill(split, wanted, options.keywords, options.seed, options.batch, ask, said):
                splits[split] = so_far
                bar.update(task, completed=len(so_far.rows))
    return splits


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that decide what is written: what ``dataset.json`` keeps of a command line."""
    return {name: getattr(options, name) for name in SETTINGS}
