"""Makes a training step that a run has kept once more, in one process, up to one of its optimizer steps.

Rewards come from the texts by the task's own function, advantages from the recorded rewards, loss and gradient norm of
each optimizer step from the tokens by a Learner that has loaded what the run's had learnt before. So one wrong value
does not hide behind another: a reward that was changed is found as that reward, and in all that follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harness.core.checkpoints import Checkpoint, Refused, differing, listed, steps_in
from harness.core.errors import UserError
from harness.core.trace import NullTracer
from harness.core.types import RolloutGroup
from harness.learner.trainer import PolicyTrainer
from harness.learner.warm_start import torch_threads
from harness.loop.state_files import KeptBatch, read_files
from harness.oracle.step import AdvantageOptions, Header, LossOptions, Step
from harness.results.reader import load_run
from harness.results.writer import KEPT_STEPS, POLICY
from harness.run.builders import make_rewards, trainer_of
from harness.run.continuation import check_same
from harness.run.kept_steps import KeptResult, read_result
from harness.run.parts import never
from harness.run.plugins import plugin_digests
from harness.run.policy import Policy, make_policy
from harness.run.workers import LearnerWorker
from harness.scenario.schema import Scenario
from harness.tasks.make import make_task
from harness.tasks.scoring import RewardFailed
from harness.transports.in_process import InProcessTransport

TOLERANCE = 1e-5
"""Of a figure, relative: sums of float32 in another order."""


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of value, recorded and computed again.

    Attributes:
        what: of the values.
        values: how many were compared.
        differing: each one that is another, in words, the largest difference first.
        largest: relative difference of all; 0 where the values are equal.
    """

    what: str
    values: int
    differing: tuple[str, ...] = ()
    largest: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Again:
    """A kept training step, made again.

    Attributes:
        step: what its optimizer step is given.
        loss: of the optimizer step, as the run recorded it.
        checks: what the run recorded, beside what came of it here.
        notes: what a reader has to know beside them.
    """

    step: Step
    loss: float
    checks: list[Check]
    notes: list[str]


def make_again(folder: Path, number: int, scenario: Scenario, at: int | None = None) -> Again:
    """Make a kept training step again.

    Args:
        folder: of the run.
        number: the training step.
        scenario: of the run.
        at: the optimizer step, from 0; None is the last one, whose policy has moved furthest.

    Raises:
        UserError: the step was not kept, diverged or has no such optimizer step, or the scenario is another one.
    """
    run = load_run(folder)
    check_same(run.settings, scenario, folder)
    kept = kept_step(folder, number)
    batch, result = read_files(kept.folder, KeptBatch), read_result(kept.folder)
    if result.diverged is not None:
        raise UserError(f"training step {number} diverged: {result.diverged}", str(kept.folder), "name another step")
    steps = len(result.metrics)
    at = steps - 1 if at is None else at
    if not at < steps or not steps:
        raise UserError(
            f"there is no optimizer step {at}: training step {number} has {steps}, from 0", str(kept.folder)
        )
    here = _for_this_machine(scenario, folder)
    trainer = cast(PolicyTrainer, trainer_of(here, _policy(here), never))
    learner = LearnerWorker(trainer, InProcessTransport(snapshot=False), tracer=NullTracer())
    try:
        learner.load_state(kept.folder)
        with torch_threads(run.manifest.threads):
            tensors, advantages = _up_to(trainer, batch.groups, number, at)
            metrics = trainer.optimizer_step_metrics
    finally:
        learner.close()
    loss = scenario.loss.model_copy(update={"constant": scenario.loss_constant})
    notes = _notes(scenario, run.manifest.inputs)
    if loss.entropy_coefficient:
        notes.append(
            f"The entropy bonus (loss.entropy_coefficient {loss.entropy_coefficient:g}) is in no row but 'recorded'."
        )
        loss = loss.model_copy(update={"entropy_coefficient": 0.0})
    header = Header(loss=LossOptions.of(loss), advantage=AdvantageOptions.of(scenario.advantage, loss.type))
    tensors["advantages"] = torch.tensor(result.advantages, dtype=torch.float64)
    checks = [
        Check("files", len(kept.files), tuple(map(str, differing(kept)))),
        _rewards(here, batch),
        *_figures(
            batch, result, advantages, [{key: each[key].value for key in ("loss", "grad_norm")} for each in metrics]
        ),
    ]
    return Again(
        step=Step(header=header, tensors=tensors), loss=result.metrics[at]["loss"].value, checks=checks, notes=notes
    )


def kept_step(folder: Path, step: int) -> Checkpoint:
    """Return the files of a training step that a run has kept; UserError, with those that it has, where it did not."""
    home = folder / KEPT_STEPS / f"step_{step}"
    kept = listed(home)
    if isinstance(kept, Refused):
        there = ", ".join(map(str, sorted(steps_in(folder / KEPT_STEPS)))) or "none"
        found = f"is not kept whole ({kept})" if home.is_dir() else "was not kept"
        fix = "name one of these, or run with checkpoint.keep_steps set"
        raise UserError(f"training step {step} {found}; kept are: {there}", str(home), fix)
    return kept


def _for_this_machine(scenario: Scenario, folder: Path) -> Scenario:
    """Leave out what this process has no use for. The weights come from the kept step, not from the model's start."""
    learner = scenario.learner.model_copy(update={"offload": None, "overlapped_publish": False})
    changes: dict[str, Any] = {"learner": learner}
    if scenario.model.type == "preset":
        changes["model"] = scenario.model.model_copy(update={"warm_start": False})
    elif scenario.model.type == "folder" and (folder / POLICY).is_dir():
        changes["model"] = scenario.model.model_copy(update={"path": str(folder / POLICY)})
    return scenario.model_copy(update=changes)


def _policy(scenario: Scenario) -> Policy:
    """Make the policy on a GPU if the run's Learner had one and there is one here, else on the CPU."""
    on_gpu = torch.cuda.is_available() and scenario.device_of(scenario.placement.learner, has_gpu=True) == "cuda"
    return make_policy(scenario, "cuda" if on_gpu else "cpu", never)


def _up_to(
    trainer: PolicyTrainer, groups: tuple[RolloutGroup, ...], number: int, at: int
) -> tuple[dict[str, Tensor], Sequence[float]]:
    """Train as the run did, and return what the loss of an optimizer step is given, and the advantages."""
    batch = trainer.prepare(groups, step=number)
    if trainer.options.needs_old_log_probs:
        trainer.compute_old_log_probs(batch)
    if trainer.options.needs_reference:
        trainer.compute_reference_log_probs(batch)
    seen: list[Tensor] = []

    def look() -> None:
        now = replace(batch)
        trainer.compute_old_log_probs(now)
        assert now.own_log_probs_BT is not None
        seen.append(now.own_log_probs_BT)

    trainer.train(number, batch, look)
    plans = [minibatch for minibatches in batch.plan.epochs for minibatch in minibatches]
    rows = torch.cat([torch.from_numpy(numbers) for numbers in plans[at].microbatches[0]])
    rollouts = batch.rollouts
    assert rollouts.num_rollouts == len(batch.plan.group_B)  # every rollout is in some minibatch of one process
    old = rollouts.old_log_probs_BT
    tensors = {
        "log_probs": seen[at][rows].double(),
        "old_log_probs": (seen[at] if old is None else old)[rows].double(),
        "mask": rollouts.response_mask_BT[rows].to(torch.uint8),
        "rewards": torch.tensor([reward for group in groups for reward in group.rewards or ()], dtype=torch.float64),
        "group": torch.from_numpy(batch.plan.group_B),
        "rows": rows,
    }
    more = {"reference_log_probs": rollouts.reference_log_probs_BT, "engine_log_probs": rollouts.engine_log_probs_BT}
    tensors |= {name: tensor[rows].double() for name, tensor in more.items() if tensor is not None}
    return {name: tensor.cpu() for name, tensor in tensors.items()}, list(trainer.advantages(batch))


def _named(group: RolloutGroup) -> str:
    return f"prompt {group.prompt_id} of batch {group.step}"


def _rewards(scenario: Scenario, batch: KeptBatch) -> Check:
    found: list[str] = []
    of_group = make_rewards(scenario, make_task(scenario.task), never)
    try:
        for group in batch.groups:
            data = group.data
            assert group.rewards is not None
            try:
                made = of_group([each.text for each in data.completions], data.prompt.ground_truth, data.prompt.row)
            except RewardFailed as error:
                found.append(f"{_named(group)}: {error}")
                continue
            for number, (recorded, now) in enumerate(zip(group.rewards, made, strict=True)):
                if recorded != now["reward"]:
                    found.append(
                        f"{_named(group)}, rollout {number}: {recorded:.9g} is recorded, {now['reward']:.9g} here"
                    )
    finally:
        of_group.close()
    return Check("rewards", sum(len(group.lengths) for group in batch.groups), tuple(found))


def _figures(
    batch: KeptBatch, result: KeptResult, advantages: Sequence[float], made: Sequence[dict[str, float]]
) -> list[Check]:
    names = [f"{_named(group)}, rollout {number}" for group in batch.groups for number in range(len(group.lengths))]
    by_step = [f"optimizer step {number}" for number in range(len(result.metrics))]
    sizes = [abs(value) for value in result.advantages]
    scale = sum(sizes) / len(sizes) if sizes else 0.0
    checks = [_compared("advantages", names, result.advantages, advantages)]
    for what, key, least in (("loss", "loss", scale), ("gradient norm", "grad_norm", 0.0)):
        recorded = [metrics[key].value for metrics in result.metrics]
        checks.append(_compared(what, by_step, recorded, [each[key] for each in made], least))
    return checks


def _compared(
    what: str, names: Sequence[str], recorded: Sequence[float], made: Sequence[float], scale: float = 0.0
) -> Check:
    """Compare numbers: relative to the larger one, or to ``scale`` where that is larger still, since terms cancel."""
    if len(recorded) != len(made):
        return Check(what, len(recorded), (f"{len(recorded)} are recorded, {len(made)} here",), math.inf)
    found: list[tuple[float, str]] = []
    for name, old, new in zip(names, recorded, made, strict=True):
        if old != new:
            gap = abs(old - new) / max(abs(old), abs(new), scale)
            found.append((gap, f"{name}: {old:.9g} is recorded, {new:.9g} here, {gap:.2g} relative"))
    found.sort(key=lambda each: -each[0])
    largest = max((gap for gap, _ in found), default=0.0)
    return Check(what, len(recorded), tuple(said for gap, said in found if not gap <= TOLERANCE), largest)


def _notes(scenario: Scenario, inputs: dict[str, Any]) -> list[str]:
    """Say which of the user's functions are others than those of the run, and that ranks add up in another order."""
    now, notes = plugin_digests(scenario), []
    for key, function in now.items():
        was = inputs.get(key, function)
        if function["sha256"] != was["sha256"]:
            notes.append(f"{key} {was.get('name')} is in another file now than in the run: its checksum differs.")
    ranks = scenario.placement.learner.ranks
    if ranks > 1:
        notes.append(f"The run's Learner had {ranks} ranks, whose sums have another order than those of one process.")
    return notes
