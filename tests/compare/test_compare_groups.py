"""Groups of runs made under the same conditions: which they are, and what sets them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare.caveats import DIFFERENCES, caveats, environment, group_letter, groups, legend, letters_of
from harness.compare.comparability import environment_values, why_not_comparable
from harness.compare.experiments import gather
from harness.compare.stats import Verdict
from harness.compare.tables import overview_table
from harness.compare.verdicts import judgements
from harness.results import Manifest, RunFolder

Make = Callable[..., RunFolder]
LARGE = {"cpu": "Abacus 9000", "cores": 1, "memory_gib": 96, "gpus": [{"name": "H100"}], "fingerprint": "fedcba987654"}
BASE = Manifest(
    scenario="sync_k",
    experiment="20261120-111500",
    started_at="2026-11-20T11:15:00.000Z",
    versions={"torch": "2.13.0", "python": "3.11.7"},
    machine={"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"},
    threads=2,
    commit="abcdef1",
)


def test_the_environment_of_a_run_in_words() -> None:
    assert environment(BASE).label == (
        "Abacus 3000, 2 cores, 24 GiB (machine 0123456789ab), 2 threads, python 3.11.7, torch 2.13.0"
    )
    large = environment(replace(BASE, machine=LARGE, threads=1))
    assert large.label == (
        "Abacus 9000, 1 core, 96 GiB, 1 x H100, driver unknown (machine fedcba987654), 1 thread, "
        "python 3.11.7, torch 2.13.0"
    )
    limits = {"driver": "580.95.05", "max_sm_clock_mhz": 1980, "max_memory_clock_mhz": None, "power_limit_w": 700}
    gpus = [{"name": "H100", **limits}, {"name": "H100", **limits, "power_limit_w": 500}]
    assert environment(replace(BASE, machine=LARGE | {"gpus": gpus})).facts == (
        "Abacus 9000, 1 core, 96 GiB, 2 x H100, driver 580.95.05, power limit 500 and 700 W, SM clock up to 1980 MHz"
    )
    simulated = environment(replace(BASE, machine=LARGE, simulated="h100-sxm"))
    assert simulated.facts == "Abacus 9000, 1 core, 96 GiB, 1 x H100"
    assert environment(replace(BASE, machine={}, versions={}, threads=None)).label == "unknown CPU (machine unknown)"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, ()),
        ({"seed": 3, "arm": "k2", "dirty": True}, ()),
        ({"machine": LARGE}, ("machine",)),
        ({"versions": {"torch": "2.14.0", "python": "3.11.7"}}, ("versions",)),
        ({"versions": {"torch": "2.13.0", "python": "3.11.7", "ray": "2.60.0"}}, ("versions",)),
        ({"threads": 4}, ("threads",)),
        ({"threads": None}, ("threads",)),  # unknown is not alike
        ({"commit": "1234567"}, ("commit",)),
        ({"commit": None}, ("commit",)),
        ({"simulated": "abacus"}, ("simulation",)),
        ({"commit": "1234567", "threads": 1, "machine": LARGE}, ("machine", "threads", "commit")),
    ],
)
def test_what_differs_between_two_runs(change: dict[str, object], found: tuple[str, ...]) -> None:
    other = replace(BASE, **change)  # type: ignore[arg-type]
    one, two = environment_values(BASE), environment_values(other)
    assert tuple(name for name in DIFFERENCES if one[name] != two[name]) == found


def test_one_group_is_not_worth_a_word(make_run: Make, tmp_path: Path) -> None:
    make_run(arm="k1")
    make_run(arm="k2")
    experiments, _ = gather([tmp_path / "results"])
    (group,) = groups(experiments)
    assert (group.letter, group.runs, group.differs) == ("A", 2, "")
    assert legend([group]) == ()
    table = overview_table(experiments)
    assert (table.header[:3], table.notes) == (("scenario", "experiment", "runs"), ())


def test_groups_stand_side_by_side_with_a_legend_of_what_differs(make_run: Make, tmp_path: Path) -> None:
    versions = {"python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0"}
    make_run(scenario="early", experiment="20261119-000000", started_at="2026-11-19T00:00:00.000Z")
    make_run(arm="k1")
    make_run(arm="k2", machine=LARGE, versions=versions)
    make_run(arm="k4", machine=LARGE, versions=versions)
    experiments, _ = gather([tmp_path / "results"])
    found = groups(experiments)
    assert [letters_of(experiment, found) for experiment in experiments] == ["A", "A+B"]
    assert legend(found) == (
        "In A (2 runs): Abacus 3000, 2 cores, 24 GiB (machine 0123456789ab), no ray.",
        "In B (2 runs): Abacus 9000, 1 core, 96 GiB, 1 x H100, driver unknown (machine fedcba987654), ray 2.60.0.",
        "Seconds of one of these groups cannot be compared with those of another.",
    )
    table = overview_table(experiments)
    assert table.header[:4] == ("scenario", "experiment", "in", "runs")
    assert [row[:4] for row in table.rows] == [
        ("early", "20261119-000000", "A", "1"),
        ("sync_k", "20261120-111500", "A+B", "3"),
    ]
    assert (table.notes, table.words) == (legend(found), 3)


ON_GPU = "placement: {device: auto, colocated: false}\ntransport: {type: in_process}\n"
ACTORS_ON_GPU = "placement: {device: auto, generator: {gpus: 0.5}, learner: {gpus: 0.5}}\ntransport: {type: nixl}\n"


@pytest.mark.parametrize(
    ("settings", "torch", "alike"),
    [
        (ON_GPU, "2.13.0+cu128", True),
        (ON_GPU.replace("auto", "cuda"), "2.13.0+cu128", True),
        (ON_GPU.replace("auto", "cpu"), "2.13.0+cu128", False),
        (ON_GPU, "2.13.0+cpu", False),
        (ON_GPU.replace("in_process", "gloo"), "2.13.0+cu128", False),  # actors that reserve none
        (ACTORS_ON_GPU, "2.13.0+cu128", True),
        (ACTORS_ON_GPU.replace("generator: {gpus: 0.5}", "generator: {gpus: 0}"), "2.13.0+cu128", False),
    ],
)
def test_threads_of_runs_on_a_gpu_do_not_keep_them_apart(
    make_run: Make, tmp_path: Path, settings: str, torch: str, alike: bool
) -> None:
    """Of runs of 16 threads and of 8 on one H100 it was said that their seconds cannot be compared."""
    for block in range(6):
        for arm, threads in (("sync", 16), ("lag1", 8)):
            make_run(
                arm=arm, block=block, seed=block, threads=threads, machine=LARGE, versions={"torch": torch},
                settings=f"steps: 4\n{settings}",
            )  # fmt: skip
    experiments, _ = gather([tmp_path / "results"])
    *_, said = legend(groups(experiments))
    assert said.startswith("A and B compute on a GPU") == alike
    assert ("cannot be compared" in said) != alike
    (judged,) = judgements(experiments[0])
    assert (judged.step.verdict is Verdict.NOT_COMPARABLE, judged.no_gate is None) == (not alike, alike)
    notes = [text for text in caveats(experiments[0]) if text.startswith("The thread counts differ: 8, 16")]
    assert ["compute on a GPU" in note for note in notes] == [alike]
    runs = experiments[0].runs
    assert bool(why_not_comparable(runs[:6], runs[6:], (), one_command=False)) != alike


def test_groups_on_gpus_stay_apart_from_other_machines(make_run: Make, tmp_path: Path) -> None:
    for experiment, threads in (("1", 16), ("2", 8)):
        make_run(experiment=experiment, threads=threads, machine=LARGE, settings=ON_GPU)
    make_run(experiment="3")
    experiments, _ = gather([tmp_path / "results"])
    said = legend(groups(experiments))
    assert said[3] == "Seconds of one of these groups cannot be compared with those of another."
    assert said[4].startswith("A and B compute on a GPU")


def test_letters_go_on_after_z() -> None:
    assert [group_letter(index) for index in (0, 25, 26, 27, 51, 52, 701, 702)] == [
        "A", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip
