"""Several data-parallel Learners as one: a machine profile on which the Learner's work is shared out.

No real run of the harness has more than one Learner, so this is a model and was never measured. Each of M Learners
holds the whole policy, passes over 1/M of the responses, and adds its gradients up with the others' before each
optimizer step. A ring all-reduce moves 2 (M - 1) / M of the gradients over each link (Patarasuk and Yuan 2009,
"Bandwidth optimal all-reduce algorithms for clusters of workstations"), here 4 bytes a weight, and is not overlapped
with the way back. What does not shrink: the fixed cost of a call and of an optimizer step, and one microbatch at least.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.errors import UserError
from harness.scenario import Scenario
from harness.simulate.machine import MachineProfile, StageCost

SHARED = ("old_logprobs", "reference_logprobs", "update")
FIXED = ("call", "optimizer_step", "parameter_gb")
"""Terms that every Learner has in full."""
MICROBATCHES = ("microbatch", "microbatch_layer")
GRADIENTS = "parameter_gb"
"""The term that counts float32 bytes of all weights, once for each optimizer step."""


def with_learners(machine: MachineProfile, learners: int, scenario: Scenario) -> MachineProfile:
    """Return the profile as one Learner sees it that is really ``learners`` of them.

    Raises:
        UserError: the profile tells no bandwidth between Learners, or a microbatch's rows cannot be shared out evenly.
    """
    if learners == 1:
        return machine
    link = machine.device.link_gb_s
    if link is None:
        what = f"{learners} Learners add their gradients up over a link, and the profile {machine.name} has none"
        raise UserError(what, "--learners", "leave it out, or take a profile whose device has link_gb_s")
    if scenario.train_batch_size % learners:
        what = f"{learners} Learners cannot share the {scenario.train_batch_size} responses of an optimizer step evenly"
        raise UserError(what, "--learners", "take a divisor, or change rollout_batch_size")
    parts = shares(learners, scenario.gradient_accumulation_steps)
    stages = tuple(_shared(cost, parts, learners, link) if cost.stage in SHARED else cost for cost in machine.stages)
    return machine.model_copy(update={"stages": stages})


def shares(learners: int, microbatches: int) -> dict[str, float]:
    """Return by how much terms shrink, under ``*`` those that are not named.

    Args:
        learners: how many.
        microbatches: of an optimizer step; a Learner makes at least one.
    """
    return (
        dict.fromkeys(FIXED, 1.0)
        | dict.fromkeys(MICROBATCHES, max(1 / learners, 1 / microbatches))
        | {"*": 1 / learners}
    )


def all_reduce_s_per_gb(learners: int, link_gb_s: float) -> float:
    """Return the seconds in which as many Learners add up one GB of gradients each."""
    return 2 * (learners - 1) / learners / link_gb_s


def _shared(cost: StageCost, parts: Mapping[str, float], learners: int, link_gb_s: float) -> StageCost:
    factors = [parts.get(term, parts["*"]) for term in cost.seconds]
    seconds = {term: factor * value for (term, value), factor in zip(cost.seconds.items(), factors, strict=True)}
    covariance = tuple(
        tuple(one * other * value for value, other in zip(row, factors, strict=True))
        for row, one in zip(cost.covariance, factors, strict=bool(cost.covariance))
    )
    if cost.stage == "update":
        reduced = all_reduce_s_per_gb(learners, link_gb_s)
        if GRADIENTS not in seconds and covariance:
            covariance = (*((*row, 0.0) for row in covariance), (0.0,) * (len(seconds) + 1))
        seconds[GRADIENTS] = seconds.get(GRADIENTS, 0.0) + reduced
    return cost.model_copy(update={"seconds": seconds, "covariance": covariance})
