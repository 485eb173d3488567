"""A regression gate: what a baseline's name stands for, the verdicts that a command asks for, and their exit code.

The gate fails closed: 0 means that everything that was asked for was compared and is below the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.compare.baselines import load_baseline, read_baselines, unknown_baseline
from harness.compare.completeness import Gaps, gap_sentence, newer_sentence
from harness.compare.endpoints import endpoint_of_effect
from harness.compare.experiments import Experiment, is_called
from harness.compare.numbers import listed
from harness.compare.stats import FEWEST_BLOCKS, STEP_THRESHOLD, Verdict, side_of_limit
from harness.compare.verdicts import Baseline, Judgement, judge_against, judgements
from harness.core.errors import UserError

FINE, WORSE, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 3, 4
_GRAVEST_FIRST = (WORSE, NOT_COMPARABLE, INCONCLUSIVE, FINE)


@dataclass(frozen=True, slots=True)
class Named:
    """What the name of a baseline stands for: an arm of the experiment itself, or a stored baseline."""

    kind: Literal["arm", "stored"]
    name: str


def read_name(text: str, results: Path, arms: Collection[str]) -> Named:
    """Tell what ``--baseline TEXT`` stands for; ``arm:NAME`` and ``stored:NAME`` say it.

    Args:
        results: the results folder, where names of baselines are kept.
        arms: of the newest experiment, those among them that cannot be read.

    Raises:
        UserError: the name is both a stored baseline's and an arm's, or neither's.
    """
    kind, _, rest = text.partition(":")
    if kind == "stored" and rest:
        return Named("stored", rest)
    as_arm = rest if kind == "arm" and rest else text
    is_arm = any(is_called(arm, as_arm) for arm in arms)
    is_stored = as_arm == text and text in read_baselines(results)
    if is_arm and is_stored:
        what = f"{text!r} is a stored baseline, and an arm of the newest experiment"
        raise UserError(what, "--baseline", f"write --baseline stored:{text} or --baseline arm:{text}")
    if is_stored:
        return Named("stored", text)
    if is_arm:
        return Named("arm", as_arm)
    raise unknown_baseline(results, text, arms)


class Judge:
    """Comes to verdicts on experiments, on each of them once.

    Args:
        results: the results folder, where baselines are stored.
        baseline: what experiments are set against; None takes each experiment's first arm. An experiment without the
            arm takes its first one too.
        threshold: the relative change of the primary endpoint that counts.
        allowed: differences of environment and settings that do not stand in the way.
    """

    def __init__(
        self,
        results: Path,
        baseline: Named | None = None,
        threshold: float = STEP_THRESHOLD,
        allowed: Sequence[str] = (),
    ) -> None:
        self._results, self._named, self._threshold, self._allowed = results, baseline, threshold, allowed
        self._judged: dict[Path, list[Judgement]] = {}
        self._stored: Baseline | None = None

    def __call__(self, experiment: Experiment) -> list[Judgement]:
        """Return the verdicts on an experiment.

        Raises:
            UserError: there is no such baseline, or its runs cannot be read.
        """
        if experiment.folder not in self._judged:
            self._judged[experiment.folder] = self._judge(experiment)
        return self._judged[experiment.folder]

    @property
    def stored(self) -> Baseline | None:
        """The stored baseline; None where an arm is the baseline.

        Raises:
            UserError: there is no such baseline, or its runs cannot be read.
        """
        if self._stored is None and self._named is not None and self._named.kind == "stored":
            self._stored = load_baseline(self._results, self._named.name)
        return self._stored

    def refusal(self, experiment: Experiment) -> Refusal | None:
        """Return why an experiment cannot be set against what was asked for; None where it can."""
        if self._named is not None and self._named.kind == "arm":
            if any(is_called(variant.name, self._named.name) for variant in experiment.variants):
                return None
            lacks = f"no run of the arm {self._named.name!r}, the baseline, can be read in the newest experiment"
            return Refusal(NOT_COMPARABLE, f"not comparable: {lacks}")
        if self.stored is None:
            return None
        if self._is_occasion(experiment):
            title = f"{experiment.scenario}/{experiment.name}"
            same = f"the newest experiment, {title}, is an occasion of the baseline itself: nothing new has run"
            return Refusal(NOT_COMPARABLE, f"there is nothing to compare: {same}")
        return None

    def _is_occasion(self, experiment: Experiment) -> bool:
        occasions = self.stored.occasions if self.stored is not None else ()
        return experiment.folder.resolve() in {occasion.folder.resolve() for occasion in occasions}

    def _judge(self, experiment: Experiment) -> list[Judgement]:
        arm = self._named.name if self._named is not None else None
        if self.stored is not None:
            if not self._is_occasion(experiment):
                return judge_against(self.stored, experiment, self._threshold, self._allowed)
            arm = self.stored.variant.name
        if not any(arm is not None and is_called(variant.name, arm) for variant in experiment.variants):
            arm = None
        return judgements(experiment, arm, self._threshold, self._allowed)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gate cannot pass, beside what the verdicts say: the exit code that it comes to, and a sentence."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """The exit code, and a sentence for each arm and each refusal that says how it came to that."""

    code: int
    sentences: tuple[str, ...]


def refusals_of(newer: Sequence[Path], found: Gaps) -> list[Refusal]:
    """Return what is missing of what was asked for.

    Args:
        newer: experiments that began after the judged one and cannot be read.
        found: runs of the judged one that are damaged or missing.
    """
    refusals = []
    if newer:
        refusals.append(Refusal(NOT_COMPARABLE, f"not comparable: {newer_sentence(newer)}"))
    if found.lost:
        arms = listed(list(found.lost))
        refusals.append(Refusal(NOT_COMPARABLE, f"not comparable: no run of {arms} can be read"))
    if found.runs:
        refusals.append(Refusal(INCONCLUSIVE, f"inconclusive: {gap_sentence(found.runs)}"))
    return refusals


def gate(judgements: Sequence[Judgement], limit: float, refusals: Sequence[Refusal] = ()) -> GateResult:
    """Judge whether any arm is worse than the baseline by more than ``limit``, in the experiment's primary endpoint.

    An arm is worse if its whole 95% interval, corrected for the number of arms, lies above 1 + limit, and passes if it
    lies below. It is not comparable where the verdict says so, or where the baseline differs from itself (A/A).
    Anything else is inconclusive: too few blocks, or runs that did not finish. The gravest of all arms and refusals
    counts: worse, not comparable, inconclusive, fine.

    Args:
        judgements: made with ``limit`` as their threshold.
        limit: relative, such as 0.05.
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
    against = f"gate: {judgement.other} against {judgement.base}, {endpoint.words}"
    interval = endpoint.interval(effect)
    if judgement.is_noise_floor:
        text = f"{against}: the same settings, {interval}, {effect.verdict.value}."
        if effect.verdict in (Verdict.DIFFERENT, Verdict.NOT_COMPARABLE):
            return NOT_COMPARABLE, text
        return (INCONCLUSIVE if judgement.unfinished else FINE), text
    reason = effect.reason if effect.verdict is Verdict.NOT_COMPARABLE else judgement.no_gate
    if reason is None and floor is not None and floor.verdict is Verdict.DIFFERENT:
        reason = f"the baseline is {endpoint.interval(floor)} from itself"
    if reason is not None:
        return NOT_COMPARABLE, f"{against}: not comparable: {reason}."
    decided = effect.p_adjusted is not None and effect.blocks >= FEWEST_BLOCKS
    if effect.low is None or effect.high is None or not decided:
        return INCONCLUSIVE, f"{against}: inconclusive: {effect.reason}."
    bound, side = endpoint.change(1 + limit), side_of_limit(effect, limit, arms)
    if side == "above":
        return WORSE, f"{against}: worse: {interval}; the limit is {bound}."
    if judgement.unfinished:
        return INCONCLUSIVE, f"{against}: inconclusive: {judgement.unfinished} runs did not finish ({interval})."
    if side == "below":
        return FINE, f"{against}: fine: {interval}; the limit is {bound}."
    return INCONCLUSIVE, f"{against}: inconclusive: {interval} reaches the limit of {bound}."
