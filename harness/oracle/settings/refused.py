"""Combinations that other trainers take and this project refuses, and what is written in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.settings.loss import LEAST_FOR_TOKENS

Settings = Mapping[str, Any]
"""Settings of ours by dotted keys: what was translated, else defaults."""


class Refused(NamedTuple):
    """Whether settings have it; what is written in place of which; why; whether the loss is another one then.

    What is written is a value, or a function that makes it of the settings.
    """

    breaks: Callable[[Settings], bool]
    change: Mapping[str, Any]
    why: str
    loss: bool = False


def _minibatches(s: Settings) -> int:
    most = min(s["minibatches_per_epoch"], s["rollout_batch_size"] // s["group_size"])
    return next(count for count in range(most, 0, -1) if s["rollout_batch_size"] % count == 0)


def _splits_groups(s: Settings) -> bool:
    size, parts = s["rollout_batch_size"], s["minibatches_per_epoch"]
    return bool(size % parts != 0 or size // parts < s["group_size"] <= size)


def _wide_for_responses(s: Settings) -> bool:
    widest = max(s["loss.cliprange"] or 0, s["loss.cliprange_high"] or 0)
    of_responses = s["loss.type"] == "grpo_clip" and s["loss.ratio_level"] == "sequence"
    return bool(of_responses and widest >= LEAST_FOR_TOKENS)


def _is_k1(s: Settings) -> bool:
    alone = s["loss.kl.estimator"] == "k1" and not s["loss.kl.weighted_by_ratio"]
    return bool(alone and s["loss.kl.coefficient"] > 0)


def _is_uncorrected(s: Settings) -> bool:
    one_step = s["epochs_per_batch"] * s["minibatches_per_epoch"] == 1 and s["max_lag"] == 0
    return s["loss.type"] == "naive" and not one_step


def _cuts_what_is_compared(s: Settings) -> bool:
    return bool(s["sampling.top_p"] < 1 and (s["max_lag"] > 0 or s["loss.importance.mode"] != "off"))


def _never_falls(s: Settings) -> bool:
    steps = s["steps"] * s["epochs_per_batch"] * s["minibatches_per_epoch"]
    warmup = s["optimizer.warmup_steps"] or math.ceil(s["optimizer.warmup_ratio"] * steps)
    return bool(s["optimizer.schedule"] != "constant" and warmup >= steps)


REFUSED = (
    Refused(
        lambda s: s["group_size"] < 2,
        {"group_size": 2, "rollout_batch_size": lambda s: max(2, s["rollout_batch_size"] // 2 * 2)},
        "a group of one is its own mean, so that every advantage is 0; 2 is the least that teaches anything",
        loss=True,
    ),
    Refused(
        _splits_groups,
        {"minibatches_per_epoch": _minibatches},
        "an optimizer step takes a whole number of rollouts here, and at least a group of them",
    ),
    Refused(
        lambda s: s["rollout_batch_size"] % (s["minibatches_per_epoch"] * s["gradient_accumulation_steps"]) != 0,
        {"gradient_accumulation_steps": 1},
        "the parts of an optimizer step are equally large here; the result is the same",
    ),
    Refused(
        _wide_for_responses,
        {"loss.type": "unclipped", "loss.cliprange": None, "loss.cliprange_high": None, "loss.dual_clip": None},
        "a mean over a response's ratios never comes so far from 1: what is refused here clips nothing there",
        loss=True,
    ),
    Refused(
        _is_k1,
        {"loss.kl.coefficient": 0.0},
        "k1 has an expected gradient of 0 as a loss: refused here, and left out",
        loss=True,
    ),
    Refused(
        _is_uncorrected,
        {"allow_uncorrected": True},
        "a loss without a ratio is for data of its own policy; here one has to say that it is meant",
    ),
    Refused(
        _cuts_what_is_compared,
        {"sampling.top_p": 1.0},
        "with lag or importance weights the engine's log-probs are compared with those of the whole distribution",
    ),
    Refused(
        _never_falls,
        {"optimizer.schedule": "constant", "optimizer.min_learning_rate_ratio": 0.0},
        "the warm-up takes all optimizer steps, so that nothing is left to fall",
    ),
)
"""In the order in which they are looked for."""
