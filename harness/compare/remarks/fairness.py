"""What was unequal, said first; and beside the answer what is left of it per token and at equal work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

from harness.compare import fairness as fair
from harness.compare.endpoint import SECONDS_PER_STEP
from harness.compare.experiment import Experiment
from harness.compare.fairness import Unequal
from harness.compare.judging import Judgement, direction
from harness.compare.numbers import Format, change, count, listed, number, percent, plural, some
from harness.compare.stats.estimates import FEWEST_BLOCKS
from harness.compare.stats.verdicts import Effect, Verdict

_WORDS: dict[str, tuple[str, Format]] = {
    fair.MACHINE: ("machine", number),
    fair.SIMULATION: ("simulation", number),
    fair.VERSIONS: ("versions", number),
    fair.THREADS_USED: ("threads", number),
    fair.PLACEMENT: ("placement", number),
    fair.LENGTH: ("response length", number),
    fair.TOKENS: ("response tokens per step", number),
    fair.EVALUATIONS: ("steps with an evaluation", percent),
    fair.CHECKPOINTS: ("steps with a checkpoint", percent),
    fair.WARM_UP: ("steps left out as warm-up", number),
    fair.SLOW_START: ("runs still warming up when they were measured", percent),
}
"""Of each kind of inequality its name and how its numbers are written, in the order in which they are said."""
_TAKEN_OUT = {
    fair.LENGTH: "at matched lengths",
    fair.EVALUATIONS: "without evaluations",
    fair.CHECKPOINTS: "without checkpoints",
}


def unequal(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what was unequal between the arms and each baseline, a sentence for each kind."""
    for kind, (name, form) in _WORDS.items():
        others: dict[str, list[str]] = {}
        for item in judged:
            for accident in _worth_saying(item):
                if accident.kind == kind:
                    base = f"{name}: {item.base} {_written(accident.base, form)}"
                    moved = kind in (fair.LENGTH, fair.TOKENS)
                    ends = f" ({change(accident.ratio)})" if moved else ""
                    others.setdefault(base, []).append(f"{item.other} {_written(accident.other, form)}{ends}")
        is_ours = not any(each.is_recorded or each.figures["is_imported"] for each in experiment.members)
        advice = " sampling.pinned_lengths makes it equal." if kind in (fair.LENGTH, fair.TOKENS) and is_ours else ""
        yield from (f"Unequal {base}; {'; '.join(some(own))}.{advice}" for base, own in others.items())


def _worth_saying(item: Judgement) -> list[Unequal]:
    """Leave out tokens a step that are other by the length alone, which says so."""
    ratios = {each.kind: each.ratio for each in item.fairness.accidents}
    length, tokens = ratios.get(fair.LENGTH), ratios.get(fair.TOKENS)
    follows = bool(length and tokens) and abs(log((tokens or 1.0) / (length or 1.0))) < fair.WORTH_SAYING
    return [each for each in item.fairness.accidents if not (follows and each.kind == fair.TOKENS)]


def _written(value: float | str, form: Format) -> str:
    return value if isinstance(value, str) else form(value)


def equal_work(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Set the arms against the baseline per response token, and without what was unequal in their work."""
    known = [item for item in judged if item.fairness.equal_work is not None]
    for base in dict.fromkeys(item.base for item in known):
        own = [item for item in known if item.base == base]
        has_tokens = any(item.fairness.per_token is not None and item.fairness.per_token.ratio for item in own)
        text = f"{'Per response token against' if has_tokens else 'Against'} {base}: {'; '.join(some(_left(own)))}."
        single = any(item.fairness.equal_work.blocks == 1 for item in own if item.fairness.equal_work)
        yield text + (" One run each: cannot tell what unequal work explains of the gap." if single else "")


def _left(judged: Sequence[Judgement]) -> list[str]:
    """Say of each arm what it takes per token and what is left at equal work, and what share of the gap is not."""
    arms = []
    for item in judged:
        per_token, effect, share = item.fairness.per_token, item.fairness.equal_work, item.fairness.share
        words = [] if per_token is None or per_token.ratio is None else [_effect(per_token)]
        if effect is None:
            continue
        if item.step.verdict is Verdict.NOT_COMPARABLE and item.step.ratio is not None:  # which the answer leaves out
            words.append(f"per step {change(item.step.ratio)}")
        how = listed([_TAKEN_OUT[kind] for kind in item.fairness.taken_out])
        if effect.ratio is None or (effect.reason or "").endswith((fair.NO_OVERLAP, fair.BESIDE)):
            words.append(f"{how} cannot tell ({effect.reason})")
        else:
            few = f" ({plural(effect.blocks, 'block')})" if 1 < effect.blocks < FEWEST_BLOCKS else ""
            words.append(f"{how} {_effect(effect)}{'' if effect.blocks == 1 else f': {direction(effect)}{few}'}")
        if share is not None:
            what = "length" if item.fairness.taken_out == (fair.LENGTH,) else "unequal work"
            ends = f"{count(100 * share.low)}% to {count(100 * share.high)}%"
            words.append(f"{what} explains {count(100 * share.value)}% of the gap per step ({ends})")
        arms.append(f"{item.other} {', '.join(words)}")
    return arms


def _effect(effect: Effect) -> str:
    ends = SECONDS_PER_STEP.ends(effect)
    return change(effect.ratio) + (f" ({ends})" if ends else "")
