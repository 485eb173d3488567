"""The points of a sweep as files: JSON lines with everything, a table for spreadsheets, and the command beside them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results.anonymous import safe_name
from harness.results.rows import with_nulls
from harness.simulate.axes import Axis, shown
from harness.simulate.forecast import Estimate, Forecast
from harness.simulate.points import Answer

SCHEMA, SCHEMA_VERSION = "harness.simulated_points", 1
POINTS, TABLE, PICTURE = "points.jsonl", "points.csv", "sweep.png"


def sweep_folder(out: Path, scenario: str, now: datetime) -> Path:
    """Make a new folder for a sweep below the results folder.

    Raises:
        UserError: it cannot be made.
    """
    stamp = now.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 101):
        folder = out / safe_name(scenario) / (f"sweep-{stamp}" if number == 1 else f"sweep-{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_dir():
                continue
            raise UserError(f"cannot write to {folder}: a file is in the way", str(out), "--out DIR") from None
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror or error}", str(out), "--out DIR") from None
        return folder
    raise UserError(f"no free folder name below {out}", str(out), "wait a second, or give another --out DIR")


def write_points(folder: Path, answers: Sequence[Answer], axes: Sequence[Axis], facts: Mapping[str, Any]) -> list[Path]:
    """Write all points; return the files.

    Args:
        folder: where they go.
        answers: in order.
        axes: of the sweep.
        facts: the command, machine, draws and so on, for the first line.

    Raises:
        UserError: a file cannot be written.
    """
    header = {"kind": "header", "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "simulated": True, **facts}
    rows = [header, *(_row(answer) for answer in answers)]
    lines = "".join(json.dumps(with_nulls(row), separators=(",", ":")) + "\n" for row in rows)
    files = {POINTS: lines, TABLE: _table(answers, axes)}
    for name, text in files.items():
        try:
            with whole_file(folder / name) as stream:
                stream.write(text.encode())
        except OSError as error:
            what = f"cannot write {folder / name}: {error.strerror or error}"
            raise UserError(what, str(folder), "give a folder that you may write to: --out DIR") from error
    return [folder / name for name in files]


def _row(answer: Answer) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "point", "at": answer.point}
    found = answer.found
    if found is None:
        return row | {"problem": answer.problem}
    figures = {key: value for key, value in asdict(found).items() if key not in ("each", "machine", "origin", "draws")}
    each = {"step_s": [item.step_s for item in found.each], "throughput": [item.throughput for item in found.each]}
    return row | figures | {"each": each}


def _table(answers: Sequence[Answer], axes: Sequence[Axis]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("step_s", "throughput", *(f"idle_{kind}" for kind in ("generator", "learner")))
    ends = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    writer.writerow([*(axis.key for axis in axes), *ends, "extrapolating", "problem"])
    for answer in answers:
        at = [shown(answer.point[axis.key]) for axis in axes]
        if answer.found is None:
            writer.writerow([*at, *([""] * len(ends)), "", answer.problem])
        else:
            figures = [f"{value:.6g}" for figure in _figures(answer.found) for value in figure]
            writer.writerow([*at, *figures, "; ".join(answer.found.extrapolating), ""])
    return text.getvalue()


def _figures(found: Forecast) -> list[tuple[float, float, float]]:
    nothing = Estimate(float("nan"), float("nan"), float("nan"))
    wanted = [found.step_s, found.throughput, *(found.idle.get(kind, nothing) for kind in ("generator", "learner"))]
    return [(figure.value, figure.low, figure.high) for figure in wanted]
