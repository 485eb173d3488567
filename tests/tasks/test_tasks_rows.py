"""Prompts and maths problems from files: what is read, how it is split, and what each bad file is told.

Rows are of the shapes that published data sets have, with texts of our own.
"""

import json
from collections.abc import Callable
from functools import partial
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
MATH = {"problem": "What is half of one?", "solution": r"It is $\boxed{\frac{1}{2}}$."}


def written(folder: Path, *rows: object, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def refused(path: Path, fields: Fields | None = None, read: Callable[..., object] = read_prompts) -> UserError:
    with pytest.raises(UserError) as caught:
        read(path) if fields is None else read(path, fields=fields)
    return caught.value


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        ('{"prompt": "2?", "answer": "2", "note": 1}\n\n  \n{"answer": "", "prompt": "Ünï?"}\n', ("2? 2", "Ünï? ")),
        ('\ufeff{"prompt": "a", "answer": "1"}\r\n{"prompt": "b", "answer": "2"}\r\n', ("a 1", "b 2")),
        ('{"prompt": "a\u2028b\u0085c", "answer": "1"}\n', ("a\u2028b\u0085c 1",)),
    ],
)
def test_lines_become_prompts_in_their_order(tmp_path: Path, content: str, prompts: tuple[str, ...]) -> None:
    found = read_prompts(written(tmp_path, content)).prompts
    assert tuple(f"{prompt.text} {prompt.ground_truth}" for prompt in found) == prompts


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


GOOD = '{"prompt": "p", "answer": "a"}'
BAD_LINES = {
    '{"prompt": "q", "answer": }': "not JSON: Expecting value at column 27 of ",
    '["q", "a"]': "it is a list, not an object: ",
    "null": "it is null, not an object: ",
    "{}": "no field 'prompt'; it has no field at all",
    '{"prompt": 7, "answer": "a"}': "the field 'prompt' is a number (7), not text",
    '{"prompt": "q", "answer": NaN}': "the field 'answer' is nan, no finite number",
    '{"prompt": " ", "answer": "a"}': "the field 'prompt' is empty",
    '{"prompt": "q", "prompt": "r", "answer": "a"}': "the field 'prompt' comes twice",
    '{"prompt": "\\ud800", "answer": "a"}': "the field 'prompt' holds half of a surrogate pair",
    '{"prompt": "p", "answer": "b"}': "the prompt 'p' has the answer 'a' in ",
}
BAD_PROBLEMS = {
    '{"problem": "q"}': "no field 'answer'; it has 'problem'",
    '{"question": "q", "answer": "#### 1"}': "no field 'problem'; it has 'question', 'answer'",
    '{"problem": "q", "answer": " "}': "the answer has 0 characters; it must have 1 to 1000",
    '{"problem": "q", "answer": ["1", "2"]}': "the field 'answer' is no text and no number: ['1', '2']",
    '{"problem": "q", "answer": true}': "the field 'answer' is no text and no number: True",
    r'{"problem": "q", "solution": "\\boxed{1"}': r"no \boxed{...} that is closed again in the field 'solution'",
    '{"problem": "What is half of one?", "answer": "2"}': "the prompt 'What is half of one?' has the answer '\\\\frac",
}


@pytest.mark.parametrize(
    ("read", "good", "lines"),
    [(read_prompts, GOOD, BAD_LINES), (partial(read_problems, file_format="math"), MATH, BAD_PROBLEMS)],
    ids=["prompts", "maths"],
)
def test_a_bad_line_is_named_with_what_is_wrong(
    tmp_path: Path, read: Callable[..., object], good: object, lines: dict[str, str]
) -> None:
    told = {line: refused(written(tmp_path, good, "", line), None, read) for line in lines}
    starts = {line: f"1 of 2 lines are bad\n  line 3: {what}" for line, what in lines.items()}
    assert {line: error.what for line, error in told.items() if not error.what.startswith(starts[line])} == {}
    assert [error for error in told.values() if error.where != str(tmp_path / "rows.jsonl") or not error.fix] == []


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    for content in ("", "\n  \n"):
        for read in (read_prompts, read_problems):
            assert refused(written(tmp_path, content), None, read).what.startswith("the file holds 0 prompts; at least")
            missing = refused(tmp_path / "nowhere.jsonl", None, read)
            assert ("no such file" in missing.what, missing.where) == (True, str(tmp_path / "nowhere.jsonl"))
    assert refused(tmp_path).what == "the prompts cannot be read: Is a directory"
    (tmp_path / "latin.jsonl").write_bytes(GOOD.encode() + b'\n{"prompt": "caf\xe9", "answer": "a"}')
    latin = refused(tmp_path / "latin.jsonl").what
    assert latin == "1 of 2 lines are bad\n  line 2: byte 16 of the line (0xe9) is not UTF-8"


@pytest.mark.parametrize(
    ("row", "fields", "what", "fix"),
    [
        (DAPO, Fields(answer="reward_model.ground_truth"), "no chat template is used", "task.chat_template"),
        (VERL, Fields(answer=None, chat=True, system=True), "has a system turn", "task.system_prompt"),
        (DAPO, Fields(chat=True), "no field 'answer'", "task.answer_field to reward_model.ground_truth"),
        (AIME_2024, Fields(), "no field 'prompt'", "task.prompt_field to Problem"),
        ({"question": "q", "answer": "a"}, Fields("questions"), "'questions'", "set task.prompt_field to question"),
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


NAMELESS = Fields("", None)


@pytest.mark.parametrize(
    ("row", "fields", "answer"),
    [
        ({"question": ASKED, "answer": "7"}, NAMELESS, "7"),
        ({"question": ASKED, "answer": "so\n#### 7"}, NAMELESS, "7"),  # GSM8K
        ({"problem": ASKED, "solution": MATH["solution"]}, NAMELESS, r"\frac{1}{2}"),
        (
            {"problem": ASKED, "answer": "7", "domain": ["Algebra"], "llama8b_solve_rate": 0.5},
            NAMELESS,
            "7",
        ),  # Big-Math
        ({"problem": ASKED, "solution": "x", "answer": "7", "messages": [USER]}, NAMELESS, "7"),  # Open-R1
        ({"question": ASKED, "answer": ["7"]}, NAMELESS, "7"),  # OlympiadBench
        (AIME_2024, Fields("Problem", "Answer"), "7"),
        (DAPO, CHAT, "7"),
        (VERL, Fields("extra_info.question", "extra_info.answer"), "7"),
        ({"input": ASKED, "target": 7.0}, Fields("input", "target"), "7.0"),
        ({"prompt": ASKED, "solution": r"It is $\boxed{7}$."}, Fields("prompt", None), "7"),
    ],
)
def test_a_maths_answer_stands_alone_behind_hashes_or_in_a_box(
    tmp_path: Path, row: object, fields: Fields, answer: str
) -> None:
    (read,) = read_problems(written(tmp_path, row), fields=fields).prompts
    assert (read.text, read.ground_truth) == (ASKED, answer)


def test_maths_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    for answers in (("7", "so #### 8"), ("so #### 7", "8")):  # two kinds of answers
        rows = [{"question": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
        told = refused(written(tmp_path, *rows), None, read_problems).what
        assert (told.startswith("1 of 2 lines are bad\n  line 2: "), "####" in told) == (True, True)
    neither = refused(written(tmp_path, {"prompt": "p", "answer": "1"}), None, read_problems).what
    assert neither.endswith("'problem' (as in MATH) nor a field 'question' (as in GSM8K); it has 'prompt', 'answer'")
    for row, fields, fix in (
        (AIME_2024, NAMELESS, "task.prompt_field to Problem"),
        (AIME_2024, Fields("Problem", None), "task.answer_field to Answer"),
        (DAPO, NAMELESS, "task.prompt_field to prompt"),
        (DAPO, Fields("prompt", None, chat=True), "task.answer_field to reward_model.ground_truth"),
    ):
        assert fix in str(refused(written(tmp_path, row), fields, read_problems).fix)


# ---- splits

PROMPTS = tuple(Prompt(f"prompt {number}", str(number)) for number in range(20))


def test_split_holds_out_the_smallest_digests() -> None:
    train, validation = split_prompts(PROMPTS, 0.1, "file")
    # blake2b of the 20 texts, 16 bytes: the two smallest
    assert [prompt.text for prompt in validation] == ["prompt 2", "prompt 13"]
    assert [*train] == [prompt for prompt in PROMPTS if prompt not in validation]


def test_split_depends_neither_on_order_nor_much_on_more_lines() -> None:
    _, validation = split_prompts(PROMPTS, 0.25, "file")
    _, from_reversed = split_prompts(PROMPTS[::-1], 0.25, "file")
    assert from_reversed == validation[::-1]
    train_of_more, _ = split_prompts((*PROMPTS, Prompt("one more", "")), 0.25, "file")
    assert len(set(train_of_more) & set(validation)) <= 1


@pytest.mark.parametrize(("fraction", "held_out"), [(0.001, 1), (0.1, 2), (0.11, 3), (0.95, 19)])
def test_split_rounds_up(fraction: float, held_out: int) -> None:
    train, validation = split_prompts(PROMPTS, fraction, "file")
    assert (len(train), len(validation)) == (20 - held_out, held_out)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="above 0 and below 1"):
        split_prompts(PROMPTS, fraction, "file")
    with pytest.raises(UserError, match=r"1 prompts, of which 1 .* leave 0"):
        split_prompts(PROMPTS[:1], 0.1, "file")
