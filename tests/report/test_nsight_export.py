"""Exports of Nsight Systems: their stages found among a run's spans, seconds as unions, tracks on the run's clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.probes.nsight_export import read_export
from harness.report.trace.export import write_trace
from harness.report.trace.nsight import MatchedReport, match_report, nsight_table
from harness.results import Manifest, RunFolder, Scrubber, load_run
from tests.stand_ins.trace_reader import read_trace

MS = 1_000_000
PROCESS = (1 << 48) | (4711 << 24)  # a virtual machine, a process in it; a thread's number is added
THREAD = PROCESS + 4711
DISTANCE = 70_000 * MS
"""From the clock of the reports here to that of the run."""

Range = tuple[Stage, int, int, int | None]
"""Stage, step, begin and end, in nanoseconds of the report."""
LEARNER: list[Range] = [
    (Stage.UPDATE, 3, 10 * MS, 30 * MS),
    (Stage.WEIGHT_PUBLISH, 4, 31 * MS, 36 * MS),
    (Stage.UPDATE, 4, 50 * MS, 72 * MS),
    (Stage.WEIGHT_PUBLISH, 5, 75 * MS, 80 * MS),
]
# As Nsight Systems 2022.4.2 names them (schema 3.0.0), without columns that nobody reads. The tables of kernels and
# copies are those of its user guide; no GPU has shown them here.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs);
CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid, endGlobalTid, textId, domainId, int64Value);
"""
TABLES = {
    "OSRT_API": "start, end, globalTid, nameId",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, globalPid, shortName, deviceId, streamId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, globalPid, copyKind, deviceId, streamId",
}
OS_CALLS, KERNELS, COPIES = TABLES
NAMES = [*Stage, "read", "gemm"]
READ, GEMM = NAMES.index("read"), NAMES.index("gemm")


def an_export(
    path: Path,
    ranges: Iterable[Range] = LEARNER,
    rows: Mapping[str, Sequence[tuple[int, ...]]] = MappingProxyType({}),
    started_utc_ns: int | None = None,
) -> Path:
    """Write an export, with the rows of each table that was traced."""
    domains = [
        (-900 * MS, None, 75, name, THREAD, None, None, number, None) for number, name in ((1, "grpo"), (2, "x"))
    ]
    events = [
        (start, end, 60, None, THREAD, THREAD, NAMES.index(stage), 1 if step < 9 else 2, step)
        for stage, step, start, end in ranges
    ]
    tables: dict[str, Sequence[tuple[Any, ...]]] = {
        "StringIds": list(enumerate(NAMES)),
        "NVTX_EVENTS": domains + events,
    }
    tables |= rows
    if started_utc_ns is not None:
        tables["TARGET_INFO_SESSION_START_TIME"] = [(started_utc_ns,)]
    with closing(sqlite3.connect(path)) as data, data:
        data.executescript(SCHEMA + "".join(f"CREATE TABLE {name} ({TABLES[name]});" for name in rows))
        for name, own in tables.items():
            data.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(own[0]))})", own)
    return path


def spans_like(ranges: Sequence[Range], lane: str = "learner", distance: int = DISTANCE) -> list[Span]:
    """Spans as the ranges enclose them: 1 us after their begin, 1 us before their end."""
    return [
        Span(lane, stage, start + distance + 1000, end + distance - 1000, step, -1)
        for stage, step, start, end in ranges
        if end is not None
    ]


def a_run(tmp_path: Path, spans: Sequence[Span]) -> Path:
    scrubber = Scrubber("/home/ann", "/home/ann/harness", "annbox", "ann")
    with RunFolder.create(tmp_path / "results", "own", "20261121-120000", None, scrubber=scrubber) as folder:
        times: dict[str, Any] = {"started_at": "2026-11-21T12:00:00.000Z", "finished_at": "2026-11-21T12:05:00.000Z"}
        folder.write_manifest(Manifest(scenario="own", experiment="20261121-120000", startup_s=69.0, **times))
        folder.append_spans(spans)
        folder.flush()
    return folder.folder


def matched(export: Path, folder: Path) -> MatchedReport:
    return match_report(read_export(export), load_run(folder))


def test_each_stage_has_its_seconds_as_unions(tmp_path: Path) -> None:
    """Two kernels at once count once, what begins before a range or belongs to others is not counted."""
    os_calls = [
        (9 * MS, 12 * MS, THREAD, READ),  # 2 ms within the first update
        (11 * MS, 13 * MS, THREAD, READ),  # 1 ms more
        (20 * MS, 29 * MS, PROCESS + 5000, READ),  # a thread without ranges
    ]
    kernels = [
        (14 * MS, 20 * MS, PROCESS, GEMM, 0, 7),
        (16 * MS, 22 * MS, PROCESS, GEMM, 0, 9),  # 8 ms together
        (60 * MS, 74 * MS, PROCESS, GEMM, 0, 7),  # 12 ms within the second update, the rest between stages
        (31 * MS, 36 * MS, PROCESS + (1 << 24), GEMM, 0, 7),  # of another process
    ]
    copies = [(32 * MS, 33 * MS, PROCESS, 2, 0, 14)]
    export = an_export(tmp_path / "a.sqlite", rows={OS_CALLS: os_calls, KERNELS: kernels, COPIES: copies})

    table = nsight_table([matched(export, a_run(tmp_path, spans_like(LEARNER)))])

    assert table.header == ("process", "stage", "ranges", "NVTX", "spans", "OS calls", "kernels", "copies")
    assert table.rows == (
        ("learner", "update", "2", "0.042000", "0.041996", "0.003000", "0.020000", "0.000000"),
        ("learner", "weight_publish", "2", "0.010000", "0.009996", "0.000000", "0.000000", "0.001000"),
    )


def test_the_distance_of_the_clocks_is_the_median_and_the_rest_is_told(tmp_path: Path) -> None:
    """Three begins differ by 1 us more than the distance, one by 41 us: the thread lost the processor in between."""
    spans = spans_like(LEARNER)
    spans[2] = spans[2]._replace(start_ns=spans[2].start_ns + 40_000)

    report = matched(an_export(tmp_path / "a.sqlite"), a_run(tmp_path, spans))

    assert [pair[1:] for pair in report.pairs] == [(span, DISTANCE + 1000) for span in spans]
    table = nsight_table([report])
    assert [row[-3:] for row in table.rows] == [("-", "-", "-")] * 2  # nothing of it was traced, which is not zero
    note = table.notes[0]
    assert "4 of 4 ranges" in note
    assert "0.0 us in the middle and 40.0 us at most, on one clock distance" in note


def test_a_pause_of_the_runs_clock_is_a_second_distance(tmp_path: Path) -> None:
    """The other arm worked for 15 ms between the steps, while this run's clock stood still."""
    later = DISTANCE - 15 * MS
    spans = spans_like(LEARNER[:2]) + spans_like(LEARNER[2:], distance=later)

    report = matched(an_export(tmp_path / "a.sqlite"), a_run(tmp_path, spans))

    assert [distance for *_, distance in report.pairs] == [DISTANCE + 1000] * 2 + [later + 1000] * 2
    assert report.at(51 * MS) == 51 * MS + later + 1000
    assert report.at(0) == DISTANCE + 1000


def test_of_two_generators_the_right_one_is_found(tmp_path: Path) -> None:
    """Both begin every stage within a millisecond of each other."""
    ranges: list[Range] = [(Stage.GENERATE, step, step * 50 * MS, (step * 50 + 40) * MS) for step in range(4)]
    own, other = spans_like(ranges, "generator1"), spans_like(ranges, "generator0")
    early = [span._replace(start_ns=span.start_ns - 200_000 * (span.step + 1)) for span in other]

    report = matched(an_export(tmp_path / "a.sqlite", ranges), a_run(tmp_path, [*early, *own]))

    assert [span for _, span, _ in report.pairs] == own


def test_a_range_with_many_spans_at_hand_counts_once(tmp_path: Path) -> None:
    """Ten short spans of step 3 lie within 50 us, at a distance that no other range has."""
    short = Span("learner", Stage.UPDATE, DISTANCE - 500 * MS, DISTANCE - 500 * MS + 1000, 3, -1)
    many = [short._replace(start_ns=short.start_ns + 4000 * number) for number in range(10)]
    own = spans_like(LEARNER)

    report = matched(an_export(tmp_path / "a.sqlite"), a_run(tmp_path, [*many, *own]))

    assert [span for _, span, _ in report.pairs] == own


def test_ranges_of_others_and_ranges_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    """The range of step 9 is in another domain."""
    ranges = [*LEARNER[:1], (Stage.UPDATE, 4, 40 * MS, None), (Stage.UPDATE, 9, 20 * MS, 21 * MS)]

    found = read_export(an_export(tmp_path / "a.sqlite", ranges)).ranges

    assert [item[:4] for item in found] == [(10 * MS, 30 * MS, Stage.UPDATE, 3)]


def test_the_trace_shows_the_report_below_the_processes_on_their_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: dict[str, list[tuple[int, ...]]] = {
        OS_CALLS: [(11 * MS, 13 * MS, THREAD, READ), (40 * MS, 45 * MS, THREAD, READ)],  # the second between stages
        KERNELS: [(14 * MS, 20 * MS, PROCESS, GEMM, 0, 7)],
        COPIES: [(32 * MS, 33 * MS, PROCESS, 2, 0, 14)],
    }
    export = an_export(tmp_path / "learner.sqlite", rows=rows)
    folder = a_run(tmp_path, spans_like(LEARNER))

    assert main(["trace", str(folder), "--nsys", str(export)]) == 0

    assert "weight_publish" in capsys.readouterr().out
    shown = [item for item in read_trace(folder / "trace.json.gz").slices if item.track[1].startswith("Nsight")]
    own = DISTANCE + 1000
    assert sorted(
        (item.track[1].partition("Nsight Systems, learner: ")[2], item.name, item.start_ns - own, item.end_ns - own)
        for item in shown
    ) == [
        ("NVTX ranges", "update", 10 * MS, 30 * MS),
        ("NVTX ranges", "update", 50 * MS, 72 * MS),
        ("NVTX ranges", "weight_publish", 31 * MS, 36 * MS),
        ("NVTX ranges", "weight_publish", 75 * MS, 80 * MS),
        ("OS calls, thread 4711", "read", 11 * MS, 13 * MS),
        ("copies, device 0 stream 14", "device to host", 32 * MS, 33 * MS),
        ("kernels, device 0 stream 7", "gemm", 14 * MS, 20 * MS),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("learner.nsys-rep", b"\0binary", "is a report of Nsight Systems; its sqlite export is read"),
        ("learner.sqlite", b"no database, and longer than a header" * 9, "file is not a database"),
        ("learner.sqlite", None, "is no file"),
        ("learner.sqlite", SCHEMA.replace("NVTX_EVENTS", "OTHER"), "has no NVTX_EVENTS.start"),
        ("learner.sqlite", SCHEMA.replace("domainId, ", ""), "has no NVTX_EVENTS.domainId"),
        ("learner.sqlite", SCHEMA, "has no NVTX range of a stage in the domain 'grpo'"),
        (
            "learner.sqlite",
            SCHEMA + "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (1, 75, 'grpo', 'x')",
            "no sound",
        ),
    ],
)
def test_a_file_that_is_no_export_is_refused_in_one_message(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | str | None,
    message: str,
) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        with closing(sqlite3.connect(tmp_path / name)) as data:
            data.executescript(content)
    folder = a_run(tmp_path, spans_like(LEARNER))

    assert main(["trace", str(folder), "--nsys", str(tmp_path / name)]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert "fix:" in error
    assert not (folder / "trace.json.gz").exists()


def test_a_report_of_another_run_or_of_several_runs_is_refused(lagged: Path, tmp_path: Path) -> None:
    """Stages and steps of the other run are the same ones; only one of four begins when a span does."""
    ranges = [(stage, step, start + 7 * MS * place**2, end) for place, (stage, step, start, end) in enumerate(LEARNER)]
    export = an_export(tmp_path / "a.sqlite", ranges)

    with pytest.raises(UserError, match="0 of 4 NVTX ranges"):
        write_trace(a_run(tmp_path / "own", spans_like(LEARNER)), None, [export])
    with pytest.raises(UserError, match="holds 4 runs, and a report of Nsight Systems belongs to one"):
        write_trace(lagged, tmp_path / "t.json.gz", [export])


def test_a_report_of_another_day_is_refused_however_alike_its_stages_are(tmp_path: Path) -> None:
    """The run went from 11:58:51 (12:00:00 less the 69 s of its start-up) to 12:05:00."""
    folder = a_run(tmp_path, spans_like(LEARNER))
    noon = 1_795_262_400 * 1000 * MS  # 2026-11-21T12:00:00Z
    here = an_export(tmp_path / "a.sqlite", started_utc_ns=noon - 30_000 * MS)
    tomorrow = an_export(tmp_path / "b.sqlite", started_utc_ns=noon + 86_400_000 * MS)

    assert len(matched(here, folder).pairs) == 4
    with pytest.raises(UserError, match="was recorded at 2026-11-22 12:00:00; the run went from 2026-11-21 11:58:51"):
        matched(tomorrow, folder)
