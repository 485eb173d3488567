"""``python -m harness import``: run folders that compare reads, what is said, and that nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.compare import gather
from harness.core.trace import Stage
from harness.results import Manifest, RunFolder, find_run_folders, load_run
from harness.results.importers.trainers import OPEN_INSTRUCT, TRL, VERL, VERL_ASYNC, Crosswalk, Entry

REAL_TRL_LOG = Path(__file__).parents[1] / "data" / "importers" / "trl_1.16_trainer_state.json"
PAGE = Path(__file__).parents[2] / "docs" / "importing.md"


def verl_log(path: Path, **more: Any) -> Path:
    """A log as verl's ``file`` logger writes it (verl/utils/tracking.py), made here."""
    lines: list[dict[str, Any]] = [{"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}}]
    for step in range(1, 5):
        data = {"timing_s/step": 4.0, "timing_s/gen": 3.0, "timing_s/update_actor": 1.0, "critic/score/mean": 0.5}
        lines.append({"step": step, "data": data | more})
    lines[-1]["data"] |= {"val-core/gsm8k/reward/mean@1": 0.75, "timing_s/testing": 2.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_imported_run_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = verl_log(tmp_path / "annbox.jsonl", odd=None, note="x")
    out = tmp_path / "results"
    assert (
        main(["import", "verl", str(log), "--out", str(out), "--name", "gsm8k", "--seed", "3", "--asynchronous"]) == 0
    )
    (folder,) = find_run_folders(out)
    assert folder.parent == out / "gsm8k"
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "imported 4 training rows and 2 evaluations from verl",
        "  6 names translated, 1 kept as imported/<name> (odd)",
        "  4 numbers were NaN, infinite or null (odd); kept as NaN",
        "  left out: 4 values were no number (note)",
        "  not in the log, with the names that were looked for: response_length (response_length/mean); "
        "truncated_fraction (response_length/clip_ratio); token_entropy (actor/entropy, actor/entropy_loss); grad_norm "
        "(actor/grad_norm); clip_fraction (actor/pg_clipfrac); learning_rate (actor/lr, actor/lr(1e-4))",
        "  timing_s/gen was read as waiting for the next batch (asynchronous)",
        f"run folder: {folder}",
    ]
    run = load_run(folder)
    assert run.status == "completed"
    assert [(row.step, row.stages_s["wait_for_batch"]) for row in run.steps] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [(row.version, row.elapsed_s) for row in run.evaluations] == [(0, 0.0), (4, 18.0)]
    assert run.spans() == []
    manifest = run.manifest
    assert (manifest.scenario, manifest.seed, manifest.duration_s, manifest.commit) == ("gsm8k", 3, None, None)
    assert set(manifest.machine["missing"].values()) == {"another trainer's log does not tell of its machine"}
    assert manifest.outcome["steps_done"] == 4
    assert (manifest.outcome["imported"]["kept"], manifest.outcome["imported"]["asynchronous"]) == (["odd"], True)
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "annbox" not in text  # a log's name often holds a host's


def test_several_logs_are_the_arms_of_one_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    named, bare = verl_log(tmp_path / "x.jsonl"), verl_log(tmp_path / "lr=1.jsonl", odd=1.0)
    assert main(["import", "verl", f"split={named}", str(bare), "--out", str(out), "--name", "gsm8k"]) == 0
    said = capsys.readouterr().out
    (experiment,) = (out / "gsm8k").iterdir()
    assert "from verl as split\n" in said
    assert "from verl as lr=1\n" in said
    assert f"compare {experiment}" in said
    runs = {folder.name: load_run(folder).manifest for folder in find_run_folders(out)}
    assert {name: (each.arm, each.position) for name, each in runs.items()} == {
        "split": ("split", 0),
        "lr=1": ("lr=1", 1),
    }
    assert {each.experiment for each in runs.values()} == {experiment.name}
    (fingerprint,) = {each.machine["fingerprint"] for each in runs.values()}
    assert fingerprint.startswith("unknown-")
    (whole,), _ = gather([out])
    assert list(whole.arms) == ["split", "lr=1"]


def test_runs_of_one_machine_are_those_of_one_name(tmp_path: Path) -> None:
    """Whichever command imported them; the name itself is not kept."""
    fingerprints = []
    for place, machine in enumerate(("annbox", "annbox", "other", None)):
        log = verl_log(tmp_path / "log.jsonl", **{f"x{place}": 1.0})
        named = ["--machine", machine] if machine else []
        assert main(["import", "verl", str(log), "--out", str(tmp_path / str(place)), *named]) == 0
        (folder,) = find_run_folders(tmp_path / str(place))
        fingerprints.append(load_run(folder).manifest.machine["fingerprint"])
        assert "annbox" not in (folder / "manifest.json").read_text()
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


def test_arms_that_cannot_all_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full at the second arm."""
    write = RunFolder.write_manifest

    def full(folder: RunFolder, manifest: Manifest) -> None:
        if manifest.arm == "b":
            raise OSError(28, "No space left on device")
        write(folder, manifest)

    monkeypatch.setattr(RunFolder, "write_manifest", full)
    log, out = verl_log(tmp_path / "log.jsonl"), tmp_path / "results"
    assert main(["import", "verl", f"a={log}", f"b={log}", "--out", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_compare_reads_imported_runs(tmp_path: Path) -> None:
    out = tmp_path / "results"
    for _ in range(2):  # the second gets a folder of its own
        assert main(["import", "verl", str(verl_log(tmp_path / "log.jsonl")), "--out", str(out)]) == 0
    assert main(["import", "trl", str(REAL_TRL_LOG), "--out", str(out)]) == 0
    experiments, damaged = gather([out])
    assert (len(experiments), damaged) == (3, [])
    assert sorted(path.name for path in out.iterdir()) == ["trl", "verl"]  # no draft is left
    by_name = {experiment.scenario: experiment.members[0] for experiment in experiments}
    verl, trl = by_name["verl"], by_name["trl"]
    assert verl.figures["step_s"] == 5.0  # the last two of four steps: 4 s, and 4 s with an evaluation of 2 s
    assert verl.figures["loop_s"] == 18.0  # 4 x 4 s and an evaluation of 2 s
    assert verl.figures["timing_s/generate"] == 3.0
    assert verl.figures["reward_last"] == 0.75
    assert trl.steps == 6
    assert trl.figures["reward_train"] == pytest.approx(0.0738, abs=0.001)  # the last of six steps
    assert trl.figures["processed_tokens_per_s"] > 0
    assert trl.table.metrics["kl/reference_k3"].last == json.loads(REAL_TRL_LOG.read_text())["log_history"][6]["kl"]
    assert verl.manifest.machine["fingerprint"] != trl.manifest.machine["fingerprint"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trl", "LOG"], "none of the 6 names in the log is one that trl writes"),
        (["verl", "LOG", "--validation", "x"], "fix:   one of 1: val-core/gsm8k/reward/mean@1"),
        (["verl", "EMPTY"], "is empty"),
        (["verl", "LOG", "--out", "EMPTY"], "cannot write results to"),
        (["verl", "LOG", "LOG"], "two arms are called 'log'"),
        (["verl", "=LOG", "b=LOG"], "is not NAME=LOG"),
        (["verl", "a=LOG", "b="], "'b=' is not NAME=LOG"),
        (["verl", "a=LOG", "b=missing.jsonl"], "'missing.jsonl' does not exist"),
        (["verl", "a=LOG", "b=TRL"], "in the log is one that verl writes"),
    ],
)
def test_bad_input_is_one_message_and_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    log, empty, out = verl_log(tmp_path / "log.jsonl"), tmp_path / "empty.jsonl", tmp_path / "results"
    empty.touch()
    for word, path in {"LOG": log, "EMPTY": empty, "TRL": REAL_TRL_LOG}.items():
        arguments = [argument.replace(word, str(path)) for argument in arguments]
    assert main(["import", "--out", str(out), *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("error: ")) == ("", 1)
    assert message in said.err
    assert not out.exists()


def test_names_from_the_log_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = verl_log(tmp_path / "log.jsonl", **{"\x1b]0;title\x07": "no number"})
    assert main(["import", "verl", str(log), "--out", str(tmp_path / "results")]) == 0
    assert "\x1b" not in capsys.readouterr().out


DOCUMENTED = {"verl": VERL, "verl, asynchronous": VERL_ASYNC, "TRL": TRL, "open-instruct": OPEN_INSTRUCT}


def as_documented(entry: Entry) -> tuple[str, str, bool]:
    """The names in the log, the figure here, and whether the names are kept under their own too."""
    theirs = ", ".join(f"`{name}`" for name in entry.theirs)
    ours = ("stage " if entry.lane else "") + f"`{entry.ours}`"
    of_evaluation = " (evaluation)" if entry.ours.startswith("validation/") else ""
    is_computed = entry.compute is not None or bool(entry.less)
    return ("rest of " if entry.less else "") + theirs, ours + of_evaluation, is_computed


@pytest.mark.parametrize("title", DOCUMENTED)
def test_the_tables_of_the_documentation_are_the_crosswalks(title: str) -> None:
    """That of verl's asynchronous runs has the lines that differ; what is computed is kept under its own name too."""
    table = PAGE.read_text(encoding="utf-8").partition(f"<!-- crosswalk: {title} -->\n")[2].partition("<!-- end -->")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    crosswalk = DOCUMENTED[title]
    entries = [entry for entry in crosswalk.entries if crosswalk is VERL or entry not in VERL.entries]
    assert [(line[0], line[1], "kept as `imported/...` too" in line[2]) for line in lines] == [
        as_documented(entry) for entry in entries
    ]


@pytest.mark.parametrize("crosswalk", DOCUMENTED.values(), ids=DOCUMENTED)
def test_a_crosswalk_leads_to_what_there_is(crosswalk: Crosswalk) -> None:
    stages = {stage.value for stage in Stage}
    for entry in crosswalk.entries:
        assert (entry.ours in stages) == bool(entry.lane)
        assert all(crosswalk.plain_name(name) == name for name in (*entry.theirs, *entry.less))
