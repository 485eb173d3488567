"""Response log-probabilities of any policy: the harness' own models, or any causal language model of transformers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from harness.models.decoder import DecoderLM
from harness.models.head import has_plain_head, score_hidden
from harness.models.scoring import TokenBan, check_batch, scatter_scores, score_tokens
from harness.models.shared_prompt import response_log_probs
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

    def forward(self, *batch: Tensor, **how: Any) -> tuple[Tensor, Tensor | None]:
        """Score responses; arguments and results as in ``policy_log_probs`` without its model."""
        return policy_log_probs(self.policy, *batch, **how)


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
) -> tuple[Tensor, Tensor | None]:
    """Score responses under any policy; arguments and results as in ``shared_prompt.response_log_probs``.

    The own models encode each prompt once; any other runs padded rows.
    """
    batch = (prompt_ids_PL, prompt_lengths_P, response_ids_BT, response_mask_BT, prompt_index_B)
    how: dict[str, Any] = {
        "temperature": temperature,
        "with_entropy": with_entropy,
        "entropy_gradient": entropy_gradient,
        "ban": ban,
    }
    if isinstance(model, DecoderLM):
        return response_log_probs(model, *batch, **how)
    if isinstance(model, SortingModel):
        return sorting_log_probs(model, *batch, **how)
    return padded_response_log_probs(model, *batch, **how)


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


def padded_response_log_probs(
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
) -> tuple[Tensor, Tensor | None]:
    """Score responses with a model that takes ``(input_ids, attention_mask)`` and returns an object with ``.logits``.

    Each row is its prompt and its response behind one another, padded at the right, so that positions are those the
    model counts by itself. Logits start at the shortest prompt's last token where the model can leave the others out.
    Arguments, results and errors as in ``shared_prompt.response_log_probs``.
    """
    check_batch(prompt_ids_PL, prompt_lengths_P, response_ids_BT, response_mask_BT, prompt_index_B, temperature)
    mask_BT = response_mask_BT.bool()
    lengths_B = prompt_lengths_P[prompt_index_B]
    rows, attention_mask = _join(prompt_ids_PL[prompt_index_B], lengths_B, response_ids_BT, mask_BT)
    plain = has_plain_head(model)
    skipped = 0 if plain else int(prompt_lengths_P.min()) - 1
    out = _hidden(model, rows, attention_mask) if plain else _logits_from(model, rows, attention_mask, skipped)
    steps_T = torch.arange(mask_BT.shape[1], device=rows.device)
    columns_BT = lengths_B[:, None] - 1 - skipped + steps_T
    rows_BT = torch.arange(rows.shape[0], device=rows.device)[:, None].expand_as(columns_BT)
    chosen, token_ids_M = out[rows_BT[mask_BT], columns_BT[mask_BT]], response_ids_BT[mask_BT]
    banned_M = None if ban is None else ban.of_tokens(mask_BT)
    if plain:
        weight_VC = model.get_output_embeddings().weight  # type: ignore[operator]
        scored = score_hidden(
            chosen,
            weight_VC,
            token_ids_M,
            temperature,
            with_entropy,
            entropy_gradient=entropy_gradient,
            banned_M=banned_M,
        )
    else:
        scored = score_tokens(
            chosen, token_ids_M, temperature, with_entropy, entropy_gradient=entropy_gradient, banned_M=banned_M
        )
    return scatter_scores(*scored, mask_BT)


def _join(prompt_ids_BL: Tensor, lengths_B: Tensor, response_ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (B, W) of prompt and response but for the last token, which predicts nothing scored, and their mask."""
    totals_B = lengths_B + mask_BT.sum(1)
    columns_W = torch.arange(max(int(totals_B.max()) - 1, 1), device=lengths_B.device)
    offset = prompt_ids_BL.shape[1]
    from_response_BW = (offset + columns_W - lengths_B[:, None]).clamp(max=offset + response_ids_BT.shape[1] - 1)
    source_BW = torch.where(columns_W < lengths_B[:, None], columns_W.clamp(max=offset - 1), from_response_BW)
    rows = torch.cat((prompt_ids_BL, response_ids_BT), dim=1).gather(1, source_BW)
    return rows, (columns_W < totals_B[:, None]).long()


def _hidden(model: nn.Module, rows: Tensor, attention_mask: Tensor) -> Tensor:
    """The last layer's normed output (B, W, C)."""
    base: Any = model.base_model
    hidden: Tensor = base(input_ids=rows, attention_mask=attention_mask, use_cache=False).last_hidden_state
    return hidden


def _logits_from(model: nn.Module, rows: Tensor, attention_mask: Tensor, skipped: int) -> Tensor:
    """Logits of the columns from ``skipped`` on."""
    options: dict[str, Any] = {"use_cache": False} if _takes(model, "use_cache") else {}
    if not _takes(model, "logits_to_keep"):
        return model(input_ids=rows, attention_mask=attention_mask, **options).logits[:, skipped:]
    options["logits_to_keep"] = rows.shape[1] - skipped
    logits: Tensor = model(input_ids=rows, attention_mask=attention_mask, **options).logits
    return logits


def _takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
