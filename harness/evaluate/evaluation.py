"""One evaluation from its arguments to its files and its tables: batch by batch, sampled, graded and recorded."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from harness.core.errors import Interrupted, UserError
from harness.core.interrupts import signals_as_interrupts
from harness.core.progress import progress_bars
from harness.core.seeds import derive_seed
from harness.core.terminal_text import plain
from harness.core.types import Completion, Prompt, SamplingParams
from harness.engines.limits import check_sampling
from harness.engines.stop_strings import SpecialTokens
from harness.evaluate.questions import Questions, read_questions
from harness.evaluate.record import (
    EVALUATION,
    BatchRow,
    EvaluationSettings,
    PromptRow,
    Record,
    Response,
    date_of,
    read_evaluation,
)
from harness.evaluate.results import line_of, print_evaluation, results
from harness.models.chat import asks_date, chat_encoder, on_date, text_encoder, today
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.report.console import Output
from harness.results.anonymous import Scrubber, safe_name
from harness.run.errors import settings_as_arguments
from harness.run.policy import ResponseEnds, response_ends
from harness.run.standalone_sampler import Sampler, make_sampler, model_name
from harness.settings.task import OF_CHATS
from harness.tasks.rows import Fields
from harness.tasks.scoring import RewardFailed

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
    if options.json:
        print(json.dumps(evaluation, indent=2, allow_nan=False))
        return
    if options.quiet:
        print(plain(f"{line_of(evaluation)} results: {folder}"))
        return
    print_evaluation(Output(), evaluation, options.examples)
    print(f"\nresults: {plain(str(folder))}")


def sampler_of(options: argparse.Namespace) -> Sampler:
    """Return what samples for a command line; see ``make_sampler`` for what it raises."""
    return make_sampler(
        options.model,
        options.engine,
        precision=options.precision,
        max_batch=options.batch * options.samples,
        chat=options.chat,
    )


def _evaluate(options: argparse.Namespace, errors: Console) -> tuple[dict[str, Any], Path]:
    """Do what is still to do; return the content of ``evaluation.json`` and where it is."""

    def say(text: str) -> None:
        if text and not options.quiet:
            errors.print(Text(plain(text)), soft_wrap=True)

    _check_options(options)
    fields = Fields(
        options.prompt_field or "", options.answer_field, chat=options.chat, system=options.system is not None
    )
    questions = read_questions(options.data, options.task, options.prompt, options.reward, fields)
    questions = replace(questions, prompts=questions.prompts[: options.limit])
    if questions.repeated:
        say(f"{questions.repeated:,} rows repeat an earlier prompt and are not asked again")
    with closing(sampler_of(options)) as sampler:
        ends = response_ends(sampler.policy, questions.stop, "ask with --chat where they are to be chats")
        now = today()  # it may be midnight
        with on_date(now):
            token_ids, settings = _asked(options, questions, sampler, ends)
        name = f"{safe_name(Path(settings.data).stem)}-{safe_name(settings.model)}-{settings.digest[:8]}"
        folder = options.out or DEFAULT_FOLDER / name
        if (begun := date_of(folder)) not in (None, now):
            with on_date(begun):
                token_ids, settings = _asked(options, questions, sampler, ends)
        facts = {"versions": package_versions(), "machine": machine_facts(), "code": asdict(code_state())}
        with closing(Record(folder, settings, facts)) as record:
            if not record.is_complete:
                say(ends.line)
            say(_what_is_there(record))
            if not record.is_complete:
                if not options.max_tokens and settings.max_tokens < LONGEST_RESPONSE:
                    most, context = settings.max_tokens, sampler.policy.context
                    say(f"a response may have {most} tokens: more do not fit the context of {context}")
                try:
                    _do_the_rest(record, sampler, ends, token_ids, questions, errors, options.quiet)
                except (KeyboardInterrupt, Interrupted):
                    raise Interrupted(
                        f"{len(record.rows):,} of {settings.prompts:,} prompts are done and kept in {folder}; "
                        f"the same command continues from there ({EVALUATION} gets its results at the end)"
                    ) from None
            record.write_results("complete", results(record.rows, record.batches, questions.prompts, options.examples))
    return read_evaluation(folder), folder


def _what_is_there(record: Record) -> str:
    if not record.rows and not record.dropped:
        return ""
    done, all_of_them = len(record.rows), record.settings.prompts
    if record.is_complete:
        text = f"all {all_of_them:,} prompts are in {record.folder} already"
    else:
        text = f"going on after {done:,} of {all_of_them:,} prompts in {record.folder}"
    if record.dropped:
        text += f"; {record.dropped} lines of an unfinished batch were dropped"
    if record.changed_facts and not record.is_complete:
        text += f"; it was begun with other {', '.join(record.changed_facts)}"
    return text


def _do_the_rest(
    record: Record,
    sampler: Sampler,
    ends: ResponseEnds,
    token_ids: Sequence[Sequence[int]],
    questions: Questions,
    errors: Console,
    quiet: bool,
) -> None:
    """Sample and grade the batches that the record lacks; shown are prompts done, tokens per second and the time left.

    Batches begin at fixed prompts and each has its own seed, so an evaluation that was killed and taken up again makes
    the very calls that an uninterrupted one makes.
    """
    settings, scrubber, tokens, seconds = record.settings, Scrubber.of_this_process(), 0, 0.0
    lengths = settings.min_tokens, settings.max_tokens
    sampling = SamplingParams(settings.temperature, settings.top_p, *lengths, settings.stop)
    special = SpecialTokens(sampler.policy.tokenizer, ends.ids) if settings.skip_special_tokens is not None else None
    with (
        closing(questions.rewards(lambda: False)) as rewards,
        progress_bars(errors, quiet=quiet, facts=True, tenths=True) as bar,
    ):
        task = bar.add_task("prompts", total=settings.prompts, completed=len(record.rows), facts="")

        def graded(completion: Completion, prompt: Prompt) -> Response:
            text = completion.text if special is None else special.text(completion.token_ids.tolist())
            marks, failure = None, None
            try:  # each on its own: one that cannot be graded costs no other
                marks = rewards([text], prompt.ground_truth)[0]
            except RewardFailed as error:
                failure = scrubber.text(str(error))
            log_prob = float(np.sum(completion.log_probs, dtype=np.float64))
            return Response(text, len(completion.token_ids), completion.finish_reason, log_prob, marks, failure)

        for number, prompt_ids in list(enumerate(record.due))[len(record.batches) :]:
            began = time.perf_counter()
            wanted = [token_ids[prompt_id] for prompt_id in prompt_ids]
            seed = derive_seed("evaluate", settings.seed, number)
            sampled = sampler.engine.generate(wanted, settings.samples, sampling, seed)
            sampled_at = time.perf_counter()
            rows = [
                PromptRow(prompt_id, len(ids), tuple(graded(each, questions.prompts[prompt_id]) for each in group))
                for prompt_id, ids, group in zip(prompt_ids, wanted, sampled, strict=True)
            ]
            of_batch = sum(response.tokens for row in rows for response in row.responses)
            generate_s, grade_s = sampled_at - began, time.perf_counter() - sampled_at
            batch = BatchRow(number, len(rows), of_batch, round(generate_s, 6), round(grade_s, 6))
            record.append(rows, batch)
            tokens, seconds = tokens + of_batch, seconds + batch.generate_s
            speed = f"{tokens / seconds:,.0f} tokens/s" if seconds else ""
            bar.update(task, completed=len(record.rows), facts=speed)


def _asked(
    options: argparse.Namespace, questions: Questions, sampler: Sampler, ends: ResponseEnds
) -> tuple[list[Sequence[int]], EvaluationSettings]:
    """Return the token ids of the prompts, and the settings of an evaluation of them."""
    tokenizer, template = sampler.policy.tokenizer, questions.template
    chat = partial(chat_encoder, system_prompt=options.system, arguments=options.chat_template_kwargs)
    encode = (chat if options.chat else text_encoder)(tokenizer)
    token_ids: list[Sequence[int]] = [encode(prompt.asked) for prompt in questions.prompts]
    template_text = str(tokenizer.chat_template).encode()
    return token_ids, EvaluationSettings(
        model=model_name(options.model),
        **sampler.checksums,
        data=questions.name,
        data_sha256=questions.sha256,
        prompts=len(questions.prompts),
        task=questions.task,
        reward=options.reward,
        prompt=Path(template.name).name if template else None,
        engine=options.engine,
        precision=options.precision,
        device=sampler.device,
        temperature=options.temperature,
        top_p=options.top_p,
        min_tokens=0,
        max_tokens=_max_tokens(options.max_tokens, token_ids, questions.prompts, sampler.policy.context),
        stop=questions.stop,
        samples=options.samples,
        seed=options.seed,
        batch=options.batch,
        prompt_sha256=template.sha256 if template else None,
        chat_template_sha256=hashlib.sha256(template_text).hexdigest() if options.chat else None,
        system_prompt=options.system,
        chat_date=today().isoformat() if options.chat and asks_date(tokenizer) else None,
        chat_template_kwargs=options.chat_template_kwargs,
        prompt_field=options.prompt_field,
        answer_field=options.answer_field,
        end_tokens=ends.texts,
        skip_special_tokens=False if options.keep_special_tokens else None,
    )


def _check_options(options: argparse.Namespace) -> None:
    """Refuse numbers outside of their bounds before anything is loaded.

    Raises:
        UserError: with the value, the bound and the argument.
    """
    if not math.isfinite(options.temperature) or not math.isfinite(options.top_p):
        raise UserError("temperature and top-p must be numbers", "--temperature, --top-p", "--temperature 1 --top-p 1")
    sampling = SamplingParams(options.temperature, options.top_p, 0, options.max_tokens or LONGEST_RESPONSE)
    check_sampling(sampling, options.samples)
    if options.system is not None and not options.chat:
        raise UserError("--system is a turn of a chat, and --chat is not given", "--system", "add --chat")
    if options.chat_template_kwargs is not None and not options.chat:
        what = "--chat-template-kwargs are for a chat's template, and --chat is not given"
        raise UserError(what, "--chat-template-kwargs", "add --chat")
    taken = sorted(set(OF_CHATS) & set(options.chat_template_kwargs or ()))
    if taken:
        what = f"--chat-template-kwargs has {taken[0]}, which is set for every prompt"
        raise UserError(what, "--chat-template-kwargs", "leave it out")
    if options.examples < 0:
        raise UserError(f"--examples is {options.examples}, must be at least 0", "--examples", "--examples 3")


def _max_tokens(
    asked: int | None, token_ids: Sequence[Sequence[int]], prompts: Sequence[Prompt], context: int | None
) -> int:
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
    place = prompts[-prompt_id].where or f"prompt {-prompt_id} (counted from 0)"
    raise UserError(
        f"{place} has {longest} tokens; with {max(wanted, 1)} response tokens that is "
        f"{longest + max(wanted, 1)}, more than the model's context of {context}",
        "--max-tokens" if room > 0 else "--model",
        f"{fix}, or leave long prompts out of the file",
    )
