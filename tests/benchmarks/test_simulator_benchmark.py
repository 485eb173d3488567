"""How fast the simulator runs the loop of the real runs. The goal of the project: 640,000 orders in 60 s on one core.

The whole of that is marked slow, and printed, not asserted; ``simulator_speed.py`` prints the table of sizes.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.simulator_speed import CONTROLS, simulate


@pytest.mark.parametrize("control", CONTROLS)
def test_64_generators_over_20_steps(benchmark: BenchmarkFixture, timed: bool, control: str) -> None:
    steps = 20 if timed else 6
    run = benchmark.pedantic(simulate, (64, steps, control), rounds=5, warmup_rounds=1)
    benchmark.extra_info |= {"orders": run.orders, "callbacks": run.callbacks, "spans": run.spans}
    assert run.orders == 64 * steps


@pytest.mark.slow
def test_64_generators_over_10000_steps(benchmark: BenchmarkFixture, timed: bool) -> None:
    steps = 10_000 if timed else 100
    run = benchmark.pedantic(simulate, (64, steps), rounds=1)
    benchmark.extra_info |= {"orders": run.orders, "callbacks": run.callbacks, "spans": run.spans}
    assert run.orders == 64 * steps
