"""The ways to a wrong exit 0, or to a wrong 1, each typed as a command on run folders of known step times."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.compare.__main__ import main
from harness.core.trace import Stage
from harness.results import RunFolder
from harness.results.experiment_plan import ExperimentPlan, PlannedRun, write_plan

Make = Callable[..., RunFolder]
Arms = Mapping[str, float]
SETTINGS = "steps: 6\ngroup_size: {size}\nmodel: {{preset: tiny, threads: 2}}\ntransport: {{type: in_process}}\n"
OTHER_MACHINE = {"cpu": "Abacus 4000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "ffffffffffff"}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the output 200 characters wide, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


class Bench:
    """Writes experiments and types the gate.

    An arm's step takes 1 s times its factor, and one in a thousand more or less from block to block; day n is the n-th
    of November 2026. Arms differ in group_size, except those whose name ends in ``again``.
    """

    def __init__(self, make_run: Make, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._make_run, self.results, self._capsys = make_run, results, capsys

    def run(self, arms: Arms, day: int = 20, blocks: int = 6, planned: bool = True, **fields: Any) -> Path:
        """Write an experiment and return its folder; fields are those of ``RunPlan``, or functions of arm and block."""
        name = f"202611{day:02d}-080000"
        for block in range(blocks):
            for place, (arm, factor) in enumerate(arms.items()):
                self._write(name, arm, block, place, factor, fields)
        folder = self.results / str(fields.get("scenario", "bench")) / name
        if planned:
            write_plan(folder, plan_of(arms, blocks))
        return folder

    def _write(self, name: str, arm: str, block: int, place: int, factor: float, fields: Mapping[str, Any]) -> None:
        half = 0.5 * factor * (1 + 0.001 * (-1) ** block)
        size = 8 if place == 0 or arm.endswith("again") else 8 + place
        plan: dict[str, Any] = {
            "scenario": "bench",
            "experiment": name,
            "arm": arm,
            "block": block,
            "seed": block,
            "steps": 6,
            "position": block * 10 + place,
            "started_at": f"{name[:4]}-{name[4:6]}-{name[6:8]}T08:{block:02d}:{place:02d}.000Z",
            "stages": (("generator", Stage.GENERATE, half), ("learner", Stage.UPDATE, half)),
            "settings": SETTINGS.format(size=size),
        }
        self._make_run(**plan | {key: value(arm, block) if callable(value) else value for key, value in fields.items()})

    def record(self, arms: Arms, occasions: int = 5, **fields: Any) -> list[str]:
        """Write an experiment on each of the first days of the month; return the option that names them."""
        folders = []
        for day in range(1, occasions + 1):
            shift = 1 + 0.002 * (-1) ** day  # occasions lie 0.2% from their mean, in turn above and below
            folders.append(self.run({arm: factor * shift for arm, factor in arms.items()}, day=day, **fields))
        return ["--against", *map(str, folders)]

    def type(self, *arguments: str, at: Path | None = None) -> tuple[int, str]:
        """Type ``compare``, and return the exit code and what is said on standard error."""
        code = main([str(at or self.results), *arguments])
        return code, self._capsys.readouterr().err

    def gate(self, *arguments: str, at: Path | None = None) -> tuple[int, str]:
        """Type the gate, and return the exit code and what it says."""
        return self.type("--fail-on", "5%", *arguments, at=at)


def plan_of(arms: Arms, blocks: int) -> ExperimentPlan:
    return ExperimentPlan(
        tuple(PlannedRun(f"{arm},block={block}", arm, block) for block in range(blocks) for arm in arms)
    )


@pytest.fixture
def bench(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(make_run, tmp_path / "results", capsys)


def lose_steps(folder: Path) -> None:
    """Do what a copy that was cut short does: leave manifests and no steps."""
    for path in folder.rglob("steps.jsonl"):
        path.unlink()


def cut_manifests(folder: Path) -> None:
    for path in folder.rglob("manifest.json"):
        path.write_text(path.read_text()[:40])


def test_a_whole_experiment_passes_or_fails_by_its_arms(bench: Bench) -> None:
    bench.run({"old": 1.0, "new": 1.01})
    assert bench.gate()[0] == 0
    assert bench.gate("--baseline", "new")[0] == 0
    bench.run({"old": 1.0, "new": 1.2}, day=21)
    assert bench.gate()[0] == 1


def test_occasions_decide_by_the_arm_of_the_same_name_else_by_the_first(bench: Bench) -> None:
    same = {"settings": "steps: 6\n"}
    main = bench.record({"main": 1.0, "fix": 1.3}, occasions=3, **same)
    bench.run({"main": 1.0, "fix": 1.3}, **same)
    assert bench.gate(*main)[0] == 0  # each against its own name
    assert bench.gate("--baseline", "main", *main)[0] == 1  # fix against main
    assert bench.gate("--baseline", "gone", *main)[0] == 2
    bench.run({"other": 1.3}, day=21, **same)
    assert bench.gate(*main)[0] == 1  # against main, which is first
    assert bench.gate("--baseline", "fix", *main)[0] == 0


def test_the_newest_experiment_is_set_against_occasions_whatever_older_ones_are_there(bench: Bench) -> None:
    main = bench.record({"work": 1.0}, occasions=3)
    bench.run({"main": 1.0, "other": 1.0}, day=10, scenario="unrelated")
    bench.run({"work": 1.3})
    assert bench.gate(*main)[0] == 1
    bench.run({"work": 1.001}, day=21)
    assert bench.gate(*main)[0] == 0


def test_an_arm_that_only_an_older_experiment_has_is_no_baseline_of_the_newest(bench: Bench) -> None:
    bench.run({"left": 1.0, "right": 1.0}, day=10)
    bench.run({"old": 1.0, "new": 1.0})
    for code, said in (bench.gate("--baseline", "left"), bench.type("--baseline", "left")):
        assert code == 2
        assert "(old, new)" in said
    assert bench.type("--baseline", "old", "--all")[0] == 0  # an older one shows what it has


def test_experiments_that_are_named_are_set_against_an_arm_that_each_has(bench: Bench) -> None:
    """The old code showed two tables without a ratio, with exit code 0."""
    older, newest = bench.run({"left": 1.0, "both": 1.0}, day=10), bench.run({"right": 1.0, "both": 1.0})
    assert bench.type(str(newest), "--baseline", "both", at=older)[0] == 0
    code, said = bench.type(str(newest), "--baseline", "right", at=older)
    assert code == 2
    assert "bench/20261110-080000" in said
    assert "left, both" in said


@pytest.mark.parametrize("damage", [lose_steps, cut_manifests, shutil.rmtree], ids=["steps", "manifests", "runs"])
def test_an_older_experiment_never_stands_for_the_newest(bench: Bench, damage: Callable[[Path], None]) -> None:
    """The old code gated the older one, with exit 0 and warnings."""
    bench.run({"old": 1.0, "new": 1.0}, day=10)
    newest = bench.run({"old": 1.0, "new": 1.5})
    for folder in [path for path in newest.iterdir() if path.is_dir()]:
        damage(folder)
    code, said = bench.gate()
    assert code == 3
    assert str(newest) in said
    assert bench.type()[0] == 0


def test_an_unreadable_experiment_that_is_older_is_in_nobodys_way(bench: Bench) -> None:
    lose_steps(bench.run({"old": 1.0, "new": 1.5}, day=10))
    bench.run({"old": 1.0, "new": 1.0})
    assert bench.gate()[0] == 0


@pytest.mark.parametrize(("planned", "damage"), [(False, lose_steps), (True, shutil.rmtree)])
def test_an_arm_that_cannot_be_read_cannot_pass(bench: Bench, planned: bool, damage: Callable[[Path], None]) -> None:
    """The old code passed on the arms that were left."""
    folder = bench.run({"old": 1.0, "fine": 1.0, "slow": 1.5}, planned=planned)
    for path in [*folder.glob("slow,*")]:
        damage(path)
    for code, said in (bench.gate(), bench.gate("--baseline", "slow")):
        assert code == 3
        assert "no run of slow can be read" in said


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("damage", [lose_steps, cut_manifests, shutil.rmtree], ids=["steps", "manifests", "folder"])
def test_a_block_that_is_damaged_or_missing_is_named(
    bench: Bench, damage: Callable[[Path], None], planned: bool
) -> None:
    folder = bench.run({"old": 1.0, "new": 1.0}, planned=planned)
    damage(folder / "new,block=3")
    code, said = bench.gate()
    assert code == 4
    assert "new,block=3" in said


def test_what_the_stopping_rule_left_out_is_not_missing(bench: Bench) -> None:
    arms = {"old": 1.0, "new": 1.0}
    folder = bench.run(arms, blocks=10)
    write_plan(folder, plan_of(arms, 40))  # interrupted after ten of forty blocks
    code, said = bench.gate()
    assert code == 4
    assert "60 runs" in said  # 30 blocks of two arms
    write_plan(folder, replace(plan_of(arms, 40), enough_after=10))
    assert bench.gate()[0] == 0


def test_a_worse_arm_is_worse_whatever_is_missing_and_one_with_an_interrupted_run_cannot_pass(bench: Bench) -> None:
    def status(arm: str, block: int) -> str:
        return "interrupted" if (arm, block) == ("new", 5) else "completed"

    bench.run({"old": 1.0, "new": 1.0}, status=status)
    assert bench.gate()[0] == 4
    folder = bench.run({"old": 1.0, "slow": 1.5, "gone": 1.0}, day=21)
    shutil.rmtree(folder / "gone,block=3")
    assert bench.gate()[0] == 1


def test_nothing_new_since_the_baseline_is_nothing_to_compare(bench: Bench, tmp_path: Path) -> None:
    """The old code compared the baseline's experiment with itself, and passed."""
    main = bench.record({"old": 1.0, "new": 1.0}, occasions=2)
    for arguments, wanted in ((["--fail-on", "5%"], 3), ([], 2)):
        code, said = bench.type(*arguments, *main)
        assert code == wanted
        assert "nothing to compare" in said
    copy = tmp_path / "copy" / "20261102-080000"
    shutil.copytree(main[-1], copy)
    assert bench.gate(*main, at=copy)[0] == 3  # nor is a copy of an occasion anything new


def test_one_occasion_is_no_baseline_to_gate_on_and_counts_once(bench: Bench, tmp_path: Path) -> None:
    """The old code judged one evening against another by the noise within them: exit 1 at a half per cent of noise."""
    main = bench.record({"work": 1.0}, occasions=1)
    bench.run({"work": 1.3})
    copy = tmp_path / "copy" / "20261101-080000"
    shutil.copytree(main[-1], copy)
    for more, wanted, words in (([], 4, "one occasion"), ([main[-1]], 3, "same run"), ([str(copy)], 3, "same run")):
        code, said = bench.gate(*main, *more)
        assert code == wanted
        assert words in said


def test_an_occasion_that_is_unlike_the_others_compares_with_nothing(bench: Bench) -> None:
    main = bench.record({"work": 1.0}, occasions=3)
    unlike = bench.run({"work": 1.0}, day=9, settings=SETTINGS.format(size=4), machine=OTHER_MACHINE)
    bench.run({"work": 1.0})
    assert bench.gate(*main)[0] == 0
    code, said = bench.gate(*main, str(unlike))
    assert code == 3
    assert "group_size (8, 4)" in said
    assert "machine" in said


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("damage", [lose_steps, cut_manifests, shutil.rmtree], ids=["steps", "manifests", "folder"])
def test_an_occasion_that_is_not_whole_is_refused(bench: Bench, damage: Callable[[Path], None], planned: bool) -> None:
    main = bench.record({"work": 1.0, "other": 1.0}, occasions=3, planned=planned)
    bench.run({"work": 1.0})
    damage(Path(main[2]) / "work,block=1")
    for code, said in (bench.gate(*main), bench.type(*main)):
        assert code == 2
        assert "work,block=1" in said


def test_a_folder_that_is_no_occasion_is_refused(bench: Bench, tmp_path: Path) -> None:
    main = bench.record({"work": 1.0}, occasions=3)
    stopped = bench.run({"work": 1.0}, day=9, status=lambda arm, block: "interrupted" if block == 5 else "completed")
    emptied = bench.run({"work": 1.0}, day=10, scenario="emptied")
    bench.run({"work": 1.0}, day=11, scenario="emptied")
    bench.run({"work": 1.0})
    for folder in [path for path in emptied.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
    for folder, word in (
        (stopped, "did not finish (work,block=5)"),
        (bench.results / "bench", "holds 5 experiments"),
        (emptied.parent, "holds 2 experiments"),  # of one of them nothing is left
        (emptied, "no runs"),
        (tmp_path / "gone", "does not exist"),
    ):
        code, said = bench.gate(*main, str(folder))
        assert code == 2
        assert word in said


def test_unlike_settings_are_not_comparable_with_a_baseline(bench: Bench) -> None:
    main = bench.record({"work": 1.0}, occasions=3, settings="model: {preset: small}")
    bench.run({"work": 0.5}, settings="model: {preset: tiny}")
    code, said = bench.gate(*main)
    assert code == 3
    assert "model.preset (small, tiny)" in said
    allowed = {"model.preset": 0, "settings": 0, "mod": 2}  # of which the last is no setting
    assert {name: bench.gate(*main, "--allow-difference", name)[0] for name in allowed} == allowed


def test_arms_of_unlike_threads_pass_no_gate_unless_that_is_allowed(bench: Bench) -> None:
    """The old code passed 1 thread against 2 with a line under "Caveats"."""

    def threads(arm: str, block: int) -> int:
        return 1 if arm == "new" else 2

    def settings(arm: str, block: int) -> str:
        return f"model: {{threads: {threads(arm, block)}}}\n"

    bench.run({"old": 1.0, "new": 0.9}, settings=settings, threads=threads)
    code, said = bench.gate()
    assert code == 3
    assert "1 and 2 threads" in said
    assert bench.gate("--allow-difference", "threads")[0] == 0


def dead(arm: str, block: int) -> str:
    return "failed" if arm == "new" else "completed"


def test_a_dead_arm_is_not_equivalent(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The old code printed "equivalent, -0.5%" from three steps a block of an arm that died at step 5 in every one."""
    bench.run({"old": 1.0, "new": 1.0}, blocks=10, status=dead, steps=lambda arm, block: 5 if arm == "new" else 12)
    assert main([str(bench.results), "--fail-on", "5%"]) == 4
    output = " ".join(capsys.readouterr().out.split())
    assert "new was as fast as old per step (10 runs each); 10 of 10 runs of new did not finish." in output
    assert "whole step 1.00 1.00 +0.0% generate" in output  # with neither interval nor verdict
    assert not {"same", "faster", "slower"} & {*output.split()}


def test_a_dead_arm_that_was_slower_while_it_lived_is_not_worse(bench: Bench) -> None:
    bench.run({"old": 1.0, "new": 1.5}, status=dead)
    assert bench.gate()[0] == 4
