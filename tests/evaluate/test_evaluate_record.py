"""An evaluation's files: appended batch by batch, and taken up again wherever a kill has cut them."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness.core.errors import UserError
from harness.evaluate.record import (
    BATCHES,
    EVALUATION,
    RESPONSES,
    BatchRow,
    EvaluationSettings,
    PromptRow,
    Record,
    Response,
    differing,
)

SETTINGS = EvaluationSettings(
    model="m",
    weights="w",
    config="c",
    tokenizer="t",
    data="d.jsonl",
    data_sha256=None,
    prompts=5,
    task="keywords",
    reward=None,
    prompt=None,
    engine="native",
    precision="float32",
    device="cpu",
    temperature=1.0,
    top_p=1.0,
    min_tokens=0,
    max_tokens=8,
    stop=(),
    samples=1,
    seed=0,
    batch=2,
    prompt_sha256=None,
    chat_template_sha256=None,
    system_prompt=None,
    chat_date=None,
)


def row(prompt_id: int) -> PromptRow:
    parts = {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}
    return PromptRow(prompt_id, 3, (Response(f"ä\n{prompt_id}", 2, "stop", -0.1 * prompt_id, parts),))


def write_all(record: Record) -> None:
    for number, prompt_ids in list(enumerate(record.due))[len(record.batches) :]:
        record.append([row(prompt_id) for prompt_id in prompt_ids], BatchRow(number, len(prompt_ids), 2, 0.5, 0.25))


def whole(folder: Path) -> tuple[bytes, bytes]:
    record = Record(folder, SETTINGS, {})
    write_all(record)
    record.close()
    return (folder / RESPONSES).read_bytes(), (folder / BATCHES).read_bytes()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    assert SETTINGS.batches == [range(0, 2), range(2, 4), range(4, 5)]  # the prompts from its place on
    whole(tmp_path)
    record = Record(tmp_path, SETTINGS, {})
    assert record.rows == [row(number) for number in range(5)]
    assert [batch.batch for batch in record.batches] == [0, 1, 2]
    assert (record.is_complete, record.dropped) == (True, 0)
    record.close()


def test_cut_anywhere_it_goes_on_to_the_same_files(tmp_path: Path) -> None:
    """Files grow in the order responses, batch, responses ...: a kill cuts one of them somewhere."""
    responses, batches = whole(tmp_path)
    for tried, (left_responses, left_batches, done) in enumerate(_states(responses, batches)):
        (tmp_path / RESPONSES).write_bytes(left_responses)
        (tmp_path / BATCHES).write_bytes(left_batches)
        record = Record(tmp_path, SETTINGS, {})
        assert len(record.batches) == done
        assert record.rows == [row(number) for ids in SETTINGS.batches[:done] for number in ids]
        kept = [(tmp_path / name).read_bytes() for name in (RESPONSES, BATCHES)]
        assert [content.count(b"\n") for content in kept] == [len(record.rows), done]
        assert responses.startswith(kept[0])
        assert batches.startswith(kept[1])
        if tried % 10 == 0:  # appending waits for the disk
            write_all(record)
            assert ((tmp_path / RESPONSES).read_bytes(), (tmp_path / BATCHES).read_bytes()) == (responses, batches)
        record.close()


def _states(responses: bytes, batches: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """States in which a kill can leave the two files, with the batches that are whole then: around each line's end, and
    at every fifth byte."""
    row_lines, batch_lines = responses.splitlines(keepends=True), batches.splitlines(keepends=True)
    for number, prompt_ids in enumerate(SETTINGS.batches):
        first, last = (len(b"".join(row_lines[:end])) for end in (prompt_ids.start, prompt_ids.stop))
        before = b"".join(batch_lines[:number])
        for cut in range(first, last):
            if cut % 5 == 0 or b"\n" in responses[cut - 1 : cut + 1]:
                yield responses[:cut], before, number
        for cut in range(len(batch_lines[number])):
            if cut % 5 == 0 or cut == len(batch_lines[number]) - 1:
                yield responses[:last], before + batch_lines[number][:cut], number


def test_a_batch_whose_rows_are_gone_is_done_again(tmp_path: Path) -> None:
    """As after a power cut, where the shorter file may reach the disk first."""
    responses, batches = whole(tmp_path)
    for cut in range(0, len(responses), 97):
        (tmp_path / RESPONSES).write_bytes(responses[:cut])
        (tmp_path / BATCHES).write_bytes(batches)
        record = Record(tmp_path, SETTINGS, {})
        rows = responses[:cut].count(b"\n")
        assert len(record.batches) == min(rows // 2, 2)
        write_all(record)
        record.close()
        assert (tmp_path / RESPONSES).read_bytes() == responses


RESPONSE = b'{"text": "", "tokens": 1, "finish_reason": "stop", "log_prob": %s, "rewards": %s}'
ROW = b'{"prompt_id": 3, "prompt_tokens": 3, "responses": [%s]}\n'


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff\n",
        b"[]\n",
        b"{}\n",
        ROW % b"",
        ROW % (RESPONSE % (b"NaN", b"null")),
        ROW % (RESPONSE % (b"0", b"[1]")),
        ROW % (RESPONSE % (b"0", b'{"reward": 1}')),
    ],
)
def test_rows_from_a_damaged_line_on_are_done_again(tmp_path: Path, damage: bytes) -> None:
    responses, _ = whole(tmp_path)
    lines = responses.splitlines(keepends=True)
    (tmp_path / RESPONSES).write_bytes(b"".join([*lines[:3], damage, lines[4]]))
    record = Record(tmp_path, SETTINGS, {})
    assert (len(record.rows), len(record.batches)) == (2, 1)
    assert record.dropped == 3 + 2  # rows 2, 3 and 4, and the lines of batches 1 and 2
    write_all(record)
    record.close()
    assert (tmp_path / RESPONSES).read_bytes() == responses


def test_other_settings_are_refused_with_their_names_and_change_nothing(tmp_path: Path) -> None:
    before = whole(tmp_path)
    other = msgspec.structs.replace(SETTINGS, temperature=0.5, seed=7)
    with pytest.raises(UserError) as refused:
        Record(tmp_path, other, {})
    assert "temperature (1.0 there, 0.5 now); seed (0 there, 7 now)" in refused.value.what
    assert ((tmp_path / RESPONSES).read_bytes(), (tmp_path / BATCHES).read_bytes()) == before
    assert other.digest != SETTINGS.digest


def test_settings_that_only_one_side_has_differ_too() -> None:
    assert differing({"a": 1, "old": "x"}, {"a": 1, "new": None, "b": 2}) == [
        "b (null there, 2 now)",
        'old ("x" there, null now)',
    ]


def test_responses_of_nobody_knows_what_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / RESPONSES).write_text("mine\n")
    with pytest.raises(UserError, match=r"holds responses.jsonl but no evaluation.json"):
        Record(tmp_path, SETTINGS, {})
    assert (tmp_path / RESPONSES).read_text() == "mine\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write results to"):
        Record(tmp_path / "file", SETTINGS, {})
    other = '{"schema": "harness.evaluation", "settings": {}, "schema_version": 9}'
    for content, expected in (("{", "cannot read"), ("[]", "cannot read"), (other, "schema version 9; this harness")):
        (tmp_path / EVALUATION).write_text(content)
        with pytest.raises(UserError, match=expected):
            Record(tmp_path, SETTINGS, {})
        assert (tmp_path / EVALUATION).read_text() == content


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    record = Record(tmp_path, SETTINGS, {})
    with pytest.raises(UserError, match="another process is writing this evaluation"):
        Record(tmp_path, SETTINGS, {})
    record.close()
    record = Record(tmp_path, SETTINGS, {})
    (tmp_path / EVALUATION).unlink()  # as before the first one has written it: who comes second changes nothing
    with pytest.raises(UserError, match="another process is writing this evaluation"):
        Record(tmp_path, msgspec.structs.replace(SETTINGS, seed=7), {})
    assert not (tmp_path / EVALUATION).exists()
    record.close()


def test_what_was_true_at_its_start_is_kept_and_what_differs_named_and_results_come_last(tmp_path: Path) -> None:
    begun = {"versions": {"torch": "1"}, "machine": {"cpus": (2,)}}
    Record(tmp_path, SETTINGS, begun).close()
    before = json.loads((tmp_path / EVALUATION).read_text())
    assert (before["status"], before["results"], before["settings_hash"]) == ("incomplete", None, SETTINGS.digest)
    record = Record(tmp_path, SETTINGS, {**begun, "versions": {"torch": "2"}})
    assert record.changed_facts == ("versions",)
    record.write_results("complete", {"prompts": 5})
    record.close()
    after = json.loads((tmp_path / EVALUATION).read_text())
    assert after == before | {"status": "complete", "results": {"prompts": 5}}
    assert after["versions"] == {"torch": "1"}
    again = Record(tmp_path, SETTINGS, begun)
    assert again.changed_facts == ()
    again.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write results to"):
        Record(tmp_path / "file", SETTINGS, {})
