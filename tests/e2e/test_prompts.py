"""The scenario ``prompts`` in earnest, on a small stand-in for data and model: each arm asks in its own words."""

from pathlib import Path

import pytest

from harness.models.make_folder import make_folder
from harness.results import find_runs
from harness.results.manifest import PROMPT_TEMPLATE
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from harness.tasks.maths.prompts import prompt_template
from harness.tasks.maths.task import read_problems

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "maths"
OWN = "{question}\nPut your final answer within \\boxed{}.\n"


@pytest.mark.slow
def test_the_arms_of_prompts_ask_the_same_problems_in_their_own_words(tmp_path: Path) -> None:
    make_folder("tiny-qwen2", tmp_path / "model", layers=1, vocab_size=512, dtype="float32", chat=True)
    own = tmp_path / "own.txt"
    own.write_text(OWN)
    asked = {"task.prompt": str(own), "task.reward": "question_only", "task.chat_template": True}
    settings = {
        "task.train": DATA / "gsm8k_sample.jsonl",
        "task.validation": DATA / "math_sample.jsonl",
        "model.path": tmp_path / "model",
        "model.gradient_checkpointing": "false",
        "gradient_accumulation_steps": 1,
        "rollout_batch_size": 8,
        "group_size": 4,
        "sampling.max_tokens": 12,
        "evaluation.prompts": 8,
        "steps": 1,
        "profile": "'off'",
        "trackers": "[]",
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    arms = {"r1_zero": {"task.prompt": "r1_zero"}, "question_only": {"task.prompt": "question_only"}, "own": asked}
    scenario = load_scenario(ROOT / "scenarios" / "prompts.yaml", [*overrides, f"arms={arms}"])
    assert run_scenario(scenario, tmp_path / "results", quiet=True, show=lambda folder: None) == 0
    runs, damaged = find_runs(tmp_path / "results")
    assert damaged == []
    question = read_problems(DATA / "math_sample.jsonl").prompts[0].text
    templates = {arm: prompt_template(str(changes["task.prompt"])) for arm, changes in arms.items()}
    assert {str(run.manifest.arm): run.manifest.inputs[PROMPT_TEMPLATE]["text"] for run in runs} == {
        arm: template.text for arm, template in templates.items()
    }
    for run in runs:
        assert run.rollouts()[0].prompt == templates[str(run.manifest.arm)].render(question)
