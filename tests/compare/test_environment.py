"""What runs came from: machine, versions, threads, inputs; which groups they form, and what sets them apart."""

import pytest

from harness.compare.environment import machine_facts, on_gpu, origin, unlike, why_not_comparable
from harness.compare.judging import judgements
from harness.compare.stats.verdicts import Verdict
from harness.probes.provenance import fingerprint
from harness.report.tables import overview_table
from harness.results.manifest import PROMPT_TEMPLATE
from tests.stand_ins.members import MACHINE, made_experiment, made_run

LARGE = {"cpu": "Abacus 9000", "cores": 1, "memory_gib": 96, "gpus": [{"name": "H100"}], "fingerprint": "fedcba987654"}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}


def test_the_machine_of_a_run_in_words():
    def facts(machine, **fields):
        return ", ".join(machine_facts(made_run(machine=machine, **fields).manifest))

    limits = {"driver": "580.95.05", "max_sm_clock_mhz": 1980, "max_memory_clock_mhz": None, "power_limit_w": 700}
    gpus = [{"name": "H100", **limits}, {"name": "H100", **limits, "power_limit_w": 500}]
    assert facts(MACHINE) == "Abacus 3000, 2 cores, 24 GiB"
    assert facts(LARGE) == "Abacus 9000, 1 core, 96 GiB, 1 x H100, driver unknown"
    assert facts(LARGE | {"gpus": gpus}).endswith(
        "2 x H100, driver 580.95.05, power limit 500 and 700 W, SM clock up to 1980 MHz"
    )
    assert facts(LARGE, simulated="h100-sxm").endswith("1 x H100")
    assert facts({}) == "unknown CPU"


def test_the_overview_says_which_machine_where_there_are_several():
    early, late = made_experiment(made_run()), made_experiment(made_run("a"), made_run("b", machine=LARGE))
    table = overview_table([early, late])
    assert table.header[:4] == ("scenario", "experiment", "machine", "runs")
    assert [row[2:4] for row in table.rows] == [("0123456", "1"), ("0123456+fedcba9", "2")]
    assert table.notes[:-1] == tuple(unlike([*early.members, *late.members]))
    assert "--against" in table.notes[-1]  # how to set one against another
    assert "machine" not in overview_table([early, early]).header


IN_PROCESS = {
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


def device(name):
    return IN_PROCESS | {"placement": {"device": name, "colocated": False}}


@pytest.mark.parametrize("alike", [False, True])
def test_threads_keep_runs_apart_but_on_a_gpu(alike):
    """Of runs of 16 threads and of 8 on one H100 it was said that their seconds cannot be compared."""
    members = [
        made_run(
            arm, block, steps=12, block=block, threads=threads, machine=LARGE, versions={"torch": GPU},
            settings=device("cuda" if alike else "cpu"), started_at=f"2026-11-20T11:15:{block:02}.000Z",
        )
        for block in range(6)
        for arm, threads in (("a", 16), ("b", 8))
    ]  # fmt: skip
    experiment = made_experiment(*members)
    (judged,) = judgements(experiment)
    assert (judged.step.verdict is Verdict.NOT_COMPARABLE, judged.no_gate is None) == (not alike, alike)
    assert ["threads (16 threads: 6 runs; 8 threads: 6 runs)" in text for text in unlike(experiment.members)] == [True]
    assert bool(why_not_comparable(experiment.arms["a"], experiment.arms["b"], (), one_command=False)) != alike


def test_a_run_is_on_a_gpu_where_generator_and_learner_are():
    without = LARGE | {"gpus": None}
    for settings, machine, torch, expected in (
        (IN_PROCESS, LARGE, GPU, True),
        (IN_PROCESS, without, GPU, False),
        (device("cuda"), LARGE, GPU, True),
        (device("cuda"), without, GPU, True),
        (device("cpu"), LARGE, GPU, False),
        (IN_PROCESS, LARGE, "2.13.0+cpu", False),
        (IN_PROCESS | {"transport": {"type": "gloo"}}, LARGE, GPU, False),  # actors that reserve none
        (IN_PROCESS | {"model": {"type": "paced"}}, LARGE, GPU, False),
        (ACTORS, LARGE, GPU, True),
        (WITH_CPU, LARGE, GPU, False),
        ({"placement": 3}, LARGE, GPU, False),
    ):
        assert on_gpu(made_run(settings=settings, machine=machine, versions={"torch": torch})) == expected, settings
    assert not on_gpu(made_run(settings=IN_PROCESS, machine=LARGE, versions={"torch": GPU}, simulated="h100-sxm"))


def test_the_origin_in_one_line():
    both = made_experiment(made_run("a", versions=VERSIONS), made_run("b", versions=VERSIONS))
    known = "Abacus 3000, 2 cores, 2 threads, 24 GiB, no GPU seen, torch 2.13.0, python 3.11.7, commit abcdef1"
    assert origin(both) == known
    unlike_threads = made_experiment(made_run("a", dirty=True, machine=LARGE), made_run("b", threads=4))
    assert origin(unlike_threads) == "Abacus 9000, 1 core, 96 GiB, 1 x H100, commit abcdef1 with uncommitted changes"
    assert "h100-sxm, Abacus 3000" in origin(made_experiment(made_run(simulated="h100-sxm")))
    log = made_run(outcome={"imported": {}}, machine={"missing": {"cpu": "not in the log"}})
    assert origin(made_experiment(log)) == "not in the log"


def test_unlike_machines_versions_and_commits_are_said_with_the_runs_that_have_them():
    first = made_run(versions=VERSIONS)
    other = made_run(
        machine={"fingerprint": "ba9876543210"},
        versions={"python": "3.11.7", "torch": "2.14.0", "ray": "2.60.0"},
        threads=4,
        commit="1234567890",
    )
    (text,) = unlike([first, other, first])
    assert text.startswith(
        "The runs differ in machine (Abacus 3000, 2 cores, 24 GiB, fingerprint 0123456789ab: 2 runs; unknown CPU, "
        "fingerprint ba9876543210: 1 run), versions (torch 2.13.0: 2 runs; ray 2.60.0, torch 2.14.0: 1 run), threads "
        "(2 threads: 2 runs; 4 threads: 1 run) and commit (abcdef1: 2 runs; 1234567: 1 run)."
    )
    for change, what in (
        ({}, None),
        ({"threads": None}, "threads (2 threads: 1 run; unknown: 1 run)"),
        ({"commit": None}, "commit (abcdef1: 1 run; unknown: 1 run)"),
        ({"versions": VERSIONS | {"ray": "2.60.0"}}, "versions (none: 1 run; ray 2.60.0: 1 run)"),
        ({"seed": 3, "arm": "k2", "dirty": True}, None),
    ):
        fields = {"versions": VERSIONS} | change
        assert unlike([first, made_run(**fields)]) == ([] if what is None else [f"The runs differ in {what}."])
    (mixed,) = unlike([first, made_run(versions=VERSIONS, simulated="abacus")])
    assert "simulation (took place: 1 run; abacus: 1 run)" in mixed


def test_unlike_inputs_and_operating_systems_are_named_and_what_some_did_not_record_is_no_difference():
    def made_of(arm="a", **digests):
        return made_run(arm, inputs={name: {"sha256": digest * 64, "rows": 8} for name, digest in digests.items()})

    def on(distribution, kernel):
        system = {"system": "Linux", "kernel": kernel, "distribution": distribution}
        return made_run(machine=MACHINE | {"os": system})

    one, other = made_of(train_prompts="a", tokenizer="b"), made_of("b", train_prompts="c", tokenizer="b")
    debian, bare = on("Debian GNU/Linux 12", "6.1.0"), on(None, "6.18.44")
    beside = [made_of(**{"trackers[0]": digest, "profile.own[0]": "a"}) for digest in "ab"]
    for runs in ([one, one], [made_run(), one], beside, [made_run()] * 2, [debian] * 2, [debian, made_run()]):
        assert unlike(runs) == []
    for runs, what in (
        (
            [one, other, one],
            "train_prompts (8 rows, SHA-256 aaaaaaaaaaaa: 2 runs; 8 rows, SHA-256 cccccccccccc: 1 run).",
        ),
        ([made_of(validation_prompts=digest) for digest in "ab"], "unlike validation prompts cannot be compared."),
        ([debian, bare], "(Debian GNU/Linux 12 (kernel 6.1.0): 1 run; Linux (kernel 6.18.44): 1 run)."),
    ):
        (text,) = unlike(runs)
        assert text.endswith(what)
    assert why_not_comparable([debian, bare], [made_run()], ["settings"], one_command=True)[1:] == []


# ---- why times cannot be set against each other


def runs_of(arm="work", count=6, **fields):
    return [made_run(arm, block, block=block, **fields) for block in range(count)]


def reasons(before, after, *allowed, one_command=False):
    return "; ".join(why_not_comparable(before, after, allowed, one_command))


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("rollout_batch_size", {"rollout_batch_size": 64}, {"rollout_batch_size": 8}),
        ("sampling.max_tokens", {"sampling": {"max_tokens": 32}}, {"sampling": {"max_tokens": 16}}),
        ("replay.capacity", {"replay": {"capacity": 0}}, {"name": "bench"}),  # not recorded at all
    ],
)
def test_settings_of_two_commands_have_to_be_alike(key, before, after):
    one, two = runs_of(settings=before), runs_of(settings=after)
    assert key in reasons(one, two)
    assert reasons(one, two, key) == reasons(one, two, "settings") == ""
    assert reasons(one, two, "group") != ""
    assert reasons(one, two, one_command=True) == ""
    one[3] = runs_of(settings=after)[3]
    assert key in reasons(one, runs_of(settings=before))  # one run of a side is enough


def test_a_name_a_seed_and_the_number_of_blocks_may_differ_and_no_other_unsaved_setting():
    then = {"name": "bench", "description": "then", "seed": 3, "blocks": 1, "steps": 6}
    assert reasons(runs_of(settings=then), runs_of(settings={"name": "bench", "seed": 7, "steps": 6})) == ""
    assert reasons(runs_of(settings={"steps": 6}), runs_of()).startswith("the settings of 6 runs were not recorded")


def test_another_text_in_the_same_template_file_is_not_comparable():
    def of(digest):
        asked = {"sha256": digest * 64, "name": "own.txt", "text": "{question}"}
        return runs_of(settings={"task": {"type": "maths", "prompt": "own.txt"}}, inputs={PROMPT_TEMPLATE: asked})

    assert reasons(of("a"), of("a")) == ""
    assert "task.prompt.sha256 (aaaaaaaaaaaa, bbbbbbbbbbbb)" in reasons(of("a"), of("b"))
    assert reasons(of("a"), of("b"), "task.prompt") == ""


def test_threads_are_those_that_were_used():
    """Null that used 2 in fact is like 2; null of nobody knows how many is not."""

    def of(asked, threads):
        return runs_of(settings={"model": {"threads": asked}, "transport": {"type": "in_process"}}, threads=threads)

    alike = [reasons(of(2, 2), of(*each)) == "" for each in ((1, 1), (None, 1), (None, None), (None, 2))]
    assert alike == [False, False, False, True]


def test_every_run_of_both_sides_is_looked_at_and_threads_that_no_arm_asked_for_are_another_environment():
    """The old code looked at the baseline's first run: 7 of 8 blocks on another machine were "worse +84%", exit 1."""
    new = runs_of("new", settings={"group_size": 4})
    new[5] = made_run("new", 5, block=5, threads=1, settings={"group_size": 4})
    said = reasons(runs_of("old", settings={"group_size": 8}), new, one_command=True)
    assert "threads (2 threads: 11 runs; 1 thread: 1 run)" in said
    elsewhere = MACHINE | {"fingerprint": "ffffffffffff"}
    old = [*runs_of("old", 1), *runs_of("old", 8, machine=elsewhere)[1:]]
    said = reasons(old, runs_of("new", 8), one_command=True)
    assert "machine (fingerprint 0123456789ab: 9 runs; fingerprint ffffffffffff: 7 runs)" in said
    for versions in ({"python": "3.11.7", "torch": "2.14.0"}, {"python": "3.11.7"}):
        odd = [*runs_of("old", 5, versions=VERSIONS), *runs_of("old", versions=versions)[5:]]
        assert "versions" in reasons(odd, runs_of("new", versions=VERSIONS), one_command=True)


def test_another_driver_or_power_limit_is_another_machine():
    def of(**other):
        gpu = {"name": "H100", "driver": "580.95.05", "max_sm_clock_mhz": 1980, "power_limit_w": 700} | other
        facts = {"cpu": "Abacus 4000", "cores": 2, "memory_gib": 24, "gpus": [gpu]}
        return runs_of(settings={"steps": 6}, machine=facts | {"fingerprint": fingerprint(facts)})

    assert reasons(of(), of()) == ""
    for other in ({"driver": "570.86.15"}, {"power_limit_w": 500}):
        assert str(*other.values()) in reasons(of(), of(**other))
        assert reasons(of(), of(**other), "machine") == ""


def test_two_runs_of_one_block_are_the_same_run():
    twice = [*runs_of("new", 2), made_run("new", 1, block=1)]
    assert "are the same run (block 1, seed 1)" in reasons(runs_of("old"), twice, one_command=True)
