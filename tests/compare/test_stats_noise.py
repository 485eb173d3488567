"""What error rates are measured with: the noise that is simulated, and the scripts that count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def measure(script: str, *arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", f"tests.benchmarks.{script}", *arguments], cwd=ROOT, check=True)


def test_the_recorded_step_seconds_give_the_committed_rates(tmp_path: Path) -> None:
    files = (tmp_path / "rates.json", ROOT / "docs/measured/noise_rates.json")
    measure("false_alarm_rates", ROOT / "docs/measured/noise_step_seconds.json", "--json", files[0])
    made, committed = (json.loads(path.read_text()) for path in files)
    assert made["log_ratios"]["noise_step_seconds"] == pytest.approx(committed["log_ratios"]["noise_step_seconds"])
    hits = [[(line["experiments"], line["excludes"]["hits"]) for line in data["rates"]] for data in (made, committed)]
    assert hits[0] == hits[1]


@pytest.mark.slow
def test_simulated_rates_are_written_with_their_counts(tmp_path: Path) -> None:
    files = ("--json", tmp_path / "rates.json", "--markdown", tmp_path / "rates.md")
    measure("verdict_rates", "--experiments", "8", *files)
    tables = {table["name"]: table for table in json.loads((tmp_path / "rates.json").read_text())["tables"]}
    assert {cell["trials"] for row in tables["coverage"]["rows"] for cell in row[1:]} == {8}
    assert (tmp_path / "rates.md").read_text().count("\n## ") == len(tables) == 8
