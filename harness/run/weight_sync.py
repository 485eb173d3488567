"""A weight sync from both ends, and its proof.

A checksum proves that the tensors arrived. Log-probabilities prove that the engine uses them: the Learner publishes its
own of a few sampled tokens with the weights, and the engine has to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from harness.core.errors import RunStopped
from harness.core.protocols import Engine, ScoringEngine, Task
from harness.core.trace import Stage, Tracer
from harness.core.types import GroupData, LogProbProbe, Metric, Metrics, WeightHandle
from harness.transports.checksum import checksum, verify
from harness.transports.protocol import WeightReceiver, WeightSender

Encode = Callable[[Any], Sequence[int]]
"""Returns the token ids of what a prompt asks, see ``models.chat``."""
ProbeRow = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Token ids of a prompt and of what follows it."""
PROBE_ROWS = 4
"""Rollouts by whose tokens a weight sync is proven."""
PROBE_TOKENS = 16
"""Tokens of each of them."""


def probe_rows(groups: Sequence[GroupData]) -> list[ProbeRow]:
    """Return the start of a few rollouts, each of another prompt, as (prompt, response) of token ids.

    A response's last token is left out, so that an engine has room to go on. Where it is the only one, the last token
    of the prompt takes its place.
    """
    rows = []
    for group in groups[:PROBE_ROWS]:
        prompt, response = group.prompt_token_ids, group.completions[0].token_ids
        start = response[: min(PROBE_TOKENS, len(response) - 1)]
        rows.append((prompt, start) if len(start) else (prompt[:-1], prompt[-1:]))
    return [row for row in rows if len(row[0])]


def first_probe_rows(task: Task, encode: Encode) -> list[ProbeRow]:
    """Return probe rows before there are rollouts: the first token of a prompt, and the tokens that follow it."""
    encoded = [np.asarray(encode(prompt.asked), dtype=np.int64) for prompt in task.train_prompts[:PROBE_ROWS]]
    return [(ids[:1], ids[1 : 1 + PROBE_TOKENS]) for ids in encoded if len(ids) > 1]


def publish_weights(
    sender: WeightSender,
    weights: Mapping[str, torch.Tensor],
    version: int,
    still_needed: frozenset[int],
    *,
    with_checksum: bool,
    tracer: Tracer,
    lane: str,
    copied: Callable[[], None] = lambda: None,
    dtype: torch.dtype | None = None,
) -> WeightHandle:
    """Publish weights: stage ``weight_publish``, and ``weight_verify`` where the handle gets a checksum of them.

    Args:
        copied: called when the weights may change.
        dtype: in which they travel; None: as they are.
    """
    with tracer.span(lane, Stage.WEIGHT_PUBLISH, version, version):
        if dtype is not None:
            weights = {name: tensor.detach().to(dtype) for name, tensor in weights.items()}
        weight_handle = sender.publish_weights(weights, version, still_needed)
    copied()
    if not with_checksum:
        return weight_handle
    with tracer.span(lane, Stage.WEIGHT_VERIFY, version, version):
        return replace(weight_handle, checksum=checksum(sender.published(version)))


def load_weights(
    receiver: WeightReceiver,
    engine: Engine,
    weight_handle: WeightHandle,
    arrived: list[torch.Tensor] | None = None,
    *,
    mismatch_bound: float | None = None,
    tracer: Tracer,
    lane: str,
) -> Metrics:
    """Receive published weights, load them into the engine, and verify what arrived and what the engine holds.

    Stages ``weight_transfer``, ``weight_load`` and ``weight_verify``.
    The checksum is taken after the load, over the tensors that the engine has just loaded from: it also notices memory
    that changed in the middle of the load. Then the engine scores the handle's probe.

    Args:
        arrived: the tensors themselves, where the transport has sent them along.
        mismatch_bound: largest gap between the engine's and the Learner's log-probabilities of the probe; None: not
            measured.

    Returns:
        ``engine_mismatch/max`` and ``engine_mismatch/mean``, where the handle has a probe and there is a bound.

    Raises:
        RunStopped: the checksum differs, the weights are not there, or the engine disagrees with the Learner.
    """
    version = weight_handle.version
    with tracer.span(lane, Stage.WEIGHT_TRANSFER, version, version):
        weights = receiver.receive(weight_handle, arrived)
    with tracer.span(lane, Stage.WEIGHT_LOAD, version, version):
        engine.load_weights(weights, version)
    if weight_handle.checksum is not None:
        with tracer.span(lane, Stage.WEIGHT_VERIFY, version, version):
            verify(weights, weight_handle.checksum, version, lane)
    if weight_handle.probe is None or mismatch_bound is None:
        return {}
    with tracer.span(lane, Stage.WEIGHT_VERIFY, version, version):
        return engine_mismatch(cast(ScoringEngine, engine), weight_handle.probe, mismatch_bound, version, lane)


def engine_mismatch(engine: ScoringEngine, probe: LogProbProbe, bound: float, version: int, lane: str) -> Metrics:
    """Return the gap between the engine's log-probabilities of the probe and the Learner's.

    Raises:
        RunStopped: a gap is above the bound, or not a number.
    """
    scored = engine.score([row.tolist() for row in probe.prompts], [row.tolist() for row in probe.responses])
    gaps = [np.abs(ours - theirs) for ours, theirs in zip(scored, probe.log_probs, strict=True)]
    flat = np.concatenate(gaps)
    largest, mean = float(flat.max()), float(flat.mean())
    if not largest <= bound:  # nor where it is not a number
        row = int(np.argmax([np.nan_to_num(gap, nan=np.inf).max() for gap in gaps]))
        place = int(np.nan_to_num(gaps[row], nan=np.inf).argmax())
        raise RunStopped(
            f"{lane} does not hold the Learner's weights: after loading policy version {version} its engine gives "
            f"token {probe.responses[row][place]} (place {place} of rollout {row}) a log-probability of "
            f"{scored[row][place]:.6g}, the Learner {probe.log_probs[row][place]:.6g}; that gap of "
            f"{gaps[row][place]:.3g} is above the mismatch_bound of {bound:g} (mean of {flat.size} tokens: {mean:.3g})"
        )
    return {
        "engine_mismatch/max": Metric(largest, "max", flat.size),
        "engine_mismatch/mean": Metric(mean, count=flat.size),
    }
