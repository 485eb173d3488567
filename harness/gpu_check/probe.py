"""What the device can do, and whether the instruments that the harness relies on tell the truth about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from functools import partial
from itertools import pairwise

import torch

from harness.core.trace import HookedTracer, RecordingTracer, Stage
from harness.gpu_check.device import DEVICE, HAS_GPU, device_name, seconds, synchronize
from harness.gpu_check.report import Report
from harness.probes.cuda_events import DeviceTimes, cuda_events
from harness.probes.nvml import open_gpu_probe
from harness.probes.reading import Unknown
from harness.probes.tracers import Synchronized
from harness.record.nvtx_ranges import open_domain

WIDTH = 8192 if HAS_GPU else 256
LOADED_S = 4.0
"""Seconds of steady work over which energy is compared with power; NVML's power is a mean over up to a second."""
NO_GPU = "not measured: torch finds no GPU"


def run(report: Report) -> None:
    """The phase ``probe``."""
    report.note("device", name := device_name())
    report.note("torch", {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()})
    report.note("nvidia-smi", _nvidia_smi())
    for part in (_speeds, _energy, _device_time):
        with report.part(part.__name__.strip("_")):
            part(report)
    domain, reason = open_domain()
    report.note("nvtx", reason if domain is None else "ranges are recorded: a tool listens")
    matmul = report.figures.get("bfloat16 matmul, TFLOP/s", 0)
    report.headline = f"{name}, torch {torch.__version__}, bfloat16 {matmul:.3g} TFLOP/s"


def _nvidia_smi() -> str:
    """Driver, clocks and limits as the driver's own tool tells them; it only reads."""
    if shutil.which("nvidia-smi") is None:
        return "not on the PATH"
    asked = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.draw,power.limit,memory.free"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def _launch_and_wait(values: torch.Tensor) -> None:
    values.add_(1)
    synchronize()


def _speeds(report: Report) -> None:
    pair = torch.randn(2, 1 << (28 if HAS_GPU else 22), device=DEVICE)
    report.note("copy, GB/s", pair.numel() * 4 / seconds(lambda: pair[0].copy_(pair[1])) / 1e9)  # read and written
    for dtype in (torch.float32, torch.bfloat16):
        factor = torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=dtype)
        name = str(dtype).removeprefix("torch.")
        report.note(f"{name} matmul, TFLOP/s", 2 * WIDTH**3 / seconds(partial(torch.matmul, factor, factor)) / 1e12)
    small = torch.zeros(8, device=DEVICE)
    report.note("launch, us", seconds(lambda: small.add_(1), calls=500) * 1e6)
    report.note("launch and wait, us", seconds(partial(_launch_and_wait, small), calls=100) * 1e6)
    report.note("read one number, us", seconds(lambda: small[0].item(), calls=100) * 1e6)


def _energy(report: Report) -> None:
    """How long NVML takes to answer, how often its energy moves, and whether that is power times time."""
    try:
        probe = open_gpu_probe()
    except Unknown as reason:
        report.note("nvml", f"not read: {reason}")
        return
    reading = probe.read(0, [os.getpid()])[0]
    report.note("nvml", {"values": reading.values, "missing": reading.missing})
    cost_s = seconds(lambda: probe.read(time.perf_counter_ns(), [os.getpid()]), repeats=20)
    report.note("nvml reading, ms", cost_s * 1e3)
    if not HAS_GPU:
        report.note("energy", NO_GPU)
        return
    factor = torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    samples: list[tuple[float, float, float]] = []
    start = time.perf_counter()
    while time.perf_counter() < start + 2 * LOADED_S:  # the first half brings power to its level
        for _ in range(4):
            factor @ factor
        synchronize()
        values = probe.read(time.perf_counter_ns(), [])[0].values
        energy, power = values.get("energy_j"), values.get("power_w")
        if energy is None or power is None:
            report.note("energy", "not measured: NVML gives no energy or no power here")
            return
        if time.perf_counter() > start + LOADED_S:
            samples.append((time.perf_counter(), energy, power))
    moves = [at for (_, before, _), (at, after, _) in pairwise(samples) if after != before]
    if len(moves) < 2:
        report.note("energy", f"not measured: the counter moved {len(moves)} times in {LOADED_S:.0f} s")
        return
    first, last = samples[0], samples[-1]
    by_power = sum((b[0] - a[0]) * (a[2] + b[2]) / 2 for a, b in pairwise(samples))
    report.note("energy moves every, ms", (moves[-1] - moves[0]) / (len(moves) - 1) * 1e3)
    report.note("energy over power x time", (last[1] - first[1]) / by_power)


def _device_time(report: Report) -> None:
    """The device's own time of a span against the wall-clock of the same span, which ends when the device is done."""
    new_event, reason = cuda_events()
    if new_event is None:
        report.note("device time", f"not measured: {reason}")
        return
    factor = torch.randn(WIDTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    synchronize()
    recorder = RecordingTracer(time.perf_counter_ns)
    times = DeviceTimes(new_event)
    tracer = HookedTracer(recorder, Synchronized(synchronize), times)
    with tracer.span("learner", Stage.UPDATE, 0):
        for _ in range(50):
            factor @ factor
    synchronize()
    (span,), (device,) = recorder.drain(), times.drain()
    wall_s = (span.end_ns - span.start_ns) / 1e9
    report.note("span of 50 products, s", {"wall": wall_s, "device": device.device_s})
    report.check("device time against wall-clock, relative", abs(device.device_s / wall_s - 1), 0.1)
