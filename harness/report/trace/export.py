"""Runs to one trace file: which runs, what of each, and a file that is there whole or not at all."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path

from harness.compare.experiment import label_runs
from harness.core.atomic_files import check_replaceable, whole_file
from harness.core.errors import UserError
from harness.probes.nsight_export import read_export
from harness.report.trace.chrome import HEAD, TraceWriter
from harness.report.trace.nsight import MatchedReport, match_report, nsight_tracks
from harness.report.trace.tracks import run_tracks
from harness.results import DamagedRun, Manifest
from harness.results.frames import Results, load_results
from harness.results.reader import is_reference

ENDINGS = (".json.gz", ".json")
DEFAULT_NAME = "trace.json.gz"


@dataclass(frozen=True)
class WrittenTrace:
    """What a trace file holds: names of runs, events by phase as ``TraceWriter`` counts them; runs that are damaged."""

    path: Path
    runs: tuple[str, ...]
    steps: int
    counts: Counter[str]
    left_out: tuple[DamagedRun, ...]
    reports: tuple[MatchedReport, ...]


def write_trace(folder: Path, path: Path | None = None, nsight: Sequence[Path] = ()) -> WrittenTrace:
    """Write the runs of a run's or an experiment's folder as one trace; every run starts at time 0.

    Args:
        path: of the file; by default ``trace.json.gz`` in the folder, or here where that holds reference runs. An
            earlier trace there is replaced, and stays as it is where writing fails.
        nsight: sqlite exports of Nsight Systems' reports on the run, to be shown below its own tracks.

    Raises:
        UserError: there is nothing to show, more than one experiment, exports of another run, or the file cannot be
            written.
    """
    path = path or (Path(DEFAULT_NAME) if is_reference(folder) else folder / DEFAULT_NAME)
    if not path.name.endswith(ENDINGS):
        what = f"the trace would be {path.name!r}; its name must end in {' or '.join(ENDINGS)}"
        raise UserError(what, where=str(path), fix=f"-o {path.with_suffix('')}{ENDINGS[0]}")
    results = load_results(folder)
    _check_one_experiment(folder, results)
    check_replaceable(path, "trace", is_trace)
    tables, damaged = results.tables, list(results.damaged)
    if nsight and len(tables) > 1:
        what = f"{str(folder)!r} holds {len(tables)} runs, and a report of Nsight Systems belongs to one"
        raise UserError(what, str(folder), f"python -m harness trace {tables[0].run.folder} --nsys {nsight[0]}")
    reports = tuple(match_report(read_export(export), tables[0].run) for export in nsight)
    runs, steps = list[str](), 0
    try:
        # in the head of the compressed file neither name nor time: equal runs give equal bytes
        with (
            whole_file(path) as file,
            GzipFile("", "wb", 6, file, mtime=0) if path.suffix == ".gz" else nullcontext(file) as stream,
            TraceWriter(stream) as writer,
        ):
            for name, place in run_names([table.run.manifest for table in tables]):
                try:
                    tracks = run_tracks(tables[place])
                except UserError as error:
                    damaged.append(DamagedRun(tables[place].run.folder, error))
                    continue
                if tracks:
                    writer.write(name, [*tracks, *(track for report in reports for track in nsight_tracks(report))])
                    runs.append(name)
                    steps += len(tables[place])
            if not runs and damaged:
                raise damaged[0].error
            if not runs:
                what = f"the runs in {str(folder)!r} have neither spans nor training steps: there is nothing to show"
                raise UserError(what, where=str(folder), fix="name an experiment that trained")
    except OSError as error:
        what = f"cannot write {str(path)!r}: {error.strerror}"
        raise UserError(what, where=str(path), fix="name a file in a folder that there is with -o FILE") from error
    return WrittenTrace(path, tuple(runs), steps, writer.counts, tuple(damaged), reports)


def _check_one_experiment(folder: Path, results: Results) -> None:
    if not results.tables:
        raise results.damaged[0].error
    experiments = {(run.manifest.scenario, run.manifest.experiment) for run in results.runs}
    if len(experiments) > 1:
        newest = max(results.tables, key=lambda table: (len(table) > 0, table.run.manifest.started_at)).run
        has_siblings = newest.manifest.arm is not None or newest.manifest.point
        fix = f"python -m harness trace {newest.folder.parent if has_siblings else newest.folder}"
        raise UserError(f"{str(folder)!r} holds {len(experiments)} experiments; a trace shows one", str(folder), fix)


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of ours, compressed or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(len(HEAD)) == HEAD
    except (OSError, EOFError, zlib.error):
        return False


def run_names(manifests: Sequence[Manifest]) -> list[tuple[str, int]]:
    """Return (name, place of the run) as ``compare`` orders them: the arm with its block or seed where there are more
    than one."""
    seeds = {manifest.seed for manifest in manifests}
    names = []
    for label, place in label_runs(manifests):
        block, seed = manifests[place].block, manifests[place].seed
        one_of = f", block {block}" if block is not None else f", seed {seed}" if len(seeds) > 1 else ""
        names.append((label + one_of, place))
    return names
