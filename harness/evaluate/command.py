"""``python -m harness evaluate``: its arguments."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from harness.core.arguments import from_1, json_argument, out_argument, quiet_argument
from harness.evaluate.questions import TASKS

DESCRIPTION = "Sample a data set once with a model, grade the responses, and sort them into categories."
EXAMPLES = """\
examples:
  python -m harness evaluate --model preset:small --task keywords --limit 256 --max-tokens 32
  python -m harness evaluate --model DIR --data test.jsonl --prompt r1_zero --engine vllm
killed or interrupted, the same command continues after the last complete batch"""

ENGINES = ("native", "vllm")
WHY_NOT = {
    "sglang": "SGLang is run as an actor of a training run, and not for one pass over a data set",
    "paced": "it samples no text of a model, it only sleeps as long as one would",
}
MODEL = "preset:NAME (trained on examples first, once), a model folder, or a hub name"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    _what(parser.add_argument_group("what is evaluated"))
    _how(parser.add_argument_group("how it is sampled"))
    _where(parser, parser.add_argument_group("where the results go"))


def run(options: argparse.Namespace) -> int:
    """Evaluate a model, or go on with it; return the exit code."""
    from rich.console import Console

    from harness.evaluate.evaluation import run_evaluation

    run_evaluation(options, Console(stderr=True))
    return 0


def _what(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", required=True, metavar="MODEL", help=MODEL)
    group.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="JSON Lines or an array: rows as in GSM8K or MATH, or prompt and answer",
    )
    group.add_argument("--task", choices=TASKS, help="how answers are graded (default: what the rows look like)")
    group.add_argument(
        "--prompt",
        metavar="NAME|FILE",
        help="for maths files: r1_zero, question_only, r1_zero_reworded, or a text file with {question} "
        "(default: r1_zero)",
    )
    group.add_argument(
        "--reward",
        metavar="NAME|PACKAGE.MODULE:FUNCTION",
        help="r1_zero or question_only: how maths answers are found; or your own grading, for prompt and answer rows",
    )
    for part, default in (("prompt", "prompt, problem or question"), ("answer", "answer, or a boxed solution")):
        group.add_argument(f"--{part}-field", metavar="NAME", help=f"key of the {part} in a row, nested by dots "
                           f"(default: {default})")  # fmt: skip
    group.add_argument("--chat", action="store_true", help="ask through the model's chat template")
    group.add_argument(
        "--chat-template-kwargs", type=_arguments, metavar="JSON",
        help="""arguments of the template, as '{"enable_thinking": false}'; needs --chat""",
    )  # fmt: skip
    group.add_argument(
        "--keep-special-tokens", action="store_true", help="leave those in that do not end a response, for the grading"
    )
    group.add_argument("--system", metavar="TEXT", help="system prompt before each question; needs --chat")
    group.add_argument("--limit", type=from_1, metavar="N", help="the first N prompts only")


def _arguments(text: str) -> dict[str, Any]:
    value = json.loads(text)  # its error is a ValueError, which argparse reports
    if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
        raise ValueError
    return value


def _how(group: argparse._ArgumentGroup) -> None:
    engine_arguments(group)
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default: 1)")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="default: 1, all tokens")
    group.add_argument(
        "--max-tokens",
        type=from_1,
        metavar="N",
        help="longest response (default: 1024, or what the context leaves)",
    )
    group.add_argument("--samples", type=from_1, default=1, metavar="N", help="responses to each prompt (default: 1)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    group.add_argument("--batch", type=from_1, default=64, metavar="N", help="prompts sampled together (default: 64)")


def _where(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> None:
    out_argument(group, None, "default: results/evaluations/DATA-MODEL-HASH, with a hash of the settings", "-o")
    group.add_argument("--examples", type=int, default=3, metavar="N", help="of each category (default: 3)")
    shown = parser.add_mutually_exclusive_group()
    quiet_argument(shown, "with the rewards")
    json_argument(shown)


def engine_arguments(group: argparse._ActionsContainer) -> None:
    """Add what samples, and how it computes."""
    group.add_argument("--engine", type=_engine, metavar="{native,vllm}", default="native", help="default: native")
    group.add_argument(
        "--precision", choices=("float32", "bfloat16", "float16"), default="float32", help="default: float32"
    )


def _engine(name: str) -> str:
    if name not in ENGINES:
        why = WHY_NOT.get(name, "there is no such engine")
        raise argparse.ArgumentTypeError(f"{name!r}: {why}; take {' or '.join(ENGINES)}")
    return name
