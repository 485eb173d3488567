"""What the programs of this folder share: arguments, arms timed in turns, a process of its own, tables out."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from harness.core.atomic_files import whole_file
from harness.core.progress import progress_bars
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.report.document import Table
from harness.report.markdown import markdown_table

ROOT = Path(__file__).resolve().parents[2]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Took:
    """One call: seconds on the wall, seconds of this process's work, and how many things were done."""

    wall_s: float
    cpu_s: float
    count: int


def parser(about: str | None, example: str) -> argparse.ArgumentParser:
    """Return a parser of a program whose docstring is ``about``, with ``--json`` and ``--markdown``."""
    made = argparse.ArgumentParser(
        description=about, epilog=f"example:\n  {example}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="also write figures, settings and machine to this file")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables to this file")
    return made


def counted(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Pass items on, with a bar or lines on standard error: how many of ``total``, and the time left."""
    with progress_bars(Console(stderr=True), tenths=True) as bars:
        task = bars.add_task(what, total=total)
        for item in items:
            yield item
            bars.advance(task)


def in_turns(arms: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, list[Took]]:
    """Time every arm once a round, behind a round that does not count; each round begins with another one.

    So all meet the same weather, and a round's ratios hold where the machine is shared. An arm returns its count.
    """
    taken: dict[str, list[Took]] = {name: [] for name in arms}
    names = list(arms)
    for number in counted(range(rounds + 1), rounds + 1, "rounds"):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            count = arms[name]()
            took = Took(time.perf_counter() - wall_s, time.process_time() - cpu_s, count)
            taken[name] += [took] if number else []
    return taken


def spread(values: Iterable[float]) -> str:
    """Write the median with the range."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def in_child(module: str, order: object) -> Any:
    """Run ``python -m module --child ORDER`` with one thread; return what it prints last, both as JSON."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, "--child", json.dumps(order)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{module} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def as_plain(value: object) -> object:
    """Return what JSON takes in place of a path or a dataclass."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def publish(title: str, tables: Sequence[Table], options: argparse.Namespace, /, **figures: Any) -> None:
    """Print a page of tables in Markdown, with machine, versions and commit; write the files that are asked for."""
    machine, code, versions = machine_facts(), code_state(), package_versions()
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if name in ("torch", "transformers"))
    commit = f"{code.commit or 'no commit'}"[:8] + (" with changes" if code.dirty else "")
    parts = [f"# {title}", *(f"## {table.title}\n\n{markdown_table(replace(table, title=''))}" for table in tables)]
    parts.append(f"{machine['cpu']}, {machine['cores']} cores; {named}; {commit}; load {os.getloadavg()[0]:.1f}")
    print(page := "\n\n".join(parts), flush=True)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "markdown")}
    facts = {"settings": settings, "machine": machine, "versions": versions, "commit": code.commit, "dirty": code.dirty}
    for path, text in (
        (options.json, json.dumps(facts | figures, indent=1, default=as_plain)),
        (options.markdown, page),
    ):
        if path is not None:
            with whole_file(path) as file:
                file.write(f"{text}\n".encode())
