"""The GPU check: its runner on stand-in phases, what its phases would run on a GPU, and numbers on this machine."""

import gzip
import importlib
import json
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import ZipFile

import pytest

from harness.cli import main
from harness.gpu_check import command, parity, probe, runs, speed, wheels
from harness.gpu_check.report import Report, Skipped
from harness.gpu_check.runner import Phase, run_phases
from harness.probes.nsight import is_alive
from harness.results import find_runs
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]


def phase(name: str, limit_s: float = 120.0) -> Phase:
    return Phase(name, "a stand-in", f"tests.stand_ins.gpu_phases:{name}", limit_s)


def checked(out: Path, *phases: Phase) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run phases; return the exit code and what the summary says of each."""
    code = run_phases(phases, out, grace_s=0.2)
    summary = json.loads((out / "summary.json").read_text())
    assert [entry["name"] for entry in summary["phases"]] == [phase.name for phase in phases]
    return code, {entry["name"]: entry for entry in summary["phases"]}


def test_phases_run_in_order_and_the_summary_has_their_figures(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    code, found = checked(tmp_path, phase("passes"), phase("is_skipped"))
    assert code == 0
    assert (found["passes"]["status"], found["passes"]["reason"]) == ("passed", "3.5 of it")
    assert found["passes"]["figures"] == {
        "speed": 3.5,
        "version": "2.11",
        "lost": None,
        "gap": {"difference": 1.0, "bound": 1.0},
    }
    assert found["is_skipped"]["status"] == "skipped"
    assert found["is_skipped"]["reason"] == "no_such_module is not installed, no-such-program is not on the PATH"
    assert "gap: {'difference': 1.0, 'bound': 1.0}" in (tmp_path / "passes.log").read_text()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"torch", "python", "harness"} <= summary["versions"].keys()
    assert {"cpu", "gpus", "fingerprint"} <= summary["machine"].keys()
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in table if line[:1] in (["passes"], ["is_skipped"])] == [
        ["passes", "passed"],
        ["is_skipped", "skipped"],
    ]


def test_failures_carry_their_numbers_and_the_rest_goes_on(tmp_path: Path) -> None:
    code, found = checked(tmp_path, phase("is_off"), phase("breaks"), phase("passes"))
    assert code == 1
    assert [entry["status"] for entry in found.values()] == ["failed", "failed", "passed"]
    told = found["is_off"]["reason"].split("; ")
    assert told == ["gap: 0.25, at most 0.125", "lost: nan, at most 1", "broken part: ValueError: no such kernel"]
    assert found["is_off"]["figures"]["after"] == 1
    assert found["breaks"]["reason"] == "RuntimeError: out of memory"


def test_a_phase_that_dies_or_says_nothing_has_not_passed(tmp_path: Path) -> None:
    code, found = checked(tmp_path, phase("dies"), phase("says_nothing"), Phase("gone", "", "tests.no_module:run", 60))
    assert code == 1
    assert {name: entry["status"] for name, entry in found.items()} == dict.fromkeys(found, "failed")
    assert found["dies"]["figures"] == {"before": 1}


@pytest.mark.slow
def test_an_overrunning_phase_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code, found = checked(tmp_path, phase("overruns", limit_s=8.0), phase("passes"))
    assert code == 1
    assert found["overruns"]["status"] == "failed"
    assert found["overruns"]["seconds"] >= 8.0
    assert found["passes"]["status"] == "passed"
    for child in found["overruns"]["figures"].values():  # none where the machine is too slow to start it in time
        end = time.monotonic() + 30
        while is_alive(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert not is_alive(child)


def test_lean_phases_share_seconds_and_leave_one_archive(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    beside = Phase("leaves_files", "a stand-in", "tests.stand_ins.gpu_phases:leaves_files", 120.0, beside=True)
    phases = [phase("passes"), beside, phase("is_off")]
    assert run_phases(phases, tmp_path, grace_s=0.2, lean=True, budget_s=300) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu_check.tar.gz", "summary.json"]
    with tarfile.open(tmp_path / "gpu_check.tar.gz") as packed:
        names = {name.removeprefix("gpu_check/") for name in packed.getnames()}
    assert {"passes.json", "passes.log", "is_off.json", "leaves_files.json", "leaves_files/run/steps.jsonl"} <= names
    assert not any(name.endswith((".safetensors", ".png")) for name in names)
    assert "no GPU was checked" in capsys.readouterr().out
    assert run_phases([phase("passes")], tmp_path / "short", grace_s=0.2, lean=True, budget_s=10) == 0
    (entry,) = json.loads((tmp_path / "short" / "summary.json").read_text())["phases"]
    assert (entry["status"], entry["reason"]) == ("skipped", "of 10 s too few are left")


def test_ray_without_what_a_run_does_not_use(tmp_path: Path) -> None:
    program = Path(sys.executable).resolve().read_bytes()
    files = {"ray/__init__.py": b"1", "ray/rllib/a.py": b"2", "ray/_raylet.so": program, "ray-2.dist-info/RECORD": b""}
    with ZipFile(tmp_path / "ray-2.whl", "w") as wheel:
        for name, contents in files.items():
            wheel.writestr(name, contents)
    with ZipFile(wheels.strip_ray(tmp_path / "ray-2.whl", tmp_path / "small")) as small:
        assert set(small.namelist()) == files.keys() - {"ray/rllib/a.py"}
        assert small.read("ray/__init__.py") == b"1"
        assert len(small.read("ray/_raylet.so")) <= len(program)


def test_every_phase_can_be_imported_and_ends_within_ten_minutes() -> None:
    for _, target, limit_s in command.PHASES.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(f"harness.gpu_check.{module}"), function))
        assert limit_s < 600


def test_the_list_names_the_phases_in_their_order(capsys: pytest.CaptureFixture) -> None:
    for options, names in (([], tuple(command.PHASES)), (["--lean"], command.LEAN)):
        assert main(["gpu-check", "--list", *options]) == 0
        assert tuple(line.split()[0] for line in capsys.readouterr().out.splitlines()) == names


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--phase no_such_phase", "no_such_phase"),
        ("--lean --phase nsys --phase probe", "nsys is none of --lean"),
        ("--wheels no_such_file.txt", "no_such_file.txt"),
        ("--strip-ray no_such.whl", "no_such.whl"),
        *((f"--budget {text}", f"{text} is not") for text in ("0", "nan", "inf")),
    ],
)
def test_what_cannot_be_done_is_refused(typed: str, told: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["gpu-check", *typed.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_bare_machine_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Also where the package is no checkout: its requirements are then those of its metadata."""
    from_file = set(wheels.requirements())
    assert from_file == set(wheels.requirements(root=Path("no checkout")))
    assert {"pydantic", "torch", "ray", "nixl"} <= from_file
    monkeypatch.setattr(wheels, "_is_installed", lambda name: name not in ("pydantic", "rich", "ray"))
    assert main(["gpu-check"]) == 2
    error = capsys.readouterr().err
    assert "not installed here: pydantic, rich\n" in error  # it runs without Ray
    assert "--wheels" in error


def test_wheels_are_pinned_and_leave_out_what_is_there(tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("torch==2.11.0\nPydantic_Core==2.0\nnumpy==2.5.2\n")
    lines = wheels.wheel_lines(freeze)
    named = {line.partition("==")[0].lower(): line for line in lines if not line.startswith("#")}
    assert {"pydantic", "rich", "ray", "annotated-types"} <= named.keys()
    assert {"torch", "numpy", "pydantic_core", "pydantic-core"} & named.keys() == set()
    assert named["pydantic"] in (ROOT / "harness/constraints.txt").read_text().splitlines()
    assert lines.index(named["pydantic"]) < lines.index("# ray") < lines.index(named["ray"])


def test_what_the_phases_would_run_on_a_gpu_is_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[list[str]] = []

    def record(line: list[str]) -> str:
        lines.append(line)
        if "run" in line:
            raise RuntimeError("not run here")
        if "-o" in line:
            Path(line[line.index("-o") + 1]).mkdir()
        return "run (GPU memory)\n  at most   1.0 GiB\n"

    monkeypatch.setattr(runs, "call", record)
    monkeypatch.setattr(runs, "HAS_GPU", True)
    ran = []
    for phase in (runs.scenarios, runs.big, runs.profile, runs.ray, runs.nixl, runs.transports, runs.vllm):
        with suppress(RuntimeError, Skipped):
            phase(Report(tmp_path / f"{phase.__name__}.json"))
    for line in (line for line in lines if "run" in line):
        settings = [value for option, value in pairwise(line) if option == "--set"]
        ran.append(line[line.index("run") + 1])
        for variant in expand(load_scenario(ran[-1], settings)):
            assert ran[-1].startswith(("quick", "sync_k2", "async")) or variant.scenario.placement.device == "cuda"
    small = ["quickstart", "quickstart", "sync_k2", "sync_k2", "async_lag1", "async_lag1"]
    assert ran[:12] == [*small, *["qwen_1_5b"] * 6]
    if find_spec("ray"):
        assert {"sync_k1", "transport_sweep_gpu"} <= set(ran[12:])


def test_speeds_are_made_of_sizes_and_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each piece of work is done once, and is taken for half a second."""

    def half_a_second(work: Callable[[], object], repeats: int = 5, calls: int = 1) -> float:
        work()
        return 0.5

    report, found = Report(tmp_path / "speed.json"), Report(tmp_path / "probe.json")
    for module, phase, into in ((speed, speed.run, report), (probe, probe.run, found)):
        monkeypatch.setattr(module, "seconds", half_a_second)
        phase(into)
        assert into.failures == []
    decoded = {"step_ms": 500, "draw_ms": 500, "draw_top_p_ms": 500}
    assert report.figures["decode 8 rows"] == decoded | {"tokens_per_s": 8}  # in a step and a draw
    assert report.figures["microbatch 16 x 32"] == {"s": 0.5, "tokens_per_s": 1024, "mfu": None, "peak_gib": None}
    assert report.figures["transformers decode 64 rows"] == {"step_ms": 500, "tokens_per_s": 128}
    assert report.figures["optimizer"] == {"clip_s": 0.5, "adamw_s": 0.5}
    heads = [name for name in report.figures if name.startswith("head")]
    assert heads == [*(f"head, 2^17 logits kept, 2^{piece} at a time" for piece in (14, 17)), "head as shipped"]
    assert report.headline.startswith("tokens/s: decode 8 rows 8; decode 64 rows 64; microbatch 8 x 16 256; ")
    assert found.figures["copy, GB/s"] == 2 * 4 * 2**22 / 0.5 / 1e9  # float32, read and written
    assert found.figures["bfloat16 matmul, TFLOP/s"] == 2 * 256**3 / 0.5 / 1e12
    assert [found.figures[name] for name in ("launch, us", "read one number, us")] == [5e5, 5e5]


def test_what_recorded_syncs_and_a_trace_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "require", lambda modules: None)
    monkeypatch.setattr(runs, "run", lambda *arguments: ROOT / "results/reference/transport_sweep")
    report = Report(tmp_path / "transports.json")
    runs.transports(report)
    syncs = [row for run in find_runs(ROOT / "results/reference/transport_sweep")[0] for row in run.syncs]
    for name, value in report.figures.items():
        kind, _, size = name.removesuffix(" MB").partition(", ")
        alike = [row for row in syncs if (row.transport, round(row.num_bytes / 1e6)) == (kind, int(size))]
        assert value == median(row.total_s for row in alike if row.repeat)  # the first one warms up
    kernels = [{"cat": "kernel", "name": name, "dur": us} for name, us in (("a", 2e6), ("b", 3e6), ("a", 2e6))]
    with gzip.open(tmp_path / "x.pt.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [*kernels, {"ph": "M"}]}, file)
    runs._traced_kernels(report, tmp_path)
    assert report.figures["events of a trace"] == {"kernel": 3, "other": 1}
    assert list(report.figures["longest kernels, s"].items()) == [("a", 4.0), ("b", 3.0)]


def test_parity_holds_on_this_machine(tmp_path: Path) -> None:
    report = Report(tmp_path / "parity.json")
    parity.run(report)
    assert report.failures == []
    assert sum("bound" in figure for figure in report.figures.values() if isinstance(figure, dict)) > 30
