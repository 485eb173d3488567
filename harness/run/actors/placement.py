"""What the parts of one run ask for, and the Ray placement group that reserves it for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.core.errors import UserError

WAIT_S = 60.0

Resources = dict[str, float]


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one part reserves."""

    lane: str
    cpus: float
    gpus: float

    @property
    def bundle(self) -> Resources:
        """The form in which Ray takes it; Ray refuses an empty one."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


class Placement:
    """Reserved resources: a bundle for each part, or one that colocated parts share.

    Args:
        requests: one for each part.
        colocated: Generators and Learner share what the largest of them asks for, since they take turns; the ranks of
            a Learner work together, and count as one.
        strategy: how Ray lays the bundles over nodes.

    Raises:
        UserError: the cluster does not have that much.
    """

    def __init__(self, requests: list[ResourceRequest], colocated: bool, strategy: str) -> None:
        self._requests = {request.lane: request for request in requests}
        self._bundle_of, bundles = _bundles(requests, colocated)
        self._group: PlacementGroup | None = None
        if bundles:
            nodes: list[Resources] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if not could_fit(bundles, strategy, nodes):
                raise _does_not_fit(bundles, strategy, nodes, "")
            self._group = placement_group(bundles, strategy=strategy)
            ready, _ = ray.wait([self._group.ready()], timeout=WAIT_S)
            if not ready:
                self.close()
                raise _does_not_fit(bundles, strategy, nodes, f" and did not give it in {WAIT_S:g} s")

    def options(self, lane: str, sharing: int = 1) -> dict[str, Any]:
        """Return the options with which this lane's actor is made, each time it is made.

        Args:
            lane: name of the lane.
            sharing: parts that share its bundle.
        """
        request = self._requests[lane]
        options: dict[str, Any] = {"num_cpus": request.cpus / sharing, "num_gpus": request.gpus / sharing}
        index = self._bundle_of.get(lane)
        if index is not None and self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            )
        return options

    def close(self) -> None:
        """Give the resources back."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def _bundles(requests: list[ResourceRequest], colocated: bool) -> tuple[dict[str, int], list[Resources]]:
    """Return the bundle number of each lane and the bundles; a part that asks for nothing needs none."""
    if colocated:
        return {request.lane: 0 for request in requests}, [_largest(requests)]
    wanting = [request for request in requests if request.cpus or request.gpus]
    return {request.lane: index for index, request in enumerate(wanting)}, [request.bundle for request in wanting]


def _largest(requests: list[ResourceRequest]) -> Resources:
    ranks = [request for request in requests if request.lane.startswith("learner")]
    together = ResourceRequest("learner", sum(rank.cpus for rank in ranks), sum(rank.gpus for rank in ranks))
    each = [together, *requests]
    return ResourceRequest("", max(part.cpus for part in each), max(part.gpus for part in each)).bundle


def could_fit(bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources]) -> bool:
    """Whether nodes that nobody else uses might hold the bundles; what is refused here can never be had.

    Args:
        bundles: what each asks for.
        strategy: how they are laid over the nodes.
        nodes: what each node has.
    """
    if strategy == "STRICT_PACK":
        return any(_holds(node, bundles) for node in nodes)
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        return False
    everything = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    return _holds(everything, bundles) and all(any(_holds(node, [bundle]) for node in nodes) for bundle in bundles)


def _holds(has: Resources, bundles: Sequence[Resources]) -> bool:
    return all(sum(bundle.get(name, 0) for bundle in bundles) <= has.get(name, 0) for name in ("CPU", "GPU"))


def _does_not_fit(bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources], in_time: str) -> UserError:
    has: list[Resources] = [{name: node[name] for name in ("CPU", "GPU") if name in node} for node in nodes]
    return UserError(
        f"the parts ask for {_listed(bundles)} ({strategy}), and Ray has {_listed(has)} on its nodes{in_time}",
        "placement",
        "lower placement.*.cpus and gpus (fractions share one), choose another placement.strategy, or free the cluster",
    )


def _listed(resources: Sequence[Resources]) -> str:
    """Return the words for what is asked for or had: ``CPU 1 + CPU 1 GPU 0.5``."""
    return " + ".join(" ".join(f"{name} {amount:g}" for name, amount in each.items()) for each in resources)
