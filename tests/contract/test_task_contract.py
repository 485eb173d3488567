"""What every task must do, whichever it is."""

import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.protocols import Task
from harness.core.types import Prompt
from harness.tasks import JsonlTask, KeywordTask
from harness.tasks.arithmetic import ArithmeticTask
from harness.tasks.keyword_files import KeywordFileTask
from harness.tasks.maths import MathsTask

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "own_task"
REWARD = "docs.examples.own_task.reward:score"
RESPONSES = ["", " ", "A red apple.", "ÄÖ \u2028 \U0001f600 \x00", "a, b, c: {'reward': 1}\n" * 200]


def two_files(folder: Path) -> JsonlTask:
    lines = (EXAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
    (folder / "validation.jsonl").write_text("".join(lines[30:40]), encoding="utf-8")
    return JsonlTask(folder / "train.jsonl", REWARD, validation=folder / "validation.jsonl")


def maths(folder: Path, prompt: str) -> MathsTask:
    """The two sample files, each as often as the contract needs: the same problem about other things is another one."""
    for name, field, times in (("gsm8k", "question", 2), ("math", "problem", 1)):
        rows = (ROOT / "tests" / "data" / "maths" / f"{name}_sample.jsonl").read_text(encoding="utf-8")
        copies = [rows.replace(f'"{field}": "', f'"{field}": "({number}) ') for number in range(times)]
        (folder / f"{name}.jsonl").write_text("".join(copies), encoding="utf-8")
    return MathsTask(folder / "gsm8k.jsonl", folder / "math.jsonl", prompt=prompt)


BUILDERS: dict[str, Callable[[Path], Task]] = {
    "keywords": lambda folder: KeywordTask(2, 64, 32, seed=1),
    "keywords, four in a prompt": lambda folder: KeywordTask(4, 64, 32, seed=1),
    "keywords, files": lambda folder: KeywordFileTask(
        ROOT / "docs/examples/keywords/train.jsonl", ROOT / "docs/examples/keywords/validation.jsonl"
    ),
    "jsonl, split": lambda folder: JsonlTask(EXAMPLE / "prompts.jsonl", REWARD, validation_fraction=0.25),
    "jsonl, two files": two_files,
    "maths": lambda folder: maths(folder, "r1_zero"),
    "maths, bare questions": lambda folder: maths(folder, "question_only"),
    "arithmetic": lambda folder: ArithmeticTask(64, 32, seed=1),
}
FORMATS = dict.fromkeys(("maths", "arithmetic"), "So be it. </think> <answer> {} </answer>")
"""How a response is written where a task asks for a format; the keywords, or the answer, go in its place."""


@pytest.fixture(params=BUILDERS, autouse=True)
def build(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Task]:
    """Return a function that builds the task anew, in the repository's root."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda: BUILDERS[request.param](tmp_path)


@pytest.fixture
def format_of_responses(request: pytest.FixtureRequest) -> str:
    """Return how a response to the task is written."""
    return FORMATS.get(request.node.callspec.params["build"], "{}")


def test_prompts_have_texts_and_none_comes_twice(build: Callable[[], Task]) -> None:
    task = build()
    prompts = [*task.train_prompts, *task.validation_prompts]
    assert len(task.train_prompts) >= 30
    assert len(task.validation_prompts) >= 10
    assert {type(prompt) for prompt in prompts} == {Prompt}
    assert all(prompt.text.strip() and isinstance(prompt.ground_truth, str) for prompt in prompts)
    assert len({prompt.text for prompt in prompts}) == len(prompts)


def test_building_again_gives_the_same_prompts(build: Callable[[], Task]) -> None:
    one, other = build(), build()
    assert list(one.train_prompts) == list(other.train_prompts)
    assert list(one.validation_prompts) == list(other.validation_prompts)


def test_any_response_gets_three_finite_numbers(build: Callable[[], Task]) -> None:
    task = build()
    for prompt in (task.train_prompts[0], task.validation_prompts[-1]):
        for response in RESPONSES:
            rewards = task.reward(response, prompt.ground_truth)
            assert list(rewards) == ["reward", "format_reward", "answer_reward"]
            assert all(type(part) is float and math.isfinite(part) for part in rewards.values())


def test_the_prompt_with_its_keywords_answered_beats_silence(
    build: Callable[[], Task], format_of_responses: str
) -> None:
    task = build()
    prompt = task.train_prompts[0]
    answered = " ".join(prompt.ground_truth.replace(",", "").split()) + "."
    assert task.reward(format_of_responses.format(answered), prompt.ground_truth)["reward"] == 1.0
    assert task.reward("", prompt.ground_truth)["reward"] == 0.0


def test_reward_is_the_same_each_time(build: Callable[[], Task]) -> None:
    task, other = build(), build()
    truth = task.train_prompts[0].ground_truth
    assert [task.reward(text, truth) for text in RESPONSES] == [other.reward(text, truth) for text in RESPONSES]


def test_a_copy_from_another_process_is_the_same_task(build: Callable[[], Task]) -> None:
    task = build()
    copied = pickle.loads(pickle.dumps(task))
    assert list(copied.train_prompts) == list(task.train_prompts)
    assert list(copied.validation_prompts) == list(task.validation_prompts)
    truth = task.train_prompts[0].ground_truth
    assert copied.reward("A red apple.", truth) == task.reward("A red apple.", truth)
