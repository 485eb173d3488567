"""A module of a user's, with reward functions."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Return a function that writes a module into the current folder, a fresh one, and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    known = set(sys.modules)

    def write(body: str) -> str:
        (tmp_path / "own_reward_under_test.py").write_text(body, encoding="utf-8")
        return "own_reward_under_test"

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]
