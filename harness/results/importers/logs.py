"""Read the metric logs of other trainers: JSON lines, a JSON file, or TensorBoard event files.

What is read here is a list of records as they stand in the log; what their names mean is told elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.results.trackers.event_file import read_events

TRAINER_STATE = "trainer_state.json"
_LOG_ENDINGS = (".jsonl", ".json", ".ndjson")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log.

    Attributes:
        values: by name, as they stand in the log.
        step: where the format itself tells it; None where it is one of the values.
        at: seconds since 1970, where the format tells them.
    """

    values: dict[str, Any]
    step: int | None = None
    at: float | None = None


@dataclass(frozen=True)
class Log:
    """A log as it was read.

    Attributes:
        form: ``jsonl``, ``json`` or ``tensorboard``.
        digest: SHA-256 of what was read, in hex.
        cut_off: what was left out at the end because it is not whole, in words.
        others: values of TensorBoard that are no scalars.
    """

    records: list[Record]
    form: str
    digest: str
    cut_off: list[str] = field(default_factory=list)
    others: int = 0


def read_log(path: Path) -> Log:
    """Read the log at ``path``: a file, or a folder with event files, a ``trainer_state.json`` or TRL's checkpoints.

    Raises:
        UserError: there is none, it is empty, of another format or damaged, or the folder holds several runs.
    """
    if path.is_dir():
        return _read_folder(path)
    if "tfevents" in path.name:
        return _read_event_files([path])
    return _read_json(path)


def _read_folder(folder: Path) -> Log:
    files = sorted(folder.rglob("*tfevents*"))
    homes = sorted({file.parent for file in files})
    if len(homes) > 1:
        shown = ", ".join(str(home) for home in homes[:3])
        raise UserError(
            f"{str(folder)!r} holds event files in {len(homes)} folders ({shown}...): they may be different runs",
            where=str(folder),
            fix="name the folder of one run",
        )
    if files:
        return _read_event_files(files)
    states = [*folder.glob(TRAINER_STATE), *sorted(folder.glob(f"checkpoint-*/{TRAINER_STATE}"), key=_checkpoint)]
    if states:
        return _read_json(states[-1])
    found = [item.name for item in sorted(folder.iterdir()) if item.suffix in _LOG_ENDINGS]
    raise UserError(
        f"there are no event files and no {TRAINER_STATE} in {str(folder)!r}",
        where=str(folder),
        fix=f"name a file, such as {found[0]}" if found else "name a log file (JSON lines, JSON or event file)",
    )


def _checkpoint(state: Path) -> int:
    """Return the number of a checkpoint; the newest has the whole history."""
    number = state.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _read_event_files(files: Iterable[Path]) -> Log:
    """Read event files into one record for each step of each file; a later file comes later."""
    records: list[Record] = []
    cut_off: list[str] = []
    digest, others = hashlib.sha256(), 0
    for file in files:
        data = _bytes(file)
        digest.update(data)
        events = read_events(data, str(file))
        others += events.others
        if events.cut_off_bytes:
            cut_off.append(f"{events.cut_off_bytes} bytes of a record that is not whole, at the end of an event file")
        by_step: dict[int, Record] = {}
        for scalar in events.scalars:
            record = by_step.get(scalar.step) or Record({}, scalar.step, scalar.wall_time)
            by_step[scalar.step] = Record(record.values, scalar.step, scalar.wall_time)
            record.values[scalar.tag] = scalar.value
        records += by_step.values()
    return Log(records, "tensorboard", digest.hexdigest(), cut_off, others)


def _read_json(path: Path) -> Log:
    data = _bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if not data.strip():
        raise UserError(f"{str(path)!r} is empty", where=str(path), fix="name the log of a run that has begun")
    whole = _whole_json(data)
    if whole is not None:
        return Log(_as_records(whole, path), "json", digest)
    return _read_lines(data, path, digest)


def _whole_json(data: bytes) -> Any:
    """Return the value if the data is one JSON text with several records, else None."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) or (isinstance(value, dict) and "log_history" in value) else None


def _as_records(value: Any, path: Path) -> list[Record]:
    items = value["log_history"] if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(
            f"{str(path)!r} is no log: it holds no list of JSON objects",
            where=str(path),
            fix=f"name a {TRAINER_STATE}, a list of objects, or JSON lines",
        )
    return [Record(item) for item in items]


def _read_lines(data: bytes, path: Path, digest: str) -> Log:
    records: list[Record] = []
    cut_off: list[str] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and records:  # a line without its end is what a killed process leaves
                cut_off.append(f"the last line ({len(line)} bytes), which is not whole")
                break
            raise _not_json_lines(path, number, f"is not JSON ({error})") from error
        if not isinstance(item, dict):
            raise _not_json_lines(path, number, "is not a JSON object")
        records.append(Record(item))
    return Log(records, "jsonl", digest, cut_off)


def _not_json_lines(path: Path, number: int, problem: str) -> UserError:
    return UserError(
        f"{str(path)!r} is no log in JSON lines: line {number} {problem}",
        where=f"{path}, line {number}",
        fix="name a log with one JSON object a line, a JSON file, or TensorBoard's event files",
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} does not exist", where=str(path), fix="name a log file or folder") from None
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error
