"""``python -m tests.hostile.large``: seconds and peak memory of the commands on run folders that are far too large."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.targets import ROOT, SOUND_RUN

MILLION = 10**6
COMMANDS = {"compare": [], "report": ["-o", "page.html"], "trace": ["-o", "trace.json.gz"]}


def _repeated_spans(run: Path) -> None:
    header, *rows = (run / "spans.jsonl").read_bytes().splitlines(keepends=True)
    (run / "spans.jsonl").write_bytes(header + b"".join(rows) * (MILLION // len(rows)))


def _many_steps(run: Path) -> None:
    """A million of the shortest steps there can be."""
    header = (run / "steps.jsonl").read_bytes().split(b"\n", 1)[0]
    row = '{"kind":"step","step":%d,"version":%d,"wall_s":1.0,"elapsed_s":%d.0,"optimizer_steps":1,"lanes":{},'
    row += '"stages_s":{"update":1.0},"metrics":{"loss":{"mean":0.5,"count":1}}}'
    lines = (row % (step, step + 1, step + 1) for step in range(MILLION))
    (run / "steps.jsonl").write_bytes(header + b"\n" + "\n".join(lines).encode() + b"\n")


def _long_line(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        with (run / name).open("ab") as file:
            file.write(b'{"kind":"new","x":"' + b"x" * 100_000_000 + b'"}\n')

    return damage


def _huge(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        os.truncate(run / name, 2**40)

    return damage


CASES: dict[str, Callable[[Path], None]] = {
    "as they are": lambda run: None,
    "10^6 spans": _repeated_spans,
    "10^6 steps": _many_steps,
    "a line of 100 MB in steps.jsonl": _long_line("steps.jsonl"),
    "a line of 100 MB in spans.jsonl": _long_line("spans.jsonl"),
    "a manifest.json of 1 TB": _huge("manifest.json"),
    "a steps.jsonl of 1 TB": _huge("steps.jsonl"),
    "a scenario.resolved.yaml of 1 TB": _huge("scenario.resolved.yaml"),
}


def measured(damage: Callable[[Path], None]) -> Iterator[tuple[str, int, float, float, float, str]]:
    """Yield (command, exit code, seconds, CPU seconds, peak GB, first line of errors) beside a sound run."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        experiment = Path(temporary) / "sync_k1-vs-sync_k2/20261125-205319"
        for name in ("sound", "damaged"):
            shutil.copytree(SOUND_RUN, experiment / name)
        damage(experiment / "damaged")
        for command, options in COMMANDS.items():
            arguments = [sys.executable, "-m", "harness", command, str(experiment), *options]
            began = time.monotonic()
            with (Path(temporary) / "errors").open("w+") as errors:
                process = subprocess.Popen(
                    arguments,
                    cwd=temporary,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                errors.seek(0)
                said = errors.read().strip().splitlines() or [""]
            cpu_s = usage.ru_utime + usage.ru_stime
            peak_gb = usage.ru_maxrss * 1024 / 1e9
            yield command, process.returncode, time.monotonic() - began, cpu_s, peak_gb, said[0][-90:]


def main() -> None:
    """Print a line for each case and command."""
    print("| the other run has | command | exit code | s | CPU s | peak GB | said |\n|---|---|---|---|---|---|---|")
    for name, damage in CASES.items():
        if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
            continue
        for command, code, seconds, cpu_s, peak_gb, said in measured(damage):
            print(f"| {name} | {command} | {code} | {seconds:.1f} | {cpu_s:.1f} | {peak_gb:.2f} | {said} |", flush=True)


if __name__ == "__main__":
    main()
