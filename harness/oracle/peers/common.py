"""What the files beside this one share: the step they are asked about, and how they answer.

They run in a trainer's own environment, and import nothing of this project but each other.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

NO_CLIP = 1e9
"""Bound of a clip where a trainer always has one and the step has none."""
Options = dict[str, Any]


class NoCounterpart(Exception):
    """The trainer has nothing that computes what the step asks for; its text says what."""


class Step:
    """The step: tensors of the loss (B, T), of the N rollouts, and the options of both, as ``docs/oracle.md`` has them.

    Attributes:
        loss, advantage: the options.
        log_probs, old, reference, engine, entropy: (B, T) float64; the last three None where the step has none.
        mask: (B, T) float64; ``mask_bool`` the same as bool.
        advantages_BT: those of each row, at each token.
        rewards: (N,) float32, as trainers have them.
        group: (N,) the number of each rollout's group; ``group_B`` that of each row.
        rows: (B,) which rollout each row is.
    """

    def __init__(self, path: str) -> None:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["step"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.loss: Options = header["loss"]
        self.advantage: Options = header["advantage"]
        self.ranks, self.microbatches = header["ranks"], header["microbatches"]
        self.packed: bool = header["packed"]
        double = {name: tensor.double() for name, tensor in tensors.items() if name.endswith("log_probs")}
        self.log_probs, self.old = double["log_probs"], double["old_log_probs"]
        self.reference, self.engine = double.get("reference_log_probs"), double.get("engine_log_probs")
        self.entropy = tensors["entropy"].double() if "entropy" in tensors else None
        self.mask_bool = tensors["mask"].bool()
        self.mask = self.mask_bool.double()
        self.rewards, self.group = tensors["rewards"].float(), tensors["group"]
        self.rows = tensors["rows"]
        self.group_B = self.group[self.rows]
        self.advantages_BT = tensors["advantages"].double()[self.rows][:, None].expand_as(self.mask)

    @property
    def low_high(self) -> tuple[float, float]:
        return self.loss["clip_low"], self.loss["clip_high"]

    @cached_property
    def group_size(self) -> int:
        """G, where groups stand one after the other and are equally large."""
        sizes = torch.unique_consecutive(self.group, return_counts=True)[1]
        if len(set(sizes.tolist())) != 1:
            raise NoCounterpart("groups of unequal sizes")
        return int(sizes[0])

    def mask_of_rollouts(self) -> Tensor:
        """Return the mask of each rollout, (N, T) float32; the first token of those without any or without a row."""
        mask = torch.zeros(len(self.rewards), self.mask.shape[1])
        mask[self.rows] = self.mask.float()
        mask[mask.sum(dim=1) == 0, 0] = 1
        return mask

    def parts(self) -> list[list[slice]]:
        """Return the rows of each microbatch of each rank: equally many, one after the other."""
        number = self.ranks * self.microbatches
        size = len(self.mask) // number
        if size * number != len(self.mask):
            raise NoCounterpart(f"{len(self.mask)} rows in {number} equal microbatches")
        cuts = [slice(at * size, (at + 1) * size) for at in range(number)]
        return [cuts[rank * self.microbatches : (rank + 1) * self.microbatches] for rank in range(self.ranks)]


def named(value: Any, words: Mapping[Any, Any], what: str) -> Any:
    """Return the trainer's word for a value of an option; ``NoCounterpart`` if it has none."""
    if value not in words:
        raise NoCounterpart(f"{what} {value}")
    return words[value]


def none_but(loss: Options, *known: str) -> None:
    """Refuse options beside the clipped surrogate that the trainer's loss does not have.

    Args:
        loss: the step's options.
        known: what it has, of ``cispo``, ``sequence ratio``, ``kl``, ``weighted kl``, ``importance`` and ``entropy``.
    """
    asked = {
        "cispo": loss["type"] == "cispo",
        "sequence ratio": loss["ratio_level"] == "sequence",
        "kl": loss["kl"]["coefficient"] > 0,
        "weighted kl": loss["kl"]["coefficient"] > 0 and loss["kl"]["weighted_by_ratio"],
        "importance": loss["importance"]["mode"] != "off",
        "entropy": loss["entropy_coefficient"] > 0,
    }
    for name, is_asked in asked.items():
        if is_asked and name not in known:
            raise NoCounterpart(name)


@dataclass(frozen=True)
class Because:
    """Why a trainer's result is another one, where its code says so.

    Attributes:
        option: the row of the table of options, of ``harness.oracle.options``.
        why: in words.
        module: imported there.
        line: text of the line, or part of it, that does it.
        is_defect: whether it is no choice, but contradicts what the trainer's own documentation says.
    """

    option: str
    why: str
    module: str
    line: str
    is_defect: bool = False


@dataclass(frozen=True)
class Advantages:
    """One advantage function of a trainer.

    Attributes:
        of: its name.
        words: returns the step's options in the trainer's words; raises ``NoCounterpart``.
        values: returns the advantage of each rollout, (N,), with such options.
    """

    of: str
    words: Callable[[Step], Options]
    values: Callable[[Step, Options], Tensor]


@dataclass(frozen=True)
class Peer:
    """A trainer's shipped code.

    Attributes:
        loss: of the whole step with options in the trainer's words, differentiable in the log-probs (B, T), the second
            argument, and in ``step.entropy``; microbatches and ranks are gone through as its training loop does.
            None where nothing can be called.
        no_loss: why there is none.
        defaults: the options of its own configuration.
        advantages: its advantage functions.
        entry: the function that computes the loss, of which file and line are told.
        because: explanations.
    """

    loss: Callable[[Step, Tensor, Options], Tensor] | None = None
    no_loss: str = ""
    defaults: Options = field(default_factory=dict)
    advantages: tuple[Advantages, ...] = ()
    entry: Callable[..., Any] | None = None
    because: tuple[Because, ...] = ()


def gradient_of(loss: Tensor, log_probs: Tensor, entropy: Tensor | None, mask_BT: Tensor) -> Tensor:
    """Return the gradient with respect to each token's log-prob, row after row, then to each entropy if there are any;
    0 where the loss does not depend on them."""
    inputs = [log_probs, *([] if entropy is None else [entropy])]
    zeros, found = torch.zeros_like(log_probs), torch.autograd.grad(loss, inputs, allow_unused=True)
    return torch.cat([(zeros if each is None else each)[mask_BT] for each in found])


def place_of(function: Callable[..., Any]) -> str:
    """Return file and first line of a function: the package's folder, and what follows."""
    function = inspect.unwrap(function)
    return f"{_short(inspect.getsourcefile(function) or '?')}:{inspect.getsourcelines(function)[1]}"


def place_of_line(because: Because) -> str:
    """Return file and line of an explanation; the file alone if no line has that text."""
    module = sys.modules.get(because.module) or __import__(because.module, fromlist=["_"])
    path = inspect.getsourcefile(module) or "?"
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    at = [number for number, line in enumerate(lines, 1) if because.line in line]
    return f"{_short(path)}:{at[0]}" if at else f"{_short(path)}, without the line {because.line!r}"


def _short(path: str) -> str:
    return path.rpartition("site-packages/")[2]


class Absent(Loader):
    """Finds empty modules in place of packages that a trainer imports and its loss does not need."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, *more: Any) -> ModuleSpec | None:
        """Find modules of the packages, and no others."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has every name: classes, and functions that return nothing."""
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It is empty."""


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else lambda *all, **more: None
