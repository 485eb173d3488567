"""A fault on purpose: an engine that leaves out some weight loads and says nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.core.protocols import Engine
from harness.core.types import Completion, SamplingParams

if TYPE_CHECKING:
    import torch


class SkipsLoads:
    """Passes everything on to an engine, except the loads of some versions.

    Args:
        engine: the real one.
        versions: whose loads are left out.
    """

    def __init__(self, engine: Engine, versions: frozenset[int]) -> None:
        self._engine, self._versions = engine, versions

    def __getattr__(self, name: str) -> Any:
        if name == "swaps":  # which would tell the versions that were really loaded
            raise AttributeError(name)
        return getattr(self._engine, name)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int = 0) -> None:
        """Load the weights, or do nothing; see ``protocols.Engine``."""
        if version not in self._versions:
            self._engine.load_weights(weights, version)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """See ``protocols.Engine``."""
        return self._engine.generate(prompts, num_samples, sampling, seed, places)
