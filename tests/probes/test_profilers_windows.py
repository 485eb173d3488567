"""When a profiler's window begins and ends, told by event orders; and which lanes and steps it may name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

from harness.core.errors import UserError
from harness.core.trace import HookedTracer, NullTracer, RecordingTracer, SpanContext, Stage
from harness.probes.profile import ProbeProfile, PySpyWindow, TorchWindow, Window
from harness.probes.windows import ProfilerWindow, check_windows, lanes_in, training_step

LANES = ("generator0", "generator1", "scorer", "learner")


def begin(span: SpanContext) -> None:
    span.__enter__()


class Log:
    """A tracer that writes what happens to it, and to the profiler around it, into one list."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        self.events.append(f"{lane} {stage} {step}")
        return NullTracer().span(lane, stage)

    def window(self, first_step: int, steps: int = 2, lanes: Sequence[str] = ("learner",)) -> LoggedWindow:
        return LoggedWindow(self, Window(first_step=first_step, steps=steps), lanes)


class LoggedWindow(ProfilerWindow):
    """A window whose profiler writes into the log that it was started and stopped."""

    def __init__(self, log: Log, window: Window, lanes: Sequence[str]) -> None:
        super().__init__(window, lanes)
        self.events = log.events

    def start(self) -> None:
        self.events.append("START")

    def stop(self) -> None:
        self.events.append("STOP")


STORIES: dict[str, tuple[str, int, int, list[str]]] = {
    # lanes, first step, steps, and the spans that begin with what the profiler does between them; CLOSE ends the run
    "before the first span of its first step to the first of a later one": (
        "learner", 1, 2,
        ["prepare_batch 0", "update 0", "START", "prepare_batch 1", "update 1", "prepare_batch 2", "STOP", "update 3"],
    ),
    "stages of a version belong to the step that made it": (
        "learner", 2, 1,
        ["update 1", "weight_publish 2", "START", "update 2", "weight_publish 3", "STOP", "update 3"],
    ),
    "until the last of its lanes has left the window": (
        "generator0 learner", 3, 2,
        ["START", "generator0 update 3", "scorer update 9", "generator0 update 5", "update 3", "STOP", "update 5"],
    ),
    "closed while it runs": ("learner", 2, 2, ["START", "update 2", "CLOSE", "STOP", "CLOSE", "update 3", "update 4"]),
    "nothing": ("learner", 2, 2, ["CLOSE"]),
    "before it": ("learner", 2, 2, ["update 0", "update 1", "CLOSE"]),
    "no step": ("learner", 2, 2, ["update -1", "CLOSE"]),
    "after it": ("learner", 2, 2, ["update 5", "update 6", "CLOSE"]),
    "passed over, a repeated batch may come late": ("learner", 2, 2, ["update 1", "update 4", "update 2", "CLOSE"]),
}  # fmt: skip


@pytest.mark.parametrize("case", STORIES)
def test_when_it_starts_and_stops(case: str) -> None:
    lanes, first_step, steps, told = STORIES[case]
    log = Log()
    window = log.window(first_step, steps, lanes.split())
    tracer = HookedTracer(log, window)
    story = [line if line[0].isupper() or line.count(" ") == 2 else f"learner {line}" for line in told]
    for line in story:
        if line == "CLOSE":
            window.close()
        elif not line.isupper():
            lane, stage, step = line.split()
            begin(tracer.span(lane, Stage(stage), int(step)))
    assert log.events == [line for line in story if line != "CLOSE"]


def test_what_has_no_step_belongs_to_none() -> None:
    assert [training_step(stage, 0) for stage in (Stage.WEIGHT_PUBLISH, Stage.EVALUATE, Stage.UPDATE)] == [-1, -1, 0]
    assert training_step(Stage.UPDATE, -1) == training_step(Stage.WEIGHT_LOAD, -1) == -1


def test_a_span_that_fails_closes_as_it_should_and_the_window_goes_on() -> None:
    log, recorder = Log(), RecordingTracer(lambda: 7)
    window = log.window(1, 1)
    tracer = HookedTracer(recorder, window)
    with pytest.raises(ValueError, match="inside"), tracer.span("learner", Stage.UPDATE, 1):
        raise ValueError("inside")
    assert log.events == ["START"]
    assert [span.step for span in recorder.drain()] == [1]
    begin(tracer.span("learner", Stage.UPDATE, 2))
    assert log.events == ["START", "STOP"]


def test_a_profiler_that_does_not_start_is_tried_once_and_never_stopped() -> None:
    class Refused(LoggedWindow):
        def start(self) -> None:
            self.events.append("REFUSED")
            raise RuntimeError("no")

    log = Log()
    window = Refused(log, Window(first_step=1, steps=2), ["learner"])
    tracer = HookedTracer(log, window)
    with pytest.raises(RuntimeError, match="no"):
        begin(tracer.span("learner", Stage.UPDATE, 1))
    begin(tracer.span("learner", Stage.UPDATE, 2))
    begin(tracer.span("learner", Stage.UPDATE, 3))
    window.close()
    assert log.events == ["REFUSED", "learner update 2", "learner update 3"]


def test_marks_surround_the_spans_inside_and_no_others() -> None:
    marks: list[str] = []

    @contextmanager
    def mark(stage: Stage) -> Iterator[None]:
        marks.append(f"[{stage}")
        try:
            yield
        finally:
            marks.append(f"{stage}]")

    class Marked(LoggedWindow):
        def mark(self, stage: Stage) -> AbstractContextManager[object]:
            return mark(stage)

    log = Log()
    window = Marked(log, Window(first_step=1, steps=1), ["learner"])
    tracer = HookedTracer(log, window)
    for step in range(3):
        with tracer.span("learner", Stage.UPDATE, step):
            marks.append(str(step))
    with pytest.raises(ValueError, match="inside"), tracer.span("learner", Stage.UPDATE, 1):
        raise ValueError("inside")
    assert marks == ["0", "[update", "1", "update]", "2"]


def test_threads_that_begin_at_once_start_it_once_and_wait_until_it_runs() -> None:
    started, both = threading.Event(), threading.Barrier(2)
    seen: list[tuple[str, bool]] = []
    starts: list[str] = []

    class Started(LoggedWindow):
        def start(self) -> None:
            starts.append("START")
            started.set()

    window = Started(Log(), Window(first_step=1, steps=1), ["a", "b"])
    tracer = HookedTracer(NullTracer(), window)

    def lane(name: str) -> None:
        both.wait()
        begin(tracer.span(name, Stage.UPDATE, 1))
        seen.append((name, started.is_set()))

    threads = [threading.Thread(target=lane, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert starts == ["START"]
    assert sorted(seen) == [("a", True), ("b", True)]


def test_a_kind_means_all_of_its_lanes_in_the_order_of_the_run() -> None:
    assert lanes_in(Window(lanes=["learner", "generator"]), LANES) == ("generator0", "generator1", "learner")
    assert lanes_in(Window(lanes=["generator1"]), LANES) == ("generator1",)
    assert lanes_in(Window(lanes=["generator"]), ("generator", "learner")) == ("generator",)
    with pytest.raises(UserError, match=r"no lane 'generator2' to profile(.|\n)*generator0, generator1, scorer"):
        lanes_in(Window(lanes=["learner", "generator2"]), LANES)


def test_a_window_must_end_within_the_run() -> None:
    profile = ProbeProfile(name="mine", torch_profiler=TorchWindow(first_step=3, steps=2))
    check_windows(profile, LANES, steps=5)
    with pytest.raises(UserError, match=r"3 to 4(.|\n)*last step of the run is 3(.|\n)*at least 5 steps"):
        check_windows(profile, LANES, steps=4)
    with pytest.raises(UserError, match="no lane 'critic'"):
        check_windows(ProbeProfile(pyspy=PySpyWindow(lanes=["critic"])), LANES, steps=50)


def test_a_window_touches_the_steps_that_a_lane_ahead_of_it_falls_into_and_the_one_after() -> None:
    window = Window(first_step=3, steps=2)
    assert list(window.numbers) == [3, 4]
    assert list(window.touched()) == [3, 4, 5]
    assert list(window.touched(max_lag=2)) == [1, 2, 3, 4, 5]
    assert list(Window(first_step=1, steps=1).touched(max_lag=4)) == [0, 1, 2]
