"""Response log-probabilities of any policy: the harness' own models, or any causal language model of transformers."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from harness.models.decoder import DecoderLM
from harness.models.head import has_plain_head, score_hidden
from harness.models.layers import product_dtype
from harness.models.scoring import ScoreRequest, Scores, TokenBan, score_tokens
from harness.models.shared_prompt import response_log_probs
from harness.models.shared_rows import (
    Rows,
    added_mask,
    cheapest_layout,
    lay_out,
    padded_rows,
    shared_rows,
    why_not_by_config,
)
from harness.models.sorting import SortingModel, sorting_kl, sorting_log_probs


class ScoringModel(nn.Module):
    """A policy whose forward pass scores responses, its output matrix included.

    What is wrapped around or hooked into a module (DDP, FSDP2, DeepSpeed, tensor-parallel plans) acts when the module
    is called. Scoring calls inner modules and multiplies with the output matrix, so the policy's own ``forward`` never
    runs; this one does, once for each microbatch, around everything that reads a weight.

    Args:
        policy: any policy that ``policy_log_probs`` knows.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *batch: Tensor, **how: Any) -> Scores:
        """Score responses; arguments and results as in ``policy_log_probs`` without its model."""
        return policy_log_probs(self.policy, *batch, **how)


def policy_in(scoring: nn.Module) -> nn.Module:
    """Return the policy inside of a scoring model, which sharding leaves in its place."""
    policy = scoring.policy
    assert isinstance(policy, nn.Module)
    return policy


def policy_log_probs(
    model: nn.Module,
    prompt_ids_PL: Tensor,
    prompt_lengths_P: Tensor,
    response_ids_BT: Tensor,
    response_mask_BT: Tensor,
    prompt_index_B: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    entropy_gradient: bool = False,
    ban: TokenBan | None = None,
) -> Scores:
    """Score responses under any policy; arguments and errors are those of ``ScoreRequest``.

    The own models encode each prompt once. Any other does so for a group, or for parts of it, where that is exact (see
    ``why_padded``) and fewer products (``shared_rows.cheapest_layout``), and else runs padded rows.

    Returns:
        Log-probabilities (B, T), 0 where masked, and the entropies likewise or None; in float32, or float64 for a
        model of that type.
    """
    request = ScoreRequest(
        prompt_ids_PL,
        prompt_lengths_P,
        response_ids_BT,
        response_mask_BT,
        prompt_index_B,
        temperature=temperature,
        with_entropy=with_entropy,
        entropy_gradient=entropy_gradient,
        ban=ban,
    )
    if isinstance(model, DecoderLM):
        return response_log_probs(model, request)
    if isinstance(model, SortingModel):
        return sorting_log_probs(model, request)
    if why_padded(model):  # looked up before the layout is, so that all ranks try a model at the same time
        return score_rows(model, padded_rows(request), request)
    layout = cheapest_layout(request, model.config.get_text_config().hidden_size)  # type: ignore[operator, union-attr]
    rows = padded_rows(request) if layout is None else shared_rows(request, layout, _mask_dtype(model))
    return score_rows(model, rows, request)


def exact_policy_kl(
    model: nn.Module,
    other: nn.Module,
    prompt_ids_PL: Tensor,
    prompt_lengths_P: Tensor,
    response_mask_BT: Tensor,
    prompt_index_B: Tensor,
    *,
    temperature: float = 1.0,
) -> Tensor | None:
    """Return KL(model || other) at each response token, summed over the vocabulary: (B, T).

    None for models whose tokens depend on the ones before: there the sum over one token's vocabulary is not all of it.
    """
    if not isinstance(model, SortingModel) or not isinstance(other, SortingModel):
        return None
    kl_PT = sorting_kl(model, other, prompt_ids_PL, prompt_lengths_P, temperature)
    return kl_PT[prompt_index_B, : response_mask_BT.shape[1]]


_WHY_PADDED: WeakKeyDictionary[nn.Module, dict[tuple[str, torch.dtype], str]] = WeakKeyDictionary()
"""Of each model that was tried: for its kind of attention and the type of its products, what spoke against it."""


def why_padded(model: nn.Module) -> str:
    """Why a model of transformers runs padded rows; empty where a group's responses may share a row with their prompt.

    A model whose config allows it is tried once on a few tokens, without gradient, dropout off, in the precision that
    holds at the time: the log-probs of shared rows must be those of padded rows, up to rounding.
    """
    if reason := why_not_by_config(model):
        return reason
    tried = _WHY_PADDED.setdefault(model, {})
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    key = config._attn_implementation, _mask_dtype(model)
    if key not in tried:
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            with torch.no_grad():
                tried[key] = _try_shared_rows(model, config.vocab_size)
        except Exception as error:  # whatever somebody else's code makes of a mask that it does not know
            tried[key] = f"on shared rows it raises {type(error).__name__}"
        finally:
            torch.clear_autocast_cache()  # narrow weights that were made here have no gradient
            for module in training:
                module.training = True
    return tried[key]


def _try_shared_rows(model: nn.Module, vocab_size: int) -> str:
    """Compare shared with padded rows, and both with rows that are wrong on purpose; empty where shared ones are right.

    The difference must be within 4 sqrt(eps) of the type that products have, or float32, in which transformers norms:
    room for what rounding adds up in many layers. It must be within that share too of what comes of positions that go
    on from response to response, and of a mask that lets responses see each other, so that a model that ignores either
    is found whatever its weights.
    """
    generator, device = torch.Generator().manual_seed(0), _embeddings(model).device
    prompts_PL = torch.randint(vocab_size, (2, 6), generator=generator)
    responses_BT = torch.randint(vocab_size, (5, 5), generator=generator)
    lengths, counts, index = [6, 4], [5, 3, 4, 5, 4], [0, 0, 0, 1, 1]
    mask_BT = torch.arange(5) < torch.tensor(counts)[:, None]
    batch = prompts_PL, torch.tensor(lengths), responses_BT, mask_BT, torch.tensor(index)
    request = ScoreRequest(*(part.to(device) for part in batch))
    dtype, layout = _mask_dtype(model), lay_out(lengths, counts, index, per_row=3)
    right = shared_rows(request, layout, dtype)
    onwards_RW = torch.arange(layout.width, device=device).expand_as(right.token_ids_RW)
    all_RWW = torch.ones_like(right.attention_mask[:, 0], dtype=torch.bool)
    wrong = replace(right, position_ids_RW=onwards_RW), replace(right, attention_mask=added_mask(all_RWW, dtype))
    padded_BT, _ = score_rows(model, padded_rows(request), request)
    gap, *gaps = (float((score_rows(model, rows, request)[0] - padded_BT).abs().max()) for rows in (right, *wrong))
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    if gap <= 4 * eps**0.5 * min(1.0, *gaps):
        return ""
    return f"shared rows change its log-probs by {gap:.1g}, and wrong ones by {min(gaps):.1g}"


def score_rows(model: nn.Module, rows: Rows, request: ScoreRequest) -> Scores:
    """Run rows and score the responses in them; logits start at the first column that predicts, where a model can.

    Args:
        model: takes ``(input_ids, attention_mask)``, shared rows also ``position_ids``, and returns an object with
            ``.logits``.
        rows: see ``shared_rows``.
        request: which responses they hold.
    """
    how: dict[str, Any] = {"entropy_gradient": request.entropy_gradient, "banned_EM": request.banned_EM}
    scored = request.response_ids_BT[request.mask_BT], request.temperature, request.with_entropy
    if has_plain_head(model):
        base: Any = model.base_model
        hidden: Tensor = base(**rows.inputs(), use_cache=False).last_hidden_state
        chosen, weight_VC = hidden[rows.rows_M, rows.columns_M], model.get_output_embeddings().weight  # type: ignore[operator]
        return request.in_rows(score_hidden(chosen, weight_VC, *scored, **how))
    width = rows.token_ids_RW.shape[1]
    skipped = int(rows.columns_M.min()) if len(rows.columns_M) else width - 1
    kept, parameters = width - skipped, inspect.signature(model.forward).parameters
    options = {"use_cache": False, "logits_to_keep": kept}
    taken = {name: value for name, value in options.items() if name in parameters}
    logits = model(**rows.inputs(), **taken).logits[:, -kept:]
    return request.in_rows(score_tokens(logits[rows.rows_M, rows.columns_M - skipped], *scored, **how))


def _embeddings(model: nn.Module) -> Tensor:
    table: Tensor = model.get_input_embeddings().weight  # type: ignore[operator]
    return table


def _mask_dtype(model: nn.Module) -> torch.dtype:
    """The type that a mask is added in, which is that of queries and keys."""
    return product_dtype(_embeddings(model))
