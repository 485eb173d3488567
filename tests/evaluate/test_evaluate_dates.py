"""Prompts that have today's date in them have the same one all through an evaluation."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.evaluate.record import BATCHES, EVALUATION, RESPONSES
from harness.learner.warm_start import initial_policy
from harness.models.chat import on_date
from harness.models.storage import save_policy

DATED = "{{ 'Day ' + strftime_now('%A') + ' ' }}{% for turn in messages %}{{ turn.content }}{% endfor %}"
"""Names of days have other lengths, so that other prompts are seen in the record."""
MONDAY, WEDNESDAY = date(2026, 11, 23), date(2026, 11, 25)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, tokenizer = initial_policy("tiny", 0)
    tokenizer.chat_template = DATED
    save_policy(made, tokenizer, folder := tmp_path_factory.mktemp("model") / "dated")
    return folder


def evaluated(model: Path, day: date, *more: str) -> tuple[int, Path]:
    """Evaluate on a day in the current folder; return the exit code and the newest evaluation's folder."""
    arguments = ["--model", str(model), "--task", "keywords", "--limit", "4", "--batch", "2", "--max-tokens", "4"]
    with on_date(day):
        code = main(["evaluate", *arguments, "--quiet", "--chat", *more])
    return code, max(Path("results/evaluations").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def prompt_tokens(folder: Path) -> list[int]:
    return [json.loads(line)["prompt_tokens"] for line in (folder / RESPONSES).read_text().splitlines()]


def setting(folder: Path, name: str) -> Any:
    return json.loads((folder / EVALUATION).read_text())["settings"][name]


def test_an_evaluation_that_goes_on_another_day_asks_with_the_date_of_its_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, folder = evaluated(model, MONDAY)
    first = prompt_tokens(folder)
    assert code == 0
    assert setting(folder, "chat_date") == "2026-11-23"
    for name in (RESPONSES, BATCHES):  # as if it had been killed in the second batch
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: len(lines) // 2]))
    assert evaluated(model, WEDNESDAY) == (0, folder)
    assert prompt_tokens(folder) == first
    assert setting(folder, "chat_date") == "2026-11-23"
    code, other = evaluated(model, WEDNESDAY, "--seed", "1")
    assert prompt_tokens(other) != first
    assert setting(other, "chat_date") == "2026-11-25"


def test_responses_that_end_otherwise_are_no_part_of_an_evaluation(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Path(shutil.copytree(model, tmp_path / "other" / model.name))
    _, folder = evaluated(model, MONDAY)
    assert setting(folder, "end_tokens") == {"1": "<|eos|>"}
    (other / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    assert evaluated(other, MONDAY, "-o", str(folder))[0] == 2
    code, apart = evaluated(other, MONDAY)
    assert (code, apart == folder) == (0, False)
    content = (folder / EVALUATION).read_text()
    (folder / EVALUATION).write_text(content.replace("2026-11-23", "yesterday"))  # no date
    assert evaluated(model, MONDAY)[0] == 2
