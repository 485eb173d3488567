"""``python -m tests.hostile``: try every crafted input, and every value at every place of the sound documents."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.hostile.crafted import CASES, Case
from tests.hostile.documents import each_place
from tests.hostile.outcome import BAD, HEAD, Count, met
from tests.hostile.targets import Target, targets

MOST_MEMORY = 3 * 2**30
"""Address space of the process: what takes all memory is met with a MemoryError, and counts as a traceback."""


def document_cases(target: Target) -> Iterator[Case]:
    """Yield every value at every place of a reader's sound documents."""
    for which, document in target.documents.items():
        for where, name, text in each_place(document):
            data = text.encode("utf-8", "surrogatepass")
            yield Case(f"{which}: {where} = {name}", _read(target, data), name in target.impossible, target.limit_s)


def _read(target: Target, data: bytes) -> Callable[[Path], None]:
    return lambda folder: target.read(data, folder)


def tried(area: str, cases: Iterator[Case], every: int = 1) -> Count:
    """Try cases, each in a folder of its own; with ``every`` n only each nth."""
    count = Count(area)
    for number, case in enumerate(cases):
        if number % every:
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
            count.add(case.name, met(partial(case.act, Path(folder)), case.must_refuse, case.limit_s))
    return count


def areas() -> dict[str, Callable[[], Iterator[Case]]]:
    """Return the cases of every area by its name."""
    documents = {f"{name}, every place": _places(target) for name, target in targets().items() if target.documents}
    return CASES | documents


def _places(target: Target) -> Callable[[], Iterator[Case]]:
    return lambda: document_cases(target)


def main() -> int:
    """Try everything and print the count; exit code 1 where an input was met badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument(
        "areas", nargs="*", metavar="AREA", help="those whose names hold one of these words; default: all"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each nth input only")
    parser.add_argument("--show", type=int, default=3, metavar="N", help="badly met inputs to show of each kind")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    print(HEAD, flush=True)
    counts = []
    for name, cases in areas().items():
        if not options.areas or any(word in name for word in options.areas):
            counts.append(tried(name, cases(), options.every))
            print(counts[-1].row(), flush=True)
    whole = Count("all")
    for count in counts:
        whole.kinds += count.kinds
        whole.longest_s = max(whole.longest_s, count.longest_s)
        whole.bad += [(f"{count.area}: {name}", outcome) for name, outcome in count.bad]
    print(whole.row())
    for kind in BAD:
        shown = [(name, outcome) for name, outcome in whole.bad if outcome.kind == kind][: options.show]
        for name, outcome in shown:
            print(f"\n{kind}: {name} ({outcome.cpu_s:.2f} s)\n{outcome.said}", file=sys.stderr)
    return 1 if whole.bad else 0


if __name__ == "__main__":
    sys.exit(main())
