"""``make fuzz SECONDS=60``: draw damaged files for every reader until time is up, and shrink what is met badly.

What is found is written to ``tests/hostile/corpus/READER/``, so that the default suite tries it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.hostile.documents import damaged
from tests.hostile.outcome import BAD, HEAD, Count, Outcome, met
from tests.hostile.targets import Target, targets

CORPUS = Path(__file__).with_name("corpus")
AT_A_TIME = 40
"""Files drawn for a reader before the next one has its turn."""


class MetBadly(AssertionError):
    """A file was met with something else than acceptance or one clear error."""


def reads(target: Target, data: bytes) -> Outcome:
    """Give a file to a reader, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        return met(partial(target.read, data, Path(folder)), limit_s=target.limit_s)


def draw(target: Target, count: int, number: int, note: Callable[[bytes, Outcome], None]) -> bytes | None:
    """Draw files for a reader.

    Args:
        count: how many.
        number: which ones: the same number draws the same files.
        note: is told of each.

    Returns:
        The smallest one found that was met badly; None where none was.
    """
    found: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(damaged(target.drawn_from))
    def one(data: bytes) -> None:
        outcome = reads(target, data)
        note(data, outcome)
        if outcome.kind in BAD:
            found.append(data)
            raise MetBadly(outcome.said)

    try:
        one()
    except MetBadly:
        return found[-1]  # Hypothesis ends with the smallest
    return None


def main() -> int:
    """Draw until time is up, print the count, and keep what was found; exit code 1 where something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first draw; default: 0")
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"default: all of {', '.join(targets())}")
    options = parser.parse_args()
    chosen = {name: target for name, target in targets().items() if not options.readers or name in options.readers}
    counts = {name: Count(name) for name in chosen}
    ends, number, found = time.monotonic() + options.seconds, options.first, False
    while time.monotonic() < ends:
        for name, target in chosen.items():
            if time.monotonic() >= ends:
                break
            smallest = draw(target, AT_A_TIME, number, counts[name].note)
            if smallest is not None:
                found = True
                print(f"\n{name}: {keep(name, smallest)}\n{reads(target, smallest)}\n", file=sys.stderr)
        number += 1
    print("\n".join([HEAD, *(count.row() for count in counts.values())]))
    return 1 if found else 0


def keep(name: str, data: bytes) -> Path:
    """Write an input into the corpus, and return its file."""
    file = CORPUS / name / hashlib.sha256(data).hexdigest()[:12]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


if __name__ == "__main__":
    sys.exit(main())
