"""A policy as a run has it: a model with its tokenizer, and the tokens that end its responses; and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, assert_never

from harness.engines.stop_strings import split_stop
from harness.models.chat import turn_end
from harness.models.ends import end_tokens, known_tokens, padding_token, texts_of
from harness.scenario.schema import Scenario
from harness.settings.model import FolderModelSettings, PacedModelSettings, PresetModelSettings, SortingModelSettings

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Policy:
    """A model (None in a paced run) with its tokenizer, and how many tokens its context holds (None if unknown).

    ``ends`` are the tokens that end its responses, beside those that ``sampling.stop`` or the task name.
    """

    model: nn.Module | None
    tokenizer: Any  # a Hugging Face tokenizer
    context: int | None
    ends: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int | None:
        """Trainable parameters, shared ones once; None without a model."""
        return None if self.model is None else sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def padding(self) -> int:
        """Token id that fills what masks leave out; it means nothing, whether or not the tokenizer has one for it."""
        return padding_token(self.model, self.tokenizer)

    def with_ends(self, *, chat: bool) -> Policy:
        """Return the policy with its end tokens; in a chat, the one that its template writes behind a turn too."""
        turn = turn_end(self.tokenizer) if chat else None
        ends = (*end_tokens(self.model, self.tokenizer), *([] if turn is None else [turn]))
        return replace(self, ends=known_tokens(self.model, ends))


@dataclass(frozen=True)
class ResponseEnds:
    """The tokens that end a run's responses.

    Attributes:
        ids: theirs.
        texts: by id, as the manifest has them.
        line: says so; empty where no token ends one.
    """

    ids: tuple[int, ...]
    texts: dict[str, str]
    line: str


def response_ends(
    policy: Policy, stop: Sequence[str] = (), advice: str = "name it in sampling.stop where they are chats"
) -> ResponseEnds:
    """Return the end tokens of a policy's responses, those among the stop strings with them.

    Args:
        policy: with its end tokens.
        stop: strings that end a response.
        advice: what to do where the token that ends a turn of the chat template ends no response.

    Raises:
        UserError: a stop string can never be found.
    """
    ids = known_tokens(policy.model, (*policy.ends, *split_stop(policy.tokenizer, stop)[0]))
    turn = turn_end(policy.tokenizer)
    texts = texts_of(ids, policy.tokenizer)
    line = f"a response ends with {_shown(texts)}" if ids else ""
    if ids and turn is not None and turn not in ids:
        line += f"; {_shown(texts_of([turn], policy.tokenizer))}, which ends a turn of its chat template, does not: "
        line += f"prompts are raw; {advice}"
    return ResponseEnds(ids, texts, line)


def _shown(texts: Mapping[str, str]) -> str:
    shown = {token: text if text.isprintable() else repr(text) for token, text in texts.items()}
    return " or ".join(f"{text} ({token})" if text else f"token {token}" for token, text in shown.items())


def make_policy(scenario: Scenario, device: str, should_stop: Callable[[], bool]) -> Policy:
    """Return the policy before the first training step.

    Args:
        device: on ``meta`` it is without weights, for ranks that are handed theirs.
        should_stop: asked during a warm start.

    Raises:
        UserError: the model cannot be used.
        Interrupted: ``should_stop`` returned True.
    """
    if scenario.uses_gpu(has_gpu=True):
        from harness.models.layers import avoid_cudnn_attention

        avoid_cudnn_attention()
    return load(scenario, device, should_stop).with_ends(chat=getattr(scenario.task, "chat_template", False))


def load(scenario: Scenario, device: str, should_stop: Callable[[], bool]) -> Policy:
    match settings := scenario.model:
        case PresetModelSettings():
            from harness.learner.warm_start import initial_policy, policy_without_weights, warm_start_policy

            if device == "meta":
                model, tokenizer = policy_without_weights(settings.preset)
            elif settings.warm_start:
                model, tokenizer, _ = warm_start_policy(
                    settings.preset,
                    threads=settings.threads,
                    keywords_per_prompt=getattr(scenario.task, "keywords_per_prompt", 2),
                    should_stop=should_stop,
                )
            else:
                model, tokenizer = initial_policy(settings.preset)
            return Policy(model.to(device), tokenizer, model.config.max_position_embeddings)
        case FolderModelSettings():
            import torch

            from harness.models.config import context_length
            from harness.models.storage import load_policy

            of_folder, tokenizer = load_policy(settings.path, device, dtype=getattr(torch, settings.dtype))
            return Policy(of_folder, tokenizer, context_length(of_folder.config))
        case SortingModelSettings():
            from harness.models.sorting import sorting_policy

            sorting, numbers = sorting_policy(scenario.seed)
            return Policy(sorting.to("cpu" if device == "meta" else device), numbers, None)
        case PacedModelSettings():
            from harness.engines.paced import PacedTokenizer

            return Policy(None, PacedTokenizer(), None)
        case _:
            assert_never(settings)
