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

    def test_made_again_it_has_the_same_prompts(self) -> None:
        """A run that goes on makes it anew, and so does every process of a run."""
        one, other = self.make_task(), self.make_task()
        assert list(one.train_prompts) == list(other.train_prompts)
        assert list(one.validation_prompts) == list(other.validation_prompts)

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

    def test_the_reward_is_the_same_each_time(self) -> None:
        """From call to call, and from one copy of the task to another."""
        task, other = self.make_task(), self.make_task()
        truth = task.train_prompts[0].ground_truth
        assert [task.reward(text, truth) for text in RESPONSES] == [other.reward(text, truth) for text in RESPONSES]

    def test_a_copy_from_another_process_is_the_same_task(self) -> None:
        """Rewards with a time limit are computed in a process of their own."""
        task = self.make_task()
        copied = pickle.loads(pickle.dumps(task))
        assert list(copied.train_prompts) == list(task.train_prompts)
        assert list(copied.validation_prompts) == list(task.validation_prompts)
        truth = task.train_prompts[0].ground_truth
        assert copied.reward("A red apple.", truth) == task.reward("A red apple.", truth)
