"""The program of docs/rdt.md runs, and every way brings the same weights."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs/examples/rdt/annotations.py"
WAYS = [
    "no annotation",
    "no annotation, numpy arrays",
    '@ray.method(tensor_transport="nixl")',
    '.options(tensor_transport="nixl")',
    'ray.put(_tensor_transport="nixl"), once',
    '@ray.method(tensor_transport="gloo")',
]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")
def test_the_program_times_every_way_of_the_page() -> None:
    asked = [sys.executable, str(PROGRAM), "--megabytes", "1", "--repeats", "2"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=300)
    rows = [line.strip() for line in done.stdout.splitlines()[1:]]
    assert [row.rpartition(" [")[0].rpartition("  ")[0].strip() for row in rows] == WAYS
