"""Asks an implementation in a process of its own, with limits, so that whatever it does costs its own row only."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import UserError
from harness.results.jsonl import read_json

PEERS = {
    "trl": "trl",
    "verl": "verl",
    "skyrl": "skyrl",
    "areal": "areal",
    "openrlhf": "openrlhf",
    "trinity": "trinity",
    "swift": "swift",
    "tinker": "tinker_cookbook",
}
"""The module of each implementation that ``peers.py`` knows."""
SCRIPT = Path(__file__).with_name("peers.py")
GIB = 2**30
PRINTED_BYTES = GIB // 4
"""Most that an implementation may write into one file, what it prints and what it answers."""
_LIMITED = (
    "import os, resource, sys\n"
    "for limit, most in ((resource.RLIMIT_DATA, int(sys.argv[1])), (resource.RLIMIT_FSIZE, int(sys.argv[2])), "
    "(resource.RLIMIT_CORE, 0)):\n"
    "    resource.setrlimit(limit, (most, most))\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)


@dataclass(frozen=True)
class Limits:
    """Of one implementation: wall-clock seconds, and bytes of memory (``RLIMIT_DATA``, of each of its processes)."""

    seconds: float = 300.0
    memory: int = 8 * GIB


@dataclass(frozen=True)
class LossAnswer:
    """A loss with the step's options in the implementation's words, or with its own defaults.

    Attributes:
        gradient: with respect to the log-prob of each token in the loss, row after row.
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

    package: str
    version: str
    losses: list[LossAnswer]
    advantages: list[AdvantageAnswer]


def interpreter(name: str, environments: Path) -> Path | None:
    """Return the Python that has an implementation: of ``.venv-NAME``, else this one; None where neither has."""
    python = environments / f".venv-{name}" / "bin" / "python"
    if python.exists():
        return python
    return Path(sys.executable) if importlib.util.find_spec(PEERS[name]) else None


def command_of(name: str, python: Path) -> list[str]:
    """Return the command that answers for an implementation, but for its last two words: the step and the answer."""
    return [str(python.absolute()), "-I", str(SCRIPT), name]


def ask(command: Sequence[str], step: Path, sizes: tuple[int, int], limits: Limits) -> Answer | str:
    """Return what a command answers, or in words why there is no answer.

    Args:
        command: called with two more words, the file of the step and that of the answer.
        step: the file.
        sizes: tokens in the loss and rollouts, which an answer must fit.
        limits: of the process.
    """
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        answer, printed = Path(folder, "answer.json"), Path(folder, "printed")
        limited = [sys.executable, "-c", _LIMITED, str(limits.memory), str(PRINTED_BYTES)]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [*limited, *command, str(step), str(answer)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limits.seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code is None:
            return f"no answer after {limits.seconds:g} s"
        if code:
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return f"{ended}: {_last_line(printed)}"
        return _checked(answer, sizes)


def _last_line(printed: Path) -> str:
    with printed.open("rb") as file:
        file.seek(max(0, printed.stat().st_size - 4000))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "nothing was printed")


def _checked(path: Path, sizes: tuple[int, int]) -> Answer | str:
    try:
        answer = read_json(path, Answer)
    except UserError as error:
        return f"no answer that can be read: {error.what}"
    tokens, rollouts = sizes
    for loss in answer.losses:
        if loss.absent is None and (loss.loss is None or loss.gradient is None or len(loss.gradient) != tokens):
            return f"its answer has no loss with a gradient of {tokens} tokens"
    for each in answer.advantages:
        if each.absent is None and (each.values is None or len(each.values) != rollouts):
            return f"its answer has no advantages of {rollouts} rollouts"
    return answer
