"""Exports of Nsight Systems: their stages found among a run's spans, seconds as unions, tracks on the run's clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.probes.nsight_export import read_export
from harness.report.trace.export import write_trace
from harness.report.trace.nsight import match_report, nsight_table
from harness.results import Manifest, RunFolder, Scrubber, load_run
from tests.stand_ins.trace_reader import read_trace

MS = 1_000_000
PROCESS = (1 << 48) | (4711 << 24)  # a virtual machine, a process in it; a thread's number is added
DISTANCE = 70_000 * MS
"""From the clock of the reports here to that of the run."""

# As Nsight Systems 2022.4.2 writes it (schema 3.0.0), without some columns that nobody reads. The tables of kernels and
# copies are those of its user guide; no GPU has shown them here.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
    text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
    int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER,
    jsonText TEXT);
"""
OS_CALLS = """
CREATE TABLE OSRT_API (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, nestingLevel INTEGER, callchainId INTEGER NOT NULL);
"""
KERNELS = """
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL);
"""
Range = tuple[Stage, int, int, int | None]
"""Stage, step, begin and end, in nanoseconds of the report."""


class Export:
    """An export that is being written."""

    def __init__(self, path: Path, schema: str = SCHEMA, thread: int = PROCESS + 4711) -> None:
        self.path, self.thread, self.names = path, thread, list[str]()
        self.data = sqlite3.connect(path)
        self.data.executescript(schema)

    def name(self, text: str) -> int:
        self.names.append(text)
        self.data.execute("INSERT INTO StringIds VALUES (?, ?)", (len(self.names), text))
        return len(self.names)

    def insert(self, table: str, **values: object) -> None:
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        self.data.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))

    def ranges(self, ranges: Iterable[Range], domain: str = "grpo", number: int = 1) -> None:
        own = {"globalTid": self.thread, "domainId": number}
        self.insert("NVTX_EVENTS", start=-900 * MS, eventType=75, text=domain, **own)
        for stage, step, start, end in ranges:
            told = {"textId": self.name(stage.value), "int64Value": step, "endGlobalTid": self.thread, **own}
            self.insert("NVTX_EVENTS", start=start, end=end, eventType=60, rangeId=1, **told)

    def os_call(self, start: int, end: int, thread: int | None = None) -> None:
        facts = {"eventClass": 27, "returnValue": 0, "callchainId": 0, "globalTid": thread or self.thread}
        self.insert("OSRT_API", start=start, end=end, nameId=self.name("read"), **facts)

    def kernel(self, start: int, end: int, process: int = PROCESS, stream: int = 7) -> None:
        name = self.name("gemm")
        facts = {"deviceId": 0, "contextId": 1, "streamId": stream, "globalPid": process}
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, demangledName=name, shortName=name, **facts)

    def copy(self, start: int, end: int) -> None:
        facts = {"deviceId": 0, "contextId": 1, "streamId": 14, "globalPid": PROCESS, "bytes": 4096, "copyKind": 2}
        self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, **facts)

    def close(self) -> Path:
        self.data.commit()
        self.data.close()
        return self.path


def spans_like(ranges: Sequence[Range], lane: str, distance: int = DISTANCE) -> list[Span]:
    """Spans as the ranges enclose them: 1 us after their begin, 1 us before their end."""
    return [
        Span(lane, stage, start + distance + 1000, end + distance - 1000, step, -1)
        for stage, step, start, end in ranges
        if end is not None
    ]


LEARNER: list[Range] = [
    (Stage.UPDATE, 3, 10 * MS, 30 * MS),
    (Stage.WEIGHT_PUBLISH, 4, 31 * MS, 36 * MS),
    (Stage.UPDATE, 4, 50 * MS, 72 * MS),
    (Stage.WEIGHT_PUBLISH, 5, 75 * MS, 80 * MS),
]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterable[Callable[..., Path]]:
    """Return a function that writes a run with these spans and returns its folder."""

    def make(spans: Sequence[Span], name: str = "own") -> Path:
        scrubber = Scrubber("/home/ann", "/home/ann/harness", "annbox", "ann")
        with RunFolder.create(tmp_path / "results", name, "20261121-120000", None, scrubber=scrubber) as folder:
            times = {"started_at": "2026-11-21T12:00:00.000Z", "finished_at": "2026-11-21T12:05:00.000Z"}
            folder.write_manifest(Manifest(scenario=name, experiment="20261121-120000", startup_s=69.0, **times))
            folder.append_spans(spans)
            folder.flush()
        return folder.folder

    return make


def test_each_stage_has_its_seconds_as_unions(make_run: Callable[..., Path], tmp_path: Path) -> None:
    """Two kernels at once count once, what begins before a range or belongs to others is not counted."""
    export = Export(tmp_path / "learner.sqlite", SCHEMA + OS_CALLS + KERNELS)
    export.ranges(LEARNER)
    export.os_call(9 * MS, 12 * MS)  # 2 ms within the first update
    export.os_call(11 * MS, 13 * MS)  # 1 ms more
    export.os_call(20 * MS, 29 * MS, thread=PROCESS + 5000)  # a thread without ranges
    export.kernel(14 * MS, 20 * MS)
    export.kernel(16 * MS, 22 * MS, stream=9)  # 8 ms together
    export.kernel(60 * MS, 74 * MS)  # 12 ms within the second update, the rest between stages
    export.kernel(31 * MS, 36 * MS, process=PROCESS + (1 << 24))  # of another process
    export.copy(32 * MS, 33 * MS)
    spans = spans_like(LEARNER, "learner")

    table = nsight_table([match_report(read_export(export.close()), load_run(make_run(spans)))])

    assert table.header == ("lane", "stage", "ranges", "NVTX", "spans", "OS calls", "kernels", "copies")
    assert table.rows == (
        ("learner", "update", "2", "0.042000", "0.041996", "0.003000", "0.020000", "0.000000"),
        ("learner", "weight_publish", "2", "0.010000", "0.009996", "0.000000", "0.000000", "0.001000"),
    )


def test_what_was_not_traced_is_a_dash_and_not_nothing(make_run: Callable[..., Path], tmp_path: Path) -> None:
    export = Export(tmp_path / "learner.sqlite")
    export.ranges(LEARNER)

    run = load_run(make_run(spans_like(LEARNER, "learner")))
    table = nsight_table([match_report(read_export(export.close()), run)])

    assert [row[-3:] for row in table.rows] == [("-", "-", "-")] * 2


def test_the_distance_of_the_clocks_is_the_median_and_the_rest_is_told(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    """Three begins differ by 1 us more than the distance, one by 41 us: the thread lost the processor in between."""
    export = Export(tmp_path / "learner.sqlite")
    export.ranges(LEARNER)
    spans = spans_like(LEARNER, "learner")
    spans[2] = spans[2]._replace(start_ns=spans[2].start_ns + 40_000)

    report = match_report(read_export(export.close()), load_run(make_run(spans)))

    assert [span for _, span in report.pairs] == spans
    assert report.distances_ns == (DISTANCE + 1000,) * 4
    assert report.residuals_ns == (0, 0, 40_000, 0)
    [note, *_] = nsight_table([report]).notes
    assert "4 of 4 ranges" in note
    assert "0.0 us in the middle and 40.0 us at most" in note


def test_a_pause_of_the_runs_clock_is_a_second_distance(make_run: Callable[..., Path], tmp_path: Path) -> None:
    """The other arm worked for 15 ms between the steps, while this run's clock stood still."""
    export = Export(tmp_path / "learner.sqlite", SCHEMA + OS_CALLS)
    export.ranges(LEARNER)
    export.os_call(51 * MS, 52 * MS)
    later = DISTANCE - 15 * MS
    spans = spans_like(LEARNER[:2], "learner") + spans_like(LEARNER[2:], "learner", later)

    report = match_report(read_export(export.close()), load_run(make_run(spans)))

    assert report.distances_ns == (DISTANCE + 1000, DISTANCE + 1000, later + 1000, later + 1000)
    assert report.at(51 * MS) == 51 * MS + later + 1000
    assert report.at(0) == DISTANCE + 1000


def test_of_two_generators_the_right_one_is_found(make_run: Callable[..., Path], tmp_path: Path) -> None:
    """Both begin every stage within a millisecond of each other."""
    ranges: list[Range] = [(Stage.GENERATE, step, step * 50 * MS, (step * 50 + 40) * MS) for step in range(4)]
    export = Export(tmp_path / "generator1.sqlite")
    export.ranges(ranges)
    early = [
        span._replace(start_ns=span.start_ns - 200_000 * (span.step + 1)) for span in spans_like(ranges, "generator0")
    ]

    run = load_run(make_run([*early, *spans_like(ranges, "generator1")]))
    report = match_report(read_export(export.close()), run)

    assert {span.lane for _, span in report.pairs} == {"generator1"}


def test_ranges_of_others_and_ranges_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    export = Export(tmp_path / "learner.sqlite")
    export.ranges([(Stage.UPDATE, 3, 10 * MS, 30 * MS), (Stage.UPDATE, 4, 40 * MS, None)])
    export.ranges([(Stage.UPDATE, 9, 20 * MS, 21 * MS)], domain="other", number=2)

    ranges = read_export(export.close()).ranges

    assert [item[:4] for item in ranges] == [(10 * MS, 30 * MS, Stage.UPDATE, 3)]


def test_the_trace_shows_the_report_below_the_lanes_on_their_clock(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = Export(tmp_path / "learner.sqlite", SCHEMA + OS_CALLS + KERNELS)
    export.ranges(LEARNER)
    export.os_call(11 * MS, 13 * MS)
    export.os_call(40 * MS, 45 * MS)  # between stages: not shown
    export.kernel(14 * MS, 20 * MS)
    export.copy(32 * MS, 33 * MS)
    folder = make_run(spans_like(LEARNER, "learner"))

    assert main(["trace", str(folder), "--nsys", str(export.close())]) == 0

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
        ("learner.sqlite", SCHEMA.replace("domainId INTEGER, ", ""), "has no NVTX_EVENTS.domainId"),
        ("learner.sqlite", SCHEMA, "has no NVTX range of a stage in the domain 'grpo'"),
        (
            "learner.sqlite",
            SCHEMA + "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (1, 75, 'grpo', 'x')",
            "no sound",
        ),
    ],
)
def test_a_file_that_is_no_export_is_refused_in_one_message(
    make_run: Callable[..., Path],
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
    folder = make_run(spans_like(LEARNER, "learner"))

    assert main(["trace", str(folder), "--nsys", str(tmp_path / name)]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert "fix:" in error
    assert not (folder / "trace.json.gz").exists()


def test_a_report_of_another_run_is_refused(make_run: Callable[..., Path], tmp_path: Path) -> None:
    """Its stages and steps are the same ones; only one of four begins when a span does."""
    export = Export(tmp_path / "learner.sqlite")
    export.ranges(
        [(stage, step, start + 7 * MS * place**2, end) for place, (stage, step, start, end) in enumerate(LEARNER)]
    )
    folder = make_run(spans_like(LEARNER, "learner"))

    with pytest.raises(UserError, match="0 of 4 NVTX ranges"):
        write_trace(folder, None, [export.close()])


def test_a_report_of_another_day_is_refused_however_alike_its_stages_are(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    """The run went from 11:58:51 (12:00:00 less the 69 s of its start-up) to 12:05:00."""
    run = load_run(make_run(spans_like(LEARNER, "learner")))
    noon = 1_795_262_400 * 1000 * MS  # 2026-11-21T12:00:00Z
    reports = []
    for number, seconds in enumerate((-30, 86_400)):
        export = Export(tmp_path / f"{number}.sqlite")
        export.ranges(LEARNER)
        export.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=noon + seconds * 1000 * MS)
        reports.append(read_export(export.close()))

    assert len(match_report(reports[0], run).pairs) == 4
    with pytest.raises(UserError, match="was recorded at 2026-11-22 12:00:00; the run went from 2026-11-21 11:58:51"):
        match_report(reports[1], run)


def test_a_report_needs_one_run(make_run: Callable[..., Path], lagged: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds 4 runs, and a report of Nsight Systems belongs to one"):
        write_trace(lagged, tmp_path / "t.json.gz", [tmp_path / "learner.sqlite"])
