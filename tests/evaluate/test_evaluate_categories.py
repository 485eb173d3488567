"""Categories, shares and figures of an evaluation, by numbers."""

import pytest

from harness.core.types import Prompt
from harness.evaluate.record import BatchRow, PromptRow, Response
from harness.evaluate.results import Category, category, metrics, results, shares


def graded(format_reward: float, answer_reward: float, tokens: int = 4, finish: str = "stop") -> Response:
    reward = min(format_reward, answer_reward)
    parts = {"reward": reward, "format_reward": format_reward, "answer_reward": answer_reward}
    return Response("text", tokens, finish, -2.0, parts)


RIGHT, FORMAT_ONLY, ANSWER_ONLY, NEITHER = graded(1, 1), graded(1, 0), graded(0, 1), graded(0, 0)
NOT_GRADED = Response("text", 4, "stop", -2.0, None, "the reward function raised")


def one_each(*responses: Response) -> list[PromptRow]:
    return [PromptRow(number, 10, (response,)) for number, response in enumerate(responses)]


def test_a_response_has_one_category() -> None:
    every = (RIGHT, FORMAT_ONLY, ANSWER_ONLY, NEITHER, NOT_GRADED)
    assert [category(response) for response in every] == list(Category)
    assert category(graded(1, 0.99)) is Category.FORMAT_ONLY  # a part counts once it is earned in full
    assert category(graded(0.99, 1)) is Category.ANSWER_ONLY


def test_shares_of_single_responses_have_wilsons_interval() -> None:
    found = shares(one_each(*[RIGHT] * 2, *[FORMAT_ONLY] * 3, *[NEITHER] * 5))
    assert [found[which].count for which in Category] == [2, 3, 0, 5, 0]
    right = found[Category.RIGHT]
    # z = 1.959964: (0.2 + z2/20 +- z sqrt(0.2 * 0.8 / 10 + z2/400)) / (1 + z2/10) with z2 = 3.841459
    assert (right.share, right.low, right.high) == pytest.approx((0.2, 0.0566822, 0.5098375), abs=1e-6)
    none = found[Category.ANSWER_ONLY]
    assert (none.low, none.high) == pytest.approx((0.0, 0.2775328), abs=1e-6)  # z2 / (10 + z2)
    # where all prompts are alike each is one trial, of 10 and not of 20
    alike = shares([PromptRow(number, 10, (NEITHER, NEITHER)) for number in range(10)])[Category.RIGHT]
    assert (alike.count, alike.low, alike.high) == pytest.approx((0, 0.0, 0.2775328), abs=1e-6)


def test_several_responses_to_a_prompt_are_no_independent_trials() -> None:
    # prompts' shares 1, 0.5, 0, 0.5: mean 0.5, sd sqrt(1/6), t(.975, 3) = 3.182446: 0.5 +- 3.182446 * 0.408248 / 2
    pairs = ((RIGHT, RIGHT), (RIGHT, NEITHER), (NEITHER, NEITHER), (NEITHER, RIGHT))
    rows = [PromptRow(number, 10, pair) for number, pair in enumerate(pairs)]
    right = shares(rows)[Category.RIGHT]
    assert (right.count, right.share) == (4, 0.5)
    assert (right.low, right.high) == (0.0, 1.0)  # 0.5 +- 0.6496 is cut
    wide = [row for row in rows for _ in range(4)]  # 16 prompts: sd sqrt(2/15), t(.975, 15) = 2.131450
    reach = 2.131450 * (2 / 15) ** 0.5 / 4
    found = shares([PromptRow(number, 10, row.responses) for number, row in enumerate(wide)])[Category.RIGHT]
    assert (found.low, found.high) == pytest.approx((0.5 - reach, 0.5 + reach), abs=1e-6)


def test_figures_are_sums_and_means_over_responses() -> None:
    rows = one_each(graded(1, 1, 2), graded(1, 0, 4), graded(0, 0, 10, "length"), NOT_GRADED)
    batches = [BatchRow(0, 2, 6, 1.0, 0.5), BatchRow(1, 2, 14, 3.0, 0.5)]
    assert metrics(rows, batches) == {
        "reward": 0.25,
        "format_reward": 0.5,
        "answer_reward": 0.25,
        "prompts_with_a_right_response": 1,
        "prompt_tokens_mean": 10.0,
        "response_tokens_mean": 5.0,
        "response_tokens_median": 4.0,
        "response_tokens_max": 10,
        "truncated_share": 0.25,
        "log_prob_per_token": -8.0 / 20,
        "tokens": 20,
        "generate_s": 4.0,
        "grade_s": 1.0,
        "tokens_per_s": 5.0,
        "prompts_per_s": 0.8,
    }


def test_examples_are_the_first_of_each_category() -> None:
    rows = one_each(NEITHER, RIGHT, NEITHER, NEITHER, NOT_GRADED)
    prompts = [Prompt(f"question {number}", f"answer {number}") for number in range(5)]
    kinds = results(rows, [BatchRow(0, 5, 20, 1.0, 1.0)], prompts, examples=2)["categories"]
    shown = {name: [one["prompt_id"] for one in kind["examples"]] for name, kind in kinds.items()}
    assert shown == {"right": [1], "format_only": [], "answer_only": [], "neither": [0, 2], "not_graded": [4]}
    assert kinds["not_graded"]["examples"][0] == {
        "prompt_id": 4,
        "prompt": "question 4",
        "ground_truth": "answer 4",
        "response": "text",
        "tokens": 4,
        "finish_reason": "stop",
        "failure": "the reward function raised",
    }
