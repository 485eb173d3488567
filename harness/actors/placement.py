"""What the parts of one run ask for, and the Ray placement group that reserves it for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.errors import UserError

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What one part reserves."""

    lane: str
    cpus: float
    gpus: float

    @property
    def bundle(self) -> dict[str, float]:
        """The form in which Ray takes it; Ray refuses an empty one."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


class Placement:
    """Reserved resources: a bundle for each part, or one that colocated parts share.

    Args:
        asks: one for each part.
        colocated: Generators and Learner share what the largest of them asks for, since they take turns.
        strategy: how Ray lays the bundles over nodes.

    Raises:
        UserError: the cluster does not have that much.
    """

    def __init__(self, asks: list[Ask], colocated: bool, strategy: str) -> None:
        self._asks = {ask.lane: ask for ask in asks}
        self._bundle_of, bundles = _bundles(asks, colocated)
        self._group: PlacementGroup | None = None
        if bundles:
            self._group = placement_group(bundles, strategy=strategy)
            ready, _ = ray.wait([self._group.ready()], timeout=WAIT_S)
            if not ready:
                self.close()
                raise _does_not_fit(bundles, strategy)

    def options(self, lane: str, sharing: int = 1) -> dict[str, Any]:
        """Return the options with which this lane's actor is made, each time it is made.

        Args:
            lane: name of the lane.
            sharing: parts that share its bundle.
        """
        ask = self._asks[lane]
        options: dict[str, Any] = {"num_cpus": ask.cpus / sharing, "num_gpus": ask.gpus / sharing}
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


def _bundles(asks: list[Ask], colocated: bool) -> tuple[dict[str, int], list[dict[str, float]]]:
    """Return the bundle number of each lane and the bundles; a part that asks for nothing needs none."""
    if colocated:
        return {ask.lane: 0 for ask in asks}, [_largest(asks)]
    wanting = [ask for ask in asks if ask.cpus or ask.gpus]
    return {ask.lane: index for index, ask in enumerate(wanting)}, [ask.bundle for ask in wanting]


def _largest(asks: list[Ask]) -> dict[str, float]:
    return Ask("", max(ask.cpus for ask in asks), max(ask.gpus for ask in asks)).bundle


def _does_not_fit(bundles: list[dict[str, float]], strategy: str) -> UserError:
    has = {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU")}
    return UserError(
        f"the parts ask for {bundles} ({strategy}); the cluster has {has} in all and did not give it in {WAIT_S:g} s",
        "placement",
        "lower placement.*.cpus and gpus (fractions share one), choose another placement.strategy, or free the cluster",
    )
