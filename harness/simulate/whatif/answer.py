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
from harness.simulate.forecast import Estimate, estimate
from harness.simulate.machine import Contention, MachineProfile
from harness.simulate.metrics import RunMetrics, metrics_of_run
from harness.simulate.recorded_run import UNTOLD, RecordedRun
from harness.simulate.simulated_run import SimulatedResult
from harness.simulate.timeline import ASSUMED_SLOWDOWN
from harness.simulate.whatif import ERROR_BOUND
from harness.simulate.whatif.change import Change, choose_machine, read_change, stages_of
from harness.simulate.whatif.replay import CALL, RECORD, Replay
from harness.simulate.whatif.repricing import Repricing, contention_of, undisturbed

FASTER = 0.9
"""Pace of what is made faster, to see what that gives."""
DRAWS = 9
"""Replays behind an interval, where a schedule of drops throws the effect of a change about; the recorded order is one
of them."""


class Gain(NamedTuple):
    """What 10% off something gives.

    Attributes:
        name: a stage, ``call`` or ``record``; or a kind of lane.
        seconds: of it in a step; 0 for a kind of lane.
        gain: by what share of itself the step gets shorter.
        low, high: between which ends that lies with 90%; the same where one replay tells it.
    """

    name: str
    seconds: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Answer:
    """All that is said about a change.

    Attributes:
        recorded: as the run had it; its response tokens a second are 0 where they are not known.
        before, after: the run replayed as it was, and with the change.
        gains: by stage, of the changed run, the largest first.
        lane_gains: by kind of lane, the largest first.
        notes: what to mind.
        machine: name of the profile that was used, if one was.
        checkpoints: what they cost the run, at the interval of the changed one; None where it made none.
        interval: of ``ratio``, where a schedule of drops throws it about.
        shared: the changed run with its parts on the cores that they took turns on, where the change moves them apart.
    """

    run: Run
    change: Change
    recorded: RunMetrics
    before: SimulatedResult
    after: SimulatedResult
    gains: tuple[Gain, ...]
    lane_gains: tuple[Gain, ...]
    notes: tuple[str, ...] = ()
    machine: str | None = None
    checkpoints: CheckpointCost | None = None
    interval: Estimate | None = None
    shared: SimulatedResult | None = None

    @property
    def recorded_step_s(self) -> float:
        """Step time of the run itself."""
        return self.recorded.step_s

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
    figures, where = metrics_of_run(run), str(run.folder)
    if not recorded.has_lengths:
        figures = replace(figures, throughput=0.0)
    if figures.step_s <= 0:
        raise UserError(f"the training steps of the run {where!r} took no time", where, "name another run")
    unchanged = Replay(recorded, alone, record_s, scenario, contention)
    before = unchanged.at({})
    _check_error(where, before.step_s / figures.step_s - 1, bound)

    def changed_on(shared: Contention | None) -> Replay:
        return Replay(recorded, alone, record_s, change.after, shared, repricing)

    changed = changed_on(None if change.moves_apart else contention)
    crowd = _crowd(change, profile, run)
    after, shared = changed.at(change.pace), None if crowd is None else changed_on(crowd).at(change.pace)
    draws = range(DRAWS) if "drop" in (scenario.lag_control, change.after.lag_control) else ()
    drawn_s = [changed.at(change.pace, draw).step_s for draw in draws]

    def gain(name: str, seconds: float = 0.0) -> Gain:
        pace = {**change.pace, name: FASTER * change.pace.get(name, 1.0)}
        if after.step_s <= 0:
            return Gain(name, seconds, 0.0, 0.0, 0.0)
        found = 1 - changed.at(pace).step_s / after.step_s
        spread = _ratio([changed.at(pace, draw).step_s for draw in draws], drawn_s)
        return Gain(name, seconds, found, *((found, found) if spread is None else (1 - spread.high, 1 - spread.low)))

    gains, lane_gains = list[Gain](), list[Gain]()
    if with_gains:
        seconds = {name: s for name, s in after.stages_s.items() if not Stage(name).is_wait}
        for name, wait in ((CALL, Stage.WAIT_FOR_CALL), (RECORD, Stage.WAIT_FOR_RECORDER)):
            if name in stages_of(calls, record_s):
                seconds[name] = after.stages_s.get(wait.value, 0.0)
        gains = [gain(name, s) for name, s in seconds.items() if s]
        lane_gains = [gain(kind) for kind in dict.fromkeys(map(lane_kind, after.idle))]
    used = profile is not None and any(each is not None for each in (contention, crowd, repricing))
    table = table_of(run)
    steps = {int(step) for step in table.steps["step"][table.is_measured]}
    made, every = checkpoint_cost(run, recorded.spans, steps, figures.step_s), change.after.checkpoint.every
    return Answer(
        run=run,
        change=change,
        recorded=figures,
        before=before,
        after=after,
        gains=tuple(sorted(gains, key=lambda each: (-round(each.gain, 9), -each.seconds))),
        lane_gains=tuple(sorted(lane_gains, key=lambda each: -round(each.gain, 9))),
        notes=(*_notes(run, change, after, profile), *after.extrapolating),
        machine=profile.name if profile is not None and used else None,
        checkpoints=None if made is None or every is None else replace(made, every=every),
        interval=None if change.is_none else _ratio(drawn_s, [unchanged.at({}, draw).step_s for draw in draws]),
        shared=shared,
    )


def _ratio(over_s: Sequence[float], under_s: Sequence[float]) -> Estimate | None:
    """Return one step time over another, draw by draw; None without draws."""
    ratios = [one / other if other else 1.0 for one, other in zip(over_s, under_s, strict=True)]
    return estimate(ratios) if ratios else None


def _crowd(change: Change, machine: MachineProfile | None, run: Run) -> Contention | None:
    """Return what parts that move apart cost each other on the cores that they had; None where they share none."""
    if not change.moves_apart or change.before.engine.type == "paced" or run.manifest.machine.get("gpus"):
        return None
    known = machine.contention if machine is not None else None
    return known or Contention(cores=int(run.manifest.machine.get("cores") or 1), slowdown=ASSUMED_SLOWDOWN)


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


def _notes(run: Run, change: Change, after: SimulatedResult, machine: MachineProfile | None) -> list[str]:
    notes, before = [], change.before
    if run.manifest.simulated is not None:
        notes.append(f"the run itself was simulated ({run.manifest.simulated}): its times were predicted, not measured")
    overlaps = not (before.is_synchronous and change.after.is_synchronous)
    shares = not run.manifest.machine.get("gpus") and before.engine.type != "paced"
    if overlaps and shares and machine is None and change.moves_apart:
        notes.append(
            f"what parts on the same cores cost each other is not known here: a slow-down of {ASSUMED_SLOWDOWN:g} is "
            "assumed; name a profile with --machine"
        )
    elif overlaps and shares and machine is None and not on_one_thread(before):
        notes.append(
            "no machine profile matches this run, so parts that overlap on the same cores are taken not to slow each "
            "other down; name one with --machine"
        )
    if change.moves_apart:
        notes.append(
            "each part is taken to have cores or a GPU of its own, as many as it had in the run while it was alone at "
            "work"
        )
        if on_one_thread(before):
            notes.append(
                "what a copy of the weights for the Generator takes is not counted: in one process none is made"
            )
    if change.trains_otherwise and before.engine.type != "paced":
        notes.append(
            "the rollouts are those of the recorded run; a policy that is trained otherwise may write longer or "
            "shorter ones"
        )
    if all(row.warmup or row.profiled for row in after.rows):
        notes.append("the steps that are left are all warm-up, which takes longer than what follows")
    return notes
