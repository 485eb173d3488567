"""What the replay buffer of a run did: how often groups were used, how old they were, and how they left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.numbers import NOTHING, count, mean_range, number, plural
from harness.compare.tables import Line, Table, line_rows, mean_of, seed_note

SAMPLING_RULES = {
    "newest": "those that entered last",
    "uniform": "each held group alike",
    "reward_weighted": "a higher mean reward likelier",
    "signal_weighted": "a wider spread of rewards likelier",
}
LEFT = (
    ("evicted_full", "made room for newer ones"),
    ("evicted_age", "became too old"),
    ("evicted_uses", "were used up"),
)


def _uses(run: RunFigures) -> float | None:
    """Mean number of training steps that a group was drawn for, of those drawn at all."""
    if not run.replay_capacity or run.ledger is None or not run.ledger.trained.rollouts:
        return None
    return 1 + run.ledger.trained_again.rollouts / run.ledger.trained.rollouts


def _drawn(run: RunFigures) -> float | None:
    ages = run.metrics.get("replay/age_mean")
    return ages.count / run.steps if ages is not None and run.steps else None


REPLAY_LINES = (
    Line("replay_size", "groups held, mean", number, mean_of("replay/size")),
    Line("replay_drawn", "groups drawn for a step, mean", number, _drawn),
    Line("replay_uses", "uses of a group that was drawn, mean", number, _uses),
    Line("replay_uses_max", "uses of a group, highest", count, mean_of("replay/uses_max")),
    Line("replay_age", "age of a group when drawn, mean, versions", number, mean_of("replay/age_mean")),
    Line("replay_age_max", "age of a group when drawn, highest, versions", count, mean_of("replay/age_max")),
    *(Line(f"replay_{name}", f"groups that {how}", count, mean_of(f"replay/{name}")) for name, how in LEFT),
    Line("replay_unused", "groups that left and were never drawn", count, mean_of("replay/evicted_unused")),
)


def replayed(experiment: Experiment) -> list[Variant]:
    """Return the variants with a replay buffer."""
    return [variant for variant in experiment.variants if any(run.replay_capacity for run in variant.runs)]


def replay_table(experiment: Experiment) -> Table | None:
    """Return settings, uses, ages and ends of the buffer, one column for each variant that has one; else None."""
    variants = replayed(experiment)
    if not variants:
        return None
    settings = [
        ("capacity, groups", *(_setting(variant, "capacity") for variant in variants)),
        ("sampling", *(_setting(variant, "sampling") for variant in variants)),
        ("oldest age allowed, versions", *(_setting(variant, "max_age") for variant in variants)),
        ("most uses allowed", *(_setting(variant, "max_uses") for variant in variants)),
    ]
    shown = [row for row in settings if any(cell != NOTHING for cell in row[1:])]
    rows = (*shown, *line_rows(REPLAY_LINES, variants))
    header = ("figure", *(variant.name for variant in variants))
    return Table("Replay buffer", header, rows, seed_note(variants), divisible=True)


def replay_sentence(variant: Variant) -> str:
    """Say what the buffer held and drew, how old and how often used, and how groups left; empty without a buffer."""
    size, ages = mean_of("replay/size"), mean_of("replay/age_mean")
    held, drawn, uses, age = (variant.spread(read) for read in (size, _drawn, _uses, ages))
    if not (held and drawn and age):
        return ""
    sampling = _setting(variant, "sampling")
    rule = f", {SAMPLING_RULES[sampling]} ({sampling})" if sampling in SAMPLING_RULES else ""
    text = (
        f"{variant.name}: the replay buffer held {mean_range(held, number)} groups on average, of "
        f"{_setting(variant, 'capacity')} at most, and a step drew {mean_range(drawn, number)} of them{rule}."
    )
    oldest, most = _highest(variant, "age_max"), _highest(variant, "uses_max")
    text += f" They were {mean_range(age, number)} versions old on average{_at_most(oldest)}."
    if uses:
        text += f" A group that was drawn was used {mean_range(uses, number)} times on average{_at_most(most)}."
    left = [(how, _total(variant.runs, name)) for name, how in LEFT]
    if oldest is None or not any(groups for _, groups in left):
        return text
    parts = ", ".join(f"{count(groups)} {how}" for how, groups in left if groups)
    unused = _total(variant.runs, "evicted_unused")
    left_in_all = plural(round(sum(groups for _, groups in left)), "group")
    where = f" in {len(variant.runs)} runs" if len(variant.runs) > 1 else ""
    return f"{text} Of {left_in_all} that left{where}, {parts}; {count(unused)} had never been drawn."


def _setting(variant: Variant, name: str) -> str:
    replay: Any = variant.runs[0].settings.get("replay")
    value = replay.get(name) if isinstance(replay, dict) else None
    return NOTHING if value is None else str(value)


def _highest(variant: Variant, name: str) -> float | None:
    found = variant.spread(mean_of(f"replay/{name}"))
    return None if found is None else found.high


def _at_most(value: float | None) -> str:
    return "" if value is None else f", {count(value)} at most"


def _total(runs: Sequence[RunFigures], name: str) -> float:
    return sum(run.mean(f"replay/{name}") or 0.0 for run in runs)
