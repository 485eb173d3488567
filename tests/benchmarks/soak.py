"""Commands and runs that are struck at drawn moments, and run after run: each ends as stated and leaves nothing.

signals  Five small runs on Ray, as commands, meet SIGKILL, SIGSTOP or SIGTERM of the driver, a part or a rank. What is
         right depends on the moment, which is looked up in run folders and ``/proc`` (``Moment``, ``expected``): one
         exit code, one line, and for each arm one status or no run folder.
kills    SIGKILL of a command, in one process or on Ray, or of its Learner alone, in a save or between two; it goes on
         and ends with the bytes of the policy of a run that nobody disturbed.
ranks    A rank of a Learner of two is killed, while it starts too, or stopped: the run ends in time and by the rank's
         name, or as a stall with the stacks and last calls of both.
row      Run after run in one process: processes, descriptors, shared memory, temporary files and resident memory are no
         more after the last than after the second. Ray itself leaves up to two sockets at each start.

Processes, shared memory and temporary files that are left 10 s later count as wrong. Exits with 1 if anything did.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.core.errors import HarnessError
from harness.core.trace import RecordingTracer
from harness.report.document import Table
from harness.results import Run, find_runs, load_run
from harness.results.writer import MANIFEST
from harness.run.actors.part import CLOSE_S, LAST_WORDS_S, LEAST_START_S
from harness.run.experiment import go_on_with, run_scenario
from harness.run.factory import PartsFactory
from harness.run.interleaving import interleaving_of, order_in_block, points_of
from harness.run.parts import RunningParts
from harness.run.watchdog import DUMP_S
from harness.scenario.axes import expand
from harness.scenario.lanes import all_lanes
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.benchmarks.runner import ROOT, counted, parser, publish
from tests.e2e.conftest import Traces

EXAMPLE = "python -m tests.benchmarks.soak signals --seed 3        # about an hour; --only vllm_sync: one of five"
PART = "ray::PartActor"
GONE_S, PATIENCE_S, BUSY_S = 10.0, 300.0, 5.0
"""Seconds in which what a command leaves goes by itself; that a test waits for a moment; that a loaded machine adds."""


class Outcome(NamedTuple):
    """How one case ended: its kind, what happened, and what was not as it is to be."""

    kind: str
    said: str
    wrong: list[str]


Outcomes = Iterator[Outcome]


@dataclass(frozen=True)
class Place:
    """Where everything happens, and what this process's own runs leave."""

    base: Path
    traces: Traces

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.base))

    def command(self, out: Path, scenario: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Traces]:
        """Start ``harness run``, whose output goes into ``said.txt``; return it, and what it leaves."""
        traces = Traces(Path(tempfile.mkdtemp(prefix="t", dir=self.base)))
        command = [sys.executable, "-m", "harness", "run", scenario, "--quiet", "--out", str(out), *arguments]
        with (out.parent / "said.txt").open("w") as file:
            return subprocess.Popen(command, env=os.environ | traces.environment, stdout=file, stderr=file), traces


@contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as base:
        (temporary := Path(base) / "t").mkdir()
        traces = Traces(temporary)
        os.environ.update(traces.environment | {"PYTHONPATH": f"{ROOT}:{base}"})
        sys.path.insert(0, base)
        tempfile.tempdir = None  # read TMPDIR again
        with chdir(base):  # paths of a saved scenario are those below it
            yield Place(Path(base), traces)


def files_in(traces: Traces) -> list[str]:
    return [name for name in os.listdir(traces.folder) if not name.startswith("torchinductor_")]  # torch's own cache


def left_of(traces: Traces, beside_ray: bool = False, before: Sequence[object] = ()) -> list[str]:
    """Return what is left after a while: of a command everything, of a run in this process its parts and files."""
    end_s = time.monotonic() + GONE_S
    while True:
        processes = [line for pid, line in traces.processes(PART if beside_ray else "").items() if pid not in before]
        shared = [name for name in traces.shared_memory() if not (beside_ray and "plasma" in name)]
        files = files_in(traces)
        if beside_ray:
            files = [str(file) for file in traces.folder.glob("grpo-*/ranks-*/*") if str(file) not in before]
        found = [*processes, *shared, *files]
        if not found or time.monotonic() > end_s:
            return [f"left: {found}"] if found else []
        time.sleep(0.1)


def code_of(process: subprocess.Popen[bytes], limit_s: float, wrong: list[str]) -> int:
    """Return a command's exit code; one that outlasts its limit is wrong, and killed."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        wrong.append(f"it had not ended after {limit_s:g} s")
        process.kill()
        return process.wait()


def run_here(file: Path, out: Path, factory: PartsFactory, started: Callable[[Mapping[str, int]], object]) -> str:
    """Make a run in this process; ``started`` gets its processes once they are there. Return the error's message."""

    def build(scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = factory(scenario, tracer, should_stop)
        started(parts.processes())
        return parts

    try:
        run_scenario(load_scenario(file), out, quiet=True, build=build, show=lambda _: None)
    except HarnessError as error:
        return str(error)
    return ""


# ---- row


WARM, RAYS_OWN, MEMORY_MIB = 2, 2, 60
"""Runs after which everything is loaded; descriptors that each start of Ray leaves; MiB by which memory may grow."""


def row(where: Place, options: argparse.Namespace) -> Outcomes:
    traces, own, held = where.traces, psutil.Process(), list[dict[str, int]]()
    settings = [*SMALL, *SCENARIOS["sync_k1"]]
    for number in range(options.runs):
        run_scenario(load_scenario("sync_k1", settings), where.base / "out", quiet=True, show=lambda _: None)
        gc.collect()
        entries = [Path("/dev/shm", name) for name in traces.shared_memory()]
        shared = sum(entry.stat().st_size for entry in entries if entry.exists())
        now = {"processes": len(traces.processes()), "descriptors": own.num_fds(), "bytes in /dev/shm": shared}
        held.append(now | {"files": len(files_in(traces)), "MiB resident": own.memory_info().rss >> 20})
        warm, last = held[min(number, WARM - 1)], held[-1]
        allowed = {"descriptors": RAYS_OWN * max(0, number + 1 - WARM), "MiB resident": MEMORY_MIB}
        grown = [
            f"{name} {warm[name]} to {last[name]}" for name in last if last[name] > warm[name] + allowed.get(name, 0)
        ]
        said = ", ".join(f"{value} {name}" for name, value in last.items())
        yield Outcome("row", said, grown if number == options.runs - 1 else [])


# ---- ranks

RANKS = ("killed", "killed at the start", "stopped")
RANKS_STALL_S = 12.0
DEATH_S = LAST_WORDS_S + CLOSE_S + BUSY_S
HANG_S = RANKS_STALL_S + 4 * DUMP_S + CLOSE_S + BUSY_S
OF_RANKS = """
model: {{type: preset, preset: tiny, warm_start: false, threads: 1}}
sampling: {{max_tokens: 8}}
rollout_batch_size: 12
group_size: 4
epochs_per_batch: 2
steps: 100000
loss: {{kl: {{coefficient: 0.1}}}}
evaluation: {{every: 100000, prompts: 2, examples: 1}}
engine: {{type: native, mismatch_bound: 1.0e-4}}
transport: {{type: shared_memory}}
placement: {{learner: {{ranks: 2}}}}
learner: {{sharding: {sharding}}}
faults: {{stall_after_s: {stall_s}}}
"""


def ranks(where: Place, options: argparse.Namespace) -> Outcomes:
    with PartsFactory() as factory:
        for number in range(options.first, options.first + options.runs):
            rng = random.Random(f"{options.seed} {number}")
            kind, rank, delay_s = RANKS[number % len(RANKS)], rng.randrange(2), rng.uniform(0, 3)
            yield struck_rank(where, factory, kind, rank, delay_s, options.sharding)
    if left := left_of(where.traces):
        yield Outcome("Ray's end", "", left)


def struck_rank(where: Place, factory: PartsFactory, kind: str, rank: int, delay_s: float, sharding: str) -> Outcome:
    home, traces, struck = where.new(), where.traces, list[float]()
    file = home / "trial.yaml"
    file.write_text(OF_RANKS.format(sharding=sharding, stall_s=RANKS_STALL_S))
    before = [*traces.processes(), *map(str, traces.folder.glob("grpo-*/ranks-*/*"))]

    def strike(pid: int) -> None:
        struck.append(time.monotonic())
        os.kill(pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)

    def strike_a_start() -> None:
        while len(begun := sorted(set(traces.processes(PART)) - set(before))) < 2:
            time.sleep(0.05)
        time.sleep(delay_s)
        strike(begun[rank])

    def started(pids: Mapping[str, int]) -> None:
        if kind != "killed at the start":
            threading.Timer(delay_s, strike, [pids[f"learner/{rank}"]]).start()

    if kind == "killed at the start":
        threading.Thread(target=strike_a_start, daemon=True).start()
    message = run_here(file, home / "out", factory, started)
    seconds = time.monotonic() - struck[0] if struck else math.inf
    died = rf"learner/{rank} died" if kind == "killed" else r"(learner/\d|generator|scorer) died"
    wrong = [] if re.search("stall_after_s" if kind == "stopped" else died, message) else [f"it said: {message}"]
    if kind == "stopped":
        log = "".join(file.read_text() for file in home.glob("out/trial/*/log.txt"))
        wanted = [said for each in (0, 1) for said in (f"stacks of learner/{each} (process ", f"learner/{each} last: ")]
        wrong += [f"no {words!r} in the log" for words in wanted if words not in log]
    if seconds > (limit := HANG_S if kind == "stopped" else DEATH_S):
        wrong.append(f"ended after {seconds:.1f} s, later than {limit:g}")
    said = f"rank {rank} after {delay_s:.2f} s: ended after {seconds:.1f} s"
    return Outcome(kind, said, wrong + left_of(traces, True, before))


# ---- kills

STEPS = 12
OF_KILLS = """
name: resumed
task: {{type: jsonl, train: prompts.jsonl, reward: "rewards_of_soak:by_length", reward_timeout_s: null}}
model: {{type: preset, preset: tiny, precision: float32, warm_start: false, threads: 1}}
engine: {{precision: float32}}
sampling: {{max_tokens: 6}}
steps: {steps}
rollout_batch_size: 8
group_size: 4
epochs_per_batch: 2
optimizer: {{learning_rate: 0.001}}
loss: {{kl: {{coefficient: 0.1}}}}
replay: {{capacity: 4, sample_groups: 2}}
evaluation: {{every: 4, prompts: 4, examples: 1}}
checkpoint: {{every: 2, asynchronous: {asynchronous}}}
profile: "off"
trackers: [jsonl]
faults: {{delays: {{update: 0.1}}}}
"""
OF_KILLS_ON_RAY = """
transport: {{type: shared_memory}}
learner: {{sharding: {sharding}}}
placement: {{learner: {{ranks: {ranks}, cpus: 0.25}}, generator: {{cpus: 0.25}}, scorer: {{cpus: 0.25}}}}
"""


@dataclass
class Kill:
    """One kill: of the ``driver`` or ``learner``, in or after the ``save``-th checkpoint; ``rank`` is the Learner's."""

    whom: str
    when: str
    save: int
    delay_s: float
    rank: int
    on_ray: bool
    asynchronous: bool
    struck_s: float = math.nan

    @classmethod
    def drawn(cls, number: int, options: argparse.Namespace) -> Kill:
        rng = random.Random(f"{options.seed} {number}")
        whom, when = ("driver", "learner")[number % 2], ("in a save", "between saves")[number // 2 % 2]
        delay_s = rng.uniform(0, 0.002) if when == "in a save" else rng.uniform(0, 0.6)
        on_ray = whom == "learner" or number // 4 % 2 == 1
        return cls(whom, when, rng.randrange(2, 5), delay_s, rng.randrange(options.ranks), on_ray, rng.random() < 0.5)

    def write(self, home: Path, num_ranks: int) -> Path:
        more = OF_KILLS_ON_RAY.format(ranks=num_ranks, sharding="fsdp2" if num_ranks > 1 else "ddp")
        text = OF_KILLS.format(steps=STEPS, asynchronous=json.dumps(self.asynchronous)) + (more if self.on_ray else "")
        (home / "resumed.yaml").write_text(text)
        return home / "resumed.yaml"

    def strike(self, out: Path, pid: int, is_over: Callable[[], bool]) -> None:
        """Wait for the moment, then kill."""
        seen, end_s = set[str](), time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and not is_over():
            names = {file.name for file in out.glob("resumed/*/checkpoints/step_*")}
            seen |= {name for name in names if "." not in name}
            in_save = any(name.endswith(".tmp") for name in names) and len(seen) == self.save - 1
            if in_save if self.when == "in a save" else len(seen) >= self.save:
                time.sleep(self.delay_s)
                os.kill(pid, signal.SIGKILL)
                self.struck_s = time.monotonic()
                return
            time.sleep(0.0005)


def kills(where: Place, options: argparse.Namespace) -> Outcomes:
    (where.base / "rewards_of_soak.py").write_text(
        "def by_length(response, truth):\n    return float(len(response) % 4)\n"
    )
    prompts = [json.dumps({"prompt": f"Write about {number}", "answer": str(number)}) for number in range(12)]
    (where.base / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    drawn = [Kill.drawn(number, options) for number in range(options.first, options.first + options.runs)]
    policies: dict[bool, bytes] = {}
    with PartsFactory() as factory:
        for case in drawn:
            if case.on_ray not in policies:
                file = case.write(where.new(), options.ranks)
                run_here(file, file.parent / "out", factory, lambda pids: None)
                policies[case.on_ray] = policy_of(only_run(file.parent / "out"))
        for case in drawn:
            if case.whom == "learner":
                yield killed_learner(where, factory, case, options.ranks, policies[True])
    for case in drawn:
        if case.whom == "driver":
            yield killed_driver(where, case, options.ranks, policies[case.on_ray])


def killed_learner(where: Place, factory: PartsFactory, case: Kill, num_ranks: int, policy: bytes) -> Outcome:
    file, over = case.write(where.new(), num_ranks), threading.Event()
    out, before = file.parent / "out", list(where.traces.processes())

    def started(pids: Mapping[str, int]) -> None:
        pid = pids["learner" if num_ranks == 1 else f"learner/{case.rank}"]
        threading.Thread(target=case.strike, args=(out, pid, over.is_set)).start()

    message = run_here(file, out, factory, started)
    over.set()
    wrong = []
    if message and case.struck_s > 0:
        go_on_with(only_run(out), load_scenario(file), True, build=factory, show=lambda _: None)
    elif message:
        wrong.append(f"it said: {message}")
    return ended(case, out, policy, wrong + left_of(where.traces, True, before))


def killed_driver(where: Place, case: Kill, num_ranks: int, policy: bytes) -> Outcome:
    file, wrong = case.write(where.new(), num_ranks), list[str]()
    out = file.parent / "out"
    process, first = where.command(out, str(file), "--resume", "auto")
    case.strike(out, process.pid, lambda: process.poll() is not None)
    code_of(process, PATIENCE_S, wrong)
    process, again = where.command(out, str(file), "--resume", "auto")
    code, said = code_of(process, PATIENCE_S, wrong), (out.parent / "said.txt").read_text()
    wrong += [] if code == 0 and "continues " in said else [f"exit code {code}: {said[-300:]}"]
    return ended(case, out, policy, wrong + left_of(first) + left_of(again))


def ended(case: Kill, out: Path, policy: bytes, wrong: list[str]) -> Outcome:
    """Say how a run ended that was killed and went on."""
    run, seconds = load_run(only_run(out)), time.monotonic() - case.struck_s
    found = [*wrong, "it ended before the kill, or the moment never came"] if math.isnan(seconds) else wrong
    if (run.status, [row.step for row in run.steps]) != ("completed", list(range(STEPS))):
        found.append(f"it is {run.status} with {len(run.steps)} steps")
    elif policy_of(run.folder) != policy:
        found.append("its policy is another one")
    if (causes := [segment.cause for segment in run.manifest.segments]) != ["resumed"]:
        found.append(f"its segments are {causes}")
    if drafts := [file.name for file in run.folder.glob("checkpoints/*.tmp")]:
        found.append(f"left in checkpoints: {drafts}")
    on, save = "Ray" if case.on_ray else "one process", "asynchronous" if case.asynchronous else "blocking"
    said = f"on {on}, {save} checkpoint {case.save} + {case.delay_s:.3f} s: over after {seconds:.1f} s"
    return Outcome(f"{case.whom}, {case.when}", said, found)


def only_run(out: Path) -> Path:
    (run,) = (out / "resumed").iterdir()
    return run


def policy_of(run: Path) -> bytes:
    return (run / "policy" / "model.safetensors").read_bytes()


# ---- signals

STALL_S = 30.0
SMALL = (
    "model.preset=tiny",
    "model.warm_start=false",
    "steps=6",
    "rollout_batch_size=8",
    "group_size=4",
    "sampling.max_tokens=8",
    "evaluation={every: 6, prompts: 4}",
    f"faults={{stall_after_s: {STALL_S:g}}}",
)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "rdt_nixl": ("blocks=1",),
    "async_lag1": ("blocks=1", "arms={sync: {placement.colocated: true}, lag1: {max_lag: 1}}"),
    "vllm_sync": (),
    "learner_fsdp2": ("blocks=1",),
    "sync_k1": ("checkpoint={every: 1}", "transport={type: shared_memory}"),
}
SIGNALS = ("kill driver", "kill part", "stop part", "terminate driver", "kill driver", "kill part")
NUMBERS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}
ENDING_S = 1.0
"""Seconds in which a run whose work is done is written down as completed."""
END_S = LEAST_START_S + 2 * STALL_S + 120.0
Statuses = tuple[str | None, ...]


@dataclass(frozen=True)
class Arms:
    """The arms of a scenario: in the order in which their parts are made, and whether all are made before any runs."""

    names: tuple[str, ...]
    together: bool
    parts: int

    @classmethod
    def of(cls, scenario: str) -> Arms:
        (variants,) = points_of(expand(load_scenario(scenario, [*SMALL, *SCENARIOS[scenario]])))
        first = variants[0]
        order = order_in_block(len(variants), first.block or 0, first.scenario.seed - (first.block or 0))
        together = interleaving_of(variants) == "step"
        names = [variants[at].name for at in (range(len(variants)) if together else order)]
        return cls(tuple(names), together, len(all_lanes(first.scenario)))


@dataclass(frozen=True)
class Moment:
    """How things stood when the signal was sent.

    Attributes:
        statuses: that the manifests of the arms gave; None: there was no run folder.
        heard: the driver had a handler for SIGTERM.
        part: the log of the part's process, which names its arm and lane; empty before it has one.
        building: the part had not yet said that it had started.
    """

    statuses: Statuses
    heard: bool
    part: str = ""
    building: bool = False


@dataclass(frozen=True)
class Expected:
    """How a command is to end.

    Attributes:
        code: of its exit; of a signal, with a minus.
        statuses: of the runs; None: no run folder.
        said: what the one line says; empty: there is none.
        replaced: the arm and the lane that has a new part.
        done_by: the arm whose run may as well be complete with exit code ``done_code``, and the lane that had nothing
            left to do then; an empty lane stands for the whole run.
    """

    code: int
    statuses: Statuses
    said: str = ""
    replaced: tuple[int, str] | None = None
    done_by: tuple[int, str] | None = None
    done_code: int = 0


def expected(kind: str, now: Moment, arms: Arms) -> Expected:
    """Return how a command is to end that was struck at this moment."""
    complete = tuple("completed" for _ in arms.names)
    if kind == "":
        return Expected(0, complete)
    running = next((arm for arm, status in enumerate(now.statuses) if status == "running"), None)
    if kind == "kill driver":
        return Expected(-signal.SIGKILL, _ended(now.statuses, "did not finish"))
    if kind == "terminate driver":
        if not now.heard:
            return Expected(-signal.SIGTERM, now.statuses)
        done_by = None if running is None else (running, "")
        return Expected(130, _ended(now.statuses, "interrupted"), "interrupted", done_by=done_by, done_code=130)
    number, _, lane = now.part.removesuffix(".log").partition("-")
    lane = lane.replace("learner-", "learner/")
    arm = int(number) // arms.parts if number else now.statuses.index(None)
    if now.statuses[arm] not in (None, "running"):  # its parts live until the other arm has ended too
        return Expected(0, complete)
    if now.statuses[arm] is None and now.building:
        without = tuple(None if arms.together or each == arm else "completed" for each in range(len(arms.names)))
        late = rf"did not start( within {LEAST_START_S:g} s|, for which)"
        said = "died while it started" if kind == "kill part" else late
        return Expected(1, without, f"{lane or '(generator|scorer|learner)'}.* {said}")
    if kind == "kill part" and not lane.startswith("learner"):
        return Expected(0, complete, replaced=(arm, lane), done_by=(arm, lane))
    failed = tuple("failed" if each == arm else "completed" for each in range(len(arms.names)))
    said = f"the {lane} died: " if kind == "kill part" else rf"faults\.stall_after_s is {STALL_S:g}\).*{lane} "
    return Expected(1, failed, said, done_by=(arm, lane))


def _ended(statuses: Statuses, how: str) -> Statuses:
    return tuple(how if status == "running" else status for status in statuses)


def signals(where: Place, options: argparse.Namespace) -> Outcomes:
    for scenario in [options.only] if options.only else SCENARIOS:
        undisturbed, whole_s = struck_command(where, scenario, "", 0.0, 0.0)
        yield undisturbed
        for number in range(options.first, options.first + (0 if undisturbed.wrong else options.runs)):
            fraction = random.Random(f"{options.seed} {scenario} {number}").random()
            yield struck_command(where, scenario, SIGNALS[number % len(SIGNALS)], fraction, whole_s)[0]


def struck_command(where: Place, scenario: str, kind: str, fraction: float, whole_s: float) -> tuple[Outcome, float]:
    """Run a command and strike it; ``kind`` is empty for one that nobody disturbs. Return how long it went on, too."""
    out, arms, moments, wrong = where.new() / "out", Arms.of(scenario), list[Moment](), list[str]()
    sets = [argument for each in (*SMALL, *SCENARIOS[scenario]) for argument in ("--set", each)]
    began_s, (process, traces) = time.monotonic(), where.command(out, scenario, *sets)
    if kind:
        moments = strike(process, kind, fraction, whole_s, traces, out, arms)
    since_s, struck_at = time.monotonic(), time.time()
    code = code_of(process, END_S, wrong)
    last_s, text = time.monotonic() - since_s, (out.parent / "said.txt").read_text()
    wrong += left_of(traces)
    if "Traceback" in text:
        wrong.append(f"a traceback: {text[-1500:]}")
    runs, damaged = find_runs(out) if any(out.rglob(MANIFEST)) else ([], [])
    wrong += [f"damaged: {each.error}" for each in damaged]
    wanted = [expected(kind, each, arms) for each in moments] or [expected("", Moment((), heard=False), arms)]
    found = {each.manifest.arm or "": each for each in runs}
    of_arms = [found.get(name) for name in arms.names]
    lacking = [differs(each, code, text, of_arms, struck_at) for each in wanted]
    if all(lacking):
        wrong += [*lacking[0], text[-600:]]
    when = f"struck {since_s - began_s:.2f} s after its start, {moments[-1]}" if moments else "ended undisturbed"
    return Outcome(kind or "nothing", f"{scenario}: {when}: exit {code} after {last_s:.1f} s", wrong), last_s


def differs(wanted: Expected, code: int, text: str, runs: Sequence[Run | None], struck_at: float) -> list[str]:
    """Return in what a command did not end as it is to."""
    statuses = tuple(None if run is None else run.status for run in runs)
    if wanted.done_by is not None:
        arm, lane = wanted.done_by
        run = runs[arm]
        if run is not None and run.status == "completed" and not run.replaced and struck_at >= done_at(run, lane):
            statuses_then = tuple("completed" if at == arm else each for at, each in enumerate(wanted.statuses))
            wanted = Expected(wanted.done_code, statuses_then)
    wrong = [f"exit code {code}, not {wanted.code}"] if code != wanted.code else []
    wrong += [f"runs {statuses}, not {wanted.statuses}"] if statuses != wanted.statuses else []
    lines = [line for line in text.splitlines() if line.startswith(("stopped: ", "error: ", "interrupted"))]
    if wanted.said:
        wrong += [] if len(lines) == 1 and re.search(wanted.said, lines[0]) else [f"said {lines}, not {wanted.said!r}"]
    replaced = [(arm, lane) for arm, run in enumerate(runs) if run is not None for lane in run.replaced]
    if replaced != ([wanted.replaced] if wanted.replaced else []):
        wrong.append(f"replaced {replaced}, not {wanted.replaced}")
    return wrong


def done_at(run: Run, lane: str) -> float:
    """Return when a lane of a complete run had nothing left to do: as long before its end as the spans say."""
    finished = datetime.fromisoformat(run.manifest.finished_at or "").timestamp() - ENDING_S
    work = [span for span in run.spans() if not span.stage.is_wait]
    own = [span.end_ns for span in work if span.lane == lane]
    return finished - (max(span.end_ns for span in work) - max(own)) / 1e9 if own else finished


def strike(
    process: subprocess.Popen[bytes], kind: str, fraction: float, whole_s: float, traces: Traces, out: Path, arms: Arms
) -> list[Moment]:
    """Send the signal; return how things stood just before and after, or nothing where the command had ended.

    The moment is drawn over the time that such a run takes undisturbed; for parts, over the half in which they live.
    """
    of_part = kind.endswith("part")
    while of_part and not traces.processes(PART):
        if process.poll() is not None:
            return []
        time.sleep(0.05)
    time.sleep(fraction * whole_s * (0.5 if of_part else 1.0))
    pids = sorted(traces.processes(PART)) if of_part else [process.pid]
    if process.poll() is not None or not pids:
        return []
    pid = pids[int(fraction * 1e6) % len(pids)]
    try:
        before = moment(process.pid, pid, out, arms)
        os.kill(pid, NUMBERS[kind.split()[0]])
    except OSError:  # it has just ended
        return []
    return [before, Moment(statuses_in(out, arms), before.heard, before.part, before.building)]


def moment(driver: int, struck: int, out: Path, arms: Arms) -> Moment:
    """Look how things stand."""
    statuses = statuses_in(out, arms)
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{driver}/status").read_text())
    heard = caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
    if driver == struck:
        return Moment(statuses, heard)
    title = Path(f"/proc/{struck}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    log = Path(os.readlink(f"/proc/{struck}/fd/1")).name
    building = any(f"{PART}.{method}" in title for method in ("__init__", "listen", "build")) or title.strip() == ""
    return Moment(statuses, heard, log if re.fullmatch(r"\d+-[a-z].*\.log", log) else "", building)


def statuses_in(out: Path, arms: Arms) -> Statuses:
    """Return what the manifests say; they are replaced as a whole."""
    found = {}
    for file in out.rglob(MANIFEST):
        with suppress(FileNotFoundError):
            manifest = json.loads(file.read_text())
            if "status" in manifest:  # else that of a checkpoint
                found[manifest["arm"] or ""] = manifest["status"]
    return tuple(found.get(name) for name in arms.names)


KINDS = {"signals": signals, "kills": kills, "ranks": ranks, "row": row}


def main() -> int:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("kind", choices=KINDS)
    made.add_argument("--runs", type=int, default=12, help="cases, of each scenario of signals (12)")
    made.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    made.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    made.add_argument("--only", choices=SCENARIOS, help="of signals, this scenario alone")
    made.add_argument("--ranks", type=int, default=1, help="of the Learner, in kills (1)")
    made.add_argument("--sharding", default="ddp", choices=("ddp", "fsdp2"), help="of the Learner, in ranks (ddp)")
    options = made.parse_args()
    total = options.runs if options.kind != "signals" else (options.runs + 1) * (1 if options.only else len(SCENARIOS))
    counts = Counter[tuple[str, bool]]()
    with place() as where:
        for number, outcome in enumerate(counted(KINDS[options.kind](where, options), total, options.kind)):
            print(f"{number}: {outcome.kind}, {outcome.said}: {'; '.join(outcome.wrong) or 'as stated'}", flush=True)
            counts[outcome.kind, not outcome.wrong] += 1
    kinds = dict.fromkeys(kind for kind, _ in counts)
    rows = tuple((kind, str(counts[kind, True] + counts[kind, False]), str(counts[kind, True])) for kind in kinds)
    publish(f"Soak: {options.kind}", [Table("Ended", ("what", "cases", "as stated"), rows)], options)
    return int(any(not right for _, right in counts))


if __name__ == "__main__":
    sys.exit(main())
