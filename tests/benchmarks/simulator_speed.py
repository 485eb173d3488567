"""How fast the simulator is: the loop of the real runs with many Generators on the virtual clock, on one core.

Each Generator makes one order a step: it loads weights, generates, and a Scorer scores. An *event* is a callback that
the event loop has run; spans are counted beside it. Spans are taken from the tracer after each step, as a run's
recorder does, and counted. ``--profile`` shows where the time of one size goes.

The parts are plain ones, whose stages take a given time, or those of a scenario on a machine profile (``--parts
priced``), which count tokens, calls to actors and bookkeeping for each stage.

    python -m tests.benchmarks.simulator_speed
    python -m tests.benchmarks.simulator_speed --parts priced --generators 1 8 64
    python -m tests.benchmarks.simulator_speed --generators 64 --orders 64000 --lag-control drop
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import pstats
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harness.core.protocols import Generator, Learner, Scorer
from harness.core.trace import RecordingTracer
from harness.loop import LoopPlan, Observer, StepReport, run_loop
from harness.settings.replay import ReplaySettings
from harness.simulate.clock import VirtualClockLoop, run_virtual
from tests.stand_ins.simulated_parts import constant, simulated_generator, simulated_learner, simulated_scorer

GENERATORS = (1, 8, 64, 512)
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

    @property
    def per_s(self) -> float:
        """Callbacks in a second on the wall."""
        return self.callbacks / self.seconds


class Counting(Observer):
    """Takes the spans away after each step, and counts them and the orders that were trained on."""

    def __init__(self, tracer: RecordingTracer) -> None:
        self.tracer, self.spans, self.orders = tracer, 0, 0

    def on_step(self, facts: StepReport) -> None:
        self.spans += len(self.tracer.drain())
        self.orders += len(facts.scored)


Parts = tuple[Sequence[Generator], Sequence[Scorer], Learner, LoopPlan]


def plain_parts(generators: int, steps: int, control: str, tracer: RecordingTracer) -> Parts:
    """One prompt for each Generator; ``replay`` is ``wait`` with a buffer of four batches."""
    parts: list[Generator] = [
        simulated_generator(
            tracer,
            constant(8.0 + 0.001 * index),  # no two end at the same time
            transfer_cost=constant(0.1),
            load_cost=constant(0.3),
            lane=f"generator{index}",
        )
        for index in range(generators)
    ]
    scorers: list[Scorer] = [
        simulated_scorer(tracer, constant(0.01), f"scorer{index}") for index in range(scorers_for(generators))
    ]
    learner: Learner = simulated_learner(tracer, constant(5.0), constant(1.0))
    prompts = tuple(range(generators))
    capacity = 4 * generators if control == "replay" else 0
    replay = ReplaySettings(capacity=capacity, max_age=4, sample_groups=generators)
    lag_control: Any = "wait" if control == "replay" else control
    return parts, scorers, learner, LoopPlan(steps, GROUP_SIZE, 1, 1, lambda step: prompts, (), 0, lag_control, replay)


def priced_parts(generators: int, steps: int, control: str, tracer: RecordingTracer) -> Parts:
    """The same sizes as a scenario of a tiny model on a machine profile, every part with a device of its own."""
    from harness.scenario.schema import Scenario
    from harness.simulate.machine import Device, MachineProfile, StageCost
    from harness.simulate.simulated_run import build_run

    stages = {
        "generate": {"decode_step": 0.25, "response": 0.01},
        "score": {"call": 0.01},
        "prepare_batch": {"token": 1e-6},
        "old_logprobs": {"microbatch": 0.5},
        "update": {"optimizer_step": 4.5},
        "weight_publish": {"call": 1.0},
        "weight_transfer": {"call": 0.1},
        "weight_load": {"call": 0.3},
        "weight_verify": {"call": 0.05},
        "call": {"call": 0.002},
        "record": {"call": 0.01},
    }
    costs = tuple(StageCost(stage=stage, seconds=seconds) for stage, seconds in stages.items())
    machine = MachineProfile(
        name="made up", made="2026-11-21", device=Device(name="made up"), sources=("made up",), stages=costs
    )
    replay = {"replay": {"capacity": 4 * generators, "max_age": 4, "sample_groups": generators}}
    settings: dict[str, Any] = dict(
        model={"type": "preset", "preset": "tiny", "threads": 1},
        sampling={"max_tokens": 32, "pinned_lengths": (24, 24)},
        steps=steps,
        rollout_batch_size=GROUP_SIZE * generators,
        group_size=GROUP_SIZE,
        max_lag=1,
        evaluation={"every": steps, "prompts": 1},
        placement={
            "colocated": False,
            "generator": {"count": generators},
            "scorer": {"count": scorers_for(generators)},
        },
        transport={"type": "object_store"},
        save_policy=False,
        **(replay if control == "replay" else {"lag_control": control}),
    )
    world = build_run(Scenario(**settings), machine, tracer)
    return world.generators, world.scorers, world.learner, world.plan


def scorers_for(generators: int) -> int:
    """One Scorer for so many Generators."""
    return max(1, generators // GENERATORS_PER_SCORER)


def simulate(generators: int, steps: int, control: str = "wait", parts: str = "plain") -> Speed:
    """Run the loop once."""
    make = priced_parts if parts == "priced" else plain_parts

    async def main(tracer: RecordingTracer) -> Speed:
        made, counting = make(generators, steps, control, tracer), Counting(tracer)
        gc.collect()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        await run_loop(*made, tracer, counting)
        seconds, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        spans = counting.spans + len(tracer.drain())
        return Speed(generators, steps, counting.orders, loop.callbacks, spans, seconds, cpu_s)

    return run_virtual(main)[0]


def linear_fit(speeds: Sequence[Speed]) -> tuple[float, float]:
    """Return the exponent of CPU seconds in callbacks (1: linear), and the largest over the smallest time of one."""
    callbacks, cpu_s = (np.array([getattr(speed, name) for speed in speeds]) for name in ("callbacks", "cpu_s"))
    exponent = np.polyfit(np.log(callbacks), np.log(cpu_s), 1)[0]
    each = cpu_s / callbacks
    return float(exponent), float(each.max() / each.min())


def show(speeds: Sequence[Speed], control: str, parts: str) -> None:
    """Print a line for each size, and whether the cost is linear."""
    table = Table(title=f"Simulated runs on one core: {parts} parts, lag control {control}")
    for column in ("Generators", "steps", "orders", "seconds", "CPU s", "callbacks", "spans", "callbacks/s", "us"):
        table.add_column(column, justify="right")
    for speed in speeds:
        counts = [f"{number:,}" for number in (speed.generators, speed.steps, speed.orders)]
        events = [f"{number:,}" for number in (speed.callbacks, speed.spans, round(speed.per_s))]
        table.add_row(
            *counts, f"{speed.seconds:.2f}", f"{speed.cpu_s:.2f}", *events, f"{1e6 * speed.cpu_s / speed.callbacks:.2f}"
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    callbacks = [speed.callbacks for speed in speeds]
    if max(callbacks) > 4 * min(callbacks):
        exponent, spread = linear_fit(speeds)
        console.print(
            f"CPU seconds grow as callbacks^{exponent:.3f}; a callback costs up to {spread:.2f} times the least"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure how fast the simulator is.",
        epilog="example:\n  python -m tests.benchmarks.simulator_speed --generators 8 64 --orders 64000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--generators", type=int, nargs="+", default=GENERATORS, help="numbers of them (1 8 64 512)")
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"at most so many in a run ({ORDERS})")
    parser.add_argument("--lag-control", choices=CONTROLS, default="wait", help="or a replay buffer beside wait (wait)")
    parser.add_argument("--parts", choices=("plain", "priced"), default="plain", help="what is simulated (plain)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--profile", action="store_true", help="show the functions that take the time of one size")
    arguments = parser.parse_args()
    if min(arguments.generators) < 1 or arguments.orders < max(arguments.generators):
        parser.error("--generators must be at least 1, and --orders at least as many")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    speeds, control, parts = [], arguments.lag_control, arguments.parts
    simulate(1, 2, control, parts)  # what is imported at the first use is imported
    for generators in arguments.generators:
        steps = min(MOST_STEPS, arguments.orders // generators)
        if arguments.profile:
            with cProfile.Profile() as profile:
                simulate(generators, steps, control, parts)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        else:
            speeds.append(simulate(generators, steps, control, parts))
    if speeds:
        show(speeds, control, parts)
    if arguments.json:
        draft = arguments.json.with_name(arguments.json.name + ".draft")
        draft.write_text(json.dumps([asdict(speed) for speed in speeds], indent=1) + "\n")
        os.replace(draft, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
