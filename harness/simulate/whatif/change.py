"""What may be changed about a recorded run, what each change needs to be known, and the profile that knows it.

strategy: steps, max_lag, lag_control, replay, evaluation.every    nothing more than the recording
work: epochs_per_batch, minibatches_per_epoch, group_size, ...     the costs of a machine profile: each recorded time
                                                                   is taken times predicted (new) / predicted (old)
pace: --scale STAGE=FACTOR                                         nothing more
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import UserError
from harness.core.trace import in_order
from harness.results import Run
from harness.results.writer import SCENARIO
from harness.scenario.axes import differing
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, parse_yaml, tree_of_key
from harness.simulate.machine import MachineProfile, known_machines, load_machine, measured_on
from harness.simulate.recorded_run import RecordedCall, RecordedRun, checked
from harness.simulate.whatif.replay import CALL, RECORD, Pace

CHANGES = {
    "steps": (False, True),
    "max_lag": (False, False),
    "lag_control": (False, False),
    "replay": (False, False),
    "evaluation.every": (False, True),
    "loss.proximal": (False, False),
    "allow_uncorrected": (False, False),
    "placement.colocated": (False, True),
    "checkpoint.every": (False, True),
    "save_policy_every": (False, True),
    "epochs_per_batch": (True, False),
    "minibatches_per_epoch": (True, False),
    "gradient_accumulation_steps": (True, True),
    "rollout_batch_size": (True, False),
    "group_size": (True, False),
    "transport": (True, True),
    "placement.generator.count": (True, True),
}
"""Whether it changes how much work a stage is, and whether it leaves what is learnt as it is."""
MOST_SCALE = 1e6
"""A stage can be made to take so many times its seconds; beyond, the clock's nanoseconds would lose their meaning."""


@dataclass(frozen=True)
class Change:
    """A change of a recorded run.

    Attributes:
        before, after: the run's scenario, and the changed one.
        pace: the new one.
        keys: dotted keys of the settings that differ.
        typed: the settings, as they were typed.
    """

    before: Scenario
    after: Scenario
    pace: Pace
    keys: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed at all."""
        return not self.keys and not self.pace

    @property
    def moves_apart(self) -> bool:
        """Whether parts that took turns in one place get a place of their own each."""
        return self.before.placement.colocated and not self.after.placement.colocated

    @property
    def trains_otherwise(self) -> bool:
        """Whether the policy would have learnt something else, and so written something else."""
        optimizer = self.after.optimizer
        ends_with_the_run = optimizer.schedule != "constant" or optimizer.warmup_ratio > 0  # the learning rate's course
        return any(not _kind(key)[1] or (key == "steps" and ends_with_the_run) for key in self.keys)

    @property
    def needs_costs(self) -> str | None:
        """Why the recorded times alone do not say enough; None where they do."""
        if work := [key for key in self.keys if _kind(key)[0]]:
            return f"{' and '.join(work)} changes how much work a stage is"
        if self.after.needs_old_log_probs and not self.before.needs_old_log_probs:
            return "the Learner would compute old log-probs, which this run has not timed"
        if self.after.replay.capacity and self.after.replay_sample_groups != self.after.prompts_per_batch:
            return "replay.sample_groups changes how many rollouts a step trains on"
        return None

    @property
    def needs_lengths(self) -> bool:
        """Whether it matters how long the rollouts were."""
        return self.needs_costs is not None and any(key.split(".")[0] != "transport" for key in self.keys)


def read_change(run: RecordedRun, stages: Sequence[str], settings: Sequence[str], scales: Sequence[str]) -> Change:
    """Read what is to be changed.

    Args:
        stages: what of the run can be scaled; see ``stages_of``.
        settings: each ``key=value``.
        scales: each ``STAGE=FACTOR``.

    Raises:
        UserError: a setting is unknown, breaks a rule, or cannot be replayed; a stage is unknown or not in the run.
    """
    before = run.scenario
    data = before.model_dump(mode="json")
    tree = Tree.of(data, str(run.run.folder / SCENARIO)).without("arms", "sweep")
    after = checked(tree.overlaid(Scenario, *map(_setting, settings)), "the changed run")
    keys = tuple(differing(data, after.model_dump(mode="json")))
    for key in keys:
        _kind(key)
    if before.uses_ray != after.uses_ray:
        moves = f"moves the parts {'into actors' if after.uses_ray else 'together'}, and this run has not timed that"
        fix = "choose a transport between actors, or simulate: python -m harness simulate"
        raise UserError(f"transport.type {after.transport.type} {moves}", "--set transport.type", fix)
    pace: dict[str, float] = {}
    for text in scales:
        name, factor = scale_of(text, stages)
        if name in pace:
            raise UserError(f"--scale names {name} twice", f"--scale {text}", "give one factor for each stage")
        pace[name] = factor
    return Change(before, after, pace, keys, tuple(settings))


def stages_of(calls: Sequence[RecordedCall], record_s: Mapping[int, float]) -> list[str]:
    """Return what of a recording can be scaled, in the order of the stages; ``call`` and ``record`` come last."""
    seen = {each.stage for call in calls for each in call.stages if each.stage is not None}
    names = [stage.value for stage in in_order(seen)]
    names += [CALL] if any(call.request_s or call.response_s for call in calls) else []
    return names + ([RECORD] if any(record_s.values()) else [])


def _setting(text: str) -> Tree:
    key, sign, value = text.partition("=")
    origin = f"--set {text}"
    if not sign or not all(key.strip().split(".")):
        raise UserError(f"--set takes key=value, got {text!r}", None, "write for example --set max_lag=1")
    return tree_of_key(key.strip(), parse_yaml(value, origin), origin)


def scale_of(text: str, stages: Sequence[str]) -> tuple[str, float]:
    """Return the stage and the factor of one ``STAGE=FACTOR``.

    Raises:
        UserError: it is none, or the run has no such stage.
    """
    name, sign, factor_text = text.partition("=")
    name = name.strip()
    try:
        factor = float(factor_text) if sign else math.nan
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= MOST_SCALE:
        what = f"--scale takes STAGE=FACTOR with a factor from 0 to {MOST_SCALE:,.0f}, got {text!r}"
        raise UserError(what, None, "write for example --scale update=0.5")
    if name not in stages:
        what = f"the run has no stage {name!r} to scale; it has {', '.join(stages)}"
        raise UserError(what, f"--scale {text}", "name one of these")
    return name, factor


def _kind(key: str) -> tuple[bool, bool]:
    """Return what ``CHANGES`` says of a setting, or of the section that it is in."""
    for name, kind in CHANGES.items():
        if key == name or key.startswith(f"{name}."):
            return kind
    fix = f"change one of {', '.join(CHANGES)}; for the rest: python -m harness simulate"
    raise UserError(f"a recorded run says nothing about another {key}", f"--set {key}", fix)


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
    ran = {package: version for package, version in run.manifest.versions.items() if version}
    reasons = []
    for known in known_machines():
        profile = measured_on(known, run.manifest.machine.get("fingerprint"))
        other = [
            f"measured with {package} {version}, the run had {ran[package]}"
            for package, version in (profile.versions.items() if profile else ())
            if ran.get(package, version) != version
        ]
        if profile is not None and not other:
            return profile
        reasons.append(f"{known}: {', '.join(other) or 'another machine'}")
    if needed_for is None:
        return None
    what = f"{needed_for}, so a machine profile is needed, and none was made where this run ran"
    fix = "name one with --machine NAME, or make one: python -m harness calibrate --name NAME"
    raise UserError(what + (f" ({'; '.join(reasons)})" if reasons else ""), "profiles/machines", fix)
