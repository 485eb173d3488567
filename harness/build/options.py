"""What the Learner is told, from a scenario; and what the parts may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from harness.learner import TrainerOptions
from harness.planning import threads_on
from harness.provenance import usable_cores
from harness.scenario import PartSettings, Scenario, no_gpu_error
from harness.trace import RecordingTracer

if TYPE_CHECKING:
    from harness.build.parts import Parts

StopSignal = Callable[[], bool]
Build = Callable[[Scenario, RecordingTracer, StopSignal], "Parts"]


def trainer_options(scenario: Scenario) -> TrainerOptions:
    """Return how the Learner trains."""
    from harness.grpo import LossOptions
    from harness.grpo.importance import ImportanceOptions

    loss, kl, optimizer = scenario.loss, scenario.loss.kl, scenario.optimizer
    weights = loss.importance
    return TrainerOptions(
        group_size=scenario.group_size,
        loss=LossOptions(
            loss.type,
            loss.cliprange,
            loss.cliprange_high,
            loss.dual_clip,
            kl.coefficient,
            kl.estimator,
            ImportanceOptions(weights.mode, weights.level, weights.cap, weights.floor),
        ),
        aggregation=loss.aggregation,
        constant=scenario.loss_constant,
        delta=scenario.advantage.delta_for(loss.type),
        advantage_eps=scenario.advantage.eps,
        temperature=scenario.sampling.temperature,
        epochs_per_batch=scenario.epochs_per_batch,
        minibatches_per_epoch=scenario.minibatches_per_epoch,
        gradient_accumulation_steps=scenario.gradient_accumulation_steps,
        behaviour_is_engine=scenario.behaviour_is_older,
        proximal=loss.proximal,
        monitor_kl=kl.monitor,
        reclone_every=kl.reclone_every if kl.reference == "reclone" else None,
        learning_rate=optimizer.learning_rate,
        betas=optimizer.betas,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        warmup_steps=optimizer.warmup_steps,
        precision=scenario.model.precision,
    )


EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.5


def mismatch_bound(scenario: Scenario) -> float | None:
    """Return the largest gap allowed between engine and Learner log-probs after a weight sync; None: not measured.

    Engines of other makers are always measured: by default within 1e-4 where engine and Learner compute in float32,
    else 0.5.
    """
    settings: Any = scenario.engine
    if settings.type not in ("native", "vllm", "sglang"):
        return None
    asked: float | None = settings.mismatch_bound
    if asked is not None or settings.type == "native":
        return asked
    model: Any = scenario.model
    exact = settings.precision == model.precision == getattr(model, "dtype", "float32") == "float32"
    return EXACT_BOUND if exact else ROUNDED_BOUND


def threads_of(scenario: Scenario, part: PartSettings) -> int:
    """Return the CPU threads of a part: as asked for, else the CPUs of its actor, else its share of the cores."""
    return threads_on(usable_cores(), scenario, part)


def resolve_device(scenario: Scenario, part: PartSettings) -> str:
    """Return ``cpu`` or ``cuda``, where the part runs. An actor sees a GPU only if it reserves one.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    wanted = scenario.placement.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise no_gpu_error()
    if wanted == "auto":
        visible = torch.cuda.is_available() and (part.gpus > 0 or not scenario.uses_ray)
        return "cuda" if visible else "cpu"
    return wanted
