"""How a change is told: tables, sentences, a picture, and both replays as runs, for compare, report and trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from harness.compare.numbers import change, listed, number, percent
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.core.trace import Span, Stage
from harness.report.canvas import save
from harness.report.console import Output
from harness.report.document import Table
from harness.report.experiment_charts import EVALUATE, Excerpt, timeline_figure
from harness.report.terminal import print_list, print_table
from harness.results import Manifest, RunFolder, experiment_name, in_pipeline_order
from harness.results.recorder import LEDGER_COLUMNS
from harness.results.writer import timestamp, utc_now
from harness.scenario.load import resolved_yaml
from harness.simulate.whatif.answer import FASTER, Answer, Gain
from harness.simulate.whatif.replay import Replayed

NOTHING = 0.001
"""Gains below this share of a step are not worth a word."""
NONE = "-"


def changed_to(answer: Answer) -> str:
    """Return in words what was changed, as it was typed."""
    paces = [f"{name} x {factor:g}" for name, factor in answer.change.pace.items()]
    return ", ".join([*answer.change.typed, *paces]) or "unchanged"


def figures(answer: Answer) -> dict[str, Any]:
    """Return the figures of an answer as plain values."""
    manifest, replays = answer.run.manifest, {"before": answer.before, "after": answer.after}
    return {
        "scenario": manifest.scenario,
        "experiment": manifest.experiment,
        "run": answer.run.folder.name,
        "changed": changed_to(answer),
        "step_s": {"recorded": answer.recorded_step_s} | {name: each.step_s for name, each in replays.items()},
        "ratio": answer.ratio,
        "error": answer.error,
        "stages_s": {name: dict(each.stages_s) for name, each in replays.items()},
        "idle": {name: dict(each.idle) for name, each in replays.items()},
        "gain_of_10_percent_off": {gain.name: gain.gain for gain in answer.gains},
        "machine": answer.machine,
        "notes": list(answer.notes),
    }


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer, from the step time to what 10% off each stage would give."""
    before, after, unchanged = answer.before, answer.after, answer.change.is_none
    recorded = "recorded" if answer.run.manifest.simulated is None else "recorded (simulated)"
    times = [(recorded, number(answer.recorded_step_s), NONE)]
    times.append(("replayed as it was (simulated)", number(before.step_s), change(1 + answer.error)))
    if not unchanged:
        times.append((f"{changed_to(answer)} (simulated)", number(after.step_s), change(answer.ratio)))
    note = "replayed: compared with recorded. The change: compared with the replay."
    made = [Table("Step time, seconds", ("run", "step time", "difference"), tuple(times), (note,))]
    if not unchanged:
        ratios = {
            name: change(after.stages_s[name] / old)
            for name, old in before.stages_s.items()
            if old and name in after.stages_s
        }
        rows = _beside(before.stages_s, after.stages_s, list(Stage), number)
        stages = [(*row, ratios.get(row[0], NONE)) for row in rows]
        title = "Seconds of each stage and wait in a step, added over the lanes (simulated)"
        made.append(Table(title, ("stage", "before", "after", "difference"), tuple(stages)))
        lanes = in_pipeline_order({*before.idle, *after.idle})
        title = "Share of the measured steps that each lane waited (simulated)"
        idle = tuple(_beside(before.idle, after.idle, lanes, percent))
        made.append(Table(title, ("lane", "before", "after"), idle))
    whose = "the run" if unchanged else "the changed run"
    title = f"What 10% faster would give: {whose} replayed with one stage at {FASTER:g} of its time (simulated)"
    gains = tuple((gain.name, number(gain.seconds), _signed(gain.gain)) for gain in answer.gains)
    return [*made, Table(title, ("stage", "seconds in a step", "gain in step time"), gains)]


def _beside(
    before: Mapping[str, float], after: Mapping[str, float], names: Iterable[str], write: Callable[[float], str]
) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each name that is in one of them."""
    for name in names:
        if name in before or name in after:
            old, new = (write(each[name]) if name in each else NONE for each in (before, after))
            yield name, old, new


def sentences(answer: Answer) -> Iterator[str]:
    """Yield what the figures say."""
    if not answer.change.is_none:
        yield (
            f"with {changed_to(answer)} a step would take {number(answer.after.step_s)} s in place of "
            f"{number(answer.before.step_s)} s ({change(answer.ratio)})"
        )
    first = answer.lane_gains[0] if answer.lane_gains else None
    if first is not None and first.gain >= NOTHING:
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
    print_list(console, "Caveats", list(cautions(answer)))
    print_list(console, "Written", written)


def _advice(gains: Sequence[Gain]) -> Iterator[str]:
    worth = [gain for gain in gains if gain.gain >= NOTHING]
    hidden = [gain for gain in gains if gain.gain < NOTHING]
    if not worth:
        yield "no stage that is 10% faster would make a step shorter by as much as 0.1%"
        return
    then = f", then {listed([_told(gain) for gain in worth[1:3]])}" if len(worth) > 1 else ""
    yield f"10% faster, by what it takes off a step: optimise {_told(worth[0])} first{then}"
    if hidden:
        names = listed([gain.name for gain in hidden])
        takes = "it takes" if len(hidden) == 1 else "each of them takes"
        yield f"do not bother with {names}: 10% faster, {takes} less than {percent(NOTHING)} off a step"


def _told(gain: Gain) -> str:
    return f"{gain.name} ({percent(gain.gain)})"


def _signed(gain: float) -> str:
    return f"{100 * gain:+.1f}%" if abs(gain) >= 0.0005 else "0.0%"


def draw_picture(answer: Answer, path: Path) -> Path:
    """Draw the picture of an answer into a PNG file; one of that name is replaced.

    Raises:
        UserError: it cannot be written.
    """
    shown = [_excerpt("as it was (simulated)", answer.before)]
    step = f"a step takes {number(answer.before.step_s)} s"
    if not answer.change.is_none:
        shown.append(_excerpt(f"{changed_to(answer)} (simulated)", answer.after))
        step += f", then {number(answer.after.step_s)} s ({change(answer.ratio)})"
    heading = f"{answer.run.manifest.scenario}, simulated: {step}"
    try:
        return save(timeline_figure(shown, heading), path)
    except OSError as error:
        what = f"cannot write the picture {str(path)!r}: {error.strerror or error}"
        raise UserError(what, str(path), "name another folder with --out DIR") from error


def _excerpt(name: str, replayed: Replayed) -> Excerpt:
    rows = replayed.rows
    steps: dict[str, list[float]] = {of: [getattr(row, of) for row in rows] for of in ("step", "wall_s", "elapsed_s")}
    steps[EVALUATE] = [row.stages_s.get(Stage.EVALUATE.value, 0.0) for row in rows]
    return Excerpt(name, replayed.spans, replayed.changes, steps)


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
            folder.append(*replayed.rows, replayed.tail)
            outcome = {"steps_done": len(replayed.rows), "warmup": asdict(answer.run.warm_up)}
            ledger = {column: asdict(getattr(replayed.ledger, column)) for column in LEDGER_COLUMNS}
            folder.finish("completed", outcome=outcome | {"ledger": ledger})
            where = folder.folder.parent
    return where
