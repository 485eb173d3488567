"""A scripted stand-in for the module ``pynvml``: the calls that ``harness.probes.nvml`` makes, without a GPU.

Each call of a device answers from a script: a list of values and errors, one for each call; the last one stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, NOT_FOUND = 3, 4, 15, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 9, 12, 13, 18
INVALID_ARGUMENT = 2


class NVMLError(Exception):
    """NVML's error; ``value`` is its code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Process(NamedTuple):
    """A process with a context on the device."""

    pid: int
    usedGpuMemory: int | None


class Memory(NamedTuple):
    """Device memory in bytes."""

    total: int
    used: int

    @property
    def free(self) -> int:
        """What nobody holds."""
        return self.total - self.used


class Rates(NamedTuple):
    """Utilisation in percent."""

    gpu: int
    memory: int


DEFAULTS: dict[str, Any] = {
    "utilisation": 50,
    "memory": Memory(80 * 2**30, 10 * 2**30),
    "clock": 1980,
    "temperature": 40,
    "power": 250_000,
    "energy": 1_000_000,
    "reasons": 0,
    "compute": (),
    "graphics": (),
    "max_clocks": {1: 1980, 2: 2619},
    "power_limit": 700_000,
    "default_power_limit": 700_000,
    "application_clocks": NVMLError(NOT_SUPPORTED),
}
"""What a call answers without a script: percent, bytes, MHz, degrees, mW, mJ, bits, processes, MHz by clock, mW."""


@dataclass
class FakeDevice:
    """A GPU.

    Attributes:
        script: by the names of ``DEFAULTS``: values and ``NVMLError`` in the order of the calls.
        unreachable: raised where its handle is asked for.
    """

    uuid: str = "GPU-00000000"
    name: str = "Fake GPU"
    script: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unreachable: Exception | None = None
    calls: dict[str, int] = field(default_factory=dict)

    def answer(self, name: str) -> Any:
        """Return, or raise, the next entry of the script."""
        entries = self.script.get(name, (DEFAULTS[name],))
        entry = entries[min(self.calls.get(name, 0), len(entries) - 1)]
        self.calls[name] = self.calls.get(name, 0) + 1
        if isinstance(entry, Exception):
            raise entry
        return entry


def _answers(name: str) -> Callable[..., Any]:
    """A call of the library that a device answers from its script, maybe with a number for each clock."""

    def call(module: FakeNvml, device: FakeDevice, *which: int) -> Any:
        answer = device.answer(name)
        return answer[which[0]] if isinstance(answer, dict) else answer

    return call


class FakeNvml:
    """The module.

    Args:
        devices: in NVML's order, which is that of the PCI bus.
        init, count: raised by ``nvmlInit`` and ``nvmlDeviceGetCount``.
        slices: MIG slices, by UUID.
        driver: its version, or raised where that is asked for.
        cuda: the newest version that it runs, as NVML writes it: 1000 x major + 10 x minor.

    Attributes:
        opened: how often it was initialised and not shut down.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(
        self,
        devices: Sequence[FakeDevice] = (),
        init: Exception | None = None,
        count: Exception | None = None,
        slices: Sequence[FakeDevice] = (),
        driver: str | Exception = "580.95.05",
        cuda: int = 13000,
    ) -> None:
        self._driver, self._cuda = driver, cuda
        self._devices, self._slices = devices, slices
        self._init, self._count = init, count
        self.opened = 0

    def nvmlInit(self) -> None:
        if self._init is not None:
            raise self._init
        self.opened += 1

    def nvmlShutdown(self) -> None:
        if not self.opened:
            raise NVMLError(1)
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self._count is not None:
            raise self._count
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        device = self._devices[index]
        if device.unreachable is not None:
            raise device.unreachable
        return device

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeDevice:
        for device in (*self._devices, *self._slices):
            if device.uuid == uuid:
                return device
        raise NVMLError(NOT_FOUND)

    def nvmlSystemGetDriverVersion(self) -> str:
        if isinstance(self._driver, Exception):
            raise self._driver
        return self._driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._cuda

    def nvmlDeviceGetName(self, device: FakeDevice) -> str:
        return device.name

    def nvmlDeviceGetUUID(self, device: FakeDevice) -> str:
        return device.uuid

    def nvmlDeviceGetUtilizationRates(self, device: FakeDevice) -> Rates:
        return Rates(device.answer("utilisation"), 0)

    nvmlDeviceGetMaxClockInfo = _answers("max_clocks")
    nvmlDeviceGetMemoryInfo = _answers("memory")
    nvmlDeviceGetClockInfo = _answers("clock")
    nvmlDeviceGetApplicationsClock = _answers("application_clocks")
    nvmlDeviceGetEnforcedPowerLimit = _answers("power_limit")
    nvmlDeviceGetPowerManagementDefaultLimit = _answers("default_power_limit")
    nvmlDeviceGetTemperature = _answers("temperature")
    nvmlDeviceGetPowerUsage = _answers("power")
    nvmlDeviceGetTotalEnergyConsumption = _answers("energy")
    nvmlDeviceGetCurrentClocksEventReasons = _answers("reasons")
    nvmlDeviceGetCurrentClocksThrottleReasons = _answers("reasons")
    nvmlDeviceGetComputeRunningProcesses = _answers("compute")
    nvmlDeviceGetGraphicsRunningProcesses = _answers("graphics")
