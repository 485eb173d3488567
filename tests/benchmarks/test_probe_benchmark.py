"""What the cheap probes cost. The bound of the project: the probes' CPU time is at most 1% of the step time."""

import os
import time

from pytest_benchmark.fixture import BenchmarkFixture

from harness.core.trace import HookedTracer, NullTracer, Stage
from harness.probes.host import HostProbe, ProcessProbe
from harness.probes.nvml import GpuProbe
from harness.probes.nvtx_ranges import NvtxSpans
from harness.probes.sampler import Sampler
from harness.probes.sampler_process import SamplerProcess
from tests.stand_ins.fake_nvml import FakeDevice, FakeNvml
from tests.stand_ins.fake_nvtx import FakeDomain

SPANS = 1000
LANES = {"learner": os.getpid(), "generator": os.getppid(), "scorer": 1}


def test_1000_spans_marked_as_ranges(benchmark: BenchmarkFixture) -> None:
    """On the recording domain: the wrapper's own cost and more. With no tool listening there is no wrapper at all."""
    domain = FakeDomain()
    tracer = HookedTracer(NullTracer(), NvtxSpans(domain))

    def mark() -> int:
        domain.events.clear()
        for step in range(SPANS):
            with tracer.span("learner", Stage.UPDATE, step):
                pass
        return len(domain.events)

    benchmark.extra_info["spans"] = SPANS
    assert benchmark(mark) == 2 * SPANS


def test_reading_the_machine(benchmark: BenchmarkFixture) -> None:
    assert benchmark(HostProbe().read).source == "host"


def test_reading_four_processes(benchmark: BenchmarkFixture) -> None:
    probe = ProcessProbe(driver=os.getpid())
    probe.watch(LANES)
    benchmark.extra_info["processes"] = len(probe.read())
    benchmark(probe.read)


def test_one_whole_sample(benchmark: BenchmarkFixture) -> None:
    """With one GPU, whose calls answer at once: those of a driver come on top."""
    sampler = Sampler(5, os.getpid(), lambda sample: None, open_gpus=lambda: GpuProbe(FakeNvml([FakeDevice()])))
    sampler.obey({"processes": LANES})
    assert benchmark(sampler.sample)[1]


def test_one_step_of_a_sampled_run_in_the_driver(benchmark: BenchmarkFixture) -> None:
    """What a training step pays in the measured process: begin and end of its turn, and taking the rows."""
    sampler = SamplerProcess(5.0)
    sampler.watch(LANES)

    def step() -> None:
        sampler.order("go")
        sampler.drain()
        sampler.order("hold")

    started_s = time.perf_counter()
    benchmark.pedantic(step, setup=lambda: time.sleep(0.02), rounds=100)
    sampler.close()
    benchmark.extra_info["cpu_share"] = sampler.own_cpu_s / (time.perf_counter() - started_s)
    assert sampler.notes == []
