"""Verdicts as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare import numbers
from harness.compare.stats import STEP, Effect, Verdict
from harness.compare.tables import Table
from harness.compare.verdicts import Judgement

_HEADER = ("time", "ratio", "95% interval", "p", "smallest effect", "verdict")
_HOW = {True: "the arms took turns by step", False: "the arms ran one after the other", None: "not interleaved"}


def verdict_tables(judgements: Sequence[Judgement]) -> list[Table]:
    """Return a table for each arm that has two blocks or more: step time first, then its stages."""
    return [_table(judgement) for judgement in judgements if judgement.step.blocks > 1]


def verdict_sentences(judgements: Sequence[Judgement]) -> list[str]:
    """Return for each arm with two blocks or more what is different, and by how much."""
    said = []
    for judgement in judgements:
        if judgement.step.blocks > 1:
            said.append(_sentence(judgement))
            if judgement.unfinished:
                said.append(f"{judgement.unfinished} runs of {judgement.base} and {judgement.other} did not finish.")
            said += [caution if caution.endswith(".") else f"{caution}." for caution in judgement.cautions]
    return said


def _table(judgement: Judgement) -> Table:
    step, stages = judgement.step, judgement.stages
    title = f"Verdict: {judgement.other} against {judgement.base}, {step.blocks} blocks ({_HOW[judgement.alternated]})"
    needed = f"Different: the interval leaves out 1 and the change is {_percent(step.threshold)} or more"
    needed += f" ({_percent(stages[0].threshold)} for a stage, with p corrected for {len(stages)})" if stages else ""
    notes = [
        f"Ratios are {judgement.other} over {judgement.base}; warm-up steps are left out. The smallest effect is the "
        "change that so many blocks show in 80% of cases, before any correction.",
        f"{needed}.",
    ]
    if judgement.summary is not None and judgement.summary.hodges_lehmann is not None:
        slower, robust = judgement.summary.slower, _ratio(judgement.summary.hodges_lehmann)
        notes.append(
            f"{judgement.other} was the slower one in {slower} of {step.blocks} blocks; Hodges-Lehmann: {robust}."
        )
    if judgement.noise_floor is not None:
        notes.append(f"Noise floor (the baseline against itself): {_interval_words(judgement.noise_floor)}.")
    rows = [_row(effect, step.blocks) for effect in (step, *stages)]
    return Table(title, _HEADER, tuple(rows), tuple(notes))


def _row(effect: Effect, blocks: int) -> tuple[str, ...]:
    name = "whole step" if effect.name == STEP else effect.name
    return (
        name if effect.blocks == blocks else f"{name} ({effect.blocks} blocks)",
        _ratio(effect.ratio),
        numbers.NOTHING if effect.low is None else f"{_ratio(effect.low)} to {_ratio(effect.high)}",
        _p(effect.p_adjusted),
        numbers.NOTHING if effect.minimum_effect is None else _percent(effect.minimum_effect),
        effect.verdict.value,
    )


def _sentence(judgement: Judgement) -> str:
    step = judgement.step
    text = f"{judgement.other} against {judgement.base}, step time: {step.verdict.value}, {_interval_words(step)}"
    if step.reason:
        text += f" ({step.reason})"
    stages = [effect for effect in judgement.stages if effect.verdict is Verdict.DIFFERENT]
    if stages:
        found = ", ".join(f"{effect.name} ({numbers.change(effect.ratio)})" for effect in stages)
        text += f". Different stages: {found}"
    return text + "."


def _interval_words(effect: Effect) -> str:
    if effect.ratio is None:
        return "no figures"
    if effect.low is None or effect.high is None:
        return f"{numbers.change(effect.ratio)} in one block"
    return f"{numbers.change(effect.ratio)}, 95% interval {numbers.change(effect.low)} to {numbers.change(effect.high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _ratio(value: float | None) -> str:
    return numbers.NOTHING if value is None else f"{value:.3f}"


def _p(value: float | None) -> str:
    return numbers.NOTHING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
