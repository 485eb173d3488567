"""The table of options: in the terminal, and as a Markdown page with every word, difference and reason."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.oracle.ask import About, Implementation
from harness.oracle.comparison import GAP, TOLERANCE, Cell, compared
from harness.oracle.options import OPTIONS, Option, usual_batch
from harness.oracle.step import Step
from harness.report.document import Table
from harness.report.markdown import escaped

NOTHING = "-"
Row = tuple[Option, list[Cell]]
OTHERS = {
    "NeMo-RL": "its package on PyPI is an empty placeholder",
    "prime-rl, open-instruct, rllm": "they are on no package index; `--settings` reads the first two's configurations",
    "slime, torchforge": "their packages on PyPI are empty placeholders",
}
"""Trainers that are not asked, and why."""


@dataclass(frozen=True)
class Found:
    """What one trainer is and what was found of it."""

    about: About
    rows: list[Row]

    def cells(self, option: str) -> list[Cell]:
        return next((cells for each, cells in self.rows if each.name == option), [])

    def why(self, option: str) -> tuple[str, str, bool] | None:
        """Return the explanation of a row's difference: in words, its place, and whether it is a defect."""
        return next(((each.why, each.at, each.is_defect) for each in self.about.because if each.option == option), None)


def found(implementation: Implementation, examples: int, done: Callable[[], None] = lambda: None) -> Found | str:
    """Ask an implementation for every option; in words why it cannot be asked.

    Args:
        implementation: that is asked.
        examples: batches to search for each option.
        done: called after each option.
    """
    about = implementation.about()
    if isinstance(about, str):
        return about
    rows, batch = list[Row](), usual_batch()
    for option in OPTIONS:
        rows.append((option, compared(implementation, option, batch, examples)))
        done()
    return Found(about, rows)


def options_table(results: Mapping[str, Found | str]) -> tuple[Table, list[str]]:
    """Return a row for each option and a column for each trainer, and in words what failed."""
    asked = {name: each for name, each in results.items() if isinstance(each, Found)}
    rows = [(option.name, *(_short(each.cells(option.name)) for each in asked.values())) for option in OPTIONS]
    notes = (
        "equal: in every batch that was compared. A number is the largest difference of a gradient, of its largest "
        "value; of advantages, of 1. -: it has no counterpart.",
    )
    details = [f"{name}: {each}" for name, each in results.items() if isinstance(each, str)]
    return Table("Options here and elsewhere", ("option", *asked), tuple(rows), notes, 1), details


def _worst(cells: Sequence[Cell]) -> Cell | None:
    """Return the cell of the row: of several advantage functions that of the largest difference."""
    order = {"failed": 3, "differs": 2, "equal": 1, "no counterpart": 0}
    return max(cells, key=lambda cell: (order[cell.status], cell.gap), default=None)


def _short(cells: Sequence[Cell]) -> str:
    cell = _worst(cells)
    if cell is None or cell.status == "no counterpart":
        return NOTHING
    return f"{cell.gap:.0e}" if cell.status == "differs" else cell.status


def page(results: Mapping[str, Found | str], examples: int, command: str) -> str:
    """Return the Markdown page.

    Args:
        results: of each trainer.
        examples: batches that were searched for each option.
        command: that made it.
    """
    asked = {name: each for name, each in results.items() if isinstance(each, Found)}
    versions = ", ".join(f"{each.about.package} {each.about.version}" for each in asked.values())
    date = datetime.now(UTC).strftime("%d %B %Y").lstrip("0")
    notes: list[str] = []
    matrix = _matrix(asked, notes)
    lines = [
        "# Options of the loss, here and elsewhere",
        "",
        "Made by a command; do not edit:",
        "",
        "```bash",
        command,
        "```",
        "",
        f"{date}, on the CPU, Python {platform.python_version()}: {versions}.",
        "",
        "Each trainer's shipped code gets the same tensors and the counterpart of the option. Compared are advantages, "
        "and gradients with respect to the log-probs; a loss may have another value with the same gradient.",
        "",
        f"- *equal*: no batch had a difference above {TOLERANCE['loss']:g} of the largest gradient, or "
        f"{TOLERANCE['advantages']:g} of an advantage. In brackets stands how many were compared: one of 24 responses "
        f"of up to 24 tokens, and {examples} small ones that Hypothesis drew, with log-probs of two policies that "
        f"differ by up to {GAP:g}",
        "- *differs*: the largest difference that was seen, with its reason below",
        "- *equal, but*: only batches that were searched for differ",
        "- *not called*: there is code, which cannot be called alone",
        "- a dash: the trainer has no counterpart",
        "",
        *matrix,
        "",
        "## Differences",
        "",
        *(notes or ["There are none."]),
        "",
        *_words(asked),
        *_elsewhere(asked),
        "## Not asked",
        "",
        *(f"- {name}: {why}." for name, why in OTHERS.items()),
        *(f"- {name}: {each}" for name, each in results.items() if isinstance(each, str)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _matrix(asked: Mapping[str, Found], notes: list[str]) -> list[str]:
    lines = ["| option | here | " + " | ".join(asked) + " |", "|---" * (len(asked) + 2) + "|"]
    for option in OPTIONS:
        cells = [_cell(name, each, option.name, notes) for name, each in asked.items()]
        lines.append(f"| {option.name} | `{option.setting}` | " + " | ".join(cells) + " |")
    return lines


def _cell(name: str, each: Found, option: str, notes: list[str]) -> str:
    cells = each.cells(option)
    cell = _worst(cells)
    if cell is None or cell.status == "no counterpart":
        return "-" if not cell or cell.why.startswith("no counterpart") else "not called"
    if cell.status == "equal":
        return f"equal ({cell.searched})"
    if cell.status == "failed":
        notes.append(f"{len(notes) + 1}. **{name}, {option}**: failed: {escaped(cell.why)}")
        return f"failed, [{len(notes)}](#differences)"
    explained = each.why(option)
    reason = "Not explained" if explained is None else f"{_sentence(explained[0])} (`{explained[1]}`)"
    word = "**defect**" if explained is not None and explained[2] else "equal, but" if cell.is_rare else "differs"
    functions = [f"{other.of} {other.gap:.1e}" for other in cells if other.status == "differs" and len(cells) > 1]
    by = f" ({', '.join(functions)})" if functions else ""
    first = "equal on the first batch, " if cell.is_rare else ""
    said = f"{len(notes) + 1}. **{name}, {option}**{by}: {first}{cell.gap:.1e} at most in {cell.searched} batches."
    said += f" {reason}."
    notes.append(said + (f" The smallest batch: {_numbers(cell)}." if cell.smallest is not None else ""))
    return f"{word} {cell.gap:.0e}, [{len(notes)}](#differences)"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _numbers(cell: Cell) -> str:
    """Return the smallest batch in numbers: what an advantage is made of, or the tokens in the loss."""
    step: Step | None = cell.smallest
    assert step is not None
    tensors = step.tensors
    if cell.of:
        return f"rewards {_listed(tensors['rewards'])}, groups {_listed(tensors['group'])}"
    mask = tensors["mask"].bool()
    shown = [f"mask {_listed(tensors['mask'])}", f"advantages {_listed(tensors['advantages'])}"]
    for name in ("log_probs", "old_log_probs", "engine_log_probs", "reference_log_probs"):
        if name in tensors:
            shown.append(f"{name} {_listed(tensors[name][mask])}")
    return ", ".join(shown)


def _listed(tensor: Any) -> str:
    """Return a tensor's values as ``[0.1, 2]``, rows in brackets of their own."""
    if tensor.dim() > 1:
        return "[" + ", ".join(_listed(row) for row in tensor) + "]"
    return "[" + ", ".join(f"{value:g}" for value in tensor.tolist()) + "]"


def _words(asked: Mapping[str, Found]) -> list[str]:
    """A section for each trainer: which code was called, its words for each option, and what it has none for."""
    lines: list[str] = []
    for name, each in asked.items():
        lines += [f"## {name} {each.about.version}", ""]
        if each.about.entry:
            lines += [f"Its loss is `{each.about.entry}`.", ""]
        lines += ["| option | its words |", "|---|---|"]
        without: dict[str, list[str]] = {}
        for option, cells in each.rows:
            for cell in cells:
                of = f", {cell.of.removeprefix('advantages, ')}" if len(cells) > 1 and cell.of else ""
                if cell.words is not None:
                    words = ", ".join(f"{key} {value}" for key, value in cell.words.items()) or "none"
                    lines.append(f"| {option.name}{of} | `{words}` |")
            if cells and all(cell.words is None for cell in cells):
                without.setdefault(cells[0].why, []).append(option.name)
        lines += ["", *(f"- {escaped(why)}: {', '.join(names)}" for why, names in without.items()), ""]
    return lines


def _elsewhere(asked: Mapping[str, Found]) -> list[str]:
    """What trainers have and this project has not."""
    names = {option.name for option in OPTIONS}
    lines = [
        f"- {name}: {because.option}. {_sentence(because.why)} (`{because.at}`)."
        for name, each in asked.items()
        for because in each.about.because
        if because.option not in names
    ]
    return ["## Only elsewhere", "", *lines, ""] if lines else []
