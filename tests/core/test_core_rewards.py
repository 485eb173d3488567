"""Which values are rewards, taken alike wherever they are taken."""

import math
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.core.rewards import reward_number, rewards_differ
from harness.grpo import compute_group_normalized_rewards
from harness.settings.task import RewardFunctionSettings
from harness.tasks.rewards import UserReward
from harness.tasks.scoring import RewardFailed, checked

TAKEN = {
    1.0: [1, True, np.bool_(True), np.array(True), torch.tensor(True)],
    0.5: [0.5, np.float16(0.5), torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)],
    0.25: [np.array(0.25), Fraction(1, 4)],
    0.75: [torch.tensor(0.75)],
    0.125: [Decimal("0.125")],
    2.0: [torch.tensor(2)],
    -3.0: [np.int64(-3)],
    0.1: [np.float64(0.1)],
    0.10000000149011612: [np.float32(0.1)],
    1e20: [10**20],
}
REFUSED = {
    "no numbers": [None, "1.0", b"1", 1j, np.complex64(1), torch.tensor(1j), np.array("1"), lambda: 1.0],
    "not finite": [math.nan, math.inf, np.float32("nan"), torch.tensor(-math.inf), 10**400, Fraction(10**400, 3)],
    "decimals": [Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity")],
    "several": [[1.0], (1.0,), np.array([1.0]), torch.tensor([1.0]), np.zeros((1, 1)), SimpleNamespace(value=1.0)],
}


def ways(value, monkeypatch):
    """Every way in which a value may come as a reward; each returns the reward that is made of it."""
    module = SimpleNamespace(one=lambda response, truth: value, group=lambda responses, truth: [value] * len(responses))
    module.part = lambda response, truth: {"reward": value, "format_reward": value}
    monkeypatch.setitem(__import__("sys").modules, "reward_kinds", module)
    in_group = RewardFunctionSettings(function="reward_kinds:group", per="group")
    dict_of_three = {"reward": value, "format_reward": value, "answer_reward": value}
    yield lambda: UserReward("reward_kinds:one")("text", "")["reward"]
    yield lambda: UserReward("reward_kinds:part")("text", "")["format_reward"]
    yield lambda: UserReward([in_group])("text", "")["reward"]
    yield lambda: checked(dict_of_three)["answer_reward"]
    yield lambda: compute_group_normalized_rewards(lambda *_: dict_of_three, ["a"], ["b"], 1, 0.0, False)[2][
        "answer_reward_mean"
    ]


@pytest.mark.parametrize("number", TAKEN)
def test_numbers_are_taken_alike_wherever_they_are_taken(number, monkeypatch):
    for value in TAKEN[number]:
        assert type(reward_number(value)) is float
        assert [way() for way in ways(value, monkeypatch)] == [number] * 5, repr(value)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_number_is_refused_alike(kind, monkeypatch):
    for value in REFUSED[kind]:
        for way in ways(value, monkeypatch):
            with pytest.raises((ValueError, RewardFailed)):
                way()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("per", ["response", "group"])
def test_an_async_function_is_refused_as_one(per, monkeypatch):
    async def late(response, truth):
        return 1.0

    monkeypatch.setitem(__import__("sys").modules, "reward_kinds", SimpleNamespace(late=late))
    with pytest.raises(ValueError, match=r"reward_kinds:late returned a coroutine: it is async"):
        UserReward([RewardFunctionSettings(function="reward_kinds:late", per=per)])("text", "")


@pytest.mark.parametrize(
    ("low", "high", "differ"),
    [
        (0.3, 0.1 + 0.2, False),
        (0.0, 0.1 + 0.2 - 0.3, False),
        (0.7999999999999999, 0.8, False),
        (-0.3 - 1e-16, -0.3, False),
        (0.0, 1e-14, True),
        (100.1, 100.1000076, True),  # a bit of float32
        (1e15, 1e15 + 4, True),
        (-1e308, 1e308, True),
        (math.nan, 1.0, True),
    ],
)
def test_rounding_of_a_sum_is_no_difference(low, high, differ):
    assert rewards_differ(low, high) is differ
