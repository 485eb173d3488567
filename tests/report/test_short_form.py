"""What a person reads first: a screen with the answer, the arms side by side, where time goes and what to type next."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cli import main
from harness.compare.experiment import Experiment, Member, gather
from harness.compare.judging import Judgement, judgements
from harness.compare.remarks import Remark
from harness.compare.stats.verdicts import STEP, Effect, Verdict
from harness.core.terminal_text import plain, plain_ends
from harness.report.build import before_and_after, document
from harness.report.console import shown_path
from harness.report.document import MARKED, Table
from harness.report.markdown import escaped
from harness.report.tables import comparison_table
from harness.report.terminal import print_document, print_table
from harness.results import RolloutRow, RunFolder, find_run_folders
from harness.results.reader import is_reference
from harness.run.experiment import show_results
from tests.stand_ins.members import MACHINE, made_experiment, made_run

Make = Callable[..., RunFolder]
REFERENCE = Path(__file__).parents[2] / "results/reference"


def _reference(name: str) -> Experiment:
    *_, newest = gather([REFERENCE / name])[0]
    return newest


def _printed(experiment: Experiment, baseline: str | None = None, width: int = 80, full: bool = False) -> list[str]:
    output = io.StringIO()
    made = document(experiment, judgements(experiment, baseline), brief=not full)
    print_document(Console(file=output, width=width), made, full)
    return output.getvalue().splitlines()


def _words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", sorted(path.name for path in REFERENCE.iterdir() if path.is_dir()))
def test_it_fits_on_a_screen(name: str) -> None:
    experiment = _reference(name)
    lines = _printed(experiment)
    assert len(lines) <= 30
    commands = [item.command for item in document(experiment, []).sections[0].items if isinstance(item, Remark)]
    assert max(len(line) for line in lines if line not in commands) <= 80  # what is to be pasted is not broken
    full = [line for line in _printed(experiment, full=True) if "python -m" not in line and "git checkout" not in line]
    assert max(map(len, full)) <= 80


def test_it_says_where_time_goes_and_what_to_type_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REFERENCE)
    text = _words(_printed(_reference("sync_k")))
    (folder,) = (REFERENCE / "sync_k").iterdir()
    whatif = f"whatif sync_k/{folder.name}/k1 --scale update=0.9"
    assert f"python -m harness {whatif}" in text
    assert main(shlex.split(whatif)) == 0
    assert "Bottleneck on the critical path: update in k1 (52.8% of a step)" in text
    assert "10% off update takes at most 5.3% off a step of k1" in text
    assert "One run each: no error bars. For some: python -m harness bench sync_k --blocks 10" in text
    assert "Largest stage: update, 52.3% of a step." in _words(_printed(_reference("course")))
    overlapped = _words(_printed(_reference("paced_overlap")))
    assert "On the critical path of lag1 against sync, per step: generate -0.399 s" in overlapped


def test_a_table_is_split_where_it_is_too_wide_by_a_character() -> None:
    """Three columns of five characters and the one behind each: 18."""

    def printed(table: Table, width: int) -> list[str]:
        output = io.StringIO()
        print_table(Console(file=output, width=width), table)
        return [" ".join(line.split()) for line in output.getvalue().splitlines()]

    table = Table("", ("name", "first", "other"), (("label", "11111", "22222"),))
    assert "label 11111 22222" in printed(table, 18)
    assert {"label 11111", "label 22222"} <= {*printed(table, 17)}
    long = replace(table, rows=(("a label of twenty-four letters and more", "11111", "22222"),))
    assert {"a label of twenty-four 11111 22222", "letters and more"} <= {*printed(long, 40)}


def test_two_arms_have_an_interval_whichever_is_the_baseline() -> None:
    experiment = _reference("rdt_nixl")
    table = comparison_table(experiment, judgements(experiment))
    assert table.header == ("seconds per step", "nixl", "object_store", "change", "95% interval", "")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["weight_publish"] == ("0.003", "0.024", "+631%", "+494% to +801%", "slower")
    # against the other arm: 1 / 1.044 and 1 / 7.314
    turned = comparison_table(experiment, judgements(experiment, "object_store"))
    assert turned.header[1:3] == ("object_store", "nixl")
    rows = {row[0]: row[1:] for row in turned.rows}
    assert rows["whole step"] == ("0.556*", "0.533*", "-4.2%", "-7.7% to -0.7%", "cannot tell: chance?")
    assert rows["weight_publish"] == ("0.024", "0.003", "-86.3%", "-88.9% to -83.2%", "faster")
    text = _words(_printed(experiment, "object_store"))
    assert (
        "On the critical path of nixl against object_store (2 of 14 runs), per step: weight_publish -0.0248 s" in text
    )


def test_one_arm_has_shares_and_its_ranges() -> None:
    table = comparison_table(_reference("course"), [])
    assert table.rows[1] == ("update", "2.36 [2.16, 2.60]", "52.3%")
    assert ("whole step", "4.50 [4.19, 4.85]*", "100.0%") in table.rows
    assert table.rows[-2:] == (
        ("tokens per second", "340 [330, 347]", ""),
        ("response, tokens", "31.4 [30.8, 31.8]", ""),
    )


def test_many_arms_are_rows_and_the_fastest_and_slowest_five_are_shown() -> None:
    """Arms of 1.0 to 2.1 s; the baseline is the seventh."""
    runs = [made_run(f"a{number:02}", wall_s=1.0 + number / 10, position=number) for number in range(12)]
    experiment = made_experiment(*runs)
    table = comparison_table(experiment, judgements(experiment, "a06"))
    assert [row[0] for row in table.rows] == [f"a{number:02}" for number in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11)]
    assert table.rows[0][:4] == ("a00", "1.00", "-37.5%", "")  # 1.0 over 1.6
    assert table.notes == ("The fastest and the slowest 5 of 12 arms and the baseline; 1 left out.",)
    five = made_experiment(*runs[:5])
    table = comparison_table(five, judgements(five))
    assert [row[2] for row in table.rows] == ["baseline", "+10.0%", "+20.0%", "+30.0%", "+40.0%"]


def test_a_stage_that_one_arm_lacks_has_its_part_of_a_step_and_no_change_of_its_own() -> None:
    """Of steps of 1.18 s the baseline spends 0.18 s on what b lacks: 18% of a step of b."""
    with_it = {"wall_s": 1.18, "stages_s": {"update": 1.0, "old_logprobs": 0.18}}
    members = [made_run("a", **with_it), made_run("b", stages_s={"update": 1.0})]
    step = Effect(STEP, 6, 1 / 1.18, 0.8, 0.9, 0.01, 0.01, 0.05, 0.03, Verdict.DIFFERENT)
    judged = [Judgement("a", "b", (step, replace(step, name="old_logprobs", of_step=True)))]
    rows = {row[0]: row[1:] for row in comparison_table(made_experiment(*members), judged).rows}
    assert rows["old_logprobs"] == ("0.180", "-", "-18.0%", "of a step", "")
    three = made_experiment(*members, made_run("c", **with_it))
    added = Judgement("b", "c", (step, replace(step, name="old_logprobs", of_step=True)))
    rows = {row[0]: row[1:] for row in comparison_table(three, [added]).rows}
    assert rows["old_logprobs"] == ("-", "0.180", "0.180")


def test_an_arm_that_did_not_finish_is_set_against_the_steps_that_both_made() -> None:
    """Steps of 1 s, the last four of 3 s; b got through the first four, of 1.2 s."""

    def arm(name: str, walls: list[float], status: str = "completed", **fields: Any) -> Member:
        return made_run(name, steps=len(walls), wall_s=walls, stages_s={"update": walls}, status=status, **fields)

    whole, cut = arm("a", [1.0] * 4 + [3.0] * 4), arm("b", [1.2] * 4, "interrupted")
    experiment = made_experiment(whole, cut)
    table = comparison_table(experiment, judgements(experiment))
    assert table.rows[:2] == (("whole step", "1.00", "1.20", "+20.0%"), ("update", "1.00", "1.20", "+20.0%"))
    assert table.notes == ("Seconds per step are of the steps that both made.",)
    assert "+20.0%" in _words(_printed(experiment))
    assert "b did not finish" in _words(_printed(experiment))
    three = made_experiment(whole, cut, arm("c", [2.2] * 8))
    table = comparison_table(three, judgements(three))
    assert table.rows[0] == ("whole step", "2.00", "1.20 +20.0%", "2.20 +10.0%")
    assert table.notes == ("Seconds of b are of the steps that both made, with 1.00 s per step in a.",)
    in_turns = {"interleaving": "run"}
    blocks = [arm(name, [1.0], block=block, **in_turns) for name in "ab" for block in (0, 1)]
    blocks += [arm("a", [5.0], block=2, **in_turns), arm("b", [9.0], "failed", block=2, **in_turns)]
    table = comparison_table(made_experiment(*blocks), judgements(made_experiment(*blocks)))
    assert table.rows[0][:3] == ("whole step", "1.00", "1.00")
    assert table.notes == ("Seconds per step are of the blocks that both finished.",)


def test_what_cannot_be_told_has_a_reason_in_its_line() -> None:
    effect = Effect(STEP, 12, 1.02, 0.99, 1.05, 0.3, 0.3, 0.05, 0.03, Verdict.INCONCLUSIVE)
    reasons = {
        "holds 0": effect,
        "under 3%": replace(effect, low=1.01),
        "chance?": replace(effect, ratio=1.04, low=1.01),
        "4 blocks": replace(effect, blocks=4, p_adjusted=None),
        "unlike runs": replace(effect, verdict=Verdict.NOT_COMPARABLE),
        "see above": replace(effect, p_adjusted=None, reason="2 of 12 runs did not finish"),
    }
    members = made_experiment(made_run("a"), made_run("b"))
    for reason, open_effect in reasons.items():
        (row, *_) = comparison_table(members, [Judgement("a", "b", (open_effect,))]).rows
        assert row[-1] == f"cannot tell: {reason}"


def test_machines_that_may_differ_are_named_and_nothing_is_refused() -> None:
    runs = [
        made_run(arm, block, block=block, machine=MACHINE | {"fingerprint": arm * 12}, wall_s=wall_s + block / 100)
        for arm, wall_s in (("a", 1.0), ("b", 2.0))
        for block in range(6)
    ]
    experiment = made_experiment(*runs)
    for allowed, is_refused in (([], True), (["machine"], False)):
        made, output = document(experiment, judgements(experiment, allowed=allowed), brief=True), io.StringIO()
        print_document(Console(file=output, width=80), made)
        text = " ".join(output.getvalue().split())
        assert ("cannot be compared" in text) == is_refused
        assert "differ in machine (fingerprint aaaaaaaaaaaa: 6 runs; fingerprint bbbbbbbbbbbb: 6 runs)" in text


def test_changes_against_other_folders_say_so() -> None:
    """Of k1 +20%; what is judged is each arm against its own baseline, so the two are not set against each other."""
    experiment = made_experiment(made_run("k1", wall_s=1.2), made_run("k2", stages_s={"update": 0.5}))
    effect = Effect(STEP, 6, 1.2, 1.1, 1.3, 0.01, 0.01, 0.05, 0.03, Verdict.DIFFERENT)
    judged = [Judgement(f"{arm} of noise/1 and 4 earlier", arm, (effect,)) for arm in ("k1", "k2")]
    table = comparison_table(experiment, judged)
    assert (table.header, table.rows[0]) == (
        ("seconds per step", "k1", "k2"),
        ("whole step", "1.20 +20.0%", "1.00 +20.0%"),
    )
    assert table.notes == ("Changes are against the same arm in the folders of --against.",)


def test_what_the_short_form_leaves_is_in_the_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.report.build.MOST_CAUTIONS", 1)
    experiment = _reference("sync_k1-vs-sync_k2")
    (verdicts,) = (item for item in document(experiment, judgements(experiment)).sections if item.key == "verdicts")
    assert any(isinstance(item, Remark) and item.key == "noise_floor" for item in verdicts.items)
    experiment = _reference("async_lag1")
    (cautions,) = (item for item in document(experiment, judgements(experiment)).sections if item.key == "cautions")
    assert [item.key for item in cautions.items if isinstance(item, Remark)][
        -1
    ] == MARKED  # which the table's mark says
    assert (len(cautions.items), _printed(experiment)[-1]) == (2, "- 1 more caution: --full.")
    assert "more caution" not in _words(_printed(experiment, full=True))


def test_nothing_in_markdown_acts() -> None:
    assert escaped("`a` [b](c) <d> | e_f\x1b") == "\\`a\\` \\[b\\](c) \\<d\\> \\| e\\_f\\\\x1b"


def _row(version: int, prompt: str, reward: float, purpose: str = "evaluate") -> RolloutRow:
    return RolloutRow(purpose, version, prompt, f"{prompt} {version}", "truth", reward, 3, "stop")


def test_rollouts_of_the_first_and_last_version_are_paired_by_prompt() -> None:
    rows = [
        _row(0, "a", 0.0), _row(0, "b", 0.0), _row(0, "c", 1.0), _row(0, "only before", 0.0), _row(5, "b", 1.0),
        _row(9, "x", 1.0, purpose="train"), _row(8, "a", 0.0), _row(8, "b", 1.0), _row(8, "c", 0.0),
    ]  # fmt: skip
    pairs = before_and_after(rows, most=3)
    # b and c changed their reward, a did not
    assert [(before.response, after.response) for before, after in pairs] == [
        ("b 0", "b 8"), ("c 0", "c 8"), ("a 0", "a 8"),
    ]  # fmt: skip
    assert before_and_after(rows[:3], most=2) == before_and_after([], most=2) == []


def test_plain_text_has_no_power_over_the_terminal_and_is_cut() -> None:
    unchanged = "[bold]a[/bold] \u00e9 \u732b \U0001f408"
    written_out = {
        unchanged: unchanged,
        "a\x1b[2J\r\n\tb\x9bc": r"a\x1b[2J\r\n\tb\x9bc",
        "\u202eevil\u2066 \u2028 \ud800": r"\u202eevil\u2066 \u2028 \ud800",
    }
    assert {text: plain(text) for text in written_out} == written_out
    cut = {"abcdefgh": "abcdefgh", "abcdefghi": "abcde...", "\x1b" * 9: r"\x1b\..."}
    assert {text: plain(text, 8) for text in cut} == cut
    # of a prompt both ends: 8 // 4 of the beginning, the rest of the end
    assert [plain_ends(text, 8) for text in ("abcdefgh", "abcdefghi")] == ["abcdefgh", "ab ... defghi"]
    assert plain_ends("Instructions. " * 50 + "\nWhat is 2 + 2?", 80).endswith(r"\nWhat is 2 + 2?")


def test_paths_are_shown_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shown_path(tmp_path / "work" / "results" / "a.png") == "results/a.png"
    assert shown_path(tmp_path / "a.png") == str(tmp_path / "a.png")


def test_the_end_of_a_run_is_a_line_a_screen_or_figures(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(evaluations={0: (0.2, 12.0), 4: (0.6, 18.0)}).folder
    show_results(folder, "line")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("sync_k / 20261120-111500: sync_k: 1.50 s per step")
    assert "0.20 to 0.60" in line
    assert line.endswith("report.html")
    show_results(folder, "json")
    assert [each["scenario"] for each in json.loads(capsys.readouterr().out)["campaigns"]] == ["sync_k"]
    show_results(folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert (lines[-2].startswith("report: "), lines[-1].startswith("all tables: ")) == (True, True)
    assert lines[-1].endswith("--full")
    assert {path.name for path in folder.iterdir()} >= {"report.html", "pictures"}


def test_reference_runs_are_shown_only_when_asked_for(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    kept = make_run(scenario="old").folder.parent
    (results / "reference").mkdir()
    kept.rename(results / "reference" / "old")
    reference = results / "reference" / "old" / "20261120-111500"
    assert find_run_folders(results) == [reference]  # there are no others
    own = make_run(scenario="mine").folder
    assert find_run_folders(results) == [own]
    assert find_run_folders(results / "reference") == [reference]
    assert (is_reference(reference), is_reference(own)) == (True, False)
    assert main(["compare", str(results)]) == 0
    assert f"name {results / 'reference'}" in capsys.readouterr().err.replace("\n", "")
    monkeypatch.chdir(tmp_path)
    before = sorted(reference.iterdir())
    assert main(["trace", str(reference)]) == 0
    assert capsys.readouterr().out.startswith("trace: trace.json.gz\n")
    assert (sorted(reference.iterdir()), (tmp_path / "trace.json.gz").is_file()) == (before, True)
