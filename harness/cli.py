"""The commands: ``python -m harness run | bench | validate | list | schema | compare | report | trace | import``.

Heavy imports happen inside the commands, so that help and refusals come at once.
Exit codes: 0 fine; 1 the run had to stop; 2 bad input or usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.atomic_files import check_writable
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.terminal_text import plain_lines, silence_output

if TYPE_CHECKING:
    from rich.table import Table

    from harness.scenario import Scenario, Variant

RunCommand = Callable[["Scenario", Path, bool], int]
"""Runs a checked scenario into a results folder; the last argument is whether to keep quiet."""

ELSEWHERE = {
    "compare": ("harness.compare.__main__", "compare results (as python -m harness.compare)", "compare results/"),
    "report": ("harness.report.__main__", "write results as one HTML page", "report results/ -o report.html"),
    "trace": ("harness.report.trace.__main__", "write a run as a Perfetto trace", "trace results/reference/async_lag1"),
    "sweep": ("harness.run.sweep.__main__", "run or continue a sweep, point by point", "sweep learning_rates"),
    "evaluate": (
        "harness.evaluate.__main__",
        "sample a data set once and sort the answers",
        "evaluate --model DIR --data test.jsonl",
    ),
    "dataset": (
        "harness.evaluate.dataset.__main__",
        "have a model write a data set",
        "dataset keywords --model DIR -o data/keywords",
    ),
    "calibrate": (
        "harness.simulate.calibrate.__main__",
        "learn what the stages cost on this machine",
        "calibrate --name my-machine",
    ),
    "simulate": (
        "harness.simulate.__main__",
        "predict a run, or thousands of them, from a machine profile",
        "simulate async_lag1 --machine cpu-2-cores --arm lag1",
    ),
    "whatif": (
        "harness.simulate.whatif.__main__",
        "replay a recorded run with one thing changed",
        "whatif results/reference/async_lag1 --scale update=0.5",
    ),
    "faults": ("tests.faults.__main__", "run the loop through seeded faults", "faults --schedules 10000"),
    "holdout": ("tests.holdout.__main__", "examine the simulator on runs it has not seen", "holdout"),
    "import": (
        "harness.results.importers.__main__",
        "read the metric log of another trainer",
        "import trl LOG -o results/",
    ),
}
"""Commands with a command line of their own: module, purpose, example."""


def main(argv: Sequence[str] | None = None, run_command: RunCommand | None = None) -> int:
    """Carry out one command line and return its exit code.

    Args:
        argv: the arguments after the program's name; None takes the process's own.
        run_command: what ``run`` calls; None takes ``harness.run.command.run_command``.
    """
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv), run_command)
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
    except Exception:
        traceback.print_exc()
        return _say("this is a bug in the harness, not in what you typed: please report it with the lines above", 1)


def _dispatch(arguments: list[str], run_command: RunCommand | None) -> int:
    if arguments[:1] and arguments[0] in ELSEWHERE:
        code: int = importlib.import_module(ELSEWHERE[arguments[0]][0]).main(arguments[1:])
        return code
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    match options.command:
        case "run":
            return _run(options, run_command)
        case "bench":
            return _bench(options, run_command)
        case "validate":
            return _validate(options)
        case "list":
            return _list()
    return _schema()


def _run(options: argparse.Namespace, run_command: RunCommand | None) -> int:
    from harness.scenario import load_scenario

    scenario = load_scenario(options.scenario, options.set)
    check_writable(options.out)
    return (run_command or _real_run_command())(scenario, options.out, options.quiet)


def _bench(options: argparse.Namespace, run_command: RunCommand | None) -> int:
    from harness.scenario import load_side_by_side

    settings: dict[str, float] = {} if options.blocks is None else {"blocks": options.blocks}
    if options.stop_at_half_width is not None:
        settings["stop_at_half_width"] = _share(options.stop_at_half_width)
    scenario = load_side_by_side(options.scenarios, options.set, settings, options.again)
    check_writable(options.out)
    return (run_command or _real_run_command())(scenario, options.out, options.quiet)


def _share(text: str) -> float:
    from harness.compare.gates import read_limit

    return read_limit(text, "--stop-at-half-width")


def _real_run_command() -> RunCommand:
    from harness.run.command import run_command

    return run_command


def _validate(options: argparse.Namespace) -> int:
    from harness.scenario import expand, load_scenario, resolved_yaml

    scenario = load_scenario(options.scenario, options.set)
    if options.resolved:
        print(resolved_yaml(scenario), end="")
        return 0
    variants = expand(scenario)
    if options.memory:
        return _memory(variants)
    if scenario.transport_sweep is not None:
        sweep = scenario.transport_sweep
        kinds = len(sweep.transports) * len(sweep.megabytes) * len(sweep.tensors) * len(sweep.receivers)
        print(f"{scenario.name} is valid: a transport sweep, {kinds:,} kinds of weight sync, {sweep.repeats} of each")
        return 0
    rollouts = sum(variant.scenario.num_rollouts for variant in variants)
    runs = "1 run" if len(variants) == 1 else f"{len(variants)} runs"
    print(f"{scenario.name} is valid: {runs}, {rollouts:,} rollouts with validation")
    for variant in variants if len(variants) > 1 else ():
        print(f"  {variant.name}")
    return 0


def _memory(variants: Sequence[Variant]) -> int:
    from harness.probes.nvml import list_gpus
    from harness.run.memory import memory_table

    has_gpu = bool(list_gpus()[0])
    for variant in variants:
        if not variant.block:
            print("\n".join([f"{variant.label}:", *memory_table(variant.scenario, has_gpu)]))
    return 0


def _list() -> int:
    from rich.console import Console

    from harness.scenario import load_scenario, scenario_files, scenario_folders

    table, broken = _table(), []
    for path in scenario_files():
        try:
            table.add_row(path.stem, *_row(load_scenario(path)))
        except UserError as error:
            broken.append(f"error: {path} does not load\n{error}")
    if not table.row_count and not broken:
        folders = " and ".join(str(folder) for folder in scenario_folders())
        raise UserError("there are no scenarios", folders, "write one: scenarios/NAME.yaml")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return _say("\n".join(broken), 2) if broken else 0


def _table() -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("what it does")
    for name in ("k", "lag", "arms"):
        table.add_column(name)
    table.add_column("rollouts", justify="right", no_wrap=True)
    return table


def _row(scenario: Scenario) -> list[str]:
    from rich.markup import escape

    from harness.scenario import expand

    variants = [variant.scenario for variant in expand(scenario)]
    passes = sorted({variant.epochs_per_batch for variant in variants})
    lags = sorted({variant.max_lag for variant in variants})
    first_line = scenario.description.strip().split("\n")[0]
    if scenario.transport_sweep is not None:
        return [escape(first_line), "-", "-", ", ".join(scenario.transport_sweep.transports), "-"]
    return [
        escape(first_line),
        ", ".join(map(str, passes)),
        ", ".join(map(str, lags)),
        ", ".join(scenario.arms),
        f"{sum(variant.num_rollouts for variant in variants):,}",
    ]


def _schema() -> int:
    import json

    from harness.scenario import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness",
        description="Benchmark and simulate GRPO post-training: run a scenario, look at what it cost and gained.",
        epilog="example:\n  python -m harness run quickstart\n  python -m harness compare results/",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = _command(
        commands,
        "run",
        "run a scenario and compare its arms",
        "python -m harness run sync_k --set steps=20 --set model.preset=tiny --out results",
    )
    _scenario_arguments(run)
    _output_arguments(run)
    bench = _command(
        commands,
        "bench",
        "run scenarios as arms in blocks, and come to a verdict",
        "python -m harness bench sync_k1 sync_k2 --blocks 10 --again --set steps=12",
    )
    bench.add_argument("scenarios", metavar="SCENARIO", nargs="+", help="the baseline, then what is set against it")
    bench.add_argument("--blocks", type=int, metavar="N", help="blocks, at most (default: the scenario's, or 10)")
    bench.add_argument("--again", action="store_true", help="run the baseline twice in each block: the noise floor")
    bench.add_argument(
        "--stop-at-half-width", metavar="SHARE", help="stop once all intervals of step time are within it, such as 1%%"
    )
    _set_argument(bench)
    _output_arguments(bench)
    validate = _command(
        commands,
        "validate",
        "check a scenario without running it",
        "python -m harness validate scenarios/sync_k.yaml --set group_size=4",
    )
    _scenario_arguments(validate)
    validate.add_argument("--resolved", action="store_true", help="print every setting, defaults included")
    validate.add_argument("--memory", action="store_true", help="print what each process would hold in memory")
    _command(commands, "list", "show the scenarios there are", "python -m harness list")
    _command(commands, "schema", "print the JSON schema for editors", "python -m harness schema > scenario.schema.json")
    for name, (_, purpose, arguments) in ELSEWHERE.items():
        _command(commands, name, purpose, f"python -m harness {arguments}")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str, example: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _scenario_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO", help="a YAML file, or a name from `python -m harness list`")
    _set_argument(parser)


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="results folder (default: results)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the final table and errors")


def _set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting: dotted key, YAML value; may be repeated",
    )


def _say(message: str, code: int) -> int:
    print(plain_lines(message), file=sys.stderr, flush=True)
    return code
