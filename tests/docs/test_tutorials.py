"""The files and programs of the tutorials are what the pages say of them."""

import json
import re

import pytest

from harness.cli import main
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from tests.docs.pages import blocks


@pytest.fixture
def my_task(tmp_path, monkeypatch):
    """The folder of the tutorial on an own task, but for the model."""
    monkeypatch.chdir(tmp_path)
    prompts, reward = blocks("tutorials/own_model_and_task.md", "python")
    exec(prompts, {})
    (tmp_path / "my_reward.py").write_text(reward)
    (tmp_path / "mine.yaml").write_text(blocks("tutorials/own_model_and_task.md", "yaml")[0])
    return tmp_path


def test_the_files_of_the_own_task_are_a_scenario(my_task, capsys):
    rows = [json.loads(line) for line in (my_task / "prompts.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) == 40
    assert main(["validate", "mine.yaml"]) == 0
    # 20 steps of 32 responses, and five validations that ask for 256 prompts each
    assert capsys.readouterr().out.startswith("mine is valid: 1 run, 1,920 rollouts with validation\n")
    with (my_task / "mine.yaml").open("a") as scenario:
        scenario.write(blocks("tutorials/own_model_and_task.md", "yaml")[1])
    assert [run.scenario.group_size for run in expand(load_scenario("mine.yaml"))] == [4, 8] * 6


def test_the_reward_of_the_own_task_pays_for_words_and_brevity():
    names = {}
    exec(blocks("tutorials/own_model_and_task.md", "python")[1], names)
    assert names["score"]("The cat saw a dog.", "cat dog") == 1.0
    assert names["score"]("The cat saw a bird.", "cat dog") == 0.5
    assert names["score"]("cat dog" + " very" * 13, "cat dog") == pytest.approx(1 - 0.02 * 5)


def test_the_functions_of_the_assignment_print_what_the_page_says(capsys):
    # rewards 1, 0, 0, 1 in one group: mean 0.5, sample standard deviation sqrt(1/3); the mean of 1 and 2 is 1.5
    exec(blocks("tutorials/course_assignment.md", "python")[0], {})
    printed = capsys.readouterr().out
    assert printed == blocks("tutorials/course_assignment.md", "text")[0]
    assert [float(number) for number in re.findall(r"-?\d\.\d+", printed)] == pytest.approx(
        [0.75**0.5, -(0.75**0.5), -(0.75**0.5), 0.75**0.5, 1.5], abs=1e-4
    )
