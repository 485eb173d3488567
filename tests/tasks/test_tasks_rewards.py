"""A user's reward function: how it is found, what it may return, and what each bad one is told."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import UserError
from harness.tasks.jsonl import JsonlTask
from harness.tasks.rewards import UserReward

Write = Callable[[str], str]


def refused(path: str) -> UserError:
    with pytest.raises(UserError) as caught:
        UserReward(path)
    return caught.value


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("1", (1.0, 1.0, 1.0)),
        ("False", (0.0, 1.0, 0.0)),
        ("len(response) - len(ground_truth)", (3.0, 1.0, 3.0)),
        ("numpy.float32(0.1)", (float(np.float32(0.1)), 1.0, float(np.float32(0.1)))),
        ("{'reward': 0.5}", (0.5, 1.0, 0.5)),
        ("{'reward': 0.5, 'format_reward': 0}", (0.5, 0.0, 0.5)),
        ("{'reward': 0, 'format_reward': 1, 'answer_reward': 0.25}", (0.0, 1.0, 0.25)),
    ],
)
def test_numbers_and_dicts_become_three_floats(write_module: Write, value: str, parts: tuple[float, ...]) -> None:
    name = write_module(f"import numpy\ndef score(response, ground_truth):\n    return {value}\n")
    reward = UserReward(f"{name}:score")
    for of in (reward, pickle.loads(pickle.dumps(reward))):
        result = of("12345", "12")
        assert result == dict(zip(("reward", "format_reward", "answer_reward"), parts, strict=True))
        assert {type(part) for part in result.values()} == {float}


def test_function_in_a_package_of_the_current_folder(write_module: Write, tmp_path: Path) -> None:
    write_module("")
    (tmp_path / "own_package_for_test").mkdir()
    (tmp_path / "own_package_for_test" / "inner.py").write_text("def score(response, truth):\n    return 0.75\n")
    assert UserReward("own_package_for_test.inner:score")("", "")["reward"] == 0.75


def test_path_that_names_no_function_or_module_is_refused() -> None:
    for path in ("score", "module.score", ":score", "module:", "a/b:score", "module.py:score", ""):
        error = refused(path)
        assert error.what == f"the reward {path!r} does not name a function"
        assert "package.module:function" in str(error.fix)
    error = refused("no_such_package.reward:score")
    assert error.what == "the reward 'no_such_package.reward:score' cannot be imported: there is no such module"
    assert str(error.fix).endswith("run from the folder that holds no_such_package")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import no_such_dependency", "importing it raised ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("def score(:\n", "importing it raised SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3"),
    ],
)
def test_module_that_raises_is_named_with_its_line(write_module: Write, body: str, reason: str) -> None:
    name = write_module(body)
    error = refused(f"{name}:score")
    assert reason in error.what
    assert error.where == f"{name}.py:1"


def test_missing_function_gets_the_nearest_name_and_what_is_none_is_refused(write_module: Write) -> None:
    name = write_module("def score(response, ground_truth):\n    return 1.0\nnumber = 0.5\n")
    error = refused(f"{name}:scores")
    assert error.what.endswith(f"the module {name} has no 'scores'")
    assert error.fix == f"did you mean {name}:score?"
    assert refused(f"{name}:number").what.endswith("number is of type float, not a function")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("'1.0'", "returned '1.0', of type str, as its reward"),
        ("None", "returned None, of type NoneType, as its reward"),
        ("float('nan')", "returned nan, as its reward"),
        ("{'score': 1.0}", "returned {'score': 1.0}, which lacks the key 'reward'"),
        ("{'reward': 1.0, 'format': 1.0}", "whose key 'format' is none of reward, format_reward, answer_reward"),
        ("{'reward': 1.0, 'answer_reward': 'x'}", "returned 'x', of type str, as its answer_reward"),
    ],
)
def test_bad_value_is_named_with_the_function_and_what_is_expected(write_module: Write, value: str, says: str) -> None:
    name = write_module(f"def score(response, ground_truth):\n    return {value}\n")
    with pytest.raises(UserError) as caught:
        UserReward(f"{name}:score")("response", "truth")
    assert caught.value.what.startswith(f"the reward function {name}:score returned ")
    assert says in caught.value.what
    assert caught.value.what.endswith("expected a finite number, or a dict with the key 'reward' and a finite number")


@pytest.mark.parametrize(
    ("body", "raised"),
    [
        ("return int(ground_truth)", "ValueError: invalid literal for int() with base 10: 'seven'"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import sys; sys.exit()", "SystemExit"),
    ],
)
def test_exception_is_named_with_line_and_arguments(write_module: Write, body: str, raised: str) -> None:
    name = write_module(f"def score(response, ground_truth):\n    {body}\n")
    with pytest.raises(UserError) as caught:
        UserReward(f"{name}:score")("a response", "seven")
    assert f"raised {raised} for the response 'a response' and the ground truth 'seven'" in caught.value.what
    assert caught.value.where == f"{name}.py:2"


def test_wrong_number_of_arguments_is_told_the_signature(write_module: Write) -> None:
    name = write_module("def score(response):\n    return 1.0\n")
    with pytest.raises(UserError, match="takes 1 positional argument but 2 were given") as caught:
        UserReward(f"{name}:score")("a response", "truth")
    assert "fn(response: str, ground_truth: str)" in str(caught.value.fix)


def test_task_tries_its_reward_which_pickles_by_its_name_without_the_prompts(write_module: Write) -> None:
    name = write_module(
        "def bad(response, truth):\n    return response[0]\ndef score(response, truth):\n    return 0.5\n"
    )
    Path("p.jsonl").write_text('{"prompt": "first", "answer": "1"}\n{"prompt": "second", "answer": "2"}\n')
    with pytest.raises(UserError, match="raised IndexError: string index out of range for the response ''"):
        JsonlTask("p.jsonl", f"{name}:bad", validation_fraction=0.5)
    pickled = pickle.dumps(JsonlTask("p.jsonl", f"{name}:score", validation_fraction=0.5).reward)
    assert [text in pickled for text in (f"{name}:score".encode(), b"first", b"second")] == [True, False, False]
