"""What an engine thinks of given tokens, found by decoding them one by one as it decodes those that it samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from harness.engines.batch import DecodeBackend, fill_holes
from harness.engines.requests import check_scored


def forced_log_probs(
    backend: DecodeBackend, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[npt.NDArray[np.float32]]:
    """Return the log-probabilities (T,) of each response's tokens; see ``protocols.ScoringEngine``.

    Args:
        backend: decodes; what it was decoding is lost.
        prompts: token ids, a prompt for each response.
        responses: token ids.

    Raises:
        UserError: a prompt or response is empty, unknown to the model, or too long together.
    """
    check_scored(prompts, responses, backend.vocab_size, backend.context_length)
    if not responses:
        return []
    rows_S = np.arange(len(responses))  # which row sits in each slot
    found: list[list[float]] = [[] for _ in responses]
    with torch.inference_mode():
        logits_SV = backend.prefill(prompts, range(len(prompts)), max(map(len, responses)))
        for place in range(max(map(len, responses))):
            rows = rows_S.tolist()
            tokens_S = torch.tensor([responses[row][place] for row in rows], device=logits_SV.device)
            log_probs_S = logits_SV.log_softmax(-1).gather(1, tokens_S[:, None])[:, 0]
            for row, log_prob in zip(rows, log_probs_S.tolist(), strict=True):
                found[row].append(log_prob)
            finished_S = np.array([len(responses[row]) == place + 1 for row in rows])
            if finished_S.all():
                break
            if finished_S.any():
                sources, targets, left = fill_holes(finished_S)
                backend.compact(sources, targets, left)
                rows_S[targets], tokens_S[targets] = rows_S[sources], tokens_S[sources]
                rows_S, tokens_S = rows_S[:left], tokens_S[:left]
            logits_SV = backend.step(tokens_S)
    return [np.array(log_probs, dtype=np.float32) for log_probs in found]
