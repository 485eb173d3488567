"""What is refused before any part is made."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from harness.core.errors import UserError
from harness.run.actors.parts import ActorParts
from harness.run.builders import Policy, check_fits, make_task, never
from harness.run.factory import PartsFactory
from harness.scenario import expand, load_scenario

NO_TRACER: Any = None  # nothing is measured


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


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_package_that_one_arm_lacks_is_told_before_another_arm_runs() -> None:
    arms = {variant.name: variant.scenario for variant in expand(load_scenario("rdt_nccl"))}
    factory = PartsFactory([[scenario] for scenario in arms.values()])
    with pytest.raises(UserError, match=r"transport\.type is nccl, and the package cupy is not installed"):
        factory(arms["object_store"], NO_TRACER, never)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_gpu_that_is_not_there_is_told_before_ray_starts() -> None:
    arms = {variant.name: variant.scenario for variant in expand(load_scenario("rdt_nccl"))}
    with pytest.raises(UserError, match="the scenario asks for a GPU"):
        ActorParts(arms["object_store"], NO_TRACER, never, lambda scenario: pytest.fail("Ray was asked for"))
