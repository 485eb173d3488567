"""``python -m harness.compare``: the door to the command, which stands in the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness.cli import carry_out
from harness.core.arguments import Parser
from harness.report.compare_command import DESCRIPTION, EXAMPLES, add_arguments, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs below the given folders; return the exit code."""
    parser = Parser(
        prog="python -m harness.compare",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    return carry_out(lambda: run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
