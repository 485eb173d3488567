"""The commands, in one table: each is a module with ``add_arguments(parser)`` and ``run(options) -> exit code``.

Only the module of the command that was typed is imported, and heavy imports happen inside ``run``, so that help and
refusals come at once. Exit codes: 0 fine; 1 the run had to stop; 2 bad input or usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import __version__
from harness.core.allocator import keep_freed_memory
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.terminal_text import plain_lines, silence_output

if TYPE_CHECKING:
    from harness.run.commands.arguments import RunScenario

COMMANDS = {
    "run": (
        "harness.run.commands.run",
        "run a scenario and compare its arms",
        "run sync_k --set steps=20 --set model.preset=tiny --out results",
    ),
    "bench": (
        "harness.run.commands.bench",
        "run scenarios as arms in blocks, and come to a verdict",
        "bench sync_k1 sync_k2 --blocks 10 --again --set steps=12",
    ),
    "validate": (
        "harness.run.commands.validate",
        "check a scenario without running it",
        "validate scenarios/sync_k.yaml --set group_size=4",
    ),
    "list": ("harness.run.commands.list", "show the scenarios there are", "list"),
    "schema": ("harness.run.commands.schema", "print the JSON schema for editors", "schema > scenario.schema.json"),
    "compare": ("harness.report.compare_command", "compare results (as python -m harness.compare)", "compare results/"),
    "baseline": (
        "harness.run.commands.baseline",
        "record on several occasions what later runs are set against",
        "baseline record main noise --occasions 5 --every 60",
    ),
    "report": ("harness.report.report_command", "write results as one HTML page", "report results/ -o report.html"),
    "trace": ("harness.report.trace_command", "write a run as a Perfetto trace", "trace results/reference/async_lag1"),
    "recompute": (
        "harness.run.commands.recompute",
        "make a training step that a run has kept once more, and compare",
        "recompute RUN_FOLDER --step 3",
    ),
    "sweep": ("harness.run.commands.sweep", "run or continue a sweep, point by point", "sweep learning_rates"),
    "evaluate": (
        "harness.evaluate.command",
        "sample a data set once and sort the answers",
        "evaluate --model DIR --data test.jsonl",
    ),
    "dataset": (
        "harness.evaluate.dataset_command",
        "have a model write a data set",
        "dataset keywords --model DIR -o data/keywords",
    ),
    "calibrate": (
        "harness.simulate.calibrate.command",
        "learn what the stages cost on this machine",
        "calibrate --name my-machine",
    ),
    "simulate": (
        "harness.simulate.command",
        "predict a run, or thousands of them, from a machine profile",
        "simulate async_lag1 --machine cpu-2-cores --arm lag1",
    ),
    "whatif": (
        "harness.simulate.whatif.command",
        "replay a recorded run with one thing changed",
        "whatif results/reference/async_lag1 --scale update=0.5",
    ),
    "import": (
        "harness.results.import_command",
        "read the metric log of another trainer",
        "import trl LOG -o results/",
    ),
}
"""Module, purpose and example of each command."""
PART_OF = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "google"), "train"),
    "ray": "ray",
    "nixl": "nixl",
    "vllm": "vllm",
}
"""The extra of pyproject.toml that brings a package without which a command cannot go on."""


def main(argv: Sequence[str] | None = None, run_scenario: RunScenario | None = None) -> int:
    """Carry out one command line and return its exit code.

    Args:
        argv: the arguments after the program's name; None takes the process's own.
        run_scenario: what ``run`` and ``bench`` call; None takes ``harness.run.experiment.run_scenario``.
    """
    if argv is None:
        keep_freed_memory()
    return carry_out(lambda: _dispatch(list(sys.argv[1:] if argv is None else argv), run_scenario))


def carry_out(command: Callable[[], int]) -> int:
    """Call a command and return its exit code; what it raises is told in a line on standard error."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse: wrong usage, or --help
        return int(stop.code or 0)
    except UserError as error:
        return _say(f"error: {error}", 2)
    except RunStopped as error:
        return _say(f"stopped: {error}", 1)
    except (Interrupted, KeyboardInterrupt) as error:
        return _say(f"interrupted: {error}" if str(error) else "interrupted", 130)
    except BrokenPipeError:
        silence_output()
        return 0
    except Exception as error:
        package = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else ""
        if package in PART_OF:
            fix = f"pip install 'grpo-harness[{PART_OF[package]}]', or in a checkout: make install"
            return _say(f"error: {UserError(f'this needs {package}, which is not installed', sys.executable, fix)}", 2)
        traceback.print_exc()
        return _say("this is a bug in the harness, not in what you typed: please report it with the lines above", 1)


def _dispatch(arguments: list[str], run_scenario: RunScenario | None) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        parser = _overview()
        if not arguments:
            parser.print_help(sys.stderr)
            return 2
        parser.parse_args(arguments)  # --help, or an unknown command
        return 2
    name, typed = arguments[0], arguments[1:]
    where, purpose, example = COMMANDS[name]
    module: Any = importlib.import_module(where)
    parser = argparse.ArgumentParser(
        prog=f"{_program()} {name}",
        description=getattr(module, "DESCRIPTION", purpose[0].upper() + purpose[1:] + "."),
        epilog=getattr(module, "EXAMPLES", f"example:\n  python -m harness {example}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(typed, argparse.Namespace(typed=typed, run_scenario=run_scenario)))
    return code


def _program() -> str:
    """Return what was typed: the installed command, or the module."""
    return "grpo-harness" if Path(sys.argv[0]).name == "grpo-harness" else "python -m harness"


def _overview() -> argparse.ArgumentParser:
    """Return the parser that lists the commands, without importing any."""
    parser = argparse.ArgumentParser(
        prog=_program(),
        description="Benchmark and simulate GRPO post-training: run a scenario, look at what it cost and gained.",
        epilog="example:\n  python -m harness run quickstart\n  python -m harness compare results/",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"grpo-harness {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, purpose, _) in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    return parser


def _say(message: str, code: int) -> int:
    print(plain_lines(message), file=sys.stderr, flush=True)
    return code
