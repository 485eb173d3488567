"""What became of the rollouts: how old the trained ones were, what was used at all, and examples of their text."""

from __future__ import annotations

from harness.compare import numbers
from harness.compare.experiments import Variant
from harness.compare.findings import off_policy_findings
from harness.compare.replay import replay_table
from harness.compare.tables import Table, off_policy_table
from harness.report.data import ReportData, lags_by_variant, mean_lag
from harness.report.html.charts import Bar, Scale, Segment, draw_bars
from harness.report.html.markup import (
    Markup,
    bullets,
    details,
    element,
    figure,
    join,
    lines,
    note,
    section,
    table,
    tables,
)
from harness.results import LedgerFigures, RolloutRow, Rollouts

REPLAY = "replay"  # the finding of that name
PERCENT = Scale(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))
COLUMNS = (
    ("trained", "trained on"),
    ("unused", "never used"),
    ("discarded", "discarded, all rewards equal"),
    ("dropped", "dropped as too old"),
    ("failed", "failed"),
)


def waste_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section; None where no rollout lagged and no run got to its end."""
    found = off_policy_table(report_data.experiment)
    others = [item.text for item in off_policy_findings(report_data.experiment) if item.name != REPLAY]
    said = bullets(others, "plain-list")
    data = details("Show the figures", *tables([found], report_data.experiment)) if found else None
    return section(anchor, "Lag and waste", _lag(report_data), _ledger(report_data), said, data, _replay(report_data))


def _replay(report_data: ReportData) -> Markup | None:
    """Return what the replay buffer did, in words and as a table; None without one."""
    found = replay_table(report_data.experiment)
    if found is None:
        return None
    said = " ".join(item.text for item in off_policy_findings(report_data.experiment) if item.name == REPLAY)
    return figure("Ageing and sampling in the replay buffer.", said, join(*tables([found], report_data.experiment)))


def _lag(report_data: ReportData) -> Markup | None:
    lags = lags_by_variant(report_data.curves)
    if not lags:
        return None
    bars, means = list[Bar](), []
    for name, found in lags.items():
        means.append(f"{name} {numbers.number(mean_lag(found))}")
        for place, lag in enumerate(range(max(found) + 1) if len(found) > 1 else ()):
            part = found[lag] / found.total()
            segment = Segment("lag-bar", 100 * part, f"{found[lag]} rollouts")
            bars.append(Bar(_versions(lag), [segment], numbers.percent(part), None if place else name))
    sentence = f"Policy versions between a training step and a rollout's oldest token; means: {', '.join(means)}."
    if not bars:
        return note(f"Lag of the rollouts trained on. {sentence} In each arm all rollouts have the same.")
    drawing = draw_bars(bars, PERCENT, "percent of the rollouts trained on", sentence)
    return figure("Lag of the rollouts trained on.", sentence, drawing)


def _versions(lag: int) -> str:
    return "1 version" if lag == 1 else f"{lag} versions"


def _ledger(report_data: ReportData) -> Markup | None:
    """Return what became of the generated tokens, with the lengths that tell a bias."""
    known = [variant for variant in report_data.experiment.variants if any(_ledgers(variant))]
    if not known:
        return None
    bars = [_bar(variant) for variant in known if sum(_has(variant, key) for key, _ in COLUMNS) > 1]
    rows = tuple(row for variant in known for row in _rows(variant))
    header = ("variant", "rollouts", "count", "share", "tokens", "mean length", "length over generated")
    notes = (
        "Sums over the runs of a variant. Trained again: further uses of replayed rollouts. A length over generated "
        "other than 1.00 is a bias: dropping or leaving out prefers short or long responses.",
    )
    data = details("Show the figures", table(Table("What became of the rollouts", header, rows, notes, words=2)))
    sentence = f"Trained on, of the generated tokens: {', '.join(_says(variant) for variant in known)}."
    if not bars:
        return join(note(f"What became of the generated tokens. {sentence}"), data)
    drawing = draw_bars(bars, PERCENT, "percent of the generated tokens", sentence)
    items = [element("li", _swatch(f"led-{key}"), name) for key, name in COLUMNS if any(_has(v, key) for v in known)]
    legend = element("ul", items, class_="legend", aria_label="Legend")
    return figure("What became of the generated tokens.", sentence, drawing, data, legend=legend)


def _swatch(class_: str) -> Markup:
    box = element("rect", width=14, height=14, rx=2, class_=class_)
    return element("svg", box, width=14, height=14, class_="swatch", aria_hidden="true")


def _ledgers(variant: Variant) -> list[LedgerFigures]:
    return [run.ledger for run in variant.runs if run.ledger is not None and run.ledger.generated.rollouts]


def _sum(variant: Variant, column: str) -> Rollouts:
    parts: list[Rollouts] = [getattr(ledger, column) for ledger in _ledgers(variant)]
    return Rollouts(sum(part.rollouts for part in parts), sum(part.tokens for part in parts))


def _has(variant: Variant, column: str) -> bool:
    return _sum(variant, column).rollouts > 0


def _bar(variant: Variant) -> Bar:
    total = _sum(variant, "generated").tokens or 1
    segments = [
        Segment(f"led-{key}", 100 * part.tokens / total, f"{name}: {numbers.count(part.tokens)} tokens")
        for key, name in COLUMNS
        if (part := _sum(variant, key)).tokens
    ]
    return Bar(variant.name, segments, f"{numbers.count(total)} tokens")


def _says(variant: Variant) -> str:
    generated, trained, dropped = (_sum(variant, key) for key in ("generated", "trained", "dropped"))
    used = numbers.percent(trained.tokens / generated.tokens) if generated.tokens else numbers.NOTHING
    text = f"{variant.name} {used}"
    if dropped.mean_length and generated.mean_length:
        text += f" (dropped rollouts have {dropped.mean_length / generated.mean_length:.2f} times the mean length)"
    return text


def _rows(variant: Variant) -> list[tuple[str, ...]]:
    generated = _sum(variant, "generated")
    rows = list[tuple[str, ...]]()
    names = (("generated", "generated"), *COLUMNS, ("trained_again", "trained again"))
    for key, name in names:
        part = _sum(variant, key)
        if part.rollouts or key in ("generated", "trained"):
            bias = (
                f"{part.mean_length / generated.mean_length:.2f}"
                if part.mean_length and generated.mean_length
                else numbers.NOTHING
            )
            length = numbers.NOTHING if part.mean_length is None else numbers.number(part.mean_length)
            portion = numbers.percent(part.rollouts / generated.rollouts) if generated.rollouts else numbers.NOTHING
            cells = (numbers.count(part.rollouts), portion, numbers.count(part.tokens), length, bias)
            rows.append((variant.name, name, *cells))
    return rows


LONGEST_TEXT = 2000  # characters


def examples_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section, the first variant's pairs in view and the others' to open; None where none were kept."""
    shown = list[Markup]()
    known = {name: pairs for name, pairs in report_data.examples.items() if pairs}
    for name, pairs in known.items():
        exchanges = [_exchange(before, after) for before, after in pairs]
        title = f"{name}: {len(pairs)} prompts before and after"
        shown.append(details(title, *exchanges) if shown else join(exchanges))
    if not shown:
        return None
    first = next(iter(known))
    said = note(f"Validation prompts whose reward changed come first; those of {first} are in view. Text as generated.")
    return section(anchor, "Example rollouts", said, *shown)


def _exchange(before: RolloutRow, after: RolloutRow) -> Markup:
    parts = [element("p", "Prompt"), element("pre", lines(before.prompt, LONGEST_TEXT))]
    for when, item in (("Before", before), ("After", after)):
        facts = f"{when}: version {item.version}, reward {item.reward:g}, {item.num_tokens} tokens"
        parts += [element("p", facts), element("pre", lines(item.response, LONGEST_TEXT))]
    return element("div", parts, class_="exchange")
