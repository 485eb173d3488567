"""A benchmark-and-simulation harness for GRPO post-training of language models.

Examples:
    >>> import harness
    >>> results = harness.load_results("results/reference/sync_k")
    >>> medians = results.steps.query("not is_warmup").groupby("arm")["wall_s"].median()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.results.frames import Results

__version__ = "0.1.0"
__all__ = ["__version__", "load_results"]


def load_results(folder: str | Path) -> Results:
    """Read every run at or below a folder, those of older versions too, as typed runs and pandas frames.

    Raises:
        harness.core.errors.UserError: there is no such folder, or no run in it.
    """
    from harness.results import frames

    return frames.load_results(folder)
