"""Where the code of other trainers is: an environment of each, ``.venv-NAME``, since their pinned versions contradict
each other. ``make`` makes one, with pinned packages whose checksums are known."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

from harness.core.errors import UserError

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
"""The module of each trainer that ``harness.oracle.peers`` knows."""
REQUIREMENTS = Path(__file__).parent / "requirements"
_INSTALLED = "installed.txt"


def requirements_of(name: str) -> Path:
    """Return the file with a trainer's pinned packages, its own and what importing its loss takes."""
    return REQUIREMENTS / f"{name}.txt"


def folder_of(name: str, environments: Path) -> Path:
    """Return the folder of a trainer's environment."""
    return environments / f".venv-{name}"


def interpreter(name: str, environments: Path) -> Path | None:
    """Return the Python that has a trainer: of ``.venv-NAME``, else this one; None where neither has."""
    python = folder_of(name, environments) / "bin" / "python"
    if python.exists():
        return python
    return Path(sys.executable) if importlib.util.find_spec(PEERS[name]) else None


def is_current(folder: Path, requirements: Path) -> bool:
    """Return whether an environment has the packages of a file as it is now."""
    installed = folder / _INSTALLED
    return installed.is_file() and installed.read_bytes() == requirements.read_bytes()


def make(folder: Path, requirements: Path) -> Path:
    """Make a trainer's environment and return its interpreter; one that is there gets what it lacks.

    It has the packages of the file without what they ask for, and behind them those of the environment that this runs
    in: torch, transformers and Ray are not installed again. That is enough to import a trainer's loss and its timers,
    not to train with it.

    Raises:
        UserError: a package could not be installed, or its checksum is another one; pip has said which.
    """
    python = folder / "bin/python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        chosen = ["--require-hashes", "--no-deps", "--target", str(site), "--requirement", str(requirements)]
        subprocess.run([*install, *chosen], check=True)
        (folder / _INSTALLED).write_bytes(requirements.read_bytes())
    except (subprocess.CalledProcessError, OSError) as error:
        raise UserError(f"the environment was not made: {error}", str(folder), "see the lines above") from None
    return python
