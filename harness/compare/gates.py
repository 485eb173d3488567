"""A regression gate: the verdicts that a command asks for, and their exit code.

The gate fails closed: 0 means that everything that was asked for was compared and is below the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.compare.completeness import Gaps, gap_sentence
from harness.compare.endpoint import endpoint_of_effect
from harness.compare.experiment import Experiment, is_called
from harness.compare.judging import Judgement, direction, judge_against, judgements
from harness.compare.numbers import listed, some
from harness.compare.occasions import Baseline
from harness.compare.stats.estimates import FEWEST_BLOCKS
from harness.compare.stats.verdicts import STEP_THRESHOLD, Effect, Verdict, side_of_limit
from harness.core.errors import UserError

FINE, WORSE, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 3, 4
_GRAVEST_FIRST = (WORSE, NOT_COMPARABLE, INCONCLUSIVE, FINE)


class Judge:
    """Comes to verdicts on experiments, on each of them once; the last two arguments are those of ``judgements``.

    Args:
        arm: what an experiment's other arms are set against; None, or where it has none of that name, its first one.
        against: what all arms are set against in place of one; its own occasions are judged by themselves.
    """

    def __init__(
        self,
        arm: str | None = None,
        against: Baseline | None = None,
        threshold: float = STEP_THRESHOLD,
        allowed: Sequence[str] = (),
    ) -> None:
        self._arm, self._against, self._threshold, self._allowed = arm, against, threshold, allowed
        self._judged: dict[Path, list[Judgement]] = {}

    def __call__(self, experiment: Experiment) -> list[Judgement]:
        """Return the verdicts on an experiment."""
        if experiment.folder not in self._judged:
            rules = self._threshold, self._allowed
            self._judged[experiment.folder] = (
                judgements(experiment, self._arm_of(experiment), *rules)
                if self._against is None or self._against.has(experiment)
                else judge_against(self._against, experiment, *rules)
            )
        return self._judged[experiment.folder]

    def refusal(self, experiment: Experiment) -> Refusal | None:
        """Return why an experiment cannot be set against what was asked for; None where it can."""
        if self._against is not None and self._against.has(experiment):
            title = f"{experiment.scenario}/{experiment.name}"
            same = f"the newest experiment, {title}, is an occasion of the baseline itself: nothing new has run"
            return Refusal(NOT_COMPARABLE, f"there is nothing to compare: {same}")
        if self._against is None and self._arm is not None and self._arm_of(experiment) is None:
            lacks = f"no run of the arm {self._arm!r}, the baseline, can be read in the newest experiment"
            return Refusal(NOT_COMPARABLE, f"not comparable: {lacks}")
        return None

    def _arm_of(self, experiment: Experiment) -> str | None:
        return next((arm for arm in experiment.arms if self._arm is not None and is_called(arm, self._arm)), None)


class Refusal(NamedTuple):
    """Why a gate cannot pass, beside what the verdicts say: the exit code that it comes to, and a sentence."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """The exit code, and a sentence for each arm and each refusal that says how it came to that."""

    code: int
    sentences: tuple[str, ...]


def refusals_of(newer: Sequence[Path], absent: Gaps) -> list[Refusal]:
    """Return what is missing of what was asked for: experiments that began after the judged one and cannot be read, and
    what is absent of the judged one."""
    refusals = []
    if newer:
        names = listed(some([repr(str(folder)) for folder in newer]))
        why = f"{names} began later and cannot be read: an older experiment does not stand for it"
        refusals.append(Refusal(NOT_COMPARABLE, f"not comparable: {why}"))
    if absent.lost:
        refusals.append(Refusal(NOT_COMPARABLE, f"not comparable: no run of {listed(absent.lost)} can be read"))
    if absent.runs:
        refusals.append(Refusal(INCONCLUSIVE, f"cannot tell: {gap_sentence(absent.runs)}"))
    return refusals


def gate(judgements: Sequence[Judgement], limit: float, refusals: Sequence[Refusal] = ()) -> GateResult:
    """Judge whether any arm is worse than the baseline by more than ``limit``, in the experiment's primary endpoint.

    An arm is worse if its whole 95% interval, corrected for the number of arms, lies above 1 + limit, and passes if it
    lies below. It is not comparable where the verdict says so, or where the baseline differs from itself (A/A).
    Anything else cannot be told: too few blocks, or runs that did not finish. The gravest of all arms and refusals
    counts: worse, not comparable, cannot tell, fine.

    Args:
        judgements: made with ``limit``, such as 0.05, as their threshold.
        refusals: what keeps the gate from passing whatever the verdicts are.
    """
    arms = sum(not judgement.is_noise_floor for judgement in judgements)
    judged = [_judge(judgement, limit, arms) for judgement in judgements]
    judged += [(refusal.code, f"gate: {refusal.text}.") for refusal in refusals]
    if not arms and not refusals:
        judged.append((INCONCLUSIVE, "gate: there is nothing to compare with the baseline."))
    code = min((code for code, _ in judged), key=_GRAVEST_FIRST.index)
    return GateResult(code, tuple(sentence for _, sentence in judged))


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
        raise UserError(f"{text!r} is not a share above 0% and below 100%", where, f"write for example {where} 5%")
    return value


def _judge(judgement: Judgement, limit: float, arms: int) -> tuple[int, str]:
    effect, floor = judgement.primary, judgement.noise_floor
    endpoint = endpoint_of_effect(effect)
    against, interval = f"gate: {judgement.other} against {judgement.base}, {endpoint.words}", _interval(effect)
    reason = effect.reason if effect.verdict is Verdict.NOT_COMPARABLE else judgement.no_gate
    if judgement.is_noise_floor:
        refused = effect.verdict is Verdict.NOT_COMPARABLE
        word = f"not comparable: {reason}" if refused else direction(effect)
        code = INCONCLUSIVE if judgement.unfinished else FINE
        code = NOT_COMPARABLE if refused or effect.verdict is Verdict.DIFFERENT else code
        return code, f"{against}: the same settings, {interval}: {word}."
    if reason is None and floor is not None and floor.verdict is Verdict.DIFFERENT:
        reason = f"the baseline is {_interval(floor)} from itself"
    if reason is not None:
        return NOT_COMPARABLE, f"{against}: not comparable: {reason}."
    if effect.low is None or effect.p_adjusted is None or effect.blocks < FEWEST_BLOCKS:
        return INCONCLUSIVE, f"{against}: cannot tell: {effect.reason}."
    bound, side = endpoint.change(1 + limit), side_of_limit(effect, limit, arms)
    if side == "above":
        return WORSE, f"{against}: worse: {interval}; the limit is {bound}."
    if judgement.unfinished:
        return INCONCLUSIVE, f"{against}: cannot tell: {judgement.unfinished} runs did not finish ({interval})."
    if side == "below":
        return FINE, f"{against}: fine: {interval}; the limit is {bound}."
    return INCONCLUSIVE, f"{against}: cannot tell: {interval} reaches the limit of {bound}."


def _interval(effect: Effect) -> str:
    """Write an effect with its interval: ``+8.0%, 95% interval +6.0% to +10.0%``."""
    if effect.ratio is None:
        return "no figures"
    endpoint = endpoint_of_effect(effect)
    ends = endpoint.ends(effect)
    return f"{endpoint.change(effect.ratio)}, {'no interval' if ends is None else f'95% interval {ends}'}"
