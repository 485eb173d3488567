"""Phases for tests of ``harness.gpu_check``: each does one thing that a phase may do."""

from __future__ import annotations

import subprocess
import sys
import time

from harness.gpu_check.report import Report, require


class Version(str):
    """Text of a kind of its own, as torch's version is."""


def passes(report: Report) -> None:
    """Notes a figure, one that JSON has no number for, and text of a kind of its own."""
    report.note("speed", 3.5)
    report.note("version", Version("2.11"))
    report.note("lost", float("nan"))
    report.check("gap", 1.0, 1.0)
    report.headline = "3.5 of it"


def _launch() -> None:
    raise ValueError("no such kernel")


def is_off(report: Report) -> None:
    """One difference is too large, one is not a number, and a part breaks; the rest goes on."""
    report.check("gap", 0.25, 0.125)
    report.check("lost", float("nan"), 1.0)
    with report.part("broken part"):
        _launch()
    report.note("after", 1)


def breaks(report: Report) -> None:
    """Raises."""
    raise RuntimeError("out of memory")


def is_skipped(report: Report) -> None:
    """Lacks two things."""
    require(modules=["json", "no_such_module"], programs=["no-such-program"])


def says_nothing(report: Report) -> None:
    """Reports nothing."""


def dies(report: Report) -> None:
    """Ends as a crash in a library would, in the middle."""
    report.note("before", 1)
    sys.stdout.flush()
    raise SystemExit(7)


def overruns(report: Report) -> None:
    """Starts a child and does not end by itself; the child's number is a figure."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    report.note("child", child.pid)
    time.sleep(600)


def leaves_files(report: Report) -> None:
    """Leaves a run's folder with weights and a picture."""
    folder = report.folder / "run"
    folder.mkdir(parents=True)
    for name in ("steps.jsonl", "model.safetensors", "lanes.png"):
        (folder / name).write_text("{}")
    report.note("files", 3)
