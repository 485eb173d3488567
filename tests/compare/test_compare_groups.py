"""What runs have to share for their times to be compared: groups of runs, and why two sets of them are not alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.compare.comparability import why_not_comparable
from harness.compare.environment import (
    DIFFERENCES,
    environment_values,
    group_letter,
    groups,
    legend,
    letters_of,
    unlike,
)
from harness.compare.experiment import Experiment, Member
from harness.compare.judging import judgements
from harness.compare.stats import Verdict
from harness.probes.provenance import fingerprint
from harness.report.tables import overview_table
from harness.results import Manifest
from harness.results.manifest import PROMPT_TEMPLATE, Input
from tests.stand_ins.members import made_experiment, made_run

SMALL = {"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"}
LARGE = {"cpu": "Abacus 9000", "cores": 1, "memory_gib": 96, "gpus": [{"name": "H100"}], "fingerprint": "fedcba987654"}
VERSIONS: dict[str, str | None] = {"torch": "2.13.0", "python": "3.11.7"}
BASE = Manifest(
    scenario="sync_k",
    experiment="20261120-111500",
    started_at="2026-11-20T11:15:00.000Z",
    versions=VERSIONS,
    machine=SMALL,
    threads=2,
    commit="abcdef1",
)


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
def test_what_differs_between_two_runs(change: dict[str, object], names: tuple[str, ...]) -> None:
    other = replace(BASE, **change)  # type: ignore[arg-type]
    one, two = environment_values(BASE), environment_values(other)
    assert tuple(name for name in DIFFERENCES if one[name] != two[name]) == names


# ---- groups


def of_machines(*machines: Mapping[str, Any], **fields: Any) -> Experiment:
    return made_experiment(*(made_run(f"k{n}", machine=each, **fields) for n, each in enumerate(machines)))


def test_one_group_is_not_worth_a_word() -> None:
    experiment = of_machines(SMALL, SMALL, versions=VERSIONS)
    (group,) = groups([experiment])
    assert (group.letter, group.runs, group.differs) == ("A", 2, "")
    assert legend([group]) == ()
    table = overview_table([experiment])
    assert (table.header[:3], table.notes) == (("scenario", "experiment", "runs"), ())


def test_groups_stand_side_by_side_with_a_legend_of_what_differs() -> None:
    early = of_machines(SMALL, versions=VERSIONS)
    runs = [made_run("k1", versions=VERSIONS)]
    runs += [made_run(arm, machine=LARGE, versions=VERSIONS | {"ray": "2.60.0"}) for arm in ("k2", "k4")]
    experiments = [early, made_experiment(*runs)]
    every = groups(experiments)
    assert [letters_of(experiment, every) for experiment in experiments] == ["A", "A+B"]
    assert legend(every)[:2] == (
        "A (2 runs): Abacus 3000, 2 cores, 24 GiB (machine 0123456789ab), no ray.",
        "B (2 runs): Abacus 9000, 1 core, 96 GiB, 1 x H100, driver unknown (machine fedcba987654), ray 2.60.0.",
    )
    table = overview_table(experiments)
    assert table.header[:4] == ("scenario", "experiment", "in", "runs")
    assert [row[2:4] for row in table.rows] == [("A", "1"), ("A+B", "3")]
    assert (table.notes, table.words) == (legend(every), 3)


ON_GPU = {"placement": {"device": "auto", "colocated": False}, "transport": {"type": "in_process"}}
HALF = {"gpus": 0.5}
ACTORS = {"placement": {"device": "auto", "generator": HALF, "learner": HALF}, "transport": {"type": "nixl"}}


@pytest.mark.parametrize(
    ("settings", "torch", "alike"),
    [
        (ON_GPU, "2.13.0+cu128", True),
        (ON_GPU | {"placement": {"device": "cuda"}}, "2.13.0+cu128", True),
        (ON_GPU | {"placement": {"device": "cpu"}}, "2.13.0+cu128", False),
        (ON_GPU, "2.13.0+cpu", False),
        (ON_GPU | {"transport": {"type": "gloo"}}, "2.13.0+cu128", False),  # actors that reserve none
        (ACTORS, "2.13.0+cu128", True),
        (
            ACTORS | {"placement": {"device": "auto", "generator": {"gpus": 0}, "learner": HALF}},
            "2.13.0+cu128",
            False,
        ),
    ],
)
def test_threads_of_runs_on_a_gpu_do_not_keep_them_apart(settings: dict[str, object], torch: str, alike: bool) -> None:
    """Of runs of 16 threads and of 8 on one H100 it was said that their seconds cannot be compared."""
    fields: dict[str, Any] = {"machine": LARGE, "versions": {"torch": torch}, "settings": settings}
    runs = [made_run("sync", block, block=block, position=0, threads=16, **fields) for block in range(6)]
    runs += [made_run("lag1", block, block=block, position=1, threads=8, **fields) for block in range(6)]
    experiment = made_experiment(*runs)
    assert legend(groups([experiment]))[-1].startswith("A and B compute on a GPU") == alike
    (judged,) = judgements(experiment)
    assert (judged.step.verdict is Verdict.NOT_COMPARABLE, judged.no_gate is None) == (not alike, alike)
    notes = [text for text in unlike(experiment.members) if text.startswith("The thread counts differ: 16, 8")]
    assert ["compute on a GPU" in note for note in notes] == [alike]
    assert bool(why_not_comparable(runs[:6], runs[6:], (), one_command=False)) != alike


def test_groups_on_gpus_stay_apart_from_other_machines() -> None:
    on_gpu = [of_machines(LARGE, threads=threads, settings=ON_GPU) for threads in (16, 8)]
    *_, apart, alike = legend(groups([*on_gpu, of_machines(SMALL)]))
    assert apart == "Compare seconds within one of these groups only."
    assert alike.startswith("A and B compute on a GPU")


def test_letters_go_on_after_z() -> None:
    assert [group_letter(index) for index in (0, 25, 26, 27, 51, 52, 701, 702)] == [
        "A", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip


# ---- why two sets of runs are not alike


def runs_of(arm: str = "work", count: int = 6, **fields: Any) -> list[Member]:
    return [made_run(arm, block, block=block, **fields) for block in range(count)]


def reasons(before: list[Member], after: list[Member], *allowed: str, one_command: bool = False) -> str:
    return "; ".join(why_not_comparable(before, after, allowed, one_command))


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("rollout_batch_size", {"rollout_batch_size": 64}, {"rollout_batch_size": 8}),
        ("group_size", {"group_size": 8}, {"group_size": 4}),
        ("model.preset", {"model": {"preset": "small"}}, {"model": {"preset": "tiny"}}),
        ("sampling.max_tokens", {"sampling": {"max_tokens": 32}}, {"sampling": {"max_tokens": 16}}),
        ("transport.type", {"transport": {"type": "nixl"}}, {"transport": {"type": "object_store"}}),
        ("steps", {"steps": 40}, {"steps": 6}),
        ("replay.capacity", {"replay": {"capacity": 0}}, {"name": "bench"}),  # not recorded at all
    ],
)
def test_settings_of_two_commands_have_to_be_alike(
    key: str, before: dict[str, object], after: dict[str, object]
) -> None:
    """The old code looked at the scenario's name alone: half the tokens were "different -49.9%", exit 0."""
    one, two = runs_of(settings=before), runs_of(settings=after)
    assert key in reasons(one, two)
    assert reasons(one, two, key) == reasons(one, two, "settings") == ""
    assert reasons(one, two, "group") != ""
    assert reasons(one, two, one_command=True) == ""
    one[3] = runs_of(settings=after)[3]
    assert key in reasons(one, runs_of(settings=before))  # one run of a side is enough


def test_settings_that_were_not_saved_are_not_alike() -> None:
    assert reasons(runs_of(settings={"steps": 6}), runs_of()) == "the settings of 6 runs were not recorded"


def test_a_name_a_seed_and_the_number_of_blocks_may_differ() -> None:
    then = {"name": "bench", "description": "then", "seed": 3, "blocks": 1, "steps": 6}
    assert reasons(runs_of(settings=then), runs_of(settings={"name": "bench", "seed": 7, "steps": 6})) == ""


def test_another_text_in_the_same_template_file_is_not_comparable() -> None:
    """Fails where the file's name alone is compared: the prompts were made of another text."""

    def of(digest: str) -> list[Member]:
        asked: Input = {"sha256": digest * 64, "name": "own.txt", "text": "{question}"}
        return runs_of(settings={"task": {"type": "maths", "prompt": "own.txt"}}, inputs={PROMPT_TEMPLATE: asked})

    assert reasons(of("a"), of("a")) == ""
    assert "task.prompt.sha256 (aaaaaaaaaaaa, bbbbbbbbbbbb)" in reasons(of("a"), of("b"))
    assert reasons(of("a"), of("b"), "task.prompt") == ""


@pytest.mark.parametrize(
    ("asked", "threads", "alike"),
    [
        (1, 1, False),
        (None, 1, False),
        (None, None, False),  # null, and nobody knows how many that were: the old code passed
        (None, 2, True),  # null, and used 2 in fact
    ],
)
def test_threads_are_those_that_were_used(asked: int | None, threads: int | None, alike: bool) -> None:
    def of(asked: int | None, threads: int | None) -> list[Member]:
        return runs_of(settings={"model": {"threads": asked}, "transport": {"type": "in_process"}}, threads=threads)

    assert (reasons(of(2, 2), of(asked, threads)) == "") == alike


def test_threads_that_no_arm_asked_for_are_another_environment() -> None:
    new = runs_of("new", settings={"group_size": 4})
    new[5] = made_run("new", 5, block=5, threads=1, settings={"group_size": 4})
    said = reasons(runs_of("old", settings={"group_size": 8}), new, one_command=True)
    assert "threads (2 threads: 11 runs; 1 thread: 1 run)" in said


def test_every_run_of_both_sides_is_looked_at() -> None:
    """The old code looked at the baseline's first run: 7 of 8 blocks on another machine were "worse +84%", exit 1."""
    elsewhere = SMALL | {"fingerprint": "ffffffffffff"}
    old = [*runs_of("old", 1), *runs_of("old", 8, machine=elsewhere)[1:]]
    said = reasons(old, runs_of("new", 8), one_command=True)
    assert "machine (fingerprint 0123456789ab: 9 runs; fingerprint ffffffffffff: 7 runs)" in said
    for versions in ({"python": "3.11.7", "torch": "2.14.0"}, {"python": "3.11.7"}):
        odd = [*runs_of("old", 5, versions=VERSIONS), *runs_of("old", versions=versions)[5:]]
        assert "versions" in reasons(odd, runs_of("new", versions=VERSIONS), one_command=True)


@pytest.mark.parametrize(("fact", "value"), [("driver", "570.86.15"), ("power_limit_w", 500)])
def test_another_driver_or_power_limit_is_another_machine(fact: str, value: object) -> None:
    def of(**other: object) -> list[Member]:
        gpu = {"name": "H100", "driver": "580.95.05", "max_sm_clock_mhz": 1980, "power_limit_w": 700} | other
        facts = {"cpu": "Abacus 4000", "cores": 2, "memory_gib": 24, "gpus": [gpu]}
        return runs_of(settings={"steps": 6}, machine=facts | {"fingerprint": fingerprint(facts)})

    assert reasons(of(), of()) == ""
    assert str(value) in reasons(of(), of(**{fact: value}))
    assert reasons(of(), of(**{fact: value}), "machine") == ""


def test_two_runs_of_one_block_are_the_same_run() -> None:
    twice = [*runs_of("new", 2), made_run("new", 1, block=1)]
    assert "are the same run (block 1, seed 1)" in reasons(runs_of("old"), twice, one_command=True)


def test_another_kernel_is_said_and_refuses_nothing() -> None:
    """The old code said nothing of what a baseline's machine ran on."""

    def of(kernel: str) -> list[Member]:
        system = {"system": "Linux", "distribution": "Debian 12", "kernel": kernel}
        return runs_of(settings={"steps": 6}, machine=SMALL | {"os": system})

    assert reasons(of("6.1"), of("6.6")) == ""
    assert unlike([*of("6.1"), *of("6.6")]) == [
        "The operating systems differ: Debian 12 (kernel 6.1), Debian 12 (kernel 6.6)."
    ]
