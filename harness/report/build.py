"""From an experiment to its document: which sections there are, and what stands in each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.compare.environment import origin
from harness.compare.experiment import Experiment
from harness.compare.judging import Judgement
from harness.compare.remarks import Remark, remarks_of
from harness.compare.remarks.lag_and_syncs import sweep_points
from harness.compare.remarks.time import whatif_command
from harness.report import experiment_charts as drawings
from harness.report import tables
from harness.report.console import shown_path
from harness.report.document import Chart, Command, Document, Item, Rollouts, Section
from harness.report.machine import machine_section, provenance_section
from harness.report.transports import sweep_tables
from harness.results import RolloutRow

MOST_CAUTIONS = 2
"""Of the short form."""
SHORT = ("stages", "bottleneck")
"""Keys of the remarks of the short form, the first where there are two arms."""
WEIGHTY = (
    *("diverged", "no_signal", "failed_groups", "simulated", "asleep", "missing", "unknown_seconds", "damaged"),
    *("unfinished", "reward_steps", "unequal_work", "length", "verdicts", "unlike"),
)
"""Keys of the cautions that come first: they are about whether the numbers may be compared at all."""
MARKED, REPEAT, FOR_SOME = "drift", "not_repeated", "For some: "
"""Keys of the caution that the table's mark gives and of the one that says what to type for error bars, after these
words."""
MOST_NAMED_PARTS = 3
"""Of a run's folder: scenario, experiment, run."""
MOST_PAIRS = 3
"""Example rollouts of one arm."""


def document(experiment: Experiment, judged: Sequence[Judgement], brief: bool = False) -> Document:
    """Return what an experiment says, each sentence once: the other sections hold what the short form leaves.

    Args:
        brief: the short form and the cautions alone.
    """
    said = remarks_of(experiment, judged)
    points = sweep_points(experiment)
    swept = sweep_tables(points) if points else []
    answer = [item for item in said if item.kind == "answer"]
    short: list[Item] = [swept[0] if points else tables.comparison_table(experiment, judged)]
    by_key = {item.key: item for item in said}
    keys = SHORT if len(experiment.arms) == 2 else SHORT[1:]
    short += [by_key[key] for key in keys if key in by_key]
    following = _next(experiment, judged, said)
    used = {item.key for item in following if isinstance(item, Remark)}
    said = [item for item in said if item not in (*answer, *short) and item.key not in used]
    cautions = [item for item in said if item.kind == "caution"]
    shown = [item for item in cautions if item.key != MARKED]
    weights = {key: place for place, key in enumerate(WEIGHTY)}
    first = sorted(shown, key=lambda item: weights.get(item.key.partition("/")[0], len(weights)))[:MOST_CAUTIONS]
    sections: list[Section | None] = [Section("comparison", "At a glance", (*short, *following, *first))]
    if points and not brief:
        chart = drawings.sizes_chart(experiment, points)
        sections.append(_section("transports", "Transports", [chart, *swept[1:]], _of(said, "syncs")))
    elif not brief:
        sections += _sections(experiment, judged, said)
    others = [item for item in cautions if item not in first]
    sections.append(_section("cautions", "Further cautions", others, folded=True))
    if not brief:
        sections += [machine_section(experiment), provenance_section(experiment)]
    description = experiment.members[0].settings.get("description")
    return Document(
        title=f"{experiment.title} / {experiment.name}",
        origin=origin(experiment),
        description=description if isinstance(description, str) else None,
        answer=tuple(answer),
        sections=tuple(section for section in sections if section is not None and section.items),
    )


def _of(said: Sequence[Remark], section: str) -> list[Remark]:
    return [item for item in said if item.section == section and item.kind != "caution"]


def _next(experiment: Experiment, judged: Sequence[Judgement], said: Sequence[Remark]) -> list[Item]:
    """Say what to type next: to see what a smaller bottleneck would bring, and for error bars where there are none."""
    base = next((item.base for item in judged if item.base in experiment.arms), experiment.labels[0])
    command = whatif_command(experiment, base, _shown)
    items: list[Item] = [Command(command)] if command else []
    for item in said:
        words, introduced, command = item.text.partition(FOR_SOME)
        if item.key == REPEAT and introduced:
            items += [Remark(item.key, f"{words}{FOR_SOME}".strip(), "finding", item.section), Command(command)]
    return items


def _shown(folder: Path) -> str:
    """Return how a run's folder is written: a page names nobody's home."""
    path = Path(shown_path(folder.resolve()))
    return str(Path(*path.parts[-MOST_NAMED_PARTS:]) if path.is_absolute() else path)


def _sections(experiment: Experiment, judged: Sequence[Judgement], said: Sequence[Remark]) -> list[Section | None]:
    curves = drawings.curve_charts(experiment)
    verdicts = [(item, tables.verdict_table(item)) for item in judged if item.primary.blocks > 1]
    return [
        Section(
            *("verdicts", "Verdicts"),
            (*_of(said, "answer"), *(drawings.forest_chart(item, table) or table for item, table in verdicts)),
            notes=tables.verdict_notes([item for item, _ in verdicts]),
        ),
        _section(
            *("time", "Where the time goes"),
            [drawings.stages_chart(experiment), tables.stage_table(experiment), drawings.processes_chart(experiment)],
            [tables.rank_table(experiment), drawings.timeline_chart(experiment), curves.get("step_time")],
            _of(said, "time"),
        ),
        _section(
            *("learning", "What was learned"),
            [curves.get("reward"), tables.outcome_table(experiment)],
            [curves.get(key) for key in ("training", "kl", "stability", "optimizer_steps")],
            [drawings.grid_chart(experiment), drawings.scatter_chart(experiment)],
            _of(said, "learning"),
        ),
        _section(
            *("off_policy", "Lag and waste"),
            [drawings.lag_chart(experiment), drawings.waste_chart(experiment), tables.off_policy_table(experiment)],
            [tables.replay_table(experiment)],
            _of(said, "off_policy"),
            folded=True,
        ),
        _section("syncs", "Weight syncs", [drawings.sync_chart(experiment)], _of(said, "syncs"), folded=True),
        _section("rollouts", "Example rollouts", list(examples(experiment)), folded=True),
    ]


def _section(key: str, title: str, *parts: Sequence[Item | None], folded: bool = False) -> Section:
    return Section(key, title, tuple(item for part in parts for item in part if item is not None), folded)


def charts_of(document: Document) -> list[Chart]:
    """Return the charts of a document, in order."""
    return [item for section in document.sections for item in section.items if isinstance(item, Chart)]


def examples(experiment: Experiment) -> list[Rollouts]:
    """Return example rollouts of each arm, before and after training, of the first run that has some."""
    shown = []
    for arm, members in experiment.arms.items():
        pairs = next((pairs for each in members if (pairs := before_and_after(each.kept.rollouts, MOST_PAIRS))), ())
        shown += [Rollouts(arm, tuple(pairs))] if pairs else []
    return shown


def before_and_after(rollouts: Sequence[RolloutRow], most: int) -> list[tuple[RolloutRow, RolloutRow]]:
    """Pair validation rollouts of the first and the last evaluated version that answer the same prompt.

    Prompts whose reward changed come first; within these, the file's order is kept.
    """
    evaluated = [item for item in rollouts if item.purpose == "evaluate"]
    versions = [item.version for item in evaluated]
    if not versions or min(versions) == max(versions):
        return []
    first = [item for item in evaluated if item.version == min(versions)]
    last = {item.prompt: item for item in evaluated if item.version == max(versions)}
    pairs = [(item, last[item.prompt]) for item in first if item.prompt in last]
    return sorted(pairs, key=lambda pair: pair[0].reward == pair[1].reward)[:most]
