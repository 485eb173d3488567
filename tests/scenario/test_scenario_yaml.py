"""The YAML reader: what scalars mean, where values stand, what is refused."""

import math

import pytest

from harness.core.errors import UserError
from harness.scenario.tree import parse_document, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("3E4", 30000.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("off", "off"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("'1e-5'", "1e-5"),
        ("[0.9, 1]", [0.9, 1]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    found = parse_yaml(text, "here")
    assert found == value
    assert type(found) is type(value)


def test_infinity_and_nan_are_read_as_numbers():
    assert parse_yaml("[.inf, -.INF]", "here") == [math.inf, -math.inf]
    assert math.isnan(parse_yaml(".nan", "here"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("9" * 5000, "has 5000 characters, must have at most 64"),
        ("0x" + "f" * 5000, "has 5002 characters, must have at most 64"),
        ("1" + "0" * 40, f"the number 1{'0' * 40} is beyond 1e+30"),
        ("-1e31", "the number -1e31 is beyond 1e+30"),
        ("1e400", "the number 1e400 is beyond 1e+30"),
    ],
)
def test_numbers_have_bounds(text, what):
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "here")
    assert what in caught.value.what
    assert caught.value.where == "here, line 1"
    assert parse_yaml("1e30", "here") == 1e30


@pytest.mark.parametrize(
    ("text", "said"), [('"a\\0b"', "U+0000"), ('"\\ud800"', "invalid Unicode character"), ('{"a\\0": 1}', "U+0000")]
)
def test_what_no_file_or_command_can_take_is_no_text(text, said):
    with pytest.raises(UserError) as caught:
        parse_yaml(f"\n\n{text}", "here")
    assert said in caught.value.what
    assert caught.value.where.startswith("here, line 3")


def test_every_value_knows_its_line():
    tree = parse_document(
        "steps: 4\nloss:\n  kl:\n    coefficient: 1\nsampling:\n  stop:\n    - a\n    - b\n", "s.yaml"
    )
    assert tree.origins == {
        ("steps",): "s.yaml, line 1",
        ("loss",): "s.yaml, line 2",
        ("loss", "kl"): "s.yaml, line 3",
        ("loss", "kl", "coefficient"): "s.yaml, line 4",
        ("sampling",): "s.yaml, line 5",
        ("sampling", "stop"): "s.yaml, line 6",
        ("sampling", "stop", 0): "s.yaml, line 7",
        ("sampling", "stop", 1): "s.yaml, line 8",
    }


def test_keys_are_always_text():
    assert parse_document("arms:\n  1: {}\n  on: {}\n  null: {}\n", "s.yaml").data == {
        "arms": {"1": {}, "on": {}, "null": {}}
    }


def test_keys_written_twice_are_all_reported_with_both_lines():
    tree = parse_document("steps: 1\nsteps: 2\nloss:\n  type: a\n  type: b\n", "s.yaml")
    assert [(problem.what, problem.where) for problem in tree.problems] == [
        ("`steps` is written twice (first: s.yaml, line 1)", "s.yaml, line 2"),
        ("`loss.type` is written twice (first: s.yaml, line 4)", "s.yaml, line 5"),
    ]


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("a: [1, 2\nb: 3\n", "YAML syntax error: while parsing a flow sequence", "s.yaml, line 2, column 2"),
        ("a:\n\tb: 1\n", "cannot start any token", "s.yaml, line 2, column 1"),
        ('a: "open\n', "while scanning a quoted scalar", "s.yaml, line 2, column 1"),
        ("a: 1\n--- \nb: 2\n", "expected a single document", "s.yaml, line 2, column 1"),
        ("a: *b\n", "undefined alias", "s.yaml, line 1, column 4"),
        ("a: \x01\n", "YAML syntax error", "s.yaml"),
        ("a: !!python/name:os.system x\n", "tag tag:yaml.org,2002:python/name:os.system is not", "s.yaml, line 1"),
        ("a: &x [*x]\n", "an alias contains itself", "s.yaml, line 1"),
        ("[a, b]: 1\n", "a key must be one word", "s.yaml, line 1"),
        ("", "found nothing: the file is empty", "s.yaml"),
        ("# only a comment\n", "found nothing: the file is empty", "s.yaml"),
        ("- 1\n", "a scenario is a mapping of `key: value` lines, found the list [1]", "s.yaml"),
        ("steps:60\n", "a scenario is a mapping of `key: value` lines, found text 'steps:60'", "s.yaml"),
    ],
)
def test_what_is_no_scenario_is_refused_with_its_place(text, what, where):
    with pytest.raises(UserError) as caught:
        parse_document(text, "s.yaml")
    assert what in caught.value.what
    assert caught.value.where == where
    assert caught.value.fix


@pytest.mark.parametrize("levels", [33, 100_000])
def test_levels_have_a_bound(levels):
    with pytest.raises(UserError, match="nested more than 32 deep") as caught:
        parse_document("\na: " + "[" * levels + "]" * levels, "s.yaml")
    assert caught.value.where == "s.yaml, line 2"
    parse_document("a: " + "[" * 31 + "]" * 31, "s.yaml")


def test_keys_and_values_have_a_bound():
    with pytest.raises(UserError, match="keys and values are more than 20,000") as caught:
        parse_document("".join(f"k{n}: 1\n" for n in range(20_000)), "s.yaml")
    assert caught.value.where == "s.yaml, line 10000"  # the mapping is one value, each line two


def test_aliases_give_equal_values():
    assert parse_document("a: &x {b: 1}\nc: *x\n", "s.yaml").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_aliases_repeat_a_bounded_number_of_values():
    """Nine levels of ten aliases each would make 10^9 values of 430 bytes."""
    laughs = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    with pytest.raises(UserError, match="aliases repeat more than 10,000 values") as caught:
        parse_document(laughs, "s.yaml")
    assert caught.value.where.startswith("s.yaml, line ")
    with pytest.raises(UserError, match="aliases repeat"):
        parse_yaml(laughs, "--set")


def test_the_bound_counts_what_aliases_repeat_and_nothing_else():
    plain = f"a: [{', '.join(['1'] * 15_000)}]\n"
    assert len(parse_document(plain, "s.yaml").data["a"]) == 15_000
    arms = "base: &base {steps: 3, loss: {k: [1, 2]}}\n" + "".join(f"arm{n}: *base\n" for n in range(1666))  # 6 each
    assert parse_document(arms, "s.yaml").data["arm1665"] == {"steps": 3, "loss": {"k": [1, 2]}}
    with pytest.raises(UserError, match="aliases repeat"):
        parse_document(arms + "one: *base\n", "s.yaml")
