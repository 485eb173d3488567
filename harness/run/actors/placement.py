"""What the parts of one run ask for, and the Ray placement group that reserves it for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.core.errors import UserError
from harness.run.needs import Layout, ResourceRequest, Resources, layouts

WAIT_S = 60.0


class Placement:
    """Reserved resources: a bundle for each part, or one that colocated parts share.

    Args:
        requests, colocated, strategy, ranks_per_node: see ``needs.layouts``.

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
        while self._groups:
            remove_placement_group(self._groups.pop())


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
    return " + ".join(" ".join(f"{name} {amount:g}" for name, amount in each.items()) for each in resources)
