"""What a change does: the run replayed as it was and as it would be, and what 10% off each stage would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.compare.checkpoints import CheckpointCost, checkpoint_cost, has_kept_steps
from harness.compare.numbers import percent
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.results import Run, lane_kind
from harness.results.frames import table_of
from harness.results.rows import SPANS
from harness.scenario.derived import on_one_thread
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import step_time
from harness.simulate.recorded_run import UNTOLD, RecordedRun
from harness.simulate.whatif import ERROR_BOUND
from harness.simulate.whatif.change import Change, choose_machine, read_change, stages_of
from harness.simulate.whatif.replay import CALL, RECORD, Replay, Replayed
from harness.simulate.whatif.repricing import Repricing, contention_of, undisturbed

FASTER = 0.9
"""Pace of what is made faster, to see what that gives."""


class Gain(NamedTuple):
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
    before: Replayed
    after: Replayed
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
    recorded = RecordedRun(run)
    scenario = recorded.scenario
    check_can_be_replayed(recorded)
    calls, record_s = recorded.calls(on_one_thread(scenario))
    change = read_change(recorded, stages_of(calls, record_s), settings, scales)
    profile = choose_machine(run, machine, change.needs_costs)
    if change.needs_lengths and not recorded.has_lengths:
        what = f"{change.needs_costs}, and this run has not recorded how long its rollouts were"
        fix = "run the scenario again with this version, which records it, and ask that run"
        raise UserError(what, "groups.jsonl", fix)
    contention = contention_of(scenario, profile)
    alone = undisturbed(calls, contention, scenario)
    repricing = None
    if profile is not None and change.needs_costs is not None:
        repricing = Repricing(recorded, change.after, profile, change.keys)
    table, where = table_of(run), str(run.folder)
    recorded_s = step_time(table)
    if recorded_s <= 0:
        raise UserError(f"the training steps of the run {where!r} took no time", where, "name another run")
    before = Replay(recorded, alone, record_s, scenario, contention).at({})
    _check_error(where, before.step_s / recorded_s - 1, bound)
    changed = Replay(recorded, alone, record_s, change.after, contention, repricing)
    after = changed.at(change.pace)

    def gain(name: str, seconds: float = 0.0) -> Gain:
        pace = {**change.pace, name: FASTER * change.pace.get(name, 1.0)}
        return Gain(name, seconds, 1 - changed.at(pace).step_s / after.step_s if after.step_s > 0 else 0.0)

    gains, lane_gains = list[Gain](), list[Gain]()
    if with_gains:
        seconds = {name: s for name, s in after.stages_s.items() if not Stage(name).is_wait}
        for name, wait in ((CALL, Stage.WAIT_FOR_CALL), (RECORD, Stage.WAIT_FOR_RECORDER)):
            if name in stages_of(calls, record_s):
                seconds[name] = after.stages_s.get(wait.value, 0.0)
        gains = [gain(name, s) for name, s in seconds.items() if s]
        lane_gains = [gain(kind) for kind in dict.fromkeys(map(lane_kind, after.idle))]
    used = profile is not None and (contention is not None or repricing is not None)
    steps = {int(step) for step in table.steps["step"][table.is_measured]}
    made, every = checkpoint_cost(run, recorded.spans, steps, recorded_s), change.after.checkpoint.every
    return Answer(
        run=run,
        change=change,
        recorded_step_s=recorded_s,
        before=before,
        after=after,
        gains=tuple(sorted(gains, key=lambda each: (-round(each.gain, 9), -each.seconds))),
        lane_gains=tuple(sorted(lane_gains, key=lambda each: -round(each.gain, 9))),
        notes=(*_notes(run, change, after, profile), *(repricing.notes if repricing else ())),
        machine=profile.name if profile is not None and used else None,
        checkpoints=None if made is None or every is None else replace(made, every=every),
    )


def check_can_be_replayed(recorded: RecordedRun) -> None:
    """Refuse a run whose calls are not all there, or cannot be told apart.

    Raises:
        UserError: it has no spans or no training steps, did not finish, or a part of it died.
    """
    run, where = recorded.run, str(recorded.run.folder)
    if run.syncs:
        what = f"{where!r} is a transport sweep, which trains nothing, so there is nothing to replay"
        raise UserError(what, where, "name a training run")
    if not run.steps or run.tail is None:
        raise UserError(f"the run {where!r} did not get to its end ({run.status})", where, "name a completed run")
    for key, did in UNTOLD.items():
        if run.setting(key):
            raise UserError(f"the run {where!r} {did}, which a replay does not do", where, "name a run without it")
    if not recorded.spans:
        what = f"the run {where!r} has no spans, so there is nothing to replay"
        raise UserError(what, str(run.folder / SPANS), "name another run")
    if died := ", ".join(f"{lane} {times} times" for lane, times in run.replaced.items() if times):
        what = f"parts of the run {where!r} died and were replaced ({died}): their calls cannot be told apart"
        raise UserError(what, where, "name a run in which nothing died")
    if has_kept_steps(run):
        what = f"the run {where!r} kept training steps, whose saves cannot be told from those of checkpoints"
        raise UserError(what, where, "name a run without checkpoint.keep_steps")


def _check_error(where: str, error: float, bound: float) -> None:
    """Refuse to predict from a run whose own replay is off."""
    if abs(error) > bound:
        what = (
            f"replayed as it was, a training step of this run is off by {percent(abs(error))} of its time, more than "
            f"the bound of {percent(bound)}: what a change does would be no surer"
        )
        raise UserError(what, where, "name another run")


def _notes(run: Run, change: Change, after: Replayed, machine: MachineProfile | None) -> list[str]:
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
    if all(row.warmup or row.profiled for row in after.rows):
        notes.append("the steps that are left are all warm-up, which takes longer than what follows")
    for work, calls in after.borrowed.items():
        times = f"1 call to {work.value} was" if calls == 1 else f"{calls} calls to {work.value} were"
        notes.append(f"{times} never recorded and {'takes' if calls == 1 else 'take'} the time of others of this run")
    return notes
