"""What an evaluation's result depends on, in a form that can be saved, hashed and compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.core.types import SamplingParams


@dataclass(frozen=True)
class Settings:
    """Everything that decides which responses are sampled and how they are graded.

    Attributes:
        model: name without folders; what it is follows from the three checksums.
        weights: checksum of the model's weights.
        config: checksum of the model's shape.
        tokenizer: checksum of the tokenizer.
        data: file name, or the name of a built-in set.
        data_sha256: of the file; None for a built-in set.
        prompts: how many prompts are asked.
        task: how answers are graded.
        prompt: the template; None where rows hold whole prompts.
        batch: prompts of one batch. It is among the settings, since rounding depends on what is computed together.
    """

    model: str
    weights: str
    config: str
    tokenizer: str
    data: str
    data_sha256: str | None
    prompts: int
    task: str
    reward: str | None
    prompt: str | None
    engine: str
    precision: str
    device: str
    temperature: float
    top_p: float
    min_tokens: int
    max_tokens: int
    stop: tuple[str, ...]
    samples: int
    seed: int
    batch: int

    @property
    def sampling(self) -> SamplingParams:
        """The part that engines take."""
        return SamplingParams(self.temperature, self.top_p, self.min_tokens, self.max_tokens, self.stop)

    @property
    def batches(self) -> list[range]:
        """The prompt ids of each batch."""
        return [range(first, min(first + self.batch, self.prompts)) for first in range(0, self.prompts, self.batch)]

    @property
    def digest(self) -> str:
        """16 hex digits that differ where any setting differs."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        return asdict(self) | {"stop": list(self.stop)}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that differs: ``temperature (1.0 there, 0.5 now)``."""
    keys = [*now, *(key for key in before if key not in now)]
    return [
        f"{key} ({_shown(before.get(key))} there, {_shown(now.get(key))} now)"
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
