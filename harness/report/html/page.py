"""From folders to the page: which experiments are shown, their sections, the document, and the writing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.compare import numbers
from harness.compare.caveats import caveats, origin, unlike
from harness.compare.experiments import Experiment, Variant, gather
from harness.compare.findings import exposed_shares, findings
from harness.compare.rewards import final_reward
from harness.compare.step_times import step_ratio
from harness.compare.sync_tables import sweep_points
from harness.compare.tables import Table, overview_table, seed_note, step_cell
from harness.compare.verdicts import Judgement, judgements
from harness.core.atomic_files import check_replaceable, whole_file
from harness.core.errors import UserError
from harness.report.brief import headline, largest_lever, lever_command
from harness.report.data import ReportData, read_report_data
from harness.report.html.forest import verdict_section
from harness.report.html.headlines import headlines
from harness.report.html.learning import learning_section
from harness.report.html.machine import provenance_section, resources_section
from harness.report.html.markup import Markup, bullets, definitions, details, element, join, prose, table
from harness.report.html.rollouts import examples_section, waste_section
from harness.report.html.syncs import sweep_section, sync_section
from harness.report.html.theme import stylesheet
from harness.report.html.times import step_figure, timeline_section, times_section
from harness.results import DamagedRun, find_run_folders

Entry = tuple[str, str]
"""(anchor, name) of a line in the table of contents."""


def document(title: str, head: Markup, contents: Sequence[Entry], body: Sequence[Markup]) -> str:
    """Return the whole page.

    Its security policy lets the browser load nothing from anywhere, run no script, send no form, and use one style
    sheet, named by its hash: so text that got past the escaping could still do nothing.

    Args:
        head: what stands above the table of contents.
        body: the articles.
    """
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    about = [
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    ]
    shown = element(
        "div",
        element("header", head, _contents(contents)),
        element("main", body, id="content"),
        element("footer", element("p", "Made from the files of the runs alone; the same files give the same page.")),
        class_="frame",
    )
    skip = element("a", "Skip to the content", href="#content", class_="skip")
    page = element("html", element("head", about), element("body", skip, definitions(), shown), lang="en")
    return "<!doctype html>\n" + join(page) + "\n"


def _contents(entries: Sequence[Entry]) -> Markup | None:
    if not entries:
        return None
    items = [element("li", element("a", name, href=f"#{anchor}")) for anchor, name in entries]
    return element("nav", element("p", "On this page", class_="title"), element("ol", items), aria_label="On this page")


Judged = tuple[ReportData, Sequence[Judgement]]
"""An experiment with its verdicts."""


def report(shown: Sequence[Judged], overview: Sequence[Experiment], left_out: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        shown: the experiments to show in full, each with its verdicts.
        overview: the experiments of the table at the top; shown where there are several.
        left_out: sentences on runs that could not be read.
    """
    single = shown[0][0].experiment if len(shown) == 1 else None
    title = f"{single.title} / {single.name}" if single else f"{len(shown)} experiments"
    contents, body = list[Entry](), list[Markup]()
    head = [_title(shown), _overview(overview)]
    head.append(_mind("Left out", left_out))
    for number, (report_data, judged) in enumerate(shown, start=1):
        article, entries = _article(report_data, judged, f"c{number}", alone=single is not None)
        body.append(article)
        contents += (
            entries if single else [(f"c{number}", f"{report_data.experiment.title} / {report_data.experiment.name}")]
        )
    return document(f"Report: {title}", join(head), contents, body)


def _title(shown: Sequence[Judged]) -> Markup:
    eyebrow = element("p", "GRPO benchmark report", class_="eyebrow")
    if len(shown) > 1:
        return join(eyebrow, element("h1", f"{len(shown)} experiments"))
    return join(eyebrow, element("h1", shown[0][0].experiment.title), _lead(shown[0][0]))


def _lead(report_data: ReportData) -> Markup | None:
    said = report_data.curves.all_runs()[0].setting("description")
    return element("p", said, class_="lead") if isinstance(said, str) and said else None


def _overview(experiments: Sequence[Experiment]) -> Markup | None:
    if len(experiments) < 2:
        return None
    data = table(overview_table(experiments))
    mind = _mind("Caveats", unlike([run for experiment in experiments for run in experiment.runs]))
    return details(f"Show all {len(experiments)} experiments that were found", data, mind)


def _mind(word: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return element("aside", element("strong", word), bullets(sentences), class_="mind", aria_label=word)


def _article(
    report_data: ReportData, judged: Sequence[Judgement], anchor: str, alone: bool
) -> tuple[Markup, list[Entry]]:
    experiment = report_data.experiment
    named: list[tuple[str, str, Markup | None]] = [
        ("says", "What the figures say", _summary(report_data, judged, f"{anchor}-says"))
    ]
    if sweep_points(experiment):
        named.append(("transports", "Transports", sweep_section(report_data, f"{anchor}-transports")))
    else:
        verdicts = verdict_section(judged, len(experiment.variants), f"{anchor}-verdicts")
        named += [
            ("verdicts", "Verdicts", verdicts),
            ("times", "Where the time goes", times_section(report_data, f"{anchor}-times")),
            ("timeline", "Timeline", timeline_section(report_data, f"{anchor}-timeline")),
            ("learning", "What was learned", learning_section(report_data, f"{anchor}-learning")),
            ("waste", "Lag and waste", waste_section(report_data, f"{anchor}-waste")),
            ("syncs", "Weight syncs", sync_section(report_data, f"{anchor}-syncs")),
            ("resources", "Resources", resources_section(report_data, f"{anchor}-resources")),
            ("examples", "Example rollouts", examples_section(report_data, f"{anchor}-examples")),
        ]
    named.append(("provenance", "Provenance", provenance_section(report_data, f"{anchor}-provenance")))
    heading = f"Experiment {experiment.name}" if alone else f"{experiment.title} / {experiment.name}"
    head = [element("h2", heading, id=f"{anchor}-title"), None if alone else _lead(report_data)]
    head.append(element("p", origin(experiment), class_="origin"))
    article = element("article", head, [part for _, _, part in named], id=anchor, aria_labelledby=f"{anchor}-title")
    return article, [(f"{anchor}-{key}", name) for key, name, part in named if part]


def _summary(report_data: ReportData, judged: Sequence[Judgement], anchor: str) -> Markup:
    """Return headline, picture and largest lever, the figures at a glance, every finding, and what to mind."""
    experiment = report_data.experiment
    said, lever = headline(experiment, judged), largest_lever(report_data)
    parts: list[Markup | None] = [element("h3", "What the figures say", id=f"{anchor}-title")]
    parts += [element("p", prose(line), class_="headline") for line in said]
    if not sweep_points(experiment):
        parts.append(step_figure(report_data))
        parts.append(_lever(lever, lever_command(report_data)) if lever else None)
        parts.append(table(_glance(report_data), caption=False))
    parts.append(bullets([line for line in headlines(report_data) if line not in said], "says-list"))
    if not sweep_points(experiment):
        parts.append(details("Show every finding", bullets([item.text for item in findings(experiment)], "plain-list")))
    parts.append(_mind("Caveats", caveats(experiment)))
    return element("section", parts, id=anchor, aria_labelledby=f"{anchor}-title")


def _lever(sentence: str, command: str) -> Markup:
    return element("p", prose(sentence), " What that would bring: ", element("code", command), class_="lever")


def _glance(report_data: ReportData) -> Table:
    """Return a row for each arm; what no arm has is left out."""
    experiment = report_data.experiment
    first = experiment.variants[0]
    columns: dict[str, Callable[[Variant], str]] = {
        "s per step": step_cell,
        "times the first": lambda variant: _ratio(first, variant),
        "tokens per second": lambda variant: numbers.spread(variant.spread(lambda run: run.throughput), numbers.number),
        "tokens per second, prompts included": lambda variant: numbers.spread(
            variant.spread(lambda run: run.mean("perf/processed_tokens_per_s")), numbers.number
        ),
        "last validation reward": lambda variant: numbers.spread(variant.spread(final_reward), numbers.reward),
        "training reward at the end": lambda variant: numbers.spread(
            variant.spread(lambda run: run.training_reward), numbers.reward
        ),
        "waited for most": lambda variant: _waited(report_data, variant),
    }
    cells = {name: [write(variant) for variant in experiment.variants] for name, write in columns.items()}
    shown = {name: own for name, own in cells.items() if any(cell != numbers.NOTHING for cell in own)}
    if len(experiment.variants) == 1:
        shown.pop("times the first", None)
    rows = tuple(
        (variant.name, *(own[place] for own in shown.values())) for place, variant in enumerate(experiment.variants)
    )
    return Table("At a glance", ("variant", *shown), rows, seed_note(experiment.variants))


def _ratio(first: Variant, variant: Variant) -> str:
    ratio = step_ratio(first, variant)
    return numbers.NOTHING if ratio is None else f"{ratio:.2f}"


def _waited(report_data: ReportData, variant: Variant) -> str:
    shares = exposed_shares(variant)
    most = max(shares, key=lambda item: shares[item], default=None)
    return f"{most.value}, {100 * shares[most]:.0f}%" if most else numbers.NOTHING


class MadeReport(NamedTuple):
    """What a report shows, newest experiment first, and a sentence for each run that could not be read."""

    shown: list[Judged]
    left_out: list[str]


def make_report(paths: Sequence[Path], out: Path, everything: bool = False) -> MadeReport:
    """Write the report of the runs at or below the paths.

    Args:
        out: the file; replaced as a whole, or left as it was where something fails.
        everything: show every experiment in full, not only the newest.

    Raises:
        UserError: a path does not exist or holds no readable run, or ``out`` cannot be written.
    """
    check_replaceable(out, "report", is_report)
    experiments, damaged = gather(paths, brief=True)
    folders = {folder.resolve(): folder for path in paths for folder in find_run_folders(path)}
    shown = _shown(experiments, list(folders.values()), damaged, everything)
    left_out = [f"left out {str(item.folder)!r}: {item.error.what}" for item in damaged]
    _write(out, report(shown, experiments, [f"{item.folder.name}: {item.error.what}" for item in damaged]))
    return MadeReport(shown, left_out)


def _shown(
    experiments: Sequence[Experiment], folders: Sequence[Path], damaged: list[DamagedRun], everything: bool
) -> list[Judged]:
    """Read the experiments to show, newest first; runs that turn out to be damaged join the others."""
    shown = list[Judged]()
    for experiment in reversed(experiments):
        judged = _judged(experiment, folders, damaged)
        if judged is not None:
            shown.append(judged)
            if not everything:
                break
    if not shown:
        raise damaged[-1].error
    return shown


def _judged(experiment: Experiment, folders: Sequence[Path], damaged: list[DamagedRun]) -> Judged | None:
    bad = {item.folder for item in damaged}
    own = [item for item in folders if experiment.folder in (item, item.parent) and item not in bad]
    try:
        report_data = read_report_data(experiment.folder, own)
    except UserError:
        found = [DamagedRun(folder, error) for folder in own if (error := _problem(experiment.folder, folder))]
        damaged += found
        kept = [folder for folder in own if folder not in {item.folder for item in found}]
        return _judged(experiment, kept, damaged) if kept and found else None
    return report_data, judgements(report_data.experiment)


def _problem(experiment: Path, folder: Path) -> UserError | None:
    """Return what is wrong with a run; None where nothing is."""
    try:
        read_report_data(experiment, [folder])
    except UserError as error:
        return error
    return None


_TITLE = "<title>Report: "


def is_report(path: Path) -> bool:
    """Whether a file is a page of ours."""
    try:
        with path.open("rb") as stream:
            head = stream.read(2000)
    except OSError:
        return False
    return head.startswith(b"<!doctype html>") and _TITLE.encode() in head


def _write(out: Path, page: str) -> None:
    try:
        with whole_file(out) as stream:
            stream.write(page.encode())
    except OSError as error:
        what = f"cannot write the report to {str(out)!r}: {error.strerror or error}"
        raise UserError(what, where=str(out), fix="name another file with -o FILE") from error
