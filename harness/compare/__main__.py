"""``python -m harness.compare``: the door to the command, which stands in the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness.core.arguments import Parser
from harness.core.errors import UserError
from harness.core.terminal_text import plain_lines, write_what_can_be_written
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
    write_what_can_be_written()
    try:
        options = parser.parse_args(arguments)
    except UserError as error:
        print(plain_lines(f"error: {error}"), file=sys.stderr)
        return 2
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
