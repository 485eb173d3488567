"""Counters of the other machines of a cluster: one sampler on each, a Ray actor of its own that reserves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.probes.sampler import SamplingThread
from harness.probes.session import counter_rows
from harness.results.counters import CounterRow
from harness.run.actors.part import ActorPart, ProcessFacts, boot_id, clock_offset_ns


class SamplerProcess:
    """Holds the sampler of one machine."""

    def __init__(self, hz: float) -> None:
        self._thread = SamplingThread(hz)

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def order(self, order: Any) -> None:
        self._thread.order(order)

    def drain(self) -> list[dict[str, Any]]:
        return self._thread.drain()


class _NodeSampler:
    """One machine's sampler, with what was asked of it and has not come yet."""

    def __init__(self, node_id: str, name: str, hz: float) -> None:
        here = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self.handle: Any = ray.remote(num_cpus=0)(SamplerProcess).options(scheduling_strategy=here).remote(hz)
        self.name, self.processes = name, dict[str, int]()
        self.offset_ns = clock_offset_ns(lambda: ray.get(self.handle.now_ns.remote()))
        self.asked: Any = None


def is_elsewhere(facts: ProcessFacts) -> bool:
    """Whether a part works on another machine than this process."""
    return facts.boot_id != boot_id()


class RemoteSamplers:
    """The samplers on other machines of the cluster; nothing where all parts are on this one.

    A machine whose sampler cannot be reached any more is noted and left out.
    """

    def __init__(
        self, parts: Iterable[ActorPart], hz: float, elsewhere: Callable[[ProcessFacts], bool] = is_elsewhere
    ) -> None:
        self._parts, self._elsewhere = list(parts), elsewhere
        self.notes: list[str] = []
        nodes = dict.fromkeys(
            part.facts.node_id for part in self._parts if part.facts is not None and elsewhere(part.facts)
        )
        self._samplers: dict[str, _NodeSampler] = {}
        for number, node_id in enumerate(nodes if hz > 0 else (), start=1):
            try:
                self._samplers[node_id] = _NodeSampler(node_id, f"node{number}", hz)
            except RayError as error:
                self.notes.append(f"no counters of node{number}: {type(error).__name__}")
        self.watch()

    def watch(self) -> None:
        """Tell each machine which processes are the run's: a part that died has another one."""
        for node_id, sampler in self._samplers.items():
            here = [part for part in self._parts if part.facts is not None and part.facts.node_id == node_id]
            processes = {part.lane: part.facts.pid for part in here if part.facts is not None}
            if processes != sampler.processes:
                sampler.processes = processes
                sampler.handle.order.remote({"processes": processes})

    def order(self, order: str) -> None:
        for sampler in self._samplers.values():
            sampler.handle.order.remote(order)

    def drain(self, clock_at: Callable[[int], int], wait_s: float = 0.0) -> list[CounterRow]:
        """Return the rows that have come by now, their sources named ``node1/...``, and ask for the next ones.

        Args:
            clock_at: turns this machine's monotonic clock into nanoseconds of the run's.
            wait_s: how long to wait for those under way; at the end of a run.
        """
        rows: list[CounterRow] = []
        for node_id, sampler in list(self._samplers.items()):
            try:
                rows += self._rows_of(sampler, clock_at, wait_s)
                if wait_s > 0:  # what was sampled after it was asked last
                    rows += self._rows_of(sampler, clock_at, wait_s)
            except RayError as error:
                self.notes.append(f"no more counters of {sampler.name}: {type(error).__name__}")
                del self._samplers[node_id]
        return rows

    def _rows_of(self, sampler: _NodeSampler, clock_at: Callable[[int], int], wait_s: float) -> list[CounterRow]:
        asked = sampler.asked or sampler.handle.drain.remote()
        ready, _ = ray.wait([asked], timeout=wait_s)
        sampler.asked = None if ready else asked
        samples = ray.get(asked) if ready else []
        if ready and wait_s == 0:
            sampler.asked = sampler.handle.drain.remote()

        def at(far_ns: int) -> int:
            return clock_at(far_ns - sampler.offset_ns)

        return [row for sample in samples for row in counter_rows(sample, at, f"{sampler.name}/")]

    def close(self) -> None:
        for sampler in self._samplers.values():
            ray.kill(sampler.handle)
        self._samplers.clear()
