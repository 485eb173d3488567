"""What may be changed about which recorded run, what each change needs to be known, and the profile that knows it.

strategy: steps, max_lag, lag_control, replay, evaluation.every    nothing more than the recording
work: epochs_per_batch, minibatches_per_epoch, group_size, ...     the costs of a machine profile: each recorded time
                                                                   is taken times predicted (new) / predicted (old)
pace: --scale STAGE=FACTOR                                         nothing more
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.results import Run, find_run_folders, load_run, read_manifest
from harness.results.writer import SCENARIO
from harness.scenario.axes import check_variant, differing
from harness.scenario.problems import as_user_error
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, parse_yaml, tree_of_key
from harness.simulate.machine import MachineProfile, known_machines, load_machine, measured_on
from harness.simulate.whatif.recording import Recording
from harness.simulate.whatif.replay import CALL, RECORD, Factors

SHOWN = 12


def choose_run(path: Path, name: str | None = None) -> Run:
    """Return the run at or below a folder.

    Args:
        path: a run's folder, or one above.
        name: of the run's folder, that folder's way from ``path``, or the run's arm; None where there is one run only.

    Raises:
        UserError: there is no run, none of that name, or more than one that fits.
    """
    folders = find_run_folders(path)
    found = folders if name is None else [folder for folder in folders if _is_called(folder, path, name)]
    if len(found) == 1:
        return load_run(found[0])
    shown = _shown(found or folders, path)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    listed = ", ".join(shown[:SHOWN]) + more
    if not found:
        raise UserError(f"no run in {str(path)!r} is called {name!r}; there are {listed}", "--run", "name one of them")
    called = "" if name is None else f" called {name!r}"
    raise UserError(
        f"{len(found)} runs in {str(path)!r}{called}: {listed}", "--run", "name one with --run, or its folder"
    )


def _is_called(folder: Path, path: Path, name: str) -> bool:
    if name in (folder.name, str(folder.relative_to(path))):
        return True
    try:
        return read_manifest(folder).arm == name
    except UserError:  # a damaged run beside the one that is asked for
        return False


def _shown(folders: Sequence[Path], path: Path) -> list[str]:
    """Return the names of runs; their way from ``path`` where runs of several experiments share names."""
    names = [folder.name if folder != path else str(folder) for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder.relative_to(path)) for folder in folders]


def choose_machine(run: Run, asked: str | MachineProfile | None, needed_for: str | None) -> MachineProfile | None:
    """Return the profile to use; None where none fits and none is needed.

    Args:
        run: the recorded one.
        asked: a profile, its name or its path; None looks for one.
        needed_for: why costs are needed; None where they are not.

    Raises:
        UserError: a profile is needed and none fits; or there is none of that name.
    """
    if asked is not None:
        return asked if isinstance(asked, MachineProfile) else load_machine(asked)
    reasons = []
    for known in known_machines():
        profile = measured_on(known, run.manifest.machine.get("fingerprint"))
        reason = "another machine" if profile is None else _other_versions(run, profile)
        if profile is not None and not reason:
            return profile
        reasons.append(f"{known}: {reason}")
    if needed_for is None:
        return None
    raise UserError(
        f"{needed_for}, so a machine profile is needed, and none was made where this run ran"
        + (f" ({'; '.join(reasons)})" if reasons else ""),
        "profiles/machines",
        "name one with --machine NAME, or make one: python -m harness calibrate --name NAME",
    )


def _other_versions(run: Run, profile: MachineProfile) -> str:
    """Return how the versions that a profile was measured with differ from the run's; empty where they do not."""
    ran = {package: version for package, version in run.manifest.versions.items() if version}
    return ", ".join(
        f"measured with {package} {version}, the run had {ran[package]}"
        for package, version in profile.versions.items()
        if package in ran and ran[package] != version
    )


SAVING = ("checkpoint.every", "save_policy_every")
STRATEGY = (
    "steps",
    "max_lag",
    "lag_control",
    "replay",
    "evaluation.every",
    "loss.proximal",
    "allow_uncorrected",
    *SAVING,
)
WORK = (
    "epochs_per_batch",
    "minibatches_per_epoch",
    "gradient_accumulation_steps",
    "rollout_batch_size",
    "group_size",
    "transport",
    "placement.generator.count",
)
MOST_SCALE = 1e6
"""A stage can be made to take so many times its seconds; beyond, the clock's nanoseconds would lose their meaning."""
_SAME_POLICY = (
    "steps",
    "evaluation.every",
    "transport",
    "gradient_accumulation_steps",
    "placement.generator.count",
    *SAVING,
)
"""Changes that leave what is learnt as it is."""


@dataclass(frozen=True)
class Change:
    """A change of a recorded run.

    Attributes:
        before, after: the run's scenario, and the changed one.
        factors: the new pace.
        keys: dotted keys of the settings that differ.
        typed: the settings, as they were typed.
    """

    before: Scenario
    after: Scenario
    factors: Factors
    keys: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed at all."""
        return not self.keys and not self.factors.stages

    @property
    def trains_otherwise(self) -> bool:
        """Whether the policy would have learnt something else, and so written something else."""
        optimizer = self.after.optimizer
        ends_with_the_run = optimizer.schedule != "constant" or optimizer.warmup_ratio > 0  # the learning rate's course
        return any(not _falls_under(key, _SAME_POLICY) or (key == "steps" and ends_with_the_run) for key in self.keys)

    @property
    def needs_costs(self) -> str | None:
        """Why the recorded times alone do not say enough; None where they do."""
        work = [key for key in self.keys if _falls_under(key, WORK)]
        if work:
            return f"{' and '.join(work)} changes how much work a stage is"
        if self.after.needs_old_log_probs and not self.before.needs_old_log_probs:
            return "the Learner would compute old log-probs, which this run has not timed"
        if self.after.replay.capacity and self.after.replay_sample_groups != self.after.prompts_per_batch:
            return "replay.sample_groups changes how many rollouts a step trains on"
        return None

    @property
    def needs_lengths(self) -> bool:
        """Whether it matters how long the rollouts were."""
        return self.needs_costs is not None and any(not _falls_under(key, ("transport",)) for key in self.keys)


def scenario_of(run: Run) -> Scenario:
    """Return the scenario that a run was made from.

    Raises:
        UserError: it is not in the run's folder, or of a form that this version does not read.
    """
    where = str(run.folder / SCENARIO)
    if not run.settings:
        raise UserError(f"the run {str(run.folder)!r} has no {SCENARIO}", where, "name a run that has one")
    return _checked(_tree(run.settings, where), where)


def read_change(run: Run, recording: Recording, settings: Sequence[str], scales: Sequence[str]) -> Change:
    """Read what is to be changed.

    Args:
        run: the recorded one.
        recording: its calls.
        settings: each ``key=value``.
        scales: each ``STAGE=FACTOR``.

    Raises:
        UserError: a setting is unknown, breaks a rule, or cannot be replayed; a stage is unknown or not in the run.
    """
    before = scenario_of(run)
    tree = _tree(before.model_dump(mode="json"), str(run.folder / SCENARIO)).without("arms", "sweep")
    after = _checked(tree.overlaid(Scenario, *map(_setting, settings)), "the changed run")
    keys = tuple(differing(before.model_dump(mode="json"), after.model_dump(mode="json")))
    for key in keys:
        _refuse_unless_known(key)
    if before.uses_ray != after.uses_ray:
        raise UserError(
            f"transport.type {after.transport.type} moves the parts {'into actors' if after.uses_ray else 'together'}, "
            "and this run has not timed that",
            "--set transport.type",
            "choose a transport between actors, or simulate: python -m harness simulate",
        )
    return Change(before, after, _factors(scales, recording), keys, tuple(settings))


def _setting(text: str) -> Tree:
    key, sign, value = text.partition("=")
    origin = f"--set {text}"
    if not sign or not all(key.strip().split(".")):
        raise UserError(f"--set takes key=value, got {text!r}", None, "write for example --set max_lag=1")
    return tree_of_key(key.strip(), parse_yaml(value, origin), origin)


def _factors(scales: Sequence[str], recording: Recording) -> Factors:
    stages: dict[str, float] = {}
    for text in scales:
        name, factor = _scale(text, recording)
        if name in stages:
            raise UserError(f"--scale names {name} twice", f"--scale {text}", "give one factor for each stage")
        stages[name] = factor
    return Factors(stages)


def _scale(text: str, recording: Recording) -> tuple[str, float]:
    name, sign, factor_text = text.partition("=")
    name = name.strip()
    origin = f"--scale {text}"
    try:
        factor = float(factor_text) if sign else math.nan
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= MOST_SCALE:
        raise UserError(
            f"--scale takes STAGE=FACTOR with a factor from 0 to {MOST_SCALE:,.0f}, got {text!r}",
            None,
            "write for example --scale update=0.5",
        )
    known = stages_of(recording)
    if name not in known:
        raise UserError(
            f"the run has no stage {name!r} to scale; it has {', '.join(known)}", origin, "name one of these"
        )
    return name, factor


def stages_of(recording: Recording) -> list[str]:
    """Return what of a recording can be scaled, in the order of the stages; ``call`` and ``record`` come last."""
    seen = {each.stage for call in recording.calls for each in call.stages}
    names = [stage.value for stage in Stage if stage in seen]
    names += [CALL] if any(call.request_s or call.response_s for call in recording.calls) else []
    return names + ([RECORD] if any(recording.record_s.values()) else [])


def _refuse_unless_known(key: str) -> None:
    if _falls_under(key, (*STRATEGY, *WORK)):
        return
    raise UserError(
        f"a recorded run says nothing about another {key}",
        f"--set {key}",
        f"change one of {', '.join((*STRATEGY, *WORK))}; for the rest: python -m harness simulate",
    )


def _falls_under(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _tree(data: Mapping[str, Any], origin: str) -> Tree:
    return Tree.of(data, origin)


def _checked(tree: Tree, subject: str) -> Scenario:
    scenario, problems = check_variant(tree)
    if scenario is None or problems:
        raise as_user_error([problem.located(tree.origins) for problem in problems], subject)
    return scenario
