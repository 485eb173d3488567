"""``python -m harness dataset``: its arguments."""

from __future__ import annotations

import argparse

from harness.core.arguments import from_1, out_argument, quiet_argument
from harness.core.errors import UserError
from harness.evaluate.command import MODEL, engine_arguments

DESCRIPTION = "Have a model write a data set."
EXAMPLES = "example:\n  python -m harness dataset keywords --engine vllm --model DIR -n 1000 --out data/keywords"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    keywords = kinds.add_parser(
        "keywords",
        help="sentences that include given words",
        description="Ask a model for sentences with given words; keep those that have them, 80% for training.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _keywords_arguments(keywords)


def run(options: argparse.Namespace) -> int:
    """Have a model write a data set; return the exit code."""
    from rich.console import Console

    from harness.evaluate.keyword_dataset import make_keyword_dataset

    if options.out is None:
        raise UserError("the new folder is not named", "--out", "for example --out data/keywords")
    make_keyword_dataset(options, Console(stderr=True))
    return 0


def _keywords_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL)
    parser.add_argument("-n", "--rows", type=from_1, required=True, metavar="N", help="rows in both files together")
    out_argument(parser, None, "new folder for the two files (required)", "-o")
    parser.add_argument("--keywords", type=int, default=2, metavar="N", help="words to include, 2 to 8 (default: 2)")
    engine_arguments(parser)
    parser.add_argument("--chat", action="store_true", help="ask through the model's chat template")
    parser.add_argument("--samples", type=from_1, default=4, metavar="N", help="answers to each prompt (default: 4)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="default: 1")
    parser.add_argument("--max-tokens", type=from_1, default=48, metavar="N", help="longest answer (default: 48)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--batch", type=from_1, default=64, metavar="N", help="prompts asked together (default: 64)")
    quiet_argument(parser, "with the rows kept")
