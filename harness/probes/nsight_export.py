"""What Nsight Systems recorded, read from its sqlite export: our NVTX ranges, and OS calls, kernels and copies in them.

Schema: NVIDIA's "SQLite Schema Reference" (https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html). Tables are
there only where something was recorded. The columns used here are the same in schema 3.0 (Nsight Systems 2022.4) and
3.16 (2024.6).
"""

from __future__ import annotations

import os
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.core.errors import UserError
from harness.core.intervals import Interval, merge
from harness.core.trace import Stage
from harness.record.nvtx_ranges import DOMAIN

_KINDS = _DOMAIN_CREATED, _PUSH_POP, _START_END = 75, 59, 60  # ENUM_NSYS_EVENT_TYPE
_RANGE = ("start", "end", "eventType", "text", "textId", "globalTid", "endGlobalTid", "domainId", "int64Value")
_YEAR_2200_NS = 7_258_118_400 * 10**9
_COPY_KINDS = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host", 10: "peer to peer"}


class StageRange(NamedTuple):
    """An NVTX range of a stage. Times are nanoseconds of the report.

    Attributes:
        step: as the span carries it.
        process: its global id.
        threads: global ids of the threads that began and ended it.
    """

    start_ns: int
    end_ns: int
    stage: Stage
    step: int
    process: int
    threads: frozenset[int]


class Activity(NamedTuple):
    """An OS call, a kernel or a memory copy.

    Attributes:
        name: of the call or the kernel, or which way a copy went.
        place: the thread, or device and stream.
        owner: global id of the thread, or of the process that works on the device.
    """

    start_ns: int
    end_ns: int
    name: str
    place: str
    owner: int


@dataclass(frozen=True)
class NsightExport:
    """What one export holds of our stages: activities that share time with a stage of the same process.

    Attributes:
        ranges: in the order of their begin; at least one.
        started_utc_ns: time 0 of the report, in nanoseconds since 1970; None where it is not told.
        os_calls: of the threads that have ranges. None where none were traced, as with ``kernels`` and ``copies``.
    """

    path: Path
    ranges: tuple[StageRange, ...]
    started_utc_ns: int | None
    os_calls: tuple[Activity, ...] | None
    kernels: tuple[Activity, ...] | None
    copies: tuple[Activity, ...] | None


def process_of(global_id: int) -> int:
    """Return the global id of a thread's process: the lowest 24 bits number the thread, the next 24 the process."""
    return global_id & ~0xFFFFFF


def read_export(path: Path) -> NsightExport:
    """Read an export, without writing to it.

    Raises:
        UserError: it is a report that was not exported, no export, or holds no range of ours.
    """
    if path.suffix == ".nsys-rep":
        fix = f"nsys export --type=sqlite {path}, and then --nsys {path.with_suffix('.sqlite')}"
        raise UserError(f"{str(path)!r} is a report of Nsight Systems; its sqlite export is read", str(path), fix)
    if not os.path.isfile(path):  # Path's raises where a name is too long
        raise UserError(f"{str(path)!r} is no file", str(path), "name what `nsys export --type=sqlite` has written")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as data:
            return _read(path, data)
    except (sqlite3.Error, TypeError) as error:  # a TypeError where text stands for a number
        what = f"{str(path)!r} is no sound sqlite export of Nsight Systems: {error}"
        raise UserError(what, str(path), "nsys export --type=sqlite REPORT.nsys-rep") from error


def _read(path: Path, data: sqlite3.Connection) -> NsightExport:
    for table, needed in (("NVTX_EVENTS", _RANGE), ("StringIds", ("id", "value"))):
        if missing := [name for name in needed if name not in _columns(data, table)]:
            what = f"{str(path)!r} has no {table}.{missing[0]}: it is no sqlite export of a report with NVTX ranges"
            raise UserError(what, str(path), "trace nvtx, and export with nsys export --type=sqlite")
    ranges = tuple(_ranges(data))
    if not ranges:
        what = f"{str(path)!r} has no NVTX range of a stage in the domain {DOMAIN!r}"
        raise UserError(what, str(path), "set `nvtx: true` in the probe profile, and export one of its reports")
    threads: dict[int, list[Interval]] = {}
    processes: dict[int, list[Interval]] = {}
    for item in ranges:
        processes.setdefault(item.process, []).append(item[:2])
        for thread in item.threads:
            threads.setdefault(thread, []).append(item[:2])
    return NsightExport(
        path=path,
        ranges=ranges,
        started_utc_ns=_started_utc_ns(data),
        os_calls=_activities(data, "OSRT_API", "globalTid", threads),
        kernels=_activities(data, "CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", processes),
        copies=_activities(data, "CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid", processes),
    )


def _columns(data: sqlite3.Connection, table: str) -> list[str]:
    """Return the names of a table's columns; empty where there is no such table."""
    return [row[1] for row in data.execute(f"PRAGMA table_info({table})")]


def _ranges(data: sqlite3.Connection) -> Iterator[StageRange]:
    """Yield the ranges of stages by their begin. One that was still open when the capture ended is left out."""
    ours: set[tuple[int, int]] = set()  # (process, number of the domain in it)
    stages = {stage.value: stage for stage in Stage}
    query = "SELECT start, end, eventType, COALESCE(text, value), globalTid, endGlobalTid, domainId, int64Value"
    query += " FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId WHERE eventType IN (?, ?, ?) ORDER BY start"
    for start, end, kind, name, thread, ended_by, domain, step in data.execute(query, _KINDS):
        if kind == _DOMAIN_CREATED and name == DOMAIN:
            ours.add((process_of(thread), domain))
        elif end is not None and name in stages and (process_of(thread), domain) in ours:
            threads = frozenset((thread, thread if ended_by is None else ended_by))
            yield StageRange(start, end, stages[name], -1 if step is None else step, process_of(thread), threads)


def _started_utc_ns(data: sqlite3.Connection) -> int | None:
    if "utcEpochNs" not in _columns(data, "TARGET_INFO_SESSION_START_TIME"):
        return None
    row = data.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    told = None if row is None else row[0]
    return told if isinstance(told, int) and 0 <= told < _YEAR_2200_NS else None


def _activities(
    data: sqlite3.Connection, table: str, owner: str, windows: Mapping[int, Sequence[Interval]]
) -> tuple[Activity, ...] | None:
    """Return what shares time with a window of its owner, by its begin; None where nothing of the kind was traced."""
    columns = _columns(data, table)
    if not columns:
        return None
    chosen = [name if name in columns else f"NULL AS {name}" for name in (owner, "deviceId", "streamId", "copyKind")]
    named = next((name for name in ("nameId", "shortName", "demangledName") if name in columns), "NULL")
    query = f"SELECT start, end, value, {', '.join(chosen)} FROM {table} LEFT JOIN StringIds ON id = {named}"
    query += " WHERE start < ? AND end > ? AND end > start ORDER BY start"
    merged = {number: merge(intervals) for number, intervals in windows.items()}
    bounds = (max(times[-1][1] for times in merged.values()), min(times[0][0] for times in merged.values()))
    found = []
    for start, end, name, number, device, stream, kind in data.execute(query, bounds):
        times = merged.get(number, ())
        after = bisect_right(times, start, key=lambda interval: interval[1])
        if after < len(times) and times[after][0] < end:
            place = f"thread {number & 0xFFFFFF}" if device is None else f"device {device} stream {stream}"
            shown = name or _COPY_KINDS.get(kind, f"copy of kind {kind}")
            found.append(Activity(start, end, shown, place, number))
    return tuple(found)
