"""A keyword data set: which answers are kept, until when, and what is written."""

import argparse
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest

from harness.core.errors import RunStopped, UserError
from harness.core.types import Prompt
from harness.evaluate.dataset_command import add_arguments
from harness.evaluate.keyword_dataset import (
    check_target,
    draw_prompts,
    fault,
    fill,
    most_prompts,
    settings_of,
    split_sizes,
    tidy,
    write_dataset,
)
from harness.tasks.keyword_files import KeywordFileTask


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The red apple fell.", None),
        ("REDUCE the pineapple!", None),  # letters inside of longer words count, as in the reward
        ("", "empty"),
        ("The red\x1b[2J apple fell.", "control characters"),
        ("The red\u2028apple fell.", "control characters"),
        ("The apple fell.", "keyword missing"),
        ("Apple red.", "no sentence"),
        ("The red apple fell", "unfinished"),
        ("The RED apple stood.", "said before"),
    ],
)
def test_an_answer_is_kept_or_rejected_for_the_first_reason(sentence: str, expected: str | None) -> None:
    assert fault(sentence, "apple, red", {"the red apple stood."}) == expected


def test_an_answer_is_its_first_line_with_something_on_it() -> None:
    assert [tidy(text) for text in ("\n \n  The red apple. \nAnd more.\n", " \n")] == ["The red apple.", ""]


def test_a_fifth_is_for_validation() -> None:
    sizes = [split_sizes(rows, 2) for rows in (3, 10, 12, 13, 1000)]
    assert [tuple(each.values()) for each in sizes] == [(2, 1), (8, 2), (10, 2), (10, 3), (800, 200)]
    for rows in (-1, 0, 2):
        with pytest.raises(UserError, match=f"-n is {rows}; it must be at least 3"):
            split_sizes(rows, 2)
    # 400 words in 50 blocks of 8: 50 * (8 choose 2) = 1400 pairs within a block, (50 choose 2) * 64 = 78400 across
    assert most_prompts(2) == {"train": 78400, "validation": 1400}
    assert split_sizes(7000, keywords=2) == {"train": 5600, "validation": 1400}
    with pytest.raises(UserError, match="1401 validation rows are asked for; there are 1400"):
        split_sizes(7005, keywords=2)


def test_no_two_words_stand_together_in_both_splits() -> None:
    pairs = {
        split: {
            pair
            for prompt, _ in zip(draw_prompts(split, 3, seed=0), range(300), strict=False)
            for pair in combinations(sorted(prompt.ground_truth.split(", ")), 2)
        }
        for split in ("train", "validation")
    }
    assert min(map(len, pairs.values())) > 500
    assert pairs["train"] & pairs["validation"] == set()


def test_prompts_end_when_all_sets_of_words_were_asked_for() -> None:
    prompts = [prompt.ground_truth for prompt in draw_prompts("validation", 2, seed=0)]
    assert len(prompts) == len({frozenset(prompt.split(", ")) for prompt in prompts}) == 1400


def sentence(prompt: Prompt) -> str:
    return f"I saw {prompt.ground_truth.replace(', ', ' and ')} here."


def test_the_first_good_answer_of_each_prompt_is_kept() -> None:
    requests: list[tuple[int, int]] = []

    def ask(prompts: Sequence[Prompt], request: int) -> list[list[str]]:
        requests.append((len(prompts), request))
        return [["", "nothing.", sentence(prompt), sentence(prompt) + " Or there."] for prompt in prompts]

    *_, found = fill("train", 5, 2, 0, 2, ask, set())
    assert requests == [(2, 0), (2, 1), (2, 2)]
    assert (found.asked, found.answers, found.rejected) == (5, 15, {"empty": 5, "keyword missing": 5})
    wanted = [prompt for prompt, _ in zip(draw_prompts("train", 2, seed=0), range(5), strict=False)]
    assert found.rows == [{"prompt": prompt.text, "answer": sentence(prompt)} for prompt in wanted]


def test_a_sentence_is_kept_once_over_both_splits() -> None:
    said: set[str] = set()
    *_, first = fill("train", 3, 2, 0, 8, lambda prompts, _: [[sentence(prompt)] for prompt in prompts], said)
    assert said == {row["answer"].casefold() for row in first.rows}

    def ask(prompts: Sequence[Prompt], _: int) -> list[list[str]]:
        return [[sentence(prompt), sentence(prompt) + " Now."] for prompt in prompts]

    *_, again = fill("train", 3, 2, 0, 8, ask, said)
    assert again.rejected == {"said before": 3}


@pytest.mark.parametrize(
    ("split", "rows", "batch", "answers", "said"),
    [
        ("train", 4, 50, ["no.", ""], ("0 of 4 train rows", "200 prompts", "empty 200, keyword missing 200\n")),
        ("validation", 1400, 700, ["no."], ("after 1,400 prompts, which is all the prompts there are",)),
    ],
)
def test_a_model_that_cannot_do_it_is_given_up_with_the_counts(
    split: str, rows: int, batch: int, answers: list[str], said: tuple[str, ...]
) -> None:
    with pytest.raises(RunStopped) as stopped:
        list(fill(split, rows, 2, 0, batch, lambda prompts, _: [answers for _ in prompts], set()))
    assert all(part in str(stopped.value) for part in said)


def test_the_files_are_what_the_keyword_task_reads(tmp_path: Path) -> None:
    found = {
        split: list(fill(split, size, 2, 0, 8, lambda prompts, _: [[sentence(p)] for p in prompts], set()))[-1].rows
        for split, size in split_sizes(20, 2).items()
    }
    folder = tmp_path / "new" / "keywords"
    check_target(folder)
    assert not folder.parent.exists()
    write_dataset(folder, found, {"kind": "keywords"})
    assert sorted(path.name for path in folder.iterdir()) == ["dataset.json", "train.jsonl", "validation.jsonl"]
    assert [path.name for path in folder.parent.iterdir()] == ["keywords"]
    assert list(json.loads((folder / "train.jsonl").read_text().splitlines()[0])) == ["prompt", "answer"]
    files = json.loads((folder / "dataset.json").read_text())["files"]
    assert {name: file["rows"] for name, file in files.items()} == {"train.jsonl": 16, "validation.jsonl": 4}
    task = KeywordFileTask(folder / "train.jsonl", folder / "validation.jsonl")
    assert [prompt.text for prompt in task.train_prompts] == [row["prompt"] for row in found["train"]]
    assert len(task.validation_prompts) == 4


def test_a_folder_that_holds_something_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"train": [{"prompt": "p", "answer": "a"}]}
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        check_target(tmp_path)
    with pytest.raises(UserError, match="cannot write the data set"):
        write_dataset(tmp_path, rows, {})
    with pytest.raises(UserError, match="cannot write the data set"):  # through a file
        check_target(tmp_path / "mine" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    for named in (Path("."), tmp_path / "below", Path("..", "below")):
        with pytest.raises(UserError, match="is the current one; it must be new"):
            check_target(named)
    write_dataset(Path("..", "new", "..", "other"), rows, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["below", "mine", "other"]


def test_the_facts_keep_every_setting_and_nothing_else_of_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    line = ["keywords", "--model", "preset:tiny", "-n", "5", "-o", "/home/ann/words", "--samples", "2", "--quiet"]
    options = parser.parse_args(line, argparse.Namespace(typed=line))
    assert settings_of(options) == {
        "model": "preset:tiny", "rows": 5, "keywords": 2, "engine": "native", "precision": "float32",
        "chat": False, "samples": 2, "temperature": 1.0, "max_tokens": 48, "seed": 0, "batch": 64,
    }  # fmt: skip
    assert set(vars(options)) - set(settings_of(options)) == {"kind", "out", "quiet", "typed"}
