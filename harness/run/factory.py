"""Builds the parts of a command's runs, and starts Ray when the first of them needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from harness.core.spawn_pool import usable_cores
from harness.core.trace import RecordingTracer
from harness.probes.load import load_profile
from harness.run.guardian import Guardian
from harness.run.inprocess import InProcessParts
from harness.run.memory.plan import stored_weights
from harness.run.memory.shape import shape_for
from harness.run.needs import check, cpus_needed, cpus_reserved, packages_needed
from harness.run.parts import RunningParts, StopSignal
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
        """Make the parts of one run; errors as of these, and UserError for what the machine lacks."""
        for each in [*(each for group in self._together for each in group), scenario]:
            check(packages_needed(each))  # what one arm lacks is said before another one has run
        if not scenario.uses_ray:
            with self._guarded():
                return InProcessParts(scenario, tracer, should_stop)
        check([cpus_needed(scenario, usable_cores())])
        from harness.run.actors.parts import ActorParts

        with self._guarded():
            return ActorParts(scenario, tracer, should_stop, self.session)

    def session(self, scenario: Scenario) -> RaySession:
        check([cpus_needed(scenario, usable_cores())])
        address = scenario.placement.address
        if self._session is not None and self._session.address != address:
            self._close_session()
        if self._session is None:
            from harness.run.actors.session import RaySession

            groups = [*self._together, [scenario]]  # the runs of a group are alive at the same time
            cpus = max(usable_cores(), math.ceil(max(sum(map(cpus_reserved, group)) for group in groups)))
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
