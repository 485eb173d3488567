"""``python -m harness.compare``: the command ``compare``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs below the given folders; return the exit code."""
    return cli.main(["compare", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
