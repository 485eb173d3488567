"""A run that goes on: which checkpoint, by which scenario, and what is set to that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harness.core.checkpoints import Checkpoint, Refused, newest_whole
from harness.core.errors import UserError
from harness.loop.state import LoopState
from harness.loop.state_files import read_state
from harness.results.anonymous import Scrubber
from harness.results.manifest import Manifest
from harness.results.reader import load_run, parse_settings
from harness.results.segments import Recorded, read_recorded
from harness.results.writer import CHECKPOINTS
from harness.run.checkpoints import StatefulLearner
from harness.run.parts import RunningParts
from harness.run.session import RunSession
from harness.scenario import Scenario, resolved_yaml

FREE = ("steps", "name", "description", "arrivals", "checkpoint", "trackers", "save_policy", "reward_target",
        "endpoint", "faults.stall_after_s", "faults.max_replacements")  # fmt: skip
"""Settings that may be others after a resume: what is sampled and learnt until then does not depend on them."""
SET_BY_STEPS = "optimizer.schedule", "optimizer.warmup_ratio"


@dataclass(frozen=True)
class Resume:
    """Where a run goes on.

    Attributes:
        folder: of the run.
        manifest: as the run left it.
        checkpoint: the newest one that is whole.
        refused: what was damaged on the way to it.
        state: of the loop; its groups have their data.
        recorded: what the recorder knew.
    """

    folder: Path
    manifest: Manifest
    checkpoint: Checkpoint
    refused: tuple[Refused, ...]
    state: LoopState
    recorded: Recorded

    async def take_up(self, parts: RunningParts, session: RunSession) -> LoopState:
        """Have the parts of a run, its recorder and its clock go on from here; return the state for the loop.

        Raises:
            UserError: the Learner cannot take over what was saved.
        """
        await cast(StatefulLearner, parts.learner).load_state(self.checkpoint.folder.resolve())
        session.arm.clock.go_on_from(self.recorded.clock_ns)
        session.recorder.goes_on(parts.lanes, self.recorded)
        refused = [f"checkpoint {each} (refused; the one before it is taken)" for each in self.refused]
        session.log_lines([*refused, f"goes on from {self.checkpoint.folder.name}"])
        return self.state.with_data(parts.handle_of)


def find_resume(folder: Path, scenario: Scenario) -> Resume:
    """Return where a run goes on.

    Args:
        folder: of the run.
        scenario: with which it is to go on.

    Raises:
        UserError: it is still running, has made all its steps, is of another scenario (with the keys), or has no
            checkpoint that is whole (with what is wrong with each).
    """
    run = load_run(folder)
    if run.status == "running":
        raise UserError("the run is not over: another process holds it", str(folder), "stop that process first")
    check_same(run.settings, scenario, folder)
    if scenario.arrivals.repeat is not None:
        what = "a run that repeats another one's arrivals cannot go on in the middle of them"
        raise UserError(what, "arrivals.repeat", "repeat it from its beginning")
    checkpoint, refused = newest_whole(folder / CHECKPOINTS)
    if checkpoint is None:
        what = "there is no checkpoint to go on from"
        if refused:
            what = "no checkpoint is whole: " + "; ".join(map(str, refused))
        raise UserError(what, str(folder / CHECKPOINTS), "run the scenario anew, with checkpoint.every set")
    if run.status == "completed" and scenario.steps <= run.settings["steps"]:
        fix = f"raise them: --set steps={2 * scenario.steps}"
        raise UserError(f"the run has made all its {scenario.steps} training steps", str(folder), fix)
    state, recorded = read_state(checkpoint.folder), read_recorded(checkpoint.folder)
    return Resume(folder, run.manifest, checkpoint, refused, state, recorded)


def check_same(saved: Mapping[str, Any], scenario: Scenario, folder: Path) -> None:
    """Check that a scenario samples and learns what the run of a folder did.

    Raises:
        UserError: with the keys that are others, and both values.
    """
    now = parse_settings(Scrubber.of_this_process().paths(resolved_yaml(scenario)))
    before, after = _flat(saved), _flat(now)
    differing = [
        key
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key) and not any(key == free or key.startswith(f"{free}.") for free in FREE)
    ]
    if before.get("steps") != after.get("steps"):
        constant = scenario.optimizer.schedule == "constant" and not scenario.optimizer.warmup_ratio
        differing += ["steps"] * (after["steps"] < before["steps"] or not constant)
    if differing:
        told = ", ".join(f"{key} (was {before.get(key)}, is {after.get(key)})" for key in differing)
        more = f", on which {' and '.join(SET_BY_STEPS)} depend" if differing == ["steps"] else ""
        raise UserError(
            f"the run went by another scenario: {told}{more}", str(folder), "leave these as they were, or run anew"
        )


def _flat(settings: Any, key: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict) or not settings:
        return {key: settings}
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{key}.{name}" if key else str(name))
    return found
