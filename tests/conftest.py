"""One thread for every test: two of them wait for each other many times longer where other work has a core."""

import os
from pathlib import Path

import pytest

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is first imported, here and in child processes
    os.environ.setdefault(name, "1")

pytest_plugins = ["tests.rank_pool", "tests.run_folders", "tests.extras"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags of tests/compare/test_golden.py and tests/test_messages.py."""
    parser.addoption("--update-golden", action="store_true", help="store the figures of recorded runs as they are now")
    parser.addoption("--update-messages", action="store_true", help="store the messages of tests/test_messages.py")


def pytest_configure(config: pytest.Config) -> None:
    """With ``--benchmark-only``: the benchmarks of some seconds, where no ``-m`` asks for others."""
    if config.option.benchmark_only and not config.option.markexpr:
        config.option.markexpr = "not slow"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--benchmark-only``: only they are imported, since importing every test takes longer than they do."""
    other = collection_path.parent == Path(__file__).parent and collection_path.name != "benchmarks"
    return True if config.option.benchmark_only and other else None
