"""What a run prints at its end: a headline, one table, the largest lever, and where everything else is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.compare import numbers
from harness.compare.caveats import caveats
from harness.compare.endpoints import SECONDS_PER_STEP, Endpoint, endpoint_of, endpoint_of_effect
from harness.compare.endpoints import headline as endpoint_headline
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.findings import exposed_shares, failed_sentence, findings, stage_shares
from harness.compare.learning_findings import signal_sentence
from harness.compare.numbers import change, number, percent, plural, reward, spread, spread_of
from harness.compare.step_times import MARK, step_ratio
from harness.compare.sync_tables import sweep_points, sweep_tables
from harness.compare.tables import Table, stage_table, step_cell
from harness.compare.verdicts import Judgement
from harness.core.installation import as_typed
from harness.core.terminal_text import plain
from harness.core.trace import Stage
from harness.report.console import shown_path
from harness.report.data import ReportData
from harness.report.text import print_table

MOST_ROWS = 10
MOST_LINES = 3
"""Of the headline, where several arms were judged."""
MOST_CAVEATS = 2
WORTH_A_ROW = 0.005
"""Share of a step below which a stage is left to the full tables."""
TIMES = 2.0
"""A ratio that is written as such, and not as a change in percent."""
FASTER = 0.1
"""What the lever is asked about: a stage that took so much less time."""
MOST_NAMED_PARTS = 3
"""Of a run's folder: scenario, experiment, run."""


def print_brief(console: Console, material: ReportData, judged: Sequence[Judgement], page: Path | None) -> None:
    """Print an experiment in about 25 lines of 80 columns.

    Args:
        material: the experiment.
        judged: its verdicts.
        page: its report, if there is one.
    """
    experiment = material.experiment
    console.print()
    console.print(Text(plain(f"{experiment.title} / {experiment.name}"), style="bold underline"))
    for line in [*headline(experiment, judged), *nothing_learned(experiment)]:
        console.print(Text(plain(line), style="bold"))
    print_table(console, brief_table(experiment))
    if lever := largest_lever(material):
        console.print(Text(plain(lever)))
    told = caveats(experiment)
    left = len(told) - MOST_CAVEATS
    more = [f"{plural(left, 'more caveat')} below all tables."] if left > 0 else []
    for line in [*told[:MOST_CAVEATS], *more]:
        console.print(Padding(Text(f"- {plain(line)}", style="dim"), (0, 1)))
    console.print()
    if page is not None:
        console.print(Text(f"page: {plain(shown_path(page))}"), soft_wrap=True)
    console.print(
        Text(as_typed(f"all tables: python -m harness compare {plain(shown_path(experiment.folder))}")), soft_wrap=True
    )


def line_of(material: ReportData, judged: Sequence[Judgement], page: Path) -> str:
    """Say in one line what an experiment says first, and where its page is."""
    experiment = material.experiment
    said = " ".join([*headline(experiment, judged)[:1], *nothing_learned(experiment)]) or "nothing was measured."
    return f"{experiment.title} / {experiment.name}: {said} page: {shown_path(page)}"


def nothing_learned(experiment: Experiment) -> list[str]:
    """Return what the experiment says of steps without anything to learn from, and of groups without a reward."""
    sentences = [say(variant) for variant in experiment.variants for say in (signal_sentence, failed_sentence)]
    return [sentence for sentence in sentences if sentence]


def headline(experiment: Experiment, judged: Sequence[Judgement]) -> list[str]:
    """Return what the experiment says in a line or two: its verdicts; else the largest difference; else its one arm."""
    arms = [item for item in judged if not item.is_noise_floor] or judged  # equal arms alone are judged as such
    told = [
        endpoint_headline(endpoint_of_effect(effect), item.base, item.other, effect)
        for item in arms
        if (effect := item.primary).blocks > 1 and effect.ratio is not None
    ]
    if told:
        return told[:MOST_LINES]
    if sweep_points(experiment):
        return [finding.text for finding in findings(experiment)][:1]
    base, *others = experiment.variants
    ratios = {other.name: ratio for other in others if (ratio := step_ratio(base, other)) is not None}
    if not ratios:
        return _of_one(base)
    farthest = max(ratios, key=lambda name: abs(log(ratios[name])))
    other = next(variant for variant in others if variant.name == farthest)
    ratio = ratios[farthest]
    cost = f"{ratio:.2f} times the seconds per step" if ratio >= TIMES else f"{change(ratio)} seconds per step"
    said = f"{farthest} against {base.name}: {cost}"
    ends = [spread(each.spread(_last_reward), reward, "") for each in (other, base)]
    return [said + (f"; validation reward {ends[0]} against {ends[1]}." if all(ends) else ".")]


def _of_one(variant: Variant) -> list[str]:
    shares = stage_shares(variant)
    seconds = variant.spread(lambda run: run.step_s)
    if seconds is None:
        return [
            f"{variant.name}: {', '.join(dict.fromkeys(run.status for run in variant.runs))}, no step was measured."
        ]
    said = f"{variant.name}: {spread(seconds, number)} s a step"
    largest = max(shares, key=lambda stage: shares[stage], default=None)
    if largest is not None and largest is not Stage.EVALUATE:
        said += f", {percent(shares[largest])} of it {largest.value}"
    first, last = (_evaluated(variant, when) for when in ("first", "last"))
    if first is not None and last is not None:
        said += f"; validation reward {first[0]} to {last[0]} at {first[1]} to {last[1]} tokens"
        said += f" in {variant.runs[0].steps} steps"
    return [f"{said}."]


def _evaluated(variant: Variant, when: str) -> tuple[str, str] | None:
    """Write reward and response length of the runs' first or last evaluation; nothing where there is none."""
    found = [each for run in variant.runs if (each := getattr(run, when)) is not None]
    rewards, lengths = spread_of([each.reward for each in found]), spread_of([each.length for each in found])
    return None if rewards is None or lengths is None else (spread(rewards, reward), spread(lengths, number))


def brief_table(experiment: Experiment) -> Table:
    """Return one table of at most a dozen rows: a sweep's first; the stages of one variant; else a row for each."""
    if sweep_points(experiment):
        table = sweep_tables(experiment)[0]
        return _cut(replace(table, notes=table.notes[1:]))  # without what is measured, with what a mark means
    if len(experiment.variants) == 1:
        (variant,) = experiment.variants
        kept = {stage.value for stage, share in stage_shares(variant).items() if share >= WORTH_A_ROW} | {"whole"}
        table = stage_table(experiment)
        return _cut(replace(table, rows=tuple(row for row in table.rows if row[0].partition(" ")[0] in kept), notes=()))
    endpoint = endpoint_of(experiment.runs)
    base = experiment.variants[0]
    with_sync = endpoint.primary is not None and not endpoint.is_difference
    header = (
        "variant",
        "s a step",
        "change",
        *([endpoint.words] if with_sync else []),
        "largest stage",
        "reward",
        "tokens",
    )
    rows = [_row(variant, base, endpoint if with_sync else SECONDS_PER_STEP) for variant in experiment.variants]
    return _cut(Table("", header, tuple(rows), (), words=1))


def _row(variant: Variant, base: Variant, endpoint: Endpoint) -> tuple[str, ...]:
    shares = stage_shares(variant)
    largest = max(shares, key=lambda stage: shares[stage], default=None)
    ratio = None if variant is base else step_ratio(base, variant)
    own = () if endpoint is SECONDS_PER_STEP else (_mean(variant, endpoint.value, endpoint.shown),)
    return (
        variant.name,
        step_cell(variant).partition(" [")[0],
        "" if variant is base else change(ratio),
        *own,
        numbers.NOTHING if largest is None else f"{largest.value} {percent(shares[largest])}",
        _mean(variant, _last_reward, reward),
        _mean(variant, _last_length, number),
    )


def _mean(variant: Variant, read: Callable[[RunFigures], float | None], form: numbers.Format) -> str:
    found = variant.spread(read)
    return numbers.NOTHING if found is None else form(found.mean)


def _cut(table: Table) -> Table:
    """Leave at most ``MOST_ROWS`` rows, and say what a mark in them means."""
    left, notes = len(table.rows) - MOST_ROWS, []
    if any(cell.partition(" ")[0].endswith(MARK) for row in table.rows for cell in row[1:]):
        notes.append(f"{MARK} Step times do not keep one level after warm-up.")
    if left > 0:
        notes.append(f"{left} more rows in the full tables.")
    return replace(table, rows=table.rows[:MOST_ROWS], notes=tuple(notes))


def largest_lever(material: ReportData) -> str:
    """Name the stage that the first variant's loop waits for most, and what a tenth off it would bring.

    Exposed seconds bound that: what then stands in the way may be another lane's stage.
    """
    shares = exposed_shares(material.experiment.variants[0])
    if not shares:
        return ""
    stage = _most_waited_for(shares)
    of = "" if len(material.names) == 1 else f" of {material.names[0]}"
    return (
        f"Largest lever{of}: {stage.value}. The loop waits for it {percent(shares[stage])} of the time, "
        f"so {FASTER:.0%} off it takes at most {percent(FASTER * shares[stage])} off a step."
    )


def lever_command(material: ReportData) -> str:
    """Return what to type to see what a tenth off the largest lever would bring to the first variant's first run.

    The folder is written from the current one on; of one outside it, only from the experiment's scenario on, since a
    page names nobody's home.
    """
    run = material.experiment.variants[0].runs[0].folder
    path = Path(shown_path(run.resolve()))
    if path.is_absolute():
        path = Path(*path.parts[-MOST_NAMED_PARTS:])
    stage = _most_waited_for(exposed_shares(material.experiment.variants[0]))
    return as_typed(f"python -m harness whatif {shlex.quote(str(path))} --scale {stage.value}={1 - FASTER:g}")


def _most_waited_for(shares: Mapping[Stage, float]) -> Stage:
    return max(shares, key=lambda stage: shares[stage])


def _last_reward(run: RunFigures) -> float | None:
    return run.last.reward if run.last else None


def _last_length(run: RunFigures) -> float | None:
    return run.last.length if run.last else None
