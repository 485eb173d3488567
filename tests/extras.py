"""Child processes that have the packages of one extra alone: whatever else is installed here, they cannot import it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_BLOCKING = """
import sys
from importlib.machinery import PathFinder

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, *arguments):
        return None if name.partition(".")[0] in {missing!r} else super().find_spec(name, *arguments)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


@cache
def modules_missing_with(extra: str) -> frozenset[str]:
    """Return the modules installed here that ``pip install 'grpo-harness[extra]'`` would not bring; "" is no extra."""
    wanted, brought = [("grpo-harness", extra)], set[tuple[str, str]]()
    while wanted:
        name, asked = package = wanted.pop()
        if package in brought:
            continue
        brought.add(package)
        with suppress(PackageNotFoundError):  # it is not here, so there is nothing to block
            for requirement in map(Requirement, requires(name) or ()):
                if not requirement.marker or requirement.marker.evaluate({"extra": asked}):
                    wanted += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    names = {name for name, _ in brought}
    owners = packages_distributions().items()
    return frozenset(module for module, found in owners if names.isdisjoint(map(canonicalize_name, found)))


@pytest.fixture(scope="session")
def packages_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Return what gives the environment variables of such a process; its own children inherit them."""

    def environment(extra: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("extra")
        (folder / "sitecustomize.py").write_text(_BLOCKING.format(missing=set(modules_missing_with(extra))))
        return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}

    return environment
