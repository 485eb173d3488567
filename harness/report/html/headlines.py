"""The few sentences that a reader should leave with, computed from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.compare import numbers
from harness.compare.experiments import Variant
from harness.compare.figures import RunFigures
from harness.compare.learning_findings import answers
from harness.compare.overlap import OverlapBound, overlap_bound
from harness.compare.pairs import FEWEST_SEEDS, paired_difference
from harness.compare.sentences import last_reward
from harness.compare.sweep_tables import sweep_findings, sweep_points
from harness.compare.verdicts import Judgement, settings_of
from harness.core.trace import Stage
from harness.report.data import ReportData

GOES_WITH = 0.5  # correlation from which KL is said to go with the reward
WORTH_GAINING = 1.05
LAG_SETTINGS = ("max_lag", "lag_control", "replay", "placement")
"""What may differ where lag is what two variants differ in; lagged parts need cores of their own."""
_SHAPES = {
    "linear": "growing about linearly",
    "exponential": "growing faster and faster",
    "saturating": "levelling off",
    "falling": "falling",
    "no clear trend": "without a clear trend",
}


def headlines(material: ReportData, judgements: Sequence[Judgement] = ()) -> list[str]:
    """Return verdicts, what was learned, what dominates the loop, what overlap could gain, whether lag hurt, and KL."""
    if sweep_points(material.experiment):
        return sweep_findings(material.experiment)
    parts = [verdict_headline(judgements), *answers(material.experiment)]
    parts += [_dominates(material), _overlap(material), _lag(material), *_kl(material)]
    return [text for text in parts if text]


def verdict_headline(judgements: Sequence[Judgement]) -> str:
    """Give the step time of every arm against the baseline, with its interval and in one word."""
    known = [item for item in judgements if item.step.blocks > 1 and item.step.ratio is not None]
    return f"Step time against {known[0].base}: {'; '.join(map(_verdict, known))}." if known else ""


def _verdict(item: Judgement) -> str:
    step = item.step
    text = f"{item.other} {numbers.change(step.ratio)}"
    if step.low is not None and step.high is not None:
        text += f" (95% interval {numbers.change(step.low)} to {numbers.change(step.high)})"
    return f"{text}, {step.verdict.value}" + (f" ({step.reason})" if step.reason else "")


def exposed_shares(material: ReportData, name: str) -> dict[Stage, float]:
    """Return each stage's exposed share of the loop, as a mean over the variant's runs."""
    found = material.exposures.get(name, [])
    stages = [stage for stage in Stage if any(stage in part.stages_ns for part, _ in found)]
    return {stage: fmean(part.share(part.stages_ns.get(stage, 0)) for part, _ in found) for stage in stages}


def _dominates(material: ReportData) -> str:
    """Name the largest exposed stage of each variant, variants of the same stage together."""
    largest: dict[Stage, list[str]] = {}
    nobodys: list[str] = []
    for name in material.names:
        shares = exposed_shares(material, name)
        if shares:
            stage = max(shares, key=lambda item: shares[item])
            if (idle := nobodys_share(material, name)) > shares[stage]:
                nobodys.append(f"{_percent(idle)} in {name}")
            loop = "" if stage in largest else " of the loop"
            largest.setdefault(stage, []).append(f"{_percent(shares[stage])}{loop} in {name}")
    parts = [f"{stage.value} ({', '.join(shares)})" for stage, shares in largest.items()]
    rest = f" Still more of the loop is nobody's: {', '.join(nobodys)}." if nobodys else ""
    return f"What the loop waits for most, its exposed time: {'; '.join(parts)}.{rest}" if parts else ""


def nobodys_share(material: ReportData, name: str) -> float:
    """Return the share of the loop that no stage owns, as a mean over the variant's runs; there must be one."""
    return fmean(part.share(part.nobody_ns) for part, _ in material.exposures[name])


def _overlap(material: ReportData) -> str:
    """Say how short each loop could become if its lanes worked side by side all the time."""
    found = {variant.name: _bounds(variant) for variant in material.experiment.variants}
    bounds = {name: parts for name, parts in found.items() if parts}
    if not bounds:
        return ""
    said = "; ".join(_bound(name, parts, position) for position, (name, parts) in enumerate(bounds.items()))
    if all(fmean(part.speedup for part in parts) < WORTH_GAINING for parts in bounds.values()):
        return f"More overlap has next to nothing to gain: {said}."
    return f"If lanes overlapped perfectly and no stage took longer, {said}."


def _bounds(variant: Variant) -> list[OverlapBound]:
    return [bound for run in variant.runs if (bound := overlap_bound(run.lanes))]


def _bound(name: str, bounds: Sequence[OverlapBound], position: int) -> str:
    """Return such as ``k1 would be at most 1.85 times as fast (6.81 s of work in the busiest lane, learner, ...)``."""
    loop, shortest = (fmean(getattr(bound, key) for bound in bounds) for key in ("loop_s", "shortest_s"))
    times = f"{fmean(bound.speedup for bound in bounds):.2f}"
    against = f"{numbers.number(loop)} s"
    lane = bounds[0].lane
    if position:
        return f"{name} {times} times ({lane}: {numbers.number(shortest)} s against {against})"
    work = f"{numbers.number(shortest)} s of work in the busiest lane, {lane}, against {against} of loop"
    return f"{name} would be at most {times} times as fast ({work})"


def _lag(material: ReportData) -> str:
    """Set the last reward of each variant that trains on older rollouts against the one that differs in that alone."""
    variants = material.experiment.variants
    fresh = [item for item in variants if not any(run.behaviour_is_older for run in item.runs)]
    parts: dict[str, list[str]] = {}
    for other in variants:
        base = None if other in fresh else next((item for item in fresh if _differs_in_lag_alone(item, other)), None)
        if base is not None and (text := _lagged(base, other)):
            parts.setdefault(base.name, []).append(text)
    said = [f"against {name}: {'; '.join(texts)}" for name, texts in parts.items()]
    return f"Older rollouts, last validation reward {', and '.join(said)}." if said else ""


def _differs_in_lag_alone(base: Variant, other: Variant) -> bool:
    """Whether two variants have the same settings but for lag, replay, and what these need in order to run."""
    mine, theirs = (
        {key: value for key, value in settings_of(variant.runs[0]).items() if key not in LAG_SETTINGS}
        for variant in (base, other)
    )
    return mine == theirs


def _lagged(base: Variant, other: Variant) -> str:
    mine, theirs = other.spread(last_reward), base.spread(last_reward)
    if mine is None or theirs is None:
        return ""
    lag = other.spread(lambda run: run.mean("off_policy/mean"))
    name = f"{other.name} (mean lag {numbers.number(lag.mean)})" if lag else other.name
    found = paired_difference(base, other, last_reward)
    if found is None:
        pair = f"{numbers.reward(mine.mean)} against {numbers.reward(theirs.mean)}"
        return f"{name} {pair}, and fewer than {FEWEST_SEEDS} paired seeds cannot say whether lag hurt"
    said = "lag hurt" if found.high < 0 else "lag did not hurt" if found.low > 0 else "no difference can be told"
    return f"{name} {found.mean:+.3f} (95% interval {found.low:+.3f} to {found.high:+.3f}, n = {found.seeds}), {said}"


def _kl(material: ReportData) -> list[str]:
    return [text for variant in material.experiment.variants if (text := _kl_of(variant))]


def _kl_of(variant: Variant) -> str:
    """Say how KL to the reference went in the first run that monitored it, and whether with the reward."""
    run = next((run for run in variant.runs if run.kl is not None), None)
    if run is None or run.kl is None:
        return ""
    end = run.at_end(run.kl.name)
    text = f"{variant.name}: KL to {_reference(run)}"
    if end is not None:
        text += f" ended at {numbers.number(end)} nats per token ({run.kl.name.rpartition('_')[2]})"
    if run.kl.growth is not None:
        text += f", {_SHAPES[run.kl.growth.shape]}"
    if run.kl.with_reward is not None:
        value, pairs = run.kl.with_reward
        how = "with" if value >= GOES_WITH else "against" if value <= -GOES_WITH else "neither with nor against"
        text += f"; it went {how} the validation reward (correlation {value:+.2f} over {pairs} evaluations)"
    if len(variant.runs) > 1:
        text += f"; seed {run.manifest.seed} only"
    if run.behaviour_is_older:
        text += "; biased, as older policies sampled"
    return text + "."


def _reference(run: RunFigures) -> str:
    names = {"frozen": "the initial policy", "reclone": "the re-cloned reference"}
    return names.get(str(run.kl.reference) if run.kl else "", "the reference policy")


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%"
