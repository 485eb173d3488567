"""Blocks as they come in: what to say of the arms so far, and whether there are enough of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.compare.stats import PairedBlock, enough, judge_step
from harness.core.trace import Stage

Row = dict[str, Any]


class BlockWatch:
    """Keeps the step times of each arm and block, and sets every arm against the first one.

    Args:
        arms: names, the baseline first.
        blocks: how many are made at most.
        stop_at: no more are made once the 95% interval of every ratio is within this of its middle; None makes all.
        alternated: whether arms take turns by step, so that step i of two arms are neighbours in time.
    """

    def __init__(self, arms: Sequence[str], blocks: int, stop_at: float | None, alternated: bool) -> None:
        self._arms, self._blocks, self._stop_at, self._alternated = list(arms), blocks, stop_at, alternated
        self._seconds: dict[tuple[int, str], dict[int, float]] = {}

    def listener(self, block: int, arm: str) -> Callable[[Row, float], None]:
        """Return what hears of each row of an arm's run in a block."""
        seconds = self._seconds.setdefault((block, arm), {})

        def keep(row: Row, train_s: float) -> None:
            left_out = row.get("warmup") or row.get("profiled") or row.get("stages_s", {}).get(Stage.EVALUATE.value)
            if row["kind"] == "step" and not left_out:
                seconds[row["step"]] = row["wall_s"]

        return keep

    def paired(self, arm: str) -> list[PairedBlock]:
        """Return the blocks in which both this arm and the first one have steps to compare."""
        numbers = sorted({block for block, _ in self._seconds})
        pairs = [
            PairedBlock.from_steps(
                self._seconds.get((block, self._arms[0]), {}), self._seconds.get((block, arm), {}), self._alternated
            )
            for block in numbers
        ]
        return [pair for pair in pairs if pair is not None]

    @property
    def is_enough(self) -> bool:
        """Whether every arm's interval is as narrow as asked for."""
        if self._stop_at is None:
            return False
        return all(enough(self.paired(arm), self._stop_at, most=self._blocks) for arm in self._arms[1:])

    def line(self, block: int) -> str:
        """Say how the arms stand after a block."""
        said = [self._standing(arm) for arm in self._arms[1:]]
        return f"block {block + 1} of {self._blocks}" + (f": {'; '.join(said)}" if said else " done")

    def _standing(self, arm: str) -> str:
        pairs = self.paired(arm)
        effect = judge_step(pairs)
        if effect.ratio is None:
            return f"{arm}: no step to compare with {self._arms[0]}"
        text = f"{arm} takes {effect.ratio:.3f} times the step time of {self._arms[0]}"
        if effect.low is None or effect.high is None:
            return text
        return f"{text}, 95% interval {effect.low:.3f} to {effect.high:.3f}"
