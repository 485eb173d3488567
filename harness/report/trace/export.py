"""Runs to one trace file: which runs, what of each, and a file that is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.compare.attribution import loop_window
from harness.compare.experiments import label_runs
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.trace import Span
from harness.probes.nsight_export import read_export
from harness.report.trace.deaths import read_deaths
from harness.report.trace.events import Track
from harness.report.trace.lanes import lane_tracks, version_tracks
from harness.report.trace.nsight import MatchedReport, match_report, nsight_track
from harness.report.trace.packets import Process, TraceWriter
from harness.report.trace.resources import resource_tracks
from harness.report.trace.steps import metric_tracks, step_windows, steps_track
from harness.results import DamagedRun, Run, find_runs
from harness.results.counters import read_counters
from harness.results.writer import LOG

ENDINGS = (".pftrace", ".perfetto-trace")
DEFAULT_NAME = "trace.pftrace"


@dataclass(frozen=True)
class WrittenTrace:
    """What a trace file holds.

    Attributes:
        runs: their names in the trace, in order.
        arrows: chains of spans joined by arrows.
        left_out: runs that could not be read.
        reports: of Nsight Systems, in the order given.
    """

    path: Path
    num_bytes: int
    runs: tuple[str, ...]
    steps: int
    slices: int
    instants: int
    samples: int
    arrows: int
    left_out: tuple[DamagedRun, ...]
    reports: tuple[MatchedReport, ...] = ()


def write_trace(folder: Path, path: Path | None = None, nsight: Sequence[Path] = ()) -> WrittenTrace:
    """Write the runs of a run's or an experiment's folder as one Perfetto trace; every run starts at time 0.

    Args:
        path: of the file; by default ``trace.pftrace`` in the folder. A trace that is there is replaced.
        nsight: sqlite exports of Nsight Systems' reports on the run, to be shown below its own tracks.

    Raises:
        UserError: there is nothing to show, more than one experiment, exports of another run, or the file cannot be
            written.
    """
    path = folder / DEFAULT_NAME if path is None else path
    if not path.name.endswith(ENDINGS):
        what = f"the trace would be {path.name!r}; its name must end in {' or '.join(ENDINGS)}"
        raise UserError(what, where=str(path), fix=f"-o {path.with_suffix('').name}{ENDINGS[0]}")
    runs, damaged = _runs(folder)
    if nsight and len(runs) > 1:
        what = f"{str(folder)!r} holds {len(runs)} runs, and a report of Nsight Systems belongs to one"
        raise UserError(what, str(folder), f"python -m harness trace {runs[0].folder} --nsys {nsight[0]}")
    reports = tuple(match_report(read_export(export), runs[0]) for export in nsight)
    written = []
    with _written_to(path) as stream:
        writer = TraceWriter(stream)
        for name, run in run_names(runs):
            try:
                process = Process(name, _labels(run), [*run_tracks(run), *map(nsight_track, reports)])
            except UserError as error:
                damaged.append(DamagedRun(run.folder, error))
            else:
                writer.write(process)
                written.append((name, run))
        if not written:
            raise damaged[0].error
    return WrittenTrace(
        path=path,
        num_bytes=path.stat().st_size,
        runs=tuple(name for name, _ in written),
        steps=sum(len(run.steps) for _, run in written),
        slices=writer.slices,
        instants=writer.instants,
        samples=writer.samples,
        arrows=writer.arrows,
        left_out=tuple(damaged),
        reports=reports,
    )


def run_names(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """Return each run with a name of its own, in the order in which comparisons show them."""
    manifests = [run.manifest for run in runs]
    seeds = {manifest.seed for manifest in manifests}
    named = []
    for label, index in label_runs(manifests):
        block, seed = manifests[index].block, manifests[index].seed
        one_of = [f"block {block}"] if block is not None else [f"seed {seed}"] if len(seeds) > 1 else []
        named.append((", ".join([label, *one_of]), runs[index]))
    return named


def run_tracks(run: Run) -> list[Track]:
    """Return what a run's folder holds as tracks: steps, lanes, versions held, metrics, counters.

    Raises:
        UserError: a file is damaged, or a span ends before it begins.
    """
    spans = run.spans()
    _check(spans, run.folder)
    loop_ns = loop_window(spans, None)[0] if spans else round((run.manifest.startup_s or 0.0) * 1e9)
    windows = step_windows(run.steps, loop_ns)
    steps = steps_track(run.steps, windows, run.evaluations, run.tail, loop_ns)
    deaths, stay_whole = read_deaths(run.folder / LOG), run.setting("lag_control") != "drop"
    lanes = lane_tracks(spans, windows, run.version_changes, deaths, loop_ns, stay_whole)
    groups = [
        Track("policy versions", children=version_tracks(run.version_changes, loop_ns)),
        Track("metrics of the steps", children=metric_tracks(run.steps, windows)),
    ]
    return [steps, *lanes, *(group for group in groups if group.children), *resource_tracks(read_counters(run.folder))]


def _runs(folder: Path) -> tuple[list[Run], list[DamagedRun]]:
    """Return the runs of one experiment that have something to show, and those that cannot be read."""
    runs, damaged = find_runs(folder)
    if not runs:
        raise damaged[0].error
    experiments = sorted({(run.manifest.scenario, run.manifest.experiment) for run in runs})
    if len(experiments) > 1:
        newest = max(runs, key=lambda run: run.manifest.started_at)
        has_siblings = newest.manifest.arm is not None or newest.manifest.point
        fix = f"python -m harness.report.trace {newest.folder.parent if has_siblings else newest.folder}"
        raise UserError(f"{str(folder)!r} holds {len(experiments)} experiments; a trace shows one", str(folder), fix)
    shown = []
    for run in runs:
        try:
            if run.steps or run.spans():
                shown.append(run)
        except UserError as error:
            damaged.append(DamagedRun(run.folder, error))
    if not shown and damaged:
        raise damaged[0].error
    if not shown:
        what = f"the runs in {str(folder)!r} have neither spans nor training steps: there is nothing to show over time"
        raise UserError(what, where=str(folder), fix="name an experiment that trained")
    return shown, damaged


def _labels(run: Run) -> list[str]:
    """Return what the trace says of a run beside its name."""
    manifest = run.manifest
    labels = [f"{manifest.scenario} {manifest.experiment}", run.status, f"seed {manifest.seed}"]
    if manifest.simulated is not None:
        labels.insert(0, f"SIMULATED by the machine profile {manifest.simulated}")
    return labels + [f"{lane} died {times} times" for lane, times in sorted(run.replaced.items())]


def _check(spans: Sequence[Span], folder: Path) -> None:
    for span in spans:
        if not 0 <= span.start_ns <= span.end_ns:
            what = f"a span {span.stage.value!r} of {span.lane!r} goes from {span.start_ns} to {span.end_ns} ns"
            bound = "it must begin at 0 or later and not end before that"
            raise UserError(f"{what}; {bound}", where=str(folder / "spans.jsonl"), fix="leave this run out")


@contextmanager
def _written_to(path: Path) -> Iterator[BinaryIO]:
    """Write to a file that appears whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            yield stream
    except OSError as error:
        what = f"cannot write {str(path)!r}: {error.strerror}"
        raise UserError(what, where=str(path), fix="name another file with -o") from error
