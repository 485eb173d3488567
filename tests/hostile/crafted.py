"""Crafted inputs, one table: the reader, the damage, and what its error must name.

What a reader's own tests have stands there; here is what takes long to get through, and command lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from harness.cli import main
from harness.core.errors import UserError
from harness.scenario.load import load_scenario
from harness.tasks.jsonl import JsonlTask
from tests.hostile.outcome import Silent
from tests.hostile.targets import check_usable, quietly, read_everything, targets

Damage = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Crafted:
    """An input for a reader.

    Attributes:
        reader: one of ``targets``, or of ``ACTS`` below.
        what: its name in this table.
        data: the input, or what makes it of the reader's sound file.
        names: what the error must have in it; None where it may be accepted, and must be usable then.
        limit_s: CPU seconds that it may take.
    """

    reader: str
    what: str
    data: str | bytes | Damage
    names: str | None
    limit_s: float = 1.0

    @property
    def act(self) -> Callable[[Path], None]:
        """Give it to its reader, in an empty folder."""
        read = ACTS[self.reader] if self.reader in ACTS else _targets()[self.reader].read
        data = self.data
        if callable(data):
            data = data(_targets()[self.reader].sound[0])
        return partial(read, data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))


_targets = cache(targets)


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def _numbers(count: int) -> str:
    return ", ".join(map(str, range(count)))


def _rows(make: Callable[[int], str], count: int) -> str:
    return "".join(map(make, range(count)))


TAKING_A_NAME = (
    *("run", "bench", "sweep", "validate", "compare", "report", "trace", "whatif", "import trl"),
    *("run quickstart --out", "evaluate --task keywords --model"),
)
REWARDS = ("nothing", "os:", ":x", "os.path:join", "no_such:fn", "os:name", "..:x", "a" * 5000 + ":b")
TABLE: tuple[tuple[str, str, str | bytes | Damage, str | None], ...] = (
    ("scenario", "3,000 unknown keys", _rows(lambda n: f"stepz_{n}: 1\n", 3000), "stepz_0"),
    ("scenario", "5,000 keys written twice", "steps: 1\n" * 5000, "written twice"),
    ("scenario", "an axis of 30,000 values", f"sweep: {{seed: [{_numbers(30_000)}]}}", "20,000"),
    ("scenario", "10^6 runs", f"sweep: {{seed: [{_numbers(1000)}], steps: [{_numbers(1001)[3:]}]}}", "10000"),
    ("scenario", "9,999 runs that break a rule", f"group_size: 7\nsweep: {{seed: [{_numbers(9999)}]}}", "group_size"),
    ("scenario", "9,999 runs of an unknown key", f"sweep: {{sed: [{_numbers(9999)}]}}", "sed"),
    ("scenario", "3,000 arms of an unknown key", "arms:\n" + _rows(lambda n: f"  a{n}: {{stepz: 1}}\n", 3000), "stepz"),
    ("scenario", "an axis of nested values", "sweep: {sampling: [" + "{a: " * 500 + "1" + "}" * 500 + "]}", "deep"),
    ("scenario", "2,000 block levels", _rows(lambda n: f"{' ' * n}a:\n", 500), "deep"),
    ("scenario", "noise", bytes(range(256)) * 40, "UTF-8"),
    ("scenario", "UTF-16", "steps: 3\n".encode("utf-16"), "UTF-8"),
    ("scenario", "a merge of itself", "a: &a {<<: *a}\n", "itself"),
    ("scenario", "another version of YAML", "%YAML 9.9\n---\nsteps: 1\n", "incompatible"),
    ("scenario", "a name of 5,000 characters", "name: " + "x" * 5000, "name"),
    ("scenario", "an arm of 1,000 characters", f"arms: {{{'x' * 1000}: {{steps: 1}}}}\n", "arms"),
    ("scenario", "extends itself", "extends: s\n", "s -> s"),
    ("scenario", "extends a list", "extends: [a]\n", "extends"),
    ("scenario", "a batch of 10**9", "rollout_batch_size: 1000000000\ngroup_size: 1000000000000\n", "group_size"),
    ("set", "no sign", "steps", "steps"),
    ("set", "no key", "=3", "=3"),
    ("set", "an empty part", "loss..type=naive", "loss..type"),
    ("set", "dots alone", "...=1", "..."),
    ("set", "extends", "extends=sync_k1", "extends"),
    ("set", "a value that is no UTF-8", b"description=\xff", "description"),
    ("set", "a key that is no UTF-8", b"\xff=1", "1"),
    ("set", "20,000 levels", "a=" + "[" * 20_000 + "]" * 20_000, "deep"),
    ("set", "20,000 values", f"sweep.seed=[{_numbers(20_000)}]", "20,000"),
    ("set", "a value of 130,000 characters", "description=" + "x" * 130_000, None),
    *(("command", f"{words} with a name of 5,000", f"{words} {'x' * 5000}", "xxx") for words in TAKING_A_NAME),
    *(("command", f"{words} a null byte", f"{words} a\0b.yaml", "b.yaml") for words in ("simulate", "compare")),
    ("steps.jsonl", "in reverse", lambda data: b"".join([_lines(data)[0], *reversed(_lines(data)[1:])]), "steps.jsonl"),
    ("steps.jsonl", "a row twice", lambda data: data + _lines(data)[-2], "steps.jsonl"),
    ("steps.jsonl", "no UTF-8", lambda data: data.replace(b"e", b"\xff"), "steps.jsonl"),
    ("spans.jsonl", "no UTF-8", lambda data: data.replace(b"e", b"\xff"), "spans.jsonl"),
    (
        "steps.jsonl",
        "a line of 20 MB",
        lambda data: data + b'{"kind":"step","x":"' + b"x" * 20_000_000 + b'"}\n',
        "steps.jsonl",
    ),
    ("manifest.json", "of another program", bytes(range(256)) * 64, "manifest.json"),
    ("prompts", "UTF-16", '{"prompt": "q", "answer": "a"}'.encode("utf-16"), "UTF-8"),
    ("prompts", "a row of 20 MB", b'{"prompt": "' + b"x" * 20_000_000 + b'", "answer": "a"}', None),
    *(("reward", name[:12], name, name[:12].strip("\0")) for name in REWARDS),
)
"""Reader, damage, input, what the error names; see ``Crafted``."""

AT_THEIR_BOUNDS = (
    "seed=4294967295",
    "description='\u0130\u202e\U0001f600'",
    "reward_target=-1e30",
    "evaluation.every=1000000000",
    "optimizer.learning_rate=0",
    "optimizer.learning_rate=1e30",
    "optimizer.weight_decay=1e30",
    "optimizer.max_grad_norm=1e-30",
    "optimizer.max_grad_norm=1e30",
    "optimizer.warmup_steps=1000000000",
    "sampling.temperature=1e-30",
    "sampling.temperature=1e30",
    "sampling.top_p=1e-300",
    "advantage.eps=1e-30",
    "advantage.eps=1e30",
    "loss.kl.coefficient=1e30",
    "loss.entropy_coefficient=1e30",
    "loss.cliprange_high=1e30",
    "loss.dual_clip=1e30",
    "loss.cliprange=0",
    "faults.stall_after_s=1000000",
    "faults.stall_after_s=1e-9",
    "faults.max_replacements=1000000000",
    "checkpoint={every: 1000000000, keep: 1000000000}",
    "replay={capacity: 1000000000, max_age: 1000000000}",
    "placement.generator.cpus=1e30",
)
"""Settings of runs of one training step: each ends, and its folder can be read."""
_SHORTEST = """
task: {type: sorting}
model: {type: sorting}
steps: 1
rollout_batch_size: 8
group_size: 4
evaluation: {prompts: 3, examples: 1}
trackers: [jsonl]
save_policy: false
profile: "off"
"""


def crafted() -> Iterator[Crafted]:
    """Yield the table, and what is at a bound of what is valid."""
    for reader, what, data, names in TABLE:
        yield Crafted(reader, what, data, names, 10.0 if reader == "command" or "20 MB" in what else 1.0)
    yield Crafted("scenario", "9,999 runs", f"sweep: {{seed: [{_numbers(9999)}]}}", None, 20.0)
    yield Crafted("scenario", "10,000 seeds in blocks", "blocks: 1000\n", None, 20.0)
    for override in AT_THEIR_BOUNDS:
        yield Crafted("run", override, override, None, 20.0)


def _command(data: bytes, folder: Path) -> None:
    """A command line: it must end with exit code 2 and without a traceback."""
    code, said = quietly(lambda: main(data.decode().split(" ")))
    _told(said)
    if code != 2:
        raise Silent(f"exit code {code}: {said[-500:]}")
    raise UserError(said.strip()[:1000] or " ")


def _told(said: str) -> None:
    if "Traceback" in said:
        raise RuntimeError(said[-2000:])


def _reward(data: bytes, folder: Path) -> None:
    rows = [json.dumps({"prompt": prompt, "answer": "a"}) for prompt in "pq"]
    (folder / "p.jsonl").write_text("\n".join(rows))
    JsonlTask(folder / "p.jsonl", os.fsdecode(data))


def _run(data: bytes, folder: Path) -> None:
    override = data.decode()
    (folder / "s.yaml").write_text(_SHORTEST)
    check_usable(load_scenario(folder / "s.yaml", [override]), folder)
    command = ["run", str(folder / "s.yaml"), "--set", override, "--out", str(folder / "out"), "--quiet"]
    code, said = quietly(lambda: main(command))
    _told(said)
    for manifest in (folder / "out").rglob("manifest.json"):
        read_everything(manifest.parent)
    if code:
        raise UserError(said.strip()[:1000] or f"exit code {code}")


ACTS: dict[str, Callable[[bytes, Path], None]] = {"command": _command, "reward": _reward, "run": _run}
"""Readers that nothing is drawn for: command lines, names of functions, whole runs."""
