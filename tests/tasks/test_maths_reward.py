"""Where the answer is looked for, and the three rewards."""

import pickle
import time

import pytest

from harness.tasks.maths.extraction import MAX_ANSWER_CHARS, boxed_answer, stated_answer, tagged_answer
from harness.tasks.maths.reward import MathsReward, question_only_reward_fn, r1_zero_reward_fn
from harness.tasks.scoring import DirectRewards

RIGHT = {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}


def never() -> bool:
    return False


R1_ZERO = {
    1.0: [
        " 9*2 is 18 </think> <answer> 18 </answer>",
        "\n</think>\n\n<answer>\n18\n</answer>",
        r"</think> <answer>So it is \boxed{18}.</answer>",
        "</think> <answer>18</answer> <answer>19</answer>",
        "</think> <answer>18</answer></think> <answer>19</answer>",
        "<answer>19</answer> </think> <answer>18</answer>",
    ],
    0.0: [  # but in the format
        "</think> <answer>19</answer>",
        "</think> <answer></answer>",
        "</think> <answer><answer>18</answer>",
        "</think> <answer>18 or 19</answer>",
        "</think> <answer>19</answer> <answer>18</answer>",
    ],
    None: [
        *("", "18", r"\boxed{18}", "<answer>18</answer>", "</think> 18", "</think> <answer>18"),
        *("</think> so <answer>18</answer>", "</THINK> <ANSWER>18</ANSWER>", "</answer> </think> <answer>18"),
    ],
}
QUESTION_ONLY = {
    1.0: [
        r"So it is $\boxed{18}$.",
        r"\boxed{17}? No: \boxed{18}",
        r"It is \boxed 18",
        "9 eggs, 2 dollars each.\n#### 18",
        "The answer is 18. I hope that 20 people agree.",
        *("**Answer:** 18", "The answer is **18**.", "**Answer: 18**", "The answer is *18*.", "__Answer__: $18"),
        "The answer is **18 sq. cm**. So it is.",
        "First 16 - 7 = 9.\nShe makes 9 * 2 = $18 a day.",
    ],
    0.0: [
        *("The answer is **18** or **19**.", "The answer is 2**18.", "The answer is 3*6*18*2.", "The answer is 19."),
        *(r"The answer is 18, or rather \boxed{19}", "It might be 18 or 19"),
    ],
    None: ["18\nI do not know.", r"The answer is 18: \boxed{18", ""],
}


@pytest.mark.parametrize(
    ("reward_fn", "responses"), [(r1_zero_reward_fn, R1_ZERO), (question_only_reward_fn, QUESTION_ONLY)]
)
def test_where_the_answer_is_looked_for(reward_fn, responses: dict[float | None, list[str]]) -> None:
    """By their reward; None: not in the format."""
    wrong = []
    for reward, texts in responses.items():
        expected = {"reward": reward or 0.0, "format_reward": float(reward is not None), "answer_reward": reward or 0.0}
        wrong += [text for text in texts if reward_fn(text, "18") != expected]
    assert wrong == []


BOXES = [
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed {x} and \fbox{y}", "y"),
    (r"$\boxed 5$", "5"),
    (r"\boxed{a} then \boxed{b", None),
    (r"\boxedfoo{1}", None),
    (r"\boxed", None),
    (r"\boxed{}", ""),
    ("no box", None),
    (r"\boxed{" + "1" * MAX_ANSWER_CHARS + "}", "1" * MAX_ANSWER_CHARS),
    (r"\boxed{" + "1" * (MAX_ANSWER_CHARS + 1) + "}", None),
]


def test_the_last_box() -> None:
    assert [(text, boxed_answer(text)) for text, _ in BOXES] == BOXES


LONG = [
    r"\boxed{" * 150_000,
    "{" * 1_000_000,
    "</think>" * 120_000,
    "<answer>" * 120_000,
    "</think>" + " " * 1_000_000,
    ("</think>" + " " * 50) * 20_000,
    "answer is " * 100_000,
    "1," * 500_000,
    "\\" * 1_000_000,
    "####" * 250_000,
]


def test_a_megabyte_is_searched_in_one_pass() -> None:
    """Twice the text costs about twice the time, not four times; the least of some turns is compared."""

    def seconds(repeated: str) -> float:
        turns = []
        for _ in range(4):
            began = time.process_time()
            for look in (tagged_answer, boxed_answer, stated_answer):
                look(repeated)
            turns.append(time.process_time() - began)
        return min(turns)

    assert [text[:12] for text in LONG if seconds(text * 2) >= 3 * seconds(text) + 0.05] == []


def test_closing_ends_the_process_the_next_answer_starts_another_and_none_is_pickled() -> None:
    reward = MathsReward("r1_zero")
    reward.grader.symbolic.timeout_s = 600.0
    rewards = DirectRewards(reward, never)
    assert rewards([r"</think> <answer>\sqrt{4}</answer>"], "2") == [RIGHT]
    rewards.close()
    rewards.close()
    assert rewards([r"</think> <answer>\sqrt{9}</answer>"], "3") == [RIGHT]
    copied = pickle.loads(pickle.dumps(reward))
    assert (reward.grader.symbolic.counts.started, copied.grader.symbolic.counts.started) == (2, 0)
    assert copied("</think> <answer>2</answer>", "2") == RIGHT
    rewards.close()
