"""Responses of engines of other makers (vLLM, SGLang) on their way: cut, checked, and made into completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.core.errors import Diverged, RunStopped
from harness.core.protocols import Tokenizer
from harness.core.types import Completion, SamplingParams
from harness.engines.batch import Row
from harness.engines.stop_strings import StopStrings, decode_text


class ResponseRow:
    """One response on its way: what it has so far, when it ends, and what it becomes.

    The engine is asked for at most ``max_tokens`` tokens; end tokens and stop strings are found here too, by the same
    rule as in the harness' own engines. A response of pinned length ends with neither.

    Attributes:
        row: (prompt index, sample index).
        is_done: whether nothing follows.
        was_cut: whether the engine has to be told so.
    """

    def __init__(self, row: Row, sampling: SamplingParams, stops: StopStrings) -> None:
        self.row, self._min_tokens, self._stops = row, sampling.min_tokens, stops
        self._is_pinned = sampling.pinned_lengths is not None
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.is_done = self.was_cut = self._ended = False

    def __call__(self, output: Any, version: int) -> None:
        """Append what vLLM newly sampled of it with the weights of this version.

        Raises:
            RunStopped: vLLM gave the request up.
        """
        sampled = output.outputs[0]
        if sampled.finish_reason not in (None, "stop", "length"):
            raise RunStopped(f"vLLM ended a response by itself, of prompt {self.row[0]}: {sampled.finish_reason}")
        of_tokens = zip(sampled.logprobs, sampled.token_ids, strict=True)
        log_probs = [of_token[token].logprob for of_token, token in of_tokens]
        self.take(sampled.token_ids, log_probs, version, sampled.finish_reason)

    def take(self, token_ids: Sequence[int], log_probs: Sequence[float], version: int, finish: str | None) -> None:
        """Append tokens; ``finish`` is why the engine ended the response, None where it goes on."""
        for token, log_prob in zip(token_ids, log_probs, strict=True):
            if self.is_done:
                return
            self.token_ids.append(token)
            self.log_probs.append(log_prob)
            self.versions.append(version)
            if self._ends_it(token):
                self.is_done = self._ended = True
        if finish is not None:
            self.is_done, self._ended = True, self._ended or finish == "stop"
        else:
            self.was_cut = self.is_done

    def _ends_it(self, token: int) -> bool:
        if self._is_pinned or len(self.token_ids) <= self._min_tokens:
            return False
        return token in self._stops.ends or self._stops.is_completed_by_last(self.token_ids)

    def completion(self, tokenizer: Tokenizer, with_versions: bool) -> Completion:
        """Return the row as a completion; raises ``Diverged`` where a log-probability is not a number."""
        log_probs_T = np.array(self.log_probs, dtype=np.float32)
        if not np.isfinite(log_probs_T).all():
            token = int(np.flatnonzero(~np.isfinite(log_probs_T))[0])
            raise Diverged(
                f"the policy's logits are not finite at prompt {self.row[0]}, sample {self.row[1]}, token {token}: "
                "its weights have diverged"
            )
        return Completion(
            np.array(self.token_ids, dtype=np.int64),
            log_probs_T,
            decode_text(tokenizer, self.token_ids),
            "stop" if self._ended else "length",
            np.array(self.versions, dtype=np.int64) if with_versions else None,
        )


def to_completions(
    rows: Sequence[ResponseRow], num_prompts: int, started_with: int, tokenizer: Tokenizer
) -> list[tuple[Completion, ...]]:
    """Return the completions of each prompt, samples in order.

    They tell versions only where the weights in place at the start did not sample every token; then all of them do.

    Raises:
        Diverged: a log-probability is not a number.
    """
    told = any(version != started_with for row in rows for version in row.versions)
    by_prompt: list[list[Completion]] = [[] for _ in range(num_prompts)]
    for row in sorted(rows, key=lambda row: row.row):
        by_prompt[row.row[0]].append(row.completion(tokenizer, told))
    return [tuple(group) for group in by_prompt]
