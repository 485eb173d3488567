"""How runs end that are killed at a drawn moment and go on: by a new process, or in the same one.

    python -m tests.benchmarks.kills [--drivers 20] [--learners 20] [--first 0] [--seed 0] [--ranks 1]

All runs are of one small scenario at lag 0 with two epochs, KL, replay and a checkpoint every two steps. So each must
end with the bytes of the policy of a run that nobody disturbed. Prints a line for each and exits
with 1 if one did not, or left something.
A kill comes ``in a save``, while a checkpoint is being written, or ``between`` saves; kinds take turns.

- The driver: SIGKILL, then the same command, which has ``--resume auto``. Every other one runs in one process, the rest
  on Ray.
- The Learner: SIGKILL of one of its processes, and then ``run --resume`` of the run that it ended. One Ray serves all.

Processes, shared memory and temporary files that are left some seconds later count as wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.trace import RecordingTracer
from harness.results import load_run
from harness.run.experiment import go_on_with, run_scenario
from harness.run.factory import PartsFactory
from harness.run.parts import RunningParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.e2e.conftest import Traces
from tests.run.test_resume_run import SCENARIO, write_scenario

STEPS, NAME = 12, "resumed"
PATIENCE_S = 300.0
GONE_S = 30.0
"""Seconds in which the processes of a killed driver end by themselves."""
IN_PROCESS = "faults: {delays: {update: 0.1}}"
ON_RAY = """
transport: {{type: shared_memory}}
{sharding}
placement: {{learner: {{ranks: {ranks}, cpus: 0.25}}, generator: {{cpus: 0.25}}, scorer: {{cpus: 0.25}}}}
faults: {{delays: {{update: 0.1}}}}
"""


@dataclass
class Case:
    """One kill.

    Attributes:
        whom: ``driver`` or ``learner``.
        when: ``in a save`` or ``between``.
        number: of the checkpoint, from 1, in or after which it comes.
        delay_s: after that checkpoint, of a kill between saves.
        rank: of the Learner.
        on_ray: whether the parts are actors.
        asynchronous: whether saves go on beside training.
        struck_s: when it came, on the monotonic clock; None: not yet.
    """

    whom: str
    when: str
    number: int
    delay_s: float
    rank: int
    on_ray: bool
    asynchronous: bool
    struck_s: float | None = None
    wrong: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        where = "Ray" if self.on_ray else "one process"
        save = "asynchronous" if self.asynchronous else "blocking"
        moment = f"{self.when}, {save} checkpoint {self.number}"
        return f"{self.whom} on {where}, {moment}" + (f" + {self.delay_s:.2f} s" if self.when == "between" else "")

    def strike(self, run: Callable[[], Path | None], pid: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """Wait for the moment, then kill."""
        seen, end_s = set[str](), time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and not is_over():
            folder = run()
            names = set(os.listdir(folder / "checkpoints")) if folder and (folder / "checkpoints").is_dir() else set()
            in_save = any(name.startswith("step_") and name.endswith(".tmp") for name in names)
            seen |= {name for name in names if name.startswith("step_") and "." not in name}
            if (in_save and len(seen) == self.number - 1) if self.when == "in a save" else len(seen) >= self.number:
                time.sleep(self.delay_s)
                os.kill(pid(), signal.SIGKILL)
                self.struck_s = time.monotonic()
                return
            time.sleep(0.0005)
        self.wrong.append("it ended before the kill" if is_over() else "the moment never came")


def drawn(whom: str, number: int, seed: int, ranks: int) -> Case:
    rng = random.Random(f"{seed} {whom} {number}")
    when = ("in a save", "between")[number % 2]
    delay_s = rng.uniform(0, 0.002) if when == "in a save" else rng.uniform(0, 0.6)
    on_ray = whom == "learner" or number % 4 >= 2
    number_of_save = rng.randrange(2, 5)  # with one before it to go back to
    return Case(whom, when, number_of_save, delay_s, rng.randrange(ranks), on_ray, rng.random() < 0.5)


def scenario_of(case: Case, folder: Path, ranks: int) -> Path:
    """Write the scenario with its prompts and reward into a folder, from which it is to be run."""
    text = SCENARIO.replace("steps: 8", f"steps: {STEPS}")
    text = text.replace("{every: 2}", f"{{every: 2, asynchronous: {json.dumps(case.asynchronous)}}}")
    sharding = "learner: {sharding: fsdp2}" if ranks > 1 else ""
    write_scenario(folder, text + (ON_RAY.format(ranks=ranks, sharding=sharding) if case.on_ray else IN_PROCESS))
    return folder / "resumed.yaml"


def newest_run(out: Path) -> Path | None:
    found = sorted((out / NAME).iterdir()) if (out / NAME).is_dir() else []
    return found[-1] if found else None


def environment_in(folder: Path, traces: Traces) -> dict[str, str]:
    return {**os.environ, **traces.environment, "PYTHONPATH": f"{Path(__file__).parents[2]}:{folder}"}


def check_end(case: Case, out: Path, reference: bytes, cause: str) -> None:
    """Note what is not as it is to be."""
    folder = newest_run(out)
    if folder is None or len(list((out / NAME).iterdir())) != 1:
        case.wrong.append("there is not one run")
        return
    run = load_run(folder)
    if (run.status, [row.step for row in run.steps]) != ("completed", list(range(STEPS))):
        case.wrong.append(f"it is {run.status} with {len(run.steps)} steps")
    elif (folder / "policy" / "model.safetensors").read_bytes() != reference:
        case.wrong.append("its policy is another one")
    if (causes := [segment.cause for segment in run.manifest.segments]) != [cause]:
        case.wrong.append(f"its segments are {causes}")
    if drafts := list((folder / "checkpoints").glob("*.tmp")):
        case.wrong.append(f"left in checkpoints: {sorted(each.name for each in drafts)}")


def run_driver(case: Case, traces: Traces, folder: Path, reference: bytes, ranks: int) -> None:
    """Kill a command, and give it again."""
    file, out = scenario_of(case, folder, ranks), folder / "out"
    command = [sys.executable, "-m", "harness", "run", str(file), "--resume", "auto", "--quiet", "--out", str(out)]
    environment = environment_in(folder, traces)
    with (folder / "first.txt").open("w") as first:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=first, stderr=first)
        case.strike(lambda: newest_run(out), lambda: process.pid, lambda: process.poll() is not None)
        process.wait(timeout=PATIENCE_S)
    again = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if again.returncode:
        case.wrong.append(f"exit code {again.returncode}: {again.stderr.strip()[-300:]}")
    elif "continues " not in again.stderr:
        case.wrong.append(f"it said {again.stderr.strip()[-300:]}")
    check_end(case, out, reference, "resumed")


def run_here(case: Case, factory: PartsFactory, home: Path, ranks: int) -> Path:
    """Kill a process of the Learner in a run of this process, or nobody; return the results folder."""
    file, out, over = scenario_of(case, home, ranks), home / "out", threading.Event()
    sys.path.insert(0, str(home))
    os.chdir(home)
    threads: list[threading.Thread] = []

    def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = factory(resolved, tracer, should_stop)
        if case.whom == "learner":
            pid = parts.processes()["learner" if ranks == 1 else f"learner/{case.rank}"]
            strike = threading.Thread(target=case.strike, args=(lambda: newest_run(out), lambda: pid, over.is_set))
            threads.append(strike)
            strike.start()
        return parts

    try:
        run_scenario(load_scenario(file), out, quiet=True, build=build, show=lambda _: None)
    except HarnessError as error:
        folder = newest_run(out)
        if case.struck_s is None or folder is None:
            case.wrong.append(f"it said: {error}")
        else:
            go_on_with(folder, load_scenario(file), True, build=factory, show=lambda _: None)
    over.set()
    for thread in threads:
        thread.join()
    return out


def policy_of(out: Path) -> bytes:
    run = newest_run(out)
    assert run is not None
    return (run / "policy" / "model.safetensors").read_bytes()


def left_running(case: Case, traces: Traces) -> tuple[dict[int, str], set[str]]:
    """Return processes and shared memory that are left when they had time to go; beside Learners, Ray itself stays."""
    end_s = time.monotonic() + GONE_S
    while True:
        processes = traces.processes("" if case.whom == "driver" else "ray::PartActor")
        shared = {name for name in traces.shared_memory() if "plasma" not in name}
        if not (processes or shared) or time.monotonic() > end_s:
            return processes, shared
        time.sleep(0.2)


def files_in(temporary: Path) -> int:
    return sum(not name.startswith("torchinductor_") for name in os.listdir(temporary))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--learners", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first kill of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    asked = parser.parse_args()
    done: list[Case] = []

    def tell(case: Case, traces: Traces, number: int, began_s: float) -> None:
        ended_s = time.monotonic()
        processes, shared = left_running(case, traces)
        case.wrong += [f"processes left: {sorted(processes.values())}"] if processes else []
        case.wrong += [f"shared memory left: {sorted(shared)}"] if shared else []
        seconds = ended_s - (case.struck_s or began_s)
        print(f"{number}: {case.said}: over after {seconds:.1f} s; {'; '.join(case.wrong) or 'as stated'}", flush=True)
        done.append(case)

    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as base:
        (temporary := Path(base) / "t").mkdir()
        traces = Traces(temporary)
        os.environ.update(traces.environment)
        tempfile.tempdir = None  # read TMPDIR again
        references = dict[bool, bytes]()
        with PartsFactory() as factory:

            def undisturbed(on_ray: bool) -> bytes:
                if on_ray not in references:
                    nobody = Case("nobody", "never", 0, 0.0, 0, on_ray, False)
                    references[on_ray] = policy_of(run_here(nobody, factory, new_folder(), asked.ranks))
                return references[on_ray]

            def new_folder() -> Path:
                return Path(tempfile.mkdtemp(dir=base))

            for number in range(asked.first, asked.first + asked.learners):
                case, began_s = drawn("learner", number, asked.seed, asked.ranks), time.monotonic()
                out = run_here(case, factory, new_folder(), asked.ranks)
                check_end(case, out, undisturbed(True), "resumed")
                tell(case, traces, number, began_s)
            cases = [
                drawn("driver", number, asked.seed, asked.ranks)
                for number in range(asked.first, asked.first + asked.drivers)
            ]
            for on_ray in {case.on_ray for case in cases}:
                undisturbed(on_ray)
        files_of_learners = files_in(temporary)
        for number, case in enumerate(cases, asked.first):
            began_s = time.monotonic()
            run_driver(case, traces, new_folder(), references[case.on_ray], asked.ranks)
            tell(case, traces, number, began_s)
        files_left = files_in(temporary) - files_of_learners
    failed = sum(bool(case.wrong) for case in done)
    for whom in ("driver", "learner"):
        for when in ("in a save", "between"):
            found = [case for case in done if (case.whom, case.when) == (whom, when)]
            print(f"{whom}, {when}: {sum(not case.wrong for case in found)} of {len(found)} as stated")
    print(f"temporary folders left: {files_left} by killed drivers, {files_of_learners} by runs with killed Learners")
    return int(failed > 0 or files_left > 0)


if __name__ == "__main__":
    sys.exit(main())
