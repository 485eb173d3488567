"""Lag, dropping and replay side by side: how old the rollouts were, what became of them, what overlap gained."""

from __future__ import annotations

from collections.abc import Callable

from harness.compare import numbers
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.outcome import Line, line_rows
from harness.compare.tables import Table, seed_note
from harness.results import LedgerFigures

Read = Callable[[RunFigures], float | None]


def _mean(name: str) -> Read:
    return lambda run: run.mean(name)


def _of_ledger(read: Callable[[LedgerFigures], float | None]) -> Read:
    return lambda run: None if run.ledger is None else read(run.ledger)


def _held_s(run: RunFigures) -> float | None:
    return None if run.held_back is None else run.held_back.seconds


LINES = (
    Line("lag_mean", "lag, mean, versions", numbers.number, _mean("off_policy/mean")),
    Line("lag_max", "lag, highest, versions", numbers.count, _mean("off_policy/max")),
    Line("lag_token_mean", "lag of a token, mean, versions", numbers.number, _mean("off_policy/token_mean")),
    Line("held_back_s", "held back by the bound, seconds", numbers.number, _held_s),
    Line(
        "dropped_share",
        "dropped, share of generated rollouts",
        numbers.percent,
        _of_ledger(lambda ledger: ledger.share(ledger.dropped)),
    ),
    Line(
        "generated_length",
        "length of a generated rollout, tokens",
        numbers.number,
        _of_ledger(lambda ledger: ledger.generated.mean_length),
    ),
    Line(
        "dropped_length",
        "length of a dropped rollout, tokens",
        numbers.number,
        _of_ledger(lambda ledger: ledger.dropped.mean_length),
    ),
    Line(
        "trained_length",
        "length of a trained rollout, tokens",
        numbers.number,
        _of_ledger(lambda ledger: ledger.trained.mean_length),
    ),
    Line(
        "unused_share",
        "never trained on, share of generated rollouts",
        numbers.percent,
        _of_ledger(lambda ledger: ledger.share(ledger.unused)),
    ),
    Line("replay_size", "replay buffer, mean, groups", numbers.number, _mean("replay/size")),
    Line("replay_age", "age of a replayed group, mean, versions", numbers.number, _mean("replay/age_mean")),
    Line("replay_uses", "uses of a replayed group, mean", numbers.number, _mean("replay/uses_mean")),
)
NOTES = (
    "A rollout's lag is the policy version of the training step minus that of its oldest token.",
    "Never trained on: left over at the end, or pushed out of the replay buffer unused; what was dropped is not in it.",
)


def is_off_policy(experiment: Experiment) -> bool:
    """Whether any run trains on rollouts of older policies."""
    return any(run.behaviour_is_older for run in experiment.runs)


def off_policy_table(experiment: Experiment) -> Table | None:
    """Return lag, dropping and replay, one column for each variant; None where every run is on-policy."""
    if not is_off_policy(experiment):
        return None
    header = ("figure", *(variant.name for variant in experiment.variants))
    rows = line_rows(LINES, experiment.variants)
    return Table("Off-policy", header, rows, (*NOTES, *seed_note(experiment.variants)), divisible=True)


def off_policy_findings(experiment: Experiment) -> list[str]:
    """Say whether the lag bound bit, what working side by side gained, and what lag the last reward came with."""
    if not is_off_policy(experiment):
        return []
    bites = [text for variant in experiment.variants for text in (_held_back(variant), _dropped(variant)) if text]
    gains = [text for variant in experiment.variants if (text := _overlap(variant))]
    return [*bites, *gains, *_lag_and_reward(experiment)]


def _held_back(variant: Variant) -> str:
    seconds = variant.spread(_held_s)
    batches = variant.spread(lambda run: run.held_back.batches if run.held_back else None)
    bound = variant.spread(lambda run: run.held_back.bound_batches if run.held_back else None)
    share = variant.spread(lambda run: run.held_back.seconds / run.loop_s if run.held_back and run.loop_s else None)
    if not (seconds and batches and bound and share):
        return ""
    limit = f"the lag bound of {variant.runs[0].max_lag}"
    if batches.high == 0:
        return f"{variant.name}: {limit} never held a Generator back."
    return (
        f"{variant.name}: {limit} held a Generator back before {numbers.mean_range(batches, numbers.count)} of "
        f"{numbers.count(bound.mean)} batches, for {numbers.mean_range(seconds, numbers.number)} s "
        f"({numbers.mean_range(share, numbers.percent)} of the loop)."
    )


def _dropped(variant: Variant) -> str:
    share = variant.spread(_of_ledger(lambda ledger: ledger.share(ledger.dropped)))
    if variant.runs[0].lag_control != "drop" or share is None:
        return ""
    if share.high == 0:
        return f"{variant.name}: no rollout became too old and was dropped."
    gone = numbers.mean_range(share, numbers.percent)
    text = f"{variant.name}: {gone} of the generated rollouts were dropped as too old"
    dropped = variant.spread(_of_ledger(lambda ledger: ledger.dropped.mean_length))
    trained = variant.spread(_of_ledger(lambda ledger: ledger.trained.mean_length))
    if dropped and trained:
        text += (
            f", {numbers.mean_range(dropped, numbers.number)} tokens long on average against "
            f"{numbers.mean_range(trained, numbers.number)} of those trained on"
        )
    return text + "."


def _overlap(variant: Variant) -> str:
    worked, saved, together, loop = (
        variant.spread(lambda run, name=name: getattr(run.overlap, name) if run.overlap else None)  # type: ignore[misc]
        for name in ("worked_s", "saved_s", "together_s", "loop_s")
    )
    if not (worked and saved and together and loop and loop.mean > 0):
        return ""
    idle = [
        f"{name} {numbers.mean_range(ratio, numbers.percent)}"
        for kind, name in (("generator", "Generator"), ("scorer", "Scorer"), ("learner", "Learner"))
        if (ratio := variant.spread(lambda run, kind=kind: run.idle_ratio(kind)))  # type: ignore[misc]
    ]
    return (
        f"{variant.name}: the lanes worked {_s(worked.mean)} in a loop of {_s(loop.mean)}, at least two at once "
        f"for {numbers.percent(together.mean / loop.mean)} of it: {_s(saved.mean)} less than one after the other, if "
        f"stages took as long then; idle: {', '.join(idle)}."
    )


def _lag_and_reward(experiment: Experiment) -> list[str]:
    parts = []
    for variant in experiment.variants:
        lag = variant.spread(_mean("off_policy/mean"))
        reward = variant.spread(lambda run: run.last.reward if run.last else None)
        if lag and reward:
            shown = numbers.mean_range(reward, numbers.reward)
            parts.append(f"{variant.name} {numbers.mean_range(lag, numbers.number)} and {shown}")
    return [f"Mean lag in versions and last validation reward: {'; '.join(parts)}."] if len(parts) > 1 else []


def _s(seconds: float) -> str:
    return f"{numbers.number(seconds)} s"
