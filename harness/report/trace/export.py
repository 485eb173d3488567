"""Runs to one trace file: which runs, what of each, and a file that is there whole or not at all."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

from harness.compare.experiment import label_runs
from harness.core.atomic_files import check_replaceable, whole_file
from harness.core.errors import UserError
from harness.probes.nsight_export import read_export
from harness.report.trace.chrome import HEAD, TraceWriter
from harness.report.trace.nsight import MatchedReport, match_report, nsight_tracks
from harness.report.trace.tracks import run_tracks
from harness.results import DamagedRun, Run, find_runs
from harness.results.reader import is_reference

ENDINGS = (".json.gz", ".json")
DEFAULT_NAME = "trace.json.gz"


@dataclass(frozen=True)
class WrittenTrace:
    """What a trace file holds.

    Attributes:
        runs: their names in the trace, in order.
        arrows: chains of spans joined by arrows.
        left_out: runs that could not be read.
        reports: of Nsight Systems, in the order given.
        replaced: whether an earlier trace was there.
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
    replaced: bool = False


def write_trace(folder: Path, path: Path | None = None, nsight: Sequence[Path] = ()) -> WrittenTrace:
    """Write the runs of a run's or an experiment's folder as one trace; every run starts at time 0.

    Args:
        path: of the file; by default ``trace.json.gz`` in the folder, or here where that holds reference runs. An
            earlier trace there is replaced.
        nsight: sqlite exports of Nsight Systems' reports on the run, to be shown below its own tracks.

    Raises:
        UserError: there is nothing to show, more than one experiment, exports of another run, or the file cannot be
            written.
    """
    if path is None:
        path = Path(DEFAULT_NAME) if is_reference(folder) else folder / DEFAULT_NAME
    if not path.name.endswith(ENDINGS):
        what = f"the trace would be {path.name!r}; its name must end in {' or '.join(ENDINGS)}"
        raise UserError(what, where=str(path), fix=f"-o {path.with_suffix('')}{ENDINGS[0]}")
    runs, damaged = _runs(folder)
    check_replaceable(path, "trace", is_trace)
    replaced = path.exists()
    if nsight and len(runs) > 1:
        what = f"{str(folder)!r} holds {len(runs)} runs, and a report of Nsight Systems belongs to one"
        raise UserError(what, str(folder), f"python -m harness trace {runs[0].folder} --nsys {nsight[0]}")
    reports = tuple(match_report(read_export(export), runs[0]) for export in nsight)
    written = []
    with _written_to(path) as stream, TraceWriter(stream) as writer:
        for name, run in run_names(runs):
            try:
                tracks = run_tracks(run)
            except UserError as error:
                damaged.append(DamagedRun(run.folder, error))
            else:
                writer.write(name, [*tracks, *(track for report in reports for track in nsight_tracks(report))])
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
        replaced=replaced,
    )


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of ours, compressed or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(len(HEAD)) == HEAD
    except (OSError, EOFError, zlib.error):
        return False


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


def _runs(folder: Path) -> tuple[list[Run], list[DamagedRun]]:
    """Return the runs of one experiment that have something to show, and those that cannot be read."""
    runs, damaged = find_runs(folder)
    if not runs:
        raise damaged[0].error
    experiments = sorted({(run.manifest.scenario, run.manifest.experiment) for run in runs})
    if len(experiments) > 1:
        newest = max(runs, key=lambda run: run.manifest.started_at)
        has_siblings = newest.manifest.arm is not None or newest.manifest.point
        fix = f"python -m harness trace {newest.folder.parent if has_siblings else newest.folder}"
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


@contextmanager
def _written_to(path: Path) -> Iterator[BinaryIO | GzipFile]:
    """Write to a file that appears whole or not at all, compressed where its name ends in ``.gz``.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with whole_file(path) as stream:
            if path.suffix == ".gz":
                with GzipFile("", "wb", 6, stream, mtime=0) as compressed:  # no name and time: equal runs, equal bytes
                    yield compressed
            else:
                yield stream
    except OSError as error:
        what = f"cannot write {str(path)!r}: {error.strerror}"
        raise UserError(what, where=str(path), fix="name a file in a folder that there is with -o FILE") from error
