"""Batches of responses to be scored, what they score by the definition, and the gradients of a weighted sum."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from harness.models.config import ModelConfig
from harness.models.policy import score_rows
from harness.models.scoring import ScoreRequest, Scores
from harness.models.shared_rows import padded_rows

Model = TypeVar("Model", bound=nn.Module)
SHAPE = ModelConfig(53, 32, 48, 2, 4, 2, 8, 64)
"""A tiny model: 53 tokens, 2 layers of width 32 and 48, 4 query heads on 2 key heads of 8, a context of 64."""
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Operators(TorchDispatchMode):
    """Remember which operators ran, in their order, and the types of the first operand of each."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.types = list[str](), dict[str, set[Any]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        self.types.setdefault(self.names[-1], set()).add(getattr(args[0], "dtype", None) if args else None)
        return func(*args, **(kwargs or {}))


def spread(model: Model, seed: int = 0, alpha: float = 0.15) -> Model:
    """The model, with weights far enough from where they began for logits of several units and gains that are not 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=alpha)
    return model.eval()


def make_batch(
    prompt_lengths: list[int], response_lengths: list[int], prompt_index: list[int], width: int | None = None
) -> Batch:
    """Random tokens below 53; padding holds random tokens too, which must not matter."""
    generator = torch.Generator().manual_seed(7)
    width = max([*response_lengths, 1]) if width is None else width
    prompts_PL = torch.randint(53, (len(prompt_lengths), max(prompt_lengths) + 1), generator=generator)
    responses_BT = torch.randint(53, (len(response_lengths), width), generator=generator)
    mask_BT = torch.arange(width) < torch.tensor(response_lengths)[:, None]
    return prompts_PL, torch.tensor(prompt_lengths), responses_BT, mask_BT, torch.tensor(prompt_index)


def row_by_row(model: nn.Module, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """log softmax of one unpadded row after another, and the entropies: the definition."""
    prompts_PL, lengths_P, responses_BT, mask_BT, index_B = batch
    log_probs, entropies = [], []
    for row, index in enumerate(index_B.tolist()):
        length, count = int(lengths_P[index]), int(mask_BT[row].sum())
        ids = torch.cat((prompts_PL[index, :length], responses_BT[row, :count]))
        scored = (model(input_ids=ids[None]).logits[0, length - 1 : -1] / temperature).log_softmax(-1)
        picked, behind = scored.gather(-1, responses_BT[row, :count, None])[:, 0], (0, mask_BT.shape[1] - count)
        log_probs.append(pad(picked, behind))
        entropies.append(pad(-(scored.exp() * scored).sum(-1).detach(), behind))
    return torch.stack(log_probs), torch.stack(entropies)


def gradients(model: nn.Module, log_probs_BT: Tensor) -> list[Tensor]:
    """Of each parameter; of experts without tokens they are 0."""
    weights_BT = torch.randn(log_probs_BT.shape, generator=torch.Generator().manual_seed(11)).to(log_probs_BT)
    wanted = list(model.parameters())
    found = torch.autograd.grad((log_probs_BT * weights_BT).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(wanted, found, strict=True)]


def assert_equal(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    """Each within a share of its greatest element, or of 1."""
    for mine, other in zip(found, wanted, strict=True):
        assert (mine - other).abs().max() <= tolerance * other.abs().max().clamp(min=1)


def padded_response_log_probs(model: nn.Module, *batch: Tensor, **how: Any) -> Scores:
    """Score responses as ``policy_log_probs`` does, but in padded rows whatever the model."""
    request = ScoreRequest(*batch, **how)
    return score_rows(model, padded_rows(request), request)
