"""A regression gate: baselines kept by name, the verdicts that a command asks for, and the exit code they come to."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compare.experiments import Experiment, gather, is_called
from harness.compare.numbers import change
from harness.compare.stats import FEWEST_BLOCKS, STEP_THRESHOLD, Verdict
from harness.compare.verdicts import Baseline, Judgement, judge_against, judgements, variant_named
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results.jsonl import parse_json, read_file

FILE = "baselines.json"
SCHEMA, SCHEMA_VERSION = "harness.baselines", 1


def save_baseline(results: Path, name: str, experiment: Experiment, arm: str | None = None) -> str | None:
    """Give an experiment's arm a name, next to the results; a name that exists is moved there.

    Args:
        results: the results folder that holds the experiment.
        name: of the baseline.
        experiment: in that folder.
        arm: None takes its first one.

    Returns:
        what the name meant before, or None.

    Raises:
        UserError: the experiment lies elsewhere, has no such arm, or the file cannot be read or written.
    """
    variant = variant_named(experiment, arm)
    try:
        place = experiment.folder.resolve().relative_to(results.resolve()).as_posix()
    except ValueError:
        what = f"the experiment {str(experiment.folder)!r} is not in {str(results)!r}"
        raise UserError(what, "--save-baseline", "name the results folder that holds it") from None
    entries = _read(results / FILE)
    before = entries.get(name)
    entries[name] = {"campaign": place, "arm": variant.name}
    data = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "baselines": dict(sorted(entries.items()))}
    try:
        with whole_file(results / FILE) as stream:
            stream.write((json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        problem = f"cannot write {str(results / FILE)!r}: {error.strerror or error}"
        raise UserError(problem, str(results / FILE)) from error
    return None if before is None else f"{before['campaign']}, {before['arm']}"


def load_baseline(results: Path, name: str) -> Baseline:
    """Read the runs that a name stands for.

    Raises:
        UserError: there is no such name, or its experiment is gone or damaged.
    """
    entries = _read(results / FILE)
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none yet"
        fix = f"name an arm of the experiment, or one of the baselines of {results / FILE} ({known})"
        raise UserError(f"there is no baseline and no arm called {name!r}", "--baseline", fix)
    (experiment,), _ = gather([results / entries[name]["campaign"]])
    return Baseline(experiment, variant_named(experiment, entries[name]["arm"]))


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        content = read_file(path)
    except FileNotFoundError:
        return {}
    try:
        data = parse_json(content)
    except ValueError as error:
        raise UserError(f"cannot read {str(path)!r}: {error}", str(path), "mend or remove it") from error
    entries = data.get("baselines") if isinstance(data, dict) and data.get("schema_version") == SCHEMA_VERSION else None
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("campaign", "arm"))
        for entry in entries.values()
    ):
        raise UserError(f"{str(path)!r} is no list of baselines of version {SCHEMA_VERSION}", str(path), "remove it")
    return entries


class Judge:
    """Comes to verdicts on experiments, on each of them once.

    Args:
        results: the results folder, where names of baselines are kept.
        baseline: an arm's name, or else the name of a stored baseline; None takes each experiment's first arm.
        threshold: the relative change of the step time that counts.
        allowed: differences of the environment that do not stand in the way.
        arms: names of all arms there are; an experiment without the arm that ``baseline`` names takes its first one.
    """

    def __init__(
        self,
        results: Path,
        baseline: str | None = None,
        threshold: float = STEP_THRESHOLD,
        allowed: Sequence[str] = (),
        arms: Collection[str] = (),
    ) -> None:
        self._results, self._baseline, self._threshold, self._allowed = results, baseline, threshold, allowed
        self._arms = arms
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

    def _judge(self, experiment: Experiment) -> list[Judgement]:
        name = self._baseline
        if name is None or any(is_called(variant.name, name) for variant in experiment.variants):
            return judgements(experiment, name, self._threshold, self._allowed)
        if any(is_called(arm, name) for arm in self._arms):
            return judgements(experiment, None, self._threshold, self._allowed)
        if self._stored is None:
            self._stored = load_baseline(self._results, name)
        if self._stored.experiment.folder.resolve() == experiment.folder.resolve():
            return judgements(experiment, self._stored.variant.name, self._threshold, self._allowed)
        return judge_against(self._stored, experiment, self._threshold, self._allowed)


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
    slower. It is not comparable where the verdict says so, or where the baseline
    differs from itself (A/A). Anything else is inconclusive: too few blocks, or runs that did not finish.
    The gravest of all arms counts: worse, not comparable, inconclusive, fine.

    Args:
        judgements: made with ``limit`` as their threshold.
        limit: relative, such as 0.05.
    """
    judged = [_judge(judgement, limit) for judgement in judgements]
    if not judged or all(judgement.is_noise_floor for judgement in judgements):
        return GateResult(INCONCLUSIVE, ("gate: there is nothing to set against the baseline.",))
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
        raise UserError(f"{text!r} is no share above 0% and below 100%", where, f"write for example {where} 5%")
    return value


def _judge(judgement: Judgement, limit: float) -> tuple[int, str]:
    step, floor = judgement.step, judgement.noise_floor
    against = f"gate: {judgement.other} against {judgement.base}"
    if judgement.is_noise_floor:
        text = f"{against}: the same settings, {change(step.ratio)}, {step.verdict.value}."
        return (NOT_COMPARABLE if step.verdict is Verdict.DIFFERENT else FINE), text
    reason = step.reason if step.verdict is Verdict.NOT_COMPARABLE else None
    if reason is None and floor is not None and floor.verdict is Verdict.DIFFERENT:
        reason = f"the baseline is {change(floor.ratio)} from itself"
    if reason is not None:
        return NOT_COMPARABLE, f"{against}: not comparable: {reason}."
    if step.low is None or step.high is None or step.blocks < FEWEST_BLOCKS:
        return INCONCLUSIVE, f"{against}: inconclusive: {step.reason}."
    interval = f"{change(step.ratio)}, 95% interval {change(step.low)} to {change(step.high)}"
    at_most = change(1 + limit)
    if step.verdict is Verdict.DIFFERENT and step.ratio is not None and step.ratio >= 1 + limit:
        return WORSE, f"{against}: worse: {interval}; the limit is {at_most}."
    if judgement.unfinished:
        return INCONCLUSIVE, f"{against}: inconclusive: {judgement.unfinished} runs did not finish ({interval})."
    if step.high < 1 + limit:
        return FINE, f"{against}: fine: {interval}; the limit is {at_most}."
    return INCONCLUSIVE, f"{against}: inconclusive: {interval} reaches the limit of {at_most}."
