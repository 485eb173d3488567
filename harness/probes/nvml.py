"""NVIDIA GPUs as their driver's management library (NVML) sees them. The only file that imports it."""

from __future__ import annotations

from typing import Any

_GIB = 2**30


def list_gpus() -> tuple[list[dict[str, Any]] | None, str | None]:
    """Return each GPU's ``name`` and ``memory_gib``, or None and why they cannot be listed."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_gpu(pynvml, handle) for handle in handles], None
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, handle: Any) -> dict[str, Any]:
    name = pynvml.nvmlDeviceGetName(handle)
    try:
        memory = round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB)
    except pynvml.NVMLError:  # a slice of a GPU without permission, or memory shared with the host
        memory = None
    return {"name": name.decode() if isinstance(name, bytes) else name, "memory_gib": memory}
