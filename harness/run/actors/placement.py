"""What the parts of one run ask for, and the Ray placement group that reserves it for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.core.errors import UserError
from harness.results import lane_kind

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


@dataclass(frozen=True, slots=True)
class Layout:
    """What is reserved together: bundles, how Ray lays them over nodes, and each lane's bundle by number."""

    bundles: list[Resources]
    strategy: str
    bundle_of: dict[str, int]


class Placement:
    """Reserved resources: a bundle for each part, or one that colocated parts share.

    Args:
        requests: one for each part.
        colocated: Generators and Learner share what the largest of them asks for, since they take turns; the ranks of
            a Learner work together, and count as one. Ranks on GPUs have a bundle each, and the others share those.
        strategy: how Ray lays the bundles over nodes.
        ranks_per_node: see ``layouts``.

    Raises:
        UserError: the cluster does not have that much.
    """

    def __init__(
        self,
        requests: list[ResourceRequest],
        colocated: bool,
        strategy: str,
        ranks_per_node: Sequence[int] | None = None,
    ) -> None:
        self._requests, self._colocated = {request.lane: request for request in requests}, colocated
        self._groups: list[PlacementGroup] = []
        self._place_of: dict[str, tuple[PlacementGroup, int]] = {}
        try:
            for layout in layouts(requests, colocated, strategy, ranks_per_node):
                self._reserve(layout)
        except BaseException:
            self.close()
            raise

    def _reserve(self, layout: Layout) -> None:
        nodes: list[Resources] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not could_fit(layout.bundles, layout.strategy, nodes):
            raise _does_not_fit(layout.bundles, layout.strategy, nodes, "")
        group = placement_group(layout.bundles, strategy=layout.strategy)
        self._groups.append(group)
        ready, _ = ray.wait([group.ready()], timeout=WAIT_S)
        if not ready:
            raise _does_not_fit(layout.bundles, layout.strategy, nodes, f" and did not give it in {WAIT_S:g} s")
        self._place_of |= {lane: (group, index) for lane, index in layout.bundle_of.items()}

    def options(self, lane: str) -> dict[str, Any]:
        """Return the options with which this lane's actor is made, each time it is made."""
        request, place = self._requests[lane], self._place_of.get(lane)
        sharing = list(self._place_of.values()).count(place) if self._colocated and place else 1
        options: dict[str, Any] = {"num_cpus": request.cpus / sharing, "num_gpus": request.gpus / sharing}
        if place is not None:
            group, index = place
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
        return options

    def close(self) -> None:
        """Give the resources back."""
        while self._groups:
            remove_placement_group(self._groups.pop())


def layouts(
    requests: list[ResourceRequest], colocated: bool, strategy: str, ranks_per_node: Sequence[int] | None = None
) -> list[Layout]:
    """Return what is to be reserved; a part that asks for nothing needs no bundle.

    Args:
        requests, colocated, strategy: see ``Placement``.
        ranks_per_node: of the Learner, in the order of its ranks, each on a node of its own; None leaves it to Ray.
    """
    if colocated:
        return [_shared(requests, strategy)]
    wanting = [request for request in requests if request.cpus or request.gpus]
    apart: list[Layout] = []
    if ranks_per_node is not None:
        ranks = [request for request in wanting if _is_rank(request)]
        node_of = [node for node, count in enumerate(ranks_per_node) for _ in range(count)]
        bundles = [
            _sum(rank for rank, at in zip(ranks, node_of, strict=True) if at == node).bundle
            for node in range(len(ranks_per_node))
        ]
        bundle_of = {rank.lane: node for rank, node in zip(ranks, node_of, strict=True)}
        apart.append(Layout(bundles, "STRICT_SPREAD", bundle_of))
        wanting = [request for request in wanting if not _is_rank(request)]
    if wanting:
        bundle_of = {request.lane: index for index, request in enumerate(wanting)}
        apart.append(Layout([request.bundle for request in wanting], strategy, bundle_of))
    return apart


def _is_rank(request: ResourceRequest) -> bool:
    return request.lane.startswith("learner")


def _sum(requests: Iterable[ResourceRequest]) -> ResourceRequest:
    each = list(requests)
    return ResourceRequest("", sum(request.cpus for request in each), sum(request.gpus for request in each))


def _shared(requests: list[ResourceRequest], strategy: str) -> Layout:
    """One place for all, or one for each rank on a GPU: NCCL takes no two on one. Generators are dealt to these."""
    places = max(1, sum(1 for request in requests if _is_rank(request) and request.gpus))
    numbers, bundle_of = defaultdict[str, Iterator[int]](count), dict[str, int]()
    for request in requests:
        bundle_of[request.lane] = next(numbers[lane_kind(request.lane)]) % places
    bundles = [[request for request in requests if bundle_of[request.lane] == place] for place in range(places)]
    return Layout([_largest(each) for each in bundles], strategy, bundle_of)


def _largest(requests: list[ResourceRequest]) -> Resources:
    each = [_sum(filter(_is_rank, requests)), *requests]
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
