"""From an experiment to its document: which sections there are, and what stands in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.compare.environment import origin
from harness.compare.experiment import Experiment
from harness.compare.judging import Judgement
from harness.compare.remarks import Remark, remarks_of
from harness.compare.remarks.syncs import sweep_points
from harness.compare.remarks.time import whatif_command
from harness.report import experiment_charts as drawings
from harness.report import tables
from harness.report.console import shown_path
from harness.report.document import MARKED, Chart, Document, Item, Rollouts, Section
from harness.report.machine import machine_section, provenance_section
from harness.report.transports import sweep_tables
from harness.results import RolloutRow

MOST_CAUTIONS = 2
"""Of the short form."""
MOST_PAIRS = 3
"""Example rollouts of one arm."""


def document(experiment: Experiment, judged: Sequence[Judgement], brief: bool = False) -> Document:
    """Return what an experiment says, each sentence once: the other sections hold what the short form leaves.

    Args:
        brief: the short form and the cautions alone.
    """
    remarks = remarks_of(experiment, judged)
    points = sweep_points(experiment)
    swept = sweep_tables(points) if points else []
    limits = ("stages", "bottleneck") if len(experiment.arms) == 2 else ("bottleneck",)
    by_key = {item.key: item for item in remarks}
    cautions = [item for item in remarks if item.kind == "caution"]
    first = [item for item in cautions if item.key != MARKED][:MOST_CAUTIONS]
    short: list[Item] = [swept[0] if points else tables.comparison_table(experiment, judged)]
    short += [by_key[key] for key in limits if key in by_key]
    base = next((item.base for item in judged if item.base in experiment.arms), experiment.labels[0])
    if (command := whatif_command(experiment, base, lambda folder: shown_path(folder.resolve()))) is not None:
        short.append(Remark("whatif", "", "next", command))
    short += [*(item for item in remarks if item.section == "next"), *first]
    left = [item for item in remarks if item not in short and item.kind == "finding"]
    sections: list[Section | None] = [Section("comparison", "At a glance", tuple(short))]
    if points and not brief:
        chart = drawings.sizes_chart(experiment, points)
        sections.append(_section("transports", "Transports", [chart, *swept[1:]], _of(left, "syncs")))
    elif not brief:
        sections += _sections(experiment, judged, left)
    others = [item for item in cautions if item not in first]
    sections.append(_section("cautions", "Further cautions", others, folded=True))
    if not brief:
        sections += [machine_section(experiment), provenance_section(experiment)]
    description = experiment.members[0].settings.get("description")
    return Document(
        title=f"{experiment.title} / {experiment.name}",
        origin=origin(experiment),
        description=description if isinstance(description, str) else None,
        answer=tuple(_of(remarks, "answer")),
        sections=tuple(section for section in sections if section is not None and section.items),
    )


def _of(remarks: Sequence[Remark], section: str) -> list[Remark]:
    return [item for item in remarks if item.section == section]


def _sections(experiment: Experiment, judged: Sequence[Judgement], left: Sequence[Remark]) -> list[Section | None]:
    curves = drawings.curve_charts(experiment)
    repeated = [item for item in judged if item.primary.blocks > 1]
    verdicts = [tables.verdict_table(item) for item in repeated]
    if verdicts:
        verdicts[-1] = replace(verdicts[-1], notes=(*verdicts[-1].notes, *tables.verdict_notes(repeated)))
    forests = [drawings.forest_chart(*pair) or pair[1] for pair in zip(repeated, verdicts, strict=True)]
    return [
        _section("verdicts", "Verdicts", _of(left, "verdicts"), forests),
        _section(
            *("time", "Where the time goes"),
            [drawings.stages_chart(experiment), tables.stage_table(experiment), drawings.processes_chart(experiment)],
            [tables.rank_table(experiment), drawings.timeline_chart(experiment), curves.get("step_time")],
            _of(left, "time"),
        ),
        _section(
            *("learning", "What was learned"),
            [curves.get("reward"), tables.outcome_table(experiment)],
            [curves.get(key) for key in ("training", "kl", "stability", "optimizer_steps")],
            [drawings.grid_chart(experiment), drawings.scatter_chart(experiment)],
            _of(left, "learning"),
        ),
        _section(
            *("off_policy", "Lag and waste"),
            [drawings.lag_chart(experiment), drawings.waste_chart(experiment), tables.off_policy_table(experiment)],
            folded=True,
        ),
        _section("syncs", "Weight syncs", [drawings.sync_chart(experiment)], folded=True),
        _section("rollouts", "Example rollouts", examples(experiment), folded=True),
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
    versions = sorted({item.version for item in evaluated})
    last = {item.prompt: item for item in evaluated if item.version == versions[-1]} if len(versions) > 1 else {}
    first = [item for item in evaluated if item.version == versions[0] and item.prompt in last]
    pairs = [(item, last[item.prompt]) for item in first]
    return sorted(pairs, key=lambda pair: pair[0].reward == pair[1].reward)[:most]
