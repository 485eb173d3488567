"""Tables, sentences and cautions, word for word, from runs with known numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.compare import Experiment, gather, numbers
from harness.compare.caveats import caveats, origin, unlike
from harness.compare.comparability import unlike_environments
from harness.compare.experiments import variant_labels
from harness.compare.figures import RunFigures
from harness.compare.findings import findings
from harness.compare.numbers import Spread
from harness.compare.tables import Table, columns_apart, lane_table, outcome_table, overview_table, stage_table
from harness.core.trace import Stage
from harness.core.types import Metric, Metrics
from harness.results import RunFolder, StepRow
from harness.results.manifest import Input
from tests.messages import MessageIs, facts

Make = Callable[..., RunFolder]
FOUR_PASSES = (
    ("generator", Stage.GENERATE, 0.3),
    ("scorer", Stage.SCORE, 0.1),
    ("learner", Stage.OLD_LOGPROBS, 0.12),
    ("learner", Stage.UPDATE, 1.0),
    ("generator", Stage.WEIGHT_LOAD, 0.1),
)
COMPARED = {"settings": "steps: 4\nreward_target: 0.5\nloss: {kl: {reference: frozen}}\n"}


def _metrics(clip_fraction: float) -> Callable[[int], Metrics]:
    return lambda step: {
        "clip_fraction": Metric(clip_fraction, count=500),
        "grad_norm": Metric(0.5),
        "perf/throughput_total": Metric(1234.5),
    }


@pytest.fixture
def two_arms(make_run: Make, tmp_path: Path) -> Experiment:
    """k1 with a step of 1 s and k4 with one of 1.62 s; both evaluated first and last, 1 s each."""
    make_run(arm="k1", evaluations={0: (0.25, 12.0), 4: (0.55, 18.0)}, metrics=_metrics(0.0), **COMPARED)
    make_run(
        arm="k4",
        stages=FOUR_PASSES,
        evaluations={0: (0.25, 12.0), 4: (0.61, 24.0)},
        metrics=_metrics(0.08),
        optimizer_steps=4,
        **COMPARED,
    )
    return _only_experiment(tmp_path)


@pytest.fixture
def three_seeds(make_run: Make, tmp_path: Path) -> Experiment:
    """One variant in three seeds; the third one stays below the reward target."""
    for seed, reward in enumerate((0.5, 0.6, 0.4)):
        make_run(
            point={"seed": seed},
            seed=seed,
            interleaving=None,
            stages=[("learner", Stage.UPDATE, 1.0 + 0.5 * seed)],
            evaluations={0: (0.25, 12.0), 4: (reward, 13.0)},
            **COMPARED,
        )
    return _only_experiment(tmp_path)


def _only_experiment(tmp_path: Path) -> Experiment:
    experiments, damaged = gather([tmp_path / "results"])
    assert damaged == []
    (experiment,) = experiments
    return experiment


def test_the_stage_table(two_arms: Experiment) -> None:
    table = stage_table(two_arms)
    assert table.header == ("stage", "k1", "k4")
    # the last two steps, with an evaluation of 1 s. k1: 2 + 1 = 3 s; k4: 2 * 1.62 + 1 = 4.24 s. Shares: 0.6 / 3, ...
    assert table.rows == (
        ("generate", "0.300  20.0%", "0.300  14.2%"),
        ("score", "0.100   6.7%", "0.100   4.7%"),
        ("old_logprobs", "-", "0.120   5.7%"),
        ("update", "0.500  33.3%", "1.00  47.2%"),
        ("weight_load", "0.100   6.7%", "0.100   4.7%"),
        ("evaluate (1 of 2 steps)", "0.500  33.3%", "0.500  23.6%"),
        ("all stages", "1.50 100.0%", "2.12 100.0%"),
        ("whole step", "1.50 100.0%", "2.12 100.0%"),
        ("median of single steps, p10 to p90", "1.50, 1.10 to 1.90", "2.12, 1.72 to 2.52"),
    )
    assert table.notes == (
        "Means over steps 2 to 3 of 4 (2 warm-up steps left out): seconds of these steps, evaluations included, over "
        "their number.",
    )


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (("", "", "", ""), "Means over steps 2 to 3 of 4 (2 warm-up steps left out): "),
        (("w", "w", "", ""), "Means over steps 2 to 3 of 4 (2 warm-up steps left out): "),
        (("w", "", "p", ""), "Means over step 3 of 4 (2 warm-up steps and 1 profiled step left out): "),
        (("", "wp", "p", ""), "Means over step 3 of 4 (1 warm-up step and 2 profiled steps left out): "),
        (("w", "w", "w", "p"), "Means over steps 0 to 3 of 4, all of them warm-up or profiled: "),
    ],
)
def test_the_stage_table_says_which_steps_it_leaves_out(
    make_run: Make, tmp_path: Path, flags: tuple[str, ...], note: str
) -> None:
    run = make_run(steps=0, status="running")
    for step, flag in enumerate(flags):
        seconds = {
            "wall_s": float(step + 1),
            "elapsed_s": float(10 + step),
            "lanes": {"learner": {"update": 1.0 + step}},
        }
        flagged = {"warmup": "w" in flag, "profiled": "p" in flag}
        run.append(StepRow(step=step, version=step + 1, optimizer_steps=1, metrics={}, **seconds, **flagged))
    run.flush()
    table = stage_table(_only_experiment(tmp_path))
    assert table.notes[0].startswith(note)
    # a step that is left out does not make a stage one of some steps only
    assert [row[0] for row in table.rows] == [
        "update",
        "all stages",
        "whole step",
        "median of single steps, p10 to p90",
    ]


def test_runs_that_left_out_unlike_numbers_of_steps_are_described_together(make_run: Make, tmp_path: Path) -> None:
    for arm, warm in (("a", 1), ("b", 3)):
        run = make_run(arm=arm, steps=0, status="running")
        for step in range(6):
            seconds = {"wall_s": 1.0, "elapsed_s": step + 1.0, "lanes": {"learner": {"update": 1.0}}}
            row = StepRow(step=step, version=step + 1, optimizer_steps=1, metrics={}, warmup=step < warm, **seconds)
            run.append(row)
        run.flush()
    assert (
        stage_table(_only_experiment(tmp_path))
        .notes[0]
        .startswith(
            "Means over 3 to 4 steps of each run (2 to 3 warm-up steps left out): "  # two of them always
        )
    )


def test_the_lane_table(make_run: Make, tmp_path: Path) -> None:
    make_run(gap_s=0.25)
    # the last two steps, of 1 s and a gap of 0.25 s each: 2.5 s, of which 0.5 s (20%) under no span
    assert lane_table(_only_experiment(tmp_path)).rows == (
        ("sync_k", "generator", "2.50", "32.0%", "48.0%", "20.00%"),
        ("sync_k", "scorer", "2.50", "8.0%", "72.0%", "20.00%"),
        ("sync_k", "learner", "2.50", "40.0%", "40.0%", "20.00%"),
    )


def test_the_lane_table_says_how_many_runs_it_is_of(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        run = make_run(point={"seed": seed}, seed=seed)
        if seed:
            (run.folder / "spans.jsonl").unlink()
    experiment = _only_experiment(tmp_path)
    of_one = "over the 1 of 3 runs that kept their spans"
    assert [of_one in note for note in lane_table(experiment).notes] == [True]
    assert [of_one in note for note in outcome_table(experiment).notes].count(True) == 1  # idle ratios


def test_without_spans_the_lane_table_says_so(make_run: Make, tmp_path: Path) -> None:
    (make_run().folder / "spans.jsonl").unlink()
    table = lane_table(_only_experiment(tmp_path))
    assert (table.rows, table.notes) == ((), ("No spans were kept with these runs.",))


def test_the_outcome_table(two_arms: Experiment) -> None:
    table = outcome_table(two_arms)
    assert table.rows == (
        ("status", "completed", "completed"),
        ("validation reward, first", "0.250", "0.250"),
        ("validation reward, best", "0.550", "0.610"),
        ("  at step", "4", "4"),
        ("validation reward, last", "0.550", "0.610"),
        ("response length, first, tokens", "12.0", "12.0"),
        ("response length, last, tokens", "18.0", "24.0"),
        (
            "reached reward 0.5",
            *(f"at step 4 ({s} s), to within one evaluation interval (4 steps)" for s in ("6.00", "8.48")),
        ),
        ("clip fraction, mean", "0.000", "0.080"),
        ("gradient norm, median", "0.500", "0.500"),
        ("gradient norm, 95th percentile", "0.500", "0.500"),
        # k1: 2 * 0.6, 2 * 0.9 + 1 and 2 * 0.5 + 1 of 3 s; k4: 2 * 1.22, 2 * 1.52 + 1 and 2 * 0.5 + 1 of 4.24 s
        ("idle ratio, Generator", "40.0%", "57.5%"),
        ("idle ratio, Scorer", "93.3%", "95.3%"),
        ("idle ratio, Learner", "66.7%", "47.2%"),
        ("training steps", "4", "4"),
        ("optimizer steps", "4", "16"),
        ("generated tokens per second", "1,234", "1,234"),
        ("start-up, seconds", "2.00", "2.00"),
        ("loop, seconds", "6.00", "8.48"),
    )
    # 0.5 / sqrt(256) = 0.03125
    assert table.notes == (
        "Validation rewards are means over 256 prompts: "
        "a standard error of up to 0.031 where rewards lie between 0 and 1.",
    )


def test_the_sentences(two_arms: Experiment, message_is: MessageIs) -> None:
    said = [finding.text for finding in findings(two_arms)]
    assert [facts(text) for text in said] == [
        "4 0.61 1 0.55",
        "1 33 4 47",
        "4 1 1.41 2.12 1.50 0.61 0.55 24.0 18.0 0.08 0.00 16 4",
        "1 0.25 0.55 4 12.0 18.0",
        "4 0.25 0.61 4 12.0 24.0",
        "1 4",
        "0.5 1 4 6.00 4 4 4 8.48 4",
        "95 1 0.500 0.500 4 0.500 0.500",
    ]
    message_is("\n".join([*said, *caveats(two_arms)]))


def test_seeds_are_shown_as_mean_and_range(three_seeds: Experiment) -> None:
    (variant,) = three_seeds.variants
    assert (variant.name, [run.manifest.seed for run in variant.runs]) == ("sync_k", [0, 1, 2])
    rows = {row[0]: row[1] for row in outcome_table(three_seeds).rows}
    assert rows["validation reward, last"] == "0.500 [0.400, 0.600]"
    assert rows["validation reward, first"] == "0.250"
    # loops of 4 * 1 + 2 = 6 s, 4 * 1.5 + 2 = 8 s and 10 s
    assert rows["reached reward 0.5"] == (
        "2 of 3 seeds, at step 4 (6.00 to 8.00 s), to within one evaluation interval (4 steps)"
    )
    assert rows["loop, seconds"] == "8.00 [6.00, 10.0]"
    stages = {row[0]: row[1] for row in stage_table(three_seeds).rows}
    # the last two of four steps, with an evaluation of 1 s: shares of 2 / 3, 3 / 4 and 4 / 5, mean 73.9%
    assert stages["update"] == "1.50 [1.00, 2.00]  73.9%"
    assert "Mean [lowest, highest] over 3 runs that differ in the seed." in stage_table(three_seeds).notes
    assert caveats(three_seeds) == [
        "The runs ran one after the other, so drift of the machine shows as a difference between them.",
        "Up to 3 runs of one variant, and nothing to compare it with: figures, not a verdict.",
    ]


def test_a_target_nobody_reached_is_said(make_run: Make, tmp_path: Path) -> None:
    for arm in ("k1", "k2"):
        make_run(arm=arm, evaluations={0: (0.2, 12.0), 4: (0.3, 12.0)}, **COMPARED)
    experiment = _only_experiment(tmp_path)
    assert ("reached reward 0.5", "never", "never") in outcome_table(experiment).rows
    assert "neither reached reward 0.5" in findings(experiment)[1].text


def test_a_target_only_one_reached_is_said(make_run: Make, tmp_path: Path) -> None:
    low = dict.fromkeys(range(7), (0.3, 12.0))
    make_run(arm="k1", steps=6, evaluations=low | {6: (0.6, 12.0)}, evaluate_s=0.0, **COMPARED)
    make_run(arm="k2", steps=6, evaluations=low, evaluate_s=0.0, **COMPARED)
    assert "reached reward 0.5: never against at step 6 (6.00 s)." in findings(_only_experiment(tmp_path))[2].text


def test_unfinished_runs_are_shown_with_what_they_have(make_run: Make, tmp_path: Path) -> None:
    make_run(arm="k1", **COMPARED)
    make_run(arm="k2", steps=2, status="interrupted", **COMPARED)
    make_run(arm="k4", steps=1, status="failed", error="loss is NaN at step 1", **COMPARED)
    make_run(arm="k8", steps=3, status="killed", **COMPARED)
    experiment = _only_experiment(tmp_path)
    assert outcome_table(experiment).rows[0] == (
        "status",
        "completed",
        "interrupted at step 2 of 4",
        "failed at step 1 of 4",
        "did not finish at step 3 of 4",
    )
    assert caveats(experiment)[:3] == [
        "k2: interrupted after 2 steps",
        "k4: failed after 1 step: loss is NaN at step 1",
        "k8: did not finish after 3 steps",
    ]
    assert overview_table([experiment]).rows[0][3] == "1 completed, 1 interrupted, 1 failed, 1 did not finish"


def test_unlike_inputs_are_named_once_and_other_validation_data_is_a_caution(two_arms: Experiment) -> None:
    def made_of(run: int = 0, **digests: str) -> RunFigures:
        inputs: dict[str, Input] = {name: {"sha256": digest * 64, "rows": 8} for name, digest in digests.items()}
        return replace(two_arms.runs[run], manifest=replace(two_arms.runs[run].manifest, inputs=inputs))

    first = two_arms.runs[0]
    one, other = made_of(train_prompts="a", tokenizer="b"), made_of(1, train_prompts="c", tokenizer="b")
    assert unlike([one, one]) == []
    (sentence,) = unlike([one, other, one])
    assert "SHA-256 aaaaaaaaaaaa in 2 runs of k1; 8 rows, SHA-256 cccccccccccc in 1 run of k4)" in sentence
    assert "tokenizer" not in sentence
    assert unlike([first, one]) == []  # one of them has recorded none
    held_out = unlike([made_of(validation_prompts="a"), made_of(validation_prompts="b")])
    assert len(held_out) == 2
    assert "validation" in held_out[1]
    assert unlike([made_of(**{"trackers[0]": "a", "profile.own[0]": "a"}), made_of(**{"trackers[0]": "b"})]) == []


def test_unlike_machines_versions_and_commits_are_said(two_arms: Experiment) -> None:
    first, second = two_arms.runs
    other = replace(
        second.manifest,
        machine={"fingerprint": "ba9876543210"},
        versions={"python": "3.11.7", "torch": "2.14.0", "ray": "2.60.0"},
        threads=4,
        commit="1234567890",
    )
    assert unlike([first, second]) == []
    assert unlike([first, replace(second, manifest=other)]) == [
        "The runs come from 2 kinds of machine (0123456789ab, ba9876543210): seconds cannot be compared.",
        "The versions of torch differ: 2.13.0, 2.14.0.",
        "The versions of ray differ: none, 2.60.0.",
        "The thread counts differ: 2, 4.",
        "The commits differ: abcdef1, 1234567.",
    ]


def test_the_origin_in_one_line(two_arms: Experiment) -> None:
    assert origin(two_arms) == (
        "Abacus 3000, 2 cores, 2 threads, 24 GiB, no GPU seen, torch 2.13.0, python 3.11.7, commit abcdef1"
    )


def test_unlike_operating_systems_are_said_and_unknown_ones_are_no_difference(two_arms: Experiment) -> None:
    first, second = two_arms.runs  # of before it was written

    def on(run: RunFigures, distribution: str | None, kernel: str) -> RunFigures:
        found = {"system": "Linux", "kernel": kernel, "distribution": distribution}
        return replace(run, manifest=replace(run.manifest, machine=run.manifest.machine | {"os": found}))

    debian, other = on(first, "Debian GNU/Linux 12", "6.1.0"), on(second, None, "6.18.44")
    assert unlike([first, second]) == unlike([debian, debian]) == []
    assert unlike([debian, other]) == [
        "The operating systems differ: Debian GNU/Linux 12 (kernel 6.1.0), Linux (kernel 6.18.44)."
    ]
    assert unlike([debian, second]) == [
        "The operating system of 1 run is unknown; of the others it is Debian GNU/Linux 12 (kernel 6.1.0)."
    ]
    assert unlike_environments([debian, other, second], set()) == []


DISAGGREGATED = """
placement: {device: auto, colocated: false}
transport: {type: in_process}
model: {type: preset}
"""
GPU_MACHINE = {"cpu": "Abacus 3000", "gpus": [{"name": "H200"}], "fingerprint": "0123456789ab"}


@pytest.mark.parametrize(
    ("settings", "machine", "torch", "shares"),
    [
        (DISAGGREGATED, GPU_MACHINE, "2.13.0", True),
        (DISAGGREGATED, GPU_MACHINE, "2.13.0+cpu", False),
        (DISAGGREGATED, GPU_MACHINE | {"gpus": None}, "2.13.0", False),
        (DISAGGREGATED.replace("auto", "cuda"), GPU_MACHINE | {"gpus": None}, "2.13.0", True),
        (DISAGGREGATED.replace("auto", "cpu"), GPU_MACHINE, "2.13.0", False),
        (DISAGGREGATED.replace("false", "true"), GPU_MACHINE, "2.13.0", False),
        (DISAGGREGATED.replace("in_process", "nixl"), GPU_MACHINE, "2.13.0", False),
        (DISAGGREGATED.replace("preset", "paced"), GPU_MACHINE, "2.13.0", False),
        ("placement: 3", GPU_MACHINE, "2.13.0", False),
    ],
)
def test_parts_that_share_a_gpu_in_one_process_are_named(
    make_run: Make, tmp_path: Path, settings: str, machine: dict[str, Any], torch: str, shares: bool
) -> None:
    make_run(arm="beside", settings=settings, machine=machine, versions={"torch": torch})
    make_run(arm="in_turns", settings="placement: {colocated: true}", machine=machine, versions={"torch": torch})
    said = [line for line in caveats(_only_experiment(tmp_path)) if "share one GPU" in line]
    assert [line.split(":")[0] for line in said] == (["beside"] if shares else [])
    assert all("8 ms alone and 12 to 18 ms beside training" in line for line in said)


def test_upsets_are_named(make_run: Make, tmp_path: Path) -> None:
    norms = [1.0, 1.0, 30.0, 1.0]
    make_run(
        evaluations={0: (0.2, 12.0), 2: (0.6, 12.0), 4: (0.4, 12.0)},
        metrics=lambda step: {"grad_norm": Metric(norms[step]), "loss": Metric(float("nan") if step > 1 else 0.1)},
    )
    said = [finding.text for finding in findings(_only_experiment(tmp_path))]
    assert "sync_k: loss was not finite in 2 steps." in said
    assert "sync_k: the gradient norm peaked at 30.0, 30 times its median, at step 2." in said
    assert "sync_k: the reward fell from 0.60 at step 2 to 0.40 at step 4." in said


def test_growing_kl_is_described_with_its_policies(make_run: Make, tmp_path: Path) -> None:
    make_run(
        steps=10,
        evaluations={version: (0.1 * version, 12.0) for version in range(0, 10, 2)},
        metrics=lambda step: {"kl/reference_k3": Metric(0.002 * step, count=500)},
        settings="steps: 10\nmax_lag: 1\nloss: {kl: {reference: frozen}}\n",
    )
    assert (
        "sync_k: KL of the policy to the initial policy (k3, per token) ends at 0.018 "
        "and grows about linearly (R2 1.00); "
        "correlation with validation reward +1.00 (95% interval +1.00 to +1.00) "
        "over 5 evaluations; biased, since the sampling policy is an older one."
    ) in [finding.text for finding in findings(_only_experiment(tmp_path))]


def test_experiments_are_told_apart_and_come_oldest_first(make_run: Make, tmp_path: Path) -> None:
    make_run(
        scenario="late",
        experiment="20261122-000000",
        started_at="2026-11-22T00:00:00.000Z",
        evaluations={4: (0.5, 9.0)},
    )
    for arm, reward in (("k10", 0.2), ("k2", 0.4)):
        make_run(arm=arm, evaluations={4: (reward, 9.0)})
    experiments, _ = gather([tmp_path / "results", tmp_path / "results" / "late"])  # overlapping paths count once
    assert overview_table(experiments).rows == (
        ("sync_k", "20261120-111500", "2", "4", "1.50", "0.200 to 0.400"),
        ("late", "20261122-000000", "1", "4", "1.50", "0.500"),
    )
    assert [variant.name for variant in experiments[0].variants] == ["k2", "k10"]  # started together: by number


def test_variants_stand_in_the_order_of_the_scenario_whichever_ran_first(make_run: Make, tmp_path: Path) -> None:
    for arm, seed, position, minute in (("b", 1, 3, 1), ("a", 0, 0, 2), ("c", 0, 2, 0), ("b", 0, 1, 3)):
        make_run(
            arm=arm, seed=seed, point={"seed": seed}, position=position, started_at=f"2026-11-20T11:{minute:02}:00.000Z"
        )
    experiment = _only_experiment(tmp_path)
    assert [(item.name, [run.manifest.seed for run in item.runs]) for item in experiment.variants] == [
        ("a", [0]),
        ("b", [0, 1]),
        ("c", [0]),
    ]


def test_sweep_points_get_short_names_where_they_are_clear() -> None:
    points = [("a", {"optimizer.learning_rate": 0.1, "seed": 1}), (None, {"optimizer.learning_rate": 0.2})]
    assert variant_labels(points, "x") == ["a, learning_rate=0.1", "learning_rate=0.2"]
    clash = [(None, {"loss.type": "a", "task.type": "b", "seed": 0})]
    assert variant_labels(clash, "x") == ["loss.type=a, task.type=b"]
    assert variant_labels([(None, {"seed": 3})], "quickstart") == ["quickstart"]


def test_wide_tables_are_cut_between_columns() -> None:
    table = Table("t", ("stage", "a", "b", "c"), (("x", "1", "2", "3"),), ("note",))
    assert columns_apart(table, 2) == [
        Table("t", ("stage", "a", "b"), (("x", "1", "2"),)),
        Table("t", ("stage", "c"), (("x", "3"),), ("note",)),
    ]
    assert columns_apart(table, 3) == [table]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.00042, "4.2e-04"),
        (0.31, "0.310"),
        (0.9996, "1.00"),
        (1.215, "1.22"),
        (-2.5, "-2.50"),
        (31.23, "31.2"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (float("nan"), "nan"),
    ],
)
def test_figures_have_about_three_digits(value: float, text: str) -> None:
    assert numbers.number(value) == text


def test_a_spread_without_a_visible_range_is_one_figure() -> None:
    assert numbers.spread(Spread(0.5001, 0.5, 0.5002, 3, 3), numbers.reward) == "0.500"
    assert numbers.spread(Spread(0.5, 0.4, 0.6, 2, 3), numbers.reward) == "0.500 [0.400, 0.600] (2 of 3)"
    assert numbers.spread(None, numbers.reward) == "-"
