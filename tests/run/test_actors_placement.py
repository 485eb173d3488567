"""What can be refused before Ray is asked: bundles that no layout over the nodes could hold."""

import pytest

from harness.run.actors.placement import ResourceRequest, could_fit

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
