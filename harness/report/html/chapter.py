"""One experiment as a chapter of the report, and the whole report."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare import numbers
from harness.compare.cautions import cautions, origin, unlike
from harness.compare.experiments import Experiment, Variant
from harness.compare.outcome import overview_table
from harness.compare.sentences import findings, last_reward
from harness.compare.sweep_tables import sweep_points
from harness.compare.tables import Table
from harness.compare.verdicts import Judgement
from harness.report.html.forest import verdict_section
from harness.report.html.gantt import timeline_section
from harness.report.html.headlines import exposed_shares, headlines
from harness.report.html.learning import learning_section
from harness.report.html.machine import provenance_section, resources_section
from harness.report.html.markup import Markup, element, join
from harness.report.html.material import Material
from harness.report.html.page import Entry, document
from harness.report.html.parts import bullets, details, table
from harness.report.html.rollouts import examples_section, waste_section
from harness.report.html.syncs import sweep_section, sync_section
from harness.report.html.times import times_section

Chapter = tuple[Material, Sequence[Judgement]]


def report(chapters: Sequence[Chapter], overview: Sequence[Experiment], left_out: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        chapters: the experiments to show in full, each with its verdicts.
        overview: the experiments of the table at the top; shown where there are several.
        left_out: sentences on runs that could not be read.
    """
    single = chapters[0][0].experiment if len(chapters) == 1 else None
    title = f"{single.title} / {single.name}" if single else f"{len(chapters)} experiments"
    contents, body = list[Entry](), list[Markup]()
    head = [_title(chapters), _overview(overview)]
    head.append(_mind("Left out", left_out))
    for number, (material, judged) in enumerate(chapters, start=1):
        chapter, entries = _chapter(material, judged, f"c{number}", alone=single is not None)
        body.append(chapter)
        contents += entries if single else [(f"c{number}", f"{material.experiment.title} / {material.experiment.name}")]
    return document(f"Report: {title}", join(head), contents, body)


def _title(chapters: Sequence[Chapter]) -> Markup:
    eyebrow = element("p", "GRPO benchmark report", class_="eyebrow")
    if len(chapters) > 1:
        return join(eyebrow, element("h1", f"{len(chapters)} experiments"))
    return join(eyebrow, element("h1", chapters[0][0].experiment.title), _lead(chapters[0][0]))


def _lead(material: Material) -> Markup | None:
    said = material.curves.all_runs()[0].setting("description")
    return element("p", said, class_="lead") if isinstance(said, str) and said else None


def _overview(experiments: Sequence[Experiment]) -> Markup | None:
    if len(experiments) < 2:
        return None
    data = table(overview_table(experiments))
    mind = _mind("Mind", unlike([run for experiment in experiments for run in experiment.runs]))
    return details(f"Show all {len(experiments)} experiments that were found", data, mind)


def _mind(word: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return element("aside", element("strong", word), bullets(sentences), class_="mind", aria_label=word)


def _chapter(material: Material, judged: Sequence[Judgement], anchor: str, alone: bool) -> tuple[Markup, list[Entry]]:
    experiment = material.experiment
    named: list[tuple[str, str, Markup | None]] = [
        ("says", "What the figures say", _summary(material, judged, f"{anchor}-says"))
    ]
    if sweep_points(experiment):
        named.append(("transports", "Transports", sweep_section(material, f"{anchor}-transports")))
    else:
        verdicts = verdict_section(judged, len(experiment.variants), f"{anchor}-verdicts")
        named += [
            ("verdicts", "Verdicts", verdicts),
            ("times", "Where the time goes", times_section(material, f"{anchor}-times")),
            ("timeline", "Timeline", timeline_section(material, f"{anchor}-timeline")),
            ("learning", "What was learned", learning_section(material, f"{anchor}-learning")),
            ("waste", "Lag and waste", waste_section(material, f"{anchor}-waste")),
            ("syncs", "Weight syncs", sync_section(material, f"{anchor}-syncs")),
            ("resources", "Resources", resources_section(material, f"{anchor}-resources")),
            ("examples", "Example rollouts", examples_section(material, f"{anchor}-examples")),
        ]
    named.append(("provenance", "Provenance", provenance_section(material, f"{anchor}-provenance")))
    heading = f"Experiment {experiment.name}" if alone else f"{experiment.title} / {experiment.name}"
    head = [element("h2", heading, id=f"{anchor}-title"), None if alone else _lead(material)]
    head.append(element("p", origin(experiment), class_="origin"))
    article = element("article", head, [part for _, _, part in named], id=anchor, aria_labelledby=f"{anchor}-title")
    return article, [(f"{anchor}-{key}", name) for key, name, part in named if part]


def _summary(material: Material, judged: Sequence[Judgement], anchor: str) -> Markup:
    """Return the sentences to leave with, the figures at a glance, every finding, and what to mind."""
    experiment = material.experiment
    title = element("h3", "What the figures say", id=f"{anchor}-title")
    parts = [title, bullets(headlines(material, judged), "says-list")]
    if not sweep_points(experiment):
        parts.append(table(_glance(material), caption=False))
        parts.append(details("Show every finding", bullets(findings(experiment), "plain-list")))
    parts.append(_mind("Mind", cautions(experiment)))
    return element("section", parts, id=anchor, aria_labelledby=f"{anchor}-title")


def _glance(material: Material) -> Table:
    header = ("variant", "s per step", "times the first", "last reward", "tokens per second", "waited for most")
    first = material.experiment.variants[0]
    rows = tuple(_glance_row(material, first, variant) for variant in material.experiment.variants)
    return Table("At a glance", header, rows)


def _glance_row(material: Material, first: Variant, variant: Variant) -> tuple[str, ...]:
    step, base = variant.spread(lambda run: run.step_s), first.spread(lambda run: run.step_s)
    ratio = f"{step.mean / base.mean:.2f}" if step and base and base.mean > 0 else numbers.NOTHING
    shares = exposed_shares(material, variant.name)
    most = max(shares, key=lambda item: shares[item], default=None)
    waited = f"{most.value}, {100 * shares[most]:.0f}%" if most else numbers.NOTHING
    return (
        variant.name,
        numbers.spread(step, numbers.number),
        ratio,
        numbers.spread(variant.spread(last_reward), numbers.reward),
        numbers.spread(variant.spread(lambda run: run.throughput), numbers.number),
        waited,
    )
