"""One evaluation from its arguments to its files and its tables: batch by batch, sampled, graded and recorded."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from harness.core.errors import Interrupted, UserError
from harness.core.interrupts import signals_as_interrupts
from harness.core.progress import progress_bars
from harness.core.protocols import Engine
from harness.core.seeds import derive_seed
from harness.core.terminal_text import plain
from harness.core.types import Completion, Prompt, SamplingParams
from harness.engines.limits import check_sampling
from harness.engines.stop_strings import SpecialTokens
from harness.evaluate.questions import Questions, read_questions
from harness.evaluate.record import (
    EVALUATION,
    BatchRow,
    PromptRow,
    Record,
    Response,
    Settings,
    date_of,
    read_evaluation,
)
from harness.evaluate.results import results
from harness.models.chat import asks_date, chat_encoder, on_date, text_encoder, today
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.results.anonymous import Scrubber, safe_name
from harness.run.errors import settings_as_arguments
from harness.run.policy import ResponseEnds, response_ends
from harness.run.standalone_sampler import Sampler, make_sampler, model_name
from harness.settings.task import OF_CHATS
from harness.tasks.rows import Fields
from harness.tasks.scoring import GroupRewards, RewardFailed


class EvaluationProgress:
    """Shows prompts done, tokens per second and the time left.

    Args:
        console: where to draw; where it cannot, each tenth and each minute is a line.
        prompts: of the whole evaluation.
        done: prompts that were done before.
        quiet: show nothing.
    """

    def __init__(self, console: Console, prompts: int, done: int, quiet: bool) -> None:
        self._done, self._tokens, self._seconds = done, 0, 0.0
        self._bar = progress_bars(console, quiet=quiet, facts=True, tenths=True)
        self._task = self._bar.add_task("prompts", total=prompts, completed=done, facts="")

    def show(self, batch: BatchRow) -> None:
        """Count a batch."""
        self._done += batch.prompts
        self._tokens += batch.tokens
        self._seconds += batch.generate_s
        speed = f"{self._tokens / self._seconds:,.0f} tokens/s" if self._seconds else ""
        self._bar.update(self._task, completed=self._done, facts=speed)

    def __enter__(self) -> EvaluationProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


Listener = Callable[[BatchRow], None]


def sample_and_grade(
    engine: Engine,
    token_ids: Sequence[Sequence[int]],
    prompts: Sequence[Prompt],
    rewards: GroupRewards,
    record: Record,
    listen: Listener,
    text_of: Callable[[Sequence[int]], str] | None = None,
) -> None:
    """Do the batches that the record lacks.

    Batches begin at fixed prompts and each has its own seed, so an evaluation that was killed and taken up again makes
    the very calls that an uninterrupted one makes.

    Args:
        engine: samples.
        token_ids: of every prompt.
        prompts: every prompt.
        rewards: grade the responses to one prompt.
        record: what is done, and where the rest goes.
        listen: called after each batch.
        text_of: makes the text that is graded of a response's tokens; None: as the engine does.

    Raises:
        UserError: the engine refuses a prompt, or a file cannot be written.
        RunStopped: the model's logits are not numbers.
    """
    settings, scrubber = record.settings, Scrubber.of_this_process()
    for number, prompt_ids in list(enumerate(settings.batches))[len(record.batches) :]:
        began = time.perf_counter()
        wanted = [token_ids[prompt_id] for prompt_id in prompt_ids]
        seed = derive_seed("evaluate", settings.seed, number)
        sampled = engine.generate(wanted, settings.samples, settings.sampling, seed)
        if text_of is not None:
            sampled = [
                tuple(replace(each, text=text_of(each.token_ids.tolist())) for each in group) for group in sampled
            ]
        sampled_at = time.perf_counter()
        rows = [
            PromptRow(prompt_id, len(ids), _graded(completions, prompts[prompt_id], rewards, scrubber))
            for prompt_id, ids, completions in zip(prompt_ids, wanted, sampled, strict=True)
        ]
        tokens = sum(response.tokens for row in rows for response in row.responses)
        ended = time.perf_counter()
        batch = BatchRow(number, len(rows), tokens, round(sampled_at - began, 6), round(ended - sampled_at, 6))
        record.append(rows, batch)
        listen(batch)


def _graded(
    completions: Sequence[Completion], prompt: Prompt, rewards: GroupRewards, scrubber: Scrubber
) -> tuple[Response, ...]:
    """Grade the responses to one prompt, each on its own: one that cannot be graded costs no other."""
    return tuple(
        _response(completion, *_grade(completion.text, prompt, rewards, scrubber)) for completion in completions
    )


def _grade(
    text: str, prompt: Prompt, rewards: GroupRewards, scrubber: Scrubber
) -> tuple[dict[str, float] | None, str | None]:
    """Return the rewards, or why there are none."""
    try:
        return rewards([text], prompt.ground_truth)[0], None
    except RewardFailed as error:
        return None, scrubber.text(str(error))


def _response(completion: Completion, rewards: dict[str, float] | None, failure: str | None) -> Response:
    return Response(
        text=completion.text,
        tokens=len(completion.token_ids),
        finish_reason=completion.finish_reason,
        log_prob=float(np.sum(completion.log_probs, dtype=np.float64)),
        rewards=rewards,
        failure=failure,
    )


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
    from harness.evaluate.results import line_of, print_evaluation
    from harness.report.console import Output

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
        device=options.device,
        max_batch=options.batch * options.samples,
        chat=options.chat,
    )


def _evaluate(options: argparse.Namespace, errors: Console) -> tuple[dict[str, Any], Path]:
    """Do what is still to do; return the content of ``evaluation.json`` and where it is."""
    _check_options(options)
    fields = Fields(
        options.prompt_field or "", options.answer_field, chat=options.chat, system=options.system is not None
    )
    questions = read_questions(options.data, options.task, options.prompt, options.reward, fields).first(options.limit)
    if questions.repeated and not options.quiet:
        errors.print(Text(f"{questions.repeated:,} rows repeat an earlier prompt and are not asked again"))
    sampler = sampler_of(options)
    with closing(sampler):
        ends = response_ends(sampler.policy, questions.stop, "ask with --chat where they are to be chats")
        now = today()  # it may be midnight
        with on_date(now):
            token_ids, settings = _asked(options, questions, sampler, ends)
        folder = options.out or DEFAULT_FOLDER / _folder_name(settings)
        if (begun := date_of(folder)) not in (None, now):
            with on_date(begun):
                token_ids, settings = _asked(options, questions, sampler, ends)
        max_tokens = settings.max_tokens
        with closing(Record(folder, settings, _facts())) as record:
            if ends.line and not (options.quiet or record.is_complete):
                errors.print(Text(plain(ends.line)), soft_wrap=True)
            _say_what_is_there(record, errors, options.quiet)
            if not (options.quiet or options.max_tokens or record.is_complete) and max_tokens < LONGEST_RESPONSE:
                said = (
                    f"a response may have {max_tokens} tokens: more do not fit the context of {sampler.policy.context}"
                )
                errors.print(Text(said), soft_wrap=True)
            try:
                _do_the_rest(record, sampler, ends, token_ids, questions, errors, options.quiet)
            except (KeyboardInterrupt, Interrupted):
                raise Interrupted(_how_to_go_on(record)) from None
            record.finish(results(record.rows, record.batches, questions.prompts, options.examples))
    return read_evaluation(folder), folder


def _do_the_rest(
    record: Record,
    sampler: Sampler,
    ends: ResponseEnds,
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
        keeps_special = record.settings.skip_special_tokens is False
        text_of = SpecialTokens(sampler.policy.tokenizer, ends.ids).text if keeps_special else None
        sample_and_grade(sampler.engine, token_ids, questions.prompts, rewards, record, progress.show, text_of)


def _asked(
    options: argparse.Namespace, questions: Questions, sampler: Sampler, ends: ResponseEnds
) -> tuple[list[Sequence[int]], Settings]:
    """Return the token ids of the prompts, and the settings of an evaluation of them."""
    tokenizer = sampler.policy.tokenizer
    chat = partial(chat_encoder, system_prompt=options.system, arguments=options.chat_template_kwargs)
    encode = (chat if options.chat else text_encoder)(tokenizer)
    token_ids: list[Sequence[int]] = [encode(prompt.asked) for prompt in questions.prompts]
    max_tokens = _max_tokens(options.max_tokens, token_ids, questions.prompts, sampler.policy.context)
    return token_ids, _settings(options, questions, sampler, ends, max_tokens)


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


def _settings(
    options: argparse.Namespace, questions: Questions, sampler: Sampler, ends: ResponseEnds, max_tokens: int
) -> Settings:
    template, chat = questions.template, sampler.policy.tokenizer.chat_template
    return Settings(
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
        min_tokens=options.min_tokens,
        max_tokens=max_tokens,
        stop=questions.stop,
        samples=options.samples,
        seed=options.seed,
        batch=options.batch,
        prompt_sha256=template.sha256 if template else None,
        chat_template_sha256=hashlib.sha256(str(chat).encode()).hexdigest() if options.chat else None,
        system_prompt=options.system,
        chat_date=today().isoformat() if options.chat and asks_date(sampler.policy.tokenizer) else None,
        chat_template_kwargs=options.chat_template_kwargs,
        prompt_field=options.prompt_field,
        answer_field=options.answer_field,
        end_tokens=ends.texts,
        skip_special_tokens=False if options.keep_special_tokens else None,
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
        f"the same command continues from there ({EVALUATION} gets its results at the end)"
    )
