"""The names that others use, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import harness.compare.stats


def test_every_public_name_is_there_and_documented() -> None:
    for name in harness.compare.stats.__all__:
        assert getattr(harness.compare.stats, name) is not None
        if callable(getattr(harness.compare.stats, name)):
            assert getattr(harness.compare.stats, name).__doc__


def test_importing_it_loads_neither_scipy_nor_anything_heavier() -> None:
    heavy = ("scipy", "torch", "ray", "pandas", "pydantic")
    code = f"import sys, harness.compare.stats; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
