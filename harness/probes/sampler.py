"""Samples the counters of one machine and of the run's processes, beside the run.

``python -m harness.probes.sampler --hz 5`` does so in a process of its own, which takes orders as JSON lines on its
input and writes samples as JSON lines to its output::

    {"processes": {"learner": 4711}}    watch these from now on
    "go"                                sample until told otherwise
    "hold"                              one last sample, then none
    "stop"                              end; so does the end of the input, as when the run was killed

    {"at_ns": 123, "rows": [{"source": "host", "values": {...}, "missing": {...}}, ...]}

``SamplingThread`` does the same in a thread of a process that has little else to do, such as an actor on another
machine. Times are those of the machine's monotonic clock, which is ``time.perf_counter_ns`` on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.probes.host import HostProbe, ProcessProbe
from harness.probes.nvml import GpuProbe, open_gpu_probe
from harness.probes.reading import PluginReader, Reading, Unknown
from harness.results.counters import HELD, SAMPLER

_GOODBYE_S = 5.0
_PENDING_BYTES = 64 * 2**20  # at 5 Hz more than an hour of samples that nobody reads

Sample = dict[str, Any]
"""``at_ns`` of the machine's monotonic clock, and ``rows``: ``source``, ``values`` and, if any, ``missing``."""


class Outbox:
    """Writes lines to a pipe without ever waiting for its reader: what does not fit is kept for later."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._pending, self.dropped = descriptor, bytearray(), 0

    def add(self, sample: Sample) -> None:
        """Send a sample, or keep it; where far too many are kept already, drop it and count it."""
        if len(self._pending) > _PENDING_BYTES:
            self.dropped += 1
            return
        self._pending += json.dumps(sample, separators=(",", ":")).encode() + b"\n"
        self.push()

    def push(self) -> None:
        """Send as much of what was kept as the pipe takes.

        Raises:
            BrokenPipeError: nobody is there to read it.
        """
        while self._pending:
            try:
                del self._pending[: os.write(self._descriptor, self._pending)]
            except BlockingIOError:
                return

    def finish(self, patience_s: float = _GOODBYE_S) -> None:
        """Send the rest, waiting for the reader; where nobody reads for this long, it is lost."""
        self.push()
        while self._pending and select.select([], [self._descriptor], [], patience_s)[1]:
            self.push()


class Inbox:
    """Reads orders, one JSON line each, from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""

    def wait(self, timeout_s: float) -> list[Any] | None:
        """Return the orders that arrived within this time; None once the input has ended."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(self._descriptor, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None


NICENESS = 5
_ORPHAN_CHECK_S = 1.0


class Sampling:
    """Takes samples, when asked to. Opens nothing before the first one.

    Args:
        driver: pid of the process that runs the loop.
        clock_ns: the machine's monotonic clock.
        cpu_s: CPU seconds that the sampling itself has cost so far.
        open_gpus: returns the probe of the GPUs, or raises ``Unknown``.
        own: probe plugins, as ``package.module:Name``.

    Raises:
        UserError: a plugin cannot be made.
    """

    def __init__(
        self,
        driver: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_s: Callable[[], float] = time.process_time,
        open_gpus: Callable[[], GpuProbe] = open_gpu_probe,
        own: Sequence[str] = (),
    ) -> None:
        self._own = [PluginReader(path) for path in own]
        self._clock_ns, self._cpu_s, self._open_gpus = clock_ns, cpu_s, open_gpus
        self._host, self._processes = HostProbe(), ProcessProbe(driver)
        self._gpus: GpuProbe | None = None
        self._no_gpus: str | None = None

    def watch(self, processes: Mapping[str, int]) -> None:
        """Read these processes from now on; lane to pid."""
        self._processes.watch(processes)

    def sample(self, last: bool = False) -> Sample:
        """Read everything once.

        Args:
            last: the run is held after this one.
        """
        at_ns = self._clock_ns()
        readings = [self._host.read(), *self._processes.read(), *self._read_gpus(at_ns)]
        readings += [own.read() for own in self._own]
        own = Reading(SAMPLER, {"cpu_s": self._cpu_s(), HELD: int(last)})
        return {"at_ns": at_ns, "rows": [_as_json(reading) for reading in (own, *readings)]}

    def mark_held(self) -> Sample:
        """Return a sample that reads nothing, and says that the run is held from here."""
        return {"at_ns": self._clock_ns(), "rows": [_as_json(Reading(SAMPLER, {"cpu_s": self._cpu_s(), HELD: 1}))]}

    def close(self) -> None:
        """Let the driver go."""
        if self._gpus is not None:
            self._gpus.close()

    def _read_gpus(self, at_ns: int) -> list[Reading]:
        if self._no_gpus is not None:
            return []
        try:
            self._gpus = self._gpus or self._open_gpus()
        except Unknown as error:  # said once, in the first sample
            self._no_gpus = error.reason
            return [Reading("gpu", {}, {"gpu": error.reason})]
        return self._gpus.read(at_ns, self._processes.pids)


def _as_json(reading: Reading) -> dict[str, Any]:
    values = {name: value if value is None else _rounded(value) for name, value in reading.values.items()}
    row: dict[str, Any] = {"source": reading.source, "values": values}
    return row | ({"missing": reading.missing} if reading.missing else {})


def _rounded(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


class Throttle:
    """When to sample: every period while going, and at both ends of each stretch.

    No sample comes within half a period of the last one, however quickly arms take turns.
    """

    def __init__(self, hz: float) -> None:
        self._period_ns = round(1e9 / hz)
        self._next_ns: int | None = None
        self._earliest_ns = 0

    @property
    def is_going(self) -> bool:
        """Whether samples are being taken."""
        return self._next_ns is not None

    def is_fresh(self, now_ns: int) -> bool:
        """Whether the last sample is too recent for another one."""
        return now_ns < self._earliest_ns

    def go(self, now_ns: int) -> None:
        """Begin a stretch, with a sample as soon as may be."""
        if self._next_ns is None:
            self._next_ns = max(now_ns, self._earliest_ns)

    def hold(self) -> None:
        """End a stretch."""
        self._next_ns = None

    def due_in_s(self, now_ns: int) -> float | None:
        """Return seconds until the next sample, 0 if it is late; None while held."""
        return None if self._next_ns is None else max(0, self._next_ns - now_ns) / 1e9

    def sampled(self, now_ns: int) -> None:
        """Note a sample; those that were missed meanwhile are not made up for."""
        self._earliest_ns = now_ns + self._period_ns // 2
        if self._next_ns is not None:
            missed = max(0, now_ns - self._next_ns) // self._period_ns
            self._next_ns += (missed + 1) * self._period_ns


class PacedSampling:
    """Samples at its pace, as ordered, and hands each sample on.

    Args:
        emit: takes a sample.
    """

    def __init__(
        self,
        sampling: Sampling,
        hz: float,
        emit: Callable[[Sample], None],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._sampling, self._pace, self._emit, self._clock_ns = sampling, Throttle(hz), emit, clock_ns

    def watch(self, processes: Mapping[str, int]) -> None:
        """Read these processes from now on; lane to pid."""
        self._sampling.watch(processes)

    def go(self) -> None:
        """Sample from now on."""
        self._pace.go(self._clock_ns())

    def hold(self) -> None:
        """Sample no more; the end of the stretch is marked."""
        if not self._pace.is_going:
            return
        self._pace.hold()
        now_ns = self._clock_ns()
        if self._pace.is_fresh(now_ns):
            self._emit(self._sampling.mark_held())
        else:
            self._take(now_ns, last=True)

    def sample_if_due(self) -> float | None:
        """Take the sample that is due, if one is; return seconds until the next, None while held."""
        now_ns = self._clock_ns()
        if self._pace.due_in_s(now_ns) == 0:
            self._take(now_ns, last=False)
        return self._pace.due_in_s(self._clock_ns())

    def _take(self, now_ns: int, last: bool) -> None:
        self._emit(self._sampling.sample(last))
        self._pace.sampled(now_ns)

    def close(self) -> None:
        """End."""
        self.hold()
        self._sampling.close()


def obey(sampling: PacedSampling, order: Any) -> bool:
    """Carry out one order; return whether it was not ``stop``. Orders that are not known are passed over."""
    match order:
        case "go":
            sampling.go()
        case "hold":
            sampling.hold()
        case "stop":
            return False
        case {"processes": dict(processes)}:
            sampling.watch(processes)
    return True


def serve(sampling: PacedSampling, inbox: Inbox, outbox: Outbox) -> None:
    """Sample as ordered until told to stop, or until the input ends, or its writer has gone."""
    parent, wait_s = os.getppid(), 0.0
    while os.getppid() == parent:  # a process forked by the writer may hold its end of the pipe open
        orders = inbox.wait(min(wait_s, _ORPHAN_CHECK_S))
        if orders is None or not all(obey(sampling, order) for order in orders):
            break
        due_s = sampling.sample_if_due()
        outbox.push()
        wait_s = _ORPHAN_CHECK_S if due_s is None else due_s
    sampling.close()
    outbox.finish()


class SamplingThread:
    """Samples in a thread of this process, such as an actor that does nothing else on its machine.

    The process's own CPU time counts as the sampling's.

    Args:
        hz: samples a second.
        driver: pid that is read as ``driver``.
    """

    def __init__(self, hz: float, driver: int | None = None) -> None:
        self._samples: deque[Sample] = deque()
        self._sampling = PacedSampling(Sampling(driver or os.getpid()), hz, self._samples.append)
        self._orders: deque[Any] = deque()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="sampler", daemon=True)
        self._thread.start()

    def order(self, order: Any) -> None:
        """Give an order; see the module."""
        self._orders.append(order)
        self._woken.set()

    def drain(self) -> list[Sample]:
        """Return the samples since the last call, and forget them."""
        return [self._samples.popleft() for _ in range(len(self._samples))]

    def close(self) -> None:
        """Take the last sample and end; ``drain`` still returns what was sampled."""
        self.order("stop")
        self._thread.join()

    def _serve(self) -> None:
        wait_s: float | None = None
        going = True
        while going:
            self._woken.wait(wait_s)
            self._woken.clear()
            while going and self._orders:
                going = obey(self._sampling, self._orders.popleft())
            wait_s = self._sampling.sample_if_due() if going else None
        self._sampling.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample beside a run, as ordered on standard input."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.probes.sampler",
        description="Samples the counters of this machine; takes orders on its input. The run starts it.",
        epilog="example: (echo '\"go\"'; sleep 1) | python -m harness.probes.sampler --hz 5",
    )
    parser.add_argument("--hz", type=float, default=5.0, help="samples a second (default: 5)")
    parser.add_argument("--driver", type=int, default=os.getppid(), help="pid that is read as the driver")
    parser.add_argument("--own", action="append", default=[], metavar="PACKAGE.MODULE:NAME", help="one's own probe")
    chosen = parser.parse_args(arguments)
    os.nice(NICENESS)
    outbox = Outbox(sys.stdout.fileno())
    try:
        serve(
            PacedSampling(Sampling(chosen.driver, own=chosen.own), chosen.hz, outbox.add),
            Inbox(sys.stdin.fileno()),
            outbox,
        )
    except BrokenPipeError:  # the run has gone
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
