"""Lengths of simulated rollouts: pinned as engines pin them, or drawn from recorded groups, cut at the cap."""

from collections import Counter

import numpy as np
import pytest

from harness.core.errors import UserError
from harness.core.types import Purpose, WorkItem
from harness.engines.rng import pinned_lengths
from harness.scenario.schema import Scenario
from harness.simulate.lengths import UNKNOWN_PROMPT, hazard_below_cap, length_source
from harness.simulate.machine import Lengths
from tests.simulate.conftest import cost, made


def item(seed=11, prompts=(4, 5), group_size=3, purpose=Purpose.TRAIN):
    return WorkItem(purpose, 0, 0, prompts, group_size, seed)


def machine(*lengths):
    return made(cost("score", call=0.0), lengths=lengths)


def recorded(groups, cap=20, prompts=None, **more):
    prompts = prompts or tuple(range(30, 30 + len(groups)))
    return Lengths(task="keywords", model="small", cap=cap, prompts=prompts, groups=groups, **more)


def source(*lengths, model="small", allow=(), **sampling):
    return length_source(Scenario(sampling={"max_tokens": 20} | sampling), machine(*lengths), model, allow=allow)


def test_pinned_lengths_are_those_that_an_engine_draws():
    found = source(recorded(((5, 6),), prompts=(12,)), pinned_lengths=(4, 9)).groups(item())
    rows = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    drawn = pinned_lengths(11, rows, (4, 9)).tolist()
    assert found == ((12, tuple(drawn[:3])), (12, tuple(drawn[3:])))


def test_prompts_that_were_not_recorded_get_a_length_and_it_is_said():
    lengths = source(pinned_lengths=(7, 7))
    assert lengths.groups(item()) == ((UNKNOWN_PROMPT, (7, 7, 7)),) * 2
    assert lengths.said == ("no prompts of this task were recorded: they count 16 tokens each",)


def test_a_paced_engine_makes_eight_tokens_unless_the_cap_is_lower():
    paced = {"model": {"type": "paced"}, "engine": {"type": "paced"}}
    for cap, tokens in ((32, 8), (5, 5)):
        scenario = Scenario(**paced, sampling={"max_tokens": cap})
        assert length_source(scenario, machine(), "paced").groups(item())[0][1] == (tokens,) * 3


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        (((1, 2, 3), (11, 12, 13), (7, 8, 9)), 3),  # without replacement: each of the three once
        (((1, 2), (11, 12)), 5),  # more responses than a group has repeat its own
        (((4,), (11, 12, 13)), 3),  # groups of unequal size fill up with their own
    ],
)
def test_a_group_is_one_that_was_recorded_with_its_prompt(groups, size):
    found = [group for seed in range(20) for group in source(recorded(groups)).groups(item(seed, group_size=size))]
    assert {prompt for prompt, _ in found} == {30 + place for place in range(len(groups))}
    for prompt, lengths in found:
        own = groups[prompt - 30]
        assert (len(lengths), set(lengths)) == (size, set(own))
        assert sorted(lengths[: len(own)]) == list(own)


def test_the_same_seed_gives_the_same_lengths_whatever_else_differs():
    groups = tuple(tuple(range(first, first + 8)) for first in range(1, 9))
    one, other = source(recorded(groups)), source(recorded(groups), temperature=0.5)
    assert one.groups(item(3)) == other.groups(item(3)) == one.groups(item(3))
    assert one.groups(item(3)) != one.groups(item(4))


def test_the_cap_cuts_what_is_longer():
    groups = ((5, 10, 15, 20),)  # recorded under a cap of 20
    lengths = source(recorded(groups), max_tokens=12)
    found = Counter(
        length for seed in range(50) for _, row in lengths.groups(item(seed, group_size=4)) for length in row
    )
    assert found == {5: 100, 10: 100, 12: 200}  # 15 and 20 of each of the 100 groups are cut to 12
    assert lengths.said == ()


def test_above_the_recorded_cap_cut_responses_go_on_and_it_is_said():
    # Of 40 responses 10 end at 16, 17, 18 and 19 tokens each but one: see the hazard below.
    row = (16,) * 10 + (17,) * 10 + (18,) * 10 + (20,) * 10
    lengths = source(recorded((row,)), max_tokens=500)
    drawn = [length for seed in range(100) for _, rows in lengths.groups(item(seed, group_size=40)) for length in rows]
    longer = np.array([length for length in drawn if length > 18])
    # the hazard: a quarter of the cap, 5 tokens, from 15 on. 40 responses get there; 30 end; tokens sampled from 15 on:
    # 10 x 2 + 10 x 3 + 10 x 4 + 10 x 5 (15 to 19) = 140; 30 / 140
    assert hazard_below_cap(np.array(row), 20) == pytest.approx(30 / 140)
    assert len(longer) == 2000  # a quarter of 100 orders x 2 groups x 40
    assert longer.min() == 21
    # beyond 20 the rest is geometric with mean 140 / 30 = 4.67 and standard deviation sqrt(1 - h) / h = 4.14
    assert longer.mean() == pytest.approx(20 + 140 / 30, abs=5 * 4.14 / np.sqrt(2000))
    assert lengths.said[0].startswith("lengths: sampling.max_tokens 500 is above the recorded 20")


def test_where_nothing_ended_below_the_cap_responses_run_to_the_new_one():
    lengths = source(recorded(((20, 20),)), max_tokens=64)
    assert lengths.groups(item(group_size=2))[0][1] == (64, 64)


def test_the_best_fitting_recording_is_taken():
    small, course = recorded(((3, 3),)), recorded(((9, 9),)).model_copy(update={"model": "course"})
    evaluated = recorded(((6,),), purpose="evaluate")
    lengths = source(course, small, evaluated)
    assert lengths.groups(item(group_size=2))[0][1] == (3, 3)
    assert lengths.groups(item(group_size=1, purpose=Purpose.EVALUATE))[0][1] == (6,)
    assert source(course, small, evaluated, model="course").groups(item(group_size=2))[0][1] == (9, 9)
    assert lengths.said == ()
    assert source(course, model="tiny").said == ("lengths: those of the model course stand in for tiny",)
    assert source(evaluated).said == ("lengths: those of evaluations stand in for training",)


def test_a_task_without_lengths_is_refused_unless_another_may_stand_in():
    other = recorded(((3, 3),)).model_copy(update={"task": "maths"})
    with pytest.raises(UserError, match=r"no response lengths of the task keywords; it has maths") as refused:
        source(other)
    assert "pinned_lengths=[4,20]" in str(refused.value)
    lengths = source(other, allow={"task"})
    assert lengths.groups(item(group_size=2))[0][1] == (3, 3)
    assert "those of the task maths stand in for keywords" in lengths.said[0]
    with pytest.raises(UserError, match="it has none at all"):
        source()


def test_a_policy_that_begins_untrained_runs_to_the_cap_unless_its_own_lengths_are_known():
    untrained = Scenario(sampling={"max_tokens": 20}, model={"preset": "course", "warm_start": False})
    found = length_source(untrained, machine(recorded(((5, 6),), prompts=(12,))), "course")
    assert found.groups(item()) == ((12, (20, 20, 20)),) * 2
    assert found.said == ("lengths: course begins untrained, and its responses go on to the cap",)
    own = Lengths(task="keywords", model="course", cap=20, prompts=(12,), groups=((7, 7),))
    assert length_source(untrained, machine(own), "course").groups(item()) == ((12, (7, 7, 7)),) * 2
