"""Prompts from JSONL files: what is read, how it is split, and what each bad file is told."""

from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.types import Prompt
from harness.tasks.jsonl import split_prompts
from harness.tasks.rows import Fields, read_prompts


def write(folder: Path, content: str | bytes, name: str = "prompts.jsonl") -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def refused(file: Path, prompt_field: str = "prompt", answer_field: str = "answer") -> UserError:
    with pytest.raises(UserError) as caught:
        read_prompts(file, Fields(prompt_field, answer_field))
    return caught.value


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        (
            '{"prompt": "Two?", "answer": "2", "note": 1}\n\n  \n{"answer": "", "prompt": "Ünï?"}\n',
            (Prompt("Two?", "2"), Prompt("Ünï?", "")),
        ),
        (
            b'\xef\xbb\xbf{"prompt": "a", "answer": "1"}\r\n{"prompt": "b", "answer": "2"}\r\n',
            (Prompt("a", "1"), Prompt("b", "2")),
        ),
        ('{"prompt": "a\u2028b\u0085c", "answer": "1"}\n', (Prompt("a\u2028b\u0085c", "1"),)),
    ],
)
def test_lines_become_prompts_in_their_order(tmp_path: Path, content: str | bytes, prompts: tuple[Prompt, ...]) -> None:
    assert read_prompts(write(tmp_path, content)).prompts == prompts


GOOD = '{"prompt": "p", "answer": "a"}\n'


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"prompt": "q", "answer": }', "not JSON: Expecting value at column 27 of "),
        ('["q", "a"]', "it is a list, not an object: "),
        ("null", "it is null, not an object: "),
        ("{}", "no field 'prompt'; it has no field at all"),
        ('{"prompt": 7, "answer": "a"}', "the field 'prompt' is a number (7), not text"),
        ('{"prompt": "q", "answer": NaN}', "the field 'answer' is nan, no finite number"),
        ('{"prompt": " ", "answer": "a"}', "the field 'prompt' is empty"),
        ('{"prompt": "q", "prompt": "r", "answer": "a"}', "the field 'prompt' comes twice"),
        ('{"prompt": "\\ud800", "answer": "a"}', "the field 'prompt' holds half of a surrogate pair"),
        ('{"prompt": "p", "answer": "b"}', "the prompt 'p' has the answer 'a' in "),
    ],
)
def test_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: str, what: str) -> None:
    file = write(tmp_path, GOOD + "\n" + line + "\n")
    error = refused(file)
    assert error.what.startswith(f"1 of 2 lines are bad\n  line 3: {what}")
    assert error.where == str(file)
    assert error.fix


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    error = refused(write(tmp_path, GOOD.encode() + b'{"prompt": "caf\xe9", "answer": "a"}'))
    assert error.what == "1 of 2 lines are bad\n  line 2: byte 16 of the line (0xe9) is not UTF-8"


def test_file_without_prompts_or_that_is_none_is_refused(tmp_path: Path) -> None:
    for content in ("", "\n  \n"):
        assert refused(write(tmp_path, content)).what == "the file holds 0 prompts; at least 1 is needed"
    missing = refused(tmp_path / "nowhere.jsonl")
    assert ("no such file" in missing.what, missing.where) == (True, str(tmp_path / "nowhere.jsonl"))
    assert refused(tmp_path).what == "the prompts cannot be read: Is a directory"


def test_misspelt_field_setting_gets_the_nearest_field(tmp_path: Path) -> None:
    error = refused(write(tmp_path, '{"question": "q", "answer": "a"}'), prompt_field="questions")
    assert error.fix == "set task.prompt_field to question"


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
