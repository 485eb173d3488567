"""Environments of other trainers, one each, as their pinned versions contradict each other.

    python -m tests.record.peers verl             # makes .venv-verl
    python -m tests.record.peers verl --into DIR

Each has the packages of ``requirements/NAME.txt`` without what they ask for, and behind them those of the environment
that this runs in: torch, transformers and Ray are not installed again. That is enough to import a trainer's timers and
its loss, not to train with it; AReaL's and OpenRLHF's after ``loops.Absent`` of the packages that are named there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
NAMES = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
_INSTALLED = "installed.txt"


def python_of(name: str) -> Path | None:
    """Return the interpreter of a trainer's environment, where there is one with the pinned packages."""
    folder = ROOT / f".venv-{name}"
    is_current = (folder / _INSTALLED).is_file() and (folder / _INSTALLED).read_bytes() == _wanted(name).read_bytes()
    return folder / "bin/python" if is_current else None


def make(name: str, folder: Path) -> Path:
    """Make a trainer's environment and return its interpreter; one that is there gets what it lacks.

    Raises:
        subprocess.CalledProcessError: a package could not be installed; what is missing was said.
    """
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*install, "--no-deps", "--target", str(site), "--requirement", str(_wanted(name))], check=True)
    (folder / _INSTALLED).write_bytes(_wanted(name).read_bytes())
    return python


def _wanted(name: str) -> Path:
    return REQUIREMENTS / f"{name}.txt"


def main() -> None:
    """Make the environment that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--into", type=Path, metavar="DIR", help="folder of the environment (default: .venv-NAME)")
    options = parser.parse_args()
    print(make(options.name, options.into or ROOT / f".venv-{options.name}"))


if __name__ == "__main__":
    main()
