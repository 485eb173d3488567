"""What commands leave behind that meet a signal at a drawn moment: nothing, and runs that can be read.

    python -m tests.benchmarks.signals [--rounds 1] [--first 0] [--seed 0] [--only vllm_sync]

A round has 4 SIGKILLs of the driver, 4 of a part or rank, 2 SIGSTOPs of a part or rank and 2 SIGTERMs of the driver for
each of five small runs on Ray: NIXL against the object store, one version behind, vLLM, two FSDP2 ranks, and one that
saves after each step. The moment is drawn over the time that such a run takes undisturbed; for parts, over the time in
which they live.
Prints a line for each. Exits with 1 if one did not end as it is to, or if processes, shared memory or temporary files
are left 10 s later.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.results import find_runs
from tests.e2e.conftest import Traces

SMALL = (
    "model.preset=tiny model.warm_start=false steps=6 rollout_batch_size=8 group_size=4 sampling.max_tokens=8 "
    "evaluation={every: 6, prompts: 4} faults={stall_after_s: 8}"
)
SCENARIOS = {
    "rdt_nixl": "blocks=1",
    "async_lag1": "blocks=1",
    "vllm_sync": "",
    "learner_fsdp2": "blocks=1",
    "sync_k1": "checkpoint={every: 1}",
}
SIGNALS = ("kill driver", "kill part", "stop part", "terminate driver", "kill driver", "kill part")
"""In each half of a round."""
STATUSES = {
    "kill driver": {"did not finish", "completed"},
    "kill part": {"failed", "completed"},
    "stop part": {"failed", "completed"},
    "terminate driver": {"interrupted", "completed"},
}
CODES = {"kill driver": -9, "kill part": 1, "stop part": 1, "terminate driver": 130}
END_S, GONE_S = 180.0, 10.0


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: of its exit; of a signal, with a minus.
        struck_s: seconds from its start to the signal; None where it had ended before.
        last_s: seconds from the signal to its end.
        wrong: what was not as it is to be.
    """

    code: int
    struck_s: float | None
    last_s: float
    wrong: tuple[str, ...]


def command_of(scenario: str, out: Path) -> list[str]:
    sets = [*split(SMALL), *split(SCENARIOS[scenario])]
    settings = [argument for each in sets for argument in ("--set", each)]
    return [sys.executable, "-m", "harness", "run", scenario, "--quiet", "--out", str(out), *settings]


def split(sets: str) -> list[str]:
    """Return settings, each of which may hold spaces after a colon or comma."""
    found = list[str]()
    for word in sets.split():
        if found and found[-1].endswith((":", ",")):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def run(scenario: str, kind: str, fraction: float, whole_s: float, folder: Path) -> Ended:
    """Run a command and strike it; ``kind`` is empty for one that nobody disturbs."""
    temporary, out = Path(tempfile.mkdtemp(prefix="t", dir=folder)), Path(tempfile.mkdtemp(dir=folder)) / "out"
    traces, said, began_s = Traces(temporary), out.parent / "said.txt", time.monotonic()
    struck_s = None
    with said.open("w") as file:
        environment = os.environ | traces.environment
        process = subprocess.Popen(command_of(scenario, out), env=environment, stdout=file, stderr=file)
        if kind:
            struck_s = strike(process, kind, fraction, whole_s, traces)
        since_s = time.monotonic()
        wrong = []
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            wrong.append(f"it had not ended after {END_S:g} s")
            process.kill()
            code = process.wait()
    ended_s = time.monotonic()
    while left := left_of(traces):
        if time.monotonic() > ended_s + GONE_S:
            wrong.append(f"left: {left}")
            break
        time.sleep(0.1)
    expected = 0 if struck_s is None else CODES[kind]
    text = said.read_text()
    if code not in (expected, 0):
        wrong.append(f"exit code {code}: {text[-600:]}")
    if "Traceback" in text:
        wrong.append(f"a traceback: {text[-1500:]}")
    if any(out.rglob("steps.jsonl")):
        runs, damaged = find_runs(out)
        wrong += [f"damaged: {each.error}" for each in damaged]
        statuses = {run.status for run in runs}
        wrong += [f"the runs are {statuses}"] if kind and statuses - STATUSES[kind] else []
    return Ended(code, None if struck_s is None else struck_s - began_s, ended_s - since_s, tuple(wrong))


def strike(
    process: subprocess.Popen[bytes], kind: str, fraction: float, whole_s: float, traces: Traces
) -> float | None:
    """Send the signal; return when that was, or None where the command had ended before."""
    name = "ray::PartActor"
    while kind.endswith("part") and not traces.processes(name):
        if process.poll() is not None:
            return None
        time.sleep(0.05)
    time.sleep(fraction * whole_s * (0.5 if kind.endswith("part") else 1.0))
    pids = sorted(traces.processes(name)) if kind.endswith("part") else [process.pid]
    if process.poll() is not None or not pids:
        return None
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}[kind.split()[0]]
    os.kill(pids[int(fraction * 1e6) % len(pids)], number)
    return time.monotonic()


def left_of(traces: Traces) -> list[str]:
    """Return what a command has left."""
    files = [name for name in os.listdir(traces.folder) if not name.startswith("torchinductor_")]
    return [*traces.processes().values(), *traces.shared_memory(), *files]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first signal of each scenario")
    parser.add_argument("--signals", type=int, default=2 * len(SIGNALS), help="of a round, for each scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=SCENARIOS)
    parser.add_argument("--seconds", type=float, help="that such a run takes; measured where not given")
    asked = parser.parse_args()
    counts, failed = dict[str, list[int]](), 0
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        for scenario in [asked.only] if asked.only else SCENARIOS:
            whole_s = asked.seconds
            if whole_s is None:
                undisturbed = run(scenario, "", 0.0, 0.0, Path(folder))
                whole_s, outcome = undisturbed.last_s, "; ".join(undisturbed.wrong) or "nothing left"
                print(f"{scenario}: {whole_s:.1f} s undisturbed; {outcome}", flush=True)
                if undisturbed.wrong:
                    failed += 1
                    continue
            for number in range(asked.first, asked.first + asked.rounds * asked.signals):
                kind = SIGNALS[number % len(SIGNALS)]
                fraction = random.Random(f"{asked.seed} {scenario} {number}").random()
                ended = run(scenario, kind, fraction, whole_s, Path(folder))
                moment = "after its end" if ended.struck_s is None else f"at {ended.struck_s:.2f} s"
                outcome = "; ".join(ended.wrong) or "nothing left"
                print(
                    f"{scenario} {number}: {kind} {moment}: exit {ended.code} after {ended.last_s:.1f} s; {outcome}",
                    flush=True,
                )
                failed += bool(ended.wrong)
                if ended.struck_s is not None:
                    counts.setdefault(kind, [0, 0])[bool(ended.wrong)] += 1
    for kind, (right, wrong) in counts.items():
        print(f"{kind}: {right} of {right + wrong} as stated")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
