"""One simulated run: the real loop over parts that take the time of a cost source, on the virtual clock.

``build_run`` makes the parts of a scenario on a machine profile, ``whatif.replay`` those of a recorded run. Inside of
``run_virtual``: ``built = build_run(scenario, machine, tracer)``, then ``await built.run(observer)``; or all of it at
once with ``simulate_run``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Metric, Metrics, Purpose, RolloutGroup, ScoredBatch, WorkItem
from harness.loop import LoopPlan, Observer, RolloutCounts, StepReport, run_loop
from harness.loop.observer import count
from harness.models.config import ModelConfig
from harness.results import EvaluationRow, StepRow, TailRow, VersionChange, lane_kind, part_of
from harness.results.frames import RunTable
from harness.results.occupancy import Occupancy
from harness.results.rows import WARMUP_FLOOR, LaneSeconds
from harness.results.step_metrics import trained_lags
from harness.scenario.derived import on_one_thread, threads_on, workers_of
from harness.scenario.lanes import all_lanes, lanes_of, publisher_lane, writer_lane
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings
from harness.simulate.clock import VirtualClockLoop, run_virtual
from harness.simulate.cost_model import CostModel, Draw, engine_name, model_name
from harness.simulate.features import Workload, sizes_of
from harness.simulate.lengths import LengthSource, length_source, number_of_prompts
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import stage_times, step_time, table_of_rows, waiting_shares
from harness.simulate.parts import ProfileCosts, SimulatedGenerator, SimulatedLearner, SimulatedScorer, with_rewards
from harness.simulate.ranks import RankCosts, check_ranks_are_priced
from harness.simulate.timeline import CallTimeline, OwnDevice, Place, SharedCores

DRIVER = "driver"


class ForwardingObserver(Observer):
    """An observer that passes everything on; a base for one that changes or takes note of some events."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def on_version(self, lane: str, version: int) -> None:
        self.observer.on_version(lane, version)

    def on_sync(self, lane: str, version: int, measured: Metrics) -> None:
        self.observer.on_sync(lane, version, measured)

    def on_step(self, facts: StepReport) -> None:
        self.observer.on_step(facts)

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        self.observer.on_evaluation(version, scored)

    def on_replaced(self, lane: str, reason: str) -> None:
        self.observer.on_replaced(lane, reason)

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.observer.on_finished(ledger)

    def on_broken_off(self, ledger: RolloutCounts) -> None:
        self.observer.on_broken_off(ledger)


class Bookkeeping(ForwardingObserver):
    """Holds the driver up after each training step: on the virtual clock, nothing else of it runs meanwhile.

    A ``RunRecorder`` writes the spans of that wait itself, if ``take_time`` is called while it is told of a step; for
    another observer they are written here.

    Args:
        observer: is told.
        tracer: takes the spans.
        lanes: that may wait.
        costs: says how long it takes.
        work: counts what is written.
    """

    def __init__(
        self, observer: Observer, tracer: RecordingTracer, lanes: Sequence[str], costs: CostModel, work: Workload
    ) -> None:
        super().__init__(observer)
        self._tracer, self._lanes, self._costs, self._work = tracer, lanes, costs, work
        self._facts: StepReport | None = None
        self._versions: dict[str, int] = {}

    def on_step(self, facts: StepReport) -> None:
        self._facts, start_ns = facts, self._tracer.clock_ns()
        super().on_step(facts)
        if self._facts is not None:
            self.take_time()
            self._idle_since(start_ns, facts.step)

    def take_time(self) -> None:
        """Let the seconds of the step's bookkeeping pass, once."""
        facts, self._facts = self._facts, None
        if facts is None:
            return
        seconds = self._costs.seconds("record", DRIVER, facts.step, self._work.batch(sizes_of(facts.groups)))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        loop.block(seconds)

    def _idle_since(self, start_ns: int, step: int) -> None:
        """Count the time since then as a wait on the lanes that do nothing else, as a ``RunRecorder`` does."""
        now_ns = self._tracer.clock_ns()
        if now_ns > start_ns:
            occupied = {span.lane for span in self._tracer.still_open()}
            self._tracer.finished.extend(
                Span(lane, Stage.WAIT_FOR_RECORDER, start_ns, now_ns, step, self._versions.get(lane, -1))
                for lane in self._lanes
                if lane not in occupied
            )

    def on_version(self, lane: str, version: int) -> None:
        self._versions[lane] = version
        super().on_version(lane, version)


NO_REWARD = 0.0
"""What a rollout gets where the replay buffer asks for rewards: nobody knows what it would be."""
CALL_CORES = 2
"""Cores that a call to an actor would like to have on its way: the driver packs what the actor unpacks, or unpacks what
it packs. In calibration runs with two Generators, calls beside the other one's work took 1.6 times as long as alone."""


@dataclass
class SimulatedRun:
    """The parts of one simulated run.

    Attributes:
        generators, scorers, learner, plan: what ``run_loop`` takes.
        tracer: takes the spans.
        keep_books: returns an observer that passes everything on and takes the time of the driver's bookkeeping.
        said: sentences: where the run, as far as it has come, left what its cost source knows.
        warmup, profiled: numbers of the steps that are in no figure.
        by_arrival: whether a span counts to the step in which it came in, as in a recorded run, and not where it ended.
    """

    generators: Sequence[SimulatedGenerator]
    scorers: Sequence[SimulatedScorer]
    learner: SimulatedLearner
    plan: LoopPlan
    lanes: tuple[str, ...]
    tracer: RecordingTracer
    keep_books: Callable[[Observer], Observer]
    said: Callable[[], tuple[str, ...]]
    warmup: Collection[int] = range(WARMUP_FLOOR)
    profiled: Collection[int] = ()
    by_arrival: bool = False
    _observer: Observer | None = field(default=None, repr=False)

    async def run(self, observer: Observer | None = None) -> None:
        """Run the loop; see ``harness.loop.run_loop``.

        Args:
            observer: hears of events. The driver is held up for its bookkeeping after each training step: inside of
                ``observer.on_step`` where that calls ``on_row``, as a ``RunRecorder`` made with it does; else after it.
        """
        self._observer = self.keep_books(observer or Observer())
        parts = self.generators, self.scorers, self.learner
        await run_loop(*parts, self.plan, self.tracer, self._observer, checkpoints=self.learner)

    def on_row(self, row: StepRow | EvaluationRow) -> None:
        """Take the time of bookkeeping at the row of a training step: what a ``RunRecorder`` calls."""
        if isinstance(self._observer, Bookkeeping) and isinstance(row, StepRow):
            self._observer.take_time()


def build_run(
    scenario: Scenario,
    machine: MachineProfile,
    tracer: RecordingTracer,
    *,
    draw: Draw | None = None,
    shape: ModelConfig | None = None,
    allow: Collection[str] = (),
    costs: CostModel | None = None,
    lengths: LengthSource | None = None,
) -> SimulatedRun:
    """Make the parts of one run.

    Args:
        scenario: one run: its arms and sweep are not looked at.
        machine: the profile.
        tracer: of the virtual clock.
        draw: one possible truth; None: the central prediction, without noise.
        shape: of the model; None: as the scenario's model says.
        allow: circumstances, such as ``engine``, ``transport``, ``precision`` or ``threads``, in which the profile may
            differ from the scenario; ``task``: lengths of another task may stand in.
        costs: says how long things take; None asks the profile.
        lengths: says how long rollouts are; None: as pinned, or as recorded in the profile.

    Raises:
        UserError: the profile lacks something that the scenario needs, or the scenario samples by rewards.
    """
    work = Workload(scenario, shape)
    _check_shape(work)
    check_rewards_are_not_needed(scenario)
    _check_workers_are_priced(scenario, machine)
    check_ranks_are_priced(scenario, machine)
    model = model_name(scenario)
    costs = costs or CostModel(scenario, machine, draw, model=model, allow=allow)
    lengths = lengths or length_source(scenario, machine, model, allow=allow)
    timelines = _Timelines(scenario, machine, tracer, draw)
    delays: dict[str, float] = {str(stage): seconds for stage, seconds in scenario.faults.delays.items()}
    steady = draw is None and type(costs) is CostModel
    plan = loop_plan(scenario, *number_of_prompts(scenario))
    several = scenario.placement.learner.ranks > 1

    def part(lane: str) -> tuple[CallTimeline, ProfileCosts]:
        return timelines.of(lane), ProfileCosts(lane, costs, work, delays, steady)

    generators = [SimulatedGenerator(*part(lane), lengths.groups) for lane in lanes_of("generator", scenario)]
    score = partial(_scored, cap=scenario.sampling.max_tokens, rewarded=plan.replay.capacity > 0)
    scorers = [SimulatedScorer(*part(lane), score) for lane in lanes_of("scorer", scenario)]
    optimizer_steps = scenario.optimizer_steps_per_batch
    timeline, own = timelines.of("learner"), RankCosts("learner", costs, work, machine) if several else None
    apart = replace(timeline, lane=publisher_lane("learner"), thread=timeline.loading)
    lane = writer_lane("learner")
    writer = replace(timeline, lane=lane, thread=lane, loading=lane, remote=False, cores=1, parts=1)
    learner = SimulatedLearner(
        timeline,
        ProfileCosts("learner", costs, work, delays, steady, own),
        optimizer_steps,
        work.weight_bytes,
        work.weight_tensors,
        publisher=apart if plan.overlapped_publish else None,
        tracer=tracer,
        writer=writer if scenario.checkpoint.asynchronous else None,
    )
    lanes = tuple(dict.fromkeys(part_of(lane) for lane in all_lanes(scenario)))  # the ranks are one
    weighted = plan.replay.capacity > 0 and plan.replay.sampling.endswith("_weighted")
    told = ("replay.sampling goes by rewards, which nobody knows: all groups count alike",) * weighted
    told += _crowded(scenario, machine)
    return SimulatedRun(
        generators,
        scorers,
        learner,
        plan,
        lanes,
        tracer,
        keep_books=lambda observer: Bookkeeping(observer, tracer, lanes, costs, work),
        said=lambda: (*costs.extrapolating, *lengths.said, *told),
    )


def _crowded(scenario: Scenario, machine: MachineProfile) -> tuple[str, ...]:
    """Say where more than two parts compute at the same time: what they cost each other is measured between two."""
    ranks = scenario.placement.learner.ranks
    together = max(ranks, scenario.placement.generator.count + (0 if scenario.is_synchronous else ranks))
    if machine.contention is None or together <= 2:
        return ()
    cores = machine.contention.cores
    return (f"contention: {together} parts compute at the same time on {cores} cores, and it was measured between two",)


def check_rewards_are_not_needed(scenario: Scenario) -> None:
    """Refuse what depends on rewards and cannot be simulated without them.

    Raises:
        UserError: the scenario samples groups of equal rewards again.
    """
    attempts = scenario.dynamic_sampling.attempts
    if attempts:
        raise UserError(
            f"dynamic_sampling.attempts is {attempts}, and how many groups have equal rewards is not simulated "
            "[rule: check_rewards_are_not_needed]",
            "dynamic_sampling.attempts",
            "simulate with --set dynamic_sampling.attempts=0; a run shows the share in sampling/discarded_groups",
        )


def _check_workers_are_priced(scenario: Scenario, machine: MachineProfile) -> None:
    """Refuse an engine of several workers where the profile has no cost of its own: one for any engine is of one."""
    name = engine_name(scenario)
    if workers_of(scenario) == 1 or any(cost.where.get("engine") == name for cost in machine.stages):
        return
    raise UserError(
        f"the profile {machine.name} has no cost of generate for engine {name}",
        "engine.tensor_parallel",
        "simulate with --set engine.tensor_parallel=1, or calibrate with runs that have it",
    )


def _check_shape(work: Workload) -> None:
    if work.shape is None and work.scenario.model.type != "paced":
        raise UserError(
            f"the simulator prices a model by its size, which is not known: {work.shape_missing}",
            "model",
            "take a preset, or the folder of a model with a config.json",
        )


def _scored(item: WorkItem, groups: tuple[RolloutGroup, ...], cap: int, rewarded: bool) -> ScoredBatch:
    """Return the groups with what is known of them.

    Args:
        item: their order.
        groups: as sampled.
        cap: ``sampling.max_tokens``: a response as long counts as cut.
        rewarded: whether rollouts get ``NO_REWARD``, since a replay buffer takes none without.
    """
    lengths = [length for group in groups for length in group.lengths]
    prefix = "validation/" if item.purpose is Purpose.EVALUATE else ""
    cut, count = sum([length >= cap for length in lengths]), len(lengths)
    metrics = {
        f"{prefix}response_length": Metric(sum(lengths) / count, count=count),
        f"{prefix}truncated_fraction": Metric(cut / count, count=count),
    }
    rewards = [(NO_REWARD,) * len(group.lengths) if rewarded else () for group in groups]
    return ScoredBatch(item, tuple(map(with_rewards, groups, rewards)), metrics)


class _Timelines:
    """Makes the timeline of each lane, and the places that lanes share."""

    def __init__(self, scenario: Scenario, machine: MachineProfile, tracer: RecordingTracer, draw: Draw | None) -> None:
        self._scenario, self._tracer = scenario, tracer
        self._cores = _shared_cores(machine, draw)
        self._has_gpu = machine.has_gpu
        self._number_of_cores = machine.contention.cores if machine.contention else 1
        self._gpu: Place = SharedCores(1)  # colocated parts share it: together they get its whole speed
        self._takes_turns = on_one_thread(scenario)
        self._thread_of_all = OwnDevice()

    def of(self, lane: str) -> CallTimeline:
        """Return the timeline of a lane."""
        kind = lane_kind(lane)
        part: PartSettings = getattr(self._scenario.placement, kind)
        ranks = self._scenario.placement.learner.ranks if kind == "learner" else 1
        threads = ranks * threads_on(self._number_of_cores, self._scenario, part)
        on_gpu = kind != "scorer" and self._scenario.device_of(part, self._has_gpu) == "cuda"
        return CallTimeline(
            lane=lane,
            tracer=self._tracer,
            place=self._place(on_gpu),
            thread=self._thread(lane),
            loading=self._thread(f"{lane} weights"),
            remote=self._scenario.uses_ray,
            cores=1 if on_gpu else threads,
            transit_cores=CALL_CORES if self._scenario.uses_ray and not on_gpu else 0,
            parts=1 if on_gpu else ranks,
        )

    def _place(self, on_gpu: bool) -> Place:
        """Return where a part works: a GPU of its own, or the one that colocated parts and those of one process share;
        the cores that all share, or a device of its own on a machine where nobody slows anybody down.
        """
        if self._takes_turns:
            return self._cores or self._thread_of_all
        if on_gpu:
            shared = self._scenario.placement.colocated or not self._scenario.uses_ray
            return self._gpu if shared else self._own()
        return self._cores or self._own()

    def _own(self) -> Place:
        """A device for one part; weights that come in the middle of a batch take their share of it."""
        return SharedCores(1) if self._scenario.lag_control == "in_flight" else OwnDevice()

    def _thread(self, name: str) -> str:
        """Colocated parts of one process take turns on one thread; see ``harness.run.inprocess``."""
        return "parts" if self._takes_turns else name


def _shared_cores(machine: MachineProfile, draw: Draw | None) -> Place | None:
    contention = machine.contention
    if contention is None:
        return None
    slowdown = contention.slowdown
    if draw is not None:
        slowdown = draw.at_least_0(slowdown, contention.slowdown_sd, "slowdown")
    return SharedCores(contention.cores, slowdown)


class SimulatedResult(ForwardingObserver):
    """What came of a run: keeps what its loop tells, and is complete when that is over.

    Attributes:
        steps: what the loop told of each training step.
        ends_s: when it told so.
        changes: when which lane took which policy version.
        ledger: what became of the rollouts.
        spans: in the order in which they came in; time 0 is the start of the loop.
        seconds: of the loop.
    """

    def __init__(self, built: SimulatedRun, observer: Observer) -> None:
        super().__init__(observer)
        self._built, self.lanes = built, built.lanes
        self.steps, self.ends_s = list[StepReport](), list[float]()
        self.changes, self.ledger = list[VersionChange](), RolloutCounts()
        self._known: list[tuple[int, int]] = []  # spans and changes by the end of each step
        self.spans, self.seconds = list[Span](), 0.0

    def on_version(self, lane: str, version: int) -> None:
        self.changes.append(VersionChange(asyncio.get_running_loop().time(), lane, version))
        super().on_version(lane, version)

    def on_step(self, facts: StepReport) -> None:
        self.steps.append(facts)
        self.ends_s.append(asyncio.get_running_loop().time())
        self._known.append((len(self._built.tracer.finished), len(self.changes)))
        super().on_step(facts)

    def on_finished(self, ledger: RolloutCounts) -> None:
        self.ledger = ledger
        super().on_finished(ledger)

    async def run(self) -> None:
        """Run the loop."""
        await self._built.run(self)
        self.seconds = asyncio.get_running_loop().time()

    def end(self) -> None:
        """Take the spans, when nothing goes on any more."""
        self.spans = self._built.tracer.drain()

    @property
    def extrapolating(self) -> tuple[str, ...]:
        """Sentences: where the run left what its cost source knows."""
        return self._built.said()

    @cached_property
    def _lane_seconds(self) -> list[LaneSeconds]:
        """Of each step, and of what came after the last one.

        One table of all spans is made here at the end. A ``RunRecorder`` that makes one at each step would make a run
        of a sweep take 1.4 times as long.
        """
        spans, borders = self.spans, [spans for spans, _ in self._known]
        if not self._built.by_arrival:
            spans = sorted(spans, key=attrgetter("end_ns"))
            borders = [bisect_right(spans, round(end_s * 1e9), key=attrgetter("end_ns")) for end_s in self.ends_s]
        table = Occupancy.of(spans)
        return [table.seconds(spans[first:last], first) for first, last in pairwise([0, *borders, len(spans)])]

    @cached_property
    def rows(self) -> list[StepRow]:
        """A row for each training step, as a recorder would have made it."""
        rows, held, since, start_s = list[StepRow](), dict[str, int](), 0, 0.0
        for facts, end_s, (_, until), lanes in zip(
            self.steps, self.ends_s, self._known, self._lane_seconds, strict=False
        ):
            changes, since = self.changes[since:until], until
            held |= {change.lane: change.version for change in changes}
            rows.append(
                StepRow(
                    step=facts.step,
                    version=facts.result.version,
                    wall_s=end_s - start_s,
                    elapsed_s=end_s,
                    optimizer_steps=facts.result.optimizer_steps,
                    lanes=lanes,
                    metrics={"response_tokens": {"sum": count(facts.fresh).tokens, "count": 1}},
                    versions=dict(held),
                    version_changes=tuple(changes),
                    lags=trained_lags(facts),
                    warmup=facts.step in self._built.warmup,
                    profiled=facts.step in self._built.profiled,
                )
            )
            start_s = end_s
        return rows

    @cached_property
    def tail(self) -> TailRow:
        """What ended after the last training step."""
        last_s = self.ends_s[-1] if self.ends_s else 0.0
        changes = tuple(self.changes[self._known[-1][1] if self._known else 0 :])
        return TailRow(max(0.0, self.seconds - last_s), self.seconds, self._lane_seconds[-1], version_changes=changes)

    def table(self, *, without_evaluations: bool = False) -> RunTable:
        """Return its training steps, or those of them in which no evaluation ended if there are any."""
        rows, tail = self.rows, self.tail
        if without_evaluations:
            behind = Stage.EVALUATE.value in tail.stages_s  # which counts to the last step
            plain = [row for row in (rows[:-1] if behind else rows) if not row.stages_s.get(Stage.EVALUATE.value)]
            if plain:
                return table_of_rows(plain)
        return table_of_rows(rows, tail)

    @cached_property
    def _table(self) -> RunTable:
        return self.table()

    @cached_property
    def step_s(self) -> float:
        """Seconds of a training step, as ``harness.simulate.metrics`` has them, as the next two."""
        return step_time(self._table)

    @cached_property
    def stages_s(self) -> Mapping[str, float]:
        """Seconds of each stage and wait in a step, added over the lanes."""
        return stage_times(self._table)

    @cached_property
    def idle(self) -> Mapping[str, float]:
        """Share of the measured window that each lane waited."""
        return waiting_shares(self._table, self.spans, 0)


def simulate_run(
    scenario: Scenario,
    machine: MachineProfile,
    *,
    draw: Draw | None = None,
    observer: Observer | None = None,
    shape: ModelConfig | None = None,
    allow: Collection[str] = (),
    costs: CostModel | None = None,
    lengths: LengthSource | None = None,
) -> SimulatedResult:
    """Run the loop of a scenario on the virtual clock.

    Args:
        scenario: one run.
        machine: the profile.
        draw: one possible truth; None: the central prediction, without noise.
        observer: hears of events, before the driver's bookkeeping after each step takes its time.
        shape, allow, costs, lengths: see ``build_run``.

    Raises:
        UserError: the profile lacks something that the scenario needs.
        RunStopped: as in a real run.
    """
    options: dict[str, Any] = {"draw": draw, "shape": shape, "allow": allow, "costs": costs, "lengths": lengths}
    return on_virtual_clock(lambda tracer: build_run(scenario, machine, tracer, **options), observer)


def on_virtual_clock(
    build: Callable[[RecordingTracer], SimulatedRun], observer: Observer | None = None
) -> SimulatedResult:
    """Build a run inside of a virtual clock, and run its loop."""

    async def main(tracer: RecordingTracer) -> SimulatedResult:
        result = SimulatedResult(build(tracer), observer or Observer())
        await result.run()
        return result

    result, _ = run_virtual(main)
    result.end()
    return result
