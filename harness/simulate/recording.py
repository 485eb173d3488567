"""Simulated runs in the results format of real ones: the same recorder, on the virtual clock.

What a simulation does not know is left out: rewards, losses and gradients. ``Manifest.simulated`` names the profile,
and machine and versions are the profile's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.trace import RecordingTracer
from harness.core.types import Metrics, ScoredBatch
from harness.loop import Observer, RolloutCounts, StepReport
from harness.probes.provenance import code_state
from harness.results import Manifest, RunFolder
from harness.results.anonymous import safe_name
from harness.results.recorder import RunRecorder
from harness.results.writer import begin_experiment, timestamp, utc_now
from harness.scenario import Scenario, Variant, resolved_yaml
from harness.simulate.clock import run_virtual
from harness.simulate.machine import MachineProfile
from harness.simulate.noise import Draw
from harness.simulate.settings import facts_of
from harness.simulate.world import build_world

LEARNT = ("reward/", "validation/reward", "validation/format_reward", "validation/answer_reward")
"""Metrics that say what was learnt, which a simulation does not know."""


class SimulatedExperiment:
    """The folder of one command's simulated runs, made when the first of them begins.

    Args:
        out: the results folder.
        scenario: names the folder in it.
        machine: the profile.
        allow: see ``harness.simulate.world.build_world``.

    Attributes:
        machine: the profile.
        folder: of the experiment; None until then.
    """

    def __init__(self, out: Path, scenario: Scenario, machine: MachineProfile, allow: Collection[str] = ()) -> None:
        self._out, self._scenario, self.machine, self._allow = out, scenario, machine, allow
        self._code, self._name = code_state(), ""
        self.folder: Path | None = None

    def record(self, variant: Variant, machine: MachineProfile, draw: Draw | None, facts: Mapping[str, Any]) -> Path:
        """Simulate a run and write its folder.

        Args:
            variant: the run.
            machine: the profile by which its stages take time.
            draw: one possible world; None is the central prediction, without noise.
            facts: more for the manifest's ``outcome``.

        Returns:
            the run's folder.

        Raises:
            UserError: the profile does not know a stage, or the folder cannot be written.
        """
        with self._open(variant) as folder:
            try:
                recorder = _simulate(variant.scenario, machine, draw, folder, self._allow)
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
        world = build_world(scenario, machine, tracer, draw=draw, allow=allow)
        recorder = RunRecorder(folder, tracer, synchronous=world.plan.is_synchronous, row_listeners=[world.on_row])
        recorder.loop_starts(world.lanes)
        await world.run(WithoutRewards(recorder))
        recorder.loop_ends()
        return recorder

    return run_virtual(main)[0]


class WithoutRewards:
    """Tells an observer everything but the rewards, which the simulated Scorer only makes up."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_version(self, lane: str, version: int) -> None:
        """See ``Observer``."""
        self._observer.on_version(lane, version)

    def on_sync(self, lane: str, version: int, measured: Metrics) -> None:
        """See ``Observer``."""
        self._observer.on_sync(lane, version, measured)

    def on_step(self, facts: StepReport) -> None:
        """See ``Observer``."""
        self._observer.on_step(replace(facts, scored=tuple(map(without_rewards, facts.scored))))

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """See ``Observer``."""
        self._observer.on_evaluation(version, without_rewards(scored))

    def on_replaced(self, lane: str, reason: str) -> None:
        """See ``Observer``."""
        self._observer.on_replaced(lane, reason)

    def on_finished(self, ledger: RolloutCounts) -> None:
        """See ``Observer``."""
        self._observer.on_finished(ledger)


def without_rewards(scored: ScoredBatch) -> ScoredBatch:
    """Return a scored batch with no rewards in it, neither in its metrics nor with its groups."""
    metrics = {name: metric for name, metric in scored.metrics.items() if not name.startswith(LEARNT)}
    groups = tuple(replace(group, rewards=()) for group in scored.groups)
    return replace(scored, groups=groups, metrics=metrics, examples=())


def draws_of(variants: Sequence[Variant], seed: int) -> list[Draw | None]:
    """Return the world of each run: the central prediction, or for the blocks of a scenario one draw for each block."""
    return [None if variant.block is None else Draw(variant.block + 1, seed) for variant in variants]
