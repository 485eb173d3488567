"""Rows of tokens for models that transformers runs: padded ones, and such with several responses behind a prompt.

A shared row is a prompt and, behind one another, responses to it without their last tokens. Positions start again
behind the prompt for each response, and a mask (R, 1, W, W), added to the scores of attention, lets each response see
its prompt and itself. That is exact where every layer attends fully, to what the mask allows; ``policy`` tries it.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.models.matmul import rounded_up
from harness.models.scoring import ScoreRequest

_SHORT_SIGHT = re.compile("window|chunk|sliding|local_att|sparse_att|block_?sparse|index_topk|alibi")
"""Names of settings of layers that see less than everything before them, or add what no mask shows; a short trial would
not notice a long window. ``max_window_layers`` says nothing by itself."""


@dataclass(frozen=True, slots=True)
class Rows:
    """R rows of W tokens, and the places that predict the M scored tokens, in the order of the response mask.

    ``attention_mask`` is (R, W), 1 for tokens, or of shared rows (R, 1, W, W), which also have ``position_ids_RW``.
    """

    token_ids_RW: Tensor
    attention_mask: Tensor
    rows_M: Tensor
    columns_M: Tensor
    position_ids_RW: Tensor | None = None

    def inputs(self) -> dict[str, Tensor]:
        """The arguments of a model's forward pass."""
        inputs = {"input_ids": self.token_ids_RW, "attention_mask": self.attention_mask}
        return inputs if self.position_ids_RW is None else {**inputs, "position_ids": self.position_ids_RW}


@dataclass(frozen=True, slots=True)
class Layout:
    """Which prompt each of R rows holds, each of B responses' row and first column, and the width of all rows."""

    prompt_R: list[int]
    row_B: list[int]
    start_B: list[int]
    width: int

    def cost(self, hidden_size: int) -> int:
        """What a layer's products take, in units of 6 h operations of a matrix: R W (4 h + W).

        A layer of 12 h^2 weights takes 24 h^2 operations for a token, and 4 h for each of the W tokens that its row's
        scores are made of, masked or not (Kaplan et al. 2020, arXiv:2001.08361, table 1); those take half as long
        again, measured on one thread of a CPU (docs/benchmarks.md).
        """
        return len(self.prompt_R) * self.width * (4 * hidden_size + self.width)


def lay_out(
    prompt_lengths: Sequence[int], response_lengths: Sequence[int], prompt_index: Sequence[int], per_row: int
) -> Layout:
    """Put at most ``per_row`` responses behind each copy of their prompt; 1 gives the rows that share nothing."""
    current: dict[int, int] = {}
    prompt_R, ends_R, held_R = list[int](), list[int](), list[int]()
    row_B, start_B = list[int](), list[int]()
    for prompt, length in zip(prompt_index, response_lengths, strict=True):
        row = current.get(prompt)
        if row is None or held_R[row] == per_row:
            row = current[prompt] = len(prompt_R)
            prompt_R.append(prompt)
            ends_R.append(prompt_lengths[prompt])
            held_R.append(0)
        row_B.append(row)
        start_B.append(ends_R[row])
        ends_R[row] += max(length - 1, 0)
        held_R[row] += 1
    return Layout(prompt_R, row_B, start_B, max(ends_R, default=0))


def cheapest_layout(request: ScoreRequest, hidden_size: int) -> Layout | None:
    """Return the cheapest of a few layouts by ``Layout.cost``: whole groups, halves, quarters; None: unshared rows.

    It must save a tenth, or gain nothing that can be measured, and have no more tokens than unshared rows, which are
    those that the memory plan counts.
    """
    index = request.prompt_index_B.tolist()
    parts = request.prompt_lengths_P.tolist(), request.response_mask_BT.sum(1).tolist(), index
    unshared = lay_out(*parts, per_row=1)
    most, best, cheapest = len(index) * unshared.width, None, 0.9 * unshared.cost(hidden_size)
    per_row = max(Counter(index).values(), default=1)
    while per_row > 1:
        tight = lay_out(*parts, per_row=per_row)
        layout = replace(tight, width=rounded_up(tight.width))
        if layout.cost(hidden_size) < cheapest and len(layout.prompt_R) * layout.width <= most:
            best, cheapest = layout, layout.cost(hidden_size)
        per_row = (per_row + 1) // 2
    return best


def shared_rows(request: ScoreRequest, layout: Layout, dtype: torch.dtype) -> Rows:
    """Fill the rows of a layout; ``dtype`` is that of the mask."""
    prompt_ids_PL, response_ids_BT, mask_BT = request.prompt_ids_PL, request.response_ids_BT, request.mask_BT
    lengths_B = request.prompt_lengths_P[request.prompt_index_B]
    row_B, start_B, prompt_R = (
        torch.tensor(places, device=prompt_ids_PL.device) for places in (layout.row_B, layout.start_B, layout.prompt_R)
    )
    ids_RW = torch.zeros(len(prompt_R), layout.width, dtype=torch.long, device=prompt_ids_PL.device)
    positions_RW, part_RW = torch.zeros_like(ids_RW), torch.full_like(ids_RW, -1)
    columns_L = torch.arange(prompt_ids_PL.shape[1], device=prompt_ids_PL.device)
    row, column = (columns_L < request.prompt_lengths_P[prompt_R, None]).nonzero(as_tuple=True)
    ids_RW[row, column], positions_RW[row, column] = prompt_ids_PL[prompt_R[row], column], column
    part_RW[row, column] = 0
    response, step = mask_BT[:, 1:].nonzero(as_tuple=True)
    row, column = row_B[response], start_B[response] + step
    ids_RW[row, column], positions_RW[row, column] = response_ids_BT[response, step], lengths_B[response] + step
    part_RW[row, column] = response + 1
    response, step = mask_BT.nonzero(as_tuple=True)
    columns_M = torch.where(step == 0, lengths_B[response] - 1, start_B[response] + step - 1)
    seen_RWW = (part_RW[:, None] == part_RW[:, :, None]) | (part_RW[:, None] == 0)
    return Rows(ids_RW, added_mask(seen_RWW, dtype), row_B[response], columns_M, positions_RW)


def padded_rows(request: ScoreRequest) -> Rows:
    """Rows (B, W) of prompt and response but for the last token, which predicts nothing scored.

    They are padded at the right, so that positions are those that a model counts by itself.
    """
    mask_BT, lengths_B = request.mask_BT, request.prompt_lengths_P[request.prompt_index_B]
    ids_BX = torch.cat((request.prompt_ids_PL[request.prompt_index_B], request.response_ids_BT), dim=1)
    totals_B, offset = lengths_B + mask_BT.sum(1), request.prompt_ids_PL.shape[1]
    columns_W = torch.arange(max(int(totals_B.max()) - 1, 1), device=lengths_B.device)
    from_response_BW = (offset + columns_W - lengths_B[:, None]).clamp(max=ids_BX.shape[1] - 1)
    source_BW = torch.where(columns_W < lengths_B[:, None], columns_W.clamp(max=offset - 1), from_response_BW)
    rows_M, steps_M = mask_BT.nonzero(as_tuple=True)
    return Rows(
        ids_BX.gather(1, source_BW),
        (columns_W < totals_B[:, None]).long(),
        rows_M,
        lengths_B[rows_M] - 1 + steps_M,
    )


def added_mask(seen_RWW: Tensor, dtype: torch.dtype) -> Tensor:
    """(R, 1, W, W): 0 where a query may look, among what is not behind it, and the lowest number elsewhere."""
    hidden_RWW = seen_RWW.tril().logical_not_()
    return torch.zeros_like(hidden_RWW, dtype=dtype).masked_fill_(hidden_RWW, torch.finfo(dtype).min)[:, None]


def why_not_by_config(model: nn.Module) -> str:
    """Why a model cannot take shared rows, by what it says of itself; empty where nothing speaks against a trial."""
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(model, "base_model"):
        return "no model of transformers"
    if getattr(config, "is_encoder_decoder", False) or getattr(model, "_is_stateful", False):
        return "its layers do more than attend"
    base: Any = model.base_model
    if any("position_ids" not in inspect.signature(runs.forward).parameters for runs in (model, base)):
        return "its forward pass takes no positions"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention has a code of its own"
    of_text = config.get_text_config()
    kind = getattr(of_text, "_attn_implementation", None)
    if kind not in ("sdpa", "eager"):
        return f"its attention is {kind}, which takes no mask of every pair"
    if getattr(of_text, "hidden_size", None) is None:
        return "its config has no hidden_size"
    others = set(getattr(of_text, "layer_types", None) or []) - {"full_attention"}
    if others:
        return f"it has layers of {', '.join(sorted(others))}"
    windows = getattr(of_text, "use_sliding_window", None) is not False
    for name, value in vars(of_text).items():
        if not value or name in ("layer_types", "max_window_layers") or (name == "sliding_window" and not windows):
            continue
        if _SHORT_SIGHT.search(name):
            return f"its config has {name}"
    return ""
