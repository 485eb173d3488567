"""A regression gate: verdicts to an exit code that a CI job can act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.compare import numbers
from harness.compare.stats import FEWEST_BLOCKS, Verdict
from harness.compare.verdicts import Judgement
from harness.core.errors import UserError

FINE, WORSE, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 3, 4
_GRAVEST_FIRST = (WORSE, NOT_COMPARABLE, INCONCLUSIVE, FINE)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The exit code, and a sentence for each arm that says how it came to that."""

    code: int
    sentences: tuple[str, ...]


def gate(judgements: Sequence[Judgement], limit: float) -> GateResult:
    """Judge whether any arm's step time is worse than the baseline's by ``limit`` or more.

    An arm passes if its whole 95% interval lies below 1 + limit. It is worse if it is different and at least that much
    slower. It is not comparable where the verdict says so, where the machine's speed went astray, or where the
    baseline differs from itself (A/A). Anything else is inconclusive: too few blocks, or runs that did not finish.
    The gravest of all arms counts: worse, not comparable, inconclusive, fine.

    Args:
        judgements: made with ``limit`` as their threshold.
        limit: relative, such as 0.05.
    """
    found = [_judge(judgement, limit) for judgement in judgements]
    if not found or all(judgement.is_noise_floor for judgement in judgements):
        return GateResult(INCONCLUSIVE, ("gate: there is nothing to set against the baseline.",))
    code = next(code for code in _GRAVEST_FIRST if code in {item[0] for item in found})
    return GateResult(code, tuple(sentence for _, sentence in found))


def read_limit(text: str, where: str = "--fail-on") -> float:
    """Read ``5%`` or ``0.05``, given for the option ``where``.

    Raises:
        UserError: it is neither, or not above 0 and below 100%.
    """
    digits = text.strip().removesuffix("%")
    try:
        value = float(digits) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1:
        raise UserError(f"{text!r} is no share above 0% and below 100%", where, f"write for example {where} 5%")
    return value


def _judge(judgement: Judgement, limit: float) -> tuple[int, str]:
    step, floor = judgement.step, judgement.noise_floor
    against = f"gate: {judgement.other} against {judgement.base}"
    if judgement.is_noise_floor:
        differs = step.verdict is Verdict.DIFFERENT
        said = f"{against}: the same settings, {numbers.change(step.ratio)}, {step.verdict.value}."
        return (NOT_COMPARABLE if differs else FINE), said
    if step.verdict is Verdict.NOT_COMPARABLE:
        return NOT_COMPARABLE, f"{against}: not comparable: {step.reason}."
    if judgement.too_unstable is not None:
        return NOT_COMPARABLE, f"{against}: not comparable: {judgement.too_unstable}."
    if floor is not None and floor.verdict is Verdict.DIFFERENT:
        return (
            NOT_COMPARABLE,
            f"{against}: not comparable: the baseline is {numbers.change(floor.ratio)} from itself.",
        )
    if step.low is None or step.high is None or step.blocks < FEWEST_BLOCKS:
        return INCONCLUSIVE, f"{against}: inconclusive: {step.reason}."
    interval = f"{numbers.change(step.ratio)}, 95% interval {numbers.change(step.low)} to {numbers.change(step.high)}"
    if step.verdict is Verdict.DIFFERENT and step.ratio is not None and step.ratio >= 1 + limit:
        return WORSE, f"{against}: worse: {interval}; the limit is {numbers.change(1 + limit)}."
    if judgement.unfinished:
        return INCONCLUSIVE, f"{against}: inconclusive: {judgement.unfinished} runs did not finish ({interval})."
    if step.high < 1 + limit:
        return FINE, f"{against}: fine: {interval}; the limit is {numbers.change(1 + limit)}."
    return INCONCLUSIVE, f"{against}: inconclusive: {interval} reaches the limit of {numbers.change(1 + limit)}."
