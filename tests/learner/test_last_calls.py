"""What a rank did last, in a file; and a thread's seconds apart: computed, or waited."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.core.trace import NullTracer, RecordingTracer, Stage
from harness.learner.last_calls import KEPT, LastCalls, NotingTracer, read_last_calls
from harness.run.rank_faults import StruckTracer
from harness.run.thread_time import thread_time


def test_the_last_calls_are_read_in_order_with_their_numbers(tmp_path: Path) -> None:
    calls, file = LastCalls(tmp_path / "0"), tmp_path / "0"
    for number in range(1, KEPT + 6):
        calls.note(f"call {number} " + "x" * 200 * (number == 7))
    found = read_last_calls(file)
    assert [int(line.partition(":")[0]) for line in found] == list(range(6, KEPT + 6))
    assert found[-1].startswith(f"{KEPT + 5}: call {KEPT + 5} ")


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    LastCalls(tmp_path / "elsewhere" / "0").note("call")
    assert read_last_calls(tmp_path / "elsewhere" / "0") == []
    assert not (tmp_path / "elsewhere").exists()


def test_stages_are_noted_as_they_begin_and_end(tmp_path: Path) -> None:
    tracer = NotingTracer(NullTracer(), LastCalls(tmp_path / "0"))
    with tracer.span("learner/0", Stage.UPDATE, 4, 4):
        pass
    with pytest.raises(KeyError), tracer.span("learner/0", Stage.WEIGHT_PUBLISH, 5, 5):
        raise KeyError
    said = [" ".join(line.split()[1:6]) for line in read_last_calls(tmp_path / "0")]
    assert [line.rsplit(" ", 1)[0] if line.endswith("0.0") else line for line in said] == [
        "update of step 4 began", "update of step 4 ended",
        "weight_publish of step 5 began", "weight_publish of step 5 failed",
    ]  # fmt: skip


def test_a_fault_strikes_in_its_stage_and_step_alone_and_once_it_is_open() -> None:
    recorder, struck = RecordingTracer(time.perf_counter_ns), list[str]()
    tracer = StruckTracer(recorder, Stage.UPDATE, 2, lambda: struck.extend(s.stage for s in recorder.still_open()))
    for stage, step in ((Stage.UPDATE, 1), (Stage.PREPARE_BATCH, 2), (Stage.UPDATE, 2), (Stage.UPDATE, 3)):
        with tracer.span("learner/1", stage, step, step):
            pass
    assert struck == ["update"]
    assert len(recorder.drain()) == 4


def test_sleeping_is_blocked_and_computing_is_not() -> None:
    start = thread_time()
    time.sleep(0.05)
    slept = thread_time()
    computed, _, blocked = slept.since(start)
    assert blocked >= 0.04
    assert computed < 0.04
    while time.thread_time_ns() - slept.running_ns < 30_000_000:
        pass
    computed, runnable, blocked = thread_time().since(slept)
    assert computed >= 0.03
    assert blocked < computed + (runnable or 0.0)
