"""The loop over the batches of an evaluation: sample, grade, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from harness.core.protocols import Engine
from harness.core.seeds import derive_seed
from harness.core.types import Completion, Prompt
from harness.evaluate.record import BatchRow, PromptRow, Record, Response
from harness.results.anonymous import Scrubber
from harness.tasks.scoring import GroupRewards, RewardFailed

Listener = Callable[[BatchRow], None]


def sample_and_grade(
    engine: Engine,
    token_ids: Sequence[Sequence[int]],
    prompts: Sequence[Prompt],
    rewards: GroupRewards,
    record: Record,
    listen: Listener,
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
