"""What a change does: the run replayed as it was and as it would be, and what 10% off each stage would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.compare.attribution import account_spans
from harness.compare.numbers import percent
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.loop import LoopPlan
from harness.results import Run, lane_kind
from harness.scenario import Scenario
from harness.scenario.loop_plan import lanes_of, on_one_thread, replay_options
from harness.simulate.machine import MachineProfile
from harness.simulate.measures import stage_times, step_time
from harness.simulate.whatif.changes import Change, old_log_probs, read_change, scenario_of, stages_of
from harness.simulate.whatif.machines import choose_machine
from harness.simulate.whatif.recorded import Recording, read_recording
from harness.simulate.whatif.replay import Changed, Factors, Replayed, Setting, replay
from harness.simulate.whatif.rollouts import Rollouts
from harness.simulate.whatif.sharing import contention_of, cores_of, place_of, undisturbed, way_cores_of
from harness.simulate.whatif.works import ChangedWork, Priced, WithoutStages

ERROR_BOUND = 0.03
"""How far the replay of a run as it was may be from the run, for a prediction to be made of it."""
FASTER = 0.9
"""Throttle of what is made faster, to see what that gives."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one replay.

    Attributes:
        step_s: seconds of a training step; see ``harness.simulate.measures``.
        stages_s: seconds of each stage and wait in a step, added over the lanes.
        idle: share of the loop that each lane waited.
    """

    step_s: float
    stages_s: Mapping[str, float]
    idle: Mapping[str, float]
    replayed: Replayed


@dataclass(frozen=True, slots=True)
class Gain:
    """What 10% off something gives.

    Attributes:
        name: a stage, ``call`` or ``record``; or a kind of lane.
        seconds: of it in a step; 0 for a kind of lane.
        gain: by what share of itself the step gets shorter.
    """

    name: str
    seconds: float
    gain: float


@dataclass(frozen=True, slots=True)
class Answer:
    """All that is said about a change.

    Attributes:
        recorded_step_s: as the run had it.
        before, after: the run replayed as it was, and with the change.
        gains: by stage, of the changed run, the largest first.
        lane_gains: by kind of lane, the largest first.
        notes: what to mind.
        machine: name of the profile that was used, if one was.
    """

    run: Run
    change: Change
    recorded_step_s: float
    before: Outcome
    after: Outcome
    gains: tuple[Gain, ...]
    lane_gains: tuple[Gain, ...]
    notes: tuple[str, ...] = ()
    machine: str | None = None

    @property
    def error(self) -> float:
        """By what share of itself the recorded step time is missed by the replay of the run as it was."""
        return self.before.step_s / self.recorded_step_s - 1

    @property
    def ratio(self) -> float:
        """Step time after over step time before."""
        return self.after.step_s / self.before.step_s


def what_if(
    run: Run,
    settings: Sequence[str] = (),
    scales: Sequence[str] = (),
    machine: str | MachineProfile | None = None,
    bound: float = ERROR_BOUND,
    with_gains: bool = True,
) -> Answer:
    """Say what would have been had one thing been different.

    Args:
        run: the recorded one.
        settings: each ``key=value``.
        scales: each ``STAGE=FACTOR``.
        machine: a profile, its name or its path; None takes the one made on the run's machine with its versions.
        bound: on the replay's own error.
        with_gains: also say what 10% off each stage and each kind of lane gives.

    Raises:
        UserError: the run or the change cannot be replayed, its replay is off by more than ``bound``, or a profile that
            is needed is missing or lacks something.
    """
    scenario = scenario_of(run)
    recording = read_recording(run, on_one_thread(scenario))
    change = read_change(run, recording, settings, scales)
    profile = choose_machine(run, machine, change.needs_costs)
    contention = contention_of(scenario, profile)
    recording = undisturbed(recording, contention, scenario)
    worlds = _Worlds(recording, change, profile)
    recorded_s = _recorded_step_s(run)
    before = _outcome(worlds.before())
    check_error(run, before.step_s / recorded_s - 1, bound)
    after = _outcome(worlds.after())
    gains = _stage_gains(recording, worlds, after) if with_gains else ()
    lane_gains = _lane_gains(worlds, after) if with_gains else ()
    notes = _notes(run, change, worlds, after, profile)
    used = profile is not None and (contention is not None or worlds.new is not None)
    name = profile.name if profile is not None and used else None
    return Answer(run, change, recorded_s, before, after, gains, lane_gains, notes, name)


def _recorded_step_s(run: Run) -> float:
    seconds = step_time(run.steps)
    if seconds <= 0:
        where = str(run.folder)
        raise UserError(f"the training steps of the run {where!r} took no time", where, "name another run")
    return seconds


def check_error(run: Run, error: float, bound: float) -> None:
    """Refuse to predict from a run whose own replay is off.

    Raises:
        UserError: by more than ``bound``.
    """
    if abs(error) > bound:
        accept = f", or accept it with --error-bound {100 * abs(error) + 0.1:.1f}%" if abs(error) < 0.99 else ""
        raise UserError(
            f"replayed as it was, a training step of this run is off by {percent(abs(error))} of its time, more than "
            f"the bound of {percent(bound)}: what a change does would be no surer",
            str(run.folder),
            f"name another run{accept}",
        )


class _Worlds:
    """Makes the setting of each replay of one question.

    Attributes:
        changed: how the work differs after the change.
        new: the changed scenario's prices, where they are needed.
    """

    def __init__(self, recording: Recording, change: Change, machine: MachineProfile | None) -> None:
        self._recording, self._change = recording, change
        self._contention = contention_of(change.before, machine)
        if change.needs_lengths and not recording.shards:
            raise UserError(
                f"{change.needs_costs}, and this run has not recorded how long its rollouts were",
                "groups.jsonl",
                "run the scenario again with this version, which records it, and ask that run",
            )
        self._settings = self._setting(change.before), self._setting(change.after)
        self.new: Priced | None = None
        self.changed = self._changed(machine)

    def before(self) -> Replayed:
        """Replay the run as it was."""
        return replay(self._recording, self._settings[0])

    def after(self, factors: Factors | None = None) -> Replayed:
        """Replay the changed run, at another pace where one is given."""
        pace = self._change.factors.times(factors or Factors())
        return replay(self._recording, self._settings[1], pace, self.changed)

    def _setting(self, scenario: Scenario) -> Setting:
        rollouts = self._rollouts(scenario)
        same_count = scenario.placement.generator.count == self._change.before.placement.generator.count
        return Setting(
            _plan(scenario, rollouts),
            self._recording.lanes("generator") if same_count else lanes_of("generator", scenario),
            self._recording.lanes("scorer"),
            rollouts.lengths,
            rollouts.rewards,
            scenario.optimizer_steps_per_batch,
            on_one_thread(scenario),
            place_of(self._contention),
            cores_of(scenario, self._contention),
            way_cores_of(scenario),
        )

    def _rollouts(self, scenario: Scenario) -> Rollouts:
        before = self._change.before
        recorded_shape = (before.prompts_per_batch, before.group_size)
        size, prompts = scenario.group_size, scenario.prompts_per_batch
        return Rollouts(self._recording, prompts, size, recorded_shape, scenario.evaluation.prompts, scenario.seed)

    def _changed(self, machine: MachineProfile | None) -> Changed | None:
        before, after = self._change.before, self._change.after
        if machine is not None and self._change.needs_costs is not None:
            self.new = Priced(after, machine)
            lengths = self._rollouts(after).lengths
            return ChangedWork(self._recording, Priced(before, machine), self.new, lengths, self._change.keys)
        if old_log_probs(before) and not old_log_probs(after):
            return WithoutStages(frozenset({Stage.OLD_LOGPROBS}))
        return None

    @property
    def said(self) -> tuple[str, ...]:
        """What the profile could not say, and where it had to extrapolate."""
        if self.new is None:
            return ()
        unsaid = self.changed.said if isinstance(self.changed, ChangedWork) else {}
        return (*unsaid, *(f"extrapolating: {sentence}" for sentence in self.new.costing.extrapolating))


def _plan(scenario: Scenario, rollouts: Rollouts) -> LoopPlan:
    return LoopPlan(
        scenario.steps,
        scenario.group_size,
        scenario.max_lag,
        scenario.evaluation.every,
        rollouts.batch_prompts,
        rollouts.validation_ids,
        scenario.seed,
        scenario.lag_control,
        replay_options(scenario),
    )


def _outcome(replayed: Replayed) -> Outcome:
    accounts = account_spans(replayed.spans, (0, round(replayed.loop_s * 1e9)))
    idle = {lane: account.share(account.waiting_ns) for lane, account in accounts.items()}
    return Outcome(step_time(replayed.rows), stage_times(replayed.rows), idle, replayed)


def _stage_gains(recording: Recording, worlds: _Worlds, after: Outcome) -> tuple[Gain, ...]:
    stages = [name for name in after.stages_s if not Stage(name).is_wait]
    stages += [name for name in stages_of(recording) if name not in list(Stage)]
    seconds = dict(after.stages_s) | {"call": after.stages_s.get(Stage.WAIT_FOR_CALL.value, 0.0)}
    seconds |= {"record": after.stages_s.get(Stage.WAIT_FOR_RECORDER.value, 0.0)}
    gains = [
        Gain(name, seconds[name], _gain(worlds, after, Factors(stages={name: FASTER})))
        for name in stages
        if seconds[name]
    ]
    return tuple(sorted(gains, key=lambda item: (-round(item.gain, 9), -item.seconds)))


def _lane_gains(worlds: _Worlds, after: Outcome) -> tuple[Gain, ...]:
    kinds = dict.fromkeys(lane_kind(lane) for lane in after.idle)
    gains = [Gain(kind, 0.0, _gain(worlds, after, Factors(lanes={kind: FASTER}))) for kind in kinds]
    return tuple(sorted(gains, key=lambda item: -round(item.gain, 9)))


def _gain(worlds: _Worlds, after: Outcome, factors: Factors) -> float:
    return 1 - step_time(worlds.after(factors).rows) / after.step_s if after.step_s > 0 else 0.0


def _notes(
    run: Run, change: Change, worlds: _Worlds, after: Outcome, machine: MachineProfile | None
) -> tuple[str, ...]:
    notes = []
    if run.manifest.simulated is not None:
        notes.append(f"the run itself was simulated ({run.manifest.simulated}): its times were predicted, not measured")
    overlaps = not (change.before.is_synchronous and change.after.is_synchronous)
    shares = not run.manifest.machine.get("gpus") and change.before.engine.type != "paced"
    if overlaps and shares and machine is None and not on_one_thread(change.before):
        notes.append(
            "no machine profile matches this run, so parts that overlap on the same cores are taken not to slow each "
            "other down; name one with --machine"
        )
    if change.trains_otherwise and change.before.engine.type != "paced":
        notes.append(
            "the rollouts are those of the recorded run; a policy that is trained otherwise may write longer or "
            "shorter ones"
        )
    if all(row.warmup or row.profiled for row in after.replayed.rows):
        notes.append("the steps that are left are all warm-up, which takes longer than what follows")
    for work, calls in after.replayed.borrowed.items():
        times = f"1 call to {work.value} was" if calls == 1 else f"{calls} calls to {work.value} were"
        notes.append(f"{times} never recorded and {'takes' if calls == 1 else 'take'} the time of others of this run")
    notes += worlds.said
    return tuple(notes)
