"""An asynchronous run that repeats the arrivals of another one ends with its bytes, however long everything takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer
from harness.results import load_run
from harness.run.arrivals import recorded_arrivals
from harness.run.experiment import run_scenario
from harness.run.inprocess import InProcessGenerator, InProcessLearner, InProcessParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.run.test_resume_run import SCENARIO, rows, standing_in, unseen, write_scenario

ASYNCHRONOUS = SCENARIO.replace(
    "checkpoint: {every: 2}", "max_lag: 1\nlag_control: drop\nplacement: {colocated: false}"
)


class Late:
    """A part whose calls of one name take longer."""

    def __init__(self, part: Any, name: str, seconds: float) -> None:
        self._part, self._name, self._seconds = part, name, seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name != self._name:
            return found

        async def late(*arguments: Any) -> Any:
            await asyncio.sleep(self._seconds)
            return await found(*arguments)

        return late


def run(scenario: Scenario, out: Path, generate_s: float, update_s: float, token_s: float = 0.0) -> Path:
    def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> InProcessParts:
        def dawdles() -> bool:  # asked before each token
            time.sleep(token_s)
            return should_stop()

        parts = InProcessParts(resolved, tracer, dawdles)
        parts.learner = cast(InProcessLearner, Late(parts.learner, "update", update_s))
        parts.generators = (cast(InProcessGenerator, Late(parts.generators[0], "generate", generate_s)),)
        return parts

    assert run_scenario(scenario, out, True, build=build, show=unseen) == 0
    return next((out / scenario.name).iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("scenario")
    write_scenario(folder, ASYNCHRONOUS, "late.yaml")
    with standing_in(folder):
        yield folder


@pytest.fixture(scope="module")
def recorded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Learner that is slow, so that rollouts grow too old."""
    scenario = load_scenario("late.yaml", ["arrivals.record=true"])
    return run(scenario, tmp_path_factory.mktemp("out"), 0.0, 0.1)


def test_a_repeated_run_has_the_bytes_of_the_recorded_one(recorded: Path, tmp_path: Path) -> None:
    scenario = load_scenario("late.yaml", [f"arrivals.repeat={recorded}", "arrivals.record=true"])
    again = run(scenario, tmp_path, 0.1, 0.0)  # now the Generator is slow
    policies = [(each / "policy" / "model.safetensors").read_bytes() for each in (recorded, again)]
    assert policies[0] == policies[1]
    for name in ("groups.jsonl", "rollouts.jsonl", "arrivals.jsonl"):
        assert rows(again / name) == rows(recorded / name), name
    first, second = load_run(recorded).ledger, load_run(again).ledger
    assert first is not None
    assert second is not None
    assert first.dropped.rollouts > 0
    assert (first.dropped, first.trained) == (second.dropped, second.trained)


def test_weights_are_swapped_between_the_same_two_tokens(folder: Path, tmp_path: Path) -> None:
    settings = ["lag_control=in_flight", "replay=null", "epochs_per_batch=1", "steps=6", "arrivals.record=true"]
    for token_s in (0.02, 0.1, 0.5):  # until the Learner's weights come while an order is sampled
        recorded = run(load_scenario("late.yaml", settings), tmp_path / f"recorded{token_s}", 0.0, 0.0, token_s)
        arrivals = load_run(recorded).arrivals()
        if any(len(arrival.swaps) > 1 for arrival in arrivals):
            break
    else:
        pytest.fail("no weights came while an order was sampled")
    settings.append(f"arrivals.repeat={recorded}")
    again = run(load_scenario("late.yaml", settings), tmp_path / "again", 0.0, 0.1)
    policies = [(each / "policy" / "model.safetensors").read_bytes() for each in (recorded, again)]
    assert policies[0] == policies[1]
    assert load_run(again).arrivals() == arrivals
    assert rows(again / "groups.jsonl") == rows(recorded / "groups.jsonl")


def test_a_run_of_another_scenario_is_refused_by_its_keys(recorded: Path) -> None:
    def refused(*overrides: str) -> str:
        with pytest.raises(UserError) as raised:
            recorded_arrivals(load_scenario("late.yaml", [f"arrivals.repeat={recorded}", *overrides]))
        return raised.value.what

    assert "max_lag (was 1, is 2)" in refused("max_lag=2")
    assert "8 training steps, this one 9" in refused("steps=9")
    (recorded / "arrivals.jsonl").rename(recorded / "away.jsonl")
    assert "arrivals.jsonl" in refused()
    (recorded / "away.jsonl").rename(recorded / "arrivals.jsonl")
