"""How responses are sampled, in training and in validation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.core.types import SamplingParams
from harness.settings.base import AtLeast0, AtLeast1, NonEmptyText, Positive, Settings


class SamplingSettings(Settings):
    """How responses are sampled."""

    temperature: Positive = 1.0
    """Divides the logits; above 0, since equal responses in a group teach nothing."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with at least this probability; 1 is all of them."""
    min_tokens: AtLeast0 = 1
    """A response cannot end before this many tokens. Ratios and KL allow for that only with `loss.ban_eos`."""
    max_tokens: AtLeast1 = 32
    """A response is cut after this many tokens."""
    stop: tuple[NonEmptyText, ...] = ()
    """Strings that end a response; they stay part of it. A special or added token of the tokenizer ends by its id."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the texts that are rewarded; false keeps those that do not end a response."""
    pinned_lengths: tuple[AtLeast1, AtLeast1] | None = None
    """[shortest, longest]: lengths are drawn from the seed and nothing ends a response early: arms do equal work."""

    def to_params(self) -> SamplingParams:
        """Return these settings in the form that engines take."""
        return SamplingParams(
            self.temperature, self.top_p, self.min_tokens, self.max_tokens, self.stop, self.pinned_lengths
        )


class EvaluationSettings(Settings):
    """Validation on held-out prompts: before the first step, every `every` steps, and after the last."""

    every: AtLeast1 = 10
    """Training steps between two validations."""
    prompts: AtLeast1 = 256
    """Validation prompts used, one response each."""
    examples: AtLeast0 = 4
    """Rollouts of each validation kept in the results, to be read; all where there are fewer."""
