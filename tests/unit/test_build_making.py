"""What is refused before any part is made."""

import pytest

from harness.build.making import check_fits, make_task
from harness.build.table import Policy
from harness.errors import UserError
from harness.scenario import load_scenario


class Letters:
    """One token for each letter of a prompt."""

    def encode(self, text: str, **options: object) -> list[int]:
        return [ord(letter) for letter in text]


def check(model_context: int | None, *settings: str) -> None:
    scenario = load_scenario("quickstart", ["engine.type=vllm", "sampling.max_tokens=32", *settings])
    check_fits(scenario, make_task(scenario), Policy(None, Letters(), model_context))


def test_prompts_must_fit_the_engines_context_where_it_is_the_smaller_one() -> None:
    check(512)
    check(None)
    check(512, "engine.context=400")
    with pytest.raises(UserError, match=r"more than engine\.context of 64\n  fix: .*, or raise engine\.context$"):
        check(512, "engine.context=64")
    with pytest.raises(UserError, match=r"more than engine\.context of 64"):
        check(None, "engine.context=64")
    with pytest.raises(UserError, match=r"more than the model's context of 60"):
        check(60, "engine.context=64")
