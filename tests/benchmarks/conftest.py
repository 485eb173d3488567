"""What every saved benchmark says of itself: machine, versions, code and threads; and what it must not say."""

from __future__ import annotations

import platform
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.probes.provenance import code_state, machine_facts, package_versions

COMMIT_FACTS = ("id", "time", "dirty")


@pytest.fixture(scope="session")
def timed(request: pytest.FixtureRequest) -> bool:
    """Whether anything is timed; else each body runs once, and the dear ones are smaller."""
    return not request.config.option.benchmark_disable


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Where torch is loaded, give it one thread."""
    torch = sys.modules.get("torch")
    before = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count bfloat16 among the long ones on a CPU without instructions for it, where it takes many times as long."""
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.path.parent == Path(__file__).parent and given.get("precision") == "bfloat16":
            import torch

            if not torch.cpu._is_avx512_bf16_supported():
                item.add_marker("slow")


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    """Describe the kind of machine. The default would name the host and the folders of whoever ran this."""
    python = {"python_implementation": platform.python_implementation(), "python_version": platform.python_version()}
    return {"system": platform.system(), "machine": platform.machine()} | python | machine_facts()


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    """Keep the commit; drop the names of the branch and of the folder."""
    for name in commit_info.keys() - set(COMMIT_FACTS):
        del commit_info[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the harness's facts to a benchmark, while the threads are still those that it ran with."""
    result = yield
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if benchmark is not None:
        threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
        benchmark.extra_info["harness"] = facts() | {"threads": threads}
    return result


@cache
def facts() -> dict[str, Any]:
    """Return what does not change while the benchmarks run."""
    code = code_state()
    known = {"fingerprint": machine_facts()["fingerprint"], "versions": package_versions()}
    return known | {"commit": code.commit, "dirty": code.dirty}
