"""How fast the simulator is: the loop of the real runs with many Generators on the virtual clock, on one core.

Each Generator makes one order a step: it loads weights, generates, and a Scorer scores; stages take a given time. A
callback is one that the event loop has run. Spans are taken from the tracer after each step, as a run's recorder does.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.core.protocols import Generator, Learner, Scorer
from harness.core.trace import RecordingTracer
from harness.loop import LoopPlan, Observer, StepReport, run_loop
from harness.report.document import Table
from harness.settings.replay import ReplaySettings
from harness.simulate.clock import VirtualClockLoop, run_virtual
from tests.benchmarks.runner import counted, parser, publish
from tests.stand_ins.simulated_parts import constant, simulated_generator, simulated_learner, simulated_scorer

EXAMPLE = "python -m tests.benchmarks.simulator_speed --generators 8 64 --orders 64000 --lag-control drop"
ORDERS = 640_000  # 64 Generators over 10,000 steps
MOST_STEPS = 10_000
GROUP_SIZE, GENERATORS_PER_SCORER = 4, 8
CONTROLS = ("wait", "drop", "in_flight", "replay")


@dataclass(frozen=True)
class Speed:
    """One simulated run: what it did and the seconds that it took, on the wall and of a core's work."""

    generators: int
    steps: int
    orders: int
    callbacks: int
    spans: int
    seconds: float
    cpu_s: float


class Counting(Observer):
    """Takes the spans away after each step, and counts them and the orders that were trained on."""

    def __init__(self, tracer: RecordingTracer) -> None:
        self.tracer, self.spans, self.orders = tracer, 0, 0

    def on_step(self, facts: StepReport) -> None:
        self.spans += len(self.tracer.drain())
        self.orders += len(facts.scored)


def simulate(generators: int, steps: int, control: str = "wait") -> Speed:
    """Run the loop once, with one prompt for each Generator; ``replay`` is ``wait`` with a buffer of four batches."""

    async def main(tracer: RecordingTracer) -> Speed:
        made: list[Generator] = [
            simulated_generator(
                tracer,
                constant(8.0 + 0.001 * index),  # no two end at the same time
                transfer_cost=constant(0.1),
                load_cost=constant(0.3),
                lane=f"generator{index}",
            )
            for index in range(generators)
        ]
        num_scorers = max(1, generators // GENERATORS_PER_SCORER)
        scorers: list[Scorer] = [
            simulated_scorer(tracer, constant(0.01), f"scorer{index}") for index in range(num_scorers)
        ]
        learner: Learner = simulated_learner(tracer, constant(5.0), constant(1.0))
        prompts, capacity = tuple(range(generators)), 4 * generators if control == "replay" else 0
        replay = ReplaySettings(capacity=capacity, max_age=4, sample_groups=generators)
        lag_control: Any = "wait" if control == "replay" else control
        plan = LoopPlan(steps, GROUP_SIZE, 1, 1, lambda step: prompts, (), 0, lag_control, replay)
        counting = Counting(tracer)
        gc.collect()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        await run_loop(made, scorers, learner, plan, tracer, counting)
        seconds, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        counting.spans += len(tracer.drain())
        return Speed(generators, steps, counting.orders, loop.callbacks, counting.spans, seconds, cpu_s)

    return run_virtual(main)[0]


def table(speeds: Sequence[Speed], control: str) -> Table:
    """Return a line for each size, and whether the cost is linear."""
    rows = []
    for speed in speeds:
        counts = (speed.generators, speed.steps, speed.orders, speed.callbacks, speed.spans)
        each_us = f"{1e6 * speed.cpu_s / speed.callbacks:.2f}"
        rows.append((*(f"{count:,}" for count in counts), f"{speed.seconds:.2f}", f"{speed.cpu_s:.2f}", each_us))
    header = ("Generators", "steps", "orders", "callbacks", "spans", "seconds", "CPU s", "us of a callback")
    callbacks, cpu_s = (np.array([getattr(speed, name) for speed in speeds]) for name in ("callbacks", "cpu_s"))
    notes = []
    if callbacks.max() > 4 * callbacks.min():
        exponent = np.polyfit(np.log(callbacks), np.log(cpu_s), 1)[0]
        notes.append(f"CPU seconds grow as callbacks^{exponent:.3f}.")
    return Table(f"Simulated runs on one core, lag control {control}", header, tuple(rows), tuple(notes), words=0)


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--generators", type=int, nargs="+", default=(1, 8, 64, 512), help="numbers of them (1 8 64 512)")
    made.add_argument("--orders", type=int, default=ORDERS, help=f"at most so many in a run ({ORDERS})")
    made.add_argument("--lag-control", choices=CONTROLS, default="wait", help="or a replay buffer beside wait (wait)")
    options = made.parse_args()
    if min(options.generators) < 1 or options.orders < max(options.generators):
        made.error("--generators must be at least 1, and --orders at least as many")
    simulate(1, 2, options.lag_control)  # what is imported at the first use is imported
    speeds = [
        simulate(generators, min(MOST_STEPS, options.orders // generators), options.lag_control)
        for generators in counted(options.generators, len(options.generators), "runs")
    ]
    publish("Speed of the simulator", [table(speeds, options.lag_control)], options, speeds=speeds)


if __name__ == "__main__":
    main()
