"""What a run prints at its end: a screen, with the numbers of the full tables."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.compare.verdicts import judgements
from harness.report.brief import print_brief
from harness.report.data import read_report_data
from harness.results import find_run_folders

REFERENCE = Path(__file__).parents[2] / "results/reference"


def brief(name: str) -> list[str]:
    (folder,) = (path for path in (REFERENCE / name).iterdir() if path.is_dir())
    material = read_report_data(folder, find_run_folders(folder))
    output = io.StringIO()
    print_brief(Console(file=output, width=80), material, judgements(material.experiment), folder / "report.html")
    return output.getvalue().splitlines()


def words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", ["course", "sync_k", "rdt_nixl", "transport_sweep", "async_lag1"])
def test_it_fits_on_a_screen_and_ends_with_where_everything_else_is(name: str) -> None:
    lines = brief(name)
    assert len(lines) <= 30
    assert max(map(len, lines[:-2])) <= 80
    assert "report.html" in lines[-2]
    assert "harness compare" in lines[-1]


def test_several_variants_are_a_row_each_with_their_cost_against_the_first() -> None:
    lines = brief("sync_k")
    rows = {cells[0]: cells[1:] for line in lines if (cells := line.split()) and cells[0] in ("k1", "k2", "k4", "k8")}
    assert rows["k1"] == ["0.506*", "update", "52.8%", "0.711", "12.0"]
    assert [rows[name][1] for name in ("k2", "k4", "k8")] == ["+78.7%", "+226.0%", "+588.4%"]
    assert "k8 against k1: 6.88 times the seconds per step" in words(lines)


def test_an_experiment_of_blocks_begins_with_its_verdict() -> None:
    assert "different, +77.9%, 95% interval +70.6% to +85.4%." in words(brief("sync_k1-vs-sync_k2"))


def test_the_lever_is_the_stage_that_the_loop_waits_for_most() -> None:
    text = words(brief("sync_k"))
    assert "Largest lever of k1: update." in text
    assert "at most 5.3% off a step" in text
