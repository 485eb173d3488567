"""Any k with any lag, replay and transport has a Learner of two ranks: what is refused, and by which rule alone."""

from itertools import product
from typing import get_args

import pytest

from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.settings.learner import Publish
from harness.settings.transport import TransportName

TRANSPORTS = ("in_process", *get_args(TransportName))
OF_GPUS = ("nccl", "cuda_ipc")
WITHOUT_RANKS = ("in_process", "gloo", "nccl")
"""Parts of one process, and transports whose group Ray makes torch's default one."""
LOOPS = [(*both, *lag) for both in ((1, 0), (4, 16)) for lag in product((0, 2), ("wait", "drop", "in_flight"))]
"""k and replay, lag and its control: one loop with any of these numbers."""


def expected(lag: int, control: str, transport: str, *, ranks: int, colocated: bool, cuda: bool) -> set[str]:
    """Neither k nor the replay capacity decides anything."""
    rules = {
        "lag_control_has_lag": lag == 0 and control != "wait",
        "colocated_parts_take_turns": colocated and lag > 0,
        "gpu_transport": transport in OF_GPUS and not cuda,
        "nccl_parts_have_a_gpu_each": transport in ("nccl", "broadcast") and cuda and colocated,
        "ranks_share_something": ranks > 1 and transport in WITHOUT_RANKS,
    }
    return {rule for rule, breaks in rules.items() if breaks}


@pytest.mark.parametrize("publish", get_args(Publish))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_refuses_a_publish_beside_training(transport: str, publish: str) -> None:
    """Neither k, nor what happens when the lag bound bites, nor the replay capacity decides anything here either."""
    for (k, capacity, lag, control), ranks in product(LOOPS, (1, 2)):
        settings: dict[str, object] = {
            "epochs_per_batch": k,
            "max_lag": lag,
            "lag_control": control,
            "replay": {"capacity": capacity},
            "transport": {"type": transport},
            "learner": {"sharding": "fsdp2", "publish": publish},
            "placement": {"colocated": False, "learner": {"ranks": ranks}},
        }
        overlapped = settings | {"learner": {"sharding": "fsdp2", "publish": publish, "overlapped_publish": True}}
        gathers = ranks > 1 and publish != "shards"
        refused = lag == 0 or transport in ("gloo", "nccl") or gathers
        added = rules_broken(overlapped) - rules_broken(settings)
        assert added == ({"publish_overlaps_training"} if refused else set()), (k, lag, control, capacity, ranks)


def rules_broken(settings: dict[str, object]) -> set[str]:
    problems = broken_rules(Scenario.model_validate(settings))
    return {problem.what.partition(" [rule: ")[2].removesuffix("]") for problem in problems}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp2", "deepspeed"])
def test_which_rule_refuses_which_combination(sharding: str, transport: str) -> None:
    accepted = 0
    for (k, capacity, lag, control), colocated, cuda in product(LOOPS, (True, False), (False, True)):
        found = {}
        for ranks in (1, 2):
            gpus = 1 if cuda else 0
            found[ranks] = rules_broken(
                {
                    "epochs_per_batch": k,
                    "max_lag": lag,
                    "lag_control": control,
                    "replay": {"capacity": capacity},
                    "transport": {"type": transport},
                    "learner": {"sharding": sharding},
                    "placement": {
                        "colocated": colocated,
                        "device": "cuda" if cuda else "cpu",
                        "learner": {"ranks": ranks, "gpus": gpus},
                        "generator": {"gpus": gpus},
                    },
                }
            )
            wanted = expected(lag, control, transport, ranks=ranks, colocated=colocated, cuda=cuda)
            assert found[ranks] == wanted, (k, lag, control, capacity, colocated, cuda, ranks)
        because_of_ranks = {"ranks_share_something"} if transport in WITHOUT_RANKS else set()
        assert found[2] - found[1] == because_of_ranks
        accepted += not found[2]
    # of each k and capacity, on a device: lag 0 in either placement, and lag 2 apart with each of the three controls
    of_a_device = 2 * (2 + 3)
    devices = 0 if transport in WITHOUT_RANKS else 1 if transport in OF_GPUS else 2
    colocated_on_a_gpu = 2 if transport == "broadcast" else 0  # refused: NCCL needs a GPU for each part
    assert accepted == of_a_device * devices - colocated_on_a_gpu
