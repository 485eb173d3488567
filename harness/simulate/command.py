"""Carries out ``python -m harness simulate``: forecasts of every arm, or a sweep with its picture."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.probes.provenance import package_versions
from harness.report.console import Output, shown_path
from harness.report.text import print_list, print_table
from harness.scenario import Variant
from harness.simulate.axes import axis_of, read_axes
from harness.simulate.bars import counted
from harness.simulate.forecast import DRAWS, forecast
from harness.simulate.learners import with_learners
from harness.simulate.machine import MachineProfile
from harness.simulate.machines import check_versions, load_machine
from harness.simulate.points import Question
from harness.simulate.recording import SimulatedExperiment, draws_of
from harness.simulate.settings import load_for, only_variant, steady, variants_of
from harness.simulate.sweeping import Sweep, draws_for, run_sweep
from harness.simulate.tables import HOW_FAR_OFF, Forecasted, bottleneck, forecast_table, warnings


def simulate(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Carry out one command line; return the exit code.

    Args:
        options: as parsed.
        given: as typed, for what is written beside the results.

    Raises:
        UserError: scenario, profile or options cannot be used.
    """
    check_writable(options.out)
    machine = load_machine(options.machine)
    _check_versions(machine, options.allow_other_versions)
    scenario, added = load_for(options.scenario, machine, options.set, options.model, options.generators)
    output, errors = Output(), Console(stderr=True, highlight=False)
    if added:
        errors.print(Text(f"note: {machine.name} has GPUs, so each part is given one: {', '.join(added)}"))
    if options.sweep or options.ask:
        base = only_variant(scenario, options.arm)
        first = [] if options.ask is None else [axis_of(options.ask, base, machine)]
        axes = read_axes(options.sweep, first)
        draws = options.draws or draws_for(axes)
        settings = steady(base, options.steps)
        question = Question(settings, machine, draws, options.seed, options.learners, tuple(options.allow))
        sweep = Sweep(scenario.name, question, axes, f"python -m harness simulate {shlex.join(given)}")
        run_sweep(sweep, options.out, options.processes, options.quiet, output, errors)
        return 0
    variants = variants_of(scenario, options.arm)
    items = _forecasts(variants, machine, options, errors)
    show_forecasts(items, machine, output)
    if not options.no_run:
        _record(SimulatedExperiment(options.out, scenario, machine, options.allow), variants, options, items, output)
    return 0


def show_forecasts(items: Sequence[Forecasted], machine: MachineProfile, output: Console) -> None:
    """Print how far off forecasts are, the table, what holds each run up, and loudly what was extrapolated."""
    output.print(Text(HOW_FAR_OFF), soft_wrap=True)
    print_table(output, forecast_table(items, machine))
    print_list(output, "What holds it up", [bottleneck(item) for item in items])
    said = warnings(items)
    if said:
        output.print()
    for sentence in said:
        output.print(Text(plain(sentence), style="bold red"))


def _check_versions(machine: MachineProfile, allowed: bool) -> None:
    differing = [] if allowed else check_versions(machine, package_versions())
    if differing:
        what = f"the machine profile {machine.name} was measured with other versions: {'; '.join(differing)}"
        raise UserError(what, "--machine", "calibrate again, or take it all the same with --allow-other-versions")


def _forecasts(
    variants: Sequence[Variant], machine: MachineProfile, options: argparse.Namespace, errors: Console
) -> list[Forecasted]:
    """Forecast each run once; the blocks of a scenario differ in their seed alone."""
    found = []
    for variant in counted([variant for variant in variants if not variant.block], errors, options.quiet):
        own = with_learners(machine, options.learners, variant.scenario)
        predicted = forecast(variant.scenario, own, options.draws or DRAWS, options.seed, allow=options.allow)
        found.append(Forecasted(variant.label, variant.scenario, predicted))
    return found


def _record(
    experiment: SimulatedExperiment,
    variants: Sequence[Variant],
    options: argparse.Namespace,
    items: Sequence[Forecasted],
    output: Console,
) -> None:
    """Write the run of each variant: the central prediction, or in blocks one draw for each."""
    told = {item.label: item.forecast.extrapolating for item in items}
    for variant, draw in zip(variants, draws_of(variants, options.seed), strict=True):
        own = with_learners(experiment.machine, options.learners, variant.scenario)
        facts = {"extrapolating": list(told.get(variant.label, ())), "learners": options.learners}
        experiment.record(variant, own, draw, facts)
    assert experiment.folder is not None
    output.print(Text(f"\nsimulated runs: {plain(shown_path(experiment.folder))}"), soft_wrap=True)
