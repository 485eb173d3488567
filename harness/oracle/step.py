"""The step that every implementation is asked about: a safetensors file with a JSON header, or a step of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness.core.errors import UserError
from harness.core.trace import NullTracer
from harness.core.types import RolloutGroup
from harness.grpo.advantages import DELTAS, deltas_per_group
from harness.grpo.aggregate import Aggregation, loss_denominator, prompt_tokens
from harness.grpo.loss import surrogate_loss
from harness.grpo.tokens import TokenBatch
from harness.learner.trainer import PolicyTrainer
from harness.loop.state_files import KeptBatch, read_files
from harness.run.builders import trainer_of
from harness.run.kept_steps import read_result
from harness.run.parts import never
from harness.run.recompute import for_this_machine, kept_step, policy_here
from harness.run.with_trl import SCALES
from harness.run.workers import LearnerWorker
from harness.scenario.schema import Scenario
from harness.settings.loss import LossSettings
from harness.transports.in_process import InProcessTransport


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """Of the clipped surrogate with a ratio for each token; see ``harness.settings.loss``."""

    aggregation: Aggregation
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    constant: float | None = None


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """What a reward less its group's mean is divided by, the standard deviation of which + ``eps``."""

    scale: str = "group"
    eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class Header:
    """What stands in the file's metadata under ``step``, as JSON."""

    loss: LossOptions
    advantage: AdvantageOptions = AdvantageOptions()
    format: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """B rows of T tokens that one optimizer step learns from, of the N rollouts of a training step.

    Attributes:
        tensors: ``log_probs``, ``old_log_probs`` and ``mask`` (B, T), the policy's before the optimizer step, what the
            ratio divides by, and 1 on the tokens in the loss; ``rewards`` and ``advantages`` (N,), as they were
            recorded; ``group`` (N,), the number of each rollout's group, whose rollouts stand side by side; ``rows``
            (B,), which rollout each row is.
    """

    header: Header
    tensors: Mapping[str, Tensor]

    def write(self, path: Path) -> None:
        """Write the file."""
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        save_file(tensors, path, {"step": json.dumps(asdict(self.header))})


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the run says of the step.

    Attributes:
        loss: that the Learner minimised, with every term of it.
        again: the same loss computed here in float64; None where it needs the tokens' entropy.
        left_out: terms that the other rows do not have, by their settings.
    """

    loss: float
    again: float | None
    left_out: tuple[str, ...]


def read_step(path: Path) -> Step:
    """Read a step that anyone wrote.

    Raises:
        UserError: it cannot be read, or is not what it must be.
    """
    fix = "see docs/oracle.md for what the file holds"
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            said = (file.metadata() or {}).get("step")
        if said is None:
            raise UserError("its metadata have no 'step'", str(path), fix)
        header = msgspec.convert(json.loads(said), Header)
        tensors.setdefault("rows", torch.arange(len(tensors["log_probs"])))
        missing = {"log_probs", "old_log_probs", "mask", "rewards", "advantages", "group"} - set(tensors)
        if missing:
            raise UserError(f"it has no {', '.join(sorted(missing))}", str(path), fix)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"it is not a step: {error}", str(path), fix) from None
    _check(tensors, path, fix)
    return Step(header=header, tensors=tensors)


def _check(tensors: Mapping[str, Tensor], path: Path, fix: str) -> None:
    shape, rollouts = tensors["log_probs"].shape, tensors["rewards"].shape
    expected = dict.fromkeys(("log_probs", "old_log_probs", "mask"), shape)
    expected |= dict.fromkeys(("rewards", "advantages", "group"), rollouts) | {"rows": shape[:1]}
    for name, wanted in expected.items():
        if tensors[name].shape != wanted or len(shape) != 2 or len(rollouts) != 1 or not tensors[name].numel():
            said = f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(wanted)}, of (B, T) or (N,)"
            raise UserError(said, str(path), fix)
    rows, group = tensors["rows"], tensors["group"]
    if int(rows.min()) < 0 or int(rows.max()) >= len(group):
        raise UserError(f"rows name rollouts {int(rows.min())} to {int(rows.max())} of {len(group)}", str(path), fix)
    if len(torch.unique_consecutive(group)) != len(torch.unique(group)):
        raise UserError("the rollouts of a group do not stand side by side", str(path), fix)


def step_of_run(folder: Path, number: int, scenario: Scenario, at: int | None = None) -> tuple[Step, Recorded]:
    """Make a kept training step again up to one of its optimizer steps.

    Args:
        folder: of the run.
        number: the training step.
        scenario: of the run.
        at: the optimizer step, from 0; None is the last one, whose policy has moved furthest.

    Raises:
        UserError: the step was not kept or diverged, or its loss is one that is not compared.
    """
    home = kept_step(folder, number).folder
    batch, result = read_files(home, KeptBatch), read_result(home)
    loss = scenario.loss.model_copy(update={"constant": scenario.loss_constant})
    if loss.type != "grpo_clip" or loss.ratio_level != "token":
        what = f"the loss of the run is {loss.type} with the ratio of each {loss.ratio_level}"
        raise UserError(f"{what}; compared is grpo_clip with the ratio of each token", str(folder))
    if result.diverged is not None:
        raise UserError(f"training step {number} diverged: {result.diverged}", str(home), "name another step")
    steps = len(result.metrics)
    at = steps - 1 if at is None else at
    if not at < steps or not result.metrics:
        raise UserError(f"there is no optimizer step {at}: training step {number} has {steps}, from 0", str(home))
    scenario = for_this_machine(scenario, folder)
    trainer = cast(PolicyTrainer, trainer_of(scenario, policy_here(scenario), never))
    learner = LearnerWorker(trainer, InProcessTransport(snapshot=False), tracer=NullTracer())
    try:
        learner.load_state(home)
        tensors, more = _at_optimizer_step(trainer, batch.groups, number, at)
    finally:
        learner.close()
    tensors["advantages"] = torch.tensor(result.advantages, dtype=torch.float64)
    low, high = loss.clip_range
    delta = scenario.advantage.delta_for(loss.type)
    header = Header(
        loss=LossOptions(
            aggregation=loss.aggregation,
            clip_low=low,
            clip_high=high,
            dual_clip=loss.dual_clip,
            constant=loss.constant if loss.aggregation == "constant" else None,
        ),
        advantage=AdvantageOptions(scale=SCALES.get(delta, delta), eps=scenario.advantage.eps),
    )
    step = Step(header=header, tensors=tensors)
    terms = {
        f"kl.coefficient {loss.kl.coefficient:g}": loss.kl.coefficient > 0,
        f"entropy_coefficient {loss.entropy_coefficient:g}": loss.entropy_coefficient > 0,
        f"importance.mode {loss.importance.mode}": loss.importance.mode != "off",
    }
    left_out = tuple(term for term, is_on in terms.items() if is_on)
    again = None if loss.entropy_coefficient > 0 else float(_loss(step, loss, more)[0])
    return step, Recorded(loss=result.metrics[at]["loss"].value, again=again, left_out=left_out)


def _at_optimizer_step(
    trainer: PolicyTrainer, groups: tuple[RolloutGroup, ...], number: int, at: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train as the run did, and return what the loss of an optimizer step is given; further log-probs apart."""
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
    further = {name: tensor[rows].double().cpu() for name, tensor in more.items() if tensor is not None}
    return {name: tensor.cpu() for name, tensor in tensors.items()}, further


def ours(step: Step) -> dict[str, Any]:
    """Answer as ``peers.py`` does, from this project's own loss and advantages; tensors instead of lists."""
    options = step.header.loss
    settings = LossSettings(
        aggregation=options.aggregation,
        cliprange=options.clip_low,
        cliprange_high=options.clip_high,
        dual_clip=options.dual_clip,
    )
    loss, gradient = _loss(step, settings, {})
    return {"loss": float(loss), "gradient": gradient, "advantages": _advantages(step)}


def _loss(step: Step, settings: LossSettings, more: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the loss in float64, and its gradient for each token in the loss."""
    tensors, options = step.tensors, step.header.loss
    mask_BT, rows_B = tensors["mask"].bool(), tensors["rows"]
    group_B = torch.unique(tensors["group"][rows_B], return_inverse=True)[1]
    denominator = loss_denominator(mask_BT, options.aggregation, options.constant, group_B)
    weights_BT = denominator.token_weights(mask_BT, prompt_tokens(mask_BT, group_B))
    log_probs = tensors["log_probs"].double().requires_grad_(True)
    tokens = TokenBatch(
        log_probs,
        mask_BT,
        advantages=tensors["advantages"].double()[rows_B][:, None],
        old_log_probs=tensors["old_log_probs"].double(),
        **more,
    )
    loss, _ = surrogate_loss(tokens, weights_BT, settings)
    (gradient_BT,) = torch.autograd.grad(loss, log_probs)
    return loss.detach(), gradient_BT[mask_BT]


def _advantages(step: Step) -> Tensor | None:
    options, groups = step.header.advantage, dict[int, list[float]]()
    delta = next((delta for delta in DELTAS if options.scale in (SCALES.get(delta), delta)), None)
    for group, reward in zip(step.tensors["group"].tolist(), step.tensors["rewards"].tolist(), strict=True):
        groups.setdefault(group, []).append(reward)
    return None if delta is None else deltas_per_group(list(groups.values()), delta, options.eps).double()
