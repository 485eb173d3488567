"""A benchmark-and-simulation harness for GRPO post-training of language models.

From Python, beside the command line; see docs/python.md.

Examples:
    >>> import harness
    >>> results = harness.load_results("results/reference/sync_k")
    >>> medians = results.steps.query("not is_warmup").groupby("arm")["wall_s"].median()
    >>> comparison = harness.compare_runs("results/reference/sync_k")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.interactive import compare_runs, load_scenario, run_scenario, simulate_scenario
    from harness.results.frames import load_results

__version__ = "0.1.0"
__all__ = ["__version__", "compare_runs", "load_results", "load_scenario", "run_scenario", "simulate_scenario"]
_HOME = {"load_results": "harness.results.frames"}


def __getattr__(name: str) -> Any:
    """Import a function of the public interface when it is first asked for: ``import harness`` stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "harness.interactive")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
