"""``python -m harness bench``: run scenarios as arms in blocks, for a verdict."""

from __future__ import annotations

import argparse
import shlex

from harness.core.arguments import set_argument
from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.run.commands.arguments import dry_run_argument, output_arguments, run_scenario_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "scenarios",
        metavar="SCENARIO",
        nargs="+",
        help="the baseline, then what is compared with it; one alone compares its arms",
    )
    parser.add_argument(
        "--blocks", type=int, metavar="N", help="greatest number of blocks (default: the scenario's, or 10)"
    )
    parser.add_argument("--again", action="store_true", help="run the baseline twice in each block: the noise floor")
    parser.add_argument(
        "--stop-at-half-width",
        metavar="SHARE",
        help="stop once all intervals of step time are this narrow, such as 1%%",
    )
    set_argument(parser)
    dry_run_argument(parser)
    output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the scenarios side by side; return the exit code."""
    from harness.compare.gates import read_limit
    from harness.core.named_files import SCENARIOS
    from harness.scenario.axes import expand
    from harness.scenario.load import load_side_by_side

    settings: dict[str, float] = {} if options.blocks is None else {"blocks": options.blocks}
    if options.stop_at_half_width is not None:
        settings["stop_at_half_width"] = read_limit(options.stop_at_half_width, "--stop-at-half-width")
    scenario = load_side_by_side(options.scenarios, options.set, settings, options.again)
    if len({variant.label for variant in expand(scenario)}) < 2:
        again = f"python -m harness bench {shlex.join(options.typed)} --again"
        fix = f"compare it with a second copy of itself, the noise floor: {again}; or `run` it"
        what = f"{scenario.name} is a single arm, so nothing would be compared"
        raise UserError(what, f"bench {SCENARIOS.typed(scenario.name)}", fix)
    check_writable(options.out)
    return run_scenario_of(options)(scenario, options.out, options.quiet)
