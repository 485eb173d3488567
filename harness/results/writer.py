"""Write a run's folder so that it can be read at any moment, also after the process was killed.

Rows are kept in memory until ``flush``, which appends whole lines. While the run lives, its process holds a lock on
``steps.jsonl``: that is how a reader tells a running run from one that was killed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from harness.core.atomic_files import overwrite, whole_file
from harness.core.errors import UserError
from harness.core.file_locks import lock
from harness.core.terminal_text import plain
from harness.core.trace import Span
from harness.results.anonymous import Scrubber, safe_name
from harness.results.manifest import Manifest
from harness.results.rows import ROLLOUTS, SCHEMA_VERSION, SPANS, STEPS, HeaderRow, Row, SpanRow

MANIFEST, SCENARIO, LOG = "manifest.json", "scenario.resolved.yaml", "log.txt"
ATTEMPTS = 100
"""Names that a new experiment tries."""
POLICY, POLICIES, PICTURES, PROFILES, REPORT = "policy", "policies", "pictures", "profiles", "report.html"
CHECKPOINTS, KEPT_STEPS = "checkpoints", "kept_steps"
_ENCODER = msgspec.json.Encoder()


def experiment_name(root: Path, scenario: str, now: datetime) -> str:
    """Return a free name below ``root/scenario``: the time in UTC as ``YYYYmmdd-HHMMSS``, with ``-2`` and so on."""
    stamp = now.astimezone(UTC).strftime("%Y%m%d-%H%M%S")
    name, number = stamp, 1
    while (root / safe_name(scenario) / name).exists():
        number += 1
        name = f"{stamp}-{number}"
    return name


def begin_experiment(
    root: Path, scenario: str, variant_name: str | None, echo: Callable[[str], None] | None = None
) -> tuple[RunFolder, str]:
    """Make the first run folder of a new experiment; return it and the experiment's name, which nobody else has taken.

    Raises:
        UserError: it cannot be written to, or other commands took every name.
    """
    for _ in range(ATTEMPTS):  # another command may take the name first
        name = experiment_name(root, scenario, utc_now())
        try:
            return RunFolder.create(root, scenario, name, variant_name, echo=echo), name
        except UserError as error:
            if not (isinstance(error.__cause__, FileExistsError) and (root / safe_name(scenario) / name).is_dir()):
                raise
    raise UserError(f"no free folder name below {root} in {ATTEMPTS} attempts", str(root))


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class RunFolder:
    """The files of one run, made with ``create``; ``manifest`` is the one that was written last, or None."""

    def __init__(
        self,
        folder: Path,
        scrubber: Scrubber,
        clock: Callable[[], datetime],
        echo: Callable[[str], None] | None = None,
        go_on: bool = False,
    ) -> None:
        self.folder, self._goes_on = folder, go_on
        self.manifest: Manifest | None = None
        self._scrubber, self._clock, self._echo = scrubber, clock, echo or (lambda line: None)
        self._to_echo: list[str] = []
        self._files: dict[str, AppendOnly] = {}
        try:
            with writing(folder):
                lock(self._file(STEPS).file, wait=True)
                for name in (SPANS, ROLLOUTS, LOG):
                    self._file(name)
            self.flush()
        except BaseException:
            self.close()
            raise

    def _file(self, name: str) -> AppendOnly:
        """Return a file, made with its header when it is first asked for: some only some runs have."""
        if name not in self._files:
            self._files[name] = file = AppendOnly(self.folder / name, self._goes_on)
            stem, _, kind = name.partition(".")
            if kind == "jsonl" and not file.size:
                file.append(HeaderRow(f"harness.{stem}", SCHEMA_VERSION).line())
        return self._files[name]

    @classmethod
    def create(
        cls,
        root: Path,
        scenario: str,
        experiment: str,
        variant_name: str | None,
        *,
        scrubber: Scrubber | None = None,
        clock: Callable[[], datetime] = utc_now,
        echo: Callable[[str], None] | None = None,
    ) -> RunFolder:
        """Make ``root/scenario/experiment`` or, for one of several variants, the folder ``variant_name`` in it.

        Names are made safe for a file system. An existing run is never touched.

        Args:
            root: the results folder.
            scrubber: keeps names and paths out; None: those of this process.
            clock: of the log.
            echo: called with each line of the log, without its time, once it is on disk.

        Raises:
            UserError: the folder exists already, or cannot be written to.
        """
        scrubber = scrubber or Scrubber.of_this_process()
        folder = root / safe_name(scenario) / safe_name(experiment)
        if variant_name is not None:
            folder /= safe_name(scrubber.paths(variant_name))
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        try:
            return cls(folder, scrubber, clock, echo)
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @classmethod
    def go_on(cls, folder: Path, manifest: Manifest, echo: Callable[[str], None] | None = None) -> RunFolder:
        """Open the folder of a run that was stopped, whose rows were cut back to where it goes on; see ``segments``.

        Raises:
            UserError: it cannot be written to.
        """
        opened = cls(folder, Scrubber.of_this_process(), utc_now, echo, go_on=True)
        opened.manifest = manifest
        return opened

    def write_scenario(self, yaml_text: str) -> None:
        """Save the resolved scenario; absolute paths are shortened."""
        self._replace(SCENARIO, self._scrubber.paths(yaml_text))

    def write_manifest(self, manifest: Manifest) -> None:
        """Save the manifest, replacing the former one in one move."""
        self._replace(MANIFEST, self._as_text(manifest))
        self.manifest = manifest

    def append_spans(self, spans: Iterable[Span]) -> None:
        """Add finished spans."""
        self._files[SPANS].append(_ENCODER.encode_lines([SpanRow(*span) for span in spans]))

    def append(self, *rows: Row) -> None:
        """Add rows, each to the file of its kind.

        Raises:
            UserError: a file that is not there yet cannot be made.
        """
        with writing(self.folder):
            for row in rows:
                self._file(row.file).append(row.line())

    def log(self, text: str) -> None:
        """Add a line with the time to ``log.txt``, made plain, without names and absolute paths."""
        line = plain(self._scrubber.text(text))
        self._files[LOG].append(f"{timestamp(self._clock())} {line}\n".encode(errors="backslashreplace"))
        self._to_echo.append(line)

    def flush(self) -> None:
        """Put everything added so far on disk.

        Raises:
            UserError: the disk is full or gone. The files end on a whole line.
        """
        with writing(self.folder):
            for file in self._files.values():
                file.flush()
        lines, self._to_echo = self._to_echo, []
        for line in lines:
            self._echo(line)

    def finish(self, status: str, error: str | None = None, outcome: dict[str, Any] | None = None) -> None:
        """Flush, say in the manifest how the run ended: ``completed``, ``interrupted`` or ``failed``; close the files.

        Raises:
            UserError: the disk is full or gone. A run that was complete otherwise has failed, and says so where it can.
        """
        if self.manifest is None:
            raise ValueError("finish() before write_manifest()")
        now, full = self._clock(), None
        before_s, since = self.manifest.newest_start
        seconds = before_s + (now - datetime.fromisoformat(since)).total_seconds()
        try:
            self.flush()
        except UserError as met:
            full = met
            if status == "completed":
                status, error = "failed", str(met)
        ended = replace(self.manifest, status=status, error=error, finished_at=timestamp(now), outcome=outcome or {})
        ended = replace(ended, duration_s=round(seconds, 3))
        try:
            self.write_manifest(ended)
        except UserError as met:
            full = met
            if status == "completed":
                ended = replace(ended, status="failed", error=str(met))
            with suppress(OSError):
                overwrite(self.folder / MANIFEST, self._as_text(replace(ended, outcome={})).encode())
        finally:
            self.close()
        if full is not None:
            raise full

    def close(self) -> None:
        """Close the files without a word about how the run ended."""
        for file in self._files.values():
            file.close()

    def discard(self) -> None:
        """Close and remove the files of a run that could not begin."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _as_text(self, manifest: Manifest) -> str:
        return json.dumps(manifest.to_json(self._scrubber), indent=2) + "\n"

    def _replace(self, name: str, text: str) -> None:
        with writing(self.folder), whole_file(self.folder / name) as stream:
            stream.write(text.encode(errors="backslashreplace"))


class AppendOnly:
    """A file of ``size`` bytes that only ever grows by whole pieces: lines kept until ``flush``, or bytes at once.

    Where it is there already, it has to be one to ``go_on`` with.
    """

    def __init__(self, path: Path, go_on: bool = False) -> None:
        self.file = open(path, "ab" if go_on else "xb", buffering=0)  # noqa: SIM115  (lives as long as the run)
        self._pending: list[bytes] = []
        self.size = self.file.seek(0, os.SEEK_END)

    def append(self, lines: bytes) -> None:
        """Keep lines for the next ``flush``."""
        self._pending.append(lines)

    def flush(self) -> None:
        """Write what was kept."""
        data = b"".join(self._pending)
        self._pending.clear()
        self.write(data)

    def write(self, piece: bytes) -> None:
        """Write it to the system at once, so that a killed run keeps it; what does not fit as a whole is cut off again.

        Raises:
            OSError: the disk is full or gone.
        """
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self.file.truncate(self.size)
                self.file.seek(self.size)
            raise
        self.size += len(piece)

    def close(self) -> None:
        """Close it; closing twice does no harm."""
        self.file.close()


def timestamp(now: datetime) -> str:
    """Return a time as the files have it: UTC, ISO 8601, milliseconds."""
    return now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cannot_write(folder: Path, error: OSError) -> UserError:
    """Return what to say where a results folder, or a file in one, cannot be made or written."""
    if isinstance(error, FileExistsError) and folder.is_dir():
        what = f"the run folder {str(folder)!r} exists already, and a saved run is never overwritten"
        return UserError(what, str(folder), "start the run again, or choose another folder with --out DIR")
    what = f"cannot write results to {str(folder)!r}: {error.strerror or error}"
    return UserError(what, str(folder), "free some space there, or choose a folder you can write to with --out DIR")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise ``cannot_write`` in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error
