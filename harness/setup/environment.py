"""The virtual environment: where it is, whether it is up to date, and how things get into it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import UserError
from harness.setup.progress import ProgressLine, run_logged


class Environment:
    """A virtual environment for the project in ``root``.

    A *stamp* is a small file inside it that says for which pins one thing (``base`` or an optional part) was installed.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.python = folder / "bin" / "python"
        self.constraints = root / "harness" / "setup" / "constraints.txt"
        self.log = folder / "install.log"

    def is_current(self, thing: str) -> bool:
        """Whether ``thing`` was installed for today's requirements and pins."""
        stamp = self._stamp(thing)
        return self.python.exists() and stamp.is_file() and stamp.read_text().strip() == self.digest()

    def mark(self, thing: str) -> None:
        """Note that ``thing`` is installed for today's requirements and pins."""
        self._stamp(thing).write_text(self.digest() + "\n")

    def unmark(self, thing: str) -> None:
        """Forget that ``thing`` is installed."""
        self._stamp(thing).unlink(missing_ok=True)

    def _stamp(self, thing: str) -> Path:
        return self.folder / (".installed" if thing == "base" else f".installed-{thing}")

    def digest(self) -> str:
        """Return the hash of all that decides what gets installed: requirements, pins, version of Python."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        asked = [project.get("build-system"), project.get("project"), project.get("tool", {}).get("setuptools")]
        pins = self.constraints.read_text(encoding="utf-8")
        text = json.dumps([asked, pins, sys.version_info[:3]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def create(self) -> None:
        """Make the virtual environment, unless a usable one is there.

        Raises:
            UserError: the folder is something else, or of another Python; or the ``venv`` module does not work.
        """
        version = "{}.{}".format(*sys.version_info[:2])
        if self.folder.exists() and not (self.folder / "pyvenv.cfg").is_file():
            raise UserError(
                "the folder for the virtual environment exists and is none",
                where=str(self.folder),
                fix="remove it, or name another one: make install VENV=DIR",
            )
        found = self._print("import sys; print('{}.{}'.format(*sys.version_info[:2]))")
        if found == version and self._print("import pip; print(pip.__version__)"):
            return
        if found not in ("", version):
            raise UserError(
                f"the virtual environment is one of Python {found}, and this is Python {version}",
                where=str(self.folder),
                fix=f"remove it, then run the same command again: rm -rf {self.folder}",
            )
        say(f"creating {self.folder} with Python {version}")
        self._make(clear=not found)

    def _make(self, clear: bool) -> None:
        """Run ``python -m venv``; ``clear`` empties a folder whose Python does not work. Raises UserError."""
        command = [sys.executable, "-m", "venv", *(["--clear"] if clear else []), str(self.folder)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise UserError(
                f"python -m venv failed: {(made.stdout + made.stderr).strip()[-800:]}",
                where=sys.executable,
                fix="install the venv module of this Python (Debian and Ubuntu: the package python3-venv)",
            )

    def pip_install(self, what: Sequence[str], title: str) -> None:
        """Run ``pip install`` under the pins, with progress. Raises UserError if it fails."""
        say(title)
        progress, start = ProgressLine(), time.monotonic()
        pip = [str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        options = ["--progress-bar", "off", "--constraint", str(self.constraints)]
        try:
            run_logged([*pip, *options, *what], self.log, title, progress.show)
        finally:
            progress.clear()
        say(f"  done in {time.monotonic() - start:.0f} s")

    def _print(self, code: str) -> str:
        """Return what the environment's Python prints for ``code``; an empty string if it cannot."""
        answer = self._run(code) if self.python.exists() else None
        return answer.stdout.strip() if answer is not None and answer.returncode == 0 else ""

    def _run(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.python), "-c", code], capture_output=True, text=True, check=False)

    def ask(self, code: str, purpose: str) -> str:
        """Return what the environment's Python prints for ``code``.

        Raises:
            UserError: it ended with an error; the message has its last lines.
        """
        answer = self._run(code)
        if answer.returncode:
            raise UserError(
                f"{purpose} failed:\n{answer.stderr.strip()[-1500:]}",
                where=str(self.python),
                fix=f"see {self.log}; to start afresh: rm -rf {self.folder}",
            )
        return answer.stdout.strip()


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, flush=True)
