"""The set-up before anything is installed: any Python, the standard library, the Makefile."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.setup.__main__ import find_supported_python, refusal

ROOT = Path(__file__).parents[2]


def make(folder: Path, *arguments: str) -> str:
    ours = ("MAKE", "MFLAGS", "VLLM", "PYTHON", "VENV", "ARGS")  # of a make that runs these tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def test_old_pythons_can_read_the_file_that_refuses_them() -> None:
    for name in ("harness/__init__.py", "harness/setup/__init__.py", "harness/setup/__main__.py"):
        ast.parse((ROOT / name).read_text(), feature_version=(3, 6))


def test_the_refusal_names_the_version_the_place_and_the_way_out() -> None:
    assert refusal("/usr/bin/python3", "3.9") == (
        "this Python is 3.9, and the harness needs Python 3.11 to 3.13\n"
        "  where: /usr/bin/python3\n"
        "  fix:   install one, then name it: make install PYTHON=/path/to/python3.13"
    )


def test_another_python_is_taken_only_if_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_supported_python() == ""
    broken = tmp_path / "python3.11"  # as a version manager leaves it for a version that is not chosen
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert find_supported_python() == ""
    (tmp_path / "python3.13").symlink_to(sys.executable)
    assert find_supported_python() == str(tmp_path / "python3.13")


def test_it_needs_the_standard_library_only() -> None:
    # -S: no site-packages, so that anything but the standard library and this project would fail to import
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import harness.setup.command, harness.setup.__main__"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def test_make_goes_on_with_the_python_of_the_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    assert make(tmp_path, "-n", "install").splitlines()[0].startswith("python3 -m harness.setup")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    assert make(tmp_path, "-n", "install").splitlines()[0].startswith(".venv/bin/python -m harness.setup")
    assert make(tmp_path, "-n", "install", "PYTHON=mine").splitlines()[0].startswith("mine -m harness.setup")
    (tmp_path / ".venv/bin/python").unlink()
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "gone")
    assert make(tmp_path, "-n", "install").splitlines()[0].startswith("python3 -m harness.setup")


def test_an_unknown_part_is_refused_with_the_known_ones() -> None:
    arguments = [sys.executable, "-m", "harness.setup", "install", "--part", "vlm"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'vlm'" in done.stderr
    assert "peers" in done.stderr


def test_make_alone_lists_every_target() -> None:
    listed = [line.split()[1] for line in make(ROOT).splitlines()]
    assert listed == [
        *(
            "help",
            "bench",
            "sweep",
            "compare",
            "test",
            "test-all",
            "check",
            "gpu-check",
            "install",
            "install-vllm",
            "clean",
        ),
    ]


def test_the_benchmark_target_runs_the_named_scenario() -> None:
    assert "-m harness run scenarios/quickstart.yaml" in make(ROOT, "-n", "bench")
    assert "-m harness run scenarios/sync_k.yaml --set seed=3" in make(
        ROOT, "-n", "bench", "SCENARIO=sync_k", "ARGS=--set seed=3"
    )
    assert "-m harness run /a/mine.yaml" in make(ROOT, "-n", "bench", "SCENARIO=/a/mine.yaml")


def test_a_sweep_has_a_scenario_of_its_own_unless_one_is_named() -> None:
    assert "-m harness sweep scenarios/learning_rates.yaml" in make(ROOT, "-n", "sweep")
    assert "-m harness sweep scenarios/sorting_grid.yaml" in make(ROOT, "-n", "sweep", "SCENARIO=sorting_grid")


def test_vllm_comes_with_the_tests_and_with_scenarios_that_name_it() -> None:
    added = "install --venv .venv --part vllm"
    assert f"{added} --where-possible" in make(ROOT, "-n", "test")
    assert f"{added} --where-possible" in make(ROOT, "-n", "test-all")
    assert added not in make(ROOT, "-n", "test", "VLLM=no")
    assert added not in make(ROOT, "-n", "bench")
    asked = make(ROOT, "-n", "bench", "SCENARIO=vllm_sync")
    assert added in asked
    assert "--where-possible" not in asked


def test_clean_keeps_results_and_the_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = ["results/quickstart/run/steps.jsonl", ".venv/bin/python", "harness/loop.py", "tests/unit/test_a.py"]
    removed = ["harness/__pycache__/a.pyc", "tests/unit/__pycache__/b.pyc", ".mypy_cache/x", "grpo.egg-info/y"]
    for name in kept + removed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    make(tmp_path, "clean")
    assert [name for name in kept + removed if (tmp_path / name).exists()] == kept
