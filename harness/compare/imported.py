"""Arms that were read from other trainers' logs: one run each, so that only steps tell a difference from chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.numbers import listed, number, reward
from harness.compare.stats import Effect, Verdict
from harness.compare.stats.bootstrap import ratio_over_steps
from harness.core.trace import Stage

if TYPE_CHECKING:
    from harness.compare.verdicts import Judgement

NOT_REPEATED = "one run each: not repeated"
MOST_STAGES = 3
WORTH_NAMING = 0.001
"""Share of a step by which a stage must differ."""


@dataclass(frozen=True)
class ImportedComparison:
    """What the logs of several arms say.

    Attributes:
        sentences: which arm is faster per step, where, the reward at the end, and what that is worth.
        effects: the same for programs, each arm against the first.
    """

    sentences: list[str]
    effects: list[dict[str, Any]]


def is_of_logs(experiment: Experiment) -> bool:
    """Whether the arms of an experiment are one imported run each."""
    arms = experiment.variants
    return len(arms) > 1 and all(len(arm.runs) == 1 and arm.runs[0].is_imported for arm in arms)


def over_steps(effect: Effect, base: Variant, other: Variant) -> Effect:
    """Return the effect of one run's seconds per step against another's, with an interval over their steps."""
    series = [arm.runs[0].series for arm in (base, other)]
    seconds = [each.measured().wall_s for each in series if each is not None]
    interval = ratio_over_steps(seconds[0], seconds[1]) if len(seconds) == 2 else None
    reason = NOT_REPEATED if effect.verdict is Verdict.INCONCLUSIVE else effect.reason
    if interval is None:
        return replace(effect, reason=reason)
    return replace(effect, ratio=interval.point, low=interval.low, high=interval.high, reason=reason)


def imported_comparison(experiment: Experiment, judged: Sequence[Judgement]) -> ImportedComparison | None:
    """Return what the arms of an import say; None of any other experiment.

    Args:
        judged: each arm against one of them, with the intervals of ``over_steps``.
    """
    if not is_of_logs(experiment) or not judged:
        return None
    runs = {arm.name: arm.runs[0] for arm in experiment.variants}
    sentences = [_speed(item, runs[item.base], runs[item.other]) for item in judged]
    sentences += [sentence for item in judged for sentence in _stages(item.base, item.other, runs)]
    sentences += _rewards(runs)
    sentences.append(
        "Verdict: inconclusive, as runs were not repeated: the interval is over steps; other runs may differ more."
    )
    effects = [
        {"name": item.step.name, "baseline": item.base, "variant": item.other, "ratio": item.step.ratio}
        | {"low": item.step.low, "high": item.step.high, "verdict": item.step.verdict.value}
        | {"direction": direction(item.step), "reason": item.step.reason}
        for item in judged
    ]
    return ImportedComparison(sentences, effects)


def direction(effect: Effect) -> str:
    """Return ``faster``, ``slower`` or ``cannot tell``, by whether the interval leaves out "no change"."""
    if not effect.shows or effect.ratio is None:
        return "cannot tell"
    return "faster" if effect.ratio < 1 else "slower"


def _speed(item: Judgement, base: RunFigures, other: RunFigures) -> str:
    step, seconds = item.step, [base.step_s, other.step_s]
    if step.ratio is None or None in seconds:
        silent = [name for name, run in ((item.base, base), (item.other, other)) if run.step_s is None]
        return f"Cannot tell which is faster per step: no seconds in the log of {listed(silent or [item.other])}."
    steps = list(dict.fromkeys(f"{run.window.first} to {run.window.last}" for run in (base, other) if run.window))
    ends = f"{number(other.step_s or 0)} against {number(base.step_s or 0)} s, steps {listed(steps)}; {NOT_REPEATED}"
    if step.low is None or step.high is None:
        few = "too few steps for an interval"
        return f"{item.other} is {_speed_up(step.ratio)} per step than {item.base} ({few}): {ends}."
    if not step.shows:
        between = f"between {_speed_up(step.high)} and {_speed_up(step.low)}"
        return f"Cannot tell whether {item.other} is faster per step than {item.base}, {between}: {ends}."
    low, high = sorted((_share(step.low), _share(step.high)))
    said = f"{item.other} is {_speed_up(step.ratio)} per step than {item.base}"
    return f"{said} ({low:.0%} to {high:.0%}): {ends}."


def _share(ratio: float) -> float:
    """Return by how much an arm of this ratio of seconds is faster (1 / ratio - 1) or slower (ratio - 1)."""
    return max(ratio, 1 / ratio) - 1


def _speed_up(ratio: float) -> str:
    return f"{_share(ratio):.0%} {'faster' if ratio < 1 else 'slower'}"


def _stages(base: str, other: str, runs: dict[str, RunFigures]) -> list[str]:
    """Return the stages with the largest differences, side by side."""
    arms = [runs[base], runs[other]]
    seconds = {
        stage: [arm.stages[stage].mean_s if stage in arm.stages else 0.0 for arm in arms]
        for stage in Stage
        if any(stage in arm.stages for arm in arms)
    }
    step_s = max(arm.step_s or 0.0 for arm in arms)
    differing = sorted(seconds, key=lambda stage: -abs(seconds[stage][1] - seconds[stage][0]))
    shown = [
        f"{stage.value} {number(before)} and {number(after)}"
        for stage in differing[:MOST_STAGES]
        for before, after in [seconds[stage]]
        if abs(after - before) > WORTH_NAMING * step_s
    ]
    return [f"Largest differences in seconds, {base} and {other}: {', '.join(shown)}."] if shown else []


def _rewards(runs: dict[str, RunFigures]) -> list[str]:
    """Return the rewards at the end of each arm, in training and in validation."""
    training = {name: run.training_reward for name, run in runs.items()}
    validation = {name: run.last.reward if run.last else None for name, run in runs.items()}
    parts = [
        f"in {where} " + listed([f"{reward(value)} ({name})" for name, value in values.items() if value is not None])
        for where, values in (("training", training), ("validation", validation))
        if any(value is not None for value in values.values())
    ]
    return [f"Reward at the end: {'; '.join(parts)}."] if parts else []
