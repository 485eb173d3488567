"""The options that are compared: what this project calls each, and a step that tells whether another has the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.oracle.ours import advantages
from harness.oracle.step import AdvantageOptions, Header, Importance, Kl, LossOptions, Step

GROUPS, GROUP_SIZE, TOKENS = 4, 6, 24
CONSTANT = 24.0
FURTHER = ("reference_log_probs", "engine_log_probs", "entropy")
"""Tensors that some options need."""


@dataclass(frozen=True)
class Option:
    """One row of the table.

    Attributes:
        name: of the option.
        setting: what switches it on in a scenario; empty where this project has nothing of the kind.
        header: the options of the step.
        asks: whether the loss or the advantages are compared.
        truncated: whether some responses are out of the loss altogether.
        equal_rewards: whether the rewards of each group are equal.
    """

    name: str
    setting: str
    header: Header
    asks: str = "loss"
    truncated: bool = False
    equal_rewards: bool = False


def _loss(name: str, setting: str, truncated: bool = False, **options: Any) -> Option:
    step = {key: options.pop(key) for key in ("ranks", "microbatches", "packed") if key in options}
    loss = LossOptions(**{"aggregation": "token_mean", **options})
    return Option(name, setting, Header(loss=loss, **step), truncated=truncated)


def _advantage(name: str, setting: str, equal_rewards: bool = False, **options: Any) -> Option:
    header = Header(loss=LossOptions(aggregation="token_mean"), advantage=AdvantageOptions(**options))
    return Option(name, setting, header, "advantages", equal_rewards=equal_rewards)


def _weights(mode: str, level: str, floor: float | None, cap: float | None) -> dict[str, Any]:
    return {"importance": Importance(mode=mode, level=level, floor=floor, cap=cap)}  # type: ignore[arg-type]


OPTIONS = (
    _loss("mean over tokens", "loss.aggregation: token_mean"),
    _loss("mean of responses' means", "loss.aggregation: sequence_mean", aggregation="sequence_mean"),
    _loss("mean of responses' sums", "loss.aggregation: sequence_sum", aggregation="sequence_sum"),
    _loss("mean of groups' means", "loss.aggregation: prompt_mean", aggregation="prompt_mean"),
    _loss("sums over a constant", "loss.aggregation: constant", aggregation="constant", constant=CONSTANT),
    _loss("clip higher", "loss.cliprange_high: 0.28", clip_high=0.28),
    _loss("dual clip", "loss.dual_clip: 3", dual_clip=3.0),
    _loss("sequence ratio (GSPO)", "loss.ratio_level: sequence", ratio_level="sequence", clip_low=0.01, clip_high=0.02),
    _loss(
        "GSPO, responses' means",
        "the same, sequence_mean",
        ratio_level="sequence",
        clip_low=0.01,
        clip_high=0.02,
        aggregation="sequence_mean",
    ),
    _loss("CISPO", "loss.type: cispo", type="cispo", clip_low=1.0, clip_high=0.5),
    _loss("KL k1", "loss.kl.estimator: k1", kl=Kl(coefficient=0.1, estimator="k1")),
    _loss("KL k2", "loss.kl.estimator: k2", kl=Kl(coefficient=0.1, estimator="k2")),
    _loss("KL k3", "loss.kl.estimator: k3", kl=Kl(coefficient=0.1, estimator="k3")),
    _loss("KL k3 times the ratio", "loss.kl.weighted_by_ratio: true", kl=Kl(coefficient=0.1, weighted_by_ratio=True)),
    _loss("entropy bonus", "loss.entropy_coefficient: 0.1", entropy_coefficient=0.1),
    _loss("truncated weights (TIS)", "loss.importance.mode: tis", **_weights("tis", "token", None, 1.2)),
    _loss("TIS of responses", "loss.importance.level: sequence", **_weights("tis", "sequence", None, 1.2)),
    _loss("masked weights (IcePop)", "loss.importance.mode: icepop", **_weights("icepop", "token", 0.8, 1.25)),
    _loss("IcePop of responses", "mode icepop, level sequence", **_weights("icepop", "sequence", 0.5, 2.0)),
    _loss("geometric mask", "loss.importance.mode: seq-mask-tis", **_weights("seq-mask-tis", "token", 0.98, 1.02)),
    _loss("responses out of the loss", "loss.mask_truncated: true", truncated=True),
    _loss(
        "the same, responses' means",
        "mask_truncated, sequence_mean",
        truncated=True,
        aggregation="sequence_mean",
    ),
    _loss("microbatches", "gradient_accumulation_steps: 4", microbatches=4),
    _loss("microbatches, responses' means", "the same, sequence_mean", microbatches=4, aggregation="sequence_mean"),
    _loss("two ranks", "placement.learner.ranks: 2", ranks=2),
    _loss("two ranks of microbatches", "both", ranks=2, microbatches=2),
    _loss("packed rows", "always", packed=True),
    _advantage("deviation of the group", "advantage.normalize_by_std: true"),
    _advantage("mean alone", "advantage.normalize_by_std: false", delta="centered_rewards"),
    _advantage("leave one out", "advantage.delta: leave_one_out_rewards", delta="leave_one_out_rewards"),
    _advantage("deviation of the batch", "advantage.delta: batch_normalized_rewards", delta="batch_normalized_rewards"),
    _advantage("whitened over the batch", "advantage.delta: batch_whitened_rewards", delta="batch_whitened_rewards"),
    _advantage("equal rewards", "no signal: exactly 0", equal_rewards=True),
)
"""The rows, the clipped surrogate with a mean over tokens where nothing else is said."""


def step_of(option: Option, tensors: Mapping[str, Tensor]) -> Step:
    """Return an option's step, of a batch that has every tensor that some option needs."""
    needed = option.header.loss.needed()
    own = {name: tensor for name, tensor in tensors.items() if name in needed or name not in FURTHER}
    if option.truncated:
        own["mask"] = own["mask"].clone()
        own["mask"][::3] = 0
    if option.equal_rewards:
        own["rewards"] = own["rewards"][own["group"] * (len(own["group"]) // (int(own["group"].max()) + 1))]
    return Step(header=option.header, tensors=own)


def usual_batch() -> dict[str, Tensor]:
    """Return the tensors of a batch that is off-policy: by gaps to the old policy, the engine's and a reference."""
    generator = torch.Generator().manual_seed(0)
    rows = GROUPS * GROUP_SIZE

    def drawn(scale: float) -> Tensor:
        return torch.randn(rows, TOKENS, dtype=torch.float64, generator=generator) * scale

    lengths = torch.randint(1, TOKENS + 1, (rows,), generator=generator)
    old = -3 * torch.rand(rows, TOKENS, dtype=torch.float64, generator=generator)
    rewards = torch.randint(0, 11, (rows,), generator=generator).double() / 10
    made = {
        "log_probs": old + drawn(0.6),
        "old_log_probs": old,
        "engine_log_probs": old + drawn(0.2),
        "reference_log_probs": old + drawn(0.5),
        "entropy": drawn(1.0).abs(),
        "mask": (torch.arange(TOKENS)[None] < lengths[:, None]).to(torch.uint8),
        "rewards": rewards,
        "group": torch.arange(GROUPS).repeat_interleave(GROUP_SIZE),
        "rows": torch.arange(rows),
    }
    plain = Step(header=Header(loss=LossOptions(aggregation="token_mean")), tensors=made | {"advantages": rewards})
    weights = advantages(plain)
    assert weights is not None
    return made | {"advantages": weights}
