"""Stops a run in which nothing moves, and says who waits for whom since when, at which version, and in which line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core.errors import RunStopped
from harness.core.trace import OpenSpan, RecordingTracer, Stage
from harness.results import lane_kind, natural_order

DUMP_S = 5.0
"""Seconds that the stacks of one process may take."""

UNBLOCKED_BY = {
    Stage.WAIT_FOR_BATCH: "a Scorer",
    Stage.WAIT_FOR_ROLLOUTS: "a Generator",
    Stage.WAIT_FOR_WEIGHTS: "the Learner",
    Stage.WAIT_FOR_ROOM: "the Learner",
    Stage.WAIT_FOR_CALL: "a call on its way",
    Stage.WAIT_FOR_RECORDER: "the recorder",
    Stage.WAIT_FOR_RANKS: "another rank",
    Stage.WAIT_FOR_CHECKPOINT: "the checkpoint writer",
}
"""Whom each wait is for."""

LANE_KINDS = {
    "a Scorer": "scorer",
    "a Generator": "generator",
    "the Learner": "learner",
    "the checkpoint writer": "checkpoint_writer",
}
"""The lanes of whoever a wait is for; see ``lane_kind``."""

_PTRACE_FIX = "allow it with `sysctl kernel.yama.ptrace_scope=0` as root (in a container: --cap-add SYS_PTRACE)"


async def watch(
    tracer: RecordingTracer,
    stall_after_s: float,
    dumps: Callable[[], str],
    say: Callable[[str], None],
    poll_s: float = 1.0,
) -> None:
    """Watch a run until cancelled, or until it stalls: no span has ended, or one stage has not, for a while.

    It goes by the tracer's clock. That clock stands still while another arm works, which is therefore no stall.

    Args:
        dumps: returns the stacks of the run's processes.
        say: takes the report, several lines.

    Raises:
        RunStopped: with the first line of the report.
    """
    ended, moved_ns = tracer.ended, tracer.clock_ns()
    while True:
        await asyncio.sleep(poll_s)
        now_ns = tracer.clock_ns()
        if tracer.ended != ended:
            ended, moved_ns = tracer.ended, now_ns
        spans, bound = tracer.still_open(), f"(faults.stall_after_s is {stall_after_s:g})"
        stuck = [span for span in spans if not span.stage.is_wait and now_ns - span.start_ns >= stall_after_s * 1e9]
        if now_ns - moved_ns >= stall_after_s * 1e9:
            idle_s = _seconds(now_ns - moved_ns)
            headline = f"no stage has ended for {idle_s} s {bound}: {likely_culprit(spans, now_ns)}"
        elif stuck:
            headline = f"a stage has not ended while others went on {bound}: {likely_culprit(stuck, now_ns)}"
        else:
            continue
        say("\n".join([headline, *open_lines(spans, now_ns), dumps()]))
        raise RunStopped(headline)


def open_lines(spans: Sequence[OpenSpan], now_ns: int, decimals: int = 1) -> list[str]:
    return [_open_line(span, now_ns, decimals) for span in sorted(spans, key=_oldest_first)]


def _oldest_first(span: OpenSpan) -> tuple[int, list[tuple[int, str]]]:
    return span.start_ns, natural_order(span.lane)


def waiting_chain(spans: Sequence[OpenSpan]) -> list[str]:
    """Follow the waits from the oldest one, each to a lane that could end it: a circle, or a part that is stuck."""
    of_kind: dict[str, OpenSpan] = {}
    for open_span in sorted(spans, key=lambda span: (span.stage.is_wait, *_oldest_first(span))):
        of_kind.setdefault(lane_kind(open_span.lane), open_span)  # who works rather than who waits
    waits = [span for span in sorted(spans, key=_oldest_first) if span.stage.is_wait]
    lines, told, span = [], set[str](), waits[0] if waits else None
    while span is not None and span.stage.is_wait and span.lane not in told:
        told.add(span.lane)
        wanted = UNBLOCKED_BY[span.stage]
        mover = of_kind.get(LANE_KINDS.get(wanted, ""))
        known = f", such as {mover.lane}, in {mover.stage}" if mover else ", and none has anything to do"
        lines.append(f"{span.lane} waits for {wanted}{known if wanted in LANE_KINDS else ''}")
        span = mover
    return lines


def _open_line(span: OpenSpan, now_ns: int, decimals: int) -> str:
    step = f" for step {span.step}" if span.step >= 0 else ""
    version = f", at policy version {span.version}" if span.version >= 0 else ""
    waits = f", waits for {UNBLOCKED_BY[span.stage]}" if span.stage.is_wait else ""
    since, so_far = _seconds(span.start_ns, decimals), _seconds(now_ns - span.start_ns, decimals)
    return f"{span.lane}: {span.stage}{step} since {since} s ({so_far} s so far){version}{waits}"


def likely_culprit(spans: Sequence[OpenSpan], now_ns: int) -> str:
    """Return who holds the run up: the lanes that do something, since the others wait for them."""
    if not spans:
        return "no stage and no wait is under way: the loop itself does not go on"
    busy = sorted((span for span in spans if not span.stage.is_wait), key=_oldest_first)
    if not busy:
        return "every lane waits: a deadlock"
    doing = " and ".join(
        f"{span.lane} has been in {span.stage} for {_seconds(now_ns - span.start_ns)} s" for span in busy
    )
    if {span.lane for span in spans} <= {span.lane for span in busy}:
        return doing
    return f"{doing}: everyone else waits for {'it' if len(busy) == 1 else 'them'}"


def _seconds(duration_ns: int, decimals: int = 1) -> str:
    return f"{duration_ns / 1e9:.{decimals}f}"


def stack_dumps(processes: Mapping[str, int], py_spy: Path | None = None, limit_s: float = DUMP_S) -> str:
    program = py_spy or Path(sys.executable).parent / "py-spy"
    return "\n".join(
        f"stacks of {lane} (process {pid}): {_stacks(pid, program, limit_s)}" for lane, pid in processes.items()
    )


def _stacks(pid: int, program: Path, limit_s: float) -> str:
    if not Path(f"/proc/{pid}").exists():
        return "the process has ended"
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
        )
    except FileNotFoundError:
        return f"there is no {program}; install py-spy"
    except subprocess.TimeoutExpired:
        return f"py-spy was not done within {limit_s:g} s"
    if done.returncode == 0:
        return "\n" + _without_heading(done.stdout)
    if "ermission" in done.stderr or "not permitted" in done.stderr:
        return f"py-spy may not look into it; {_PTRACE_FIX}"
    return f"py-spy failed: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}"


def _without_heading(dump: str) -> str:
    """Leave out py-spy's own lines about the process, which hold its whole command line."""
    return dump.partition("\nPython v")[2].partition("\n")[2].strip("\n")
