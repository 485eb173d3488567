"""``python -m harness baseline``: record what later runs are set against, on several occasions."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.core.arguments import from_1, json_argument, out_argument
from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.results.anonymous import safe_name
from harness.run.commands.arguments import output_arguments, run_scenario_of, scenario_arguments

DESCRIPTION = "Record stored baselines for later comparisons. Each run of the scenario is one occasion of the baseline."
EXAMPLES = """examples:
  python -m harness baseline record main noise --occasions 5 --every 60
  python -m harness baseline record main noise          # one more, on another day
  python -m harness baseline add main results/noise/20261121-150000
  python -m harness baseline list
  python -m harness.compare results/ --baseline main --fail-on 5%
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the four things that the command does."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    record = actions.add_parser("record", help="run a scenario and add it as an occasion", allow_abbrev=False)
    _name(record)
    scenario_arguments(record)
    _arm(record)
    record.add_argument("--occasions", type=from_1, default=1, metavar="N", help="how many (default: 1)")
    record.add_argument(
        "--every", type=_minutes, default=0.0, metavar="MINUTES", help="from the start of one to the start of the next"
    )
    output_arguments(record)
    add = actions.add_parser("add", help="add an experiment that has run already", allow_abbrev=False)
    _name(add)
    add.add_argument("experiment", metavar="FOLDER", type=Path, help="the experiment's folder")
    _arm(add)
    _results(add)
    shown = actions.add_parser("list", help="show the stored baselines and which changes they can detect")
    _results(shown)
    json_argument(shown)
    remove = actions.add_parser("remove", help="forget a baseline; its experiments stay", allow_abbrev=False)
    _name(remove)
    _results(remove)


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the baseline")


def _arm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arm", metavar="ARM", help="default: the baseline's, or the first one")


def _results(parser: argparse.ArgumentParser) -> None:
    out_argument(parser, Path("results"), "results folder (default: results)")


def _minutes(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of minutes, 0 or more")
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Record, add, list or remove; return the exit code."""
    from harness.compare.baselines import baseline_figures, baselines_table, remove_baseline

    if options.action == "record":
        return _record(options)
    if options.action == "add":
        _say(add_experiment(options.out, options.name, options.experiment, options.arm))
    elif options.action == "remove":
        occasions = remove_baseline(options.out, options.name)
        _say(f"baseline {options.name!r} with {occasions} occasions is forgotten; its experiments stay")
    else:
        from harness.report.console import Output
        from harness.report.text import print_table

        table = baselines_table(options.out)
        if not table.rows:
            raise UserError(f"no baseline is stored in {str(options.out)!r}", "--out", "baseline record makes one")
        if options.json:
            print(json.dumps(baseline_figures(options.out), indent=2))
        else:
            print_table(Output(), table)
    return 0


def _record(options: argparse.Namespace) -> int:
    from harness.compare.baselines import read_baselines
    from harness.scenario import expand, load_scenario

    scenario = load_scenario(options.scenario, options.set)
    if scenario.transport_sweep is not None:
        raise UserError(f"{scenario.name} is a transport sweep, which has no steps", options.scenario, "take another")
    arms = list(dict.fromkeys(variant.label for variant in expand(scenario)))
    stored = read_baselines(options.out).get(options.name)
    wanted = options.arm or (stored.arm if stored else None)
    if wanted is not None and wanted.replace(", ", ",") not in arms:
        raise UserError(f"{scenario.name} has no arm called {wanted!r}", "--arm", f"it has {', '.join(arms)}")
    check_writable(options.out)
    run_scenario, home = run_scenario_of(options), options.out / safe_name(scenario.name)

    def occasion() -> str:
        before = _folders(home)
        run_scenario(scenario, options.out, options.quiet)
        made = sorted(_folders(home) - before)
        if len(made) != 1:
            what = f"{len(made)} experiments appeared in {str(home)!r} instead of one"
            raise UserError(what, str(home), "let no other command run meanwhile, then: python -m harness baseline add")
        return add_experiment(options.out, options.name, made[0], options.arm)

    Repeated(options.occasions, options.every * 60, _say).run(occasion)
    return 0


def _folders(home: Path) -> set[Path]:
    return set(home.iterdir()) if home.is_dir() else set()


def add_experiment(results: Path, name: str, folder: Path, arm: str | None) -> str:
    """Add an experiment as an occasion of a baseline, and return what that makes of it.

    Raises:
        UserError: it is not one experiment, is not whole, or is unlike the other occasions.
    """
    from harness.compare.baselines import add_occasion, baseline_cautions, load_baseline, occasions_of
    from harness.compare.experiments import gather
    from harness.compare.numbers import number, plural

    experiments, damaged = gather([folder])
    if len(experiments) > 1:
        raise UserError(f"{str(folder)!r} holds {len(experiments)} experiments", str(folder), "name one of them")
    count = add_occasion(results, name, experiments[0], arm, damaged)
    found = occasions_of(load_baseline(results, name))
    text = f"baseline {name!r}: {plural(count, 'occasion')}, {number(found.mean_s)} s per step"
    text += f", sd between occasions {100 * found.spread:.2f}%" if found.spread is not None else ""
    return "\n".join([text, *(f"  {caution}" for caution in baseline_cautions(found))])


@dataclass(frozen=True)
class Repeated:
    """Does something several times, at even distances from start to start, and says when the rest will be done.

    Attributes:
        times: how often.
        every_s: seconds from one start to the next; at once where the last one took longer.
        say: takes each line.
        clock, sleep: of the machine; a test gives its own.
    """

    times: int
    every_s: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def run(self, once: Callable[[], str]) -> None:
        """Do it; ``once`` returns what to say of it."""
        began = self.clock()
        for number in range(self.times):
            due = began + number * self.every_s
            if number and due > self.clock():
                self.say(f"the next one begins at {_time_of_day(due)}")
                self.sleep(due - self.clock())
            started = self.clock()
            self.say(once())
            if self.times > 1:
                self.say(self._progress(number + 1, began, self.clock() - started))

    def _progress(self, done: int, began: float, took_s: float) -> str:
        text, left = f"occasion {done} of {self.times} took {took_s / 60:.1f} min", self.times - done
        if not left:
            return text
        last_start = max(began + (self.times - 1) * self.every_s, self.clock() + (left - 1) * took_s)
        return f"{text}; all will be done at about {_time_of_day(last_start + took_s)}"


def _time_of_day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _say(text: str) -> None:
    print("\n".join(map(plain, text.split("\n"))), file=sys.stderr, flush=True)
