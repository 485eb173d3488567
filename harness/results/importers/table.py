"""The tables of ``docs/importing.md``: ``python -m harness.results.importers.table docs/importing.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.results.importers.command import DOCUMENTED
from harness.results.importers.convert import KEPT
from harness.results.importers.entry import DEVICES, GROWTH, STEPS, Crosswalk, Entry, Role
from harness.results.importers.verl import VERL, VERL_ASYNCHRONOUS

_END = "<!-- end -->"
_WHERE_TO = {
    Role.STEP: "`wall_s`",
    Role.STAGE: "stage `{}`",
    Role.METRIC: "`{}`",
    Role.VALIDATION: "`{}` (evaluation)",
}


def fill_in(text: str) -> str:
    """Return the page with each table between ``<!-- crosswalk: NAME -->`` and ``<!-- end -->`` made anew."""
    for crosswalk in DOCUMENTED:
        start = f"<!-- crosswalk: {crosswalk.title} -->\n"
        before, found, rest = text.partition(start)
        if found:
            text = before + start + table_of(crosswalk) + _END + rest.partition(_END)[2]
    return text


def table_of(crosswalk: Crosswalk) -> str:
    """Return the table of one crosswalk; that of verl's asynchronous runs has the lines that differ."""
    entries = crosswalk.entries
    if crosswalk is VERL_ASYNCHRONOUS:
        entries = tuple(entry for entry in entries if entry not in VERL.entries)
    lines = ["| in the log | here | how, and in which unit | written in |", "|---|---|---|---|"]
    lines += [_line(entry) for entry in entries]
    return "\n".join(lines) + "\n"


def _line(entry: Entry) -> str:
    theirs = ", ".join(map(_shown, entry.theirs))
    kept = "" if entry.is_renaming else f"; kept as `{KEPT}...` too"
    return f"| {theirs} | {_WHERE_TO[entry.role].format(entry.ours)} | {entry.how}{kept} | `{entry.source}` |"


def _shown(name: str) -> str:
    if name.startswith(GROWTH):
        return f"{GROWTH}`{name.removeprefix(GROWTH)}`"
    return name if name == STEPS else f"`{name}`" + (" (given)" if name == DEVICES else "")


def main(arguments: list[str]) -> int:
    """Write the tables of a page anew; return the exit code."""
    (path,) = map(Path, arguments)
    path.write_text(fill_in(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
