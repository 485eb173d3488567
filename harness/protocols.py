"""The parts the loop is written against. One to three methods each; every implementation passes one contract suite.

The loop's parts are coroutines, so that the same loop drives in-process parts, Ray actors and simulated stages. Each
part has a ``lane``, the name under which its spans are recorded, and opens its own stage spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from harness.types import (
    Completion,
    Prompt,
    RolloutGroup,
    SamplingParams,
    ScoredBatch,
    UpdateResult,
    WeightTicket,
    WorkItem,
)

if TYPE_CHECKING:
    import torch


class Generator(Protocol):
    """Samples rollouts with the weights it loaded last."""

    lane: str

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Receive and load published weights; stages ``weight_transfer`` and ``weight_load``."""

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Sample the item's groups; stage ``generate``, or ``evaluate`` for a validation item."""


class Scorer(Protocol):
    """Rewards rollouts."""

    lane: str

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Fill in the rewards; stage ``score``, or ``evaluate`` for a validation item."""


class Learner(Protocol):
    """Owns the policy that is trained."""

    lane: str

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Train on one batch; stages ``prepare_batch``, ``old_logprobs``, ``reference_logprobs``, ``update``."""

    async def publish_weights(self, version: int) -> WeightTicket:
        """Make the current weights available to the Generators; stage ``weight_publish``."""

    async def checkpoint(self, version: int) -> None:
        """Save the policy, if it is to be saved; stage ``checkpoint``."""


class Engine(Protocol):
    """Batched sampling inside a Generator. Plain synchronous code."""

    def generate(
        self, prompts: Sequence[Sequence[int]], num_samples: int, sampling: SamplingParams, seed: int
    ) -> list[tuple[Completion, ...]]:
        """Sample ``num_samples`` responses to each prompt of token ids; they share the prompt's prefill.

        The same arguments and weights give the same tokens. Row r of prompt p draws from a random stream that depends
        on (seed, p, r) only, not on the batch around it.
        """

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights in place, by Hugging Face name; ValueError on a missing, misshapen or unknown one."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the harness uses."""

    eos_token_id: Any  # an int; transformers leaves it untyped
    pad_token_id: Any

    def encode(self, text: Any, **options: Any) -> Any:
        """Return the token ids of a text."""

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """Return the text of a list of token ids."""


class Task(Protocol):
    """Prompts and their reward. Prompt ids index ``train_prompts`` or ``validation_prompts``."""

    @property
    def train_prompts(self) -> Sequence[Prompt]:
        """The prompts trained on."""

    @property
    def validation_prompts(self) -> Sequence[Prompt]:
        """The held-out prompts."""

    def reward(self, response: str, ground_truth: str) -> dict[str, float]:
        """Return ``reward``, ``format_reward`` and ``answer_reward`` of one response."""
