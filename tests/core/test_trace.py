"""Spans are recorded when a block ends, however it ends; the null tracer records nothing."""

import itertools
import threading

import pytest

from harness.core.trace import HookedTracer, NullTracer, OpenSpan, RecordingTracer, Span, Stage
from harness.probes.tracers import Delay, Synchronized


def ticking() -> RecordingTracer:
    return RecordingTracer(itertools.count(100, 10).__next__)


def test_nested_spans_end_inside_out() -> None:
    tracer = ticking()
    with tracer.span("learner", Stage.UPDATE, step=2, version=1), tracer.span("learner", Stage.OLD_LOGPROBS):
        pass
    assert tracer.drain() == [
        Span("learner", Stage.OLD_LOGPROBS, 110, 120, -1, -1),
        Span("learner", Stage.UPDATE, 100, 130, 2, 1),
    ]


def test_a_span_survives_an_exception() -> None:
    tracer = ticking()
    with pytest.raises(KeyError), tracer.span("scorer", Stage.SCORE, step=0):
        raise KeyError("reward")
    assert tracer.drain() == [Span("scorer", Stage.SCORE, 100, 110, 0, -1)]
    assert tracer.still_open() == []


def test_open_spans_can_be_asked_for() -> None:
    tracer = ticking()
    with tracer.span("generator", Stage.WAIT_FOR_WEIGHTS, step=5):
        assert tracer.still_open() == [OpenSpan("generator", Stage.WAIT_FOR_WEIGHTS, 100, 5, -1)]


def test_draining_loses_nothing_while_other_threads_record() -> None:
    tracer = RecordingTracer(itertools.count().__next__)

    def record() -> None:
        for step in range(2000):
            with tracer.span("generator", Stage.GENERATE, step):
                pass

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    drained = []
    while any(thread.is_alive() for thread in threads):
        drained += tracer.drain()
    drained += tracer.drain()
    assert sorted(span.step for span in drained) == sorted(list(range(2000)) * 3)


def test_the_null_tracer_does_nothing() -> None:
    tracer = NullTracer()
    with pytest.raises(ValueError, match="passes"), tracer.span("learner", Stage.UPDATE):
        raise ValueError("passes")


def test_waits_are_told_from_work() -> None:
    waits = "batch rollouts weights room call recorder ranks checkpoint"
    assert {stage.value for stage in Stage if stage.is_wait} == {f"wait_for_{what}" for what in waits.split()}


def test_a_synchronized_span_ends_after_the_device_has_finished() -> None:
    now = [0]
    inner = RecordingTracer(lambda: now[0])

    def wait_for_the_device() -> None:
        now[0] += 7

    with HookedTracer(inner, Synchronized(wait_for_the_device)).span("learner", Stage.UPDATE, 1, 1):
        now[0] += 2  # the launch
    assert inner.drain() == [Span("learner", Stage.UPDATE, 0, 9, 1, 1)]


def test_a_delayed_stage_is_longer_by_the_delay_even_where_it_fails_and_others_are_not() -> None:
    now = [0]

    def sleep(seconds: float) -> None:
        now[0] += round(seconds * 1e9)

    def work_and_break() -> None:
        now[0] += 1_000_000_000
        raise ValueError("broken")

    recorder = RecordingTracer(lambda: now[0])
    tracer = HookedTracer(recorder, Delay({Stage.UPDATE: 0.25, Stage.SCORE: 0.0}, sleep))
    for stage in (Stage.GENERATE, Stage.UPDATE, Stage.SCORE):
        with pytest.raises(ValueError, match="broken"), tracer.span("learner", stage, 3):
            work_and_break()
    lengths = {span.stage: span.end_ns - span.start_ns for span in recorder.drain()}
    second = 1_000_000_000
    assert lengths == {Stage.GENERATE: second, Stage.UPDATE: second + 250_000_000, Stage.SCORE: second}
