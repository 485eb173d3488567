"""``pytest --benchmark-only`` collects the benchmarks alone, without the long ones; other commands collect all."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest

HERE = Path(__file__).parent


@pytest.mark.parametrize("only", [False, True])
def test_what_is_collected(only: bool) -> None:
    config = SimpleNamespace(option=SimpleNamespace(benchmark_only=only, markexpr=""))
    ignored = {
        path.name: bool(conftest.pytest_ignore_collect(path, config))
        for path in (HERE / "grpo", HERE / "test_setup.py", HERE / "benchmarks", HERE / "benchmarks" / "test_x.py")
    }
    assert ignored == {"grpo": only, "test_setup.py": only, "benchmarks": False, "test_x.py": False}


@pytest.mark.parametrize(
    ("only", "typed", "expression"), [(True, "", "not slow"), (True, "slow", "slow"), (False, "", "")]
)
def test_the_long_ones_are_left_out_unless_others_are_asked_for(only: bool, typed: str, expression: str) -> None:
    config = SimpleNamespace(option=SimpleNamespace(benchmark_only=only, markexpr=typed))
    conftest.pytest_configure(config)
    assert config.option.markexpr == expression
