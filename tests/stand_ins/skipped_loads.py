"""A fault on purpose: an engine that leaves out some weight loads and says nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

from harness.core.protocols import Engine
from harness.engines import make as engines
from harness.run import builders
from harness.settings.engine import EngineSettings


class SkipsLoads:
    """Passes everything on to an engine, except the loads of some versions."""

    def __init__(self, engine: Engine, versions: set[int]) -> None:
        self._engine, self._versions = engine, versions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        if version not in self._versions:
            self._engine.load_weights(weights, version)

    def generate(self, *arguments: Any, **options: Any) -> Any:
        return self._engine.generate(*arguments, **options)


def skip_loads(monkeypatch: pytest.MonkeyPatch, engine: str, versions: set[int]) -> None:
    """Have the engines of this type that are made in this process leave out these loads."""
    make = engines.make_engine

    def made(settings: EngineSettings, *given: Any, **options: Any) -> Any:
        of_settings = make(settings, *given, **options)
        return SkipsLoads(of_settings, versions) if settings.type == engine else of_settings

    monkeypatch.setattr(builders, "make_engine", made)
