"""Probe profiles: which probes a run has. YAML files in ``profiles/``, named by a scenario's ``profile``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.settings.base import PluginName, Section

Lane = Annotated[str, Field(min_length=1)]
StepNumber = Annotated[int, Field(ge=0)]


class Window(Section):
    """Which lanes are profiled in which training steps. Steps inside it never enter statistics."""

    lanes: list[Lane] = Field(default=["learner"], min_length=1)
    """Lanes by name; a kind such as `generator` means all of its lanes."""
    first_step: StepNumber = 3
    """First training step that is profiled."""
    steps: Annotated[int, Field(ge=1, le=50)] = 2
    """How many steps in a row."""

    @property
    def numbers(self) -> range:
        return range(self.first_step, self.first_step + self.steps)

    def touched(self, max_lag: int = 0) -> range:
        """The training steps whose times a profiler has part in.

        A lane that is ahead by the lag begins the window while earlier steps are trained, and the profiler is stopped,
        and writes its file, when the step after the window begins.

        Args:
            max_lag: of the run, in versions.
        """
        return range(max(self.first_step - max_lag, 0), self.numbers.stop + 1)


class PySpyWindow(Window):
    """Flame graphs by py-spy, one file for each lane's process."""

    rate_hz: Annotated[int, Field(ge=1, le=1000)] = 100
    """Samples a second."""
    format: Literal["speedscope", "flamegraph", "raw"] = "speedscope"
    """File format."""
    nonblocking: bool = False
    """Do not pause the process for each sample: less disturbance, but stacks that may be torn."""


class TorchWindow(Window):
    """A trace by torch.profiler for each lane's process."""


class NsightWindow(Window):
    """Nsight Systems around the chosen actors."""

    options: dict[str, str] = Field(default_factory=dict)
    """Options of `nsys profile` that are added to, or replace, the usual ones; names without dashes in front."""
    report_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds to wait at the end for each report to be complete."""


class ProbeProfile(Section):
    """Which probes a run has."""

    name: str = "unnamed"
    """The file's name."""
    description: str = ""
    """What it measures and what that costs."""
    nvtx: bool = False
    """Mark every stage as an NVTX range."""
    sampler_hz: Annotated[float, Field(ge=0, le=20)] = 0.0
    """Samples a second of host and GPU counters; 0 takes none."""
    speed_probe: bool = False
    """Time a fixed piece of work between the steps of synchronous runs on CPUs: how fast the machine is meanwhile."""
    device_time: bool = False
    """Measure each stage's device time by CUDA events, beside the host time."""
    torch_profiler: TorchWindow | None = None
    """Trace a few steps with torch.profiler."""
    pyspy: PySpyWindow | None = None
    """Sample the Python stacks of a few steps with py-spy."""
    nsight: NsightWindow | None = None
    """Trace a few steps with Nsight Systems."""
    own: list[PluginName] = Field(default=[], max_length=20)
    """Your own probes as `package.module:Name`, read with each sample; see docs/extending.md."""

    @property
    def windows(self) -> dict[str, Window]:
        """The profilers' windows, by the name of the setting."""
        windows = {"torch_profiler": self.torch_profiler, "pyspy": self.pyspy, "nsight": self.nsight}
        return {name: window for name, window in windows.items() if window is not None}

    def touched_steps(self, max_lag: int = 0) -> frozenset[int]:
        """Return the training steps whose times a profiler has part in, which count in no statistics."""
        return frozenset(step for window in self.windows.values() for step in window.touched(max_lag))
