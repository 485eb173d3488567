"""The one training loop: synchronous k-step, bounded-lag asynchronous and replay are settings of it.

Plain asyncio over the protocols: no threads, no wall clock, no Ray, no torch, so that the parts may be in-process
objects, Ray actors or simulated stages on a virtual clock. Batches and weights pass through as handles.
"""

from harness.loop.condition import Condition
from harness.loop.loop import first_error, run_loop
from harness.loop.observer import Count, Observer, RolloutCounts, StepReport, Throttle
from harness.loop.plan import LagControl, LoopPlan
from harness.loop.state import Checkpoints, LoopState

__all__ = [
    "Checkpoints",
    "Condition",
    "Count",
    "LagControl",
    "LoopPlan",
    "LoopState",
    "Observer",
    "RolloutCounts",
    "StepReport",
    "Throttle",
    "first_error",
    "run_loop",
]
