"""What a phase says of itself, in the process that runs it."""

from __future__ import annotations

import importlib
import json
import shutil
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.core.atomic_files import whole_file
from harness.results.rows import with_nulls

MODEL_FOLDER = "model-weights"


class Skipped(Exception):
    """The phase cannot run here; the message is the reason."""


class Report:
    """Figures and failures of a phase, written whole after each of them: a phase that is ended leaves what it had.

    Args:
        file: where they go; the phase may keep other things in the folder ``folder`` beside it.
        lean: whether minutes are paid for: what a CPU can tell as well is left out.

    Attributes:
        figures: by name; plain values.
        failures: each with its number.
        headline: what the summary shows of a phase that passed.
    """

    def __init__(self, file: Path, lean: bool = False) -> None:
        self.file, self.folder, self.lean = file, file.with_suffix(""), lean
        self.figures: dict[str, Any] = {}
        self.failures: list[str] = []
        self.headline = ""
        self.write()

    @property
    def model_folder(self) -> Path:
        """The folder beside the phases' own that ``model`` makes for several of them; it is removed at the end."""
        return self.file.parent / MODEL_FOLDER

    def note(self, name: str, value: Any) -> None:
        """Keep a figure."""
        print(f"{name}: {value}", flush=True)
        self.figures[name] = value
        self.write()

    def check(self, name: str, difference: float, bound: float) -> None:
        """Keep a difference with its bound; above it, or not a number, it is a failure."""
        self.note(name, {"difference": difference, "bound": bound})
        if not difference <= bound:
            self.fail(f"{name}: {difference:.3g}, at most {bound:.3g}")

    def fail(self, what: str) -> None:
        """Keep a failure."""
        print(f"FAILED {what}", flush=True)
        self.failures.append(what)
        self.write()

    @contextmanager
    def part(self, name: str = "") -> Iterator[None]:
        """Turn an error of a part of the phase into a failure; what follows the part still runs."""
        try:
            yield
        except Skipped:
            raise
        except Exception as error:
            traceback.print_exc()
            self.fail(f"{name and name + ': '}{type(error).__name__}: {str(error)[:300]}")

    def write(self, skipped: str | None = None) -> None:
        """Write what there is; NaN and infinities as null."""
        found = {"figures": self.figures, "failures": self.failures, "headline": self.headline, "skipped": skipped}
        plain = with_nulls(json.loads(json.dumps(found)))  # torch's version is text of a kind of its own
        with whole_file(self.file) as sink:  # the process may be killed at any moment
            sink.write(json.dumps(plain, indent=1).encode() + b"\n")


def require(modules: Sequence[str] = (), programs: Sequence[str] = ()) -> None:
    """Skip the phase unless these modules are installed and these programs are on the PATH.

    Raises:
        Skipped: with what is missing.
    """
    missing = [f"{name} is not installed" for name in modules if find_spec(name) is None]
    missing += [f"{name} is not on the PATH" for name in programs if shutil.which(name) is None]
    if missing:
        raise Skipped(", ".join(missing))


def work(target: str, file: str, lean: str = "") -> int:
    """Run a phase, ``package.module:function``, in this process; return the exit code, 1 where it failed."""
    report = Report(Path(file), bool(lean))
    module, _, name = target.partition(":")
    try:
        with report.part():
            getattr(importlib.import_module(module), name)(report)
        report.write()
    except Skipped as reason:
        print(f"skipped: {reason}", flush=True)
        report.write(skipped=str(reason))
    return 1 if report.failures else 0
