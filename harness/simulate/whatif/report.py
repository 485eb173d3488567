"""How a change is told: tables, sentences, a picture, and both replays as runs, for compare, report and trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.text import Text

from harness.compare.checkpoints import checkpoint_sentence
from harness.compare.numbers import Format, change, listed, number, percent
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.core.trace import Span, Stage, in_order
from harness.report.canvas import save
from harness.report.console import Output
from harness.report.document import Table
from harness.report.experiment_charts import Excerpt, timeline_figure
from harness.report.terminal import print_list, print_table
from harness.results import Manifest, RunFolder, experiment_name
from harness.results.recorder import LEDGER_COLUMNS
from harness.results.writer import timestamp, utc_now
from harness.scenario.load import resolved_yaml
from harness.simulate.forecast import NAMES, WASTE_WORDS
from harness.simulate.metrics import metrics_of
from harness.simulate.whatif.answer import FASTER, Answer, Gain

NOTHING = 0.001
"""Gains below this share of a step are not worth a word."""
NONE = "-"
LONGEST_HEADER = 20


def changed_to(answer: Answer) -> str:
    """Return in words what was changed, as it was typed."""
    paces = [f"{name} x {factor:g}" for name, factor in answer.change.pace.items()]
    return ", ".join([*answer.change.typed, *paces]) or "unchanged"


def figures(answer: Answer) -> dict[str, Any]:
    """Return the figures of an answer as plain values."""
    manifest, replays = answer.run.manifest, {"before": answer.before, "after": answer.after}
    step_s = {"recorded": answer.recorded_step_s} | {name: each.step_s for name, each in replays.items()}
    if answer.shared is not None:
        step_s["after_on_shared_cores"] = answer.shared.step_s
    found = {
        "scenario": manifest.scenario,
        "experiment": manifest.experiment,
        "run": answer.run.folder.name,
        "changed": changed_to(answer),
        "step_s": step_s,
        "ratio": answer.ratio,
        "error": answer.error,
        "stages_s": {name: dict(each.stages_s) for name, each in replays.items()},
        "idle": {name: dict(each.idle) for name, each in replays.items()},
        "gain_of_10_percent_off": {gain.name: gain.gain for gain in answer.gains},
        "machine": answer.machine,
        "notes": list(answer.notes),
    }
    if answer.interval is not None:
        found["ratio_interval"] = [answer.interval.low, answer.interval.high]
    if any(gain.low < gain.high for gain in answer.gains):
        found["gain_intervals"] = {gain.name: [gain.low, gain.high] for gain in answer.gains}
    return found


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer: the figures of a forecast, and what 10% off each stage would give."""
    unchanged = answer.change.is_none
    whose = "the run" if unchanged else "the changed run"
    title = f"What 10% faster would give: {whose} replayed with one stage at {FASTER:g} of its time (simulated)"
    gains = tuple((gain.name, number(gain.seconds), _with_interval(gain)) for gain in answer.gains)
    return [_figure_table(answer), Table(title, ("stage", "seconds in a step", "gain in step time"), gains)]


def _figure_table(answer: Answer) -> Table:
    """Return a row for each figure: of the run, of its replay, and of the changed one, and by how much these differ."""
    simulated = answer.run.manifest.simulated is not None
    header = ["figure", "recorded (simulated)" if simulated else "recorded", "replayed as it was (simulated)"]
    of = [
        answer.recorded,
        *(metrics_of(each.table(), each.spans, each.ledger) for each in (answer.before, answer.after)),
    ]
    if answer.change.is_none:
        del of[2]
    else:
        told = changed_to(answer)
        header.append(f"{told if len(told) <= LONGEST_HEADER else 'changed'} (simulated)")
    rows = list[tuple[str, ...]]()

    def add(name: str, values: Sequence[float | None], form: Format = number) -> None:
        if any(values):
            old, new = values[-2:]
            differs = change(new / old) if old and new and form is number else NONE
            rows.append((name, *(NONE if value is None else form(value) for value in values), differs))

    add("seconds of a training step", [each.step_s for each in of])
    if answer.recorded.throughput:
        add("response tokens a second", [each.throughput for each in of])
    for stage in in_order(Stage(name) for each in of for name in each.stages_s):
        add(f"  {stage.value}, s a step", [each.stages_s.get(stage.value) for each in of])
    for kind, name in NAMES.items():
        add(f"idle share, {name}", [each.idle.get(kind) for each in of], percent)
    add("seconds of one weight sync", [each.sync_s for each in of])
    for lag in sorted({lag for each in of for lag in each.lags if lag}):
        add(f"rollouts trained on at lag {lag}", [each.lags.get(lag) for each in of], percent)
    for waste, words in WASTE_WORDS.items():
        add(words, [each.waste.get(waste) for each in of], percent)
    what = "The replay is compared with the run" if answer.change.is_none else "The change is compared with the replay"
    title = "Forecast from the run (simulated)"
    return Table(title, (*header, "difference"), tuple(rows), (f"{what}; waits and stages are added over the lanes.",))


def sentences(answer: Answer) -> Iterator[str]:
    """Yield what the figures say."""
    after, before, spread = answer.after.step_s, answer.before.step_s, answer.interval
    if not answer.change.is_none:
        told = change(answer.ratio)
        if spread is not None:
            told += f" [{change(spread.low)}, {change(spread.high)}]"
        yield f"with {changed_to(answer)} a step would take {number(after)} s in place of {number(before)} s ({told})"
        if spread is not None and spread.low < 1 < spread.high:
            yield "whether that is faster or slower cannot be told: which batches are dropped moves a step by as much"
    if answer.shared is not None:
        ratio = change(answer.shared.step_s / before) if before else NONE
        yield (
            "that is with cores of its own for each part; on those on which the parts took turns, which they would "
            f"share, it would be {number(answer.shared.step_s)} s ({ratio})"
        )
    first = answer.lane_gains[0] if answer.lane_gains else None
    if first is not None and first.low >= NOTHING:
        when = "" if answer.change.is_none else "after the change "
        yield (
            f"{when}the {first.name} is critical: everything it does {1 - FASTER:.0%} faster makes a step "
            f"{percent(first.gain)} shorter"
        )
    yield from _advice(answer.gains)


def cautions(answer: Answer) -> Iterator[str]:
    """Yield what to mind."""
    yield (
        f"simulated: the run as it was is replayed with its own times, and a step of that is off by "
        f"{percent(abs(answer.error))} of the recorded one"
    )
    if answer.machine is not None:
        yield f"costs and contention are those of the machine profile {answer.machine}"
    yield from answer.notes


def show(answer: Answer, written: Sequence[str]) -> None:
    """Print an answer, and what was written of it."""
    console = Output()
    manifest = answer.run.manifest
    title = f"What if: {manifest.scenario} / {manifest.experiment} / {answer.run.folder.name} (simulated)"
    console.print(Text(plain(title), style="bold underline"))
    for table in tables(answer):
        print_table(console, table)
    print_list(console, "What the figures say", list(sentences(answer)))
    if answer.checkpoints is not None:
        print_list(console, "Checkpoints", [checkpoint_sentence(changed_to(answer), answer.checkpoints)])
    print_list(console, "Caveats", list(cautions(answer)))
    print_list(console, "Written", written)


def _advice(gains: Sequence[Gain]) -> Iterator[str]:
    worth = [gain for gain in gains if gain.low >= NOTHING]
    hidden = [gain for gain in gains if gain.high < NOTHING]
    unclear = [gain.name for gain in gains if gain.low < NOTHING <= gain.high]
    if worth:
        then = f", then {listed([_told(gain) for gain in worth[1:3]])}" if len(worth) > 1 else ""
        yield f"10% faster, by what it takes off a step: optimise {_told(worth[0])} first{then}"
    elif not unclear:
        yield "no stage that is 10% faster would make a step shorter by as much as 0.1%"
        return
    if unclear:
        yield f"what {listed(unclear)} would give cannot be told: which batches are dropped moves a step by as much"
    if hidden:
        names = listed([gain.name for gain in hidden])
        takes = "it takes" if len(hidden) == 1 else "each of them takes"
        yield f"do not bother with {names}: 10% faster, {takes} less than {percent(NOTHING)} off a step"


def _told(gain: Gain) -> str:
    return f"{gain.name} ({percent(gain.gain)})"


def _with_interval(gain: Gain) -> str:
    ends = f" [{_signed(gain.low)}, {_signed(gain.high)}]" if gain.low < gain.high else ""
    return _signed(gain.gain) + ends


def _signed(gain: float) -> str:
    return f"{100 * gain:+.1f}%" if abs(gain) >= 0.0005 else "0.0%"


def draw_picture(answer: Answer, path: Path) -> Path:
    """Draw the picture of an answer into a PNG file; one of that name is replaced.

    Raises:
        UserError: it cannot be written.
    """
    shown = {"as it was (simulated)": answer.before}
    step = f"a step takes {number(answer.before.step_s)} s"
    if not answer.change.is_none:
        shown[f"{changed_to(answer)} (simulated)"] = answer.after
        step += f", then {number(answer.after.step_s)} s ({change(answer.ratio)})"
    heading = f"{answer.run.manifest.scenario}, simulated: {step}"
    try:
        excerpts = [Excerpt(name, each.spans, each.changes, each.table().steps) for name, each in shown.items()]
        return save(timeline_figure(excerpts, heading), path)
    except OSError as error:
        what = f"cannot write the picture {str(path)!r}: {error.strerror or error}"
        raise UserError(what, str(path), "name another folder with --out DIR") from error


BEFORE, AFTER, PICTURE = "as_it_was", "changed", "before_and_after.png"


def write_runs(answer: Answer, root: Path) -> Path:
    """Write the replay of the run as it was and that of the changed run as two arms of an experiment.

    Returns:
        the experiment's folder.

    Raises:
        UserError: it cannot be written.
    """
    run, now = answer.run.manifest, utc_now()
    name = f"whatif_{run.scenario}"
    experiment = experiment_name(root, name, now)
    arms = [(BEFORE, answer.change.before, answer.before), (AFTER, answer.change.after, answer.after)]
    for position, (arm, scenario, replayed) in enumerate(arms):
        with RunFolder.create(root, name, experiment, arm) as folder:
            folder.write_scenario(resolved_yaml(scenario))
            folder.write_manifest(
                Manifest(
                    scenario=name,
                    experiment=experiment,
                    started_at=timestamp(now),
                    arm=arm,
                    seed=run.seed,
                    interleaving="run",
                    position=position,
                    versions=run.versions,
                    machine=run.machine,
                    threads=run.threads,
                    parameters=run.parameters,
                    simulated=answer.machine or f"a replay of {run.scenario}/{run.experiment}",
                )
            )
            lanes = dict.fromkeys(span.lane for span in replayed.spans)
            folder.append_spans(Span(lane, Stage.STARTUP, 0, 0, -1, -1) for lane in lanes)
            folder.append_spans(replayed.spans)
            rows = replayed.rows
            if not answer.recorded.throughput:  # tokens of unknown lengths are no metric
                rows = [structs.replace(row, metrics={}) for row in rows]
            folder.append(*rows, replayed.tail)
            outcome = {"steps_done": len(replayed.rows), "warmup": asdict(answer.run.warm_up)}
            ledger = {column: asdict(getattr(replayed.ledger, column)) for column in LEDGER_COLUMNS}
            folder.finish("completed", outcome=outcome | {"ledger": ledger})
            where = folder.folder.parent
    return where
