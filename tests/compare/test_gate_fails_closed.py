"""The ways to a wrong exit 0, or to a wrong 1, each typed as a command on run folders of known step times."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare.__main__ import main
from harness.core.trace import Stage
from harness.results.experiment_plan import ExperimentPlan, PlannedRun, write_plan

Arms = Mapping[str, float]
SETTINGS = "steps: 6\ngroup_size: {size}\nmodel: {{preset: tiny, threads: 2}}\ntransport: {{type: in_process}}\n"
OTHER_MACHINE = {"cpu": "Abacus 4000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "ffffffffffff"}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Have the output 200 characters wide, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


class Bench:
    """Writes experiments and types the gate.

    An arm's step takes 1 s times its factor, and one in a thousand more or less from block to block; day n is the n-th
    of November 2026. Arms differ in group_size, except those whose name ends in ``again``.
    """

    def __init__(self, make_run, results, capsys):
        self._make_run, self.results, self._capsys = make_run, results, capsys

    def run(self, arms, day=20, blocks=6, planned=True, **fields):
        """Write an experiment and return its folder; fields are those of ``RunPlan``, or functions of arm and block."""
        name = f"202611{day:02d}-080000"
        for block in range(blocks):
            for place, (arm, factor) in enumerate(arms.items()):
                self._write(name, arm, block, place, factor, fields)
        folder = self.results / str(fields.get("scenario", "bench")) / name
        if planned:
            write_plan(folder, plan_of(arms, blocks))
        return folder

    def _write(self, name, arm, block, place, factor, fields):
        half = 0.5 * factor * (1 + 0.001 * (-1) ** block)
        size = 8 if place == 0 or arm.endswith("again") else 8 + place
        plan = {
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

    def record(self, arms, occasions=5, **fields):
        """Write an experiment on each of the first days of the month; return the option that names them."""
        folders = []
        for day in range(1, occasions + 1):
            shift = 1 + 0.002 * (-1) ** day  # occasions lie 0.2% from their mean, in turn above and below
            folders.append(self.run({arm: factor * shift for arm, factor in arms.items()}, day=day, **fields))
        return ["--against", *map(str, folders)]

    def type(self, *arguments, at=None):
        """Type ``compare``, and return the exit code and what is said on standard error."""
        code = main([str(at or self.results), *arguments])
        return code, self._capsys.readouterr().err

    def gate(self, *arguments, at=None):
        """Type the gate, and return the exit code and what it says."""
        return self.type("--fail-on", "5%", *arguments, at=at)


def plan_of(arms, blocks):
    return ExperimentPlan(
        tuple(PlannedRun(f"{arm},block={block}", arm, block) for block in range(blocks) for arm in arms)
    )


@pytest.fixture
def bench(make_run, tmp_path, capsys):
    return Bench(make_run, tmp_path / "results", capsys)


def lose_steps(folder):
    """Do what a copy that was cut short does: leave manifests and no steps."""
    for path in folder.rglob("steps.jsonl"):
        path.unlink()


def cut_manifests(folder):
    for path in folder.rglob("manifest.json"):
        path.write_text(path.read_text()[:40])


def test_a_whole_experiment_passes_or_fails_by_its_arms(bench):
    lose_steps(bench.run({"old": 1.0, "new": 1.5}, day=10))  # one that is older is in nobody's way
    bench.run({"old": 1.0, "new": 1.01})
    assert [bench.gate()[0], bench.gate("--baseline", "new")[0]] == [0, 0]
    bench.run({"old": 1.0, "new": 1.2}, day=21)
    assert bench.gate()[0] == 1


def test_occasions_decide_by_the_arm_of_the_same_name_else_by_the_first(bench):
    same = {"settings": "steps: 6\n"}
    main = bench.record({"main": 1.0, "fix": 1.3}, occasions=3, **same)
    bench.run({"main": 1.0, "fix": 1.3}, **same)
    assert bench.gate(*main)[0] == 0  # each against its own name
    assert bench.gate("--baseline", "main", *main)[0] == 1  # fix against main
    assert bench.gate("--baseline", "gone", *main)[0] == 2
    bench.run({"other": 1.3}, day=21, **same)
    assert bench.gate(*main)[0] == 1  # against main, which is first
    assert bench.gate("--baseline", "fix", *main)[0] == 0


def test_the_baseline_is_an_arm_of_the_newest_and_of_each_experiment_that_is_named(bench):
    older, newest = bench.run({"left": 1.0, "both": 1.0}, day=10), bench.run({"right": 1.0, "both": 1.0})
    for code, said in (bench.gate("--baseline", "left"), bench.type("--baseline", "left")):
        assert (code, "(both, right)" in said or "(right, both)" in said) == (2, True)
    assert bench.type("--baseline", "right", "--all")[0] == 0  # an older one shows what it has
    assert bench.type(str(newest), "--baseline", "both", at=older)[0] == 0
    code, said = bench.type(str(newest), "--baseline", "right", at=older)
    assert (code, "bench/20261110-080000" in said, "left, both" in said) == (2, True, True)


@pytest.mark.parametrize("damage", [lose_steps, cut_manifests, shutil.rmtree], ids=["steps", "manifests", "runs"])
def test_an_older_experiment_never_stands_for_the_newest(bench, damage):
    bench.run({"old": 1.0, "new": 1.0}, day=10)
    newest = bench.run({"old": 1.0, "new": 1.5})
    for folder in [path for path in newest.iterdir() if path.is_dir()]:
        damage(folder)
    code, said = bench.gate()
    assert (code, str(newest) in said) == (3, True)
    assert bench.type()[0] == 0


@pytest.mark.parametrize(("planned", "damage"), [(False, lose_steps), (True, shutil.rmtree)])
def test_an_arm_that_cannot_be_read_cannot_pass(bench, planned, damage):
    folder = bench.run({"old": 1.0, "fine": 1.0, "slow": 1.5}, planned=planned)
    for path in [*folder.glob("slow,*")]:
        damage(path)
    for code, said in (bench.gate(), bench.gate("--baseline", "slow")):
        assert (code, "no run of slow " in said) == (3, True)


@pytest.mark.parametrize(
    ("damage", "planned"),
    [(lose_steps, True), (cut_manifests, False), (shutil.rmtree, True), (shutil.rmtree, False)],
    ids=["steps", "manifests", "folder", "folder, no plan"],
)
def test_a_block_or_an_occasion_that_is_not_whole_is_named(bench, damage, planned):
    folder = bench.run({"old": 1.0, "new": 1.0}, planned=planned)
    damage(folder / "new,block=3")
    code, said = bench.gate()
    assert (code, "new,block=3" in said) == (4, True)
    main = bench.record({"old": 1.0, "new": 1.0}, occasions=2, planned=planned, blocks=2)
    bench.run({"old": 1.0}, day=21, blocks=2)
    damage(Path(main[2]) / "new,block=1")
    for code, said in (bench.gate(*main), bench.type(*main)):
        assert (code, "new,block=1" in said) == (2, True)


def test_what_the_stopping_rule_left_out_is_not_missing(bench):
    arms = {"old": 1.0, "new": 1.0}
    folder = bench.run(arms, blocks=10)
    write_plan(folder, plan_of(arms, 40))  # interrupted after ten of forty blocks
    code, said = bench.gate()
    assert (code, "60 runs" in said) == (4, True)  # 30 blocks of two arms
    write_plan(folder, replace(plan_of(arms, 40), enough_after=10))
    assert bench.gate()[0] == 0


def test_nothing_new_since_the_baseline_is_nothing_to_compare(bench, tmp_path):
    main = bench.record({"old": 1.0, "new": 1.0}, occasions=2, blocks=1)
    for arguments, wanted in ((["--fail-on", "5%"], 3), ([], 2)):
        code, said = bench.type(*arguments, *main)
        assert (code, "nothing to compare" in said) == (wanted, True)
    copy = tmp_path / "copy" / "20261102-080000"
    shutil.copytree(main[-1], copy)
    assert bench.gate(*main, at=copy)[0] == 3  # nor is a copy of an occasion anything new


def test_one_occasion_is_no_baseline_to_gate_on_and_counts_once(bench, tmp_path):
    main = bench.record({"work": 1.0}, occasions=1, blocks=2)
    bench.run({"work": 1.3}, blocks=2)
    copy = tmp_path / "copy" / "20261101-080000"
    shutil.copytree(main[-1], copy)
    for more, wanted, words in (([], 4, "one occasion"), ([main[-1]], 3, "same run"), ([str(copy)], 3, "same run")):
        code, said = bench.gate(*main, *more)
        assert (code, words in said) == (wanted, True)


def test_an_occasion_that_is_unlike_compares_with_nothing_unless_that_is_allowed(bench):
    main = bench.record({"work": 1.0}, occasions=2)
    unlike = bench.run({"work": 1.0}, day=9, settings=SETTINGS.format(size=4), machine=OTHER_MACHINE)
    bench.run({"work": 1.0})
    code, said = bench.gate(*main, str(unlike))
    assert (code, "group_size (8, 4)" in said, "machine" in said) == (3, True, True)
    bench.run({"work": 0.5}, day=21, settings=SETTINGS.format(size=4))
    allowed = {"group_size": 0, "settings": 0, "grou": 2}  # of which the last is no setting
    assert {name: bench.gate(*main, "--allow-difference", name)[0] for name in allowed} == allowed


def test_a_folder_that_is_no_occasion_is_refused(bench, tmp_path):
    main = bench.record({"work": 1.0}, occasions=2, blocks=1)
    stopped = bench.run({"work": 1.0}, day=9, blocks=1, status="interrupted")
    emptied = bench.run({"work": 1.0}, day=10, blocks=1, scenario="emptied")
    bench.run({"work": 1.0}, day=11, blocks=1, scenario="emptied")
    bench.run({"work": 1.0}, blocks=1)
    for folder in [path for path in emptied.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
    for folder, word in (
        (stopped, "(work,block=0)"),
        (bench.results / "bench", "4 experiments"),
        (emptied.parent, "2 experiments"),  # of one of them nothing is left
        (emptied, "no runs"),
        (tmp_path / "gone", "does not exist"),
    ):
        code, said = bench.gate(*main, str(folder))
        assert (code, word in said) == (2, True), said


def test_a_dead_arm_is_neither_equivalent_nor_worse(bench, capsys):
    """Of three steps a block it was called equivalent once."""

    def status(arm, block):
        return "failed" if arm == "new" else "completed"

    bench.run({"old": 1.0, "new": 1.0}, status=status, steps=lambda arm, block: 5 if arm == "new" else 12)
    assert main([str(bench.results), "--fail-on", "5%"]) == 4
    output = " ".join(capsys.readouterr().out.split())
    assert "6 of 6 runs of new did not finish." in output
    assert "whole step 1.00 1.00 +0.0% generate" in output  # with neither interval nor verdict
    assert not {"same", "faster", "slower"} & {*output.split()}
    bench.run({"old": 1.0, "new": 1.5}, day=21, status=status)  # slower while it lived
    assert bench.gate()[0] == 4
