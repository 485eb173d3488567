"""The probes beside one run: they rest while the run's clock stands still, and tell what they cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from harness.core.trace import Stage
from harness.probes.clock import PausableClock
from harness.probes.cuda_events import DeviceTime
from harness.probes.memory import DeviceFigure, Peak, StageMemory
from harness.probes.profile import ProbeProfile
from harness.probes.run_probes import RunProbes
from harness.results.counters import CounterRow


class Elsewhere:
    """Stands for samplers on other machines: notes its orders, and has one row for each drain."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.notes = ["node2 is gone"]

    def watch(self, processes: Mapping[str, int]) -> None:
        self.story.append("watch")

    def order(self, order: str) -> None:
        self.story.append(order)

    def drain(self, clock_at: Callable[[int], int]) -> list[CounterRow]:
        self.story.append("drain")
        return [CounterRow(1, "node1/host", {"load_1min": 0.5})]

    def close(self) -> None:
        self.story.append("close")


def probes(
    clock: PausableClock,
    tmp_path: Path,
    figures: Sequence[Sequence[DeviceFigure]] = (),
    elsewhere: Elsewhere | None = None,
) -> RunProbes:
    device_figures = iter(figures)
    profile = ProbeProfile(sampler_hz=0.0)
    return RunProbes(profile, clock, dict, lambda: next(device_figures, ()), tmp_path, elsewhere)


def reported(beside: RunProbes) -> dict[str, tuple[float, str]]:
    return {name: (metric.value, metric.reduction) for name, metric in beside.report().metrics.items()}


def test_without_a_rate_there_is_no_process_and_device_times_are_added_up_by_stage(tmp_path: Path) -> None:
    clock = PausableClock()
    before = len(os.listdir("/proc/self/fd"))
    first = [DeviceTime(Stage.UPDATE, 0.25), DeviceTime(Stage.GENERATE, 0.125), DeviceTime(Stage.UPDATE, 0.5)]
    beside = probes(clock, tmp_path, figures=[first])
    clock.resume()
    beside.start()
    assert reported(beside) == {"timing_device_s/update": (0.75, "sum"), "timing_device_s/generate": (0.125, "sum")}
    assert beside.report() == ([], [], {})
    beside.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_report_charges_what_sampling_has_cost_since_the_last(tmp_path: Path) -> None:
    beside, charged = probes(PausableClock(), tmp_path), list[dict[str, tuple[float, str]]]()
    for spent_s in (0.25, 0.75):
        beside._sampler = SimpleNamespace(own_cpu_s=spent_s)
        charged.append(reported(beside))
    assert charged == [{"probe/cpu_s": (0.25, "sum")}, {"probe/cpu_s": (0.5, "sum")}]
    beside.close()


def test_peaks_are_the_highest_by_stage_and_by_process(tmp_path: Path) -> None:
    first = (
        (Stage.UPDATE, 11, 70, 80),
        (Stage.UPDATE, 11, 60, 90),
        (Stage.GENERATE, 12, 30, 40),
        (Stage.GENERATE, 13, 20, 50),
    )
    steps = [
        [StageMemory(stage, pid, Peak(allocated, reserved)) for stage, pid, allocated, reserved in step]
        for step in (first, ((Stage.UPDATE, 11, 75, 75),))
    ]
    beside = probes(PausableClock(), tmp_path, figures=steps)
    assert reported(beside) == {
        "memory/allocated_bytes/update": (70, "max"),
        "memory/reserved_bytes/update": (90, "max"),
        "memory/allocated_bytes/generate": (30, "max"),
        "memory/reserved_bytes/generate": (50, "max"),
    }
    assert beside.report().metrics["memory/allocated_bytes/update"].value == 75
    assert beside.device_peaks == {11: Peak(75, 90), 12: Peak(30, 40), 13: Peak(20, 50)}
    beside.close()


def test_other_machines_hear_what_this_one_does(tmp_path: Path) -> None:
    clock, elsewhere = PausableClock(), Elsewhere()
    beside = probes(clock, tmp_path, elsewhere=elsewhere)
    clock.resume()
    beside.start()
    clock.pause()
    clock.resume()
    first, second = beside.report(), beside.report()
    assert [[row.source for row in each.counters] for each in (first, second)] == [["node1/host"]] * 2
    assert (first.notes, second.notes) == (["node2 is gone"], [])
    beside.close()
    assert [row.source for row in beside.report().counters] == ["node1/host"]  # what came in last
    assert elsewhere.story == ["watch", "go", "hold", "go", "drain", "drain", "close", "drain"]
