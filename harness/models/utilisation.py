"""``perf/mfu`` of a training step: what the update's products are of what the Learner's GPU could have done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics, RolloutGroup
from harness.models.flops import mfu, peak_flops, training_flops, work_of
from harness.models.scenario_shape import shape_for
from harness.models.shape import Shape
from harness.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Turns a training step's groups and spans into ``perf/mfu``.

    Attributes:
        shape: of the policy; None where it or the peak is not known, and there is no metric.
        peak: operations a second that the Learner's GPU is specified for.
        epochs: passes over a rollout batch.
    """

    shape: Shape | None = None
    peak: float = 0.0
    epochs: int = 1

    def metrics(self, step: int, groups: Sequence[RolloutGroup], spans: Sequence[Span]) -> Metrics:
        """Return ``perf/mfu`` of the ``update`` stage alone: all passes, forward and back, nothing computed twice.

        Args:
            step: the training step.
            groups: that it trained on.
            spans: that ended in it.
        """
        nanoseconds = sum(s.end_ns - s.start_ns for s in spans if s.stage is Stage.UPDATE and s.step == step)
        sizes = [(group.prompt_length, group.lengths) for group in groups if group.prompt_length is not None]
        if self.shape is None or nanoseconds <= 0 or len(sizes) < len(groups):
            return {}
        work = work_of(sizes, shares_prompt=self.shape.runs_on == "own")
        return {"perf/mfu": Metric(mfu(self.epochs * training_flops(self.shape, work), nanoseconds / 1e9, self.peak))}


def utilisation_of(scenario: Scenario, gpus: Sequence[Mapping[str, Any]]) -> Utilisation:
    """Return what turns this run's steps into ``perf/mfu``; it gives none where shape or peak is not known.

    Args:
        scenario: the resolved scenario.
        gpus: those that the Learner may compute on, with their ``name``; none where it computes on a CPU. GPUs of
            several peaks give no metric: which of them is the Learner's is not known.
    """
    model: Any = scenario.model
    narrow = "bfloat16" in (model.precision, getattr(model, "dtype", "float32"))
    peaks = {peak_flops(gpu["name"], "bfloat16" if narrow else "float32") for gpu in gpus}
    peak = peaks.pop() if len(peaks) == 1 else None
    shape = None if peak is None else shape_for(scenario)[0]
    return Utilisation(shape, peak or 0.0, scenario.epochs_per_batch)
