"""The Learner's process is killed in a run of Ray's parts, and made again: the policy ends as if it had never died."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.core.trace import RecordingTracer
from harness.results import load_run
from harness.run.experiment import run_scenario
from harness.run.factory import PartsFactory
from harness.run.parts import RunningParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.e2e.conftest import Traces
from tests.e2e.test_resume_killed import ACTORS, RANKS, run_folder
from tests.run.test_resume_run import SCENARIO, rows, unseen, write_scenario

pytestmark = pytest.mark.slow


@dataclass
class Kill:
    """Kills the process of a lane when a checkpoint of this step is there.

    Attributes:
        before, after: processes by lane, when the run began, and at its end.
    """

    lane: str
    step: int
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)

    def run(self, scenario: Scenario, out: Path, wait_until: Callable[..., None]) -> Path:
        """Make a run in which that happens; return its folder."""
        made: list[RunningParts] = []

        def strike() -> None:
            wait_until(lambda: list(out.glob(f"*/*/checkpoints/step_{self.step}")), f"checkpoint {self.step}")
            os.kill(self.before[self.lane], signal.SIGKILL)

        with PartsFactory() as factory:

            def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
                made.append(factory(resolved, tracer, should_stop))
                self.before = dict(made[0].processes())
                if self.lane:
                    threading.Thread(target=strike, daemon=True).start()
                return made[0]

            assert run_scenario(scenario, out, quiet=True, build=build, show=unseen) == 0
        self.after = dict(made[0].processes())
        return run_folder(out)


@pytest.mark.parametrize(
    ("more", "lane"),
    [
        pytest.param(ACTORS, "learner", id="one process"),
        pytest.param(RANKS, "learner/1", id="two ranks of FSDP2"),
    ],
)
def test_a_killed_learner_is_made_again(
    own_traces: Traces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Callable[..., None],
    more: str,
    lane: str,
) -> None:
    write_scenario(tmp_path, SCENARIO + more.replace("faults: {", "faults: {learner_restarts: 1, "))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    scenario, kill = load_scenario("resumed.yaml"), Kill(lane, 4)
    whole = Kill("", 0).run(scenario, tmp_path / "whole", wait_until)
    killed = kill.run(scenario, tmp_path / "killed", wait_until)
    policies = [(each / "policy" / "model.safetensors").read_bytes() for each in (killed, whole)]
    assert policies[0] == policies[1]
    for name in ("groups.jsonl", "rollouts.jsonl"):
        assert rows(killed / name) == rows(whole / name)
    run = load_run(killed)
    assert (run.status, [row.step for row in run.steps]) == ("completed", list(range(8)))
    assert [(each.start_step, each.cause) for each in run.manifest.segments] in (
        [(4, "learner died")],
        [(6, "learner died")],
    )
    lived_on = {each for each in kill.before if kill.before[each] == kill.after[each]}
    assert lived_on == {each for each in kill.before if not each.startswith("learner")}
    own_traces.assert_nothing_left()
