"""Two figures against each other: the front, its knee, and the command that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compare.__main__ import main
from harness.compare.experiments import gather
from harness.compare.pareto import Front, beaten_by, knee_of, pareto, pareto_sentences, pareto_table, read_axes
from harness.core.errors import UserError
from harness.results import RunFolder

Make = Callable[..., RunFolder]
# seconds per step and last validation reward; `d` costs more than `c` and earns less
ARMS = {"a": (1.0, 0.2), "b": (1.5, 0.5), "c": (2.0, 0.7), "d": (2.5, 0.6), "e": (4.0, 0.8)}
GAINS = [(-seconds, reward) for seconds, reward in ARMS.values()]


@pytest.fixture
def results(make_run: Make, tmp_path: Path) -> Path:
    """Five arms of three seeds, whose rewards are 0.1 apart; an evaluation adds 0.5 s to each measured step."""
    for position, (arm, (seconds, reward)) in enumerate(ARMS.items()):
        for seed in range(3):
            make_run(
                arm=arm,
                seed=seed,
                position=position,
                block=seed,
                pace=lambda step, seconds=seconds: seconds - 0.5,
                evaluations={0: (0.1, 9.0), 4: (reward + 0.1 * (seed - 1), 9.0)},
            )
    return tmp_path / "results"


def _front(results: Path, figures: str) -> Front:
    (experiment,), damaged = gather([results])
    assert damaged == []
    return pareto(experiment, read_axes(figures))


def test_a_point_is_beaten_by_what_is_as_good_in_both_figures_and_better_in_one() -> None:
    assert beaten_by(GAINS) == [[], [], [], [2], []]
    # equal points do not beat each other; equal in one figure and worse in the other is beaten
    assert beaten_by([(1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (0.5, 1.0)]) == [[], [], [0, 1], [0, 1]]


def test_the_knee_lies_farthest_beyond_the_line_between_the_ends() -> None:
    # of 3 s and 0.6 between the ends: b is at 2.5/3 + 0.3/0.6 - 1 = 0.333, c at 2/3 + 0.5/0.6 - 1 = 0.5
    assert knee_of([GAINS[0], GAINS[1], GAINS[2], GAINS[4]]) == 2
    assert knee_of([GAINS[4], GAINS[2], GAINS[0]]) == 1  # in any order
    assert knee_of([(0.0, 1.0), (1.0, 0.0)]) is None
    assert knee_of([(0.0, 1.0), (0.4, 0.4), (1.0, 0.0)]) is None  # bends the other way
    assert knee_of([(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]) is None  # a straight line


def test_the_front_of_an_experiment(results: Path) -> None:
    front = _front(results, "step_s,reward_last")
    assert front.front == ("a", "b", "c", "e")
    assert (front.knee, front.stable, front.left_out) == ("c", (3, 3), ())
    d = front.point("d")
    assert d.beaten_by == ("c",)
    # Student's 97.5% quantile of 2 degrees of freedom is 4.3027: 4.3027 x 0.1 / sqrt(3) = 0.2484
    assert (d.y.mean, d.y.low, d.y.high) == pytest.approx((0.6, 0.3516, 0.8484), abs=1e-4)
    assert (d.x.mean, d.x.low, d.x.high) == pytest.approx((2.5, 2.5, 2.5))
    assert [row[0] + ": " + row[3] for row in pareto_table(front).rows] == [
        *("a: front", "b: front", "c: front, knee", "d: beaten by c", "e: front")
    ]
    assert pareto_sentences(front)[1].startswith(
        "Knee: c. From a to it: seconds per step +1.00 and validation reward, last +0.500. "
        "From it on to e: seconds per step +2.00 and validation reward, last +0.100."
    )


def test_any_two_figures_with_the_better_direction_named(results: Path) -> None:
    assert _front(results, "reward_last:low,step_s").front == ("a",)
    assert _front(results, "reward_last,step_s:high").front == ("e",)
    # updates take half of a step without its evaluation
    assert [point.x.mean for point in _front(results, "update,reward_last").points] == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.75]
    )


def test_a_variant_whose_runs_lack_a_figure_is_no_point(results: Path, make_run: Make) -> None:
    make_run(arm="f", position=5, block=0)
    make_run(arm="g", position=6, block=0, status="failed", evaluations={4: (0.9, 9.0)})
    front = _front(results, "step_s,reward_last")
    assert front.left_out == ("f", "g")
    assert front.front == ("a", "b", "c", "e")


@pytest.mark.parametrize("asked", ["step_s", "step_s,rewards_last", "step_s:best,reward_last", "a,b,c", ","])
def test_other_names_are_refused(asked: str) -> None:
    with pytest.raises(UserError):
        read_axes(asked)


def test_the_command_shows_the_front_in_every_form(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([str(results), "--pareto", "--plots", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "c 2.00 [2.00, 2.00] 0.700 [0.452, 0.948] front, knee" in " ".join(text.split())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pareto.png"]
    assert main([str(results), "--json", "--pareto"]) == 0
    (experiment,) = json.loads(capsys.readouterr().out)["campaigns"]
    found = experiment["pareto"]
    assert (found["front"], found["knee"], found["knee_is_the_same"]) == (["a", "b", "c", "e"], "c", [3, 3])
    assert found["x"] == {"figure": "step_s", "better": "low"}
    assert main([str(results), "--format", "md", "--pareto=step_s,reward_last"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| d "))
    assert row.endswith("| beaten by c |")


def test_bad_figures_end_with_one_message(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), "--pareto", "step_s,kl/reference_k3"]) == 2  # nothing logged it
    assert main(["--pareto", str(results)]) == 2  # argparse takes the folder for the figures
    assert capsys.readouterr().err.count("error: ") == 2
