"""``python -m harness simulate``: forecasts of every arm, or a sweep, and simulated runs in the format of real ones.

The runs are written by the same recorder, on the virtual clock. What a simulation does not know is left out: rewards,
losses and gradients. ``Manifest.simulated`` names the profile, and machine and versions are the profile's.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from harness.compare.checkpoints import checkpoint_sentence
from harness.compare.numbers import number
from harness.core.atomic_files import check_writable
from harness.core.errors import UserError
from harness.core.progress import progress_bars
from harness.core.terminal_text import plain
from harness.core.trace import RecordingTracer
from harness.core.types import ScoredBatch
from harness.loop import StepReport
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.report.console import Output, shown_path
from harness.report.terminal import print_list, print_table
from harness.results import Manifest, RunFolder
from harness.results.anonymous import safe_name
from harness.results.recorder import RunRecorder
from harness.results.rows import with_nulls
from harness.results.writer import begin_experiment, timestamp, utc_now
from harness.scenario.axes import Variant
from harness.scenario.load import resolved_yaml
from harness.scenario.schema import Scenario
from harness.simulate.anchor import Anchor, anchored, newest_anchor, pilot
from harness.simulate.clock import run_virtual
from harness.simulate.command import VERSIONS
from harness.simulate.cost_model import Draw
from harness.simulate.forecast import (
    DRAWS,
    HOW_FAR_OFF,
    Forecasted,
    bottleneck,
    checkpoint_cost,
    closed_form,
    forecast,
    forecast_table,
    ratio,
    warnings,
    written,
)
from harness.simulate.machine import MachineProfile, check_versions, load_machine
from harness.simulate.points import (
    Question,
    asked_axes,
    check_gpus_hold,
    facts_of,
    load_for,
    only_variant,
    steady,
    variants_of,
)
from harness.simulate.recorded_run import choose_run
from harness.simulate.simulated_run import ForwardingObserver, build_run
from harness.simulate.sweep import Sweep, draws_for, run_sweep

RESULTS = Path("results")
"""Where runs of this machine are looked for, and a pilot's goes."""
STEPS_OF_A_POINT = 12
SEED = 0
"""Of the simulated worlds."""
LEARNT = ("reward/", "validation/reward", "validation/format_reward", "validation/answer_reward")
"""Metrics that say what was learnt, which a simulation does not know."""


class SimulatedExperiment:
    """The folder of one command's simulated runs, made when the first of them begins.

    Args:
        out: the results folder.
        scenario: names the folder in it.
        machine: the profile.
        allow: see ``harness.simulate.simulated_run.build_run``.

    Attributes:
        machine: the profile.
        folder: of the experiment; None until then.
    """

    def __init__(self, out: Path, scenario: Scenario, machine: MachineProfile, allow: Collection[str] = ()) -> None:
        self._out, self._scenario, self.machine, self._allow = out, scenario, machine, allow
        self._code, self._name = code_state(), ""
        self.folder: Path | None = None

    def record(self, variant: Variant, draw: Draw | None, facts: Mapping[str, Any]) -> Path:
        """Simulate a run and write its folder.

        Args:
            variant: the run.
            draw: one possible world; None is the central prediction, without noise.
            facts: more for the manifest's ``outcome``.

        Returns:
            the run's folder.

        Raises:
            UserError: the profile does not know a stage, or the folder cannot be written.
        """
        with self._open(variant) as folder:
            try:
                recorder = _simulate(variant.scenario, self.machine, draw, folder, self._allow)
            except Exception as error:
                folder.finish("failed", str(error))
                raise
            folder.finish("completed", None, recorder.outcome() | dict(facts))
            return folder.folder

    def _open(self, variant: Variant) -> RunFolder:
        folder = self._make(variant.name or None)
        device = self.machine.device
        folder.write_manifest(
            Manifest(
                scenario=self._scenario.name,
                experiment=self._name,
                started_at=timestamp(utc_now()),
                arm=variant.arm,
                point=variant.point,
                position=variant.position,
                startup_s=0.0,
                seed=variant.scenario.seed,
                interleaving="run" if variant.arm is not None or variant.point else None,
                block=variant.block,
                versions=dict(self.machine.versions),
                machine=facts_of(self.machine),
                commit=self._code.commit,
                dirty=self._code.dirty,
                simulated=self.machine.name,
                threads=None if device.gpus else variant.scenario.model.threads,
            )
        )
        folder.write_scenario(resolved_yaml(variant.scenario))
        return folder

    def _make(self, variant_name: str | None) -> RunFolder:
        if self._name:
            return RunFolder.create(self._out, self._scenario.name, self._name, variant_name)
        folder, self._name = begin_experiment(self._out, self._scenario.name, variant_name)
        self.folder = self._out / safe_name(self._scenario.name) / safe_name(self._name)
        return folder


def _simulate(
    scenario: Scenario, machine: MachineProfile, draw: Draw | None, folder: RunFolder, allow: Collection[str]
) -> RunRecorder:
    async def main(tracer: RecordingTracer) -> RunRecorder:
        built = build_run(scenario, machine, tracer, draw=draw, allow=allow)
        recorder = RunRecorder(folder, tracer, row_listeners=[built.on_row])
        recorder.loop_starts(built.lanes)
        await built.run(WithoutRewards(recorder))
        recorder.loop_ends()
        return recorder

    return run_virtual(main)[0]


class WithoutRewards(ForwardingObserver):
    """Tells an observer everything but the rewards, which the simulated Scorer only makes up."""

    def on_step(self, facts: StepReport) -> None:
        super().on_step(replace(facts, scored=tuple(map(without_rewards, facts.scored))))

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        super().on_evaluation(version, without_rewards(scored))


def without_rewards(scored: ScoredBatch) -> ScoredBatch:
    """Return a scored batch with no rewards in it, neither in its metrics nor with its groups."""
    metrics = {name: metric for name, metric in scored.metrics.items() if not name.startswith(LEARNT)}
    groups = tuple(replace(group, rewards=()) for group in scored.groups)
    return replace(scored, groups=groups, metrics=metrics, examples=())


def draws_of(variants: Sequence[Variant], seed: int) -> list[Draw | None]:
    """Return the world of each run: the central prediction, or for the blocks of a scenario one draw for each block."""
    return [None if variant.block is None else Draw(variant.block + 1, seed) for variant in variants]


def simulate(options: argparse.Namespace) -> None:
    """Carry out one command line.

    Args:
        options: see ``harness.simulate.command``; ``typed`` is written beside the results.

    Raises:
        UserError: scenario, profile or options cannot be used.
    """
    asks = bool(options.sweep or options.ask)
    out: Path | None = options.out or (Path("results/simulated") if asks else None)
    if out is not None:
        check_writable(out)
    machine, caution = load_machine(options.machine), HOW_FAR_OFF
    differing = check_measured_here(machine, VERSIONS in options.allow)
    scenario, added = load_for(options.scenario, machine, options.set)
    anchor = _anchor(machine, scenario, options)
    if anchor is not None:
        machine, caution = anchor.profile, anchor.sentence()
    output, errors = Output(), Console(stderr=True, highlight=False)
    if differing:
        errors.print(Text(f"note: these are seconds with other versions than here: {'; '.join(differing)}"))
    if added:
        errors.print(Text(f"note: {machine.name} has GPUs, so each part is given one: {', '.join(added)}"))
    if asks and out is not None:
        base = only_variant(scenario, options.arm)
        axes = asked_axes(options.ask, base, machine, options.sweep)
        draws = options.draws or draws_for(axes)
        is_set = any(change.partition("=")[0].strip() == "steps" for change in options.set)
        settings = steady(base, base.steps if is_set else STEPS_OF_A_POINT)
        question = Question(settings, machine, draws, SEED, tuple(options.allow))
        sweep = Sweep(scenario.name, question, axes, f"python -m harness simulate {shlex.join(options.typed)}", caution)
        amount: Literal["line", "everything", "json"] = (
            "json" if options.json else "line" if options.quiet else "everything"
        )
        run_sweep(sweep, out, None, options.quiet, output, errors, amount)
        return
    variants = variants_of(scenario, options.arm)
    each = [variant for variant in variants if not variant.block]
    with progress_bars(errors, quiet=options.quiet, transient=True, tenths=True) as bar:
        task, items = bar.add_task("simulating", total=len(each)), list[Forecasted]()
        for variant in each:
            items += forecasts([variant], machine, options.draws or DRAWS, SEED, options.allow)
            bar.advance(task)
    folder = (
        None if out is None else _record(SimulatedExperiment(out, scenario, machine, options.allow), variants, items)
    )
    if options.json:
        told = _told(items, machine, folder) | {"anchor": None if anchor is None else anchor.as_json()}
        print(json.dumps(with_nulls(told), indent=2))
        return
    if options.quiet:
        paces = ", ".join(f"{item.label} {written(item.forecast.step_s, number)} s a step" for item in items)
        print(plain(f"{paces} (simulated, {machine.name}){f': {shown_path(folder)}' if folder else ''}"))
        return
    show_forecasts(items, machine, output, options.allow, caution)
    if folder is not None:
        output.print(Text(f"\nsimulated runs: {plain(shown_path(folder))}"), soft_wrap=True)


def _anchor(machine: MachineProfile, scenario: Scenario, options: argparse.Namespace) -> Anchor | None:
    """Return the profile at the speed of a run: of a pilot, of the one that is named, or of the newest of this machine.

    Raises:
        UserError: a run cannot be made, found or used.
    """
    if options.pilot is not None:
        return anchored(machine, pilot(machine, scenario, options.arm, options.pilot, RESULTS, options.quiet))
    if options.source == Path("none"):
        return None
    if options.source is not None:
        return anchored(machine, choose_run(options.source, options.run))
    return newest_anchor(machine, RESULTS)


def show_forecasts(
    items: Sequence[Forecasted],
    machine: MachineProfile,
    output: Console,
    allow: Collection[str] = (),
    caution: str = HOW_FAR_OFF,
) -> None:
    """Print how far off forecasts are, the table, what holds each run up, and loudly what was extrapolated."""
    output.print(Text(plain(caution)), soft_wrap=True)
    print_table(output, forecast_table(items, machine))
    print_list(output, "What holds it up", [bottleneck(item) for item in items])
    costs = [(item, checkpoint_cost(item.scenario, machine, allow)) for item in items]
    said = [checkpoint_sentence(item.label, cost) for item, cost in costs if cost is not None]
    print_list(output, "Checkpoints", said)
    warned = warnings(items)
    if warned:
        output.print()
    for sentence in warned:
        output.print(Text(plain(sentence), style="bold red"))


def check_measured_here(machine: MachineProfile, allowed: bool) -> list[str]:
    """Refuse a profile of this machine that was measured with other versions of the packages, unless that is allowed.

    A profile of another machine predicts that machine, with the versions it was measured with.

    Returns:
        the versions that differ, in words.

    Raises:
        UserError: with the versions that differ.
    """
    differing = check_versions(machine, package_versions())
    if differing and not allowed and machine.is_of(machine_facts()["fingerprint"]):
        what = f"the profile of this machine was measured with other versions: {'; '.join(differing)}"
        raise UserError(what, "--machine", "calibrate again, or take it all the same with --allow versions")
    return differing


def forecasts(
    variants: Iterable[Variant], machine: MachineProfile, draws: int, seed: int, allow: Collection[str]
) -> list[Forecasted]:
    """Forecast each run, of one block: the others differ in their seed alone; see ``harness.simulate.forecast``.

    Raises:
        UserError: a run does not fit on the profile's GPUs, or the profile does not know a stage.
    """
    found = []
    for variant in variants:
        check_gpus_hold(variant.scenario, machine)
        predicted = forecast(variant.scenario, machine, draws, seed, allow=allow)
        plain_s = closed_form(variant.scenario, machine, allow)
        found.append(Forecasted(variant.label, variant.scenario, predicted, plain_s))
    return found


def _record(
    experiment: SimulatedExperiment,
    variants: Sequence[Variant],
    items: Sequence[Forecasted],
) -> Path:
    """Write the run of each variant: the central prediction, or in blocks one draw for each; return their folder."""
    told = {item.label: item.forecast.extrapolating for item in items}
    for variant, draw in zip(variants, draws_of(variants, SEED), strict=True):
        experiment.record(variant, draw, {"extrapolating": list(told.get(variant.label, ()))})
    assert experiment.folder is not None
    return experiment.folder


def _told(items: Sequence[Forecasted], machine: MachineProfile, folder: Path | None) -> dict[str, Any]:
    """Return forecasts as plain values."""
    forecasts = {item.label: asdict(item.forecast) | {"closed_form_s": item.closed_form_s} for item in items}
    for item in items[1:]:
        if items[0].forecast.step_s.value:
            forecasts[item.label]["times_the_first"] = asdict(ratio(item.forecast, items[0].forecast))
    for found in forecasts.values():
        del found["each"]
    return {
        "simulated": machine.name,
        "origin": machine.origin,
        "runs": forecasts,
        "folder": None if folder is None else str(folder),
    }
