"""What a person reads first: a screen with the answer, the arms side by side, where time goes and what to type next."""

import io
import shlex
from dataclasses import replace

import pytest
from rich.console import Console

from harness.cli import main
from harness.compare.judging import Judgement, judgements
from harness.compare.remarks import Remark
from harness.compare.stats.verdicts import STEP, Effect, Verdict
from harness.core.terminal_text import plain, plain_ends
from harness.report.build import before_and_after, document
from harness.report.document import MARKED, Table
from harness.report.markdown import escaped
from harness.report.tables import comparison_table
from harness.report.terminal import print_document, print_table
from harness.results import RolloutRow, find_run_folders
from harness.results.reader import is_reference
from harness.run.experiment import show_results
from tests.compare.recorded import NAMES, REFERENCE, recorded
from tests.stand_ins.members import made_experiment, made_run


def _printed(experiment, baseline=None, full=False):
    output = io.StringIO()
    made = document(experiment, judgements(experiment, baseline), brief=not full)
    print_document(Console(file=output, width=80), made, full)
    return output.getvalue().splitlines()


def _words(lines):
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_on_a_screen_that_begins_with_the_answer(name):
    experiment = recorded(name)[-1]
    made, lines = document(experiment, judgements(experiment), brief=True), _printed(experiment)
    assert len(lines) <= 30
    assert lines[0] == f"{experiment.scenario} / {experiment.name}"
    assert _words(lines[1:]).startswith(" ".join(item.text for item in made.answer[:1]))
    commands = [item.command for item in made.sections[0].items if isinstance(item, Remark)]
    assert max(len(line) for line in lines if line not in commands) <= 80  # what is to be pasted is not broken
    full = [line for line in _printed(experiment, full=True) if "python -m" not in line and "git checkout" not in line]
    assert max(map(len, full)) <= 80


def test_what_it_says_to_type_next_can_be_typed(monkeypatch):
    monkeypatch.chdir(REFERENCE)
    text = _words(_printed(recorded("sync_k")[-1]))
    (folder,) = (REFERENCE / "sync_k").iterdir()
    whatif = f"whatif sync_k/{folder.name}/k1 --scale update=0.9"
    assert f"python -m harness {whatif}" in text
    assert main(shlex.split(whatif)) == 0
    assert "update in k1 (52.8% of a step)" in text
    assert "python -m harness bench sync_k --blocks 10" in text
    assert "update, 52.3% of a step." in _words(_printed(recorded("course")[-1]))
    assert "generate -0.399 s" in _words(_printed(recorded("paced_overlap")[-1]))


def test_a_table_is_split_where_it_is_too_wide_by_a_character():
    """Three columns of five characters and the one behind each: 18."""

    def printed(table, width):
        output = io.StringIO()
        print_table(Console(file=output, width=width), table)
        return [" ".join(line.split()) for line in output.getvalue().splitlines()]

    table = Table("", ("name", "first", "other"), (("label", "11111", "22222"),))
    assert "label 11111 22222" in printed(table, 18)
    assert {"label 11111", "label 22222"} <= {*printed(table, 17)}
    long = replace(table, rows=(("a label of twenty-four letters and more", "11111", "22222"),))
    assert {"a label of twenty-four 11111 22222", "letters and more"} <= {*printed(long, 40)}


def test_two_arms_have_an_interval_whichever_is_the_baseline():
    experiment = recorded("rdt_nixl")[-1]
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
    assert "nixl against object_store (2 of 14 runs), per step: weight_publish -0.0248 s" in text


def test_one_arm_has_shares_and_its_ranges():
    table = comparison_table(recorded("course")[-1], [])
    assert table.rows[1] == ("update", "2.36 [2.16, 2.60]", "52.3%")
    assert ("whole step", "4.50 [4.19, 4.85]*", "100.0%") in table.rows
    assert table.rows[-2:] == (
        ("tokens per second", "340 [330, 347]", ""),
        ("response, tokens", "31.4 [30.8, 31.8]", ""),
    )


def test_many_arms_are_rows_and_the_fastest_and_slowest_five_are_shown():
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


def test_a_stage_that_one_arm_lacks_has_its_part_of_a_step_and_no_change_of_its_own():
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


def test_an_arm_that_did_not_finish_is_set_against_the_steps_that_both_made():
    """Steps of 1 s, the last four of 3 s; b got through the first four, of 1.2 s."""

    def arm(name, walls, status="completed", **fields):
        return made_run(name, steps=len(walls), wall_s=walls, stages_s={"update": walls}, status=status, **fields)

    def table_of(*members):
        experiment = made_experiment(*members)
        return comparison_table(experiment, judgements(experiment))

    whole, cut = arm("a", [1.0] * 4 + [3.0] * 4), arm("b", [1.2] * 4, "interrupted")
    table = table_of(whole, cut)
    assert table.rows[:2] == (("whole step", "1.00", "1.20", "+20.0%"), ("update", "1.00", "1.20", "+20.0%"))
    assert ["steps that both made" in note for note in table.notes] == [True]
    text = _words(_printed(made_experiment(whole, cut)))
    assert ("+20.0%" in text, "b did not finish" in text) == (True, True)
    table = table_of(whole, cut, arm("c", [2.2] * 8))
    assert table.rows[0] == ("whole step", "2.00", "1.20 +20.0%", "2.20 +10.0%")
    assert ["of b are" in note and "1.00 s per step in a" in note for note in table.notes] == [True]
    in_turns = {"interleaving": "run"}
    blocks = [arm(name, [1.0], block=block, **in_turns) for name in "ab" for block in (0, 1)]
    table = table_of(*blocks, arm("a", [5.0], block=2, **in_turns), arm("b", [9.0], "failed", block=2, **in_turns))
    assert table.rows[0][:3] == ("whole step", "1.00", "1.00")
    assert ["blocks that both finished" in note for note in table.notes] == [True]


def test_what_cannot_be_told_has_a_reason_in_its_line():
    effect = Effect(STEP, 12, 1.02, 0.99, 1.05, 0.3, 0.3, 0.05, 0.03, Verdict.INCONCLUSIVE)
    members = made_experiment(made_run("a"), made_run("b"))
    for reason, open_effect in {
        "holds 0": effect,
        "under 3%": replace(effect, low=1.01),
        "chance?": replace(effect, ratio=1.04, low=1.01),
        "": replace(effect, blocks=4, p_adjusted=None),
        "unlike runs": replace(effect, verdict=Verdict.NOT_COMPARABLE),
        "see above": replace(effect, p_adjusted=None, reason="2 of 12 runs did not finish"),
    }.items():
        (row, *_) = comparison_table(members, [Judgement("a", "b", (open_effect,))]).rows
        assert row[-1] == f"cannot tell: {reason}".removesuffix(": ")


def test_changes_against_other_folders_say_so():
    """Of k1 +20%; what is judged is each arm against its own baseline, so the two are not set against each other."""
    experiment = made_experiment(made_run("k1", wall_s=1.2), made_run("k2", stages_s={"update": 0.5}))
    effect = Effect(STEP, 6, 1.2, 1.1, 1.3, 0.01, 0.01, 0.05, 0.03, Verdict.DIFFERENT)
    judged = [Judgement(f"{arm} of noise/1 and 4 earlier", arm, (effect,)) for arm in ("k1", "k2")]
    table = comparison_table(experiment, judged)
    assert table.header == ("seconds per step", "k1", "k2")
    assert table.rows[0] == ("whole step", "1.20 +20.0%", "1.00 +20.0%")
    assert ["--against" in note for note in table.notes] == [True]


def test_what_the_short_form_leaves_is_in_the_full_one(monkeypatch):
    def section(name, key):
        experiment = recorded(name)[-1]
        (found,) = (item for item in document(experiment, judgements(experiment)).sections if item.key == key)
        return [item for item in found.items if isinstance(item, Remark)]

    monkeypatch.setattr("harness.report.build.MOST_CAUTIONS", 1)
    assert "noise_floor" in [item.key for item in section("sync_k1-vs-sync_k2", "verdicts")]
    cautions = section("async_lag1", "cautions")
    assert (len(cautions), cautions[-1].key) == (2, MARKED)  # which the table's mark says
    assert _printed(recorded("async_lag1")[-1])[-1].startswith("- 1 more caution")
    assert "more caution" not in _words(_printed(recorded("async_lag1")[-1], full=True))


def test_rollouts_of_the_first_and_last_version_are_paired_by_prompt():
    def row(version, prompt, reward, purpose="evaluate"):
        return RolloutRow(purpose, version, prompt, f"{prompt} {version}", "truth", reward, 3, "stop")

    rows = [
        row(0, "a", 0.0), row(0, "b", 0.0), row(0, "c", 1.0), row(0, "only before", 0.0), row(5, "b", 1.0),
        row(9, "x", 1.0, purpose="train"), row(8, "a", 0.0), row(8, "b", 1.0), row(8, "c", 0.0),
    ]  # fmt: skip
    pairs = before_and_after(rows, most=3)
    # b and c changed their reward, a did not
    shown = [(before.response, after.response) for before, after in pairs]
    assert shown == [("b 0", "b 8"), ("c 0", "c 8"), ("a 0", "a 8")]
    assert before_and_after(rows[:3], most=2) == before_and_after([], most=2) == []


def test_plain_text_has_no_power_over_the_terminal_nor_in_markdown_and_is_cut():
    unchanged = "[bold]a[/bold] \u00e9 \u732b \U0001f408"
    for text, written in (
        (unchanged, unchanged),
        ("a\x1b[2J\r\n\tb\x9bc", r"a\x1b[2J\r\n\tb\x9bc"),
        ("\u202eevil\u2066 \u2028 \ud800", r"\u202eevil\u2066 \u2028 \ud800"),
    ):
        assert plain(text) == written
    for text, cut in (("abcdefgh", "abcdefgh"), ("abcdefghi", "abcde..."), ("\x1b" * 9, r"\x1b\...")):
        assert plain(text, 8) == cut
    # of a prompt both ends: 8 // 4 of the beginning, the rest of the end
    assert [plain_ends(text, 8) for text in ("abcdefgh", "abcdefghi")] == ["abcdefgh", "ab ... defghi"]
    assert plain_ends("Instructions. " * 50 + "\nWhat is 2 + 2?", 80).endswith(r"\nWhat is 2 + 2?")
    assert escaped("`a` [b](c) <d> | e_f\x1b") == "\\`a\\` \\[b\\](c) \\<d\\> \\| e\\_f\\\\x1b"


def test_the_end_of_a_run_is_a_line_a_screen_or_figures(make_run, capsys):
    folder = make_run(evaluations={0: (0.2, 12.0), 4: (0.6, 18.0)}, metrics=lambda step: {}).folder
    (folder / "spans.jsonl").unlink()  # fewer charts to draw
    show_results(folder, "line")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("sync_k / 20261120-111500: sync_k: 1.50 s per step")
    assert ("0.20 to 0.60" in line, line.endswith("report.html")) == (True, True)
    show_results(folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert (lines[-2].startswith("report: "), lines[-1].endswith("--full")) == (True, True)
    assert {path.name for path in folder.iterdir()} >= {"report.html", "pictures"}


def test_reference_runs_are_shown_only_when_asked_for(make_run, tmp_path, capsys, monkeypatch):
    results = tmp_path / "results"
    kept = make_run(scenario="old").folder.parent
    (results / "reference").mkdir()
    kept.rename(results / "reference" / "old")
    reference = results / "reference" / "old" / "20261120-111500"
    assert find_run_folders(results) == [reference]  # there are no others
    own = make_run(scenario="mine").folder
    assert (find_run_folders(results), find_run_folders(results / "reference")) == ([own], [reference])
    assert (is_reference(reference), is_reference(own)) == (True, False)
    assert main(["compare", str(results)]) == 0
    assert str(results / "reference") in capsys.readouterr().err.replace("\n", "")
    monkeypatch.chdir(tmp_path)
    before = sorted(reference.iterdir())
    assert main(["trace", str(reference)]) == 0
    assert capsys.readouterr().out.startswith("trace: trace.json.gz\n")  # as it is seen from the current folder
    assert (sorted(reference.iterdir()), (tmp_path / "trace.json.gz").is_file()) == (before, True)
