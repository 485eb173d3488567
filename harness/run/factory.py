"""Builds the parts of a command's runs, and starts Ray when the first of them needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from harness.core.errors import UserError
from harness.core.spawn_pool import usable_cores
from harness.core.trace import RecordingTracer
from harness.engines.vllm_options import check_vllm_installed
from harness.probes.load import load_profile
from harness.run.guardian import Guardian
from harness.run.inprocess import InProcessParts
from harness.run.memory.plan import stored_weights
from harness.run.memory.shape import shape_for
from harness.run.parts import RunningParts, StopSignal
from harness.scenario.derived import places_of_colocated
from harness.scenario.schema import Scenario

if TYPE_CHECKING:
    from harness.run.actors.session import RaySession


class PartsFactory:
    """Builds parts, in this process or as Ray actors, as the scenario says.

    Args:
        together: scenarios whose parts will be alive at the same time, such as arms that take turns, point by point.
    """

    def __init__(self, together: Sequence[Sequence[Scenario]] = ()) -> None:
        self._together = together
        self._session: RaySession | None = None
        self._guardian: Guardian | None = None

    def __call__(self, scenario: Scenario, tracer: RecordingTracer, should_stop: StopSignal) -> RunningParts:
        """Make the parts of one run.

        Raises:
            UserError: something that the scenario names cannot be used, or the machine has less than it asks for.
            RunStopped: an actor died while it started.
            Interrupted: ``should_stop`` returned True.
        """
        everything = [each for group in [*self._together, [scenario]] for each in group]
        if any(each.engine.type == "vllm" for each in everything):
            check_vllm_installed()
        if not scenario.uses_ray:
            with self._guarded():
                return InProcessParts(scenario, tracer, should_stop)
        _check_fits_here(scenario)
        from harness.learner.deepspeed import check_usable
        from harness.run.actors.parts import ActorParts
        from harness.run.devices import resolve_device
        from harness.transports.catalogue import transport_kind

        for each in everything:  # report what one arm lacks before another one has run
            if each.uses_ray:
                transport_kind(each.transport.type).check_usable()
            if each.learner.sharding == "deepspeed" and each.placement.learner.ranks > 1:
                check_usable(cuda=resolve_device(each, each.placement.learner) == "cuda")
        with self._guarded():
            return ActorParts(scenario, tracer, should_stop, self.session)

    def session(self, scenario: Scenario) -> RaySession:
        """Return the Ray of this command.

        Raises:
            UserError: it cannot be had, or a scenario asks for more than this machine has.
        """
        _check_fits_here(scenario)
        address = scenario.placement.address
        if self._session is not None and self._session.address != address:
            self._close_session()
        if self._session is None:
            from harness.run.actors.session import RaySession

            groups = [*self._together, [scenario]]  # the runs of a group are alive at the same time
            cpus = max(usable_cores(), math.ceil(max(sum(map(_cpus, group)) for group in groups)))
            weights = max(sum(stored_weights(each, shape_for(each)[0]) for each in group) for group in groups)
            profiles = {each.profile for group in groups for each in group}
            for_nsight = any(load_profile(name).nsight is not None for name in profiles)
            with self._guarded():
                self._session = RaySession(address, cpus, for_nsight=for_nsight, weights=weights)
        return self._session

    def __enter__(self) -> PartsFactory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close_session()
        finally:
            if self._guardian is not None:
                self._guardian.close()
                self._guardian = None

    def _guarded(self) -> AbstractContextManager[None]:
        """Have what is started in the block ended, also when this process is killed."""
        self._guardian = self._guardian or Guardian()
        return self._guardian.starting()

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _check_fits_here(scenario: Scenario) -> None:
    """Refuse a run that asks for more CPUs than this machine has, unless it joins a cluster.

    Raises:
        UserError: with both numbers.
    """
    placement, cores = scenario.placement, usable_cores()
    wanted = _cpus(scenario)
    if wanted <= cores or placement.address != "local":
        return
    generators, scorers = placement.generator, placement.scorer
    raise UserError(
        f"the parts ask for {wanted:g} CPUs (learner {_of_ranks(scenario):g}, {generators.count} x generator "
        f"{generators.cpus:g}, {scorers.count} x scorer {scorers.cpus:g}), and this machine has {cores}",
        "placement",
        "lower placement.*.cpus (fractions share a CPU), use fewer parts, or set placement.address to a cluster",
    )


def _cpus(scenario: Scenario) -> float:
    if not scenario.uses_ray:
        return 0.0
    placement = scenario.placement
    if placement.colocated:
        each = max(placement.generator.cpus, placement.scorer.cpus)
        return max(_of_ranks(scenario), places_of_colocated(scenario) * each)
    generators = placement.generator.count * placement.generator.cpus
    return _of_ranks(scenario) + generators + placement.scorer.count * placement.scorer.cpus


def _of_ranks(scenario: Scenario) -> float:
    return scenario.placement.learner.ranks * scenario.placement.learner.cpus
