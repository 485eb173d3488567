"""One evaluation from its arguments to its files and its tables."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.core.errors import Interrupted, UserError
from harness.core.plain_text import plain
from harness.core.types import SamplingParams
from harness.engines.requests import check_sampling
from harness.evaluate.categories import results
from harness.evaluate.progress import EvaluationProgress
from harness.evaluate.questions import Questions, read_questions
from harness.evaluate.record import EVALUATION, Record, read_evaluation
from harness.evaluate.sampling import sample_and_grade
from harness.evaluate.settings import Settings
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.results.anonymous import safe_name
from harness.run.errors import settings_as_arguments, signals_as_interrupts
from harness.run.standalone_sampler import Sampler, make_sampler, model_name

DEFAULT_FOLDER = Path("results") / "evaluations"
LONGEST_RESPONSE = 1024
"""Most response tokens where nothing is said and the context holds them."""


def run_evaluation(options: argparse.Namespace, errors: Console) -> None:
    """Carry out the command.

    Raises:
        UserError: an argument, file or model cannot be used, or the folder holds something else.
        RunStopped: the model's logits are not numbers, or its warm start failed.
        Interrupted: Ctrl-C or SIGTERM; the message says how to go on.
    """
    with signals_as_interrupts(), settings_as_arguments():
        try:
            evaluation, folder = _evaluate(options, errors)
        except KeyboardInterrupt:
            raise Interrupted("nothing was being sampled; the same command starts again, or goes on") from None
    if options.format == "json":
        print(json.dumps(evaluation, indent=2, allow_nan=False))
        return
    from harness.evaluate.show import print_evaluation
    from harness.report.console import Output

    print_evaluation(Output(), evaluation, options.examples)
    print(f"\nresults: {plain(str(folder))}")


def _evaluate(options: argparse.Namespace, errors: Console) -> tuple[dict[str, Any], Path]:
    """Do what is still to do; return the content of ``evaluation.json`` and where it is."""
    _check_options(options)
    questions = read_questions(options.data, options.task, options.prompt, options.reward).first(options.limit)
    sampler = make_sampler(
        options.model,
        options.engine,
        precision=options.precision,
        device=options.device,
        max_batch=options.batch * options.samples,
    )
    with closing(sampler):
        token_ids = [sampler.policy.tokenizer.encode(prompt.text) for prompt in questions.prompts]
        max_tokens = _max_tokens(options.max_tokens, token_ids, sampler.policy.context)
        settings = _settings(options, questions, sampler, max_tokens)
        folder = options.out or DEFAULT_FOLDER / _folder_name(settings)
        with closing(Record(folder, settings, _facts())) as record:
            _say_what_is_there(record, errors, options.quiet)
            if not (options.quiet or options.max_tokens or record.is_complete) and max_tokens < LONGEST_RESPONSE:
                said = (
                    f"a response may have {max_tokens} tokens: more do not fit the context of {sampler.policy.context}"
                )
                errors.print(Text(said), soft_wrap=True)
            try:
                _do_the_rest(record, sampler, token_ids, questions, errors, options.quiet)
            except (KeyboardInterrupt, Interrupted):
                raise Interrupted(_how_to_go_on(record)) from None
            record.finish(results(record.rows, record.batches, questions.prompts, options.examples))
    return read_evaluation(folder), folder


def _do_the_rest(
    record: Record,
    sampler: Sampler,
    token_ids: Sequence[Sequence[int]],
    questions: Questions,
    errors: Console,
    quiet: bool,
) -> None:
    if record.is_complete:
        return
    with (
        closing(questions.rewards(lambda: False)) as rewards,
        EvaluationProgress(errors, record.settings.prompts, len(record.rows), quiet) as progress,
    ):
        sample_and_grade(sampler.engine, token_ids, questions.prompts, rewards, record, progress.show)


def _check_options(options: argparse.Namespace) -> None:
    """Refuse numbers outside of their bounds before anything is loaded.

    Raises:
        UserError: with the value, the bound and the argument.
    """
    max_tokens = options.max_tokens or max(LONGEST_RESPONSE, options.min_tokens)
    if not math.isfinite(options.temperature) or not math.isfinite(options.top_p):
        raise UserError("temperature and top-p must be numbers", "--temperature, --top-p", "--temperature 1 --top-p 1")
    sampling = SamplingParams(options.temperature, options.top_p, options.min_tokens, max_tokens)
    check_sampling(sampling, options.samples)
    if options.examples < 0:
        raise UserError(f"--examples is {options.examples}, must be at least 0", "--examples", "--examples 3")


def _max_tokens(asked: int | None, token_ids: Sequence[Sequence[int]], context: int | None) -> int:
    """Return the longest response: as asked for, or as long as the context allows.

    Raises:
        UserError: the longest prompt does not leave so much room.
    """
    if context is None:
        return asked or LONGEST_RESPONSE
    longest, prompt_id = max((len(ids), -number) for number, ids in enumerate(token_ids))
    room = context - longest
    wanted = asked or min(LONGEST_RESPONSE, room)
    if wanted <= room and room > 0:
        return wanted
    fix = f"set --max-tokens to at most {room}" if room > 0 else "choose a model with a longer context"
    raise UserError(
        f"prompt {-prompt_id} (counted from 0) has {longest} tokens; with {max(wanted, 1)} response tokens that is "
        f"{longest + max(wanted, 1)}, more than the model's context of {context}",
        "--max-tokens" if room > 0 else "--model",
        f"{fix}, or leave long prompts out of the file",
    )


def _settings(options: argparse.Namespace, questions: Questions, sampler: Sampler, max_tokens: int) -> Settings:
    return Settings(
        model=model_name(options.model),
        **sampler.checksums,
        data=questions.name,
        data_sha256=questions.sha256,
        prompts=len(questions.prompts),
        task=questions.task,
        reward=options.reward,
        prompt=questions.template,
        engine=options.engine,
        precision=options.precision,
        device=sampler.device,
        temperature=options.temperature,
        top_p=options.top_p,
        min_tokens=options.min_tokens,
        max_tokens=max_tokens,
        stop=questions.stop,
        samples=options.samples,
        seed=options.seed,
        batch=options.batch,
    )


def _facts() -> dict[str, Any]:
    code = code_state()
    return {
        "versions": package_versions(),
        "machine": machine_facts(),
        "code": {"commit": code.commit, "dirty": code.dirty},
    }


def _folder_name(settings: Settings) -> str:
    data = Path(settings.data).stem
    return f"{safe_name(data)}-{safe_name(settings.model)}-{settings.digest[:8]}"


def _say_what_is_there(record: Record, errors: Console, quiet: bool) -> None:
    if quiet or not (record.rows or record.dropped):
        return
    done, all_of_them = len(record.rows), record.settings.prompts
    if record.is_complete:
        said = f"all {all_of_them:,} prompts are in {record.folder} already"
    else:
        said = f"going on after {done:,} of {all_of_them:,} prompts in {record.folder}"
    if record.dropped:
        said += f"; {record.dropped} lines of an unfinished batch were dropped"
    if record.changed_facts and not record.is_complete:
        said += f"; it was begun with other {', '.join(record.changed_facts)}"
    errors.print(Text(plain(said)), soft_wrap=True)


def _how_to_go_on(record: Record) -> str:
    done, all_of_them = len(record.rows), record.settings.prompts
    return (
        f"{done:,} of {all_of_them:,} prompts are done and kept in {record.folder}; "
        f"the same command goes on from there ({EVALUATION} gets its results at the end)"
    )
