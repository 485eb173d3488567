"""Which run, experiment or sweep goes on, looked for and checked before anything starts.

An experiment of several runs has the scenario of all of them in its folder. Where a sweep began it, that file has a
name of its own, by which the same command finds the folder again; it is written once and never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.checkpoints import LATEST
from harness.core.errors import UserError
from harness.core.experiment import NAMING, OF_THE_LIST
from harness.results import Scrubber
from harness.results.anonymous import safe_name
from harness.results.experiment_plan import EXPERIMENT, read_plan
from harness.results.reader import flat_settings, load_run, read_manifest, read_settings
from harness.results.writer import CHECKPOINTS, MANIFEST, SCENARIO
from harness.run.earlier_runs import as_recorded
from harness.run.inputs import PATHS, InputsNow, check_inputs, is_whole
from harness.run.interleaving import groups_of, points_of
from harness.run.points import (
    SPREAD,
    Attempt,
    Continuation,
    Point,
    Resume,
    State,
    check_over,
    is_below,
    newest_of,
    survey,
)
from harness.scenario.axes import expand
from harness.scenario.schema import Scenario
from harness.settings.loss import CLIP_RANGE, CLIPPED

SWEEP = "sweep.resolved.yaml"
"""The scenario of a sweep."""
FREE = ("description", "checkpoint", "trackers", "save_policy", "save_policy_every",
        "reward_target", "endpoint", "faults.stall_after_s", "faults.max_replacements",
        "max_failed_batches")  # fmt: skip
"""Settings that may be others after a resume: what is sampled and learnt until then does not depend on them."""
OF_ONE_RUN = "name", "steps"
"""Settings that may be others where no run is compared with it."""
SET_BY_STEPS = "optimizer.schedule", "optimizer.warmup_ratio"
_LEFT_OUT = object()
"""The value of a setting that a scenario does not have."""


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
    check_over(run.status, run.folder)
    paths, now = PATHS if is_whole(run.manifest.inputs) else (), InputsNow()
    was = check_same(run.settings, scenario, folder, (*OF_ONE_RUN, *SPREAD, *paths))
    check_inputs(run.manifest.inputs, now, scenario, folder)
    if run.status == "completed" and not (folder / CHECKPOINTS / LATEST).exists():
        fix = f"begin a longer one: --set steps={2 * scenario.steps} --set checkpoint.every={scenario.steps}"
        what = f"the run is finished: it has made all its {run.settings['steps']} training steps"
        raise UserError(what, str(folder), fix)
    resume = replace(newest_of(folder, run.manifest), was=was)
    check_inputs(resume.recorded.inputs, now, scenario, folder)
    if run.status == "completed" and scenario.steps <= run.settings["steps"]:
        fix = f"raise them: --set steps={2 * scenario.steps}"
        raise UserError(f"the run has made all its {scenario.steps} training steps", str(folder), fix)
    return resume


def is_of_several(folder: Path) -> bool:
    """Whether a folder is that of an experiment of several runs, and not of one run or of a sweep."""
    return (folder / EXPERIMENT).is_file() and (folder / SCENARIO).is_file() and not (folder / MANIFEST).exists()


def find_continuation(folder: Path, scenario: Scenario) -> Continuation:
    """Return how a run goes on from its checkpoint, or an experiment of several runs with those that are left.

    Runs of an experiment that are finished, or have diverged, are left alone. One that is not goes on from its
    checkpoint; where it has none that is whole it is made again, and so are all arms that took turns with it.

    Args:
        scenario: with its arms, sweep and blocks.

    Raises:
        UserError: see ``find_resume``; or the experiment is of another scenario (with the keys) or of other inputs
            (with both digests), one of its runs is still running, or nothing is left.
    """
    variants = expand(scenario)
    if not is_of_several(folder):
        resume = find_resume(folder, scenario)
        point = Point(variants[0], folder, (), Attempt(State.CUT_SHORT, None, folder), resume.manifest)
        return Continuation(folder, {"": point}, resumes={"": resume})
    groups = groups_of(points_of(variants))
    names = [safe_name(Scrubber.of_this_process().paths(variant.name)) for variant in variants]
    records = list[Mapping[str, Any]]()
    for name in names:
        with suppress(UserError):
            records.append(read_manifest(folder / name).inputs)
    was = check_same(
        read_settings(folder / SCENARIO), scenario, folder, PATHS if records and all(map(is_whole, records)) else ()
    )
    turned = "checkpoint.every" in was and None in (was["checkpoint.every"], scenario.checkpoint.every)
    if turned and scenario.interleaving == "auto":
        what = f"checkpoint.every decides here how arms take turns, and was {was['checkpoint.every']}"
        raise UserError(what, str(folder), "leave it as it was, or begin a new experiment")
    found, plan = survey(folder, groups, InputsNow(), together=True), read_plan(folder)
    due = set(names) if plan is None else {run.folder for run in plan.due}
    if due <= {found.points[name].folder.name for name in found.finished}:
        fix = f"compare them: python -m harness compare {folder}"
        raise UserError(f"all {len(due)} runs of the experiment are finished", str(folder), fix)
    return replace(found, due=len(due))


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
    folders = [(folder.name, folder) for folder in home.glob("*") if several and is_of_several(folder)]
    for checkpoints in home.glob(f"*/{CHECKPOINTS}") if not several else ():
        with suppress(UserError):
            manifest = read_manifest(checkpoints.parent)
            if manifest.status != "completed" and "diverged" not in manifest.outcome:
                folders.append((manifest.newest_start[1], checkpoints.parent))
    refused = list[str]()
    for _, folder in sorted(folders, reverse=True):
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
    before, after = flat_settings(saved), flat_settings(as_recorded(scenario))
    keys = sorted({*before, *after} - {*OF_THE_LIST})
    was = {key: before.get(key) for key in keys if before.get(key) != after.get(key)}
    unused = () if scenario.loss.type in CLIPPED else tuple(f"loss.{name}" for name in CLIP_RANGE)
    differing = [key for key in was if not is_below(key, (*FREE, *may_change, *unused))]
    if "steps" in was and "steps" in may_change:
        constant = scenario.optimizer.schedule == "constant" and not scenario.optimizer.warmup_ratio
        differing += ["steps"] * (after["steps"] < before["steps"] or not constant)
    if differing:
        told = ", ".join(f"{key} (was {before.get(key)}, is {after.get(key)})" for key in differing)
        more = f", on which {' and '.join(SET_BY_STEPS)} depend" if differing == ["steps"] else ""
        what = f"the run went by another scenario: {told}{more}"
        raise UserError(what, str(folder), "leave these as they were, or start a new run")
    return was


# ---- sweeps


def find_sweep(out: Path, scenario: Scenario) -> Path | None:
    """Return the newest experiment of a sweep that ran the very same scenario; None where there is none."""
    wanted = _named_alike(as_recorded(scenario))
    return next((folder for folder, settings in _sweeps(out, scenario) if settings == wanted), None)


def changes_since_newest(out: Path, scenario: Scenario) -> tuple[Path, list[str]] | None:
    """Return the newest sweep of this name with what the scenario says otherwise now; None where there is none.

    Returns:
        its folder, and for each setting ``key: before -> now``.
    """
    newest = next(_sweeps(out, scenario), None)
    if newest is None:
        return None
    return newest[0], changes_since(newest[0] / SWEEP, scenario)


def changes_since(file: Path, scenario: Scenario) -> list[str]:
    """Return what a scenario says otherwise than the saved one of a sweep: ``key: before -> now``."""
    before, now = flat_settings(_named_alike(read_settings(file))), flat_settings(_named_alike(as_recorded(scenario)))
    keys = [key for key in {**now, **before} if now.get(key, _LEFT_OUT) != before.get(key, _LEFT_OUT)]
    return [f"{key}: {before.get(key, 'left out')} -> {now.get(key, 'left out')}" for key in keys]


def _sweeps(out: Path, scenario: Scenario) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the sweeps of a scenario's name with their settings, the newest first."""

    def order(file: Path) -> list[int]:  # names are times, with -2 and so on for those of the same second
        return [int(part) for part in re.findall(r"\d+", file.parent.name)]

    for file in sorted((out / safe_name(scenario.name)).glob(f"*/{SWEEP}"), key=order, reverse=True):
        with suppress(UserError):  # unreadable: that one cannot be continued
            if settings := read_settings(file):
                yield file.parent, _named_alike(settings)


def _named_alike(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in NAMING}
