"""The commands, in one table: each is a module with ``add_arguments(parser)`` and ``run(options) -> exit code``.

Only the module of the command that was typed is imported, and heavy imports happen inside ``run``, so that help and
refusals come at once. Exit codes: 0 fine; 1 the run had to stop; 2 bad input or usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from harness import __version__
from harness.core.allocator import keep_freed_memory
from harness.core.arguments import Parser
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.extras import EXTRA_OF, as_typed, how_to_install, program
from harness.core.interrupts import signals_as_interrupts
from harness.core.removed import INSTEAD, removed
from harness.core.terminal_text import plain_lines, silence_output, write_what_can_be_written

if TYPE_CHECKING:
    from harness.run.commands.arguments import RunScenario

COMMANDS = {
    "run": (
        "harness.run.commands.run",
        "run a scenario and compare its arms",
        "run sync_k --set steps=20 --set model.preset=tiny --out results",
    ),
    "bench": (
        "harness.run.commands.run",
        "run scenarios as arms in blocks, for a verdict",
        "bench sync_k1 sync_k2 --blocks 10 --again --set steps=12",
    ),
    "validate": (
        "harness.run.commands.validate",
        "check a scenario without running it",
        "validate scenarios/sync_k.yaml --set group_size=4",
    ),
    "list": ("harness.run.commands.list", "show the available scenarios", "list"),
    "compare": ("harness.report.compare_command", "compare results", "compare results/"),
    "report": ("harness.report.report_command", "write results as one HTML page", "report results/ -o report.html"),
    "trace": ("harness.report.trace_command", "write a run as a Perfetto trace", "trace results/reference/async_lag1"),
    "oracle": (
        "harness.oracle.command",
        "make a kept step again, here and by other trainers' losses",
        "oracle RUN_FOLDER --step 3 --against trl,verl",
    ),
    "sweep": ("harness.run.commands.run", "run or continue a sweep, point by point", "sweep learning_rates --status"),
    "evaluate": (
        "harness.evaluate.command",
        "sample a data set once and sort the answers",
        "evaluate --model DIR --data test.jsonl",
    ),
    "dataset": (
        "harness.evaluate.dataset_command",
        "have a model write a data set",
        "dataset keywords --model DIR --out data/keywords",
    ),
    "calibrate": (
        "harness.simulate.calibrate.command",
        "measure what the stages cost on this machine",
        "calibrate --name my-machine",
    ),
    "simulate": (
        "harness.simulate.command",
        "predict a run, or thousands of them, from a machine profile",
        "simulate async_lag_sweep --machine cpu-2-cores --arm lag1",
    ),
    "whatif": (
        "harness.simulate.whatif.command",
        "replay a recorded run with one thing changed",
        "whatif results/reference/async_lag1 --run lag1,block=00 --scale update=0.5",
    ),
    "record": (
        "harness.run.commands.record",
        "record where the time of another trainer's run goes",
        "record --trainer trl -- python train_grpo.py",
    ),
    "import": (
        "harness.results.import_command",
        "read the metric log of another trainer",
        "import trl LOG",
    ),
    "doctor": ("harness.run.commands.doctor", "say what works here, and what each part needs", "doctor"),
    "gpu-check": (
        "harness.gpu_check.command",
        "check a machine with a GPU: numbers, speeds, whole runs",
        "gpu-check --phase probe --phase parity",
    ),
}
"""Module, purpose and example of each command; ``bench`` and ``sweep`` are short names of ``run``."""
DOORS = {
    "I have a run of my own trainer": ("record", "import", "oracle"),
    "I want to run an experiment": ("list", "validate", "run", "bench", "sweep", "evaluate", "dataset"),
    "I want to know before I buy": ("simulate", "whatif", "calibrate"),
    "What was measured": ("compare", "report", "trace"),
    "This machine": ("doctor", "gpu-check"),
}
"""The commands by what a person comes with."""


def main(argv: Sequence[str] | None = None, run_scenario: RunScenario | None = None) -> int:
    """Carry out one command line and return its exit code.

    Args:
        argv: the arguments after the program's name; None takes the process's own.
        run_scenario: what ``run`` and ``bench`` call; None takes ``harness.run.experiment.run_scenario``.
    """
    if argv is not None:
        return carry_out(lambda: _dispatch(list(argv), run_scenario))
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what can follow what is typed
        from harness.completion import complete

        words = os.environ["COMP_LINE"].split()[int(os.environ["_ARGCOMPLETE"]) :]
        complete(_overview(in_full=words[0] if words else None))
    keep_freed_memory()
    with signals_as_interrupts():
        return carry_out(lambda: _dispatch(sys.argv[1:], run_scenario))


def carry_out(command: Callable[[], int]) -> int:
    """Call a command and return its exit code; what it raises is told in a line on standard error."""
    write_what_can_be_written()
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # not the line of code that gave it
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
        exec("")  # else `python -m` ends by SIGINT, where a module's own exec, as a dataclass's, was interrupted
        return _say(f"interrupted: {error}" if str(error) else "interrupted", 130)
    except BrokenPipeError:
        silence_output()
        return 0
    except Exception as error:
        if (limit := _limit_met(error)) is not None:
            return _say(f"error: {limit}", 2)
        package = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else ""
        if package in EXTRA_OF:
            fix = how_to_install(EXTRA_OF[package])
            return _say(f"error: {UserError(f'this needs {package}, which is not installed', sys.executable, fix)}", 2)
        traceback.print_exc()
        return _say("this is a bug in the harness, not in what you typed: please report it with the lines above", 1)


_LIMITS = (
    (errno.ENOMEM, "memory", "ulimit -v", ("allocate memory", "failed to map segment", "bad_alloc")),
    (errno.EMFILE, "open files", "ulimit -n", ("too many open files",)),
    (errno.ENFILE, "open files", "sysctl fs.file-max", ()),
    (errno.EAGAIN, "processes and threads", "ulimit -u", ("start new thread", "resource temporarily unavailable")),
    (errno.ENOSPC, "disk space", "df", ()),
    (errno.EDQUOT, "disk space", "quota", ()),
)
"""What the machine does not give more of: the error's number, a name, what shows the bound, and words of errors without
a number."""


def _limit_met(error: Exception) -> UserError | None:
    """Return an error that names the limit of the machine or the shell that was met; None: it is none of them."""
    text = str(error).lower()
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    by_number = [limit for limit in _LIMITS if limit[0] == number]
    for _, what, shown_by, _ in by_number or [limit for limit in _LIMITS if any(word in text for word in limit[3])]:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return UserError(
            f"this machine, or a limit of this shell, gives no more {what}: {reason}",
            getattr(error, "filename", None),
            f"see what `{shown_by}` allows, and what else is running",
        )
    return None


def _dispatch(arguments: list[str], run_scenario: RunScenario | None) -> int:
    if not arguments:
        _overview().print_help(sys.stderr)
        return 2
    if arguments[0] not in COMMANDS:
        if not arguments[0].startswith("-"):
            raise _no_command(arguments[0])
        _overview().parse_args(arguments)  # --help, --version
        return 2
    name, typed = arguments[0], arguments[1:]
    parser = command_parser(name)
    module: Any = importlib.import_module(COMMANDS[name][0])
    for word in typed:  # before anything else is found missing
        option = word.partition("=")[0]
        old = next((old for old in (f"{name} {option}", option) if old in INSTEAD), None)
        if old is not None and option.startswith("-") and option not in parser._option_string_actions:
            raise removed(old, option)
    given = argparse.Namespace(command=name, typed=typed, run_scenario=run_scenario)
    options, unknown = parser.parse_known_args(typed, given)
    if unknown:
        raise _unknown_argument(parser, typed, unknown)
    code: int = module.run(options)
    return code


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command: the one that reads what is typed, and that the reference pages are made from."""
    where, purpose, example = COMMANDS[name]
    module: Any = importlib.import_module(where)

    def said(what: str, usual: str) -> str:
        text = getattr(module, what, usual)
        return str(text[name] if isinstance(text, dict) else text)

    parser = Parser(
        prog=f"{program()} {name}",
        description=as_typed(said("DESCRIPTION", purpose[0].upper() + purpose[1:] + ".")),
        epilog=as_typed(said("EXAMPLES", f"example:\n  python -m harness {example}")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def _no_command(name: str) -> UserError:
    if name in INSTEAD:
        return removed(name, name)
    close = get_close_matches(name, COMMANDS, 1)
    guess = f"did you mean {close[0]}? " if close else ""
    return UserError(f"there is no command {name!r}", None, f"{guess}the commands are {', '.join(COMMANDS)}")


def _unknown_argument(parser: argparse.ArgumentParser, typed: Sequence[str], unknown: Sequence[str]) -> UserError:
    """Return the error for arguments that a command does not have: with the setting or the option that is meant."""
    first = unknown[0]
    option, _, value = first.partition("=")
    takes_settings = "--set" in parser._option_string_actions
    fix = f"{parser.prog} --help shows what there is"
    if first.startswith("-"):
        if option == "--from" and parser.prog.endswith(" whatif"):
            run = value or [*typed, "RUN"][typed.index(first) + 1]
            return UserError(f"{parser.prog} takes no '--from'", None, f"name the run alone: {parser.prog} {run}")
        close = get_close_matches(option, parser._option_string_actions, 1)
        value = value or next((word for word in unknown[1:2] if not word.startswith("-")), "VALUE")
        meant = _meant(option.lstrip("-"), value, guess=not close) if takes_settings else None
        fix = meant or (f"did you mean {close[0]}?" if close else fix)
    elif takes_settings:
        before = typed[typed.index(first) - 1] if first in typed[1:] else ""
        if "=" in first:
            fix = f"a setting is changed with --set {first}"
        elif "--set" in typed and before and "=" not in before and typed[typed.index(before) - 1] == "--set":
            fix = f"write it as one: --set {before}={first}"
    return UserError(f"{parser.prog} takes no {first!r}", None, fix)


def _meant(word: str, value: str, guess: bool) -> str | None:
    """Say how a word typed as an option is set to a value; None where it resembles no setting, in spelling or not."""
    from harness.scenario.foreign_names import AS_A_SWITCH, NOT_OFFERED, leaf_of, setting_called, settings_ending_in
    from harness.scenario.keys import dotted_keys
    from harness.scenario.schema import Scenario

    keys, leaf = list(dotted_keys(Scenario)), leaf_of(word)
    if leaf in NOT_OFFERED:
        return NOT_OFFERED[leaf]
    several = [] if word in keys else settings_ending_in(word, keys)
    if len(several) > 1:
        return f"a setting is changed with --set KEY={value}; KEY is one of {', '.join(several)}"
    if setting := setting_called(word, keys, similar=False):
        return f"a setting is changed with --set {setting}={AS_A_SWITCH.get(leaf, value)}"
    setting = setting_called(word, keys) if guess and word else None
    return f"did you mean --set {setting}=VALUE?" if setting else None


def _overview(in_full: str | None = None) -> argparse.ArgumentParser:
    """Return the parser that lists the commands, without importing any but that one which is to take its arguments."""
    width = max(map(len, COMMANDS)) + 2
    doors = [
        "\n".join([f"{door}:", *(f"  {name:<{width}}{COMMANDS[name][1]}" for name in names)])
        for door, names in DOORS.items()
    ]
    examples = "examples:\n  python -m harness run quickstart\n  python -m harness compare results/"
    parser = Parser(
        prog=program(),
        description="Where does the time of a GRPO step go, and what would a change of settings or machines do to it?",
        epilog="\n\n".join([*doors, as_typed(examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"grpo-harness {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = commands.add_parser(name, add_help=name == in_full)
        if name == in_full:
            importlib.import_module(COMMANDS[name][0]).add_arguments(command)
    return parser


def _say(message: str, code: int) -> int:
    print(plain_lines(as_typed(message)), file=sys.stderr, flush=True)
    return code
