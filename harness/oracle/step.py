"""The step that every implementation is asked about: a safetensors file with a JSON header, which anyone can write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.aggregate import Aggregation
from harness.settings.loss import (
    AdvantageSettings,
    Delta,
    ImportanceSettings,
    KlEstimator,
    KlSettings,
    LossSettings,
    LossType,
)

FIX = "see docs/oracle.md for what the file holds"


@dataclass(frozen=True, kw_only=True)
class Kl:
    """The KL penalty in the loss; see ``harness.settings.loss.KlSettings``."""

    coefficient: float = 0.0
    estimator: KlEstimator = "k3"
    weighted_by_ratio: bool = False


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Importance weights; see ``harness.settings.loss.ImportanceSettings``. Null means no bound."""

    mode: Literal["off", "tis", "icepop", "seq-mask-tis"] = "off"
    level: Literal["token", "sequence"] = "token"
    floor: float | None = None
    cap: float | None = None


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """The loss, with every bound written out; see ``harness.settings.loss.LossSettings``."""

    aggregation: Aggregation
    type: LossType = "grpo_clip"
    ratio_level: Literal["token", "sequence"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    constant: float | None = None
    entropy_coefficient: float = 0.0
    kl: Kl = Kl()
    importance: Importance = Importance()

    @classmethod
    def of(cls, loss: LossSettings) -> LossOptions:
        """Return the options of settings, ``constant`` as it stands there."""
        low, high = loss.clip_range
        floor, cap = loss.importance.bounds
        mode = loss.importance.mode
        bounds = {} if mode == "off" else {"floor": floor or None, "cap": cap}
        return cls(
            aggregation=loss.aggregation,
            type=loss.type,
            ratio_level=loss.ratio_level,
            clip_low=low,
            clip_high=high,
            dual_clip=loss.dual_clip,
            constant=loss.constant if loss.aggregation == "constant" else None,
            entropy_coefficient=loss.entropy_coefficient,
            kl=Kl(**{name: getattr(loss.kl, name) for name in ("coefficient", "estimator", "weighted_by_ratio")}),
            importance=Importance(mode=mode, level=loss.importance.level, **bounds),
        )

    def needed(self) -> list[str]:
        """Return the tensors (B, T) that the options ask for beside those of every step."""
        asked = {
            "reference_log_probs": self.kl.coefficient > 0,
            "engine_log_probs": self.importance.mode != "off",
            "entropy": self.entropy_coefficient > 0,
        }
        return [name for name, is_asked in asked.items() if is_asked]

    def settings(self) -> LossSettings:
        """Return them as settings; ``constant``, which need not be a whole number of tokens there, apart."""
        importance = {name: value for name, value in asdict(self.importance).items() if value is not None}
        return LossSettings(
            type=self.type,
            ratio_level=self.ratio_level,
            aggregation=self.aggregation,
            cliprange=self.clip_low,
            cliprange_high=self.clip_high,
            dual_clip=self.dual_clip,
            entropy_coefficient=self.entropy_coefficient,
            kl=KlSettings(**asdict(self.kl)),
            importance=ImportanceSettings(**importance) if self.importance.mode != "off" else ImportanceSettings(),
        )


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """What weighs a rollout's tokens, and what is added to a standard deviation; see ``docs/losses.md``."""

    delta: Delta = "normalized_rewards"
    eps: float = 1e-6

    @classmethod
    def of(cls, advantage: AdvantageSettings, loss_type: LossType) -> AdvantageOptions:
        """Return the options of settings."""
        return cls(delta=advantage.delta_for(loss_type), eps=advantage.eps)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What stands in the file's metadata under ``step``, as JSON.

    Attributes:
        ranks, microbatches: the rows lie on so many data-parallel ranks, each of which goes through so many equal
            microbatches of them, one after the other. It changes no result here.
        packed: rows are laid behind each other without padding, where the implementation's loss takes such tensors.
    """

    loss: LossOptions
    advantage: AdvantageOptions = AdvantageOptions()
    ranks: int = 1
    microbatches: int = 1
    packed: bool = False
    format: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """B rows of T tokens that one optimizer step learns from, of the N rollouts of a training step.

    Attributes:
        tensors: ``log_probs``, ``old_log_probs`` and ``mask`` (B, T), the policy's before the optimizer step, what the
            ratio divides by, and 1 on the tokens in the loss; ``rewards`` and ``advantages`` (N,), as they were
            recorded; ``group`` (N,), the number of each rollout's group, whose rollouts stand side by side; ``rows``
            (B,), which rollout each row is. Where the options need them: ``reference_log_probs``,
            ``engine_log_probs`` and ``entropy`` (B, T).
    """

    header: Header
    tensors: Mapping[str, Tensor]

    @property
    def gradient_size(self) -> int:
        """Values of a gradient: one for each token in the loss, and as many for entropies."""
        return int(self.tensors["mask"].bool().sum()) * (2 if "entropy" in self.tensors else 1)

    def write(self, path: Path) -> None:
        """Write the file."""
        tensors = {name: tensor.clone().contiguous() for name, tensor in self.tensors.items()}  # some may be one
        save_file(tensors, path, {"step": json.dumps(asdict(self.header))})


def read_step(path: Path) -> Step:
    """Read a step that anyone wrote.

    Raises:
        UserError: it cannot be read, or is not what it must be.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            said = (file.metadata() or {}).get("step")
        if said is None:
            raise UserError("its metadata have no 'step'", str(path), FIX)
        header = msgspec.convert(json.loads(said), Header)
        tensors.setdefault("rows", torch.arange(len(tensors["log_probs"])))
        missing = {"log_probs", "old_log_probs", "mask", "rewards", "advantages", "group"} - set(tensors)
        if missing:
            raise UserError(f"it has no {', '.join(sorted(missing))}", str(path), FIX)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"it is not a step: {error}", str(path), FIX) from None
    _check(tensors, header, path)
    return Step(header=header, tensors=tensors)


def _check(tensors: Mapping[str, Tensor], header: Header, path: Path) -> None:
    shape, rollouts = tensors["log_probs"].shape, tensors["rewards"].shape
    further = header.loss.needed()
    if absent := [name for name in further if name not in tensors]:
        raise UserError(f"it has no {', '.join(absent)}, which its options need", str(path), FIX)
    expected = dict.fromkeys(("log_probs", "old_log_probs", "mask", *further), shape)
    expected |= dict.fromkeys(("rewards", "advantages", "group"), rollouts) | {"rows": shape[:1]}
    for name, wanted in expected.items():
        if tensors[name].shape != wanted or len(shape) != 2 or len(rollouts) != 1 or not tensors[name].numel():
            said = f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(wanted)}, of (B, T) or (N,)"
            raise UserError(said, str(path), FIX)
    rows, group = tensors["rows"], tensors["group"]
    if int(rows.min()) < 0 or int(rows.max()) >= len(group):
        raise UserError(f"rows name rollouts {int(rows.min())} to {int(rows.max())} of {len(group)}", str(path), FIX)
    if len(torch.unique_consecutive(group)) != len(torch.unique(group)):
        raise UserError("the rollouts of a group do not stand side by side", str(path), FIX)
