"""Reading the logs of other trainers: formats, damage, and what is counted.

The logs are made here after the sources: verl's ``file`` logger writes ``{"step": ..., "data": {...}}`` a line
(verl/utils/tracking.py, class FileLogger); transformers' Trainer keeps ``log_history`` in ``trainer_state.json``; an
export of a Weights & Biases history has ``_step``, ``_timestamp`` and ``_runtime`` beside the values.
``tests/data/importers/trl_1.16_trainer_state.json`` was really written by TRL 1.16, on a model of 30 thousand
parameters that is paid for the letter a.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.results.importers.convert import Points, collect
from harness.results.importers.logs import STEP, read_log
from harness.results.importers.trainers import OPEN_INSTRUCT, TRL, VERL, Crosswalk
from tests.event_files import encode_scalars, encode_start

REAL_TRL_LOG = Path(__file__).parents[1] / "data" / "importers" / "trl_1.16_trainer_state.json"


def write_lines(path: Path, *items: Any) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def points_of(path: Path, crosswalk: Crosswalk) -> Points:
    return collect(read_log(path), crosswalk, "log")


def by_step(found: Points) -> dict[int, dict[str, float]]:
    return {step: dict(zip(cells["name"], cells["value"], strict=True)) for step, cells in found.cells.groupby("step")}


def test_verls_file_logger(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "run.jsonl",
        {"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}},
        {"step": 1, "data": {"timing_s/step": 2.0, "actor/grad_norm": None}},
    )
    found = points_of(path, VERL)
    values = by_step(found)
    assert {step: set(names) for step, names in values.items()} == {
        0: {"val-core/gsm8k/reward/mean@1"},
        1: {"timing_s/step", "actor/grad_norm"},
    }
    assert math.isnan(values[1]["actor/grad_norm"])  # orjson writes NaN and infinities as null
    assert found.notes == ["1 number was NaN, infinite or null (actor/grad_norm); kept as NaN"]


def test_trls_trainer_state() -> None:
    found = points_of(REAL_TRL_LOG, TRL)
    values = by_step(found)
    assert list(values) == [1, 2, 3, 4, 5, 6]
    assert values[1]["num_tokens"] == 79.0
    assert values[3]["eval_runtime"] == 0.0411  # of the record after the training record of step 3
    assert found.notes == []


def test_figures_of_the_whole_run_make_no_step(tmp_path: Path) -> None:
    items = [{"step": 5, "reward": 0.5}, {"step": 7, "train_runtime": 12.5, "train_loss": 0.25, "epoch": 1.0}]
    found = points_of(write_lines(tmp_path / "log.jsonl", *items), TRL)
    assert found.run_totals == {"train_runtime": 12.5, "train_loss": 0.25}
    assert by_step(found) == {5: {"reward": 0.5}, 7: {"epoch": 1.0}}


def test_a_list_and_lines_hold_the_same_as_a_trainer_state(tmp_path: Path) -> None:
    history = json.loads(REAL_TRL_LOG.read_text())["log_history"]
    as_list = tmp_path / "log.json"
    as_list.write_text(json.dumps(history))
    expected = by_step(points_of(REAL_TRL_LOG, TRL))
    assert by_step(points_of(as_list, TRL)) == expected
    assert by_step(points_of(write_lines(tmp_path / "log.jsonl", *history), TRL)) == expected


def test_an_export_of_weights_and_biases(tmp_path: Path) -> None:
    histogram = {"_type": "histogram", "values": [1, 2], "bins": [0, 1, 2]}
    path = write_lines(
        tmp_path / "history.jsonl",
        {"_step": 1, "_timestamp": 100.0, "_runtime": 10.0, "scores": 0.5, "batch/lengths": histogram, "note": "x"},
        {"_step": 2, "_timestamp": 104.0, "_runtime": 14.0, "scores": 0.75, "training_step": 2},
        {"_step": 2, "_timestamp": 105.0, "eval/scores": 0.25},
    )
    found = points_of(path, OPEN_INSTRUCT)
    assert by_step(found) == {1: {"scores": 0.5}, 2: {"scores": 0.75, "eval/scores": 0.25}}
    assert found.at.to_dict() == {1: 100.0, 2: 105.0}
    assert "left out: 2 values were no number (batch/lengths, note)" in found.notes


def again(replaced: int) -> list[str]:
    return [
        f"{replaced} numbers were logged again and otherwise for the same step; the later ones count",
        "the log goes back to an earlier step 1 times, as that of a resumed run does",
    ]


def event_file(folder: Path, name: str, steps: dict[int, dict[str, float]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    records = [encode_scalars({tag: value}, step, 50.0 + step) for step in steps for tag, value in steps[step].items()]
    (folder / name).write_bytes(b"".join([encode_start(50.0), *records]))
    return folder / name


def test_event_files_of_trl_have_names_of_their_own(tmp_path: Path) -> None:
    """transformers' integrations write ``train/x`` and ``eval/x`` for ``x`` and ``eval_x`` (rewrite_logs)."""
    event_file(tmp_path / "runs" / "a", "events.out.tfevents.1", {1: {"train/reward": 0.25, "eval/reward": 0.5}})
    found = points_of(tmp_path, TRL)
    assert by_step(found) == {1: {"reward": 0.25, "eval_reward": 0.5}}
    assert found.at.to_dict() == {1: 51.0}


def test_the_later_event_file_counts(tmp_path: Path) -> None:
    event_file(tmp_path, "events.out.tfevents.1", {1: {"reward": 0.25}, 2: {"reward": 0.5}, 3: {"reward": 0.75}})
    event_file(tmp_path, "events.out.tfevents.2", {2: {"reward": 1.0}, 3: {"reward": 0.75}})
    found = points_of(tmp_path, TRL)
    assert by_step(found) == {1: {"reward": 0.25}, 2: {"reward": 1.0}, 3: {"reward": 0.75}}
    assert found.notes == again(1)  # step 3 came again with the same number


def test_a_cut_off_event_file_is_told_in_bytes(tmp_path: Path) -> None:
    path = event_file(tmp_path, "events.out.tfevents.1", {1: {"reward": 0.25}, 2: {"reward": 0.5}})
    path.write_bytes(path.read_bytes()[:-5])
    log = read_log(path)
    assert log.frame[STEP].tolist() == [1]
    size = len(encode_scalars({"reward": 0.5}, 2, 52.0)) - 5
    assert log.left_out == [f"{size} bytes of a record that is not whole, at the end of an event file"]


def test_a_cut_off_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1, "data": {"timing_s/step": 2.0}}\n{"step": 2, "da')
    log = read_log(path)
    assert log.frame["step"].tolist() == [1]
    assert log.left_out == ["the last line (15 characters), which is not whole"]


def test_the_newest_checkpoint_has_the_whole_history(tmp_path: Path) -> None:
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        state = {"log_history": [{"step": step, "reward": 0.5}]}
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    assert list(by_step(points_of(tmp_path, TRL))) == [10]


def test_steps_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    items = [{"step": step, "reward": value} for step, value in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4), (3, 0.5))]
    found = points_of(write_lines(tmp_path / "log.jsonl", *items), TRL)
    assert by_step(found) == {1: {"reward": 0.1}, 2: {"reward": 0.4}, 3: {"reward": 0.5}}
    assert found.notes == again(2)


@pytest.mark.parametrize("step", [-1, 1.5, "3.5", True, None, math.nan])
def test_a_record_without_a_whole_step_is_left_out(tmp_path: Path, step: Any) -> None:
    path = write_lines(tmp_path / "log.jsonl", {"step": 1, "reward": 0.1}, {"step": step, "reward": 0.2})
    found = points_of(path, TRL)
    assert by_step(found) == {1: {"reward": 0.1}}
    assert found.notes == ["left out: 1 record was without a step (reward)"]


def test_a_number_beyond_floats_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "reward": 0.5, "big": 1' + "0" * 400 + ', "nan": NaN, "yes": true}\n')
    found = points_of(path, TRL)
    assert found.notes == [
        "1 number was NaN, infinite or null (nan); kept as NaN",
        "left out: 1 value was no number (big)",
    ]
    assert by_step(found)[1]["yes"] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n \n", "is empty"),
        ("step and reward\n1 and 0.5\n", "it holds no record"),
        ('{"step": 1, "reward": 0.5}\n{"step": 2\n{"step": 3, "reward": 0.5}\n', "line 2 is not JSON"),
        ('{"step": 1, "reward": 0.5}\n[1, 2]\n', "line 2 is not a JSON object"),
        ('"text"\n', "it holds no record"),
        ("[1, 2]", "it holds no list of JSON objects"),
        ('{"log_history": 3}', "it holds no list of JSON objects"),
        ("[" * 100_000, "it holds no record"),
        ('{"step": 1', "line 1 is not JSON"),
        (bytes(range(256)).decode("latin1"), "it holds no record"),
    ],
)
def test_what_is_no_log_is_refused_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(UserError, match=message) as caught:
        read_log(path)
    assert caught.value.where is not None
    assert str(path) in caught.value.where


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"loss_x": 0.5}, {"loss_x": 0.6}], "none of the 2 records in the log has a step or a name that TRL writes"),
        ([{"step": 1, "note": "x"}], r"the log has no number of a training step \(1 records\)"),
        ([{"step": 1}], r"the log has no number of a training step \(1 records\)"),
    ],
)
def test_a_log_without_numbers_or_steps_is_refused(tmp_path: Path, items: list[Any], message: str) -> None:
    path = write_lines(tmp_path / "log.jsonl", *items)
    with pytest.raises(UserError, match=message):
        points_of(path, TRL)


def test_folders_that_hold_no_run_or_several_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_log(tmp_path / "nowhere")
    (tmp_path / "run.jsonl").write_text("{}")
    with pytest.raises(UserError, match="there are no event files") as caught:
        read_log(tmp_path)
    assert caught.value.fix == "name a file, such as run.jsonl"
    for name in ("a", "b"):
        event_file(tmp_path / name, "events.out.tfevents.1", {1: {"reward": 0.25}})
    with pytest.raises(UserError, match="holds event files in 2 folders"):
        read_log(tmp_path)
