"""The sampler beside one run, seen from the run: started, held while other arms have their turn, drained, ended.

Nothing here waits for the sampler but ``close``. A sampler that dies is noted, and the run goes on without counters.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import harness
from harness.probes.profile import ProbeProfile
from harness.results.counters import SAMPLER, CounterRow

_CHUNK = 1 << 16
_GOODBYE_S = 5.0
_UNSENT_BYTES = 1 << 16  # beside as many in the pipe: thousands of turns


class ProbeSession:
    """Counters of one run. Without a sampling rate in the profile it starts nothing, and has none.

    Args:
        profile: ``sampler_hz`` is used.
        clock_at: turns a reading of the machine's monotonic clock into nanoseconds of the run's.
        command: what to start; another one in tests.

    Attributes:
        notes: what went wrong, in words, for the run's log.
    """

    def __init__(
        self, profile: ProbeProfile, clock_at: Callable[[int], int], command: tuple[str, ...] | None = None
    ) -> None:
        self.notes: list[str] = []
        self._clock_at = clock_at
        self._driver_cpu_s = self._sampler_cpu_s = 0.0
        self._unread, self._unsent, self._last_ns = b"", bytearray(), 0
        self._process: subprocess.Popen[bytes] | None = None
        if profile.sampler_hz > 0:
            self._start(command or sampler_command(profile.sampler_hz, profile.own))

    def _start(self, command: tuple[str, ...]) -> None:
        project = str(Path(harness.__file__).resolve().parents[1])
        paths = os.pathsep.join(filter(None, (project, os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | {"PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is not for it: it ends when its input does
                bufsize=0,
            )
        except OSError as error:
            self._errors.close()
            self.notes.append(f"the sampler could not be started ({error.strerror}): no counters")
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    @property
    def own_cpu_s(self) -> float:
        """CPU seconds that sampling has cost so far: the sampler's, as it said last, and this process's."""
        return self._sampler_cpu_s + self._driver_cpu_s

    def watch(self, processes: Mapping[str, int]) -> None:
        """Read these processes from now on; lane to pid. Lanes in this process need not be named."""
        self._order({"processes": dict(processes)})

    def go(self) -> None:
        """Sample from now on."""
        self._order("go")

    def hold(self) -> None:
        """Sample no more until ``go``: another arm has its turn."""
        self._order("hold")

    def drain(self) -> list[CounterRow]:
        """Return the rows that have come since the last call. Times are those of the run's clock, in order.

        A paused clock knows no earlier times: drain before it is paused.
        """
        if self._process is None and not self._unread:
            return []
        with self._own_cost():
            self._receive()
            *lines, self._unread = self._unread.split(b"\n")
            return [row for line in lines for row in self._rows(json.loads(line))]

    def close(self) -> None:
        """End the sampler and take its last samples; ``drain`` then returns them. Closing twice does no harm."""
        process = self._process
        if process is None:
            return
        self._order("stop")
        deadline = time.monotonic() + _GOODBYE_S
        while self._process is not None and (left_s := deadline - time.monotonic()) > 0:
            assert process.stdout is not None
            select.select([process.stdout], [], [], left_s)
            self._receive(ending=True)
        if self._process is not None:
            self._end("it did not end when told to, and was killed")

    def _rows(self, sample: dict[str, Any]) -> Iterator[CounterRow]:
        rows = list(counter_rows(sample, self._clock_at))
        self._last_ns = at_ns = max(self._last_ns, rows[0].at_ns)
        for row in rows:
            if row.source == SAMPLER:
                self._sampler_cpu_s = row.values["cpu_s"] or 0.0
            yield CounterRow(at_ns, row.source, row.values, row.missing)

    def _order(self, order: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with self._own_cost():
            self._unsent += json.dumps(order).encode() + b"\n"
            try:
                del self._unsent[: os.write(self._process.stdin.fileno(), self._unsent)]
            except BrokenPipeError:
                self._receive()  # what it sent before it died; it also notes the death
            except BlockingIOError:
                if len(self._unsent) > _UNSENT_BYTES:
                    self._end("it takes no orders, and was killed")

    def _receive(self, ending: bool = False) -> None:
        """Read what the sampler has sent, without waiting."""
        if self._process is None:
            return
        assert self._process.stdout is not None
        chunks = [self._unread]
        with suppress(BlockingIOError):
            while chunk := os.read(self._process.stdout.fileno(), _CHUNK):
                chunks.append(chunk)
            self._end(None if ending else "it ended by itself")
        self._unread = b"".join(chunks)

    def _end(self, problem: str | None) -> None:
        """Leave nothing of the process behind."""
        process, self._process = self._process, None
        assert process is not None
        if problem is not None:
            process.kill()
        status = process.wait()
        if problem is not None or status:
            self.notes.append(f"the sampler failed: {problem or 'it ended by itself'}{self._last_words()}")
        for pipe in (process.stdin, process.stdout, self._errors):
            assert pipe is not None
            pipe.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    @contextmanager
    def _own_cost(self) -> Iterator[None]:
        started_s = time.thread_time()
        try:
            yield
        finally:
            self._driver_cpu_s += time.thread_time() - started_s


def sampler_command(hz: float, own: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command that starts a sampler beside this process; ``own``: a user's own probes."""
    command = (sys.executable, "-m", "harness.probes.sampler", "--hz", str(hz), "--driver", str(os.getpid()))
    return (*command, *(f"--own={path}" for path in own))


def counter_rows(sample: Mapping[str, Any], clock_at: Callable[[int], int], prefix: str = "") -> Iterator[CounterRow]:
    """Yield the rows of a sample, as a sampler sends it.

    Args:
        clock_at: turns the monotonic clock of the sampler's machine into nanoseconds of the run's.
        prefix: put in front of each source, such as ``node1/`` for another machine's.
    """
    at_ns = clock_at(sample["at_ns"])
    for row in sample["rows"]:
        yield CounterRow(at_ns, prefix + row["source"], row["values"], row.get("missing", {}))
