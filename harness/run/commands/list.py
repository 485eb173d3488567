"""``python -m harness list``: show the available scenarios, by the question that they answer."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.arguments import json_argument
from harness.core.errors import UserError
from harness.core.terminal_text import plain, plain_lines

EXAMPLES = """examples:
  python -m harness list
  python -m harness list replay

Minutes are those of all runs on two CPU cores, as the simulator has them, with the start of each; a warm start comes on
top, once.
"""
QUESTIONS = (
    "First steps",
    "How often to train on a rollout batch?",
    "What does lag gain, and what does it cost?",
    "Does replay pay?",
    "How should weights move?",
    "Which loss, which advantage?",
    "How far may the policy drift, and how fast may it learn?",
    "What does a Learner of several ranks bring?",
    "Maths with a Hugging Face model",
    "vLLM as the engine",
    "How does another trainer compare?",
    "How large a machine? (for `simulate`)",
)
"""The questions of the scenarios that come with the project, in the order in which they are shown."""
EXAMINATION = "Examinations of the project itself"
"""Of scenarios that are shown last: `calibrate` runs three, and `noise` shows a machine's noise."""
YOURS = "Yours"
FIRST = "quickstart"
"""The first run to make, and the first of its question."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list: minutes are those of all its runs."""

    question: str
    name: str
    description: str
    minutes: int | None
    needs: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("words", metavar="WORD", nargs="*", help="show those whose name, question or line contains it")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print a table of them; return 2 if one does not load."""
    every, broken = scenarios()
    words = [word.lower() for word in options.words]
    shown = [
        item
        for item in every
        if all(word in " ".join((item.question, item.name, item.description, item.needs)).lower() for word in words)
    ]
    if options.json:
        print(json.dumps([asdict(item) for item in shown], indent=2))
    elif shown:
        _print(shown)
    elif words and not broken:
        raise UserError(f"no scenario has {' and '.join(words)} in its name, question or line", None, "list shows all")
    if broken:
        print(plain_lines("\n".join(broken)), file=sys.stderr, flush=True)
    return 2 if broken else 0


def scenarios() -> tuple[list[Listed], list[str]]:
    """Return the scenarios in the order of the questions, a person's own first; and what is wrong with the others.

    Raises:
        UserError: there are none.
    """
    from harness.core.named_files import SCENARIOS

    files = SCENARIOS.files()
    if not files:
        folders = " and ".join(str(folder) for folder in SCENARIOS.folders())
        raise UserError("there are no scenarios", folders, "write one: scenarios/NAME.yaml")
    order = [YOURS, *QUESTIONS, EXAMINATION]
    listed, broken = list[Listed](), list[str]()
    for path in files:
        try:
            item = _listed(path, path.parent.resolve() == SCENARIOS.shipped)
        except UserError as error:
            broken.append(f"error: {path} does not load\n{error}")
            continue
        listed.append(item)
    return sorted(listed, key=lambda item: (order.index(item.question), item.name != FIRST, item.name)), broken


def _listed(path: Path, is_shipped: bool) -> Listed:
    from harness.run.needs import needs_of
    from harness.scenario.axes import expand
    from harness.scenario.load import load_scenario

    scenario = load_scenario(path)
    runs = (variant.scenario for variant in expand(scenario))
    needs = dict.fromkeys(
        need.name for run in runs for need in needs_of(run, lambda package: True, lambda: 0, lambda: 4096)
    )
    question = scenario.question if is_shipped and scenario.question in (*QUESTIONS, EXAMINATION) else YOURS
    line = scenario.description.strip().split("\n")[0]
    return Listed(question, path.stem, line, scenario.minutes, ", ".join(needs))


def _print(shown: list[Listed]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from harness.report.console import Output

    console, question = Output(), ""
    width = max(len(item.name) for item in shown)
    is_narrow = console.width < width + 40
    for item in shown:
        if item.question != question:
            console.print(Text(("\n" if question else "") + item.question, style="bold"))
            question = item.question
        line = Table.grid(padding=(0, 2))
        line.add_column(min_width=width + 2, no_wrap=True)
        line.add_column(min_width=6, justify="right", no_wrap=True)
        line.add_column()
        said = Text(plain(item.description))
        if item.needs:
            said.append(f" (needs {item.needs})", style="dim")
        facts = Text(f"  {plain(item.name)}"), Text("" if item.minutes is None else f"{item.minutes} min")
        line.add_row(*facts, *(() if is_narrow else (said,)))
        console.print(line)
        if is_narrow:
            console.print(Padding(said, (0, 0, 0, 4)))
