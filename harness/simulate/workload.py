"""From a scenario to the work of its stages: which of them there are, and what each counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

from harness.core.trace import Stage
from harness.core.types import RolloutGroup
from harness.models.scenario_shape import shape_for
from harness.models.shape import Shape
from harness.scenario import Scenario
from harness.scenario.passes import needs_old_log_probs, needs_reference
from harness.simulate.terms import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    Group,
    Terms,
    batch_terms,
    call_terms,
    generate_terms,
    pass_terms,
    sync_terms,
    update_terms,
    weight_bytes,
    weight_tensors,
)

TWO_SIDED = ("gloo", "nccl")
"""Transports that move the weights on the way to the call that loads them."""
_CONTINUOUS = ("vllm", "sglang")
"""Engines that give the place of a finished response to the next one at once."""


class Workload:
    """What the stages of one scenario do.

    Args:
        scenario: the resolved scenario.
        shape: of the model; None reads it from the scenario, where it can be known without loading anything.

    Attributes:
        shape: of the model; None where it has next to no weights or is not here.
        shape_missing: why the shape is not known.
    """

    def __init__(self, scenario: Scenario, shape: Shape | None = None) -> None:
        self.scenario = scenario
        engine: Any = scenario.engine
        self._max_batch, self._is_continuous = getattr(engine, "max_batch", 256), engine.type in _CONTINUOUS
        self._calls: dict[tuple[int, int], Terms] = {}  # there are few, and calls are many
        self._syncs: dict[bool, Terms] = {}
        self.shape, self.shape_missing = (shape, "") if shape is not None else shape_for(scenario)

    # ---- which stages there are

    @cached_property
    def has_old_log_probs(self) -> bool:
        """Whether the Learner has the stage ``old_logprobs``."""
        scenario = self.scenario
        steps, monitor = scenario.optimizer_steps_per_batch, scenario.loss.kl.monitor
        return needs_old_log_probs(scenario.behaviour_is_older, scenario.loss.proximal, steps, monitor)

    @cached_property
    def has_reference(self) -> bool:
        """Whether the Learner has the stage ``reference_logprobs``."""
        return needs_reference(self.scenario.loss.kl.monitor, self.scenario.loss.kl.coefficient)

    @cached_property
    def verifies(self) -> bool:
        """Whether both ends of a weight sync take a checksum."""
        return bool(getattr(self.scenario.transport, "verify", False))

    @cached_property
    def proves(self) -> bool:
        """Whether engine and Learner compare log-probs after a weight sync; see ``build.options.mismatch_bound``."""
        settings: Any = self.scenario.engine
        return self._is_continuous or getattr(settings, "mismatch_bound", None) is not None

    @cached_property
    def verifications(self) -> int:
        """Spans of ``weight_verify`` at each end of a weight sync."""
        return int(self.verifies) + int(self.proves)

    @cached_property
    def two_sided(self) -> bool:
        """Whether the weights arrive on the way to the call that loads them."""
        return self.scenario.transport.type in TWO_SIDED

    # ---- what they count

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of one weight sync."""
        settings: Any = self.scenario.model
        if settings.type == "paced":
            megabytes: float = settings.megabytes
            return round(megabytes * 1e6 / FLOAT32_BYTES) * FLOAT32_BYTES
        if self.shape is None:
            return 0
        each = BFLOAT16_BYTES if getattr(settings, "dtype", "float32") == "bfloat16" else FLOAT32_BYTES
        return weight_bytes(self.shape) * each // FLOAT32_BYTES

    @cached_property
    def weight_tensors(self) -> int:
        """Tensors of one weight sync."""
        settings: Any = self.scenario.model
        if settings.type == "paced":
            return int(settings.tensors)
        return 1 if self.shape is None else weight_tensors(self.shape)

    def generate(self, groups: Sequence[Group]) -> Terms:
        """Count what sampling these groups asks of the engine, for training or validation."""
        if self.shape is None:
            return batch_terms(groups)
        terms = generate_terms(self.shape, groups, self._max_batch)
        if not self._is_continuous:
            return terms
        steps = decode_steps([length for _, lengths in groups for length in lengths], self._max_batch)
        weight_gb = steps * self.shape.num_parameters * BFLOAT16_BYTES / 1e9
        return terms | {"decode_step": steps, "decode_layer": steps * self.shape.num_layers, "weight_gb": weight_gb}

    @cached_property
    def training(self) -> dict[Stage, Callable[[Sequence[Group]], Terms]]:
        """The stages of a training step in their order, each with what counts its work on a rollout batch."""
        stages: dict[Stage, Callable[[Sequence[Group]], Terms]] = {Stage.PREPARE_BATCH: self.batch}
        if self.has_old_log_probs:
            stages[Stage.OLD_LOGPROBS] = self.log_probs
        if self.has_reference:
            stages[Stage.REFERENCE_LOGPROBS] = self.reference_log_probs
        return stages | {Stage.UPDATE: self.update}

    def batch(self, groups: Sequence[Group]) -> Terms:
        """Count what goes by rollouts and tokens: scoring, preparing a batch, recording."""
        return batch_terms(groups)

    def log_probs(self, groups: Sequence[Group]) -> Terms:
        """Count a pass over a batch without gradients."""
        return self._passes(groups, 1)

    def reference_log_probs(self, groups: Sequence[Group]) -> Terms:
        """Count the reference policy's pass, and with monitoring that of the previous policy."""
        return self._passes(groups, 2 if self.scenario.loss.kl.monitor else 1)

    def _passes(self, groups: Sequence[Group], passes: int) -> Terms:
        if self.shape is None:
            return batch_terms(groups)
        return pass_terms(self.shape, groups, self._microbatch(groups), passes)

    def update(self, groups: Sequence[Group]) -> Terms:
        """Count the passes with gradients and the optimizer steps of one training step."""
        if self.shape is None:
            return batch_terms(groups)
        scenario = self.scenario
        minibatches = scenario.minibatches_per_epoch
        return update_terms(self.shape, groups, self._microbatch(groups), scenario.epochs_per_batch, minibatches)

    def sync(self, first: bool) -> Terms:
        """Count what a part of a weight sync moves."""
        terms = self._syncs.get(first)
        if terms is None:
            receivers = self.scenario.placement.generator.count
            terms = sync_terms(self.weight_bytes, self.weight_tensors, receivers, first=first)
            self._syncs[first] = terms
        return terms

    def call(self, groups: Sequence[Group] = ()) -> Terms:
        """Count one way of a call to an actor."""
        key = len(groups), sum([len(lengths) for _, lengths in groups])
        terms = self._calls.get(key)
        if terms is None:
            terms = self._calls[key] = call_terms(groups)
        return terms

    def _microbatch(self, groups: Sequence[Group]) -> int:
        rows = sum([len(lengths) for _, lengths in groups])
        return max(1, -(-rows // (self.scenario.minibatches_per_epoch * self.scenario.gradient_accumulation_steps)))


def decode_steps(lengths: Sequence[int], slots: int) -> int:
    """Return the steps of continuous batching: the place of a response that ends is given to the next one at once.

    A response of n tokens takes n - 1 steps, its first token being the prefill's.

    Args:
        lengths: tokens of each response, in the order in which they are started.
        slots: most responses decoded together.
    """
    ends: list[int] = []
    for length in lengths:
        start = 0 if len(ends) < slots else heappop(ends)
        heappush(ends, start + length - 1)
    return max(ends, default=0)


def sizes_of(groups: Sequence[RolloutGroup]) -> tuple[Group, ...]:
    """Return the tokens of each group's prompt and responses; a prompt that nobody counted has none."""
    return tuple([(group.prompt_length or 0, group.lengths) for group in groups])
