"""Samples the counters of one machine and of the run's processes, beside the run, in a process of its own.

``SamplerProcess`` in ``harness.probes.sampler_process`` starts it, on other machines too. They speak over a pair of
sockets, the sampler's being its standard input, in lines of JSON. Orders::

    {"processes": {"learner": 4711}}    watch these from now on
    "go"                                sample until told otherwise
    "hold"                              one last sample, then none
    "stop"                              end; so does the end of the input, as when the run was killed

A sample is ``[at_ns, [{"source": "host", "values": {...}, "missing": {...}}, ...]]``, on the machine's monotonic clock,
which is ``time.perf_counter_ns`` on Linux.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harness.probes.host import HostProbe, ProcessProbe
from harness.probes.nvml import GpuProbe, open_gpu_probe
from harness.probes.reading import PluginReader, Reading, Unknown
from harness.results.counters import HELD, LEFT_OUT, SAMPLER

NICENESS = 5
_ORPHAN_CHECK_S = 1.0
_GOODBYE_S = 5.0
_MOST_UNSENT = 1 << 25  # bytes: at 5 Hz more than an hour of samples that nobody reads
_PIECE = 1 << 16

Sample = tuple[int, list[Reading]]
"""The machine's monotonic clock, and what was read then: the sampler's own reading first."""


class Channel:
    """Lines of JSON both ways over a stream. It never waits for the other end: what does not fit is kept for later.

    Attributes:
        ended: whether the other end is gone.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end, self._unsent, self._begun, self.ended = end, bytearray(), bytearray(), False

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> bool:
        """Send a message, or keep it; return whether it was: not if too much is kept already."""
        if len(self._unsent) >= _MOST_UNSENT:
            return False
        self._unsent += msgspec.json.encode(message) + b"\n"
        self.push()
        return True

    def push(self) -> None:
        """Send as much of what was kept as the other end has room for."""
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except ConnectionError:  # nobody will read it; ``receive`` finds the end
            self._unsent.clear()

    def receive(self) -> list[Any]:
        """Return the messages that have come since the last call; one that was cut off by the end is none."""
        while not self.ended:
            try:
                piece = self._end.recv(_PIECE)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it has not read all; what it had sent comes behind this
                continue
            self._begun += piece
            self.ended = not piece
        if b"\n" not in self._begun:
            return []
        *lines, self._begun = self._begun.split(b"\n")
        return [msgspec.json.decode(line) for line in lines]

    def finish(self, patience_s: float = _GOODBYE_S) -> None:
        """Send the rest; where nobody reads for this long, it is lost."""
        self.push()
        while self._unsent and select.select([], [self], [], patience_s)[1]:
            self.push()

    def close(self) -> None:
        self._end.close()


class Sampler:
    """Takes samples as ordered: every period while going, and at both ends of each stretch.

    No sample comes within half a period of the last one, however quickly arms take turns. Nothing is opened before the
    first one.

    Args:
        driver: pid of the process that runs the loop.
        send: takes a sample; returns whether it did. Those that it did not are counted in the next one.
        clock_ns: the machine's monotonic clock.
        cpu_s: CPU seconds that the sampling itself has cost so far.
        open_gpus: returns the probe of the GPUs, or raises ``Unknown``.
        own: probe plugins, as ``package.module:Name``.

    Raises:
        UserError: a plugin cannot be made.
    """

    def __init__(
        self,
        hz: float,
        driver: int,
        send: Callable[[Sample], bool],
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_s: Callable[[], float] = time.process_time,
        open_gpus: Callable[[], GpuProbe] = open_gpu_probe,
        own: Sequence[str] = (),
    ) -> None:
        self._own = [PluginReader(path) for path in own]
        self._send, self._clock_ns, self._cpu_s = send, clock_ns, cpu_s
        self._host, self._processes = HostProbe(), ProcessProbe(driver)
        self._open_gpus: Callable[[], GpuProbe] | None = open_gpus  # None once tried
        self._gpus: GpuProbe | None = None
        self._period_ns = round(1e9 / hz)
        self._earliest_ns = self._left_out = 0
        self._next_ns: int | None = None  # None while held

    def obey(self, order: Any) -> bool:
        """Carry out one order; return whether it was not ``stop``. Orders that are not known are passed over."""
        match order:
            case "go" if self._next_ns is None:
                self._next_ns = max(self._clock_ns(), self._earliest_ns)
            case "hold":
                self._hold()
            case "stop":
                return False
            case {"processes": dict(processes)}:
                self._processes.watch(processes)
        return True

    def sample_if_due(self) -> float | None:
        """Take the sample that is due, if one is; return seconds until the next, None while held.

        Samples that were missed meanwhile are not made up for.
        """
        if self._next_ns is None:
            return None
        now_ns = self._clock_ns()
        if now_ns >= self._next_ns:
            self._emit(self.sample(), now_ns)
            self._next_ns += ((now_ns - self._next_ns) // self._period_ns + 1) * self._period_ns
        return max(0, self._next_ns - self._clock_ns()) / 1e9

    def _hold(self) -> None:
        if self._next_ns is None:
            return
        self._next_ns, now_ns = None, self._clock_ns()
        if now_ns < self._earliest_ns:  # too soon for another sample: the end is marked
            self._emit((now_ns, [self._mark(held=True)]))
        else:
            self._emit(self.sample(last=True), now_ns)

    def _emit(self, sample: Sample, taken_ns: int | None = None) -> None:
        self._left_out += not self._send(sample)
        if taken_ns is not None:
            self._earliest_ns = taken_ns + self._period_ns // 2

    def sample(self, last: bool = False) -> Sample:
        """Read everything once; ``last``: the run is held after this."""
        at_ns = self._clock_ns()
        readings = [self._host.read(), *self._processes.read(), *self._read_gpus(at_ns)]
        readings += [probe.read() for probe in self._own]
        for reading in readings:
            reading.values.update({name: _rounded(it) for name, it in reading.values.items() if it is not None})
        return at_ns, [self._mark(last), *readings]

    def _mark(self, held: bool) -> Reading:
        left_out = {LEFT_OUT: self._left_out} if self._left_out else {}
        return Reading(SAMPLER, {"cpu_s": _rounded(self._cpu_s()), HELD: int(held), **left_out})

    def _read_gpus(self, at_ns: int) -> list[Reading]:
        if self._open_gpus is not None:
            open_gpus, self._open_gpus = self._open_gpus, None
            try:
                self._gpus = open_gpus()
            except Unknown as error:  # said once, in the first sample
                return [Reading("gpu", {}, {"gpu": error.reason})]
        return [] if self._gpus is None else self._gpus.read(at_ns, self._processes.pids)

    def close(self) -> None:
        """Take the last sample, and let the driver go."""
        self._hold()
        if self._gpus is not None:
            self._gpus.close()


def _rounded(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


def serve(sampler: Sampler, channel: Channel) -> None:
    """Sample as ordered until told to stop, or until the other end, or the parent process, has gone."""
    parent, wait_s = os.getppid(), 0.0
    while os.getppid() == parent:  # a process forked by the parent may hold the other end open
        select.select([channel], [], [], wait_s)
        if not all(map(sampler.obey, channel.receive())) or channel.ended:
            break
        due_s = sampler.sample_if_due()
        channel.push()
        wait_s = min(_ORPHAN_CHECK_S if due_s is None else due_s, _ORPHAN_CHECK_S)
    sampler.close()
    channel.finish()


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample beside a run, as ordered on standard input."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.probes.sampler",
        description="Samples the counters of this machine, as ordered on its input, a socket. The run starts it.",
    )
    parser.add_argument("--hz", type=float, default=5.0, help="samples a second (default: 5)")
    parser.add_argument("--driver", type=int, default=os.getppid(), help="pid that is read as the driver")
    parser.add_argument("--own", action="append", default=[], metavar="PACKAGE.MODULE:NAME", help="one's own probe")
    chosen = parser.parse_args(arguments)
    os.nice(NICENESS)
    channel = Channel(socket.socket(fileno=sys.stdin.fileno()))
    serve(Sampler(chosen.hz, chosen.driver, channel.send, own=chosen.own), channel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
