"""The JSON of pytest-benchmark: medians side by side, with their spread and a ratio for each benchmark of one name.

Figures only, never a verdict: the rounds of one launch share its luck (memory layout, neighbours, clocks), so a file is
one block, however many rounds stand behind its median.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compare.numbers import NOTHING, number
from harness.compare.tables import Table
from harness.core.errors import UserError
from harness.core.regular_files import read_regular

SCHEMA, SCHEMA_VERSION = "harness.benchmark_comparison", 1
LONGEST_S = 1e9
SAVE_ONE = "save one with: pytest --benchmark-only --benchmark-json=FILE"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark of one file; times are seconds of a call.

    Attributes:
        name: file, test and parameters, as pytest names them; equal names are compared.
        group: as the benchmark's author named it.
        q1_s, q3_s: the ends of the middle half of the rounds.
        threads: of the process; None in files without the harness's facts.
    """

    name: str
    group: str
    median_s: float
    q1_s: float
    q3_s: float
    rounds: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class BenchmarkFile:
    """What one launch of pytest saved.

    Attributes:
        label: short name, unlike those of the other files.
        fingerprint: of the machine; without the harness's facts, the machine in words, or None.
        commit, versions: of the code; None and empty where the file does not say.
    """

    label: str
    when: str
    fingerprint: str | None
    commit: str | None
    dirty: bool | None
    versions: Mapping[str, str]
    benchmarks: Mapping[str, Benchmark]


def is_benchmark_file(path: Path) -> bool:
    """Whether a path names a JSON file, rather than a folder of runs."""
    return path.suffix == ".json" and os.path.isfile(path)


def read_benchmark_files(paths: Sequence[Path]) -> list[BenchmarkFile]:
    """Read the files, in the order given.

    Raises:
        UserError: one cannot be read, or is not what pytest-benchmark saves.
    """
    labels = _labels(paths)
    return [_read(path, label) for path, label in zip(paths, labels, strict=True)]


def benchmark_table(files: Sequence[BenchmarkFile]) -> Table:
    """Return a row for each benchmark: its median and middle half in each file, and ratios to the first file."""
    first, *others = files
    spread_note = "Median [first quartile, third quartile] over the rounds of one launch."
    if not others:
        shorts = _short_names(first.benchmarks)
        rows = [(shorts[name], _time(item), str(item.rounds)) for name, item in first.benchmarks.items()]
        header: tuple[str, ...] = ("benchmark", "milliseconds", "rounds")
        return Table(f"Benchmarks of {first.label}: milliseconds of a call", header, tuple(rows), (spread_note,))
    names = list(dict.fromkeys(name for file in files for name in file.benchmarks))
    header = ("benchmark", *(f"{file.label}, ms" for file in files))
    header += tuple(f"{file.label} / {first.label}" for file in others)
    compared, shorts = [], _short_names(names)
    for name in names:
        items = [file.benchmarks.get(name) for file in files]
        ratios = [_ratio(items[0], other) for other in items[1:]]
        cells = [NOTHING if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        compared.append((shorts[name], *map(_time, items), *cells))
    notes = [spread_note]
    lonely = sum(any(name not in file.benchmarks for file in files) for name in names)
    if lonely:
        notes.append(f"{lonely} of {len(names)} benchmarks are not in every file.")
    return Table("Benchmarks: milliseconds of a call", header, tuple(compared), tuple(notes), divisible=True)


def benchmark_caveats(files: Sequence[BenchmarkFile]) -> list[str]:
    """Say what keeps the files from being compared plainly, and why there is no verdict."""
    if len(files) == 1:
        return []
    sentences = []
    machines = _distinct(file.fingerprint or "unknown" for file in files)
    if len(machines) > 1:
        kinds = f"{len(machines)} kinds of machine ({', '.join(machines)})"
        sentences.append(f"The files come from {kinds}: do not compare.")
    for name in sorted({name for file in files for name in file.versions}):
        versions = _distinct(file.versions.get(name, "none") for file in files)
        if len(versions) > 1:
            sentences.append(f"The versions of {name} differ: {', '.join(versions)}.")
    commits = _distinct(
        (file.commit or "none")[:7] + (" with uncommitted changes" if file.dirty else "") for file in files
    )
    if len(commits) > 1:
        sentences.append(f"The commits differ: {', '.join(commits)}.")
    shared = [name for name in files[0].benchmarks if all(name in file.benchmarks for file in files)]
    unlike = [name for name in shared if len({file.benchmarks[name].threads for file in files}) > 1]
    if unlike:
        shorts = _short_names(files[0].benchmarks)
        sentences.append(f"The thread counts differ in {', '.join(shorts[name] for name in unlike)}.")
    sentences.append(
        "Each file is one launch, which is one block, whatever its rounds: figures, not a verdict. That takes at least "
        "six launches of each side in turns."
    )
    return sentences


def benchmark_json(files: Sequence[BenchmarkFile]) -> dict[str, Any]:
    """Return the comparison as plain values; ratios are to the first file."""
    first = files[0]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "files": [
            {
                "label": file.label,
                "datetime": file.when,
                "fingerprint": file.fingerprint,
                "commit": file.commit,
                "dirty": file.dirty,
                "benchmarks": {
                    name: {
                        "median_s": item.median_s,
                        "q1_s": item.q1_s,
                        "q3_s": item.q3_s,
                        "rounds": item.rounds,
                        "threads": item.threads,
                        "ratio": _ratio(first.benchmarks.get(name), item),
                    }
                    for name, item in file.benchmarks.items()
                },
            }
            for file in files
        ],
        "cautions": benchmark_caveats(files),
    }


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten each name, with as many of its folders as tell it from the others."""
    shown, folders = {name: _short_name(name) for name in names}, 0
    while True:
        counts = Counter(shown.values())
        twins = [name for name, short in shown.items() if counts[short] > 1]
        if not twins:
            return shown
        folders += 1
        deep = all(folders > name.count("/") for name in twins)
        shown |= {name: name if deep else _short_name(name, folders) for name in twins}


def _short_name(name: str, folders: int = 0) -> str:
    """Shorten ``tests/benchmarks/test_tracer_benchmark.py::test_spans[10]`` to ``tracer: spans[10]``."""
    file, separator, test = name.partition("::")
    path = Path(file)
    topic = path.stem.removeprefix("test_").removesuffix("_benchmark")
    topic = "/".join([*path.parent.parts[-folders or len(path.parent.parts) :], topic])
    return f"{topic}: {test.removeprefix('test_')}" if separator else name


def _time(item: Benchmark | None) -> str:
    if item is None:
        return NOTHING
    middle, low, high = (number(1e3 * seconds) for seconds in (item.median_s, item.q1_s, item.q3_s))
    return f"{middle} [{low}, {high}]"


def _ratio(first: Benchmark | None, other: Benchmark | None) -> float | None:
    if first is None or other is None or first.median_s <= 0:
        return None
    return other.median_s / first.median_s


def _labels(paths: Sequence[Path]) -> list[str]:
    """Name files by their stems, with as many folders as it takes to tell them apart."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.with_suffix("").parts[-parts:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise UserError("a file is named twice", where=str(paths[0]), fix="name each file once")


def _read(path: Path, label: str) -> BenchmarkFile:
    try:
        data = json.loads(read_regular(path))
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} is not JSON: {error}", where=str(path), fix=SAVE_ONE) from error
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list):
        raise UserError(f"{str(path)!r} holds no benchmarks of pytest-benchmark", where=str(path), fix=SAVE_ONE)
    if not data["benchmarks"]:
        raise UserError(f"{str(path)!r} holds no benchmark: none ran to its end", where=str(path), fix=SAVE_ONE)
    try:
        return _file(data, label)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{str(path)!r} is damaged: {problem}", where=str(path), fix=SAVE_ONE) from error


def _file(data: dict[str, Any], label: str) -> BenchmarkFile:
    benchmarks = [_benchmark(item) for item in data["benchmarks"]]
    facts: dict[str, Any] = dict(data["benchmarks"][0].get("extra_info", {}).get("harness", {}))
    machine = dict(data.get("machine_info") or {})
    python = " ".join(str(machine[key]) for key in ("python_implementation", "python_version") if machine.get(key))
    commit = facts.get("commit") or dict(data.get("commit_info") or {}).get("id")
    return BenchmarkFile(
        label=label,
        when=str(data.get("datetime", "")),
        fingerprint=_text_or_none(facts.get("fingerprint") or _machine(machine)),
        commit=_text_or_none(commit),
        dirty=bool(facts["dirty"]) if "dirty" in facts else None,
        versions=({"Python": python} if python else {})
        | {str(name): str(version) for name, version in dict(facts.get("versions", {})).items()},
        benchmarks={item.name: item for item in benchmarks},
    )


def _machine(info: Mapping[str, Any]) -> str | None:
    """Return what pytest-benchmark tells of a machine: its processor, cores and system."""
    cpu = info.get("cpu") or {}
    cpu = cpu if isinstance(cpu, dict) else {"brand": cpu, "count": info.get("cores")}
    facts = [cpu.get("brand_raw") or cpu.get("brand"), cpu.get("count") and f"{cpu['count']} cores"]
    facts += [info.get(key) for key in ("machine", "system", "release")]
    return " ".join(str(fact) for fact in facts if fact) or None


def _benchmark(item: dict[str, Any]) -> Benchmark:
    name, stats = str(item.get("fullname") or item["name"]), item["stats"]
    facts = item.get("extra_info", {}).get("harness", {})
    threads, rounds = facts.get("threads"), stats["rounds"]
    if rounds.__class__ is not int:
        raise ValueError(f"the rounds of {name!r} are {rounds!r}; they must be a whole number")
    return Benchmark(
        name=name,
        group=str(item.get("group") or ""),
        median_s=_seconds(stats["median"], name),
        q1_s=_seconds(stats["q1"], name),
        q3_s=_seconds(stats["q3"], name),
        rounds=rounds,
        threads=threads if threads.__class__ is int else None,
    )


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise ValueError(f"a time of {name!r} is {value!r}; it must be a number of seconds from 0 to {LONGEST_S:g}")
    return float(value)


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
