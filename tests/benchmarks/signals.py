"""What commands leave behind that meet a signal at a drawn moment: nothing, and runs that can be read.

    python -m tests.benchmarks.signals [--rounds 1] [--first 0] [--seed 0] [--only vllm_sync]

A round has 4 SIGKILLs of the driver, 4 of a part or rank, 2 SIGSTOPs of a part or rank and 2 SIGTERMs of the driver for
each of five small runs on Ray: NIXL against the object store, one version behind, vLLM, two FSDP2 ranks, and one that
saves after each step. The moment is drawn over the time that such a run takes undisturbed; for parts, over the time in
which they live.
What is right depends on the moment, which is looked up in the run folders and in ``/proc`` (see ``Moment``). It has one
exit code, and for each arm one status, or no run folder. A run that was under way is complete all the same only where
the struck part was replaced, or had nothing left to do.
Prints a line for each. Exits with 1 if one did not end as it is to, or if processes, shared memory or temporary files
are left 10 s later.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.results import Run, find_runs
from harness.results.writer import MANIFEST
from harness.run.actors.part import LEAST_START_S
from harness.run.interleaving import interleaving_of, order_in_block, points_of
from harness.scenario.axes import expand
from harness.scenario.lanes import all_lanes
from harness.scenario.load import load_scenario
from tests.e2e.conftest import Traces

STALL_AFTER_S = 30.0
SMALL = (
    "model.preset=tiny model.warm_start=false steps=6 rollout_batch_size=8 group_size=4 sampling.max_tokens=8 "
    f"evaluation={{every: 6, prompts: 4}} faults={{stall_after_s: {STALL_AFTER_S:g}}}"
)
SCENARIOS = {
    "rdt_nixl": "blocks=1",
    "async_lag1": "blocks=1 arms={sync: {placement.colocated: true}, lag1: {max_lag: 1}}",
    "vllm_sync": "",
    "learner_fsdp2": "blocks=1",
    "sync_k1": "checkpoint={every: 1} transport={type: shared_memory}",
}
SIGNALS = ("kill driver", "kill part", "stop part", "terminate driver", "kill driver", "kill part")
"""In each half of a round."""
NUMBERS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}
PART = "ray::PartActor"
GONE_S = 10.0
ENDING_S = 1.0
"""Seconds in which a run whose work is done is written down as completed."""
END_S = LEAST_START_S + 2 * STALL_AFTER_S + 120.0


@dataclass(frozen=True)
class Arms:
    """The arms of a scenario: in the order in which their parts are made, and whether all are made before any runs."""

    names: tuple[str, ...]
    together: bool
    parts: int

    @classmethod
    def of(cls, scenario: str) -> Arms:
        (variants,) = points_of(expand(load_scenario(scenario, settings_of(scenario))))
        first = variants[0]
        order = order_in_block(len(variants), first.block or 0, first.scenario.seed - (first.block or 0))
        together = interleaving_of(variants) == "step"
        names = [variants[place].name for place in (range(len(variants)) if together else order)]
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

    statuses: tuple[str | None, ...]
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
    statuses: tuple[str | None, ...]
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
        without = tuple(None if arms.together or place == arm else "completed" for place in range(len(arms.names)))
        said = (
            "died while it started"
            if kind == "kill part"
            else rf"did not start( within {LEAST_START_S:g} s|, for which)"
        )
        return Expected(1, without, f"{lane or '(generator|scorer|learner)'}.* {said}")
    if kind == "kill part" and not lane.startswith("learner"):
        return Expected(0, complete, replaced=(arm, lane), done_by=(arm, lane))
    failed = tuple("failed" if place == arm else "completed" for place in range(len(arms.names)))
    said = f"the {lane} died: " if kind == "kill part" else rf"faults\.stall_after_s is {STALL_AFTER_S:g}\).*{lane} "
    return Expected(1, failed, said, done_by=(arm, lane))


def _ended(statuses: Sequence[str | None], how: str) -> tuple[str | None, ...]:
    return tuple(how if status == "running" else status for status in statuses)


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: of its exit; of a signal, with a minus.
        moment: of the signal; None where it had ended before.
        struck_s, last_s: seconds from its start to the signal, and from there to its end.
        outcome: in words.
        wrong: what was not as it is to be.
    """

    code: int
    moment: Moment | None
    struck_s: float
    last_s: float
    outcome: str
    wrong: tuple[str, ...]


def settings_of(scenario: str) -> list[str]:
    """Return the settings of the small run, each of which may hold spaces after a colon or comma."""
    found = list[str]()
    for word in f"{SMALL} {SCENARIOS[scenario]}".split():
        if found and found[-1].endswith((":", ",")):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def run(scenario: str, kind: str, fraction: float, whole_s: float, folder: Path) -> Ended:
    """Run a command and strike it; ``kind`` is empty for one that nobody disturbs."""
    temporary, out = Path(tempfile.mkdtemp(prefix="t", dir=folder)), Path(tempfile.mkdtemp(dir=folder)) / "out"
    traces, said, arms = Traces(temporary), out.parent / "said.txt", Arms.of(scenario)
    sets = [argument for each in settings_of(scenario) for argument in ("--set", each)]
    command = [sys.executable, "-m", "harness", "run", scenario, "--quiet", "--out", str(out), *sets]
    began_s, wrong, moments = time.monotonic(), list[str](), list[Moment]()
    with said.open("w") as file:
        process = subprocess.Popen(command, env=os.environ | traces.environment, stdout=file, stderr=file)
        if kind:
            moments = strike(process, kind, fraction * whole_s, fraction, traces, out, arms)
        since_s, struck_at = time.monotonic(), time.time()
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            wrong.append(f"it had not ended after {END_S:g} s")
            process.kill()
            code = process.wait()
    ended_s, text = time.monotonic(), said.read_text()
    while left := left_of(traces):
        if time.monotonic() > ended_s + GONE_S:
            wrong.append(f"left: {left}")
            break
        time.sleep(0.1)
    if "Traceback" in text:
        wrong.append(f"a traceback: {text[-1500:]}")
    runs, damaged = find_runs(out) if any(out.rglob(MANIFEST)) else ([], [])
    wrong += [f"damaged: {each.error}" for each in damaged]
    wanted = [expected(kind, each, arms) for each in moments] or [expected("", Moment((), heard=False), arms)]
    found = {name_of(each): each for each in runs}
    of_arms = [found.get(name) for name in arms.names]
    statuses = tuple(None if each is None else each.status for each in of_arms)
    lacking = [differs(each, code, statuses, text, of_arms, struck_at) for each in wanted]
    if all(lacking):
        wrong += [*lacking[0], text[-600:]]
    return Ended(
        code,
        moments[-1] if moments else None,
        since_s - began_s,
        ended_s - since_s,
        ", ".join(map(str, statuses)),
        tuple(wrong),
    )


def differs(
    wanted: Expected,
    code: int,
    statuses: tuple[str | None, ...],
    text: str,
    runs: Sequence[Run | None],
    struck_at: float,
) -> list[str]:
    """Return in what a command did not end as it is to."""
    if wanted.done_by is not None:
        arm, lane = wanted.done_by
        run = runs[arm]
        if run is not None and run.status == "completed" and not run.replaced and struck_at >= done_at(run, lane):
            statuses_then = tuple("completed" if place == arm else each for place, each in enumerate(wanted.statuses))
            wanted = Expected(wanted.done_code, statuses_then)
    wrong = [f"exit code {code}, not {wanted.code}"] if code != wanted.code else []
    wrong += [f"runs {statuses}, not {wanted.statuses}"] if statuses != wanted.statuses else []
    lines = [line for line in text.splitlines() if line.startswith(("stopped: ", "error: ", "interrupted"))]
    if wanted.said:
        wrong += [] if len(lines) == 1 and re.search(wanted.said, lines[0]) else [f"said {lines}, not {wanted.said!r}"]
    replaced = {(arm, lane): 1 for arm, run in enumerate(runs) if run is not None for lane in run.replaced}
    if replaced != ({wanted.replaced: 1} if wanted.replaced else {}):
        wrong.append(f"replaced {replaced}, not {wanted.replaced}")
    return wrong


def done_at(run: Run, lane: str) -> float:
    """Return when a lane of a complete run had nothing left to do: as long before its end as the spans say."""
    finished = datetime.fromisoformat(run.manifest.finished_at or "").timestamp() - ENDING_S
    work = [span for span in run.spans() if not span.stage.is_wait]
    own = [span.end_ns for span in work if span.lane == lane]
    return finished - (max(span.end_ns for span in work) - max(own)) / 1e9 if own else finished


def name_of(run: Run) -> str:
    """Return the name of a run's arm, which is empty where there is only one."""
    return run.manifest.arm or ""


def strike(
    process: subprocess.Popen[bytes],
    kind: str,
    after_s: float,
    fraction: float,
    traces: Traces,
    out: Path,
    arms: Arms,
) -> list[Moment]:
    """Send the signal; return how things stood just before and after, or nothing where the command had ended."""
    of_part = kind.endswith("part")
    while of_part and not traces.processes(PART):
        if process.poll() is not None:
            return []
        time.sleep(0.05)
    time.sleep(after_s * (0.5 if of_part else 1.0))
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
    log = os.readlink(f"/proc/{struck}/fd/1")
    return Moment(
        statuses,
        heard,
        Path(log).name if re.fullmatch(r"\d+-[a-z].*\.log", Path(log).name) else "",
        any(f"{PART}.{method}" in title for method in ("__init__", "listen", "build")) or title.strip() == "",
    )


def statuses_in(out: Path, arms: Arms) -> tuple[str | None, ...]:
    """Return what the manifests say; they are replaced as a whole."""
    found = {}
    for file in out.rglob(MANIFEST):
        with suppress(FileNotFoundError):
            manifest = json.loads(file.read_text())
            if "status" in manifest:  # else that of a checkpoint
                found[manifest["arm"] or ""] = manifest["status"]
    return tuple(found.get(name) for name in arms.names)


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
    counts, failed = Counter[tuple[str, bool]](), 0
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
                failed += bool(ended.wrong)
                print(f"{scenario} {number}: {kind} {in_words(ended)}", flush=True)
                if ended.moment is not None:
                    counts[kind, bool(ended.wrong)] += 1
    for kind in dict.fromkeys(SIGNALS):
        print(f"{kind}: {counts[kind, False]} of {counts[kind, False] + counts[kind, True]} as stated")
    return int(failed > 0)


def in_words(ended: Ended) -> str:
    """Return when a command was struck and how it ended."""
    when = "after its end"
    if (now := ended.moment) is not None:
        part = (
            f" {now.part or 'without a log'}{', building' if now.building else ''}" if now.part or now.building else ""
        )
        when = f"at {ended.struck_s:.2f} s{part} ({', '.join(map(str, now.statuses))})"
    outcome = "; ".join(ended.wrong) or "as stated, nothing left"
    return f"{when}: exit {ended.code} after {ended.last_s:.1f} s ({ended.outcome}): {outcome}"


if __name__ == "__main__":
    sys.exit(main())
