"""Every task is held to ``harness.testing``."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.protocols import Task
from harness.core.types import Prompt
from harness.tasks import JsonlTask, KeywordTask
from harness.tasks.arithmetic import ArithmeticTask
from harness.tasks.keyword_files import KeywordFileTask
from harness.tasks.maths.task import MathsTask
from harness.testing import TaskContract

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "own_task"
REWARD = "docs.examples.own_task.reward:score"


def two_files(folder: Path) -> JsonlTask:
    lines = (EXAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
    (folder / "validation.jsonl").write_text("".join(lines[30:40]), encoding="utf-8")
    return JsonlTask(folder / "train.jsonl", REWARD, validation=folder / "validation.jsonl")


def maths(folder: Path) -> MathsTask:
    """The two sample files, each as often as the contract needs: the same problem about other things is another one."""
    for name, field, times in (("gsm8k", "question", 2), ("math", "problem", 1)):
        rows = (ROOT / "tests" / "data" / "maths" / f"{name}_sample.jsonl").read_text(encoding="utf-8")
        copies = [rows.replace(f'"{field}": "', f'"{field}": "({number}) ') for number in range(times)]
        (folder / f"{name}.jsonl").write_text("".join(copies), encoding="utf-8")
    return MathsTask(folder / "gsm8k.jsonl", folder / "math.jsonl", prompt="r1_zero")


BUILDERS: dict[str, Callable[[Path], Task]] = {
    "keywords": lambda folder: KeywordTask(2, 64, 32, seed=1),
    "keywords, files": lambda folder: KeywordFileTask(
        ROOT / "docs/examples/keywords/train.jsonl", ROOT / "docs/examples/keywords/validation.jsonl"
    ),
    "jsonl, split": lambda folder: JsonlTask(EXAMPLE / "prompts.jsonl", REWARD, validation_fraction=0.25),
    "jsonl, two files": two_files,
    "maths": maths,
    "arithmetic": lambda folder: ArithmeticTask(64, 32, seed=1),
}
FORMATS = dict.fromkeys(("maths", "arithmetic"), "So be it. </think> <answer> {} </answer>")
"""How a response is written where a task asks for a format; the keywords, or the answer, go in its place."""


class TestTasks(TaskContract):
    """Every task that the harness brings."""

    build: Callable[[], Task]
    form: str

    @pytest.fixture(params=BUILDERS, autouse=True)
    def chosen(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take one of them, in the repository's root."""
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "path", list(sys.path))
        self.build = lambda: BUILDERS[request.param](tmp_path)
        self.form = FORMATS.get(request.param, "{}")

    def make_task(self) -> Task:
        return self.build()

    def right_response(self, prompt: Prompt) -> str:
        """Name what is asked for."""
        return self.form.format(" ".join(prompt.ground_truth.replace(",", "").split()) + ".")

    def test_there_are_as_many_prompts_as_the_files_hold(self) -> None:
        task = self.make_task()
        assert len(task.train_prompts) >= 30
        assert len(task.validation_prompts) >= 10
