"""How runs end whose Learner of two ranks is killed or stopped at a drawn moment: by name, in time, nothing left.

    python -m tests.benchmarks.rank_kills [--runs 20] [--seed 0] [--sharding ddp]

One Ray serves all runs. Prints a line for each and exits with 1 if one did not end as it is to. The kinds take turns:

- ``killed``: SIGKILL from outside, up to three seconds after the parts are there;
- ``killed at the start``: SIGKILL while the parts are built;
- ``stopped``: SIGSTOP from outside;

A death is to end the run by the rank's name, a stop as a stall with the stacks and last calls of both ranks.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import RunStopped
from harness.core.trace import RecordingTracer
from harness.results import find_runs
from harness.run.actors.part import CLOSE_S, LAST_WORDS_S
from harness.run.experiment import run_scenario
from harness.run.factory import PartsFactory
from harness.run.parts import RunningParts
from harness.run.watchdog import DUMP_S
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.e2e.conftest import Traces

KINDS = ("killed", "killed at the start", "stopped")
DEADLY = ("killed", "killed at the start")
STALL_AFTER_S = 12.0
PROCESSES = 4
BUSY_S = 5.0
"""Seconds that a loaded machine may add."""
DEATH_S = LAST_WORDS_S + CLOSE_S + BUSY_S
HANG_S = STALL_AFTER_S + PROCESSES * DUMP_S + CLOSE_S + BUSY_S
SCENARIO = """
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
faults: {{stall_after_s: {stall_after_s}}}
"""


@dataclass
class Case:
    """What is done to which rank, and when that was.

    Attributes:
        delay_s: from the moment at which the parts are there, or of a kill at the start its building.
        struck: the moment at which it happened, on the monotonic clock.
        pid: of the rank.
    """

    kind: str
    rank: int
    delay_s: float
    struck: list[float] = field(default_factory=list)
    pid: int = 0

    @property
    def said(self) -> str:
        return f"{self.kind}, rank {self.rank}, after {self.delay_s:.2f} s"


def drawn(number: int, seed: int) -> Case:
    rng = random.Random(f"{seed} {number}")
    return Case(KINDS[number % len(KINDS)], rng.randrange(2), rng.uniform(0, 3))


def strike(case: Case) -> None:
    """Send the signal, once the case has a process."""
    case.struck.append(time.monotonic())
    os.kill(case.pid, signal.SIGSTOP if case.kind == "stopped" else signal.SIGKILL)


def strike_a_start(case: Case, traces: Traces, before: set[int]) -> None:
    """Kill the first or second process of the run some time after both have begun."""
    while len(started := sorted(set(traces.processes("ray::PartActor")) - before)) < 2:
        time.sleep(0.05)
    time.sleep(case.delay_s)
    case.pid = started[case.rank]
    strike(case)


def run_case(case: Case, factory: PartsFactory, traces: Traces, folder: Path, sharding: str) -> tuple[float, list[str]]:
    """Make one run; return the seconds from the strike to its end, and what was wrong."""
    file = folder / "trial.yaml"
    file.write_text(SCENARIO.format(sharding=sharding, stall_after_s=STALL_AFTER_S))
    pids_before, files_before = set(traces.processes()), set(traces.folder.glob("grpo-*/ranks-*/*"))
    if case.kind == "killed at the start":
        threading.Thread(target=strike_a_start, args=(case, traces, pids_before), daemon=True).start()

    def build(scenario: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = factory(scenario, tracer, should_stop)
        case.pid = parts.processes()[f"learner/{case.rank}"]
        if case.kind in ("killed", "stopped"):
            threading.Timer(case.delay_s, strike, [case]).start()
        return parts

    message = ""
    try:
        run_scenario(load_scenario(str(file)), folder / "out", quiet=True, build=build, show=lambda _: None)
    except RunStopped as error:
        message = str(error)
    end_s = time.monotonic()
    runs = find_runs(folder / "out")[0] if (folder / "out").exists() else []
    wrong = wrong_end(case, message, (runs[0].folder / "log.txt").read_text() if runs else "")
    while any(left := left_by(traces, pids_before)) and time.monotonic() < end_s + BUSY_S:
        time.sleep(0.05)  # of shared memory, what comes and goes is other programs'
    files = set(traces.folder.glob("grpo-*/ranks-*/*")) - files_before
    for what, found in (("processes", left[0]), ("shared memory", left[1]), ("files", files)):
        wrong += [f"{what} left: {sorted(found)}"] if found else []
    seconds = end_s - case.struck[0] if case.struck else math.inf
    if seconds > (limit := DEATH_S if case.kind in DEADLY else HANG_S):
        wrong.append(f"ended after {seconds:.1f} s, later than {limit:g}")
    return seconds, wrong


def left_by(traces: Traces, pids_before: set[int]) -> tuple[set[int], set[str]]:
    """Return the processes of parts, and the entries of shared memory but Ray's, that are there still."""
    shared = {name for name in traces.shared_memory() if "plasma" not in name}
    return set(traces.processes("ray::PartActor")) - pids_before, shared


def wrong_end(case: Case, message: str, log: str) -> list[str]:
    """Return what a run's error and log lack."""
    if case.kind == "killed at the start":
        return [] if re.search(r"(learner/\d|generator|scorer) died", message) else [f"it said: {message}"]
    if case.kind in DEADLY:
        return [] if f"learner/{case.rank} died" in message else [f"it said: {message}"]
    wanted = [f"stacks of learner/{rank} (process " for rank in range(2)] + [
        f"learner/{rank} last: " for rank in (0, 1)
    ]
    lacking = [f"no {words!r} in the log" for words in wanted if words not in log]
    return lacking if "stall_after_s" in message else [f"it said: {message}", *lacking]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharding", default="ddp", choices=("ddp", "fsdp2"))
    asked = parser.parse_args()
    failed, seconds_of = 0, dict[str, list[float]]()
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        traces = Traces(Path(folder))
        os.environ.update(traces.environment)
        tempfile.tempdir = None  # read TMPDIR again
        with PartsFactory() as factory, tempfile.TemporaryDirectory() as runs:
            for number in range(asked.first, asked.first + asked.runs):
                case = drawn(number, asked.seed)
                seconds, wrong = run_case(case, factory, traces, Path(tempfile.mkdtemp(dir=runs)), asked.sharding)
                seconds_of.setdefault(case.kind, []).append(seconds)
                failed += bool(wrong)
                print(
                    f"{number}: {case.said}: ended after {seconds:.1f} s; {'; '.join(wrong) or 'as stated'}", flush=True
                )
        traces.assert_nothing_left()
    print("nothing left when Ray had ended")
    for kind, found in seconds_of.items():
        print(f"{kind}: {len(found)} runs, {min(found):.1f} to {max(found):.1f} s")
    print(f"as stated: {asked.runs - failed} of {asked.runs}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
