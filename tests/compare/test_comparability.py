"""Why the times of two sets of runs cannot be set against each other: settings, threads, machines, versions, inputs."""

from __future__ import annotations

from typing import Any

import pytest

from harness.compare.environment import why_not_comparable
from harness.compare.experiment import Member
from harness.probes.provenance import fingerprint
from harness.results.manifest import PROMPT_TEMPLATE, Input
from tests.stand_ins.members import MACHINE, made_run

VERSIONS = {"torch": "2.13.0", "python": "3.11.7"}


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
    elsewhere = MACHINE | {"fingerprint": "ffffffffffff"}
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


def test_another_kernel_refuses_nothing() -> None:
    def of(kernel: str) -> list[Member]:
        system = {"system": "Linux", "distribution": "Debian 12", "kernel": kernel}
        return runs_of(settings={"steps": 6}, machine=MACHINE | {"os": system})

    assert reasons(of("6.1"), of("6.6")) == ""
