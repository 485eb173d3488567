"""How fast the simulator runs the loop of the real runs. The goal of the project: 640,000 orders in 60 s on one core.

The whole of that is marked slow, and printed, not asserted; ``simulator_speed.py`` prints the table of sizes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


@pytest.fixture(scope="module")
def speed() -> ModuleType:
    """The script beside this file."""
    spec = importlib.util.spec_from_file_location("simulator_speed", Path(__file__).with_name("simulator_speed.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("control", ["wait", "drop", "in_flight", "replay"])
def test_64_generators_over_20_steps(benchmark: BenchmarkFixture, speed: ModuleType, control: str) -> None:
    run = benchmark.pedantic(speed.simulate, (64, 20, control), rounds=5, warmup_rounds=1)
    benchmark.extra_info |= {"orders": run.orders, "callbacks": run.callbacks, "spans": run.spans}
    assert run.orders == 64 * 20


@pytest.mark.slow
def test_64_generators_over_10000_steps(benchmark: BenchmarkFixture, speed: ModuleType) -> None:
    run = benchmark.pedantic(speed.simulate, (64, 10_000), rounds=1)
    benchmark.extra_info |= {"orders": run.orders, "callbacks": run.callbacks, "spans": run.spans}
    assert run.orders == 640_000
