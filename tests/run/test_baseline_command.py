"""``python -m harness baseline`` as it is typed, with a run that writes known step times in place of the real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.compare.baselines import Entry, read_baselines
from harness.core.errors import RunStopped
from harness.core.trace import Stage
from harness.results import RunFolder
from harness.run.commands.baseline import Repeated
from harness.scenario import Scenario

Make = Callable[..., RunFolder]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a scenario of two arms in two blocks."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("steps: 6\nblocks: 2\narms:\n  one: {}\n  two: {group_size: 4}\n")
    monkeypatch.chdir(tmp_path)


class WrittenRun:
    """Stands for the real run: writes an experiment, each a day later and 1% slower than the one before."""

    def __init__(self, make_run: Make) -> None:
        self._make_run, self.days = make_run, 0

    def __call__(self, scenario: Scenario, out: Path, quiet: bool) -> int:
        assert out == Path("results")
        self.days += 1
        step_s = 1 + 0.01 * self.days
        stages = (("generator", Stage.GENERATE, step_s / 2), ("learner", Stage.UPDATE, step_s / 2))
        for block in range(scenario.blocks):
            for arm in scenario.arms:
                started_at = f"2026-11-{self.days:02d}T08:00:00.000Z"
                plan = {"scenario": scenario.name, "experiment": f"202611{self.days:02d}-080000", "arm": arm}
                self._make_run(**plan, block=block, seed=block, steps=6, stages=stages, started_at=started_at)
        return 0


def test_record_runs_a_scenario_on_occasions_and_adds_each(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = WrittenRun(make_run)
    assert main(["baseline", "record", "main", "mine", "--occasions", "2", "--arm", "two"], run) == 0
    assert main(["baseline", "record", "main", "mine"], run) == 0  # one more: the baseline knows its arm
    places = tuple(f"mine/202611{day:02d}-080000" for day in (1, 2, 3))
    assert read_baselines(Path("results")) == {"main": Entry("two", places)}
    said = capsys.readouterr().err
    assert "occasion 1 of 2" in said
    assert "3 occasions" in said
    assert main(["baseline", "list"]) == 0
    line = " ".join(capsys.readouterr().out.split())
    assert (
        "main two 3 2026-11-01 08:00 2026-11-03 08:00 1.02 0.98%" in line
    )  # logs of 1.01, 1.02, 1.03 lie 0.0098 apart


def test_add_takes_an_experiment_that_has_run_and_remove_forgets_the_name(make_run: Make) -> None:
    run = WrittenRun(make_run)
    assert main(["run", "mine"], run) == 0
    assert main(["baseline", "add", "main", "results/mine/20261101-080000"]) == 0
    assert main(["baseline", "add", "main", "results/mine/20261101-080000"]) == 2  # it is one already
    assert main(["baseline", "add", "main", "results/mine/20261109-080000"]) == 2  # there is none
    assert read_baselines(Path("results"))["main"].arm == "one"
    assert main(["baseline", "remove", "main"]) == 0
    assert main(["baseline", "remove", "main"]) == 2
    assert main(["baseline", "list"]) == 2  # there is nothing to list
    assert Path("results/mine/20261101-080000").is_dir()


@pytest.mark.parametrize(
    "arguments",
    [["--arm", "three"], ["--occasions", "0"], ["--every", "-5"], ["--every", "soon"], ["--set", "steps=x"]],
)
def test_bad_input_is_refused_before_anything_runs(make_run: Make, arguments: list[str]) -> None:
    run = WrittenRun(make_run)
    assert main(["baseline", "record", "main", "mine", *arguments], run) == 2
    assert run.days == 0


def test_a_scenario_without_the_baselines_arm_is_refused_before_it_runs(make_run: Make, tmp_path: Path) -> None:
    (tmp_path / "scenarios" / "other.yaml").write_text("steps: 6\nblocks: 2\narms:\n  three: {}\n  four: {}\n")
    run = WrittenRun(make_run)
    assert main(["baseline", "record", "main", "mine"], run) == 0
    assert main(["baseline", "record", "main", "other"], run) == 2
    assert run.days == 1


def test_an_occasion_that_stopped_is_not_recorded_and_ends_the_others(make_run: Make) -> None:
    run = WrittenRun(make_run)

    def stops_on_the_second_day(scenario: Scenario, out: Path, quiet: bool) -> int:
        run(scenario, out, quiet)
        if run.days == 2:
            raise RunStopped("loss is nan at step 3")
        return 0

    assert main(["baseline", "record", "main", "mine", "--occasions", "5"], stops_on_the_second_day) == 1
    assert read_baselines(Path("results"))["main"].occasions == ("mine/20261101-080000",)
    assert run.days == 2


def test_two_commands_at_once_record_nothing(make_run: Make) -> None:
    run = WrittenRun(make_run)

    def two_at_once(scenario: Scenario, out: Path, quiet: bool) -> int:
        return run(scenario, out, quiet) + run(scenario, out, quiet)

    assert main(["baseline", "record", "main", "mine"], two_at_once) == 2
    assert read_baselines(Path("results")) == {}


class Day:
    """A clock that only sleeping and working move on."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_occasions_begin_at_even_distances_and_say_when_all_will_be_done() -> None:
    day, said, starts = Day(), list[str](), list[float]()

    def once() -> str:
        starts.append(day.now)
        day.now += 600 if len(starts) < 3 else 7200  # the third takes longer than an hour
        return "recorded"

    Repeated(4, 3600, said.append, lambda: day.now, day.sleep).run(once)
    assert starts == [0, 3600, 7200, 14400]
    assert day.slept == [3000, 3000]
    # the last one begins three hours after the first, at 03:00, and takes ten minutes
    assert said[:2] == ["recorded", "occasion 1 of 4 took 10.0 min; all will be done at about 1970-01-01 03:10 UTC"]
    assert said.count("recorded") == 4
    # the third ended at 04:00, and so the fourth begins at once
    assert said[-3:-1] == ["occasion 3 of 4 took 120.0 min; all will be done at about 1970-01-01 06:00 UTC", "recorded"]
