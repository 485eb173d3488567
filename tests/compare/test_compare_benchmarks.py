"""``python -m harness.compare`` on JSON files of pytest-benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.compare.__main__ import main
from harness.compare.benchmarks import benchmark_caveats, benchmark_table, read_benchmark_files
from harness.core.errors import UserError

FACTS = {"fingerprint": "0123456789ab", "versions": {"torch": "2.13.0"}, "commit": "abcdef1234", "dirty": False}
LOSS, SPANS = "tests/benchmarks/test_grpo_benchmark.py::test_loss[64/32]", "test_tracer_benchmark.py::test_spans"
VERDICT = (
    "Each file is one launch, which is one block, whatever its rounds: figures, not a verdict. That takes at least six "
    "launches of each side in turns."
)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the output 200 characters wide, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


def a_benchmark(name: str, median: float, threads: int = 1, **facts: Any) -> dict[str, Any]:
    stats = {"median": median, "q1": 0.9 * median, "q3": 1.5 * median, "rounds": 20, "stddev": 0.0}
    extra_info = {"harness": FACTS | {"threads": threads} | facts}
    return {"fullname": name, "name": name, "group": "maths", "stats": stats, "extra_info": extra_info}


def save(path: Path, *benchmarks: dict[str, Any], **others: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"benchmarks": benchmarks, "datetime": "2026-11-21T15:00:00+00:00"} | others))
    return path


def test_one_file_is_a_table_of_medians(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", a_benchmark(LOSS, 0.002), a_benchmark(SPANS, 2e-4))
    files = read_benchmark_files([path])
    table = benchmark_table(files)
    assert (table.title, table.header) == (
        "Benchmarks of a: milliseconds of a call",
        ("benchmark", "milliseconds", "rounds"),
    )
    assert table.rows == (
        ("grpo: loss[64/32]", "2.00 [1.80, 3.00]", "20"),
        ("tracer: spans", "0.200 [0.180, 0.300]", "20"),
    )
    assert table.notes == ("Median [first quartile, third quartile] over the rounds of one launch.",)
    assert benchmark_caveats(files) == []


def test_two_files_have_a_ratio_for_each_benchmark_of_one_name(tmp_path: Path) -> None:
    before = save(tmp_path / "before.json", a_benchmark(LOSS, 0.002), a_benchmark(SPANS, 2e-4))
    after = save(tmp_path / "after.json", a_benchmark(LOSS, 0.003), a_benchmark("test_new.py::test_it", 1.0))
    table = benchmark_table(files := read_benchmark_files([before, after]))
    assert table.header == ("benchmark", "before, ms", "after, ms", "after / before")
    assert table.rows == (
        ("grpo: loss[64/32]", "2.00 [1.80, 3.00]", "3.00 [2.70, 4.50]", "1.50"),
        ("tracer: spans", "0.200 [0.180, 0.300]", "-", "-"),
        ("new: it", "-", "1,000 [900, 1,500]", "-"),
    )
    assert table.notes[1:] == ("2 of 3 benchmarks are not in every file.",)
    assert benchmark_caveats(files) == [VERDICT]


def test_files_of_unlike_origin_are_shown_with_what_differs(tmp_path: Path) -> None:
    one = save(tmp_path / "one" / "x.json", a_benchmark(LOSS, 0.002))
    changes = {"fingerprint": "fedcba987654", "versions": {"torch": "2.14.0", "ray": "2.60.0"}, "dirty": True}
    two = save(tmp_path / "two" / "x.json", a_benchmark(LOSS, 0.002, threads=2, **changes))
    bare = a_benchmark(LOSS, 0.002) | {"extra_info": {}}
    three = save(tmp_path / "three" / "x.json", bare, commit_info={"id": "1234567890"})
    files = read_benchmark_files([one, two, three])
    assert [file.label for file in files] == ["one/x", "two/x", "three/x"]
    assert benchmark_caveats(files) == [
        "The files come from 3 kinds of machine (0123456789ab, fedcba987654, unknown): do not compare.",
        "The versions of ray differ: none, 2.60.0.",
        "The versions of torch differ: 2.13.0, 2.14.0, none.",
        "The commits differ: abcdef1, abcdef1 with uncommitted changes, 1234567.",
        "The thread counts differ in grpo: loss[64/32].",
        VERDICT,
    ]


def test_machines_are_told_apart_by_what_pytest_benchmark_says_of_them(tmp_path: Path) -> None:
    cpu = {"brand_raw": "Laptop CPU", "count": 4}
    laptop = {"cpu": cpu, "machine": "arm64", "system": "Linux", "release": "6.1", "python_version": "3.11.9"}
    bare = a_benchmark(LOSS, 0.002) | {"extra_info": {}}

    def caveats(**changes: Any) -> list[str]:
        one = save(tmp_path / "one" / "x.json", bare, machine_info=laptop | {"node": "a"})
        two = save(tmp_path / "two" / "x.json", bare, machine_info=laptop | {"node": "b"} | changes)
        return benchmark_caveats(read_benchmark_files([one, two]))[:-1]

    assert caveats() == []
    assert caveats(cpu=cpu | {"count": 64}) == [
        "The files come from 2 kinds of machine (Laptop CPU 4 cores arm64 Linux 6.1, "
        "Laptop CPU 64 cores arm64 Linux 6.1): do not compare."
    ]
    for change in (
        {"cpu": {"brand_raw": "Server CPU", "count": 4}},
        {"system": "Darwin"},
        {"release": "6.2"},
        {"cpu": {}},
    ):
        assert "do not compare" in caveats(**change)[0], change
    assert caveats(python_version="3.12.1") == ["The versions of Python differ: 3.11.9, 3.12.1."]


def test_tests_of_one_short_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    names = ["tests/a/test_io.py::test_read", "tests/b/test_io.py::test_read", "tests/b/io_benchmark.py::test_read"]
    names += ["test_io.py::test_write", "x/c/test_net.py::test_get", "y/c/test_net.py::test_get"]
    path = save(tmp_path / "a.json", *(a_benchmark(name, 0.002) for name in names))
    rows = benchmark_table(read_benchmark_files([path])).rows
    assert [row[0] for row in rows] == [
        "a/io: read",
        "tests/b/test_io.py::test_read",
        "tests/b/io_benchmark.py::test_read",
        "io: write",
        "x/c/net: get",
        "y/c/net: get",
    ]


def test_the_command_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = save(tmp_path / "before.json", a_benchmark(LOSS, 0.002))
    after = save(tmp_path / "after.json", a_benchmark(LOSS, 0.003))
    assert main([str(before), str(after)]) == 0
    output = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "grpo: loss[64/32] 2.00 [1.80, 3.00] 3.00 [2.70, 4.50] 1.50" in lines
    assert f"- {VERDICT}" in lines
    assert main([str(before), str(after), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["schema_version"]) == ("harness.benchmark_comparison", 1)
    found = data["files"][1]["benchmarks"][LOSS]
    expected = {"median_s": 0.003, "q1_s": 0.0027, "q3_s": 0.0045, "rounds": 20, "threads": 1, "ratio": 1.5}
    assert found == pytest.approx(expected, rel=1e-12)


def test_text_from_files_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "a.json", a_benchmark("test_x.py::test_\x1b[2J[bold]", 1.0))
    assert main([str(path)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert r"x: \x1b[2J[bold]" in output


def _stats(**changes: Any) -> dict[str, Any]:
    item = a_benchmark(LOSS, 0.002)
    return item | {"stats": {key: value for key, value in (item["stats"] | changes).items() if value is not None}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[]", "holds no benchmarks of pytest-benchmark"),
        ('{"schema": "harness.manifest"}', "holds no benchmarks of pytest-benchmark"),
        ('{"benchmarks": []}', "holds no benchmark: none ran to its end"),
        ('{"benchmarks": [1]}', "is damaged: 'int' object has no attribute 'get'"),
        (json.dumps({"benchmarks": [_stats(median=None)]}), "is damaged: it lacks 'median'"),
        (
            json.dumps({"benchmarks": [_stats(median=float("nan"))]}),
            f"is damaged: a time of '{LOSS}' is nan; it must be a number of seconds from 0 to 1e+09",
        ),
        (
            json.dumps({"benchmarks": [_stats(median=10**400)]}),
            f"is damaged: a time of '{LOSS}' is {10**400}; it must be a number of seconds from 0 to 1e+09",
        ),
        (
            json.dumps({"benchmarks": [_stats(q1="fast")]}),
            f"is damaged: a time of '{LOSS}' is 'fast'; it must be a number of seconds from 0 to 1e+09",
        ),
        (
            json.dumps({"benchmarks": [_stats(rounds=1.5)]}),
            f"is damaged: the rounds of '{LOSS}' are 1.5; they must be a whole number",
        ),
    ],
)
def test_a_broken_file_is_one_clear_error(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: '{path}' {problem}")
    assert said.endswith(f"  where: {path}\n  fix:   save one with: pytest --benchmark-only --benchmark-json=FILE\n")


def test_benchmarks_are_not_mixed_with_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "a.json", a_benchmark(LOSS, 0.002))
    assert main([str(path), str(tmp_path)]) == 2
    assert f"'{tmp_path}' is no JSON file, and benchmarks are compared with benchmarks only" in capsys.readouterr().err
    assert main([str(path), "--plots", str(tmp_path)]) == 2
    assert "--plots is for runs, not for benchmarks" in capsys.readouterr().err
    with pytest.raises(UserError, match="a file is named twice"):
        read_benchmark_files([path, path])
