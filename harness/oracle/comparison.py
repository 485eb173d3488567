"""Whether an implementation's options mean what ours do: on one batch, and on the worst of many others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.oracle.ask import Answer, Implementation
from harness.oracle.options import Option, step_of
from harness.oracle.ours import ours
from harness.oracle.step import Step

TOLERANCE = {"loss": 1e-6, "advantages": 1e-5}
"""Differences up to this are equal: of a gradient, of its largest value; of advantages, of 1. Trainers have advantages
and some weights in float32."""
GAP = 5.0
"""Log-probs of two policies differ by at most this in a batch that is searched for: ratios of 0.007 to 148."""


NEAR = 30
"""Hundredths of a log-prob: ratios of 0.74 to 1.35, where most clips lie."""


@dataclass(frozen=True)
class Cell:
    """What was found of one option of one implementation.

    Attributes:
        status: ``equal`` where no batch had a difference above the tolerance.
        gap: the largest difference that was seen, of the largest gradient or of 1; 0 where nothing was compared.
        searched: batches that were compared.
        words: its options, in its own words.
        why: why it has no answer or no counterpart.
        smallest: the smallest batch that was found to differ.
        is_rare: whether only batches that were searched differ, and the usual one does not.
        of: which of its advantage functions answered.
    """

    status: Literal["equal", "differs", "no counterpart", "failed"]
    gap: float = 0.0
    searched: int = 0
    words: dict[str, Any] | None = None
    why: str = ""
    smallest: Step | None = None
    is_rare: bool = False
    of: str = ""


def compared(implementation: Implementation, option: Option, batch: Mapping[str, Tensor], examples: int) -> list[Cell]:
    """Return what was found of an option: a cell for its loss, or for each of the advantage functions.

    Args:
        implementation: that is asked.
        option: of ``OPTIONS``.
        batch: the tensors that are compared first.
        examples: batches that are searched beside it for a larger difference, and for the smallest that differs.
    """
    cells = cells_of(implementation, option, step_of(option, batch))
    return [_searched(implementation, option, at, cell, examples) for at, cell in enumerate(cells)]


def cells_of(implementation: Implementation, option: Option, step: Step) -> list[Cell]:
    """Return what an implementation makes of one step: a cell for its loss, or for each of its advantage functions."""
    answer = implementation.ask(step)
    if isinstance(answer, str):
        return [Cell("failed", why=answer)]
    return _cells(option, step, answer)


def _cells(option: Option, step: Step, answer: Answer) -> list[Cell]:
    own, cells = ours(step), list[Cell]()
    if option.asks == "loss":
        loss = answer.losses[0]
        if loss.gradient is None:
            return [_absent(loss.absent or "")]
        made = torch.tensor(loss.gradient, dtype=torch.float64)
        return [_cell(option, made, own.gradient, float(own.gradient.abs().max()), loss.options)]
    for each in answer.advantages:
        if each.values is None:
            cells.append(_absent(each.absent or "", each.of))
        else:
            assert own.advantages is not None
            made = torch.tensor(each.values, dtype=torch.float64)
            cells.append(replace(_cell(option, made, own.advantages, 1.0, each.options), of=each.of))
    return cells or [Cell("no counterpart", why="no advantage function is called")]


def _absent(why: str, of: str = "") -> Cell:
    failed = why.removeprefix("failed: ")
    return Cell("no counterpart", why=why, of=of) if failed == why else Cell("failed", why=failed, of=of)


def _cell(option: Option, made: Tensor, own: Tensor, scale: float, words: dict[str, Any]) -> Cell:
    """Compare numbers; a gradient is a sum of terms that may cancel, so 1e-8 of difference counts as none."""
    largest = float((made - own).abs().max()) if len(own) else 0.0
    scale = max(scale, float(made.abs().max()) if len(made) and option.asks == "loss" else 0.0)
    gap = 0.0 if largest <= 1e-8 else largest / scale if torch.isfinite(made).all() else float("inf")
    return Cell("equal" if gap <= TOLERANCE[option.asks] else "differs", gap, 1, words)


def _searched(implementation: Implementation, option: Option, at: int, cell: Cell, examples: int) -> Cell:
    """Search for the batch with the largest difference, and of those that differ for the smallest."""
    if cell.status not in ("equal", "differs") or not examples:
        return cell
    try:
        from hypothesis import HealthCheck, Phase, find, settings, target
        from hypothesis.errors import NoSuchExample, UnsatisfiedAssumption
    except ImportError:
        raise UserError("hypothesis is not installed, which searches", "--search", "pip install hypothesis") from None
    worst, number = cell, 1

    def differs(tensors: dict[str, Tensor]) -> bool:
        nonlocal worst, number
        step = step_of(option, tensors)
        cells = cells_of(implementation, option, step)
        found = cells[at] if at < len(cells) else cells[0]
        if found.status == "failed" or found.gap > worst.gap:
            worst = found
        if found.status not in ("equal", "differs"):
            raise UnsatisfiedAssumption
        number += 1
        if found.status == "differs":  # below lies rounding, which is not worth climbing
            target(min(found.gap, 1e6))
        return found.status == "differs"

    def looked(condition: Callable[[dict[str, Tensor]], bool], phase: Phase) -> dict[str, Tensor] | None:
        chosen = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, phase),
            suppress_health_check=list(HealthCheck),
        )
        try:
            made: dict[str, Tensor] = find(_batches(option), condition, settings=chosen, random=random.Random(0))
        except NoSuchExample:
            return None
        return made

    looked(lambda tensors: differs(tensors) and False, Phase.target)  # the largest difference: none is enough
    if worst.status != "differs":
        return replace(worst, searched=number)
    smallest = looked(differs, Phase.shrink)
    found = None if smallest is None else step_of(option, smallest)
    return replace(worst, searched=number, smallest=found, is_rare=cell.status == "equal")


def _batches(option: Option) -> Any:
    """Return Hypothesis' strategy of batches: up to 3 groups of up to 4 rollouts of up to 4 tokens.

    Each tensor of log-probs is the one before it plus up to ``GAP``, in hundredths. Rewards are multiples of 0.05 and,
    unless equal ones are asked for, differ in each group.
    """
    import numpy as np
    from hypothesis import strategies as st
    from hypothesis.extra.numpy import arrays

    parts = option.header.ranks * option.header.microbatches
    needed = option.header.loss.needed()

    @st.composite
    def batches(draw: Any) -> dict[str, Tensor]:
        size = parts if parts > 1 else draw(st.integers(2, 4))
        groups, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        rows = groups * size

        def drawn(least: int, most: int) -> Tensor:
            near = st.integers(max(least, -NEAR), min(most, NEAR))
            values = near | st.integers(least, most) | st.sampled_from((least, most))  # where bounds act
            hundredths = draw(arrays(np.int64, (rows, tokens), elements=values, fill=st.just(0)))
            return torch.from_numpy(hundredths).double() / 100

        lengths = draw(arrays(np.int64, rows, elements=st.integers(1, tokens), fill=st.just(1)))
        twentieths = draw(arrays(np.int64, rows, elements=st.integers(0, 20), fill=st.just(0))).reshape(groups, size)
        alike = (twentieths == twentieths[:, :1]).all(axis=1)
        if not option.equal_rewards:
            twentieths[alike, 0] += 1
        most = int(100 * GAP)
        old = -drawn(0, 1000) - GAP - 0.01  # so that none is above 0
        further = {name: old + drawn(-most, most) for name in needed if name != "entropy"}
        return further | {
            "log_probs": old + drawn(-most, most),
            "old_log_probs": old,
            "entropy": drawn(0, 500) if "entropy" in needed else torch.zeros_like(old),
            "mask": (torch.arange(tokens)[None] < torch.from_numpy(lengths)[:, None]).to(torch.uint8),
            "rewards": torch.from_numpy(twentieths).reshape(-1).double() / 20,
            "advantages": draw(
                arrays(np.int64, rows, elements=st.integers(-300, 300), fill=st.just(100)).map(
                    lambda values: torch.from_numpy(values).double() / 100
                )
            ),
            "group": torch.arange(groups).repeat_interleave(size),
            "rows": torch.arange(rows),
        }

    return batches()
