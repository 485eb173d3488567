"""What every task must do."""

from __future__ import annotations

import math
import pickle

import pytest

from harness.core.protocols import Task
from harness.core.types import Prompt

RESPONSES = ["", " ", "A red apple.", "ÄÖ \u2028 \U0001f600 \x00", "a, b, c: {'reward': 1}\n" * 200]


class TaskContract:
    """Contract of a task. Say in a subclass how it is made; ``right_response`` if there is one of full reward."""

    def make_task(self) -> Task:
        """Return the task, made anew."""
        raise NotImplementedError

    def right_response(self, prompt: Prompt) -> str | None:
        """Return a response whose reward is 1, where an empty one has 0; None: there is none to tell."""
        return None

    def test_prompts_have_texts_and_none_comes_twice(self) -> None:
        """In training and validation together."""
        task = self.make_task()
        prompts = [*task.train_prompts, *task.validation_prompts]
        assert len(task.train_prompts) >= 1
        assert len(task.validation_prompts) >= 1
        assert {type(prompt) for prompt in prompts} == {Prompt}
        assert all(prompt.text.strip() and isinstance(prompt.ground_truth, str) for prompt in prompts)
        assert len({prompt.text for prompt in prompts}) == len(prompts)

    def test_any_response_gets_three_finite_numbers(self) -> None:
        """A policy writes anything."""
        task = self.make_task()
        for prompt in (task.train_prompts[0], task.validation_prompts[-1]):
            for response in RESPONSES:
                rewards = task.reward(response, prompt.ground_truth)
                assert list(rewards) == ["reward", "format_reward", "answer_reward"]
                assert all(type(part) is float and math.isfinite(part) for part in rewards.values())

    def test_a_right_response_beats_silence(self) -> None:
        """Else there is nothing to learn."""
        task = self.make_task()
        prompt = task.train_prompts[0]
        right = self.right_response(prompt)
        if right is None:
            pytest.skip("the contract was told of no right response")
        assert task.reward(right, prompt.ground_truth)["reward"] == 1.0
        assert task.reward("", prompt.ground_truth)["reward"] == 0.0

    @pytest.mark.parametrize("how", ["made again", "copied to another process"])
    def test_it_is_the_same_task(self, how: str) -> None:
        """Each process of a run makes it anew, but for the one of rewards with a time limit, which gets a copy."""
        task = self.make_task()
        other = self.make_task() if how == "made again" else pickle.loads(pickle.dumps(task))
        assert list(other.train_prompts) == list(task.train_prompts)
        assert list(other.validation_prompts) == list(task.validation_prompts)
        truth = task.train_prompts[0].ground_truth
        assert [other.reward(text, truth) for text in RESPONSES] == [task.reward(text, truth) for text in RESPONSES]
