"""What goes on: a run from its checkpoint, and an experiment of several runs with those that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, cast

from harness.core.checkpoints import Checkpoint, Refused, newest_whole
from harness.core.errors import UserError
from harness.loop.state import LoopState, with_data
from harness.loop.state_files import read_files
from harness.results.anonymous import Scrubber, safe_name
from harness.results.experiment_plan import EXPERIMENT, read_plan
from harness.results.manifest import Input, Manifest
from harness.results.reader import Run, flat_settings, load_run, parse_settings, read_manifest, read_settings
from harness.results.segments import Recorded, check_rows, read_recorded
from harness.results.writer import CHECKPOINTS
from harness.results.writer import MANIFEST as RUN_MANIFEST
from harness.results.writer import SCENARIO as SAVED
from harness.run.handles import LearnerHandle
from harness.run.inputs import PATHS, UNKNOWN, InputsNow, check_inputs, date_of_run, is_whole
from harness.run.interleaving import interleaving_of, points_of
from harness.run.parts import RunningParts
from harness.run.points import ASIDE, Point, read_points
from harness.run.session import RunSession
from harness.scenario.axes import expand
from harness.scenario.load import resolved_yaml
from harness.scenario.schema import Scenario
from harness.settings.loss import CLIP_RANGE, CLIPPED

FREE = ("description", "checkpoint", "trackers", "save_policy", "save_policy_every",
        "reward_target", "endpoint", "faults.stall_after_s", "faults.max_replacements",
        "max_failed_batches")  # fmt: skip
"""Settings that may be others after a resume: what is sampled and learnt until then does not depend on them."""
SPREAD = "placement.learner", "learner.sharding", "learner.mesh"
"""How a Learner is spread over ranks. A run may go on with others; sums are then added in another order."""
OF_ONE_RUN = "name", "steps"
"""Settings that may be others where no run is compared with it."""
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
        was: settings that are others now, with their former values.
    """

    folder: Path
    manifest: Manifest
    checkpoint: Checkpoint
    refused: tuple[Refused, ...]
    state: LoopState
    recorded: Recorded
    was: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> Mapping[str, Input]:
        """What the run is made of, as it recorded it when it began."""
        return self.recorded.inputs or self.manifest.inputs

    @property
    def date(self) -> date:
        """The date that its chat template writes into prompts: that of its start."""
        return date_of_run(self.manifest)

    @property
    def warnings(self) -> list[str]:
        """Say what was damaged, and what is not promised."""
        said = [f"checkpoint {each} (refused; the one before it is taken)" for each in self.refused]
        said += [] if is_whole(self.inputs) else [UNKNOWN]
        if spread := [key for key in self.was if _is_below(key, SPREAD)]:
            said.append(f"{', '.join(spread)} changed: the same policy is no longer promised bit for bit")
        return said

    async def take_up(self, parts: RunningParts, session: RunSession) -> LoopState:
        """Have the parts of a run, its recorder and its clock go on from here; return the state for the loop.

        Raises:
            UserError: the Learner cannot take over what was saved.
        """
        await cast(LearnerHandle, parts.learner).load_state(self.checkpoint.folder.resolve())
        session.arm.clock.go_on_from(self.recorded.clock_ns)
        session.recorder.goes_on(parts.lanes, self.recorded)
        session.log_lines([*self.warnings, f"continues from {self.checkpoint.folder.name}"])
        return with_data(self.state, parts.handle_of)


@dataclass(frozen=True)
class Continuation:
    """What an experiment has, and how it goes on.

    Attributes:
        folder: of the experiment; of the run, where it is one.
        finished: names of the runs that are left alone.
        resumes: where runs go on, by their names.
        again: attempts that are set aside, since their runs are made again.
        runs: number of those that are due in all.
    """

    folder: Path
    finished: frozenset[str] = frozenset()
    resumes: Mapping[str, Resume] = field(default_factory=dict)
    again: tuple[Point, ...] = ()
    runs: int = 1

    @property
    def line(self) -> str:
        """Say what was found."""
        if "" in self.resumes:
            return f"continues from {self.resumes[''].checkpoint.folder}"
        said = [f"{len(self.finished)} of {self.runs} runs are finished"]
        said += [f"{name} continues from {resume.checkpoint.folder.name}" for name, resume in self.resumes.items()]
        if self.again:
            names = ", ".join(point.variant.name for point in self.again)
            said.append(f"{names} made again (what there was stays in {ASIDE})")
        new = self.runs - len(self.finished) - len(self.resumes) - len(self.again)
        return f"continues {self.folder}: {'; '.join([*said, *([f'{new} to be made'] if new else [])])}"


def find_resume(folder: Path, scenario: Scenario) -> Resume:
    """Return where a run goes on.

    Args:
        folder: of the run.
        scenario: with which it is to go on.

    Raises:
        UserError: it is still running, has made all its steps, is one of an experiment, is of another scenario (with
            the keys) or of other inputs (with both digests), or has no checkpoint that is whole (with what is wrong
            with each).
    """
    home, run = folder.resolve().parent, load_run(folder)
    if (home / EXPERIMENT).is_file():
        what = "the run is one of several that are compared"
        raise UserError(what, str(folder), f"continue all of them: python -m harness run --resume {home}")
    _check_over(run)
    paths, now = PATHS if is_whole(run.manifest.inputs) else (), InputsNow()
    was = check_same(run.settings, scenario, folder, (*OF_ONE_RUN, *SPREAD, *paths))
    check_inputs(run.manifest.inputs, now, scenario, folder)
    found = replace(newest_of(folder, run.manifest), was=was)
    check_inputs(found.recorded.inputs, now, scenario, folder)
    if run.status == "completed" and scenario.steps <= run.settings["steps"]:
        fix = f"raise them: --set steps={2 * scenario.steps}"
        raise UserError(f"the run has made all its {scenario.steps} training steps", str(folder), fix)
    return found


def is_of_several(folder: Path) -> bool:
    """Whether a folder is that of an experiment of several runs, and not of one run or of a sweep."""
    return (folder / EXPERIMENT).is_file() and (folder / SAVED).is_file() and not (folder / RUN_MANIFEST).exists()


def find_continuation(folder: Path, scenario: Scenario) -> Continuation:
    """Return how an experiment of several runs goes on.

    Runs that are finished, or have diverged, are left alone. One that is not goes on from its checkpoint; where it has
    none that is whole it is made again, and so are all arms that took turns with it.

    Args:
        folder: of the experiment.
        scenario: with its arms, sweep and blocks.

    Raises:
        UserError: it is of another scenario (with the keys) or of other inputs (with both digests), one of its runs is
            still running, or nothing is left.
    """
    variants, now = expand(scenario), InputsNow()
    groups = [(group, read_points(folder, group)) for group in points_of(variants)]
    records = [point.manifest.inputs for _, points in groups for point in points if point.manifest is not None]
    paths = PATHS if records and all(map(is_whole, records)) else ()
    was = check_same(read_settings(folder / SAVED), scenario, folder, paths)
    turned = "checkpoint.every" in was and None in (was["checkpoint.every"], scenario.checkpoint.every)
    if turned and scenario.interleaving == "auto":
        what = f"checkpoint.every decides here how arms take turns, and was {was['checkpoint.every']}"
        raise UserError(what, str(folder), "leave it as it was, or begin a new experiment")
    plan, finished, again, resumes = read_plan(folder), list[Point](), list[Point](), dict[str, Resume]()
    for group, points in groups:
        if interleaving_of(group) == "step" and not all(point.state.is_result for point in points):
            again += [point for point in points if point.last is not None]
            continue
        for point in points:
            if point.state.is_result and point.manifest is not None:
                check_inputs(point.manifest.inputs, now, point.variant.scenario, point.folder)
                finished.append(point)
            elif (resume := resume_of(point, now)) is not None:
                resumes[point.variant.name] = resume
            elif point.last is not None:
                again.append(point)
    due = {variant.name for variant in variants} if plan is None else {run.folder for run in plan.due}
    if due <= {point.folder.name for point in finished}:
        fix = f"compare them: python -m harness.compare {folder}"
        raise UserError(f"all {len(due)} runs of the experiment are finished", str(folder), fix)
    names = frozenset(point.variant.name for point in finished)
    return Continuation(folder, names, resumes, tuple(again), len(due))


def resume_of(point: Point, now: InputsNow) -> Resume | None:
    """Return where a run of an experiment goes on; None where it has nothing whole to go on from, or is not there.

    Raises:
        UserError: it is still running, or is of other inputs.
    """
    try:
        run = load_run(point.folder)
        found = None if run.status == "running" else newest_of(run.folder, run.manifest)
    except UserError:
        return None
    _check_over(run)
    for recorded in (run.manifest.inputs, {} if found is None else found.recorded.inputs):
        check_inputs(recorded, now, point.variant.scenario, point.folder)
    return found


def _check_over(run: Run) -> None:
    if run.status == "running":
        raise UserError("the run is not over: another process holds it", str(run.folder), "stop that process first")


def newest_of(folder: Path, manifest: Manifest) -> Resume:
    """Return where a run goes on: its newest checkpoint that is whole.

    Raises:
        UserError: there is none, with what is wrong with each; or the run's rows have lost what they had then.
    """
    checkpoint, refused = newest_whole(folder / CHECKPOINTS)
    if checkpoint is None:
        what = "there is no checkpoint to resume from"
        if refused:
            what = "no checkpoint is whole: " + "; ".join(map(str, refused))
        raise UserError(what, str(folder / CHECKPOINTS), "run the scenario anew, with checkpoint.every set")
    state, recorded = read_files(checkpoint.folder, LoopState), read_recorded(checkpoint.folder)
    check_rows(folder, recorded.sizes)
    return Resume(folder, manifest, checkpoint, refused, state, recorded)


def find_unfinished(out: Path, scenario: Scenario) -> tuple[Path | None, str]:
    """Return the newest run or experiment of a scenario that can go on; else None, and why the newest cannot, in words.

    A run that diverged is over: it would do so again.

    Args:
        out: the results folder.
        scenario: its runs have its name and its settings.

    Raises:
        UserError: it is of one run and makes no checkpoints, so that none could ever go on.
    """
    home, several = out / safe_name(scenario.name), len(expand(scenario)) > 1
    if not several and scenario.checkpoint.every is None:
        what = "no run of this scenario can ever go on: checkpoint.every is null"
        raise UserError(what, "--resume auto", "set it: --set checkpoint.every=10")
    found = [(folder.name, folder) for folder in home.glob("*") if several and is_of_several(folder)]
    for checkpoints in home.glob(f"*/{CHECKPOINTS}") if not several else ():
        with suppress(UserError):
            manifest = read_manifest(checkpoints.parent)
            if manifest.status != "completed" and "diverged" not in manifest.outcome:
                found.append((manifest.newest_start[1], checkpoints.parent))
    refused = list[str]()
    for _, folder in sorted(found, reverse=True):
        try:
            _ = find_continuation(folder, scenario) if several else find_resume(folder, scenario)
            return folder, ""
        except UserError as error:
            refused.append(f"{folder}: {error.what}")
    return None, refused[0] if refused else "none has checkpoints and is not over"


def check_same(
    saved: Mapping[str, Any], scenario: Scenario, folder: Path, may_change: tuple[str, ...] = OF_ONE_RUN
) -> dict[str, Any]:
    """Return the settings that are others now, with their former values.

    Args:
        may_change: settings that may be, beside those that are free.

    Raises:
        UserError: others are.
    """
    now = parse_settings(Scrubber.of_this_process().paths(resolved_yaml(scenario)))
    before, after = flat_settings(saved), flat_settings(now)
    was = {key: before.get(key) for key in sorted({*before, *after}) if before.get(key) != after.get(key)}
    unused = () if scenario.loss.type in CLIPPED else tuple(f"loss.{name}" for name in CLIP_RANGE)
    differing = [key for key in was if not _is_below(key, (*FREE, *may_change, *unused))]
    if "steps" in was and "steps" in may_change:
        constant = scenario.optimizer.schedule == "constant" and not scenario.optimizer.warmup_ratio
        differing += ["steps"] * (after["steps"] < before["steps"] or not constant)
    if differing:
        told = ", ".join(f"{key} (was {before.get(key)}, is {after.get(key)})" for key in differing)
        more = f", on which {' and '.join(SET_BY_STEPS)} depend" if differing == ["steps"] else ""
        what = f"the run went by another scenario: {told}{more}"
        raise UserError(what, str(folder), "leave these as they were, or start a new run")
    return was


def _is_below(key: str, keys: Sequence[str]) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in keys)
