"""Exports of Nsight Systems: their stages found among a run's spans, seconds as unions, tracks on the run's clock."""

import re
import sqlite3
from contextlib import closing
from types import MappingProxyType

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
THREAD = PROCESS + 4711
DISTANCE = 70_000 * MS
"""From the clock of the reports here to that of the run."""

# stage, step, begin and end, in nanoseconds of the report
LEARNER = [
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


def an_export(path, ranges=LEARNER, rows=MappingProxyType({}), started_utc_ns=None):
    """Write an export, with the rows of each table that was traced."""
    domains = [
        (-900 * MS, None, 75, name, THREAD, None, None, number, None) for number, name in ((1, "grpo"), (2, "x"))
    ]
    events = [
        (start, end, 60, None, THREAD, THREAD, NAMES.index(stage), 1 if step < 9 else 2, step)
        for stage, step, start, end in ranges
    ]
    tables = {
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


def spans_like(ranges, lane="learner", distance=DISTANCE):
    """Spans as the ranges enclose them: 1 us after their begin, 1 us before their end."""
    return [
        Span(lane, stage, start + distance + 1000, end + distance - 1000, step, -1)
        for stage, step, start, end in ranges
        if end is not None
    ]


def a_run(tmp_path, spans):
    scrubber = Scrubber("/home/ann", "/home/ann/harness", "annbox", "ann")
    with RunFolder.create(tmp_path / "results", "own", "20261121-120000", None, scrubber=scrubber) as folder:
        times = {"started_at": "2026-11-21T12:00:00.000Z", "finished_at": "2026-11-21T12:05:00.000Z"}
        folder.write_manifest(Manifest(scenario="own", experiment="20261121-120000", startup_s=69.0, **times))
        folder.append_spans(spans)
        folder.flush()
    return folder.folder


def matched(export, folder):
    return match_report(read_export(export), load_run(folder))


def test_each_stage_has_its_seconds_as_unions(tmp_path):
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


def test_the_distance_of_the_clocks_is_the_median_and_the_rest_is_told(tmp_path):
    """Three begins differ by 1 us more than the distance, one by 41 us: the thread lost the processor in between."""
    spans = spans_like(LEARNER)
    spans[2] = spans[2]._replace(start_ns=spans[2].start_ns + 40_000)
    report = matched(an_export(tmp_path / "a.sqlite"), a_run(tmp_path, spans))
    assert [pair[1:] for pair in report.pairs] == [(span, DISTANCE + 1000) for span in spans]
    table = nsight_table([report])
    assert [row[-3:] for row in table.rows] == [("-", "-", "-")] * 2  # nothing of it was traced, which is not zero
    assert re.findall(r"\d of \d|\d+\.\d us", table.notes[0]) == ["4 of 4", "0.0 us", "40.0 us"]


def test_a_pause_of_the_runs_clock_is_a_second_distance(tmp_path):
    """The other arm worked for 15 ms between the steps, while this run's clock stood still."""
    later = DISTANCE - 15 * MS
    spans = spans_like(LEARNER[:2]) + spans_like(LEARNER[2:], distance=later)
    report = matched(an_export(tmp_path / "a.sqlite"), a_run(tmp_path, spans))
    assert [distance for *_, distance in report.pairs] == [DISTANCE + 1000] * 2 + [later + 1000] * 2
    assert (report.at(51 * MS), report.at(0)) == (51 * MS + later + 1000, DISTANCE + 1000)


def test_of_two_generators_and_of_many_spans_at_hand_the_right_ones_are_found(tmp_path):
    """Both Generators begin every stage within a millisecond of each other; ten short spans of step 3 lie within 50 us,
    at a distance that no other range has."""
    ranges = [(Stage.GENERATE, step, step * 50 * MS, (step * 50 + 40) * MS) for step in range(4)]
    early = [
        span._replace(start_ns=span.start_ns - 200_000 * (span.step + 1)) for span in spans_like(ranges, "generator0")
    ]
    at = DISTANCE - 500 * MS
    many = [Span("learner", Stage.UPDATE, at + 4000 * number, at + 36_000 + 1000, 3, -1) for number in range(10)]
    for ranges_of, lane, beside in ((ranges, "generator1", early), (LEARNER, "learner", many)):
        export, own = an_export(tmp_path / f"{lane}.sqlite", ranges_of), spans_like(ranges_of, lane)
        report = matched(export, a_run(tmp_path / lane, [*beside, *own]))
        assert [span for _, span, _ in report.pairs] == own


def test_ranges_of_others_and_ranges_that_did_not_end_are_left_out(tmp_path):
    """The range of step 9 is in another domain."""
    ranges = [*LEARNER[:1], (Stage.UPDATE, 4, 40 * MS, None), (Stage.UPDATE, 9, 20 * MS, 21 * MS)]
    found = read_export(an_export(tmp_path / "a.sqlite", ranges)).ranges
    assert [item[:4] for item in found] == [(10 * MS, 30 * MS, Stage.UPDATE, 3)]


def test_the_trace_shows_the_report_below_the_processes_on_their_clock(tmp_path, capsys):
    rows = {
        OS_CALLS: [(11 * MS, 13 * MS, THREAD, READ), (40 * MS, 45 * MS, THREAD, READ)],  # the second between stages
        KERNELS: [(14 * MS, 20 * MS, PROCESS, GEMM, 0, 7)],
        COPIES: [(32 * MS, 33 * MS, PROCESS, 2, 0, 14)],
    }
    export = an_export(tmp_path / "learner.sqlite", rows=rows)
    folder = a_run(tmp_path, spans_like(LEARNER))
    assert main(["trace", str(folder), "--nsys", str(export)]) == 0
    assert "weight_publish" in capsys.readouterr().out
    own = DISTANCE + 1000
    shown = [
        (item.track[1].partition("learner: ")[2], item.name, (item.start_ns - own) / MS, (item.end_ns - own) / MS)
        for item in read_trace(folder / "trace.json.gz").slices
        if item.track[1].startswith("Nsight")
    ]
    assert sorted(shown) == [
        *(("NVTX ranges", stage.value, start / MS, (end or 0) / MS) for stage, _, start, end in sorted(LEARNER)),
        ("OS calls, thread 4711", "read", 11, 13),
        ("copies, device 0 stream 14", "device to host", 32, 33),
        ("kernels, device 0 stream 7", "gemm", 14, 20),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("learner.nsys-rep", b"\0binary", "sqlite export"),
        ("learner.sqlite", b"no database, and longer than a header" * 9, "not a database"),
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
def test_a_file_that_is_no_export_is_refused_in_one_message(tmp_path, capsys, name, content, message):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        with closing(sqlite3.connect(tmp_path / name)) as data:
            data.executescript(content)
    folder = a_run(tmp_path, spans_like(LEARNER))
    assert main(["trace", str(folder), "--nsys", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert (message in error, "fix:" in error) == (True, True)
    assert not (folder / "trace.json.gz").exists()


def test_a_report_of_another_run_or_of_several_runs_is_refused(lagged, tmp_path):
    """Stages and steps of the other run are the same ones; only one of four begins when a span does."""
    ranges = [(stage, step, start + 7 * MS * place**2, end) for place, (stage, step, start, end) in enumerate(LEARNER)]
    export = an_export(tmp_path / "a.sqlite", ranges)
    with pytest.raises(UserError, match="0 of 4"):
        write_trace(a_run(tmp_path / "own", spans_like(LEARNER)), None, [export])
    with pytest.raises(UserError, match="4 runs"):
        write_trace(lagged, tmp_path / "t.json.gz", [export])


def test_a_report_of_another_day_is_refused_however_alike_its_stages_are(tmp_path):
    """The run went from 11:58:51 (12:00:00 less the 69 s of its start-up) to 12:05:00."""
    folder = a_run(tmp_path, spans_like(LEARNER))
    noon = 1_795_262_400 * 1000 * MS  # 2026-11-21T12:00:00Z
    here = an_export(tmp_path / "a.sqlite", started_utc_ns=noon - 30_000 * MS)
    tomorrow = an_export(tmp_path / "b.sqlite", started_utc_ns=noon + 86_400_000 * MS)
    assert len(matched(here, folder).pairs) == 4
    with pytest.raises(UserError, match=r"2026-11-22 12:00:00.* 2026-11-21 11:58:51"):
        matched(tomorrow, folder)
