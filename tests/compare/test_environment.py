"""What runs came from: machine, versions, threads, inputs; which groups they form, and what sets them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.compare.comparability import unlike_environments, why_not_comparable
from harness.compare.environment import (
    DIFFERENCES,
    environment_values,
    machine_facts,
    on_gpu,
    origin,
    unlike,
)
from harness.compare.experiment import Member
from harness.compare.judging import judgements
from harness.compare.stats import Verdict
from harness.report.tables import overview_table
from harness.results import Manifest
from tests.stand_ins.members import made_experiment, made_run

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
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}


def test_the_machine_of_a_run_in_words() -> None:
    assert machine_facts(BASE) == ["Abacus 3000", "2 cores", "24 GiB"]
    large = replace(BASE, machine=LARGE)
    assert machine_facts(large) == ["Abacus 9000", "1 core", "96 GiB", "1 x H100", "driver unknown"]
    limits = {"driver": "580.95.05", "max_sm_clock_mhz": 1980, "max_memory_clock_mhz": None, "power_limit_w": 700}
    gpus = [{"name": "H100", **limits}, {"name": "H100", **limits, "power_limit_w": 500}]
    assert machine_facts(replace(BASE, machine=LARGE | {"gpus": gpus}))[3:] == [
        "2 x H100", "driver 580.95.05", "power limit 500 and 700 W", "SM clock up to 1980 MHz",
    ]  # fmt: skip
    assert machine_facts(replace(large, simulated="h100-sxm"))[3:] == ["1 x H100"]
    assert machine_facts(replace(BASE, machine={})) == ["unknown CPU"]


@pytest.mark.parametrize(
    ("change", "names"),
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
def test_what_differs_between_two_runs(change: dict[str, Any], names: tuple[str, ...]) -> None:
    one, two = environment_values(BASE), environment_values(replace(BASE, **change))
    assert tuple(name for name in DIFFERENCES if one[name] != two[name]) == names


def test_the_overview_says_which_machine_where_there_are_several() -> None:
    early, late = made_experiment(made_run()), made_experiment(made_run("a"), made_run("b", machine=LARGE))
    table = overview_table([early, late])
    assert table.header[:4] == ("scenario", "experiment", "machine", "runs")
    assert [row[2:4] for row in table.rows] == [("0123456", "1"), ("0123456+fedcba9", "2")]
    assert table.notes == tuple(unlike([*early.members, *late.members]))
    assert "machine" not in overview_table([early, early]).header


IN_PROCESS: dict[str, Any] = {
    "placement": {"device": "auto", "colocated": False},
    "transport": {"type": "in_process"},
    "model": {"type": "preset"},
}
ACTORS = {
    "placement": {"device": "auto", "generator": {"gpus": 0.5}, "learner": {"gpus": 0.5}},
    "transport": {"type": "nixl"},
}
WITH_CPU = ACTORS | {"placement": {"device": "auto", "generator": {"gpus": 0}, "learner": {"gpus": 0.5}}}
GPU = "2.13.0+cu128"


def device(name: str) -> dict[str, Any]:
    return IN_PROCESS | {"placement": {"device": name, "colocated": False}}


@pytest.mark.parametrize(
    ("settings", "machine", "torch", "alike"),
    [
        (IN_PROCESS, LARGE, GPU, True),
        (IN_PROCESS, LARGE | {"gpus": None}, GPU, False),
        (device("cuda"), LARGE, GPU, True),
        (device("cuda"), LARGE | {"gpus": None}, GPU, True),
        (device("cpu"), LARGE, GPU, False),
        (IN_PROCESS, LARGE, "2.13.0+cpu", False),
        (IN_PROCESS | {"transport": {"type": "gloo"}}, LARGE, GPU, False),  # actors that reserve none
        (IN_PROCESS | {"model": {"type": "paced"}}, LARGE, GPU, False),
        (ACTORS, LARGE, GPU, True),
        (WITH_CPU, LARGE, GPU, False),
        ({"placement": 3}, LARGE, GPU, False),
    ],
)
def test_threads_of_runs_on_a_gpu_do_not_keep_them_apart(
    settings: Mapping[str, Any], machine: dict[str, Any], torch: str, alike: bool
) -> None:
    """Of runs of 16 threads and of 8 on one H100 it was said that their seconds cannot be compared."""
    members = [
        made_run(
            arm, block, steps=12, block=block, threads=threads, machine=machine, versions={"torch": torch},
            settings=settings, started_at=f"2026-11-20T11:15:{block:02}.000Z",
        )
        for block in range(6)
        for arm, threads in (("a", 16), ("b", 8))
    ]  # fmt: skip
    experiment = made_experiment(*members)
    assert on_gpu(members[0]) == alike
    (judged,) = judgements(experiment)
    assert (judged.step.verdict is Verdict.NOT_COMPARABLE, judged.no_gate is None) == (not alike, alike)
    notes = [text for text in unlike(experiment.members) if text.startswith("The thread counts differ: 16, 8")]
    assert ["compute on a GPU" in note for note in notes] == [alike]
    assert bool(why_not_comparable(experiment.arms["a"], experiment.arms["b"], (), one_command=False)) != alike


def test_the_origin_in_one_line() -> None:
    both = made_experiment(made_run("a", versions=VERSIONS), made_run("b", versions=VERSIONS))
    assert origin(both) == (
        "Abacus 3000, 2 cores, 2 threads, 24 GiB, no GPU seen, torch 2.13.0, python 3.11.7, commit abcdef1"
    )
    unlike_threads = made_experiment(made_run("a", dirty=True, machine=LARGE), made_run("b", threads=4))
    assert origin(unlike_threads) == "Abacus 9000, 1 core, 96 GiB, 1 x H100, commit abcdef1 with uncommitted changes"
    simulated = made_experiment(made_run(simulated="h100-sxm"))
    assert origin(simulated).startswith("SIMULATED by the machine profile h100-sxm, ")
    log = made_run(outcome={"imported": {}}, machine={"missing": {"cpu": "not in the log"}})
    assert origin(made_experiment(log)) == "not in the log"


def test_unlike_machines_versions_and_commits_are_said() -> None:
    first = made_run(versions=VERSIONS)
    assert unlike([first, made_run(versions=VERSIONS)]) == []
    other = made_run(
        machine={"fingerprint": "ba9876543210"},
        versions={"python": "3.11.7", "torch": "2.14.0", "ray": "2.60.0"},
        threads=4,
        commit="1234567890",
    )
    assert unlike([first, other]) == [
        "The runs come from 2 kinds of machine (0123456789ab, ba9876543210), on which seconds depend.",
        "The versions of torch differ: 2.13.0, 2.14.0.",
        "The versions of ray differ: none, 2.60.0.",
        "The thread counts differ: 2, 4.",
        "The commits differ: abcdef1, 1234567.",
    ]
    assert unlike([first, made_run(versions=VERSIONS, simulated="abacus")]) == [
        "1 run of 2 were simulated and the others are real: a difference between the two may be an error of the "
        "simulation."
    ]


def test_unlike_inputs_are_named_once_and_other_validation_data_is_a_caution() -> None:
    def made_of(arm: str = "a", **digests: str) -> Member:
        return made_run(arm, inputs={name: {"sha256": digest * 64, "rows": 8} for name, digest in digests.items()})

    one, other = made_of(train_prompts="a", tokenizer="b"), made_of("b", train_prompts="c", tokenizer="b")
    assert unlike([one, one]) == []
    (sentence,) = unlike([one, other, one])
    assert "SHA-256 aaaaaaaaaaaa in 2 runs of a; 8 rows, SHA-256 cccccccccccc in 1 run of b)" in sentence
    assert "tokenizer" not in sentence
    assert unlike([made_run(), one]) == []  # one of them has recorded none
    held_out = unlike([made_of(validation_prompts="a"), made_of(validation_prompts="b")])
    assert len(held_out) == 2
    assert "validation" in held_out[1]
    assert unlike([made_of(**{"trackers[0]": "a", "profile.own[0]": "a"}), made_of(**{"trackers[0]": "b"})]) == []


def test_unlike_operating_systems_are_said_and_unknown_ones_are_no_difference() -> None:
    def on(distribution: str | None, kernel: str) -> Member:
        system = {"system": "Linux", "kernel": kernel, "distribution": distribution}
        return made_run(machine={"fingerprint": "0123456789ab", "os": system})

    debian, other, before = on("Debian GNU/Linux 12", "6.1.0"), on(None, "6.18.44"), made_run()
    assert unlike([before, before]) == unlike([debian, debian]) == []
    assert unlike([debian, other]) == [
        "The operating systems differ: Debian GNU/Linux 12 (kernel 6.1.0), Linux (kernel 6.18.44)."
    ]
    assert unlike([debian, before]) == [
        "The operating system of 1 run is unknown; of the others it is Debian GNU/Linux 12 (kernel 6.1.0)."
    ]
    assert unlike_environments([debian, other, before], set()) == []
