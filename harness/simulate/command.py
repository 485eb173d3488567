"""``python -m harness simulate``: its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.core.arguments import from_1, json_argument, out_argument, quiet_argument, set_argument
from harness.core.errors import UserError
from harness.core.named_files import SCENARIOS
from harness.simulate.whatif import command as from_run

DESCRIPTION = "Predict what a run would take on a machine: step time, throughput, idle lanes, lag and waste."
EXAMPLES = """\
examples:
  python -m harness simulate async_lag_sweep --machine cpu-2-cores --arm lag1
  python -m harness simulate async_lag_sweep --machine cpu-2-cores --arm lag1 --sweep lag=1..3 --sweep group_size=4,8
  python -m harness simulate sync_k1 --machine cpu-2-cores --set transport.type=nixl --ask generators
  python -m harness simulate --from results/reference/paced_overlap --run sync --set max_lag=1
  python -m harness simulate async_lag_sweep --machine cpu-2-cores --arm lag1 --from RUN

Nothing is run: the training loop goes through the scenario on a virtual clock, and a machine profile says how long each
stage takes. `python -m harness calibrate` makes a profile of this machine. With --from and no scenario a recorded run
is replayed with its own times and a change; with both, the profile is brought to the speed that the run had, so that
seconds are those of that day. Without a run of this machine seconds are ranges, and ratios between runs the result.
With --out simulated runs are written, which compare, report and trace read like real ones and mark as simulated. A
point of a sweep makes 12 training steps, or as many as --set steps=N says.
"""
QUESTIONS = ("generators", "ranks", "gpus", "lag", "transport")
OF_A_SCENARIO = ("pilot", "arm", "allow", "draws", "sweep", "ask")
OF_A_REPLAY = ("scale",)
VERSIONS = "versions"
ALLOWED = ("engine", "precision", "task", "threads", "transport", "device", VERSIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="a YAML file, or a name that `list` shows")
    parser.add_argument("--machine", metavar="PROFILE", help="a YAML file, or the name of one in profiles/machines")
    group = parser.add_argument_group("starting from a recorded run")
    group.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="RESULTS",
        help="a run's folder, or one with the runs of a scenario: it is replayed with a change; beside a SCENARIO, the "
        "profile is brought to the speed that the run had (default: the newest run of this machine in results; none: "
        "take no run)",
    )
    group.add_argument(
        "--pilot",
        type=from_1,
        metavar="N",
        help="run so many steps of the scenario (of its first arm, or --arm) now, and start from them",
    )
    from_run.add_own_arguments(group)
    _changes(parser)
    _sweeps(parser)
    _output(parser)


def run(options: argparse.Namespace) -> int:
    """Print forecasts and write simulated runs, or sweep, or replay a recorded run; return the exit code."""
    if options.source is not None and options.scenario is None:
        _refuse(options, OF_A_SCENARIO, "and no SCENARIO", "name one, or change the run with --set and --scale")
        return from_run.run(options)
    if options.source is None:
        _refuse(options, ("run", *OF_A_REPLAY), "and no --from", "name a recorded run: simulate --from RESULTS")
    _refuse(options, OF_A_REPLAY, "and a SCENARIO", "leave the scenario out: the run is replayed then")
    if options.scenario is None:
        what = "the following arguments are required: SCENARIO, or --from RESULTS"
        raise UserError(what, None, "name one that `python -m harness list` shows, or the folder of a recorded run")
    SCENARIOS.find(options.scenario)
    if options.machine is None:
        from harness.simulate.machine import MACHINES

        profiles = ", ".join(path.stem for path in MACHINES.files())
        what, mine = "the following arguments are required: --machine", "`python -m harness calibrate` makes yours"
        raise UserError(what, None, f"name a profile: {profiles}; {mine}")
    from harness.simulate.experiment import simulate

    simulate(options)
    return 0


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str, fix: str) -> None:
    """Refuse the first of these options that was given."""
    for name in names:
        if getattr(options, name):
            raise UserError(f"--{name} is given {why}", f"--{name}", fix)


def _changes(parser: argparse.ArgumentParser) -> None:
    set_argument(parser)
    parser.add_argument("--arm", metavar="NAME", help="simulate this arm alone")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=ALLOWED,
        help="take the profile's costs although the scenario differs from all of them in this, or this machine's "
        "package versions from those it was measured with; may be repeated",
    )


def _sweeps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draws",
        type=from_1,
        metavar="N",
        help="simulated runs behind an interval (default: 39; of a sweep 19, of more than 150 points 7)",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="an axis: KEY=1..64 or KEY=a,b,c; every combination is simulated. Beside dotted keys there are "
        "generators, ranks, sharding, gpus with learner_share, lag, transport and model; the first axis is the "
        "picture's x axis",
    )
    parser.add_argument(
        "--ask",
        choices=QUESTIONS,
        help="a predefined first axis: how many, or which; gpus: how many, "
        "which part of them ranks, and how these share",
    )


def _output(parser: argparse.ArgumentParser) -> None:
    out_argument(parser, None, "write simulated runs here, of a replay both with a picture (default: none); the points "
                 "of a sweep (default: results/simulated)")  # fmt: skip
    shown = parser.add_mutually_exclusive_group()
    quiet_argument(shown, "with the seconds of a step of each run")
    json_argument(shown)
