"""``python -m harness simulate``: its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.core.arguments import from_1, json_argument, out_argument, quiet_argument, set_argument
from harness.core.errors import UserError
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
The runs that are written can be read by compare, report and trace like real ones, and are marked as simulated there.
"""
QUESTIONS = ("generators", "ranks", "gpus", "lag", "transport")
OF_A_SCENARIO = (
    "pilot", "arm", "model", "generators", "allow", "allow_other_versions", "draws", "seed", "sweep", "ask", "steps",
    "processes", "no_run",
)  # fmt: skip
OF_A_REPLAY = ("scale", "error_bound", "output")
ALLOWED = ("engine", "precision", "task", "threads", "transport", "device")


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
    _worlds(parser)
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
    if options.scenario is None or options.machine is None:
        missing = "SCENARIO, or --from RESULTS" if options.scenario is None else "--machine"
        raise UserError(
            f"the following arguments are required: {missing}",
            None,
            "python -m harness simulate --help shows what it takes",
        )
    from harness.simulate.experiment import simulate

    options.out, options.steps = options.out or Path("results/simulated"), options.steps or 12
    simulate(options)
    return 0


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str, fix: str) -> None:
    """Refuse the first of these options that was given."""
    for name in names:
        if getattr(options, name):
            option = "-o" if name == "output" else f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is given {why}", option, fix)


def _changes(parser: argparse.ArgumentParser) -> None:
    set_argument(parser)
    parser.add_argument("--arm", metavar="NAME", help="simulate this arm alone")
    parser.add_argument("--model", metavar="NAME", help="train a preset (small, course), or a public size such as 7b")
    parser.add_argument("--generators", type=from_1, metavar="N", help="as --set placement.generator.count=N")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=ALLOWED,
        help="take the profile's costs although the scenario differs from all of them in this; may be repeated",
    )
    parser.add_argument(
        "--allow-other-versions",
        action="store_true",
        help="accept this machine's profile although it was measured with other package versions",
    )


def _worlds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draws",
        type=from_1,
        metavar="N",
        help="simulated runs behind an interval (default: 39; of a sweep 19, of more than 150 points 7)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the simulated runs (default: 0)")


def _sweeps(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--steps", type=from_1, metavar="N", help="training steps of a point of a sweep (default: 12)")
    parser.add_argument("--processes", type=from_1, metavar="N", help="for a sweep (default: as many as cores)")


def _output(parser: argparse.ArgumentParser) -> None:
    out_argument(parser, None, "default: results/simulated; of a replay, none")
    parser.add_argument("--no-run", action="store_true", help="write no runs, only print")
    shown = parser.add_mutually_exclusive_group()
    quiet_argument(shown, "with the seconds of a step of each run")
    json_argument(shown)
