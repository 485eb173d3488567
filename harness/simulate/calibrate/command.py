"""``python -m harness calibrate``: its arguments, and the way from them to a profile's file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.arguments import file_argument, from_1, out_argument, quiet_argument, set_argument
from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

    RunScenario = Callable[[Scenario, Path, bool], Path]
    """Runs a scenario into a results folder, quietly or not, and returns the experiment's folder."""
    MeasureCollectives = Callable[[Path, int], Path]
    """Measures collectives between so many ranks into a results folder, and returns their folder."""

DESCRIPTION = "Learn what the stages of a training step cost on a machine, and write its profile."
EXAMPLES = """\
examples:
  python -m harness calibrate --name my-machine
  python -m harness calibrate --name my-machine --set model.precision=bfloat16 --set engine.precision=bfloat16
  python -m harness calibrate --name my-machine --from results/calibration results/transport_sweep

Without --from collectives between ranks are measured first, the runs of scenarios/calibration.yaml,
scenarios/calibration_ranks.yaml and scenarios/calibration_checkpoints.yaml are made, and a short transport sweep (about
a quarter of an hour on two cores; leave the machine alone meanwhile); their results stay. They
compute in float32, unless --set says otherwise. With --from one profile is fitted to the runs of several such commands.
docs/calibrating.md says what the profile holds.
"""
FLOAT32 = ("model.precision=float32", "engine.precision=float32")
"""Unless others are typed: a CPU without AVX-512 BF16 is many times slower in bfloat16."""
SCENARIOS = ("calibration", "calibration_ranks")
CHECKPOINTS = (
    "calibration_checkpoints",
    tuple(
        (f"model={{preset: {preset}, warm_start: false}}", f"checkpoint.asynchronous={asynchronous}")
        for preset in ("small", "course")
        for asynchronous in ("false", "true")
    ),
)
"""A run that makes checkpoints has no arms: each is one of its own."""
SWEEP = (
    "transport_sweep",
    ("transport_sweep.megabytes=[1,10,50]", "transport_sweep.receivers=[1]", "transport_sweep.repeats=5"),
)
"""A shorter sweep than the scenario's own: transports that no calibration run has."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("--name", default="my-machine", help="of the profile (default: my-machine)")
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        default=[],
        metavar="RESULTS",
        help="folders with runs to fit instead of measuring: calibration runs, transport sweeps",
    )
    file_argument(parser, None, "the profile (default: profiles/machines/NAME.yaml)")
    parser.add_argument("--force", action="store_true", help="replace an existing profile")
    out_argument(parser, Path("results"), "results folder of the measured runs (default: results)")
    set_argument(parser, "; of the measured runs")
    parser.add_argument(
        "--ranks", type=from_1, default=2, metavar="N", help="between which collectives are measured (default: 2)"
    )
    quiet_argument(parser, "with the profile")


def run(
    options: argparse.Namespace, run_scenario: RunScenario | None = None, measure: MeasureCollectives | None = None
) -> int:
    """Carry out the command.

    Args:
        options: as parsed.
        run_scenario: makes the runs where none are named; None takes ``harness.run.experiment.run_scenario``.
        measure: measures collectives then; None takes ``measured_collectives``.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the name or file cannot be used, or the runs cannot be fitted.
    """
    from harness.core.terminal_text import plain
    from harness.report.console import Output
    from harness.report.terminal import print_table
    from harness.simulate.calibrate.exchange import find_collectives
    from harness.simulate.calibrate.fit import fit
    from harness.simulate.calibrate.observations import find_sources
    from harness.simulate.calibrate.quality import cost_table, fit_table
    from harness.simulate.machine import save_machine

    path = _path(options)
    if options.sources and options.set:
        what = "--set changes runs that are measured, and --from names runs that were"
        raise UserError(what, "--set", "leave one of them out")
    sources = options.sources or _measure(options, run_scenario or _really_run, measure or measured_collectives)
    found = fit(find_sources(sources), options.name, collectives=find_collectives(sources))
    save_machine(found.profile, path)
    if options.quiet:
        print(f"profile: {plain(str(path))}")
        return 0
    output = Output()
    print_table(output, cost_table(found.profile))
    print_table(output, fit_table(found.profile, found.observations))
    print(f"\nprofile: {plain(str(path))}")
    return 0


def _path(options: argparse.Namespace) -> Path:
    """Return where the profile goes.

    Raises:
        UserError: the name is none, or a profile is there already.
    """
    if not _NAME.fullmatch(options.name):
        what = f"--name is {options.name!r}, must be letters, digits and . _ + - only, a letter or digit first"
        raise UserError(what, "--name", "--name my-machine")
    from harness.core.named_files import SUFFIXES
    from harness.simulate.machine import FOLDER

    if options.out.suffix in SUFFIXES:
        what = f"--out is {options.out}, which is a file, and measured runs go into a folder"
        raise UserError(what, "--out", f"name the profile with -o {options.out}")
    path: Path = options.output or Path(FOLDER) / f"{options.name}.yaml"
    if path.exists() and not options.force:
        raise UserError(
            f"{path} is there already", str(path), "replace it with --force, or take another --name or -o FILE"
        )
    return path


def _measure(options: argparse.Namespace, run_scenario: RunScenario, measure: MeasureCollectives) -> list[Path]:
    from harness.core.atomic_files import check_writable
    from harness.scenario.load import load_scenario

    check_writable(options.out)
    (sweep, shorter), (checkpointed, variants) = SWEEP, CHECKPOINTS
    settings = [*FLOAT32, *options.set]
    scenarios = [load_scenario(sweep, shorter), *(load_scenario(name, settings) for name in SCENARIOS)]
    scenarios += [load_scenario(checkpointed, [*variant, *settings]) for variant in variants]
    collectives = measure(options.out, options.ranks)
    return [collectives, *(run_scenario(scenario, options.out, options.quiet) for scenario in scenarios)]


def measured_collectives(results: Path, ranks: int = 2) -> Path:
    """Measure the collectives of ranks on this machine and write them into a new folder of the results; return it.

    Ranks are on GPUs where there are as many, else on cores.
    """
    from harness.probes.provenance import machine_facts, package_versions
    from harness.results.writer import utc_now
    from harness.simulate.calibrate.collective_times import measure_collectives
    from harness.simulate.calibrate.exchange import CollectiveTimes, save_collectives

    facts = machine_facts()
    device = "cuda" if len(facts["gpus"] or ()) >= ranks else "cpu"
    times = measure_collectives(ranks, device)
    found = CollectiveTimes(facts["fingerprint"], package_versions(), device, ranks, times)
    return save_collectives(found, results / "collectives" / utc_now().strftime("%Y%m%d-%H%M%S"))


def _really_run(scenario: Scenario, out: Path, quiet: bool) -> Path:
    from harness.run.experiment import run_scenario

    folders: list[Path] = []
    run_scenario(scenario, out, quiet, show=folders.append)
    return folders[-1]
