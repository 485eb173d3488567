"""The sampler beside one run, seen from the run: started, held while other arms have their turn, drained, ended.

Nothing here waits for the sampler but ``close``. A sampler that dies is noted, and the run goes on without counters.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
from harness.probes.sampler import Channel
from harness.results.counters import LEFT_OUT, CounterRow

_GOODBYE_S, _LOOK_S = 5.0, 0.1


class SamplerProcess:
    """Counters of one machine. Without a rate nothing is started, and there are none.

    Args:
        hz: samples a second.
        own: probe plugins, as ``package.module:Name``.
        command: what to start; another one in tests.

    Attributes:
        notes: what went wrong, in words, for the run's log.
    """

    def __init__(self, hz: float, own: Sequence[str] = (), command: Sequence[str] | None = None) -> None:
        self.notes: list[str] = []
        self._watched: Mapping[str, int] = {}
        self._driver_cpu_s = 0.0
        self._newest: Mapping[str, float] = {}  # of the sampler's own reading, the first of a sample
        self._samples, self._last_ns = list[Any](), 0
        self._process: subprocess.Popen[bytes] | None = None
        if hz > 0:
            plain = [sys.executable, "-m", "harness.probes.sampler", "--hz", str(hz), "--driver", str(os.getpid())]
            self._start(command or [*plain, *(f"--own={path}" for path in own)])

    def _start(self, command: Sequence[str]) -> None:
        project = str(Path(harness.__file__).resolve().parents[1])
        paths = os.pathsep.join(filter(None, (project, os.environ.get("PYTHONPATH"))))
        here, there = socket.socketpair()
        self._channel, self._errors = Channel(here), tempfile.TemporaryFile()  # noqa: SIM115  (lives with the process)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=os.environ | {"PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is not for it: it ends when its input does
            )
        except OSError as error:
            self._channel.close()
            self._errors.close()
            self.notes.append(f"the sampler could not be started ({error.strerror}): no counters")
        finally:
            there.close()

    @property
    def own_cpu_s(self) -> float:
        """CPU seconds that sampling has cost so far: the sampler's, as it said last, and this process's."""
        return self._newest.get("cpu_s", 0.0) + self._driver_cpu_s

    def watch(self, processes: Mapping[str, int]) -> None:
        """Read these processes from now on; lane to pid. Lanes in this process need not be named."""
        if processes != self._watched:
            self._watched = dict(processes)
            self.order({"processes": self._watched})

    def order(self, order: object) -> None:
        """Give an order: ``go``, to sample from now on, or ``hold``, while another arm has its turn."""
        if self._process is not None:
            with self._own_cost():
                if not self._channel.send(order):
                    self._end("it takes no orders, and was killed")

    def drain(self, clock_at: Callable[[int], int] = int) -> list[CounterRow]:
        """Return the rows that have come since the last call, in order of time.

        Args:
            clock_at: turns a reading of the machine's monotonic clock into nanoseconds of the run's.
        """
        rows = list[CounterRow]()
        if self._process is None and not self._samples:
            return rows
        with self._own_cost():
            if self._process is not None:
                self._receive()
            for at_ns, readings in self._samples:
                self._last_ns = max(self._last_ns, clock_at(at_ns))
                for it in readings:
                    rows.append(CounterRow(self._last_ns, it["source"], it["values"], it.get("missing", {})))
            self._samples.clear()
        return rows

    def close(self) -> None:
        """End the sampler and take its last samples; ``drain`` then returns them. Closing twice does no harm."""
        self.order("stop")
        deadline = time.monotonic() + _GOODBYE_S
        while self._process is not None and (left_s := deadline - time.monotonic()) > 0:
            select.select([self._channel], [], [], min(left_s, _LOOK_S))
            self._receive(ending=True)
        if self._process is not None:
            self._end("it did not end when told to, and was killed")

    def _receive(self, ending: bool = False) -> None:
        self._channel.push()
        samples = self._channel.receive()
        self._samples += samples
        if samples:
            self._newest = samples[-1][1][0]["values"]
        if self._channel.ended:
            self._end(None if ending else "it ended by itself")

    def _end(self, problem: str | None) -> None:
        """Leave nothing of the process behind."""
        process, self._process = self._process, None
        assert process is not None
        if problem is not None:
            process.kill()
        status = process.wait()
        if problem is not None or status:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            last_words = f" ({lines[-1]})" if lines else ""
            self.notes.append(f"the sampler failed: {problem or 'it ended by itself'}{last_words}")
        if left_out := self._newest.get(LEFT_OUT):
            self.notes.append(f"the sampler left out {left_out:,.0f} samples, which the run did not read in time")
        self._channel.close()
        self._errors.close()

    @contextmanager
    def _own_cost(self) -> Iterator[None]:
        started_s = time.thread_time()
        try:
            yield
        finally:
            self._driver_cpu_s += time.thread_time() - started_s
