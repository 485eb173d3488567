"""When two written answers are the same, a line for each rule; test_maths_judged_pairs has 2,322 pairs of them all."""

from collections.abc import Iterator

import pytest

from harness.tasks.maths.answers import agree_exactly, split_parts
from harness.tasks.maths.numbers import MAX_DIGITS, MAX_EXPONENT, read_number
from harness.tasks.maths.spelling import normalise
from harness.tasks.maths.symbolic import AnswerGrader

NEVER_S = 600.0  # a limit that no test reaches


@pytest.fixture(scope="module")
def grader() -> Iterator[AnswerGrader]:
    made = AnswerGrader(NEVER_S)
    yield made
    made.close()


# ---- told without algebra

SAME = [
    (" 18. ", "18", "spaces and a full stop"),
    ("**18**", "18", "bold in Markdown"),
    ("$18.00", "18", "money with cents"),
    ("-$5", "-5", "money owed"),
    (r"24\text{ m}^3", "24", "a unit of one letter, behind a space"),
    ("60 km/h", "60", "a unit with a slash"),
    ("5 m", "5 meters", "a unit by two names"),
    ("12 red marbles", "12 marbles", "one noun is shared"),
    (r"\$7 per pound", "7 dollars per lb", "a price"),
    ("5 million", "5,000,000", "5 * 10**6"),
    ("twenty-one", "21", "a number by its name"),
    (r"0.1\overline{6}", r"\frac16", "(16 - 1)/90 = 1/6"),
    ("0.1666...", "1/6", "the last digit repeats"),
    (r"-1 < x \le 2", "(-1,2]", "an inequality and an interval"),
    (r"\mathbb{R}", "all real numbers", "all of them"),
    ("(201)_5", "201_5", "brackets around the digits"),
    ("The answer is 18.", "18", "a lead-in"),
    (r"10,\!000", "10000", "thousands in LaTeX"),
    ("\u22125", "-5", "the minus sign of Unicode"),
    (r"-2\frac14", "-2.25", "-(2 + 1/4) = -2.25"),
    (r"1.5 \times 10^{3}", "1500", "1.5 * 1000"),
    (r"50\%", "50", "a percent sign left out"),
    ("0.5", r"50\%", "50 / 100 = 0.5"),
    ("90°", r"90^{\circ}", "degrees"),
    ("0.6666667", r"\frac{2}{3}", "seven digits of 2/3, rounded up"),
    ("(1,2)", r"\left( 1, 2 \right)", "a point"),
    ("2, 1", "1,2", "a list has no order"),
    (r"\{1,2\}", "2,1", "braces may be left out"),
    (r"(-\infty,2]\cup(3,\infty)", r"(-\infty, 2] \cup (3, ∞)", "infinity as one character"),
    ("x < 2", "2 > x", "an inequality turned round"),
    ("35km", "35 kilometers", "a unit without a space"),
    ("75¢", "75 cents", "currency behind"),
    ("20 degrees celsius", "20 degrees", "a scale that is left out"),
    ("9 square units", "9 cm^2", "a squared unit of no name"),
    ("(02A)_{16}", "2a_{16}", "zeros in front of a numeral"),
    ("11 base two", "11_2", "a base in words"),
    ("x=1 or x=2", "2, 1", "named values"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "spaces in a matrix"),
]
OTHER = [
    ("", "18", "nothing"),
    ("-18", "18", "the sign"),
    ("18.000001", "18", "a whole number is exact"),
    ("1,00", "100", "no thousands: a list of 1 and 00"),
    ("0.333334", "1/3", "the last digit"),
    ("50%", "5", "neither 50 nor 0.5"),
    (r"18 \text{ or } 19", "18", "two answers for one"),
    ("1, 1, 2", "1, 2, 2", "counted"),
    ("(1,2)", "(2,1)", "a point has an order"),
    ("[0,1)", "[0,1]", "half open and closed"),
    ("listen", "silent", "the same letters: algebra would see equal products"),
    ("5 km", "5 m", "another unit"),
    ("5 apples", "5 pears", "another noun"),
    ("0.12...", "12/99", "nothing repeats"),
    ("9 lb", "£9", "weight and money"),
    (r"3\sqrt{2}\text{ cm}", r"3\sqrt{2}\text{ m}", "another unit behind a root"),
    ("20°C", "20°F", "another scale"),
    ("3:00 a.m.", "3:00 p.m.", "another half of the day"),
    (r"\{4,5\}", "(4,5)", "a set and a point"),
    ("(A) or (B)", "A", "two choices for one"),
]


@pytest.mark.parametrize(("pairs", "agree"), [(SAME, True), (OTHER, False)], ids=["same", "other"])
def test_told_without_algebra(pairs: list[tuple[str, str, str]], agree: bool) -> None:
    both_ways = [*pairs, *((truth, answer, why) for answer, truth, why in pairs)]
    assert [pair for pair in both_ways if agree_exactly(*pair[:2]) is not agree] == []


# ---- told by algebra

EQUAL_BY_ALGEBRA = [
    ("(x+1)^2", "x^2+2x+1", "binomial theorem"),
    ("x**2 + 2*x + 1", "(x+1)^2", "as programs write it"),
    ("sin(x)", r"\sin x", "as programs write it"),
    (r"\sqrt{8}", r"2\sqrt{2}", "8 = 4 * 2"),
    ("sqrt(8)", r"2\sqrt2", "8 = 4 * 2"),
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}", "1/3**0.5 = 3**0.5/3"),
    ("2^{10}", "1024", "2**10"),
    ("5!", "120", "1*2*3*4*5"),
    (r"\binom{5}{2}", "10", "5*4/2"),
    (r"\log_2 8", "3", "2**3 = 8"),
    (r"\cos 60^\circ", "1/2", "half of an equilateral triangle"),
    (r"\sin\frac{\pi}{6}", "0.5", "the same in radians"),
    ("2*pi", r"2\pi", "as programs write it"),
    ("3+4i", "4i+3", "the order of a sum"),
    (r"\frac{1}{i}", "-i", "1/i = -i"),
    ("(2+3i)(2-3i)", "13", "4 + 9"),
    ("a + b = 12", "12", "a value with its name"),
    (r"41\frac{2}{3}\pi", r"\frac{125\pi}{3}", "a mixed number, no product"),
    (r"\sqrt{8} \text{ cm}, 1", r"2\sqrt{2}, 1\text{ cm}", "units of the parts"),
    ("y = 2x + 1", "y = 1 + 2x", "the order of a sum"),
    (r"(\sqrt{4}, 3)", "(2, 3)", "one coordinate needs algebra"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt2, 1-\sqrt2", "both signs"),
    (r"\frac{x+1}{2}", "(x+1)/2", "another fraction bar"),
    (r"\begin{pmatrix}1/2\\2\end{pmatrix}", r"\begin{pmatrix}0.5\\2\end{pmatrix}", "equal entries"),
    ("16 - 3 - 4", "9", "worked out"),
]
UNEQUAL_BY_ALGEBRA = [
    ("5 " + "a" * 61, "5", "no unit is so long"),
    ("2 hours 30 minutes", "2", "two units"),
    ("7 dozen", "7", "a word that multiplies"),
    ("x>3", "y>3", "another variable"),
    ("1<x>3", "(1,3)", "no chain"),
    ("5 6", "56", "two numbers"),
    (r"\cos 60", r"\cos 60^\circ", "radians and degrees"),
    ("(x+1)^2", "x^2+1", "2x is missing"),
    (r"\sqrt{9}", r"2\sqrt{2}", "9 is not 8"),
    ("2x", "2", "a product, not a unit"),
    (r"2\pi h", r"2\pi", "a product, not a unit"),
    ("5m", "5", "a product, not a unit"),
    ("9 squared", "9", "81 is not 9"),
    ("9 cubed", "9", "729 is not 9"),
    ("2x = 10", "10", "x is 5"),
    ("x^2 = 7", "7", "x is a root of 7"),
    ("201_5 + 1", "201_7 + 1", "algebra ignores the base, so it is not asked"),
    ("2xy", "2", "a product, not a unit"),
    ("x", "y", "another variable"),
    ("x > 2", "x < 2", "the other side"),
    (r"\infty", "5", "no number"),
    ("1/0", "0", "no number"),
    (r"72 \lor 73", "72", "two answers for one"),
    ("half of 72", "72", "a word that changes the number"),
    ("She sold 15 clips.", "72", "prose"),
    ("72=73", "72", "a false equation"),
    (r"\{1, 2\}", r"\{1, \sqrt{3}\}", "another set"),
]


@pytest.mark.parametrize(
    ("pairs", "agree"), [(EQUAL_BY_ALGEBRA, True), (UNEQUAL_BY_ALGEBRA, False)], ids=["equal", "unequal"]
)
def test_told_by_algebra_alone(grader: AnswerGrader, pairs: list[tuple[str, str, str]], agree: bool) -> None:
    assert [pair for pair in pairs if agree_exactly(*pair[:2]) is not None] == []
    assert [pair for pair in pairs if grader(*pair[:2]) is not agree] == []


# ---- numbers

DIVIDED_BY_ZERO = ["1/0", r"\frac{1}{0}", "1/0.0"]
TOO_LARGE = ["9" * (MAX_DIGITS + 1), f"1e{MAX_EXPONENT + 1}", "1e9999", rf"1\times10^{{{MAX_EXPONENT + 1}}}"]
NO_NUMBER = ["", "-", ".", "1.2.3", "1,23", "12 34", "0x10", "1e", "nan", "inf", "1_000", "१२", "2 x", "3d 5", "7 ab"]


def test_what_is_not_read_as_a_number() -> None:
    assert [text for text in DIVIDED_BY_ZERO + TOO_LARGE + NO_NUMBER if read_number(text) is not None] == []


def test_the_largest_numbers_are_exact() -> None:
    largest, smallest = read_number("9" * MAX_DIGITS), read_number(f"1e-{MAX_EXPONENT}")
    assert largest is not None
    assert smallest is not None
    assert (largest.value, smallest.value * 10**MAX_EXPONENT) == (10**MAX_DIGITS - 1, 1)


def test_a_long_answer_is_wrong_unread() -> None:
    assert agree_exactly("1" * 1000, "1" * 1000) is True
    assert agree_exactly("1" * 1001, "1" * 1001) is False


# ---- parts

LISTS = [
    ("(1, 2)", "()", ("1", "2")),
    (r"\{1, \{2, 3\}\}", "{}", ("1", r"\{2, 3\}")),
    ("(1,2),(3,4)", "", ("(1,2)", "(3,4)")),
    (r"\frac{1,2}{3}, 4", "", (r"\frac{1,2}{3}", "4")),
]
NO_LISTS = ["1", "(1)", "1,,2", ",", "(,)", "((1,2)", ", ".join("1" * 31)]


def test_lists_are_split_at_their_own_commas() -> None:
    assert [split_parts(text) for text, _, _ in LISTS] == [(brackets, parts) for _, brackets, parts in LISTS]
    assert [text for text in NO_LISTS if split_parts(text) is not None] == []


def test_normalising_twice_changes_nothing() -> None:
    for answer, truth, _ in SAME + OTHER + EQUAL_BY_ALGEBRA + UNEQUAL_BY_ALGEBRA:
        for text in (normalise(answer), normalise(truth)):
            assert normalise(text) == text
