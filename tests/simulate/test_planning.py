"""What the loop is told, without a model: prompts, lanes, threads."""

import pytest

from harness.scenario.derived import threads_on
from harness.scenario.lanes import all_lanes, lanes_of
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.simulate.lengths import number_of_prompts
from harness.tasks import JsonlTask


def test_prompts_of_made_up_tasks():
    assert number_of_prompts(Scenario(task={"type": "keywords", "train_prompts": 50, "validation_prompts": 7})) == (
        50,
        7,
    )
    assert number_of_prompts(Scenario(task={"type": "arithmetic"})) == (4096, 256)
    assert number_of_prompts(Scenario(task={"type": "sorting"}, model={"type": "sorting"})) == (3, 3)


@pytest.mark.parametrize("separate", [True, False])
def test_prompts_of_files_are_as_many_as_the_task_finds(tmp_path, separate):
    train, validation = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    train.write_text("".join(f'{{"prompt": "p{n}", "answer": "a"}}\n' for n in range(23)) + "\n")
    validation.write_text('{"prompt": "v", "answer": "a"}\n')
    reward = "harness.core.keyword_reward:keyword_inclusion_reward_fn"
    files = {"train": str(train), **({"validation": str(validation)} if separate else {})}
    task = JsonlTask(str(train), reward, validation=files.get("validation"), validation_fraction=0.1)
    scenario = Scenario(task={"type": "jsonl", "reward": reward, **files})
    assert number_of_prompts(scenario) == (len(task.train_prompts), len(task.validation_prompts))
    assert number_of_prompts(scenario) == ((23, 1) if separate else (20, 3))  # a tenth of 23, rounded up


def test_files_that_are_not_here_are_taken_to_have_enough():
    scenario = Scenario(task={"type": "maths", "train": "nowhere.jsonl"}, evaluation={"prompts": 99})
    assert number_of_prompts(scenario) == (4096, 99)


def test_the_plan_follows_the_scenario():
    scenario = Scenario(steps=5, max_lag=2, lag_control="drop", evaluation={"every": 3, "prompts": 10})
    plan = loop_plan(scenario, num_train=40, num_validation=6)
    assert (plan.steps, plan.max_lag, plan.lag_control, plan.evaluate_every) == (5, 2, "drop", 3)
    assert plan.validation_prompts == tuple(range(6))
    assert len(plan.batch_prompts(0)) == 8
    assert plan.replay.capacity == 0
    replay = loop_plan(Scenario(replay={"capacity": 16}, max_lag=1), 40, 6).replay
    # 16 groups are refilled in 2 steps of 8: max_lag 1 + 2
    assert (replay.capacity, replay.max_age, replay.sample_groups) == (16, 3, 8)


def test_lanes_are_numbered_where_there_are_several():
    scenario = Scenario(placement={"generator": {"count": 3}})
    assert lanes_of("generator", scenario) == ["generator0", "generator1", "generator2"]
    assert all_lanes(scenario) == ("generator0", "generator1", "generator2", "scorer", "learner")


@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({"model": {"type": "preset", "threads": 3}}, 3),
        ({"placement": {"learner": {"threads": 2}}}, 2),
        ({"transport": {"type": "disk"}, "placement": {"learner": {"cpus": 4.0}}}, 4),
        ({"transport": {"type": "disk"}, "placement": {"learner": {"cpus": 0.5}}}, 1),
        ({"placement": {"colocated": True}}, 8),
        ({"placement": {"colocated": False}}, 4),
    ],
)
def test_threads_are_asked_for_or_a_share_of_the_cores(changes, threads):
    scenario = Scenario(**changes)
    assert threads_on(8, scenario, scenario.placement.learner) == threads
