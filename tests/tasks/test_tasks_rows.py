"""Rows as published data sets have them: shapes and names of their fields, with texts of our own."""

import json
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.types import Prompt
from harness.tasks.jsonl import read_parts, split_prompts
from harness.tasks.maths.task import read_problems
from harness.tasks.rows import Fields, read_prompts

ASKED = "What is 3 + 4?"
USER = {"role": "user", "content": ASKED}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [USER],
    "ability": "MATH",
    "reward_model": {"ground_truth": "7", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4"},
}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "system", "content": "Be brief."}, USER],
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "extra_info": {"split": "train", "index": 0, "answer": "3+4=7\n#### 7", "question": ASKED},
}
COUNTDOWN = {"target": 98, "nums": [44, 19, 35]}
CODE = {"question": ASKED, "tests": [{"input": "3 4", "output": "7"}], "starter": None}
AIME_2024 = {"ID": "2024-I-1", "Problem": ASKED, "Solution": "Add.", "Answer": 7}


def written(folder: Path, *rows: object, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def refused(path: Path, fields: Fields | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        read_prompts(path, fields)
    return caught.value


CHAT = Fields("prompt", "reward_model.ground_truth", chat=True)
TURNS = Fields(answer=None, chat=True)
ONE_TURN = (("user", ASKED),)


@pytest.mark.parametrize(
    ("row", "fields", "prompt"),
    [
        (DAPO, CHAT, Prompt(ASKED, "7", turns=ONE_TURN)),
        (VERL, CHAT, Prompt(f"system: Be brief.\n\nuser: {ASKED}", "7", turns=(("system", "Be brief."), *ONE_TURN))),
        (VERL, Fields("extra_info.question", "extra_info.answer"), Prompt(ASKED, "3+4=7\n#### 7")),
        ({"prompt": ASKED, **COUNTDOWN}, Fields(answer="target"), Prompt(ASKED, "98")),
        ({"prompt": ASKED, **COUNTDOWN}, Fields(answer="nums"), Prompt(ASKED, "[44, 19, 35]")),
        (CODE, Fields("question", "tests"), Prompt(ASKED, '[{"input": "3 4", "output": "7"}]')),
        (AIME_2024, Fields("Problem", "Answer"), Prompt(ASKED, "7")),
        ({"prompt": [USER], "completion": []}, TURNS, Prompt(ASKED, "", turns=ONE_TURN)),
        ({"a.b": ASKED, "a": {"b": "other", "c": "7"}}, Fields("a.b", "a.c"), Prompt(ASKED, "7")),
        ({"x": {"a.b": {"c": ASKED}}, "answer": True}, Fields("x.a.b.c"), Prompt(ASKED, "true")),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"text": "3 + 4?"}]}],
          "answer": {"ü": [1.0, None]}}, Fields(chat=True), Prompt(ASKED, '{"ü": [1.0, null]}', turns=ONE_TURN)),
    ],
)  # fmt: skip
def test_fields_of_published_rows_become_prompts(tmp_path: Path, row: object, fields: Fields, prompt: Prompt) -> None:
    assert read_prompts(written(tmp_path, row), fields).prompts == (prompt,)


def test_a_number_is_the_text_that_the_file_has(tmp_path: Path) -> None:
    numbers = ["7", "7.0", "1.0e3", "0.10", "12345678901234567890", "-3.5000"]
    rows = [f'{{"prompt": "p{n}", "question": "p{n}", "answer": {number}}}' for n, number in enumerate(numbers)]
    for path in (written(tmp_path, *rows), written(tmp_path, f"[{','.join(rows)}]", name="array.json")):
        for read in (read_prompts(path), read_problems(path)):
            assert [prompt.ground_truth for prompt in read.prompts] == numbers


def test_a_reward_that_takes_rows_gets_values_as_they_are(tmp_path: Path) -> None:
    row = {"prompt": ASKED, **COUNTDOWN}
    (read,) = read_prompts(written(tmp_path, row), Fields(answer="target", with_rows=True)).prompts
    assert read.row == row


def test_an_array_is_read_like_lines(tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"[{{p{n}}},]", "answer": n}) for n in range(3)]
    expected = tuple(Prompt(f"[{{p{n}}},]", str(n)) for n in range(3))
    arrays = [between.join(rows) for between in (",", ",\n", " ,\r\n  ")]
    contents = ["\r\n".join(rows), *(f"[{a}]\n" for a in arrays), *('{"v": 1, "data": [' + a + "]}" for a in arrays)]
    for content in (before + content for before in ("", "\ufeff", "\n \n") for content in contents):
        assert read_prompts(written(tmp_path, content)).prompts == expected, content


def test_a_row_of_an_array_is_named_by_its_place(tmp_path: Path) -> None:
    error = refused(written(tmp_path, [{"prompt": "p", "answer": 1}, {"prompt": 2, "answer": 1}, 3]))
    assert error.what.startswith(
        "2 of 3 rows are bad\n  row 2: the field 'prompt' is a number (2), not text\n  row 3: it is a number"
    )


def test_an_array_that_is_cut_is_one_error(tmp_path: Path) -> None:
    said = refused(written(tmp_path, '[{"prompt": "p", "answer": 1},\n{"prompt": "q"')).what
    assert (said.startswith("not JSON: "), "line " in said) == (True, True)


def test_what_is_no_text_is_one_error_with_a_way_to_export_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    starts = (b"PAR1", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\x00", b"PK\x03\x04", b"ARROW1")
    for start in starts:
        path.write_bytes(start + b"\n\xff\n" * 20)
        error = refused(path)
        assert ("\n" in error.what, str(path) in str(error.fix)) == (False, True), start


# ---- repeated prompts


@pytest.mark.parametrize("again", [ASKED, f" {ASKED}\n", "What  is\n3 + 4?"])
def test_a_prompt_that_comes_again_with_its_answer_is_kept_once_and_counted(tmp_path: Path, again: str) -> None:
    rows = [{"prompt": text, "question": text, "answer": "7"} for text in (ASKED, "Else?", again, again)]
    path = written(tmp_path, *rows)
    for read in (read_prompts(path), read_problems(path)):
        assert ([prompt.text for prompt in read.prompts], read.repeated) == ([ASKED, "Else?"], 2)
    parts = read_parts(path, None, 0.5, read_prompts)
    assert len(parts.notes) == 1
    assert "2 rows" in parts.notes[0]


def test_twins_by_inner_white_space_with_answers_of_their_own_stay_and_stay_together(tmp_path: Path) -> None:
    grids = [{"prompt": text, "answer": str(n)} for n, text in enumerate(("1 1 1\n1 1 1", "1 1\n1 1\n1 1", "2 2"))]
    prompts = read_prompts(written(tmp_path, *grids)).prompts
    assert len(prompts) == 3
    for part in split_prompts(prompts, 0.3, "file"):
        assert ("1 1 1\n1 1 1" in [p.text for p in part]) == ("1 1\n1 1\n1 1" in [p.text for p in part])


def test_a_twin_that_comes_again_is_kept_once_and_refused_with_another_answer(tmp_path: Path) -> None:
    """Fails where rows are compared with the first twin alone."""
    rows = [{"prompt": "1 1 1\n1", "answer": "a"}, *[{"prompt": "1 1\n1 1", "answer": "b"}] * 3]
    read = read_prompts(written(tmp_path, *rows))
    assert ([prompt.ground_truth for prompt in read.prompts], read.repeated) == (["a", "b"], 2)
    path = written(tmp_path, *rows, {"prompt": "1 1\n1 1 ", "answer": "a"})
    assert f"has the answer 'b' in {path}, line 2, and here 'a'" in refused(path).what


def test_a_held_out_prompt_is_not_trained_on_with_other_white_space(tmp_path: Path) -> None:
    train = written(tmp_path, {"prompt": "a b", "answer": "1"}, name="train.jsonl")
    held_out = written(tmp_path, {"prompt": "a  b ", "answer": "1"}, name="held_out.jsonl")
    with pytest.raises(UserError, match="1 of 1 validation prompts are training prompts too"):
        read_parts(train, held_out, 0.1, read_prompts)


# ---- what is refused, and advice that works


@pytest.mark.parametrize(
    ("row", "fields", "what", "fix"),
    [
        (DAPO, Fields(answer="reward_model.ground_truth"), "no chat template is used", "task.chat_template"),
        (VERL, Fields(answer=None, chat=True, system=True), "has a system turn", "task.system_prompt"),
        (DAPO, Fields(chat=True), "no field 'answer'", "task.answer_field to reward_model.ground_truth"),
        (AIME_2024, Fields(), "no field 'prompt'", "task.prompt_field to Problem"),
        (AIME_2024, Fields("Problem"), "no field 'answer'", "task.answer_field to Answer"),
        ({"prompt": "p"}, Fields(), "no field 'answer'", "set task.answer_field to null"),
        ({"prompt": []}, TURNS, "is a list ([]), not text", "in quotes"),
        ({"prompt": [{"from": "human", "value": "p"}]}, TURNS, "no role and content", '"role"'),
        ({"prompt": [USER, {"role": "assistant", "content": "7"}]}, TURNS, "the assistant's", "user"),
        ({"prompt": [USER | {"tool_calls": [1]}]}, TURNS, "'tool_calls'", "leave it out"),
        ({"prompt": [USER | {"content": [{"type": "image"}]}]}, TURNS, "no text", "parts"),
        ({"prompt": [USER | {"content": ""}]}, TURNS, "is empty", "text"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_asked_are_refused(
    tmp_path: Path, row: object, fields: Fields, what: str, fix: str
) -> None:
    error = refused(written(tmp_path, row), fields)
    assert what in error.what
    assert fix in str(error.fix)


def test_the_first_ten_bad_rows_are_named_and_all_counted(tmp_path: Path) -> None:
    told = refused(written(tmp_path, {"prompt": "p", "answer": "1"}, *["{}"] * 12)).what.splitlines()
    assert told[0] == "12 of 13 lines are bad"
    assert len(told) == 12


# ---- maths


MATHS = [
    ([{"question": ASKED, "answer": "7"}], {}, "7"),
    ([{"question": ASKED, "answer": "so\n#### 7"}], {}, "7"),
    ([{"problem": ASKED, "answer": "7", "domain": ["Algebra"], "llama8b_solve_rate": 0.5}], {}, "7"),  # Big-Math
    ([{"problem": ASKED, "solution": "x", "answer": "7", "messages": [USER]}], {}, "7"),  # Open-R1
    ([{"question": ASKED, "answer": ["7"]}], {}, "7"),  # OlympiadBench
    ([AIME_2024], {"prompt": "Problem", "answer": "Answer"}, "7"),
    ([DAPO], {"prompt": "prompt", "answer": "reward_model.ground_truth", "chat": True}, "7"),
    ([VERL], {"prompt": "extra_info.question", "answer": "extra_info.answer"}, "7"),
    ([{"input": ASKED, "target": 7.0}], {"prompt": "input", "answer": "target"}, "7.0"),
    ([{"prompt": ASKED, "solution": r"It is $\boxed{7}$."}], {"prompt": "prompt"}, "7"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "fields", "answer"), MATHS)
def test_a_maths_answer_stands_alone_behind_hashes_or_in_a_box(
    tmp_path: Path, rows: list[object], fields: dict[str, str], answer: str
) -> None:
    named = Fields(fields.get("prompt", ""), fields.get("answer"), chat=bool(fields.get("chat")))
    (read,) = read_problems(written(tmp_path, *rows), fields=named).prompts
    assert (read.text, read.ground_truth) == (ASKED, answer)


@pytest.mark.parametrize("answers", [("7", "so #### 8"), ("so #### 7", "8")])
def test_a_maths_file_of_two_kinds_of_answers_is_told(tmp_path: Path, answers: tuple[str, str]) -> None:
    rows = [{"question": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    with pytest.raises(UserError, match=r"1 of 2 lines are bad\n  line 2: .*####"):
        read_problems(written(tmp_path, *rows))


def test_names_that_a_maths_file_does_not_have_are_guessed(tmp_path: Path) -> None:
    for row, fields, fix in (
        (AIME_2024, Fields("", None), "task.prompt_field to Problem"),
        (AIME_2024, Fields("Problem", None), "task.answer_field to Answer"),
        (DAPO, Fields("", None), "task.prompt_field to prompt"),
        (DAPO, Fields("prompt", None, chat=True), "task.answer_field to reward_model.ground_truth"),
    ):
        with pytest.raises(UserError) as caught:
            read_problems(written(tmp_path, row), fields=fields)
        assert fix in str(caught.value.fix)
