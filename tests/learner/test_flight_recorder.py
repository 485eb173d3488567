"""What a rank did last, in a file; and a thread's seconds apart: computed, or waited."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.core.trace import HookedTracer, NullTracer, Stage
from harness.learner.flight_recorder import KEPT, FlightRecorder, read_flight
from harness.run.rank_worker import thread_time


def test_the_last_calls_are_read_in_order_with_their_numbers(tmp_path: Path) -> None:
    calls, file = FlightRecorder(tmp_path / "0"), tmp_path / "0"
    for number in range(1, KEPT + 6):
        calls.note(f"call {number} " + "x" * 200 * (number == 7))
    found = read_flight(file)
    assert [int(line.partition(":")[0]) for line in found] == list(range(6, KEPT + 6))
    assert found[-1].startswith(f"{KEPT + 5}: call {KEPT + 5} ")
    elsewhere = tmp_path / "elsewhere"  # without a folder nothing is kept
    FlightRecorder(elsewhere / "0").note("call")
    assert (read_flight(elsewhere / "0"), elsewhere.exists()) == ([], False)


def test_stages_are_noted_as_they_begin_and_end(tmp_path: Path) -> None:
    tracer = HookedTracer(NullTracer(), FlightRecorder(tmp_path / "0"))
    with tracer.span("learner/0", Stage.UPDATE, 4, 4):
        pass
    with pytest.raises(KeyError), tracer.span("learner/0", Stage.WEIGHT_PUBLISH, 5, 5):
        raise KeyError
    said = [" ".join(line.split()[1:6]) for line in read_flight(tmp_path / "0")]
    assert [line.rsplit(" ", 1)[0] if line.endswith("0.0") else line for line in said] == [
        "update of step 4 began", "update of step 4 ended",
        "weight_publish of step 5 began", "weight_publish of step 5 failed",
    ]  # fmt: skip


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
