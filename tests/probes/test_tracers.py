"""What surrounds the spans of a process: delays, notes on what cannot be measured, profilers of the chosen lanes."""

from __future__ import annotations

import time
from pathlib import Path

from harness.core.trace import HookedTracer, RecordingTracer, Span, Stage
from harness.probes.memory import StagePeaks, process_memory
from harness.probes.profile import ProbeProfile, TorchWindow
from harness.probes.tracers import Tracers

LANES = ("generator", "scorer", "learner")


def test_without_a_profile_and_delays_the_recorder_is_handed_on_as_it_is() -> None:
    recorder = RecordingTracer(lambda: 0)
    made = Tracers(lanes=LANES).for_process(recorder, LANES, cuda=False)
    assert made.tracer is recorder
    assert (made.windows, made.notes, made.drain_device_figures()) == ([], [], [])


def test_only_a_process_that_computes_on_a_gpu_measures_device_memory() -> None:
    tracers = Tracers(lanes=LANES)
    on_cpu = tracers.for_process(RecordingTracer(lambda: 0), LANES, cuda=False)
    on_gpu = tracers.for_process(RecordingTracer(lambda: 0), LANES, cuda=True)
    assert [type(meter) for meter in on_cpu.meters] == []
    assert [type(meter) for meter in on_gpu.meters] == [StagePeaks]
    assert isinstance(on_gpu.tracer, HookedTracer)
    # a part on the CPU asks nothing of a GPU that it may see: an event would make a CUDA context
    timed = Tracers(ProbeProfile(device_time=True, nvtx=True), lanes=LANES)
    made = timed.for_process(RecordingTracer(lambda: 0), LANES, cuda=False)
    assert ("no device times: nothing here computes on a GPU" in made.notes, made.meters) == (True, [])
    assert process_memory() is process_memory()  # lanes and arms of one process share its allocator


def test_delays_are_part_of_their_spans() -> None:
    clock = iter(range(0, 10_000_000_000, 1))
    recorder = RecordingTracer(lambda: next(clock))
    began_s = time.perf_counter()
    made = Tracers(delays={"update": 0.05, "score": 0.0}, lanes=LANES).for_process(recorder, LANES, cuda=False)
    for stage in (Stage.UPDATE, Stage.SCORE):
        with made.tracer.span("learner", stage, 2, 2):
            pass
    assert time.perf_counter() - began_s >= 0.05
    assert recorder.drain() == [Span("learner", Stage.UPDATE, 0, 1, 2, 2), Span("learner", Stage.SCORE, 2, 3, 2, 2)]


def test_a_window_of_the_chosen_lanes_that_still_runs_is_ended_with_the_run(tmp_path: Path) -> None:
    profile = ProbeProfile(torch_profiler=TorchWindow(lanes=["learner"], first_step=1, steps=5))
    tracers = Tracers(profile, lanes=LANES, drafts=tmp_path)
    recorder = RecordingTracer(lambda: 0)
    assert tracers.for_process(recorder, ("generator",), cuda=False).tracer is recorder  # no chosen lane
    made = tracers.for_process(recorder, ("learner",), cuda=False)
    assert len(made.windows) == 1
    with made.tracer.span("learner", Stage.UPDATE, 1, 1):
        pass
    made.end_windows()
    assert [path.name.split(".")[0] for path in tmp_path.iterdir()] == ["learner"]
    tracers.remove_traces()
    assert not tmp_path.exists()
