"""``python -m harness doctor``: what works on this machine, and what each part that is not there needs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec

from harness.core.arguments import json_argument
from harness.core.errors import UserError
from harness.core.extras import EXTRA_OF, how_to_install

PACKAGES = {
    "torch": "runs of the harness' own loop (run, bench)",
    "transformers": "models in Hugging Face folders",
    "ray": "the parts as actors; a Learner of several ranks",
    "nixl": "transport nixl",
    "cupy": "transport nccl",
    "vllm": "engine vllm",
    "deepspeed": "learner.sharding deepspeed",
    "trl": "vs_trl in this environment",
    "nvtx": "ranges for Nsight Systems",
    "wandb": "tracker wandb",
    "mlflow": "tracker mlflow",
}
"""What each package is for."""
ALWAYS = ("record, import", "another trainer's run"), ("compare, report, trace, simulate", "saved runs")
"""What the base alone does."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that works here, or does not.

    Attributes:
        name: a package, a program or a part of the machine.
        purpose: what it is for.
        state: its version, or how much of it there is; empty where it is not there.
        missing: why it cannot be used; empty where it can.
        fix: what brings it.
    """

    name: str
    purpose: str
    state: str = ""
    missing: str = ""
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print what works here; return 0, since nothing of it is needed by everybody."""
    findings = list(look())
    if options.json:
        print(json.dumps([asdict(each) for each in findings], indent=2))
    else:
        _print(findings)
    return 0


def look(find: Callable[[str], object | None] = find_spec) -> Iterator[Finding]:
    """Look at this machine; nothing is started and no GPU is used.

    Args:
        find: finds a package by its name.
    """
    from harness.record.seams import shims

    yield from (Finding(name, purpose, "works") for name, purpose in ALWAYS)
    trainers = {name: _version(name) for name in sorted(shims()) if find(name) is not None}
    told = ", ".join(f"{name} {version}" for name, version in trainers.items())
    yield Finding("trainers", f"record knows {', '.join(sorted(shims()))}", told or "none of them in this environment")
    for package, purpose in PACKAGES.items():
        if find(package) is not None:
            yield Finding(package, purpose, _version(package))
        else:
            yield Finding(package, purpose, missing="not installed", fix=how_to_install(EXTRA_OF[package]))
    yield from _programs()
    yield from _machine()


def _version(package: str) -> str:
    for name in metadata.packages_distributions().get(package, [package]):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "installed"


def _programs() -> Iterator[Finding]:
    from harness.probes.pyspy import check_pyspy

    try:
        check_pyspy()
        yield Finding("py-spy", "looks into running processes", "allowed")
    except UserError as error:
        yield Finding("py-spy", "looks into running processes", missing=error.what, fix=error.fix or "")
    for name, purpose, fix in (
        ("nsys", "profile nsight", "install Nsight Systems, whose program is nsys"),
        ("c++", "DeepSpeed's first start on a CPU", "install a C++ compiler (Debian and Ubuntu: the package g++)"),
    ):
        if found := shutil.which(name):
            yield Finding(name, purpose, found.rpartition("/")[2])
        else:
            yield Finding(name, purpose, missing="not found", fix=fix)


def _machine() -> Iterator[Finding]:
    from harness.core.spawn_pool import usable_cores
    from harness.probes.nvml import list_gpus
    from harness.run.memory.fit import free_main_memory

    yield Finding("CPU cores", "of this process", str(usable_cores()))
    yield Finding("memory", "free", f"{free_main_memory() / 2**30:.1f} GiB")
    shared = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    yield Finding("shared memory", "transport shared_memory, Ray's objects", f"{shared / 2**30:.1f} GiB free")
    gpus, reason = list_gpus()
    if gpus:
        yield Finding("GPUs", "placement.device cuda", ", ".join(str(gpu["name"]) for gpu in gpus))
    else:
        fix = "nothing is needed for runs on CPUs; gpu-check examines a machine that has one"
        yield Finding("GPUs", "placement.device cuda", missing=reason or "none", fix=fix)


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from harness.report.console import Output

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for each in findings:
        mark = Text("-", style="yellow") if each.missing else Text("ok", style="green")
        told = Text(each.state or each.missing)
        told.append(f"  {each.purpose}", style="dim")
        if each.missing and each.fix:
            told.append(f"\n{each.fix}")
        table.add_row(mark, each.name, told)
    Output().print(table)
