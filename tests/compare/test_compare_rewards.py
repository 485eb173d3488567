"""Final rewards and times to a reward over seeds: what collapsed, what was cut, what never got there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness.compare import Experiment, gather
from harness.compare.as_json import comparison
from harness.compare.findings import findings
from harness.compare.rewards import Difference, final_rewards, reward_difference, target_times
from harness.compare.tables import outcome_table
from harness.results import RunFolder

Make = Callable[..., RunFolder]
SETTINGS = "steps: 4\nreward_target: 0.5\n"


def experiment_of(make_run: Make, tmp_path: Path, rewards: Mapping[str, Mapping[int, float]]) -> Experiment:
    """One run of four steps for each arm and seed, from a reward of 0.4 to this one."""
    for arm, by_seed in rewards.items():
        for seed, reward in by_seed.items():
            make_run(
                arm=arm, point={"seed": seed}, seed=seed, settings=SETTINGS, evaluations={0: (0.4, 9), 4: (reward, 9)}
            )
    return read(tmp_path)


def read(tmp_path: Path) -> Experiment:
    (experiment,), _ = gather([tmp_path / "results"])
    return experiment


def said(experiment: Experiment, *names: str) -> str:
    return " ".join(finding.text for finding in findings(experiment) if finding.name in names)


def test_collapsed_seeds_stay_in_the_ranking(make_run: Make, tmp_path: Path) -> None:
    """Audit case A4 a: b is 0.06 better on three seeds and collapses to 0 on three. On the old code these three were
    left out, and b was "shown to be higher"."""
    base = dict(enumerate((0.80, 0.81, 0.82, 0.80, 0.81, 0.82)))
    other = {seed: reward + 0.06 if seed < 3 else 0.0 for seed, reward in base.items()}
    experiment = experiment_of(make_run, tmp_path, {"a": base, "b": other})
    text = said(experiment, "final_reward", "ranking")
    assert "shown to be higher" not in text
    assert "3 of 6 seeds collapsed" in text
    # differences 0.06 three times, -0.80, -0.81, -0.82: mean -0.375, sd 0.47655; t(0.975, 5) = 2.5706: +-0.5001
    found = reward_difference(experiment, *experiment.variants)
    assert found == Difference(
        pytest.approx(-0.375), pytest.approx(-0.8751, abs=1e-3), pytest.approx(0.1251, abs=1e-3), 6, 1
    )
    assert "No difference is shown between a and b (+0.38, -0.13 to +0.88)" in text
    assert "difference -0.375, 95% interval -0.875 to +0.125" in said(experiment, "against")


def test_a_run_that_stopped_for_a_number_counts_with_its_last_reward(make_run: Make, tmp_path: Path) -> None:
    make_run(arm="a", settings=SETTINGS, evaluations={0: (0.3, 9), 4: (0.6, 9)})
    folder = make_run(arm="b", settings=SETTINGS, evaluations={0: (0.3, 9)}, steps=2, status="failed", error="nan")
    manifest = folder.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"outcome": {', '"outcome": {"diverged": {"step": 2}, ', 1))
    experiment = read(tmp_path)
    finals = {item.variant.name: (item.by_seed, item.diverged, item.cut) for item in final_rewards(experiment)}
    assert finals == {"a": ({0: 0.6}, 0, ()), "b": ({0: 0.3}, 1, ())}


def test_a_cut_run_stands_beside_and_no_order_is_claimed(make_run: Make, tmp_path: Path) -> None:
    """On the old code the seed was left out, and the other three of both were ranked."""
    rewards = {"a": {0: 0.80, 1: 0.81, 2: 0.82, 3: 0.80}, "b": {0: 0.70, 1: 0.71, 2: 0.72}}
    experiment_of(make_run, tmp_path, rewards)
    make_run(
        arm="b", point={"seed": 3}, seed=3, settings=SETTINGS, steps=2, status="interrupted",
        evaluations={0: (0.4, 9), 2: (0.9, 9)},
    )  # fmt: skip
    experiment = read(tmp_path)
    assert reward_difference(experiment, *experiment.variants) is None
    text = said(experiment, "final_reward", "ranking")
    assert "Cut before the end, and not counted: b, seed 3 (0.90 at step 2)." in text
    assert "No order is claimed between a (seeds 0, 1, 2, 3) and b (seeds 0, 1, 2)" in text
    assert "shown" not in text
    assert [variant["reward_last_difference"] for variant in comparison([experiment], [])["campaigns"][0]["variants"]]
    assert "difference" not in said(experiment, "against")


def test_two_pairs_are_too_few(make_run: Make, tmp_path: Path) -> None:
    experiment = experiment_of(make_run, tmp_path, {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.6, 1: 0.4}})
    assert reward_difference(experiment, *experiment.variants) is None


def test_the_ranking_and_the_difference_are_one_computation(make_run: Make, tmp_path: Path) -> None:
    """Three variants: both say the interval for all three pairs; on the old code the difference had one of its own."""
    rewards = {"a": {0: 0.70, 1: 0.72, 2: 0.74}, "b": {0: 0.80, 1: 0.80, 2: 0.80}, "c": {0: 0.1, 1: 0.5, 2: 0.3}}
    experiment = experiment_of(make_run, tmp_path, rewards)
    # b - a: 0.10, 0.08, 0.06: mean 0.08, sd 0.02; t(1 - 0.05 / 6, 2) = 7.649: +-0.0883
    assert "No difference is shown between b and a (+0.08, -0.01 to +0.17)" in said(experiment, "ranking")
    assert "difference +0.080, 95% interval -0.008 to +0.168 for all 3 pairs" in said(experiment, "against")
    base, better, _ = comparison([experiment], [])["campaigns"][0]["variants"]
    assert base["reward_last_difference"] is None
    assert better["reward_last_difference"]["low"] == pytest.approx(-0.0083, abs=1e-4)
    assert (better["reward_last_difference"]["seeds"], better["reward_last_difference"]["pairs"]) == (3, 3)


def test_too_few_evaluations_give_a_time_to_within_one_interval(make_run: Make, tmp_path: Path) -> None:
    """Evaluated at steps 0 and 4 alone, the time to a reward is the length of the run."""
    for arm, pace in (("a", 1.0), ("b", 2.0)):
        for seed in range(3):
            make_run(
                arm=arm, point={"seed": seed}, seed=seed, settings=SETTINGS, evaluations={0: (0.4, 9), 4: (0.6, 9)},
                pace=lambda step, pace=pace: pace,
            )  # fmt: skip
    experiment = read(tmp_path)
    assert "reached reward" not in said(experiment, "against")
    # 4 steps of 1 or 2 s and two evaluations of 1 s
    words = [f"3 of 3 seeds, at step 4 ({s} s), to within one evaluation interval (4 steps)" for s in ("6.00", "10.0")]
    assert said(experiment, "target") == f"Reached validation reward 0.5: a, {words[0]}; b, {words[1]}."
    assert [row[1:] for row in outcome_table(experiment).rows if "reward 0.5" in row[0]] == [tuple(words)]


@pytest.mark.parametrize(
    ("reached_at", "within"), [(0, None), (1, 1), (4, 1), (5, None)], ids=["at once", "one", "four", "five"]
)
def test_how_many_evaluations_are_enough(make_run: Make, tmp_path: Path, reached_at: int, within: int | None) -> None:
    evaluations = {step: (0.6 if step >= reached_at else 0.4, 9.0) for step in range(7)}
    make_run(settings=SETTINGS, steps=6, evaluations=evaluations)
    (variant,) = read(tmp_path).variants
    found = target_times(variant)
    assert found is not None
    assert (found.within, found.steps) == (within, (reached_at, reached_at))


def test_a_target_that_one_of_five_reached_counts_the_others(make_run: Make, tmp_path: Path) -> None:
    """Audit case A4 b: a reaches 0.5 in 5 of 5 seeds after 8 s, b in 1 of 5 after 5 s: b is not the faster one."""
    for seed in range(5):
        common = {"point": {"seed": seed}, "seed": seed, "steps": 8, "settings": "steps: 8\nreward_target: 0.5\n"}
        low = dict.fromkeys(range(9), (0.4, 9))
        make_run(arm="a", evaluations=low | {8: (0.6, 9)}, evaluate_s=0.0, **common)
        make_run(arm="b", evaluations=low | {5: (0.6 if seed == 0 else 0.4, 9)}, evaluate_s=0.0, **common)
    experiment = read(tmp_path)
    words = ("5 of 5 seeds, at step 8 (8.00 s)", "1 of 5 seeds, at step 5 (5.00 s)")
    assert f"reached reward 0.5: {words[1]} against {words[0]}" in said(experiment, "against")
    assert said(experiment, "target") == f"Reached validation reward 0.5: a, {words[0]}; b, {words[1]}."
    assert {row[0]: row[1:] for row in outcome_table(experiment).rows}["reached reward 0.5"] == words
    stored = comparison([experiment], [])["campaigns"][0]["variants"][1]
    times = stored["time_to_target"]
    assert (times["reached"], times["seeds"], times["steps"]) == (1, 5, (5, 5))
    assert [run["figures"]["seconds_to_target"] for run in stored["runs"]] == [pytest.approx(5.0), *[None] * 4]


def test_seeds_that_reached_it_give_first_and_last_and_one_that_diverged_is_none(
    make_run: Make, tmp_path: Path
) -> None:
    for seed, at in enumerate((5, 8)):
        evaluations = {step: (0.6 if step >= at else 0.25, 9.0) for step in range(9)}
        make_run(point={"seed": seed}, seed=seed, steps=8, settings=SETTINGS, evaluate_s=0.0, evaluations=evaluations)
    folder = make_run(point={"seed": 2}, seed=2, settings=SETTINGS, evaluations={0: (0.4, 9)}, steps=1, status="failed")
    manifest = folder.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"outcome": {', '"outcome": {"diverged": {"step": 1}, ', 1))
    rows = {row[0]: row[1] for row in outcome_table(read(tmp_path)).rows}
    assert rows["reached reward 0.5"] == "2 of 3 seeds, at step 5 to 8 (5.00 to 8.00 s)"
