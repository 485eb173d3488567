"""Verdicts as a command asks for them: against which baseline, with which threshold, across which differences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from harness.compare.baselines import load_baseline
from harness.compare.experiments import Experiment, is_called
from harness.compare.stats import STEP_THRESHOLD
from harness.compare.verdicts import Baseline, Judgement, judge_against, judgements


class Judge:
    """Comes to verdicts on experiments, on each of them once.

    Args:
        results: the results folder, where names of baselines are kept.
        baseline: an arm's name, or else the name of a stored baseline; None takes each experiment's first arm.
        threshold: the relative change of the step time that counts.
        allowed: differences of the environment that do not stand in the way; see ``judgements``.
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
        self._found: dict[Path, list[Judgement]] = {}
        self._stored: Baseline | None = None

    def __call__(self, experiment: Experiment) -> list[Judgement]:
        """Return the verdicts on an experiment.

        Raises:
            UserError: there is no such baseline, or its runs cannot be read.
        """
        if experiment.folder not in self._found:
            self._found[experiment.folder] = self._judge(experiment)
        return self._found[experiment.folder]

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
