"""Reward functions that take rows or groups, and weighted lists of them: what they get, and what they may return."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer
from harness.core.types import Completion, GroupData, Metric, Prompt, Purpose, RolloutGroup, WorkItem
from harness.run.workers import ScorerWorker
from harness.settings.task import RewardFunctionSettings
from harness.tasks.jsonl import JsonlTask
from harness.tasks.rewards import UserReward
from harness.tasks.scoring import DirectRewards, GroupRewards, RewardFailed, TimedRewards

NAME = "own_reward_under_test"
ROW = {"prompt": "Two?", "answer": "2", "most": 3, "tags": ["ä", None, {"deep": 0.5}]}

MODULE = """
import os, time

def most(response, row):
    row["seen"] = row.pop("most")  # the next call gets a row of its own
    return {"reward": min(len(response), row["seen"]), "format_reward": 0.5}

def tags(response, row):
    return row["tags"] == ["ä", None, {"deep": 0.5}] and sorted(row) == ["answer", "most", "prompt", "tags"]

def length(response, truth):
    return len(response) + len(truth)

def places(responses, truth):
    with open("calls", "a") as file:
        file.write(f"{len(responses)} {truth}\\n")
    return tuple(range(len(responses)))

def answers(responses, row):
    return [{"reward": 0.25, "answer_reward": len(row["answer"])} for _ in responses]

def array(responses, truth):
    import numpy
    return numpy.arange(len(responses), dtype=numpy.float32) / 2

def bad(responses, truth):
    return {"short": responses[1:], "nan": [0.0, float("nan")], "text": ["a", 1], "none": [0, None]}.get(truth, 0.5)

def sleeps(responses, truth):
    time.sleep(600 if truth == "sleep" else 0)
    return [1.0] * len(responses)

def leaves(responses, truth):
    os._exit(3) if truth == "leave" else None
    return [1.0] * len(responses)
"""

Make = Callable[..., GroupRewards]


@pytest.fixture(autouse=True)
def module(write_module: Callable[[str], str]) -> None:
    """The module in the current folder, a fresh one."""
    write_module(MODULE)


@pytest.fixture(params=["direct", "timed"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Return what makes group rewards of each kind, closed at the end."""
    made: list[GroupRewards] = []

    def of(*functions: RewardFunctionSettings, timeout_s: float = 600.0) -> GroupRewards:
        reward = UserReward(functions)
        direct = request.param == "direct"
        made.append(DirectRewards(reward, lambda: False) if direct else TimedRewards(reward, timeout_s, lambda: False))
        return made[-1]

    yield of
    for rewards in made:
        rewards.close()


def function(called: str, **settings: object) -> RewardFunctionSettings:
    return RewardFunctionSettings(function=f"{NAME}:{called}", **settings)  # type: ignore[arg-type]


def row(called: str, **settings: object) -> RewardFunctionSettings:
    return function(called, takes="row", **settings)


def group(called: str, **settings: object) -> RewardFunctionSettings:
    return function(called, per="group", **settings)


def failure(rewards: GroupRewards, truth: str) -> str:
    with pytest.raises(RewardFailed) as caught:
        rewards(["one", "two"], truth, ROW)
    return str(caught.value)


def test_a_function_gets_the_whole_row_and_each_call_a_row_of_its_own(make: Make) -> None:
    rewards = make(row("most"), row("tags"))
    found = rewards(["a", "abcd"], "2", ROW)
    # 1 + 1 and 3 + 1; the format is the least of 0.5 and 1
    assert [part["reward"] for part in found] == [2.0, 4.0]
    assert [part["format_reward"] for part in found] == [0.5, 0.5]
    assert [(part["most_reward"], part["tags_reward"]) for part in found] == [(1.0, 1.0), (3.0, 1.0)]
    assert "most" in ROW


def test_weights_names_and_the_parts_of_the_sum(make: Make) -> None:
    rewards = make(
        function("length", weight=0.5),
        group("places", weight=-2.0, name="order"),
        group("answers", takes="row", weight=4.0),
        group("array"),
    )
    # lengths 1 + 1 and 2 + 1, halved; places 0 and 1, times -2; 0.25 times 4, its answer the one letter of "2"; 0, 1/2
    assert rewards([], "y", ROW) == []
    found = rewards(["a", "bc"], "2", ROW)
    assert Path("calls").read_text() == "2 2\n"  # once with all of them
    assert found == [
        {
            "reward": 1.0 - 0.0 + 1.0 + 0.0,
            "format_reward": 1.0,
            "answer_reward": 1.0 - 0.0 + 4.0 + 0.0,
            **{"length_reward": 2.0, "order_reward": 0.0, "answers_reward": 0.25, "array_reward": 0.0},
        },
        {
            "reward": 1.5 - 2.0 + 1.0 + 0.5,
            "format_reward": 1.0,
            "answer_reward": 1.5 - 2.0 + 4.0 + 0.5,
            **{"length_reward": 3.0, "order_reward": 1.0, "answers_reward": 0.25, "array_reward": 0.5},
        },
    ]


def test_what_is_no_list_of_as_many_numbers_is_one_clear_error_and_costs_its_group(make: Make) -> None:
    rewards = make(group("bad"), group("places"))
    for truth, said in {
        "short": "1 rewards for 2 responses",
        "nan": "nan, as its reward for response 2",
        "text": "'a', of type str, as its reward for response 1",
        "none": "None, of type NoneType, as its reward for response 2",
        "number": "0.5, of type float; expected a list of 2 rewards",
    }.items():  # no number of a response in front
        assert failure(rewards, truth).startswith(f"the reward function {NAME}:bad returned {said}")


def test_a_function_that_hangs_or_leaves_is_said_to_have_had_the_group() -> None:
    for does, limit_s, words in (("sleep", 0.2, ("0.2 s", "task.reward_timeout_s")), ("leave", 600.0, ("code 3",))):
        rewards = TimedRewards(UserReward([group(f"{does}s")]), limit_s, lambda: False)
        said = failure(rewards, does)
        assert [word for word in (*words, "the whole group", "'one'", f"'{does}'") if word not in said] == []
        rewards.close()


def test_the_task_keeps_rows_where_they_are_taken_and_tries_groups_with_two(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "answer": "1", "most": 2}', '{"prompt": "b", "answer": "2", "most": 3}']
    Path("p.jsonl").write_text("\n".join(lines))
    kept = JsonlTask("p.jsonl", [row("most")], validation_fraction=0.5)
    assert sorted(prompt.row["most"] for prompt in (*kept.train_prompts, *kept.validation_prompts)) == [2, 3]
    assert kept.train_prompts[0] == Prompt(kept.train_prompts[0].text, kept.train_prompts[0].ground_truth)
    plain = JsonlTask("p.jsonl", f"{NAME}:length", validation_fraction=0.5)
    assert {prompt.row for prompt in plain.train_prompts} == {None}
    Path("short.jsonl").write_text('{"prompt": "a", "answer": "short"}\n{"prompt": "b", "answer": "short"}\n')
    with pytest.raises(UserError, match="returned 1 rewards for 2 responses"):
        JsonlTask("short.jsonl", [group("bad")], validation_fraction=0.5)


def test_each_part_is_a_metric_by_its_name() -> None:
    worker = ScorerWorker(
        DirectRewards(UserReward([function("length", weight=0.5), row("most", name="brevity")]), lambda: False),
        num_examples=0,
        tracer=RecordingTracer(lambda: 0),
    )
    ids = np.zeros(2, np.int64)
    completions = tuple(Completion(ids, np.zeros(2, np.float32), text, "stop") for text in ("a", "bcde"))
    data = GroupData(Prompt("Two?", "2", ROW), ids, completions)
    rollouts = RolloutGroup(0, 0, 0, 0, (2, 2), data)
    train = worker.score(WorkItem(Purpose.TRAIN, 0, 0, (0,), 2, seed=0), (rollouts,))
    # lengths with the truth 2 and 5, brevity 1 and 3: 0.5 * 3.5 + 2
    assert {name: metric for name, metric in train.metrics.items() if name.startswith("reward/")} == {
        "reward/total": Metric(3.75, count=2),
        "reward/format": Metric(0.5, count=2),
        "reward/answer": Metric(3.75, count=2),
        "reward/length": Metric(3.5, count=2),
        "reward/brevity": Metric(2.0, count=2),
    }
    held_out = worker.score(WorkItem(Purpose.EVALUATE, 0, 0, (0,), 2, seed=0), (rollouts,))
    assert {name: metric.value for name, metric in held_out.metrics.items() if "reward" in name} == {
        "validation/reward": 3.75,
        "validation/format_reward": 0.5,
        "validation/answer_reward": 3.75,
        "validation/length_reward": 3.5,
        "validation/brevity_reward": 2.0,
    }
