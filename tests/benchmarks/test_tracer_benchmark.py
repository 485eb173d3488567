"""What a span costs. The bounds of the project: 1 microsecond disabled, 5 microseconds enabled and written.

Of a span of ``harness.record``, in anyone's trainer, 3 microseconds with two attributes.
"""

import time
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from harness import record
from harness.core.trace import NullTracer, RecordingTracer, Stage, Tracer
from harness.results import RunFolder

SPANS = 1000


def open_and_close(tracer: Tracer) -> None:
    for step in range(SPANS):
        with tracer.span("learner", Stage.UPDATE, step, step):
            pass


def test_1000_disabled_spans(benchmark: BenchmarkFixture) -> None:
    benchmark.extra_info["spans"] = SPANS
    benchmark(open_and_close, NullTracer())


def test_1000_recorded_spans(benchmark: BenchmarkFixture) -> None:
    tracer = RecordingTracer(time.perf_counter_ns)

    def record() -> int:
        open_and_close(tracer)
        return len(tracer.drain())

    benchmark.extra_info["spans"] = SPANS
    assert benchmark(record) == SPANS


def test_1000_recorded_and_written_spans(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    tracer = RecordingTracer(time.perf_counter_ns)
    folder = RunFolder.create(tmp_path, "tracer", "benchmark", None)

    def record_and_write() -> None:
        open_and_close(tracer)
        folder.append_spans(tracer.drain())
        folder.flush()

    benchmark.extra_info["spans"] = SPANS
    benchmark(record_and_write)
    folder.close()
    lines = (folder.folder / "spans.jsonl").read_text().count("\n")
    assert (lines - 1) % SPANS == 0
    assert lines > SPANS


def test_1000_spans_of_the_recorder_with_two_attributes(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    def spans() -> None:
        for number in range(SPANS):
            with record.span("update", tokens=4096, layer=number):
                pass

    benchmark.extra_info["spans"] = SPANS
    with record.run(tmp_path / "recorded"):
        record.step(0)
        benchmark(spans)
