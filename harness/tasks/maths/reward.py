"""The rewards of a maths response: one part for its format, one for its answer."""

from __future__ import annotations

from collections.abc import Callable

from harness.core.errors import UserError
from harness.tasks.maths.extraction import ANSWER_END, boxed_answer, stated_answer, tagged_answer
from harness.tasks.maths.symbolic import AnswerGrader, shared_grader

AnswersAgree = Callable[[str, str], bool]
"""Tells whether an answer means the same as the ground truth."""


def r1_zero_reward_fn(response: str, ground_truth: str, *, agree: AnswersAgree | None = None) -> dict[str, float]:
    """Return the rewards of a response to the ``r1_zero`` prompt, which begins inside of the thoughts.

    Args:
        response: what the policy wrote, up to and with ``</answer>``.
        ground_truth: the right answer.
        agree: compares answers; None takes the grader that this process shares.

    Returns:
        ``format_reward`` is 1.0 if the thoughts are closed and an answer in tags follows, else all three are 0.0.
        ``answer_reward`` is 1.0 if that answer is right too. ``reward`` is 1.0 if both are.
    """
    tagged = tagged_answer(response)
    answer = tagged if tagged is None else boxed_answer(tagged) or tagged
    return _rewards(answer, ground_truth, agree)


def question_only_reward_fn(response: str, ground_truth: str, *, agree: AnswersAgree | None = None) -> dict[str, float]:
    r"""Return the rewards of a response to the bare question.

    Args:
        response: what the policy wrote.
        ground_truth: the right answer.
        agree: compares answers; None takes the grader that this process shares.

    Returns:
        As ``r1_zero_reward_fn``, where the format is right if an answer can be found, see ``stated_answer``: in
        ``\boxed{...}``, or at the end.
    """
    return _rewards(stated_answer(response), ground_truth, agree)


def _rewards(answer: str | None, ground_truth: str, agree: AnswersAgree | None) -> dict[str, float]:
    if answer is None:
        return {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}
    right = float((agree or shared_grader())(answer, ground_truth))
    return {"reward": right, "format_reward": 1.0, "answer_reward": right}


REWARD_FUNCTIONS: dict[str, Callable[..., dict[str, float]]] = {
    "r1_zero": r1_zero_reward_fn,
    "question_only": question_only_reward_fn,
}
"""The reward functions by the format of answers that they ask for."""

STOP_STRINGS: dict[str, tuple[str, ...]] = {"r1_zero": (ANSWER_END,), "question_only": ()}
"""What ends a response in each format; engines keep it as a part of the response (``SamplingParams.stop``)."""


_MADE_FOR = {"r1_zero": "r1_zero", "r1_zero_reworded": "r1_zero", "question_only": "question_only"}
"""The reward function of each template of the package."""


def reward_of(prompt: str, reward: str | None = None) -> str:
    """Return the name of the reward function that goes with a prompt template.

    Args:
        prompt: name of a template, or the path of a user's own.
        reward: one of ``REWARD_FUNCTIONS``; None takes the one that a template of the package is made for.

    Raises:
        UserError: ``reward`` is unknown, or it is None and the template is a user's own.
    """
    if reward is None and prompt in _MADE_FOR:
        return _MADE_FOR[prompt]
    if reward in REWARD_FUNCTIONS:
        return reward
    known = " or ".join(REWARD_FUNCTIONS)
    said = f"the reward is {reward!r}" if reward else f"the prompt {prompt!r} is your own, and no reward is named"
    raise UserError(
        f"{said}; {known} says how the answer is found in a response",
        where="task.reward",
        fix="set task.reward to r1_zero where the prompt asks for <answer> tags behind </think>, else to question_only",
    )


class MathsReward:
    """The reward of a maths task: one of ``REWARD_FUNCTIONS`` by its name, with a grader of its own.

    It pickles without the grader: another process makes its own.
    """

    def __init__(self, reward: str) -> None:
        self._name, self.grader = reward, AnswerGrader()

    def __call__(self, response: str, ground_truth: str) -> dict[str, float]:
        """Return ``reward``, ``format_reward`` and ``answer_reward`` of one response."""
        return REWARD_FUNCTIONS[self._name](response, ground_truth, agree=self.grader)

    def close(self) -> None:
        """End the grader's process; the next symbolic comparison starts another."""
        self.grader.close()

    def __reduce__(self) -> tuple[type[MathsReward], tuple[str]]:
        return MathsReward, (self._name,)
