"""A plugin's loss and advantage. Both get those of the arguments below that they name, by keyword.

Each is tried once, on made-up tensors, before any model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import UserError, quoted
from harness.core.plugins import PluginKind, described, keywords_of, last_line, load_callable
from harness.grpo.masking import shape_of

LOSS = PluginKind(
    "loss",
    "loss.function",
    "(log_probs, old_log_probs, advantages, response_mask) -> torch.Tensor",
    "docs.examples.own_loss.losses:cispo",
    (
        "log_probs",
        "old_log_probs",
        "advantages",
        "rewards",
        "response_mask",
        "engine_log_probs",
        "reference_log_probs",
        "cliprange",
        "cliprange_high",
    ),
)
ADVANTAGE = PluginKind(
    "advantage",
    "advantage.function",
    "(rewards) -> torch.Tensor",
    "docs.examples.own_loss.losses:leave_one_out",
    ("rewards", "lengths", "truncated"),
)
_PAGE = "docs/losses.md"


class PluginFunction:
    """A function that returns a number for each token or rollout, and what is said of it where it fails."""

    def __init__(self, path: str, kind: PluginKind, each: str) -> None:
        self.path, self._kind, self._each = path, kind, each
        self._function = load_callable(path, kind)
        self._names = keywords_of(self._function, kind.arguments)

    def call(self, arguments: Mapping[str, Tensor | float | None]) -> Any:
        given = {name: arguments[name] for name in self._names}
        try:
            return self._function(**given)
        except (Exception, SystemExit) as error:  # sys.exit(0) would end a failed run as a success
            shapes = (
                f"{name} {shape_of(value) if isinstance(value, Tensor) else value}" for name, value in given.items()
            )
            fix = f"it must work for any number of rows and tokens; its arguments are described in {_PAGE}"
            why = f"raised {described(error)}, called with {', '.join(shapes)}"
            raise self._kind.refused(self.path, why, fix, last_line(error) or self.path) from error

    def check(self, value: Any, shape: tuple[int, ...], which: str = "") -> None:
        if not isinstance(value, Tensor) or tuple(value.shape) != shape or value.is_complex():
            found = f"a tensor {shape_of(value)}" if isinstance(value, Tensor) else type(value).__name__
            raise self.returned(f"{which}{found}", f"a tensor {shape}, one number for each {self._each}")

    def returned(self, found: object, expected: str) -> UserError:
        why = f"returned {found}; expected {expected}"
        return self._kind.refused(self.path, why, f"see {_PAGE} for what it must return", self.path)


class PluginLoss(PluginFunction):
    """A policy-gradient loss.

    The function may name these arguments; every tensor (B, T) is 0 where the mask is, and only ``log_probs`` carries a
    gradient:

    - ``log_probs`` (B, T) float32, of the policy being trained;
    - ``old_log_probs`` (B, T) float32, what a ratio divides by;
    - ``advantages`` (B, 1) and ``rewards`` (B, 1) float32;
    - ``response_mask`` (B, T) bool, true on response tokens;
    - ``engine_log_probs`` (B, T) float32, as the engine reported them at sampling;
    - ``reference_log_probs`` (B, T) float32, of the reference policy; None where the run keeps none;
    - ``cliprange``, ``cliprange_high``: floats, as the scenario sets them.

    It returns the loss of each token (B, T), or a pair of that and a dict of figures (B, T), which are logged as
    ``own/<name>``, averaged over response tokens.

    Raises:
        UserError: the function cannot be imported or called, or does not return a loss.
    """

    def __init__(self, path: str, with_reference: bool = False) -> None:
        super().__init__(path, LOSS, "token")
        self._try_out(with_reference)

    def __call__(self, **arguments: Tensor | float | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        log_probs = arguments["log_probs"]
        assert isinstance(log_probs, Tensor)
        shape, returned = tuple(log_probs.shape), self.call(arguments)
        loss_BT, figures = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        self.check(loss_BT, shape)
        if log_probs.requires_grad and not loss_BT.requires_grad:
            fix = "compute it of log_probs, and detach nothing but weights"
            raise LOSS.refused(self.path, "returned a tensor without gradient", fix, self.path)
        if not isinstance(figures, Mapping):
            raise self.returned(type(figures).__name__, "a dict of figures beside the loss")
        for name, values in figures.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise self.returned(f"a figure named {name!r}", "a name of letters, digits and _")
            self.check(values, shape, f"figure {name!r}: ")
        return loss_BT, figures

    def _try_out(self, with_reference: bool) -> None:
        mask_BT = torch.tensor([[True, True, True], [True, False, False]])
        log_probs_BT = torch.where(mask_BT, torch.tensor([[-1.0, -0.5, -2.0], [-0.7, 0.0, 0.0]]), 0.0).requires_grad_()
        old_BT = torch.where(mask_BT, log_probs_BT.detach() - 0.1, 0.0)
        loss_BT, _ = self(
            log_probs=log_probs_BT,
            old_log_probs=old_BT,
            advantages=torch.tensor([[1.0], [-1.0]]),
            rewards=torch.tensor([[1.0], [0.0]]),
            response_mask=mask_BT,
            engine_log_probs=old_BT,
            reference_log_probs=old_BT if with_reference else None,
            cliprange=0.2,
            cliprange_high=0.2,
        )
        torch.autograd.backward(torch.where(mask_BT, loss_BT, 0.0).sum())
        gradient_BT = log_probs_BT.grad
        bad = mask_BT.numel() if gradient_BT is None else int((~torch.isfinite(gradient_BT)).sum())
        if bad:
            why = f"has no finite gradient at {bad} of {mask_BT.numel()} tokens, tried on 4 tokens and 2 masked ones"
            fix = "masked tokens have log-prob 0: choose with torch.where before dividing or taking a logarithm"
            raise LOSS.refused(self.path, why, fix, self.path)


class PluginAdvantage(PluginFunction):
    """Advantages from rewards.

    The function may name these arguments, of P groups with G rollouts each:

    - ``rewards`` (P, G) float64, so that what is subtracted from them leaves large or close ones their differences;
    - ``lengths`` (P, G) int64, tokens of each response;
    - ``truncated`` (P, G) bool, true where a response was cut at ``max_tokens``.

    It returns the advantages (P, G), finite, of any type; they are used in float32.

    Raises:
        UserError: the function cannot be imported or called, or does not return advantages.
    """

    def __init__(self, path: str, group_size: int) -> None:
        super().__init__(path, ADVANTAGE, "rollout")
        shape = (2, group_size)
        rewards_PG = torch.arange(2.0 * group_size, dtype=torch.float64).reshape(shape)
        self(rewards=rewards_PG, lengths=torch.ones(shape, dtype=torch.long), truncated=torch.zeros(shape).bool())

    def __call__(self, **of_groups: Tensor) -> Tensor:
        returned, rewards_PG = self.call(of_groups), of_groups["rewards"]
        self.check(returned, tuple(rewards_PG.shape))
        if not bool(torch.isfinite(returned).all()):
            why = f"returned {quoted(returned.tolist(), 120)} for the rewards {quoted(rewards_PG.tolist(), 120)}"
            fix = "return finite numbers; where a group's rewards are all equal, 0"
            raise ADVANTAGE.refused(self.path, why, fix, self.path)
        return torch.as_tensor(returned, dtype=torch.float32)
