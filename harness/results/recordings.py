"""From what ``harness.record`` wrote to the files of a run: spans, steps, manifest.

A recording becomes a run when it is first read, beside its events, which stay. Everything is a function of them: what
a kill left of it, in the events or in an earlier attempt to read them, is made anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from harness.core.errors import UserError
from harness.core.file_locks import holding, is_held
from harness.core.intervals import both, merge
from harness.core.machine import fingerprint
from harness.core.regular_files import read_regular
from harness.core.trace import Span, Stage, stage_named
from harness.core.types import Metric, Metrics
from harness.record import format as form
from harness.record.recording import MAIN_LANE
from harness.record.seams import missing
from harness.results.anonymous import Scrubber
from harness.results.counters import CounterRow
from harness.results.importers.trainers import CROSSWALKS
from harness.results.jsonl import check_schema, read_checked
from harness.results.manifest import Manifest
from harness.results.occupancy import Occupancy
from harness.results.rows import (
    COUNTERS,
    MOST_SECONDS,
    ROLLOUTS,
    SPANS,
    STEPS,
    EvaluationRow,
    StepRow,
    TailRow,
    part_of,
    store_metrics,
    sum_stages,
)
from harness.results.writer import LOG, MANIFEST, RunFolder, timestamp

NANOSECONDS = 10**9
MOST_NS = int(MOST_SECONDS) * NANOSECONDS
VALIDATION = "validation/"
RESPONSE_TOKENS, ROLLOUT_COUNT, OPTIMIZER_STEPS = "tokens", "rollouts", "optimizer_steps"
"""What is counted under a name of ours: response tokens and rollouts of a step, and optimizer steps in it."""


class NoSteps(UserError):
    """A recording has no training step."""


class Facts(msgspec.Struct):
    """``recording.json``; see ``harness.record.recording.program_facts``."""

    scenario: str
    started_at: str
    experiment: str | None = None
    arm: str | None = None
    point: dict[str, Any] = {}
    trainer: str = ""
    block: int | None = None
    position: int | None = None
    seed: int = 0
    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    threads: int | None = None
    arguments: list[str] = []
    environment: list[str] = []


@dataclass
class Events:
    """The events of all processes, on one clock that starts with the first of them.

    Attributes:
        spans: lanes of several processes with one name have numbers.
        begins, ends: of the training steps, in nanoseconds; a step that nobody ended has no end.
        counts, metrics: by step.
        ended: status, error and nanoseconds of how the program ended; None where it was killed.
        last_ns: of all of them.
        seams: places in the trainer's code, and whether this version has them.
        trainer: whose seams were met; empty where none was.
        versions, threads: of the process that counts steps.
        profiled: steps whose time a profiler has part in.
        processes: by their ids, what each is.
        counters: of a process under its lanes, or under what it is where it recorded nothing.
        damaged: lines in the middle of a file that could not be read.
    """

    spans: list[Span] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    counts: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    metrics: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    ended: tuple[str, str | None, int] | None = None
    last_ns: int = 0
    seams: dict[str, bool] = field(default_factory=dict)
    trainer: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    threads: int | None = None
    profiled: set[int] = field(default_factory=set)
    processes: dict[str, str] = field(default_factory=dict)
    counters: list[CounterRow] = field(default_factory=list)
    damaged: int = 0


def make_run(folder: Path) -> None:
    """Make a recording a run, unless it is one already.

    Raises:
        UserError: it is still being recorded, has no training step, is damaged, or cannot be written to.
    """
    try:
        with holding(folder, wait=True):
            if not (folder / MANIFEST).exists():
                _make_run(folder)
    except OSError as error:
        what = f"cannot make a run of the recording {str(folder)!r}: {error.strerror or error}"
        raise UserError(what, str(folder), "copy it to a folder that you can write to") from error


def _make_run(folder: Path) -> None:
    facts = read_checked(folder / form.RECORDING, lambda data: _facts(data, str(folder / form.RECORDING)))
    files = sorted((folder / form.EVENTS).glob("*.jsonl"))
    if any(map(is_held, files)):
        raise UserError(f"{str(folder)!r} is still being recorded", str(folder), "wait until the program has ended")
    events = _read_events(files)
    if not events.begins:
        what = f"the recording {str(folder)!r} has no training step: record.step(n) was not called"
        raise NoSteps(what, str(folder), "call record.step(n) where a training step begins, and record again")
    for name in (STEPS, SPANS, ROLLOUTS, COUNTERS, LOG):  # of an attempt that was killed
        (folder / name).unlink(missing_ok=True)
    began = datetime.fromisoformat(facts.started_at)
    events.spans += _waits(events)
    rows, startup_ns = _rows(events)
    with RunFolder(folder, Scrubber.of_this_process(), lambda: began) as run:
        run.append_spans([*_startups(events, startup_ns), *sorted(events.spans, key=lambda span: span.end_ns)])
        run.append(*rows, *events.counters)
        run.log(f"recorded from {facts.trainer or 'a program of the user'}: {len(events.spans)} spans")
        if events.damaged:
            run.log(f"{events.damaged} events were damaged and are left out")
        for place in missing(facts.trainer, events.seams):
            run.log(f"not recorded: this version of {facts.trainer or 'the trainer'} has no {place}")
        run.flush()
        run.write_manifest(_manifest(facts, events, startup_ns, folder.name))


def _facts(data: bytes, where: str) -> Facts:
    check_schema(data, form.SCHEMA, where)
    facts = msgspec.json.decode(data, type=Facts)
    datetime.fromisoformat(facts.started_at)
    return facts


# ---- events


def _read_events(files: Sequence[Path]) -> Events:
    """Read the events of each process, those that a kill cut too."""
    by_file = [_lines(file) for file in files]
    starts = [own[0][3] for own, _ in by_file if own and own[0][0] == form.PROCESS]
    origin_ns = min(starts, default=0)
    events = Events(damaged=sum(damaged for _, damaged in by_file))
    lanes: dict[str, int] = {}
    leader = min((own for own, _ in by_file), key=_rank, default=[])
    processes: dict[str, str] = {}
    for own, _ in by_file:
        names: dict[str, str] = {}
        for event in own:
            with suppress(ValueError, TypeError, IndexError, OverflowError):
                _take(event, events, origin_ns, names, lanes, own is leader)
                continue
            events.damaged += 1
        if own and own[0][0] == form.PROCESS and names:
            processes[str(own[0][1])] = "+".join(names.values())
    for pid, kind in events.processes.items():
        processes.setdefault(pid, _free(kind, lanes))
    events.counters = [structs.replace(row, source=processes.get(row.source, row.source)) for row in events.counters]
    return events


def _rank(own: Sequence[Sequence[Any]]) -> tuple[bool, bool, Any]:
    """Return a key by which the process that leads comes first: it counts steps, is rank 0, or was the first to."""
    first_ns = next((event[2] for event in own if event[0] == form.STEP and len(event) > 2), None)
    is_first = any(event[0] == form.SPAN and event[1:2] in (["learner"], ["learner/0"]) for event in own)
    return first_ns is None, not is_first, first_ns if isinstance(first_ns, int) else 0


def _lines(file: Path) -> tuple[list[list[Any]], int]:
    """Return the events of a file, and how many lines of it could not be read; a last line without its end is none."""
    data = read_regular(file)
    data = data[: data.find(b"\0")] if b"\0" in data else data
    events, damaged = list[list[Any]](), 0
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            event = None
        if isinstance(event, list) and event and isinstance(event[0], str):
            events.append(event)
        else:
            damaged += 1
    return events, damaged


def _take(
    event: list[Any], events: Events, origin_ns: int, names: dict[str, str], lanes: dict[str, int], leads: bool
) -> None:
    """Add one event; steps, counts and metrics are those of the process that counts steps."""

    def at(value: Any) -> int:
        moment = int(value) - origin_ns
        if not 0 <= moment <= MOST_NS:
            raise ValueError("outside of the run")
        events.last_ns = max(events.last_ns, moment)
        return moment

    match event[0]:
        case form.SPAN:
            _, lane, name, start, end, step = event[:6]
            if lane not in names:
                names[lane] = _free(str(lane)[: form.MOST_NAME] or "unnamed", lanes)
            span = Span(
                names[lane], stage_named(str(name)[: form.MOST_NAME] or "unnamed"), at(start), at(end), int(step), -1
            )
            if span.end_ns < span.start_ns:
                raise ValueError("it ends before it begins")
            events.spans.append(span)
        case form.PROGRAM if leads:
            events.versions = {str(package): str(version) for package, version in event[1].items()}
            events.threads = None if event[2] is None else int(event[2])
        case form.STEP if leads:
            events.begins.setdefault(int(event[1]), at(event[2]))
        case form.END_OF_STEP if leads:
            events.ends[int(event[1])] = at(event[2])
        case form.COUNT:
            for name, value in event[2].items():
                events.counts[int(event[1])][name] += float(value)
        case form.METRICS if leads:
            events.metrics[int(event[1])] |= {name: float(value) for name, value in event[2].items()}
        case form.SEAM:
            events.seams[str(event[2])] = bool(event[3]) or events.seams.get(str(event[2]), False)
            events.trainer = str(event[1]) if event[3] else events.trainer
        case form.PROFILED if leads:
            events.profiled.add(int(event[1]))
        case form.PROCESS:
            events.processes[str(event[1])] = str(event[2])[: form.MOST_NAME] or "unnamed"
        case form.COUNTERS:
            row = dict(zip(("at_ns", "source", "values", "missing"), event[1:], strict=True))
            events.counters.append(msgspec.convert(row | {"at_ns": int(row["at_ns"]) - origin_ns}, CounterRow))
        case form.END:
            events.ended = str(event[1]), None if event[2] is None else str(event[2]), at(event[3])


def _free(lane: str, lanes: dict[str, int]) -> str:
    """Return a name for a lane of another process: a second ``worker`` is ``worker-2``."""
    lanes[lane] = lanes.get(lane, 0) + 1
    return lane if lanes[lane] == 1 else f"{lane}-{lanes[lane]}"


# ---- rows


def _waits(events: Events) -> Iterator[Span]:
    """Yield the waits of the loop's lane: what is not recorded of it while another part works.

    No recording tells what a loop waits for. A rank works beside it, and is no other part.
    """
    loop = [(span.start_ns, span.end_ns) for span in events.spans if span.lane == MAIN_LANE]
    others = [(span.start_ns, span.end_ns) for span in events.spans if part_of(span.lane) != MAIN_LANE]
    if not loop or not others:
        return
    steps = sorted(events.begins)
    begins = [events.begins[step] for step in steps]
    edges = [(begins[0], begins[0]), *(each for each in merge(loop) if each[1] > begins[0]), (events.last_ns,) * 2]
    idle = [(before[1], after[0]) for before, after in pairwise(edges)]
    for start_ns, end_ns in both(others, [each for each in idle if each[0] < each[1]]):
        step = steps[max(0, bisect_right(begins, start_ns) - 1)]
        yield Span(MAIN_LANE, Stage.WAIT_FOR_BATCH, start_ns, end_ns, step, -1)


def _rows(events: Events) -> tuple[list[StepRow | EvaluationRow | TailRow], int]:
    """Return a row for each training step and one for what came after them, and when the first step began.

    A row reaches from the end of the one before to the end of its step: where the caller said so, else where the next
    step begins, and for the last one where the program ended, or its last event. What follows a last step with an end
    of its own reaches to the last span: how long a program takes to leave is no part of training.
    """
    steps = sorted(events.begins)
    end_ns = max(events.last_ns, 0 if events.ended is None else events.ended[2])
    if steps[-1] in events.ends:
        end_ns = max(events.ends[steps[-1]], *(span.end_ns for span in events.spans), 0)
    begins = [events.begins[step] for step in steps]
    ends = [events.ends.get(step, after) for step, after in zip(steps, [*begins[1:], end_ns], strict=True)]
    edges = np.maximum.accumulate([begins[0], *ends, end_ns])
    lanes = Occupancy.of(events.spans, np.stack((edges[:-1], edges[1:]), axis=1)).lanes_by_window()
    logged = _Logged.of(events)
    rows = list[StepRow | EvaluationRow | TailRow](_evaluated(logged, form.NO_STEP, 0.0))
    for place, step in enumerate(steps):
        wall_s = (edges[place + 1] - edges[place]) / NANOSECONDS
        counts = events.counts.get(step, {})
        rows.append(
            StepRow(
                step=step,
                version=step + 1,
                wall_s=wall_s,
                elapsed_s=(edges[place + 1] - edges[0]) / NANOSECONDS,
                profiled=step in events.profiled,
                optimizer_steps=int(counts.get(OPTIMIZER_STEPS, 1)),
                lanes=lanes[place],
                stages_s=sum_stages(lanes[place]),
                metrics=store_metrics(_metrics(counts, logged.training.get(step, {}), wall_s)),
            )
        )
        rows += _evaluated(logged, step, (edges[place + 1] - edges[0]) / NANOSECONDS)
    if events.ended is not None:
        tail_s, elapsed_s = (edges[-1] - edges[-2]) / NANOSECONDS, (edges[-1] - edges[0]) / NANOSECONDS
        rows.append(TailRow(wall_s=tail_s, elapsed_s=elapsed_s, lanes=lanes[-1]))
    return rows, int(edges[0])


@dataclass
class _Logged:
    """What was logged at each step, of training and of evaluations, under our names where the trainer's are known."""

    training: dict[int, dict[str, Metric]] = field(default_factory=dict)
    evaluation: dict[int, dict[str, Metric]] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Events) -> _Logged:
        logged, crosswalk = cls(), CROSSWALKS.get(events.trainer)
        for step, values in events.metrics.items():
            if crosswalk is None:
                logged.training[step] = {name: Metric(value) for name, value in values.items()}
                continue
            renamed = crosswalk.renamed(values)
            is_evaluated = {name: name.startswith(VALIDATION) or not crosswalk.is_training(name) for name in renamed}
            logged.training[step] = {name: metric for name, metric in renamed.items() if not is_evaluated[name]}
            logged.evaluation[step] = {name: metric for name, metric in renamed.items() if name.startswith(VALIDATION)}
        return logged


def _evaluated(logged: _Logged, step: int, elapsed_s: float) -> Iterator[EvaluationRow]:
    """Yield the evaluation after a step, or before the first one, where there was one."""
    if metrics := logged.evaluation.get(step):
        yield EvaluationRow(version=step + 1, step=step + 1, elapsed_s=elapsed_s, metrics=store_metrics(metrics))


def _metrics(counts: Mapping[str, float], logged: Metrics, wall_s: float) -> Metrics:
    """Return the metrics of a step: tokens and rollouts under our names, and what else was counted or told."""
    found = dict(logged)
    tokens, rollouts = counts.get(RESPONSE_TOKENS), counts.get(ROLLOUT_COUNT)
    if tokens is not None:
        found["response_tokens"] = Metric(tokens, "sum")
        if wall_s > 0:
            found["perf/throughput_total"] = Metric(tokens / wall_s)
        if rollouts:
            found["response_length"] = Metric(tokens / rollouts, count=int(rollouts))
    known = (RESPONSE_TOKENS, OPTIMIZER_STEPS)
    return found | {f"counted/{name}": Metric(value, "sum") for name, value in counts.items() if name not in known}


def _startups(events: Events, startup_ns: int) -> Iterator[Span]:
    """Before the first step, each lane of the loop started up."""
    for lane in dict.fromkeys(span.lane for span in events.spans):
        if startup_ns > 0:
            yield Span(lane, Stage.STARTUP, 0, startup_ns, form.NO_STEP, -1)


def _manifest(facts: Facts, events: Events, startup_ns: int, name: str) -> Manifest:
    status, error, end_ns = events.ended or ("failed", "the program was killed", events.last_ns)
    began = datetime.fromisoformat(facts.started_at)
    machine = {key: facts.machine.get(key) for key in ("cpu", "cores", "memory_gib", "gpus")}
    return Manifest(
        scenario=facts.scenario,
        experiment=facts.experiment or name,
        arm=facts.arm,
        point=facts.point,
        block=facts.block,
        position=facts.position,
        seed=facts.seed,
        started_at=facts.started_at,
        finished_at=timestamp(began + timedelta(microseconds=end_ns // 1000)),
        duration_s=round(end_ns / NANOSECONDS, 3),
        startup_s=round(startup_ns / NANOSECONDS, 3),
        status=status,
        error=error,
        versions=dict(events.versions or facts.versions),
        machine={"fingerprint": fingerprint(machine)} | facts.machine,
        threads=events.threads or facts.threads,
        outcome={
            "recorded": {
                "trainer": facts.trainer or events.trainer,
                "arguments": facts.arguments,
                "damaged": events.damaged,
            }
        },
    )
