"""What is taken off a value, and which two units are the same; numbers in their rarer spellings."""

import pytest

from harness.tasks.maths.intervals import as_intervals
from harness.tasks.maths.numbers import read_based, with_digits_for_a_word, with_fractions_for_repeating_decimals
from harness.tasks.maths.units import DEGREE, Factor, Unit, read_unit, same_unit, take_off_unit


def unit(noun: str, power: int = 1) -> Unit:
    return Unit(Factor(frozenset({noun}), power))


@pytest.mark.parametrize(
    ("text", "value", "taken"),
    [
        ("5", "5", None),
        ("5 km", "5", unit("kilometer")),
        ("35km", "35", unit("kilometer")),
        ("9 square inches", "9", unit("inch", 2)),
        ("9 in^2", "9", unit("inch", 2)),
        ("64 units cubed", "64", unit("unit", 3)),
        (r"3\sqrt{13} cm", r"3\sqrt{13}", unit("centimeter")),
        (r"36\pi cubic feet", r"36\pi", unit("foot", 3)),
        ("(3, 4) cm", "(3, 4)", unit("centimeter")),
        ("-$5", "-5", unit("dollar")),
        ("€20", "20", unit("euro")),
        ("75¢", "75", unit("cent")),
        ("$3 million", r"3\times 10^{6}", unit("dollar")),
        (f"90{DEGREE}", "90", unit("degree")),
        ("50%", "50%", unit("percent")),
        ("5 times as many", "5", unit("times")),
        ("60 mph", "60", Unit(Factor(frozenset({"mile"}), 1), (Factor(frozenset({"hour"}), 1),))),
        ("60 per hour", "60", Unit(None, (Factor(frozenset({"hour"}), 1),))),
    ],
)
def test_what_is_taken_off(text: str, value: str, taken: Unit | None) -> None:
    assert take_off_unit(text) == (value, taken)


NO_UNIT_BEHIND_A_VALUE = [
    *("5m", "2x", "9 squared", "5 or 6", "12 in 5", "7 dozen", "6, 8 inches", r"2\pi h", r"\pi r", "Tuesday", "x cm"),
    *("2 hours 30 minutes", "3 ab", "5 one", "5 half", "5 times 3", "5 \u4e2a", "5 " + "a" * 61),
]


@pytest.mark.parametrize("text", NO_UNIT_BEHIND_A_VALUE)
def test_what_stays_whole(text: str) -> None:
    assert take_off_unit(text) == (text, None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("pounds", "lbs", True),
        ("pounds", "gbp", True),
        ("lbs", "gbp", False),
        ("red marbles", "marbles", True),
        ("apples", "pears", False),
        ("degrees celsius", "degrees", True),
        ("degrees celsius", "degrees fahrenheit", False),
        ("per hour", "miles per hour", True),
        ("miles", "miles per hour", False),
        ("square units", "cm^2", True),
        ("square units", "cm^3", False),
    ],
)
def test_which_units_are_the_same(one: str, other: str, same: bool) -> None:
    assert read_unit(one) is not None
    assert read_unit(other) is not None
    assert same_unit(read_unit(one), read_unit(other)) is same
    assert same_unit(read_unit(other), read_unit(one)) is same
    assert same_unit(None, read_unit(one))


@pytest.mark.parametrize(
    ("decimal", "fraction"),
    [
        (r"0.\overline{3}", r"\frac{1}{3}"),  # 3/9
        (r"0.1\overline{6}", r"\frac{1}{6}"),  # (16 - 1)/90
        (r"2.\bar4", r"\frac{22}{9}"),  # (24 - 2)/9
        ("0.121212...", r"\frac{4}{33}"),  # 12/99
        ("0.12...", "0.12..."),
    ],
)
def test_repeating_decimals(decimal: str, fraction: str) -> None:
    assert with_fractions_for_repeating_decimals(decimal) == fraction


def test_numbers_by_name_and_numerals_with_a_base() -> None:
    assert with_digits_for_a_word("Twenty-one eggs") == "21 eggs"
    assert with_digits_for_a_word("one-third") == "one-third"
    assert [read_based(text) for text in ("201_5", "(02A)_{16}", "11 base two", "x_5", "201")] == [
        ("201", 5),
        ("2a", 16),
        ("11", 2),
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("given", "truth", "intervals"),
    [
        ("x>3", r"(3,\infty)", (r"(3,\infty)", r"(3,\infty)")),
        (r"2 > x \ge -1", r"-1 \le x < 2", ("[-1,2)", "[-1,2)")),
        ("x>3", "y>3", ("x>3", "y>3")),
        ("x>3", "3", ("x>3", "3")),
        ("1<x>3", "(1,3)", ("1<x>3", "(1,3)")),
    ],
)
def test_inequalities_become_intervals_where_both_can(given: str, truth: str, intervals: tuple[str, str]) -> None:
    assert as_intervals(given, truth) == intervals
