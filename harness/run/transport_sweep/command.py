"""What ``run`` does with a scenario that has a ``transport_sweep``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.core.errors import HarnessError, Interrupted
from harness.results.rows import SyncRow
from harness.run.actors.logs import ProcessLogs
from harness.run.actors.session import RaySession
from harness.run.session import Experiment
from harness.run.transport_sweep.measure import SweepActors
from harness.run.transport_sweep.plan import syncs_of, weights_of
from harness.scenario import Scenario, TransportSweepSettings, Variant
from harness.transports.catalogue import transport_kind


def run_transport_sweep(
    variant: Variant, experiment: Experiment, session: RaySession, console: Console, quiet: bool
) -> None:
    """Time every sync of the sweep into a run folder of its own.

    Raises:
        UserError: a transport cannot be used here, or the folder cannot be made.
        RunStopped: weights arrived wrong, or an actor died; the folder says so.
        KeyboardInterrupt: the user asked to stop; the folder says so.
    """
    settings = variant.scenario.transport_sweep
    assert settings is not None
    for name in settings.transports:
        transport_kind(name).check_here()
    start_s = time.perf_counter()
    folder = experiment.open_folder(variant, startup_s=0.0, interleaving="sync", threads=1, parameters=None)
    rows = 0
    try:
        for row in _sync_rows(variant.scenario, session, folder.log, console, quiet):
            folder.append_step(row.to_json())
            folder.flush()
            rows += 1
    except BaseException as error:
        asked_to_stop = isinstance(error, KeyboardInterrupt | Interrupted)
        status, why = ("interrupted", None) if asked_to_stop else ("failed", str(error))
        folder.finish(status, why, {"syncs": rows})
        raise
    folder.finish("completed", None, {"syncs": rows, "elapsed_s": time.perf_counter() - start_s})


def _sync_rows(
    scenario: Scenario, session: RaySession, log: Callable[[str], None], console: Console, quiet: bool
) -> Iterator[SyncRow]:
    settings = scenario.transport_sweep
    assert settings is not None
    parts = weights_of(settings)
    with _progress(console, quiet) as progress:
        task = progress.add_task("weight syncs", total=len(parts) * _syncs_in_each(settings))
        for weights in parts:
            what = f"{weights.megabytes:g} MB in {weights.tensors} tensor{'s' if weights.tensors > 1 else ''}"
            progress.update(task, description=what)
            if not quiet and not console.is_terminal:
                console.print(f"weight syncs: {what}", highlight=False)
            logs = ProcessLogs(session.folder)
            actors = SweepActors(
                session, settings.transports, weights, max(settings.receivers), logs, scenario.placement
            )
            with closing(actors):
                try:
                    for wanted in syncs_of(settings, scenario.seed):
                        yield actors.sync(wanted)
                        progress.advance(task)
                except HarnessError as error:
                    log(f"{what}: {error}")
                    raise
                finally:
                    for line in logs.new_lines():
                        log(line)


def _syncs_in_each(settings: TransportSweepSettings) -> int:
    return len(settings.receivers) * (settings.repeats + 1) * len(settings.transports)


def _progress(console: Console, quiet: bool) -> Progress:
    live = console.is_terminal and not quiet
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not live)
