"""A user's own loss and advantage, named as ``package.module:function``.

Both are called with keyword arguments, and get those of the arguments below that they name. Each is tried once, on
made-up tensors, before any model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.core.own_code import OwnKind, described, import_function, last_line, taken_keywords
from harness.grpo.masking import shape_of

LOSS = OwnKind(
    "loss",
    "loss.function",
    "(log_probs, old_log_probs, advantages, response_mask) -> torch.Tensor",
    "docs.examples.own_loss.losses:cispo",
)
ADVANTAGE = OwnKind(
    "advantage", "advantage.function", "(rewards) -> torch.Tensor", "docs.examples.own_loss.losses:leave_one_out"
)
_EACH = {"loss": "token", "advantage": "rollout"}
_PAGE = "docs/losses.md"
LOSS_ARGUMENTS = (
    "log_probs",
    "old_log_probs",
    "advantages",
    "rewards",
    "response_mask",
    "engine_log_probs",
    "reference_log_probs",
    "cliprange",
    "cliprange_high",
)
ADVANTAGE_ARGUMENTS = ("rewards", "lengths", "truncated")


class UserLoss:
    """Calls a user's policy-gradient loss and checks what it returns.

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

    Args:
        path: ``package.module:function``; imported with the current folder on the import path.
        with_reference: whether the run keeps a reference policy.

    Raises:
        UserError: the function cannot be imported or called, or does not return a loss.
    """

    def __init__(self, path: str, with_reference: bool = False) -> None:
        self.path = path
        self._function = import_function(path, LOSS)
        self._names = taken_keywords(self._function, path, LOSS, LOSS_ARGUMENTS)
        self._try_out(with_reference)

    def __call__(self, **tensors: Tensor | float | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of each token (B, T), and figures (B, T) to log; see ``harness.grpo.loss.TokenLoss``.

        Raises:
            UserError: the function raised, or returned something else than it should.
        """
        log_probs = tensors["log_probs"]
        assert isinstance(log_probs, Tensor)
        returned = _called(self._function, self.path, LOSS, {name: tensors[name] for name in self._names})
        loss_BT, figures = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        _check_tensor(loss_BT, self.path, LOSS, "", tuple(log_probs.shape))
        if log_probs.requires_grad and not loss_BT.requires_grad:
            raise UserError(
                f"the loss {self.path} returned a tensor without gradient",
                where=self.path,
                fix="compute it of log_probs, and detach nothing but weights",
            )
        if not isinstance(figures, Mapping):
            raise _returned(self.path, LOSS, type(figures).__name__, "a dict of figures beside the loss")
        for name, values in figures.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise _returned(self.path, LOSS, f"a figure named {name!r}", "a name of letters, digits and _")
            _check_tensor(values, self.path, LOSS, f"figure {name!r}: ", tuple(log_probs.shape))
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
            raise UserError(
                f"the loss {self.path} has no finite gradient at {bad} of {mask_BT.numel()} tokens, tried on 4 tokens "
                "and 2 masked ones",
                where=self.path,
                fix="masked tokens have log-prob 0, and their loss must have a finite gradient too: choose with "
                "torch.where before dividing or taking a logarithm",
            )


class UserAdvantage:
    """Calls a user's function from rewards to advantages and checks what it returns.

    The function may name these arguments, of P groups with G rollouts each:

    - ``rewards`` (P, G) float64, so that what is subtracted from them leaves large or close ones their differences;
    - ``lengths`` (P, G) int64, tokens of each response;
    - ``truncated`` (P, G) bool, true where a response was cut at ``max_tokens``.

    It returns the advantages (P, G), finite, of any type; they are used in float32.

    Args:
        path: ``package.module:function``; imported with the current folder on the import path.
        group_size: G.

    Raises:
        UserError: the function cannot be imported or called, or does not return advantages.
    """

    def __init__(self, path: str, group_size: int) -> None:
        self.path = path
        self._function = import_function(path, ADVANTAGE)
        self._names = taken_keywords(self._function, path, ADVANTAGE, ADVANTAGE_ARGUMENTS)
        shape = (2, group_size)
        rewards_PG = torch.arange(2.0 * group_size, dtype=torch.float64).reshape(shape)
        self(rewards=rewards_PG, lengths=torch.ones(shape, dtype=torch.long), truncated=torch.zeros(shape).bool())

    def __call__(self, **of_groups: Tensor) -> Tensor:
        """Return the advantages (P, G), float32.

        Raises:
            UserError: the function raised, or returned something else than it should.
        """
        returned = _called(self._function, self.path, ADVANTAGE, {name: of_groups[name] for name in self._names})
        _check_tensor(returned, self.path, ADVANTAGE, "", tuple(of_groups["rewards"].shape))
        if not bool(torch.isfinite(returned).all()):
            raise UserError(
                f"the advantage {self.path} returned {_listed(returned)} for the rewards "
                f"{_listed(of_groups['rewards'])}",
                where=self.path,
                fix="return finite numbers; where a group's rewards are all equal, 0",
            )
        return torch.as_tensor(returned, dtype=torch.float32)


def _called(function: Callable[..., Any], path: str, kind: OwnKind, arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:  # sys.exit(0) would end a failed run as a success
        shapes = ", ".join(
            f"{name} {shape_of(value) if isinstance(value, Tensor) else value}" for name, value in arguments.items()
        )
        raise UserError(
            f"the {kind.noun} {path} raised {described(error)}, called with {shapes}",
            where=last_line(error) or path,
            fix=f"it must work for any number of rows and tokens; its arguments are described in {_PAGE}",
        ) from error


def _check_tensor(value: Any, path: str, kind: OwnKind, which: str, shape: tuple[int, ...]) -> None:
    if isinstance(value, Tensor) and tuple(value.shape) == shape and not value.is_complex():
        return
    found = f"{which}a tensor {shape_of(value)}" if isinstance(value, Tensor) else f"{which}{type(value).__name__}"
    raise _returned(path, kind, found, f"a tensor {shape}, one number for each {_EACH[kind.noun]}")


def _returned(path: str, kind: OwnKind, found: object, expected: str) -> UserError:
    return UserError(
        f"the {kind.noun} {path} returned {found}; expected {expected}",
        where=path,
        fix=f"see {_PAGE} for what it must return",
    )


def _listed(values: Tensor, limit: int = 120) -> str:
    text = str(values.tolist())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
