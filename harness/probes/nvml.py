"""NVIDIA GPUs as their driver's management library (NVML) sees them. The only file that imports it.

Reference: https://docs.nvidia.com/deploy/nvml-api/ (each call's errors and units).
Not by nvitop, which could not be set against this on a GPU. NVML is asked anew each time: free memory and power limits
are those of now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from harness.probes.reading import Reading, Unknown
from harness.results.counters import GPU_COUNTERS, explain

_GIB = 2**30
_PROCESSES_EVERY_NS = 1_000_000_000
_SLOWED = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of the clocks event reasons that hold the clock down. Not among them: idle, and clocks that somebody set."""
_READ: dict[str, tuple[str, Callable[[Any], float], tuple[str, ...]]] = {
    "utilisation": ("nvmlDeviceGetUtilizationRates", lambda rates: rates.gpu / 100, ()),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo", lambda memory: memory.used, ()),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", lambda mhz: mhz, ("NVML_CLOCK_SM",)),
    "temperature_c": ("nvmlDeviceGetTemperature", lambda degrees: degrees, ("NVML_TEMPERATURE_GPU",)),
    "power_w": ("nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1000, ()),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", lambda millijoules: millijoules / 1000, ()),
}
"""Of each counter NVML's call, how its answer is read, and the names of the call's further arguments."""
_REASONS = {
    2: "not_supported",  # invalid argument: how calls for whole devices answer for a slice of one
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    9: "no_driver",
    10: "timeout",
    12: "no_driver",
    13: "version_mismatch",  # the driver's library is older than the call
    15: "lost",
    16: "reset_required",
    18: "version_mismatch",
    28: "not_found",
}


class Driver(NamedTuple):
    """The GPU driver's version, such as ``535.104.05``, and the newest CUDA version that it runs, such as ``12.2``."""

    version: str
    cuda: str


def open_gpu_probe(nvml: Any = None, environment: Mapping[str, str] = os.environ) -> GpuProbe:
    """Return a probe of the GPUs that a process with this environment may use; ``nvml``: None imports ``pynvml``.

    Raises:
        Unknown: there is none; the reason is its argument.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            raise Unknown("not_installed") from None
        nvml = pynvml
    return GpuProbe(nvml, environment.get("CUDA_VISIBLE_DEVICES"))


def list_gpus(
    nvml: Any = None, environment: Mapping[str, str] = os.environ
) -> tuple[list[dict[str, Any]] | None, str | None]:
    """Return each GPU that a run may use, in CUDA's order, or None and why they cannot be listed.

    Returns:
        of each its ``name``, ``memory_gib`` in all and ``free_bytes`` now, and its ``gpu_limits``; all but the name may
        be None.
    """
    try:
        with closing(open_gpu_probe(nvml, environment)) as probe:
            return probe.describe(), None
    except Unknown as error:
        return None, f"NVML: {explain(error.reason)}"


def gpu_limits(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what sets how fast a GPU may be, beside its model: ``driver``, clocks in MHz, power in W.

    ``power_limit_w`` is the one that is enforced now, ``default_power_limit_w`` that of the model. What the driver does
    not tell is None. The clocks that somebody has set (NVML's application clocks, ``nvidia-smi -ac``) are there only
    where the driver tells them; clocks that were locked (``nvidia-smi -lgc``) it tells nobody.
    """

    def ask(name: str, *arguments: Any) -> Any:
        with suppress(Unknown):  # each may fail alone: older drivers, slices of a GPU
            return _call(nvml, name, *arguments)
        return None

    driver = ask("nvmlSystemGetDriverVersion")
    watts = {
        "power_limit_w": ask("nvmlDeviceGetEnforcedPowerLimit", handle),
        "default_power_limit_w": ask("nvmlDeviceGetPowerManagementDefaultLimit", handle),
    }
    set_clocks = {
        "application_sm_clock_mhz": ask("nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_SM),
        "application_memory_clock_mhz": ask("nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_MEM),
    }
    return {
        "driver": None if driver is None else _text(driver),
        "max_sm_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
        **{name: None if limit is None else round(limit / 1000) for name, limit in watts.items()},
        **{name: clock for name, clock in set_clocks.items() if clock is not None},
    }


class GpuProbe:
    """Reads the GPUs that this process's environment lets a run use; see ``harness.results.counters.GPU_COUNTERS``.

    Args:
        nvml: the module ``pynvml``, or one with the same functions.
        visible: CUDA_VISIBLE_DEVICES; None where it is not set. NVML itself does not heed it.
        proc: the folder that tells whose process a pid is.

    Raises:
        Unknown: there is no driver, or no access to it; the reason is its argument.
    """

    def __init__(self, nvml: Any, visible: str | None = None, proc: Path = Path("/proc")) -> None:
        self._nvml = nvml
        _call(nvml, "nvmlInit")
        try:
            self._devices = [_Device(nvml, handle, proc) for handle in self._visible(visible)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the driver go; closing twice does no harm."""
        self._devices = []
        with suppress(Unknown):  # shut down already
            _call(self._nvml, "nvmlShutdown")

    def read(self, now_ns: int, own_pids: Collection[int]) -> list[Reading]:
        """Read every GPU, in CUDA's order.

        Args:
            now_ns: of a monotonic clock. Lists of processes, which cost the most, are read once a second.
            own_pids: of the run; their descendants are the run's too.
        """
        return [device.read(f"gpu{place}", now_ns, own_pids) for place, device in enumerate(self._devices)]

    def describe(self) -> list[dict[str, Any]]:
        """Return what every GPU is, and how much of it is free; see ``list_gpus``.

        One that does not answer, as one that has fallen off the bus, is left out: the others may be used.

        Raises:
            Unknown: none answers.
        """
        answers, failure = list[dict[str, Any]](), None
        for device in self._devices:
            try:
                answers.append(device.describe())
            except Unknown as error:
                failure = failure or error
        if failure is not None and not answers:
            raise failure
        return answers

    def driver(self) -> Driver:
        """Return the versions of the driver; ``unknown`` where it does not tell."""
        try:
            version = _call(self._nvml, "nvmlSystemGetDriverVersion")
            cuda = _call(self._nvml, "nvmlSystemGetCudaDriverVersion_v2")  # 1000 x major + 10 x minor
        except Unknown:
            return Driver("unknown", "unknown")
        return Driver(_text(version), f"{cuda // 1000}.{cuda % 1000 // 10}")

    def _visible(self, visible: str | None) -> list[Any]:
        """Return handles in CUDA's order; in place of one, the error where the device does not answer.

        As in CUDA, the first entry that names no device ends the list. A number is taken as NVML's, which counts along
        the PCI bus; CUDA does so too where all GPUs are alike, or CUDA_DEVICE_ORDER is PCI_BUS_ID.
        """
        every = list[Any]()
        for index in range(_call(self._nvml, "nvmlDeviceGetCount")):
            try:
                every.append(_call(self._nvml, "nvmlDeviceGetHandleByIndex", index))
            except Unknown as error:
                every.append(error)
        if visible is None:
            return every
        named = (self._named(entry.strip(), every) for entry in visible.split(","))
        return list(takewhile(lambda handle: handle is not None, named))

    def _named(self, entry: str, every: list[Any]) -> Any:
        if entry.isdecimal():
            return every[int(entry)] if int(entry) < len(every) else None
        try:
            if entry.startswith("MIG-"):
                return _call(self._nvml, "nvmlDeviceGetHandleByUUID", entry)
            reached = [handle for handle in every if not isinstance(handle, Unknown)]
            uuids = {_text(_call(self._nvml, "nvmlDeviceGetUUID", handle)): handle for handle in reached}
        except Unknown:
            return None
        begun_so = [handle for uuid, handle in uuids.items() if entry and uuid.startswith(entry)]
        return begun_so[0] if len(begun_so) == 1 else None


class _Device:
    """One GPU, or one slice of it; an error in place of the handle is the answer to everything."""

    def __init__(self, nvml: Any, handle: Any, proc: Path) -> None:
        self._nvml, self._handle, self._proc = nvml, handle, proc
        self._reasons_seen: set[str] = set()
        self._processes_due_ns = 0

    def read(self, source: str, now_ns: int, own_pids: Collection[int]) -> Reading:
        reading = Reading(source)
        if isinstance(self._handle, Unknown):
            reading.lacks(GPU_COUNTERS, self._handle.reason)
            return reading
        for name in _READ:
            reading.take((name,), partial(self._read, name))
        active: set[str] = set()
        reading.take(("throttled",), lambda: (self._slowed_by(active),))
        if reading.values["throttled"] is not None:
            self._reasons_seen |= active
            reading.values |= {f"throttle/{name}": float(name in active) for name in sorted(self._reasons_seen)}
        if now_ns >= self._processes_due_ns:
            self._processes_due_ns = now_ns + _PROCESSES_EVERY_NS
            self._read_processes(reading, own_pids)
        return reading

    def describe(self) -> dict[str, Any]:
        if isinstance(self._handle, Unknown):
            raise self._handle
        name = _text(self._ask("nvmlDeviceGetName"))
        size: dict[str, Any] = {"memory_gib": None, "free_bytes": None}
        with suppress(Unknown):  # a slice of a GPU without permission, or memory shared with the host
            memory = self._ask("nvmlDeviceGetMemoryInfo")
            size = {"memory_gib": round(memory.total / _GIB), "free_bytes": memory.free}
        return {"name": name} | size | gpu_limits(self._nvml, self._handle)

    def _ask(self, name: str, *arguments: Any) -> Any:
        return _call(self._nvml, name, self._handle, *arguments)

    def _read(self, name: str) -> tuple[float]:
        call, value_of, arguments = _READ[name]
        return (value_of(self._ask(call, *(getattr(self._nvml, argument) for argument in arguments))),)

    def _slowed_by(self, active: set[str]) -> int:
        """Add the reasons that hold the clock down; return how many they are."""
        try:
            mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        except Unknown as error:
            if error.reason != "version_mismatch":
                raise
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # its name in older drivers
        active |= {name for bit, name in _SLOWED.items() if mask & bit}
        return len(active)

    def _read_processes(self, reading: Reading, own_pids: Collection[int]) -> None:
        try:
            processes = [*self._ask("nvmlDeviceGetComputeRunningProcesses")]
            with suppress(Unknown):  # a device without graphics
                processes += self._ask("nvmlDeviceGetGraphicsRunningProcesses")
        except Unknown as error:
            reading.lacks(("processes", "other_processes", "other_memory_bytes"), error.reason)
            return
        memory: dict[int, int | None] = {process.pid: process.usedGpuMemory for process in processes}
        reading.values["processes"] = len(memory)
        if not all((self._proc / str(pid)).is_dir() for pid in memory):
            reading.lacks(("other_processes", "other_memory_bytes"), "other_pid_namespace")
            return
        others = [used for pid, used in memory.items() if not descends(pid, own_pids, self._proc)]
        reading.values["other_processes"] = len(others)
        known = [used for used in others if used is not None]
        if len(known) < len(others):
            reading.lacks(("other_memory_bytes",), "not_supported")
        else:
            reading.values["other_memory_bytes"] = sum(known)


def descends(pid: int, ancestors: Collection[int], proc: Path) -> bool:
    """Whether a process is one of these, or a child of a child of one of them."""
    for _ in range(64):
        if pid in ancestors:
            return True
        try:
            stat = (proc / str(pid) / "stat").read_bytes()
            pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        except (OSError, ValueError, LookupError):
            return False
        if pid <= 1:
            return pid in ancestors
    return False


def _call(nvml: Any, name: str, *arguments: Any) -> Any:
    """Call NVML; what it raises is ``Unknown``, with the code for its error."""
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError as error:
        code = getattr(error, "value", None)
        raise Unknown(_REASONS.get(code, f"nvml_error_{code}") if code is not None else "unreadable") from None


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
