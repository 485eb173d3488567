"""Both replays as run folders, so that ``compare``, ``report`` and ``trace`` serve them as they serve real runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.core.trace import Span, Stage
from harness.results import Manifest, RunFolder, experiment_name, step_row, tail_row
from harness.results.recorder import LEDGER_COLUMNS
from harness.results.rows import LaneSeconds
from harness.results.writer import timestamp, utc_now
from harness.scenario import Scenario, resolved_yaml
from harness.simulate.whatif.effects import Answer
from harness.simulate.whatif.replay import Replayed

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
            _write(folder, _manifest(answer, name, experiment, arm, position, now), scenario, replayed)
            where = folder.folder.parent
    return where


def _write(folder: RunFolder, manifest: Manifest, scenario: Scenario, replayed: Replayed) -> None:
    folder.write_scenario(resolved_yaml(scenario))
    folder.write_manifest(manifest)
    lanes = dict.fromkeys(span.lane for span in replayed.spans)
    folder.append_spans(Span(lane, Stage.STARTUP, 0, 0, -1, -1) for lane in lanes)
    folder.append_spans(replayed.spans)
    for row in _rows(replayed):
        folder.append_step(row)
    folder.finish("completed", outcome=_outcome(replayed))


def _outcome(replayed: Replayed) -> dict[str, Any]:
    warmup = sum(row.warmup for row in replayed.rows)
    ledger = {column: asdict(getattr(replayed.ledger, column)) for column in LEDGER_COLUMNS}
    return {"steps_done": len(replayed.rows), "warmup": {"steps": warmup, "steady": True}, "ledger": ledger}


def _rows(replayed: Replayed) -> Iterator[dict[str, Any]]:
    """Yield the rows of the training steps, each with the version changes since the last one, and the tail."""
    changes, end_s = list(replayed.changes), 0.0
    for row in replayed.rows:
        mine = [change for change in changes if change.elapsed_s <= row.elapsed_s]
        changes, end_s = changes[len(mine) :], row.elapsed_s
        yield step_row(
            step=row.step,
            version=row.version,
            wall_s=row.wall_s,
            elapsed_s=row.elapsed_s,
            optimizer_steps=row.optimizer_steps,
            lanes=row.lanes,
            metrics={},
            versions=row.versions,
            version_changes=mine,
            lags=row.lags,
            warmup=row.warmup,
            profiled=row.profiled,
        )
    rest: LaneSeconds = replayed.tail
    yield tail_row(wall_s=replayed.loop_s - end_s, elapsed_s=replayed.loop_s, lanes=rest, version_changes=changes)


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
