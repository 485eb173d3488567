"""Counters of the other machines of a cluster: a sampler on each, started by a Ray actor that reserves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.probes.sampler_process import SamplerProcess
from harness.results.counters import CounterRow
from harness.run.actors.part import ActorPart, ProcessFacts, boot_id, clock_offset_ns

LAST_SAMPLES_S = 6.0
"""Seconds to wait at the end for the last samples, whose samplers may take 5 to end."""


class NodeSampler(SamplerProcess):
    """The actor: the sampler of its machine, on that machine's clock."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def report(self) -> tuple[list[CounterRow], list[str]]:
        """Return the rows since the last call, and what went wrong so far."""
        return self.drain(), self.notes


class _Node:
    """One machine's sampler, with what was asked of it and has not come yet."""

    def __init__(self, node_id: str, name: str, hz: float) -> None:
        here = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self.handle: Any = ray.remote(num_cpus=0)(NodeSampler).options(scheduling_strategy=here).remote(hz)
        self.name, self.processes = name, dict[str, int]()
        self.offset_ns = clock_offset_ns(lambda: ray.get(self.handle.now_ns.remote()))
        self.asked: Any = None


def is_elsewhere(facts: ProcessFacts) -> bool:
    return facts.boot_id != boot_id()


class RemoteSamplers:
    """The samplers on other machines of the cluster; nothing where all parts are on this one.

    A machine whose sampler cannot be reached any more is noted and left out.

    Args:
        parts: the actors, all built.
        hz: samples a second.
        elsewhere: tells which parts are on another machine.

    Attributes:
        notes: what went wrong, in words.
    """

    def __init__(
        self, parts: Iterable[ActorPart], hz: float, elsewhere: Callable[[ProcessFacts], bool] = is_elsewhere
    ) -> None:
        self.notes: list[str] = []
        self._parts, self._rows = list(parts), list[CounterRow]()
        nodes = dict.fromkeys(
            part.facts.node_id for part in self._parts if part.facts is not None and elsewhere(part.facts)
        )
        self._nodes: dict[str, _Node] = {}
        for number, node_id in enumerate(nodes if hz > 0 else (), start=1):
            try:
                self._nodes[node_id] = _Node(node_id, f"node{number}", hz)
            except RayError as error:
                self.notes.append(f"no counters of node{number}: {type(error).__name__}")
        self.watch({})

    def watch(self, processes: Mapping[str, int]) -> None:
        """Tell each machine which of its processes are the run's; those of this machine are not asked for."""
        for node_id, node in self._nodes.items():
            here = [part for part in self._parts if part.facts is not None and part.facts.node_id == node_id]
            there = {part.lane: part.facts.pid for part in here if part.facts is not None}
            if there != node.processes:
                node.processes = there
                node.handle.watch.remote(there)

    def order(self, order: str) -> None:
        """Pass ``go`` or ``hold`` on."""
        for node in self._nodes.values():
            node.handle.order.remote(order)

    def drain(self, clock_at: Callable[[int], int]) -> list[CounterRow]:
        """Return the rows that have come by now, their sources named ``node1/...``, and ask for the next ones."""
        self._collect()
        rows, self._rows = self._rows, []
        return [CounterRow(clock_at(row.at_ns), row.source, row.values, row.missing) for row in rows]

    def close(self) -> None:
        """End the samplers, which take a last sample; ``drain`` then returns them."""
        self._collect(LAST_SAMPLES_S)
        for node in self._nodes.values():
            ray.kill(node.handle)
        self._nodes.clear()

    def _collect(self, wait_s: float = 0.0) -> None:
        """Keep what has come, on this machine's clock; with seconds to wait, all that there is to come."""
        for node_id, node in list(self._nodes.items()):
            try:
                if wait_s > 0:  # it takes its last sample, after which it was not asked yet
                    node.handle.close.remote()
                    self._take(node, wait_s)
                self._take(node, wait_s)
            except RayError as error:
                self.notes.append(f"no more counters of {node.name}: {type(error).__name__}")
                del self._nodes[node_id]

    def _take(self, node: _Node, wait_s: float) -> None:
        asked = node.asked or node.handle.report.remote()
        ready, _ = ray.wait([asked], timeout=wait_s)
        node.asked = None if ready else asked
        rows, notes = ray.get(asked) if ready else ([], [])
        if ready and wait_s == 0:
            node.asked = node.handle.report.remote()
        self.notes += [said for note in notes if (said := f"{node.name}: {note}") not in self.notes]
        self._rows += [
            CounterRow(row.at_ns - node.offset_ns, f"{node.name}/{row.source}", row.values, row.missing) for row in rows
        ]
