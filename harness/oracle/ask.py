"""Asks an implementation in a process of its own, with limits, so that whatever it does costs its own answers only."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from harness.core.errors import UserError
from harness.oracle.step import Step
from harness.results.jsonl import read_json

T = TypeVar("T")
GIB = 2**30
PRINTED_BYTES = GIB // 4
"""Most that an implementation may write into one file, what it prints and what it answers."""
MOST_SAID = 2**20
"""Most bytes that an implementation may say of itself."""
MOST_STARTS = 3
"""An implementation that failed is started again for the next question, so many times in all."""
END_S = 10.0
"""Time that an implementation which says no more has to end."""
_LIMITED = (
    "import os, resource, sys\n"
    "for limit, most in ((resource.RLIMIT_DATA, int(sys.argv[1])), (resource.RLIMIT_FSIZE, int(sys.argv[2])), "
    "(resource.RLIMIT_CORE, 0)):\n"
    "    resource.setrlimit(limit, (most, most))\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_SERVE = (
    "import importlib.util, os, sys\n"
    "spec = importlib.util.spec_from_file_location('peers', sys.argv[1])\n"
    "sys.modules['peers'] = importlib.util.module_from_spec(spec)\n"
    "spec.loader.exec_module(sys.modules['peers'])\n"
    "from peers.serve import main\n"
    "main()"
)


@dataclass(frozen=True)
class Limits:
    """Of one implementation: wall-clock seconds until it has started or answered, and bytes of memory
    (``RLIMIT_DATA``, of each of its processes)."""

    seconds: float = 300.0
    memory: int = 8 * GIB


@dataclass(frozen=True)
class LossAnswer:
    """A loss with the step's options in the implementation's words, or with its own defaults.

    Attributes:
        gradient: with respect to the log-prob of each token in the loss, row after row; after them those with respect
            to the tokens' entropies, where the step has these.
        absent: why there is none.
    """

    variant: Literal["matched", "defaults"]
    options: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    gradient: list[float] | None = None
    absent: str | None = None


@dataclass(frozen=True)
class AdvantageAnswer:
    """The advantage of each rollout, by the function that ``of`` names; or why there is none."""

    of: str = "advantages"
    options: dict[str, Any] = field(default_factory=dict)
    values: list[float] | None = None
    absent: str | None = None


@dataclass(frozen=True)
class Answer:
    """What an implementation computed of a step."""

    losses: list[LossAnswer]
    advantages: list[AdvantageAnswer]


@dataclass(frozen=True)
class Explanation:
    """Why the result of an option is another one, with file and line of the implementation."""

    option: str
    why: str
    at: str
    is_defect: bool = False


@dataclass(frozen=True)
class About:
    """What an implementation says of itself: its package, the place of its loss, and its explanations."""

    package: str
    version: str
    entry: str = ""
    because: list[Explanation] = field(default_factory=list)


def command_of(name: str, python: Path, peers: Path = Path(__file__).parent / "peers") -> list[str]:
    """Return the command that answers for an implementation, but for its last word, a file descriptor.

    Args:
        name: of the implementation.
        python: of its environment.
        peers: the package that knows it.
    """
    return [str(python.absolute()), "-I", "-c", _SERVE, str(peers / "__init__.py"), name]


class Failed(Exception):
    """There is no answer; the text says why."""


class Implementation:
    """One implementation, started when it is first asked, and ended with the ``with`` block.

    Args:
        command: called with one more word, the number of the file descriptor to which it says what it has done.
        limits: of its process.
    """

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self._command, self._limits = command, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._said = -1
        self._starts = 0
        self._folder = tempfile.TemporaryDirectory(prefix="oracle-")
        self._about: About | None = None
        self._failure = ""

    def __enter__(self) -> Implementation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._folder.cleanup()

    def about(self) -> About | str:
        """Return what it says of itself, or in words why it cannot be asked."""
        try:
            self._started()
        except Failed as failed:
            return str(failed)
        assert self._about is not None
        return self._about

    def ask(self, step: Step, with_defaults: bool = False) -> Answer | str:
        """Return what it computes of a step, or in words why there is no answer.

        Args:
            step: what is asked.
            with_defaults: with the loss of its own default options too.
        """
        asked, answer = Path(self._folder.name, "step.safetensors"), Path(self._folder.name, "answer.json")
        try:
            process = self._started()
            step.write(asked)
            answer.unlink(missing_ok=True)
            line = json.dumps({"step": str(asked), "answer": str(answer), "defaults": with_defaults})
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()
            self._line()
            return _checked(answer, step)
        except Failed as failed:
            return str(failed)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        if self._starts == MOST_STARTS:
            raise Failed(self._failure)
        self._starts += 1
        read, write = os.pipe()
        limited = [sys.executable, "-c", _LIMITED, str(self._limits.memory), str(PRINTED_BYTES)]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with Path(self._folder.name, "printed").open("wb") as output:
            self._process = subprocess.Popen(
                [*limited, *self._command, str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
                pass_fds=[write],
            )
        os.close(write)
        self._said = read
        try:
            self._about = msgspec.json.decode(self._line(), type=About)
        except msgspec.MsgspecError as error:
            self._fail(f"what it says of itself cannot be read: {error}")
        return self._process

    def _line(self) -> bytes:
        """Wait for a line of what it says."""
        deadline, line = time.monotonic() + self._limits.seconds, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._said], [], [], left)[0]:
                self._fail(f"no answer after {self._limits.seconds:g} s")
            more = os.read(self._said, 2**16)
            line += more
            if not more or len(line) > MOST_SAID:
                self._fail(self._ended() if not more else "it says too much of itself")
        return line

    def _ended(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "it closed its answers and did not end"
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{ended}: {_last_line(Path(self._folder.name, 'printed'))}"

    def _fail(self, why: str) -> NoReturn:
        self._failure = why
        self._end()
        raise Failed(why)

    def _end(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        os.close(self._said)
        self._process = None


def _last_line(printed: Path) -> str:
    with printed.open("rb") as file:
        file.seek(max(0, printed.stat().st_size - 4000))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "nothing was printed")


def _checked(path: Path, step: Step) -> Answer:
    try:
        answer = read_json(path, Answer)
    except UserError as error:
        raise Failed(f"no answer that can be read: {error.what}") from None
    tokens, rollouts = step.gradient_size, len(step.tensors["rewards"])
    for loss in answer.losses:
        if loss.absent is None and (loss.loss is None or loss.gradient is None or len(loss.gradient) != tokens):
            raise Failed(f"its answer has no loss with a gradient of {tokens} values")
    for each in answer.advantages:
        if each.absent is None and (each.values is None or len(each.values) != rollouts):
            raise Failed(f"its answer has no advantages of {rollouts} rollouts")
    return answer


def ask_all(
    commands: Mapping[str, Sequence[str]], limits: Limits, asked: Callable[[Implementation], T]
) -> dict[str, T]:
    """Return what a function makes of each implementation; as many are asked side by side as there are processors."""

    def one(command: Sequence[str]) -> T:
        with Implementation(command, limits) as implementation:
            return asked(implementation)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(commands, pool.map(one, commands.values()), strict=True))
