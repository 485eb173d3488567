"""What can be refused before Ray is asked: bundles that no layout over the nodes could hold."""

from dataclasses import replace

import pytest
import ray
from ray.cluster_utils import Cluster

from harness.core.errors import UserError
from harness.run.actors.placement import Placement, could_fit
from harness.run.needs import Layout, ResourceRequest, layouts

ONE, BIG = {"CPU": 1.0}, {"CPU": 3.0}
GPU = {"CPU": 1.0, "GPU": 0.5}
TWO_SMALL = [{"CPU": 2.0, "memory": 1e9}, {"CPU": 2.0}]
ONE_LARGE = [{"CPU": 4.0, "GPU": 1.0}]

CASES = {
    "fits together": ([ONE, ONE], "PACK", ONE_LARGE, True),
    "fits on two nodes": ([ONE, ONE, ONE, ONE], "SPREAD", TWO_SMALL, True),
    "more than all nodes have": ([ONE] * 5, "PACK", TWO_SMALL, False),
    "more than any node has": ([BIG], "PACK", TWO_SMALL, False),
    "to be packed, and no node has it all": ([ONE, ONE, ONE], "STRICT_PACK", TWO_SMALL, False),
    "to be packed, and one node has it all": ([ONE, ONE, ONE], "STRICT_PACK", [*TWO_SMALL, *ONE_LARGE], True),
    "to be spread over as many nodes": ([ONE, ONE], "STRICT_SPREAD", TWO_SMALL, True),
    "to be spread over more nodes": ([ONE, ONE], "STRICT_SPREAD", ONE_LARGE, False),
    "halves of a GPU": ([GPU, GPU], "PACK", ONE_LARGE, True),
    "three halves of a GPU": ([GPU, GPU, GPU], "PACK", ONE_LARGE, False),
    "a GPU where there is none": ([GPU], "PACK", TWO_SMALL, False),
}


@pytest.mark.parametrize(("bundles", "strategy", "nodes", "fits"), CASES.values(), ids=CASES)
def test_what_could_fit(
    bundles: list[dict[str, float]], strategy: str, nodes: list[dict[str, float]], fits: bool
) -> None:
    assert could_fit(bundles, strategy, nodes) is fits


def test_a_part_without_a_gpu_names_none() -> None:
    """Ray refuses a bundle with a zero in it."""
    assert ResourceRequest("learner", 1.5, 0.0).bundle == {"CPU": 1.5}
    assert ResourceRequest("learner", 1.0, 0.25).bundle == {"CPU": 1.0, "GPU": 0.25}


REQUESTS = [ResourceRequest(f"learner/{rank}", 2.0, 1.0) for rank in range(3)] + [
    ResourceRequest("generator", 1.0, 0.5),
    ResourceRequest("scorer", 0.0, 0.0),
]


def test_ranks_stand_on_nodes_of_their_own_by_a_running_sum() -> None:
    assert layouts(REQUESTS, False, "PACK", (2, 1)) == [
        Layout(
            [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}],
            "STRICT_SPREAD",
            {"learner/0": 0, "learner/1": 0, "learner/2": 1},
        ),
        Layout([{"CPU": 1.0, "GPU": 0.5}], "PACK", {"generator": 0}),
    ]


def test_left_to_ray_each_part_that_asks_for_something_has_a_bundle() -> None:
    bundles = [{"CPU": 2.0, "GPU": 1.0}] * 3 + [{"CPU": 1.0, "GPU": 0.5}]
    lanes = {"learner/0": 0, "learner/1": 1, "learner/2": 2, "generator": 3}
    assert layouts(REQUESTS, False, "SPREAD") == [Layout(bundles, "SPREAD", lanes)]


def test_colocated_parts_share_what_all_ranks_ask_for() -> None:
    lanes = {"learner/0": 0, "learner/1": 0, "learner/2": 0, "generator": 0, "scorer": 0}
    on_cpus = [replace(request, gpus=0.0) for request in REQUESTS]
    assert layouts(on_cpus, True, "PACK") == [Layout([{"CPU": 6.0}], "PACK", lanes)]
    alone = [ResourceRequest("learner", 2.0, 1.0), ResourceRequest("generator", 1.0, 0.5)]
    assert layouts(alone, True, "PACK") == [Layout([{"CPU": 2.0, "GPU": 1.0}], "PACK", {"learner": 0, "generator": 0})]


def test_colocated_ranks_have_a_gpu_each() -> None:
    generators = [ResourceRequest(f"generator{number}", 3.0, 1.0) for number in range(4)]
    scorer = ResourceRequest("scorer", 0.0, 0.0)
    dealt = {f"generator{number}": number % 3 for number in range(4)}
    lanes = {"learner/0": 0, "learner/1": 1, "learner/2": 2, **dealt, "scorer": 0}
    bundles = [{"CPU": 3.0, "GPU": 1.0}] * 3
    assert layouts([*REQUESTS[:3], *generators, scorer], True, "PACK") == [Layout(bundles, "PACK", lanes)]


@pytest.mark.slow
def test_ray_puts_colocated_ranks_on_different_gpus() -> None:
    """GPUs by name alone: Ray counts as many as it is told."""
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False)
    try:
        ranks = [ResourceRequest(f"learner/{rank}", 1.0, 1.0) for rank in range(2)]
        placement = Placement(
            [*ranks, ResourceRequest("generator", 1.0, 1.0), ResourceRequest("scorer", 0.0, 0.0)], True, "PACK"
        )
        of_gpus = ray.remote(GpusOf)
        actors = [
            of_gpus.options(**placement.options(lane)).remote() for lane in ("learner/0", "learner/1", "generator")
        ]
        first, second, generator = ray.get([actor.ids.remote() for actor in actors])
        assert (len(first), len(second)) == (1, 1)
        assert first != second
        assert generator == first
        placement.close()
    finally:
        ray.shutdown()


class GpusOf:
    def ids(self) -> list[int]:
        return list(ray.get_gpu_ids())


@pytest.mark.slow
def test_uneven_nodes_of_a_real_cluster() -> None:
    """Nodes of one machine: each has a raylet of its own."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=4)
        cluster.add_node(num_cpus=4)
        ray.init(address=cluster.address)
        ranks = [ResourceRequest(f"learner/{rank}", 2.0, 0.0) for rank in range(3)]
        placement = Placement([*ranks, ResourceRequest("generator", 1.0, 0.0)], False, "PACK", (2, 1))
        node_of = ray.remote(lambda: ray.get_runtime_context().get_node_id())
        first, second, third = ray.get([node_of.options(**placement.options(rank.lane)).remote() for rank in ranks])
        assert first == second != third
        with pytest.raises(UserError):
            Placement(ranks, False, "PACK", (3,))  # no node has 6 CPUs
        placement.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
