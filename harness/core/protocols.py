"""The parts the loop is written against. One to three methods each; every implementation passes one contract suite.

The loop's parts are coroutines, so that the same loop drives in-process parts, Ray actors and simulated stages. Each
part has a ``lane``, the name under which its spans are recorded, and opens its own stage spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from harness.core.types import (
    Completion,
    Metrics,
    Prompt,
    RolloutGroup,
    SamplingParams,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


class Generator(Protocol):
    """Samples rollouts with the weights it loaded last."""

    lane: str

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """Receive and load published weights; stages ``weight_transfer``, ``weight_verify`` and ``weight_load``.

        Returns:
            What was measured of this sync, such as the gap between engine and Learner; nothing where nothing was.

        Raises:
            PartReplaced: the part died; the one in its place holds no weights.
            RunStopped: what the engine holds is not what the Learner published.
        """

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Sample the item's groups; stage ``generate``, or ``evaluate`` for a validation item.

        Raises:
            PartReplaced: the part died; the one in its place holds no weights.
        """


class Scorer(Protocol):
    """Rewards rollouts."""

    lane: str

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Fill in the rewards; stage ``score``, or ``evaluate`` for a validation item.

        Raises:
            PartReplaced: the part died; ask the new one again.
        """


class Learner(Protocol):
    """Owns the policy that is trained."""

    lane: str

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        """Take in a part of a batch whose other parts come later, the last one with ``update``; the same stages."""

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Train on one batch; stages ``prepare_batch``, ``old_logprobs``, ``reference_logprobs``, ``update``.

        After ``accumulate`` the groups are those of the last part, which may be none.
        """

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Make the current weights available to the Generators; stages ``weight_publish`` and ``weight_verify``.

        Versions published before that are not ``still_needed`` may be overwritten.
        """

    async def save_policy(self, version: int, *, last: bool) -> None:
        """Save the policy, if it is to be saved; stage ``save_policy``. One before the ``last`` is kept beside."""


class Engine(Protocol):
    """Batched sampling inside a Generator. Plain synchronous code."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample ``num_samples`` responses to each prompt of token ids; they share the prompt's prefill.

        The same arguments and weights give the same tokens. Sample s of prompt p draws from a random stream that
        depends on (seed, places[p], s) only, not on the batch around it. ``seed`` is the rollout batch's, ``places``
        are those of the prompts in it; None counts from 0.
        """

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int = 0) -> None:
        """Replace the weights in place, by Hugging Face name; ValueError on a missing, misshapen or unknown one.

        ``version`` is the tag of the tokens that they sample, where an engine tells them apart.
        """


class ScoringEngine(Engine, Protocol):
    """An engine that can also score given tokens: the proof that a weight sync happened."""

    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the log-probabilities (T,) of each response's tokens behind its prompt.

        They are those of the weights in place, at temperature 1 over the whole vocabulary. No token is sampled. A
        ``generate`` on another thread may be under way.

        Raises:
            UserError: a prompt or response is empty, unknown to the model, or too long together.
        """


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
