"""Log-probabilities and entropy of given tokens from hidden states and the output matrix, a piece of logits at a time.

With a vocabulary of 151,936 the logits of 4,096 tokens are 2.5 GB in float32, and log-softmax, its gradient and the
entropy make several of them. Here a piece needs its logits and one array more, in each direction; the logits of as many
pieces as ``MAX_LOGITS`` allows are kept for the way back, those of the others are computed again. The gradients are
written out, as in fused linear cross-entropies (Hsu et al. 2024, arXiv:2410.10989, section 3.2), for log-probabilities
and entropies whose own gradients come later.

An output matrix that is sharded over the vocabulary stays so: each rank has the logits of its own tokens, and what is
summed over the vocabulary is summed over the ranks (Shoeybi et al. 2019, arXiv:1909.08053, section 3, for the loss).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.models.layers import product_dtype, widen
from harness.models.limits import MAX_LOGITS, PIECE_LOGITS
from harness.models.matmul import add_weight_gradient, product
from harness.models.scoring import Scores, ban_tokens

LEAST_LOG_PROB = -1e4
"""Below it a probability is 0 in float32 and float64 alike."""
PLAIN_HEADS = ("llama", "mistral", "qwen2", "qwen3")
"""Model types of transformers whose logits are the output matrix times the last hidden states, and nothing else."""


def has_plain_head(model: nn.Module) -> bool:
    """Whether a model of transformers makes its logits of the last hidden states and its output matrix alone.

    Others scale or cap their logits, or add a bias to them.
    """
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind in PLAIN_HEADS and head is not None and getattr(head, "bias", None) is None


def score_hidden(
    hidden_MC: Tensor,
    weight_VC: Tensor,
    token_ids_M: Tensor,
    temperature: float,
    with_entropy: bool,
    *,
    entropy_gradient: bool = False,
    banned_EM: Tensor | None = None,
    max_logits: int | None = None,
    piece_logits: int | None = None,
) -> Scores:
    """Score tokens as ``scoring.score_tokens`` does, from hidden states and the output matrix.

    Args:
        hidden_MC: the last layer's normed output where each token is predicted.
        weight_VC: turns it into logits; or a DTensor, sharded over the vocabulary on a mesh of one dimension whose
            ranks all have the other arguments. Every rank then has all results, and given their gradients, those of
            all ``hidden_MC``.
        token_ids_M, temperature, with_entropy, entropy_gradient, banned_EM: as of ``score_tokens``.
        max_logits: most logits kept for the way back; None: ``MAX_LOGITS`` of the device.
        piece_logits: most logits computed at a time; None: ``PIECE_LOGITS`` of the device.
    """
    part, weight_VC = own_part(weight_VC, token_ids_M)
    device = "cpu" if hidden_MC.device.type == "cpu" else "cuda"
    rows = max(1, (piece_logits or PIECE_LOGITS[device]) // max(1, weight_VC.shape[0]))
    if device == "cuda" and rows > 128:
        rows -= rows % 128  # whole tiles of its products
    scores: Scores = _Scores.apply(
        hidden_MC,
        weight_VC,
        token_ids_M,
        banned_EM,
        temperature,
        with_entropy,
        with_entropy and entropy_gradient,
        MAX_LOGITS[device] if max_logits is None else max_logits,
        rows,
        part,
    )
    return scores


class VocabularyPart(NamedTuple):
    """The part of the vocabulary that a rank of ``group`` has: ``size`` tokens from ``first`` on, maybe none."""

    first: int
    size: int
    group: dist.ProcessGroup

    def places(self, token_ids_R: Tensor) -> Tensor:
        """Return where tokens stand in this part; -1 for those that do not."""
        places_R = token_ids_R - self.first
        return torch.where((places_R >= 0) & (places_R < self.size), places_R, -1)


def own_part(weight_VC: Tensor, token_ids_M: Tensor) -> tuple[VocabularyPart | None, Tensor]:
    """Return which tokens' rows of a matrix this rank has, and those rows; None where it has all.

    Parts are those of ``torch.chunk``, as everywhere in DTensor: of equal size but for the last ones.

    Raises:
        ValueError: the matrix is sharded in another way.
        IndexError: no rank has one of the tokens, so that none would complain.
    """
    sharded: Any = weight_VC
    mesh = getattr(sharded, "device_mesh", None)  # DTensor's own module takes half a second to import
    if mesh is None:
        return None, weight_VC
    if mesh.ndim != 1 or not sharded.placements[0].is_shard(0):
        raise ValueError(f"a matrix of the vocabulary is laid out as {sharded.placements} on {mesh}, not [Shard(0)]")
    total = weight_VC.shape[0]
    if token_ids_M.numel() and not 0 <= int(token_ids_M.min()) <= int(token_ids_M.max()) < total:
        raise IndexError(f"tokens {int(token_ids_M.min())} to {int(token_ids_M.max())} of a vocabulary of {total}")
    weight: Tensor = sharded.to_local()
    first = min(mesh.get_local_rank() * -(-total // mesh.size()), total)
    return VocabularyPart(first, weight.shape[0], mesh.get_group()), weight


class _Scores(torch.autograd.Function):
    """With z the logits over the temperature T, log p = z - logsumexp(z) and H = logsumexp(z) - sum(p z).

    For the gradients g of log p[token] and h of H: dz = g 1[token] - p (g + h (log p + H)). Over a part of the
    vocabulary each is the same; the ranks have to add up sum(exp z), sum(p z), z[token] and the gradient of the hidden
    states.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MC: Tensor,
        weight_VC: Tensor,
        token_ids_M: Tensor,
        banned_EM: Tensor | None,
        temperature: float,
        with_entropy: bool,
        entropy_gradient: bool,
        max_logits: int,
        rows: int,
        part: VocabularyPart | None,
    ) -> Scores:
        ctx.temperature, ctx.entropy_gradient, ctx.rows, ctx.part = temperature, entropy_gradient, rows, part
        ctx.dtype = product_dtype(hidden_MC)
        hidden, weight = hidden_MC.to(ctx.dtype), weight_VC.to(ctx.dtype)
        needs_gradient = any(ctx.needs_input_grad[:2])
        dtype = torch.promote_types(ctx.dtype, torch.float32)
        highest_M = hidden.new_full((len(hidden),), torch.finfo(dtype).min, dtype=dtype)
        sums_3M = highest_M.new_zeros(3, len(hidden))  # exp(z - highest), z of the token, exp(z - highest) z
        kept, room = [], max_logits
        for piece in _pieces(hidden, weight, rows):
            z = _scaled_logits(hidden[piece], weight, temperature, _banned(banned_EM, piece, part))
            highest_M[piece] = z.amax(-1).clamp_(min=torch.finfo(dtype).min)  # of a part, all may be banned
            scratch = torch.sub(z, highest_M[piece, None]).exp_()
            sums_3M[0, piece] = scratch.sum(-1)
            index_R1, is_here_R1 = _chosen(token_ids_M[piece], part)
            sums_3M[1, piece] = torch.where(is_here_R1, z.gather(1, index_R1), 0.0)[:, 0]
            if with_entropy:  # a token of probability 0 adds nothing, where 0 * -inf is no number
                sums_3M[2, piece] = scratch.mul_(z).nansum(-1)
            room -= z.numel()
            if needs_gradient and room >= 0:  # the first pieces, and none behind one that was not
                kept.append(z)
        if part is not None:
            of_part_M = highest_M.clone()
            dist.all_reduce(highest_M, dist.ReduceOp.MAX, part.group)
            sums_3M[::2] *= (of_part_M - highest_M).exp_()
            dist.all_reduce(sums_3M, group=part.group)
        mass_M, chosen_M, weighted_M = sums_3M
        normaliser_M = mass_M.log() + highest_M
        entropy_M = normaliser_M - weighted_M / mass_M if with_entropy else None
        if entropy_M is not None and not entropy_gradient:
            ctx.mark_non_differentiable(entropy_M)
        ctx.save_for_backward(hidden_MC, weight_VC, token_ids_M, banned_EM, normaliser_M, entropy_M, *kept)
        return chosen_M - normaliser_M, entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_M: Tensor, grad_entropy_M: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_MC, weight_VC, token_ids_M, banned_EM, normaliser_M, entropy_M, *kept = ctx.saved_tensors
        hidden, weight = hidden_MC.to(ctx.dtype), weight_VC.to(ctx.dtype)
        grad_M = (grad_M / ctx.temperature).to(normaliser_M.dtype)[:, None]
        of_hidden, of_weight = torch.zeros_like(hidden_MC), torch.zeros_like(weight_VC)
        for number, piece in enumerate(_pieces(hidden, weight, ctx.rows)):
            if number < len(kept):
                gradient = kept[number] - normaliser_M[piece, None]
            else:
                z = _scaled_logits(hidden[piece], weight, ctx.temperature, _banned(banned_EM, piece, ctx.part))
                gradient = z.sub_(normaliser_M[piece, None])
            if ctx.entropy_gradient and grad_entropy_M is not None:
                by_entropy = (grad_entropy_M[piece, None] / ctx.temperature).to(gradient.dtype)
                probabilities = gradient.exp()
                gradient.clamp_(min=LEAST_LOG_PROB).add_(entropy_M[piece, None]).mul_(by_entropy)
                gradient.add_(grad_M[piece]).mul_(probabilities).neg_()
            else:
                gradient.exp_().mul_(-grad_M[piece])
            index_R1, is_here_R1 = _chosen(token_ids_M[piece], ctx.part)
            gradient.scatter_add_(1, index_R1, grad_M[piece] * is_here_R1)
            gradient = gradient.to(ctx.dtype)
            of_hidden[piece] = product(gradient, weight.t())
            add_weight_gradient(of_weight, gradient, hidden[piece])
        if ctx.part is not None:
            dist.all_reduce(of_hidden, group=ctx.part.group)
        return of_hidden, of_weight, *[None] * 8


def _pieces(hidden_MC: Tensor, weight_VC: Tensor, rows: int) -> list[slice]:
    """Consecutive rows of the hidden states; none where the part of the vocabulary is empty."""
    total = len(hidden_MC) if len(weight_VC) else 0
    return [slice(first, min(first + rows, total)) for first in range(0, total, rows)]


def _chosen(token_ids_R: Tensor, part: VocabularyPart | None) -> tuple[Tensor, Tensor]:
    """Where the chosen tokens stand among this rank's, (R, 1), and whether they do; those of others stand at 0."""
    if part is None:
        return token_ids_R[:, None], torch.ones_like(token_ids_R, dtype=torch.bool)[:, None]
    places_R1 = part.places(token_ids_R)[:, None]
    return places_R1.clamp(min=0), places_R1 >= 0


def _banned(banned_EM: Tensor | None, piece: slice, part: VocabularyPart | None) -> Tensor | None:
    """Where a piece's banned tokens stand among this rank's; -1 for none."""
    banned_ER = None if banned_EM is None else banned_EM[:, piece]
    return banned_ER if banned_ER is None or part is None else part.places(banned_ER)


def _scaled_logits(hidden_RC: Tensor, weight_VC: Tensor, temperature: float, banned_ER: Tensor | None) -> Tensor:
    """Logits over the temperature in float32 at least, minus infinity at each row's banned tokens."""
    z_RV = widen(product(hidden_RC, weight_VC))
    if temperature != 1.0:
        z_RV /= temperature
    if banned_ER is not None:
        ban_tokens(z_RV, banned_ER, Tensor.scatter_)
    return z_RV
