"""What a change does: the run replayed as it was and as it would be, and what 10% off each stage would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.compare.checkpoints import CheckpointCost, checkpoint_cost
from harness.compare.numbers import percent
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.loop import LoopPlan
from harness.results import Run, lane_kind
from harness.results.frames import table_of
from harness.results.occupancy import part_spans
from harness.scenario.derived import on_one_thread, resolved_replay
from harness.scenario.lanes import lanes_of
from harness.scenario.schema import Scenario
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import stage_times, step_time, waiting_shares
from harness.simulate.whatif import ERROR_BOUND
from harness.simulate.whatif.changes import Change, choose_machine, read_change, scenario_of, stages_of
from harness.simulate.whatif.recording import Recording, Rollouts, read_recording
from harness.simulate.whatif.replay import Factors, Replayed, Setting, replay
from harness.simulate.whatif.repricing import RepricedCalls, contention_of, undisturbed

FASTER = 0.9
"""Throttle of what is made faster, to see what that gives."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one replay.

    Attributes:
        step_s: seconds of a training step; see ``harness.simulate.metrics``.
        stages_s: seconds of each stage and wait in a step, added over the lanes.
        idle: share of the measured window that each lane waited.
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
        checkpoints: what they cost the run, at the interval of the changed one; None where it made none.
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
    checkpoints: CheckpointCost | None = None

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
    replays = _Replays(recording, change, profile)
    recorded = table_of(run)
    recorded_s = step_time(recorded)
    if recorded_s <= 0:
        where = str(run.folder)
        raise UserError(f"the training steps of the run {where!r} took no time", where, "name another run")
    before = _outcome(replays.before())
    check_error(run, before.step_s / recorded_s - 1, bound)
    after = _outcome(replays.after())
    gains = _stage_gains(recording, replays, after) if with_gains else ()
    lane_gains = _lane_gains(replays, after) if with_gains else ()
    notes = _notes(run, change, replays, after, profile)
    used = profile is not None and (contention is not None or replays.repriced is not None)
    name = profile.name if profile is not None and used else None
    steps = {int(step) for step in recorded.steps["step"][recorded.is_measured]}
    made = checkpoint_cost(run, part_spans(run.spans()), steps, recorded_s)
    every = change.after.checkpoint.every
    checkpoints = None if made is None or every is None else replace(made, every=every)
    return Answer(run, change, recorded_s, before, after, gains, lane_gains, notes, name, checkpoints)


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


class _Replays:
    """Makes the replays of one question.

    Attributes:
        repriced: how calls differ whose work the change affects; None where it affects none.
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
        before, after = change.before, change.after
        self.repriced: RepricedCalls | None = None
        gone: frozenset[Stage] = frozenset()
        if machine is not None and change.needs_costs is not None:
            self.repriced = RepricedCalls(recording, before, after, machine, change.keys)
        elif before.needs_old_log_probs and not after.needs_old_log_probs:
            gone = frozenset({Stage.OLD_LOGPROBS})
        self._before, self._after = self._setting(before), self._setting(after, gone)

    def before(self) -> Replayed:
        """Replay the run as it was."""
        return replay(self._recording, self._before)

    def after(self, factors: Factors | None = None) -> Replayed:
        """Replay the changed run, at another pace where one is given."""
        pace = self._change.factors.times(factors or Factors())
        return replay(self._recording, self._after, pace, self.repriced)

    def _setting(self, scenario: Scenario, gone: frozenset[Stage] = frozenset()) -> Setting:
        before = self._change.before
        rollouts = Rollouts(
            self._recording,
            scenario.prompts_per_batch,
            scenario.group_size,
            recorded_shape=(before.prompts_per_batch, before.group_size),
            validation=scenario.evaluation.prompts,
            seed=scenario.seed,
        )
        same_count = scenario.placement.generator.count == before.placement.generator.count
        return Setting(
            scenario=scenario,
            plan=_plan(scenario, rollouts),
            generators=self._recording.lanes("generator") if same_count else lanes_of("generator", scenario),
            scorers=self._recording.lanes("scorer"),
            rollouts=rollouts,
            contention=self._contention,
            gone=gone,
        )


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
        resolved_replay(scenario),
        checkpoint_every=scenario.checkpoint.every or 0,
        save_policy_every=scenario.save_policy_every or 0,
        max_failed_batches=scenario.max_failed_batches,
    )


def _outcome(replayed: Replayed) -> Outcome:
    table = replayed.table
    return Outcome(step_time(table), stage_times(table), waiting_shares(table, replayed.spans, 0), replayed)


def _stage_gains(recording: Recording, replays: _Replays, after: Outcome) -> tuple[Gain, ...]:
    stages = [name for name in after.stages_s if not Stage(name).is_wait]
    stages += [name for name in stages_of(recording) if name not in list(Stage)]
    seconds = dict(after.stages_s) | {"call": after.stages_s.get(Stage.WAIT_FOR_CALL.value, 0.0)}
    seconds |= {"record": after.stages_s.get(Stage.WAIT_FOR_RECORDER.value, 0.0)}
    gains = [
        Gain(name, seconds[name], _gain(replays, after, Factors(stages={name: FASTER})))
        for name in stages
        if seconds[name]
    ]
    return tuple(sorted(gains, key=lambda item: (-round(item.gain, 9), -item.seconds)))


def _lane_gains(replays: _Replays, after: Outcome) -> tuple[Gain, ...]:
    kinds = dict.fromkeys(lane_kind(lane) for lane in after.idle)
    gains = [Gain(kind, 0.0, _gain(replays, after, Factors(lanes={kind: FASTER}))) for kind in kinds]
    return tuple(sorted(gains, key=lambda item: -round(item.gain, 9)))


def _gain(replays: _Replays, after: Outcome, factors: Factors) -> float:
    return 1 - step_time(replays.after(factors).table) / after.step_s if after.step_s > 0 else 0.0


def _notes(
    run: Run, change: Change, replays: _Replays, after: Outcome, machine: MachineProfile | None
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
    notes += replays.repriced.notes if replays.repriced is not None else ()
    return tuple(notes)
