"""``python -m tests.hostile``: try every crafted input, and every value at every place of the sound documents."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from tests.hostile.crafted import Crafted, crafted
from tests.hostile.documents import each_place
from tests.hostile.outcome import BAD, HEAD, Count, Outcome, met
from tests.hostile.targets import Target, targets

MOST_MEMORY = 3 * 2**30
"""Address space of the process: what takes all memory is met with a MemoryError, and counts as a traceback."""
Case = tuple[str, Callable[[Path], Outcome]]
"""A name, and what gives the input to its reader in an empty folder."""


def crafted_cases(items: Iterable[Crafted], limit_s: float | None = None) -> Iterator[Case]:
    """Yield the cases of crafted inputs; ``limit_s`` takes the place of their own limits."""
    for item in items:
        case = partial(_met, item.act, item.names is not None, limit_s or item.limit_s, item.names or "")
        yield f"{item.reader}: {item.what}", case


def document_cases(target: Target, limit_s: float | None = None) -> Iterator[Case]:
    """Yield every value at every place of a reader's sound documents."""
    for which, document in target.documents.items():
        for where, name, text in each_place(document):
            act = partial(target.read, text.encode("utf-8", "surrogatepass"))
            refuse = name in target.impossible
            yield f"{which}: {where} = {name}", partial(_met, act, refuse, limit_s or target.limit_s, "")


def _met(act: Callable[[Path], None], must_refuse: bool, limit_s: float, names: str, folder: Path) -> Outcome:
    return met(partial(act, folder), must_refuse, limit_s, names)


def tried(area: str, cases: Iterable[Case]) -> Count:
    """Try cases, each in a folder of its own."""
    count = Count(area)
    for name, case in cases:
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
            count.add(name, case(Path(folder)))
    return count


def main() -> int:
    """Try everything and print the count; exit code 1 where an input was met badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument(
        "areas", nargs="*", metavar="AREA", help="those whose names hold one of these words; default: all"
    )
    parser.add_argument("--show", type=int, default=3, metavar="N", help="badly met inputs to show of each kind")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    areas: dict[str, Iterable[Case]] = {"crafted": crafted_cases(crafted())}
    areas |= {f"{name}, every place": document_cases(target) for name, target in targets().items() if target.documents}
    print(HEAD, flush=True)
    whole = Count("all")
    for name, cases in areas.items():
        if options.areas and not any(word in name for word in options.areas):
            continue
        count = tried(name, cases)
        print(count.row(), flush=True)
        whole.kinds += count.kinds
        whole.longest_s = max(whole.longest_s, count.longest_s)
        whole.bad += [(f"{count.area}: {each}", outcome) for each, outcome in count.bad]
    print(whole.row())
    for kind in BAD:
        for name, outcome in [(name, outcome) for name, outcome in whole.bad if outcome.kind == kind][: options.show]:
            print(f"\n{kind}: {name} ({outcome.cpu_s:.2f} s)\n{outcome.said}", file=sys.stderr)
    return 1 if whole.bad else 0


if __name__ == "__main__":
    sys.exit(main())
