"""One data set from the command's arguments to its folder."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.compare.tables import Table
from harness.core.errors import Interrupted, UserError
from harness.core.plain_text import plain
from harness.core.seeds import derive_seed
from harness.core.types import Prompt, SamplingParams
from harness.engines.requests import check_sampling
from harness.evaluate.dataset.keywords import REASONS, Ask, Split, Yield, check_split_sizes, fill, split_sizes
from harness.evaluate.dataset.writing import check_target, write_dataset
from harness.probes.provenance import package_versions
from harness.report.console import Output
from harness.report.text import print_table
from harness.run.errors import settings_as_arguments, signals_as_interrupts
from harness.run.standalone_sampler import Sampler, make_sampler, model_name
from harness.tasks.keywords import check_keyword_count

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
        sizes = split_sizes(options.rows)
        check_split_sizes(sizes, options.keywords)
        sampling = _sampling(options)
    check_target(options.out)
    with signals_as_interrupts(), settings_as_arguments():
        try:
            sampler = make_sampler(
                options.model,
                options.engine,
                precision=options.precision,
                device=options.device,
                max_batch=options.batch * options.samples,
            )
            with closing(sampler):
                found = _ask_model(options, sampler, sizes, sampling, errors)
        except KeyboardInterrupt:
            raise Interrupted("nothing was written") from None
        write_dataset(options.out, {split: each.rows for split, each in found.items()}, _facts(options, sampler, found))
    output = Output()
    print_table(output, yield_table(found))
    for split, each in found.items():
        output.print(f"{plain(str(options.out / split))}.jsonl: {len(each.rows):,} rows", highlight=False, markup=False)


def _sampling(options: argparse.Namespace) -> SamplingParams:
    """Return how answers are sampled.

    Raises:
        UserError: a number is out of its bounds.
    """
    if options.max_tokens < MIN_TOKENS:
        what = f"--max-tokens is {options.max_tokens}, must be at least {MIN_TOKENS}"
        raise UserError(what, "--max-tokens", "--max-tokens 48")
    sampling = SamplingParams(options.temperature, options.top_p, MIN_TOKENS, options.max_tokens, ("\n",))
    check_sampling(sampling, options.samples)
    return sampling


def yield_table(found: dict[Split, Yield]) -> Table:
    """Return what came of asking, split by split."""
    rows = [
        ("prompts asked", *(f"{each.asked:,}" for each in found.values())),
        ("answers looked at", *(f"{each.answers:,}" for each in found.values())),
        ("kept", *(f"{len(each.rows):,}" for each in found.values())),
    ]
    for reason in REASONS:
        counts = [each.rejected[reason] for each in found.values()]
        if any(counts):
            rows.append((f"rejected: {reason}", *(f"{count:,}" for count in counts)))
    return Table("Keyword data set, written by a model", ("", *found), tuple(rows))


def _ask_model(
    options: argparse.Namespace,
    sampler: Sampler,
    sizes: dict[Split, int],
    sampling: SamplingParams,
    errors: Console,
) -> dict[Split, Yield]:
    found: dict[Split, Yield] = {}
    said: set[str] = set()
    for split, wanted in sizes.items():
        ask = _asking(sampler, sampling, options, split)
        with _bar(errors, options.quiet) as bar:
            task = bar.add_task(split, total=wanted)
            found[split] = fill(
                split,
                wanted,
                options.keywords,
                options.seed,
                options.batch,
                ask,
                said,
                lambda each, bar=bar, task=task: bar.update(task, completed=len(each.rows)),  # type: ignore[misc]
            )
    return found


def _asking(sampler: Sampler, sampling: SamplingParams, options: argparse.Namespace, split: Split) -> Ask:
    encode = chat_encoder(sampler.policy.tokenizer) if options.chat else sampler.policy.tokenizer.encode

    def ask(prompts: Sequence[Prompt], request: int) -> list[list[str]]:
        token_ids = [encode(prompt.text) for prompt in prompts]
        seed = derive_seed("keyword data set", options.seed, split, request)
        groups = sampler.engine.generate(token_ids, options.samples, sampling, seed)
        return [[completion.text for completion in group] for group in groups]

    return ask


def chat_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return what encodes a prompt as a user's turn of a chat, up to where the model answers.

    Raises:
        UserError: the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("the model's tokenizer has no chat template", "--chat", "leave --chat out")

    def encode(text: str) -> list[int]:
        turns = [{"role": "user", "content": text}]
        encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    return encode


def _bar(errors: Console, quiet: bool) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=quiet or not errors.is_terminal,
    )


def _facts(options: argparse.Namespace, sampler: Sampler, found: dict[Split, Yield]) -> dict[str, Any]:
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "quiet", "kind")}
    return {
        "schema": "harness.dataset",
        "schema_version": 1,
        "kind": "keywords",
        "settings": settings | {"model": model_name(options.model), "device": sampler.device, **sampler.checksums},
        "versions": package_versions(),
        "splits": {
            split: {"asked": each.asked, "answers": each.answers, "rejected": dict(each.rejected)}
            for split, each in found.items()
        },
    }
