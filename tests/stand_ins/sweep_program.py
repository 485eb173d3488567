"""A sweep of simulated runs as a program of its own, to be killed: ``sweep_program.py SCENARIO OUT``.

The environment variable SWEEP_PLAN (JSON) says which seeds diverge, how often others fail (which is read from the
folders that were set aside), and which one does not get beyond its third step, until it is killed.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.core.errors import Diverged, HarnessError, Interrupted, RunStopped
from harness.core.trace import RecordingTracer
from harness.core.types import RolloutGroup, UpdateResult
from harness.run.engine import Tries
from harness.run.experiment import run_scenario
from harness.run.parts import RunningParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.parts import SimulatedLearner
from tests.stand_ins.simulated_parts import FREE, build_simulated_parts, simulated_learner

PLAN = json.loads(os.environ.get("SWEEP_PLAN", "{}"))


def failed_before(out: Path, seed: int) -> int:
    """How many attempts of a seed were set aside because they failed."""
    manifests = [json.loads(file.read_text()) for file in out.glob(f"*/*/.attempts/seed={seed}/*/manifest.json")]
    return sum(manifest["status"] == "failed" for manifest in manifests)


def build_with(out: Path) -> Callable[..., RunningParts]:
    """Parts whose Learner goes wrong as planned."""

    class Learner(SimulatedLearner):
        scenario: Scenario

        async def update(self, at: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
            seed = self.scenario.seed
            if at == 2 and seed in PLAN.get("diverges", []):
                raise Diverged("the loss is nan", at)
            if at == 2 and failed_before(out, seed) < PLAN.get("fails", {}).get(str(seed), 0):
                raise RunStopped("an actor died")
            if at == 2 and seed == PLAN.get("holds"):
                await asyncio.sleep(3600)
            return await super().update(at, groups)

    def build(scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = build_simulated_parts(scenario, tracer, should_stop)
        learner = simulated_learner(tracer, FREE, of=Learner)
        learner.scenario = scenario
        return replace(parts, learner=learner)

    return build


def main(scenario: str, out: str) -> int:
    """Run or continue the sweep, without pictures."""
    build = build_with(Path(out))
    try:
        show = lambda folder: print(f"shown {folder}")  # noqa: E731
        return run_scenario(load_scenario(scenario), Path(out), False, build, show, tries=Tries())
    except Interrupted as error:
        print(f"interrupted: {error}", file=sys.stderr)
        return 130
    except HarnessError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
