"""`make check` looks at every Python file of the repository."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from mypy.find_sources import create_source_list
from mypy.options import Options

ROOT = Path(__file__).parents[2]


def tracked(*patterns: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this is no git repository: {done.stderr.strip()}")
    return set(done.stdout.splitlines())


def test_every_tracked_python_file_is_linted() -> None:
    """A bare ``results`` among the excluded folders once hid harness/results/ too."""
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seen = {Path(line).relative_to(ROOT).as_posix() for line in done.stdout.splitlines()}
    files = {path for path in tracked("*.py") if not path.startswith("results/")}
    assert "harness/results/reader.py" in files
    assert files - seen == set()


def test_every_tracked_file_but_the_tests_themselves_is_type_checked() -> None:
    """pytest gives tests their fixtures; the programs and stand-ins beside them are checked."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert [block for block in settings["overrides"] if block.get("ignore_errors")] == []
    options = Options()
    options.exclude, options.explicit_package_bases = settings["exclude"], True
    paths = [str(ROOT / name) for name in settings["files"]]
    found = {Path(source.path).relative_to(ROOT) for source in create_source_list(paths, options) if source.path}
    left_out = {Path(name) for name in tracked("harness/*.py", "tests/*.py")} - found
    assert {path.parts[0] for path in left_out} == {"tests"}
    assert [path for path in left_out if not path.name.startswith(("test_", "conftest."))] == []
