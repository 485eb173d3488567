"""How a change is told: tables, sentences, a picture, and both replays as runs, for compare, report and trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.compare.numbers import change, listed, number, percent
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.report.canvas import save
from harness.report.document import Table
from harness.report.experiment_charts import EVALUATE, Excerpt, timeline_figure
from harness.results import Manifest, RunFolder, StepRow, TailRow, experiment_name, in_pipeline_order
from harness.results.recorder import LEDGER_COLUMNS
from harness.results.writer import timestamp, utc_now
from harness.scenario.load import resolved_yaml
from harness.scenario.schema import Scenario
from harness.simulate.whatif.effects import FASTER, Answer, Gain, Outcome
from harness.simulate.whatif.replay import Replayed

NOTHING = 0.001
"""Gains below this share of a step are not worth a word."""
NONE = "-"


def changed_to(answer: Answer) -> str:
    """Return in words what was changed, as it was typed."""
    change = answer.change
    paces = [f"{name} x {factor:g}" for name, factor in change.factors.stages.items()]
    return ", ".join([*change.typed, *paces]) or "unchanged"


def figures(answer: Answer) -> dict[str, Any]:
    """Return the figures of an answer as plain values."""
    seconds = {name: outcome.step_s for name, outcome in (("before", answer.before), ("after", answer.after))}
    manifest = answer.run.manifest
    return {
        "scenario": manifest.scenario,
        "experiment": manifest.experiment,
        "run": answer.run.folder.name,
        "changed": changed_to(answer),
        "step_s": {"recorded": answer.recorded_step_s, **seconds},
        "ratio": answer.ratio,
        "error": answer.error,
        "stages_s": {"before": dict(answer.before.stages_s), "after": dict(answer.after.stages_s)},
        "idle": {"before": dict(answer.before.idle), "after": dict(answer.after.idle)},
        "gain_of_10_percent_off": {gain.name: gain.gain for gain in answer.gains},
        "machine": answer.machine,
        "notes": list(answer.notes),
    }


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer, from the step time to what 10% off each stage would give."""
    if answer.change.is_none:
        return [_time_table(answer), _gain_table(answer)]
    return [_time_table(answer), _stage_table(answer), _idle_table(answer), _gain_table(answer)]


def sentences(answer: Answer) -> Iterator[str]:
    """Yield what the figures say."""
    if not answer.change.is_none:
        yield (
            f"with {changed_to(answer)} a step would take {number(answer.after.step_s)} s in place of "
            f"{number(answer.before.step_s)} s ({change(answer.ratio)})"
        )
    first = answer.lane_gains[0] if answer.lane_gains else None
    if first is not None and first.gain >= NOTHING:
        yield (
            f"the {first.name} is critical: everything it does {1 - FASTER:.0%} faster makes a step "
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


def _time_table(answer: Answer) -> Table:
    recorded = "recorded" if answer.run.manifest.simulated is None else "recorded (simulated)"
    rows = [(recorded, number(answer.recorded_step_s), NONE)]
    rows.append(("replayed as it was (simulated)", number(answer.before.step_s), change(1 + answer.error)))
    if not answer.change.is_none:
        rows.append((f"{changed_to(answer)} (simulated)", number(answer.after.step_s), change(answer.ratio)))
    note = "replayed: compared with recorded. The change: compared with the replay."
    return Table("Step time, seconds", ("run", "step time", "difference"), tuple(rows), (note,))


def _stage_table(answer: Answer) -> Table:
    before, after = answer.before.stages_s, answer.after.stages_s
    names = [stage.value for stage in Stage if stage.value in before or stage.value in after]
    rows = []
    for name in names:
        old, new = before.get(name), after.get(name)
        ratio = change(new / old) if old and new is not None else NONE
        rows.append((name, NONE if old is None else number(old), NONE if new is None else number(new), ratio))
    return Table(
        "Seconds of each stage and wait in a step, added over the lanes (simulated)",
        ("stage", "before", "after", "difference"),
        tuple(rows),
    )


def _idle_table(answer: Answer) -> Table:
    before, after = answer.before.idle, answer.after.idle
    rows = [
        (lane, percent(before[lane]) if lane in before else NONE, percent(after[lane]) if lane in after else NONE)
        for lane in in_pipeline_order({*before, *after})
    ]
    return Table(
        "Share of the measured steps that each lane waited (simulated)", ("lane", "before", "after"), tuple(rows)
    )


def _gain_table(answer: Answer) -> Table:
    rows = tuple((gain.name, number(gain.seconds), _signed(gain.gain)) for gain in answer.gains)
    whose = "the run" if answer.change.is_none else "the changed run"
    return Table(
        f"What 10% faster would give: {whose} replayed with one stage at {FASTER:g} of its time (simulated)",
        ("stage", "seconds in a step", "gain in step time"),
        rows,
    )


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
        raise UserError(what, str(path), "name another file with -o FILE.png") from error


def _excerpt(name: str, outcome: Outcome) -> Excerpt:
    rows, replayed = outcome.replayed.rows, outcome.replayed
    steps: dict[str, list[float]] = {of: [getattr(row, of) for row in rows] for of in ("step", "wall_s", "elapsed_s")}
    steps[EVALUATE] = [row.stages_s.get(Stage.EVALUATE.value, 0.0) for row in rows]
    return Excerpt(name, replayed.spans, replayed.changes, steps)


BEFORE, AFTER = "as_it_was", "changed"


def write_runs(answer: Answer, root: Path) -> Path:
    """Write the replay of the run as it was and that of the changed run as two arms of an experiment.

    Returns:
        the experiment's folder.

    Raises:
        UserError: it cannot be written.
    """
    name = f"whatif_{answer.run.manifest.scenario}"
    now = utc_now()
    experiment = experiment_name(root, name, now)
    arms = [(BEFORE, answer.change.before, answer.before.replayed), (AFTER, answer.change.after, answer.after.replayed)]
    for position, (arm, scenario, replayed) in enumerate(arms):
        with RunFolder.create(root, name, experiment, arm) as folder:
            _write(answer, folder, _manifest(answer, name, experiment, arm, position, now), scenario, replayed)
            where = folder.folder.parent
    return where


def _write(answer: Answer, folder: RunFolder, manifest: Manifest, scenario: Scenario, replayed: Replayed) -> None:
    folder.write_scenario(resolved_yaml(scenario))
    folder.write_manifest(manifest)
    lanes = dict.fromkeys(span.lane for span in replayed.spans)
    folder.append_spans(Span(lane, Stage.STARTUP, 0, 0, -1, -1) for lane in lanes)
    folder.append_spans(replayed.spans)
    for row in _rows(replayed):
        folder.append(row)
    folder.finish("completed", outcome=_outcome(answer, replayed))


def _outcome(answer: Answer, replayed: Replayed) -> dict[str, Any]:
    ledger = {column: asdict(getattr(replayed.ledger, column)) for column in LEDGER_COLUMNS}
    return {
        "steps_done": len(replayed.rows),
        "warmup": asdict(answer.run.warm_up),
        "ledger": ledger,
    }


def _rows(replayed: Replayed) -> Iterator[StepRow | TailRow]:
    """Yield the rows of the training steps, each with the version changes since the last one, and the tail."""
    changes, end_s = list(replayed.changes), 0.0
    for row in replayed.rows:
        mine = [change for change in changes if change.elapsed_s <= row.elapsed_s]
        changes, end_s = changes[len(mine) :], row.elapsed_s
        yield StepRow(
            step=row.step,
            version=row.version,
            wall_s=row.wall_s,
            elapsed_s=row.elapsed_s,
            optimizer_steps=row.optimizer_steps,
            lanes=row.lanes,
            metrics={},
            versions=row.versions,
            version_changes=tuple(mine),
            lags=row.lags,
            warmup=row.warmup,
            profiled=row.profiled,
        )
    yield TailRow(replayed.loop_s - end_s, replayed.loop_s, replayed.tail, version_changes=tuple(changes))


def _manifest(answer: Answer, name: str, experiment: str, arm: str, position: int, now: datetime) -> Manifest:
    run = answer.run.manifest
    return Manifest(
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
