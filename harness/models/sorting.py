"""The sorting toy's policy: every position of the response is written at once, from a matrix of its own.

Not autoregressive: given the prompt, the tokens of a response are independent of each other. So a response of three
numbers out of five is one of 125, and every expectation can be had by going through them all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.core.errors import UserError
from harness.core.seeds import derive_seed
from harness.grpo.kl import exact_kl
from harness.models.scoring import ScoreRequest, Scores, score_tokens

VOCAB_SIZE = 5
LENGTH = 3
EMBEDDING_SIZE = 10
_FIX = "set task.type to sorting, or model.type to preset"


class SortingModel(nn.Module):
    """Maps a prompt to one distribution for each position of the response.

    With e the embeddings, E_l the encode matrix of prompt position l and D_t the decode matrix of response position t:
    logits[t, v] = (sum over l of e[prompt_l] E_l) D_t . e[v]. So the output is tied to the embedding.

    Args:
        vocab_size: V, numbers from 0 to V - 1.
        embedding_size: D.
        prompt_length: most numbers of a prompt.
        response_length: T, numbers of every response.
        generator: of the initial weights: embeddings from N(0, 1), matrices from N(0, 1 / D).
    """

    def __init__(
        self,
        vocab_size: int = VOCAB_SIZE,
        embedding_size: int = EMBEDDING_SIZE,
        prompt_length: int = LENGTH,
        response_length: int = LENGTH,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size, self.prompt_length, self.response_length = vocab_size, prompt_length, response_length

        def normal(divisor: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) / divisor)

        matrix = embedding_size, embedding_size
        self.embedding = normal(1.0, vocab_size, embedding_size)
        self.encode_weights = normal(math.sqrt(embedding_size), prompt_length, *matrix)
        self.decode_weights = normal(math.sqrt(embedding_size), response_length, *matrix)

    def forward(self, prompt_ids_PL: Tensor, prompt_lengths_P: Tensor | None = None) -> Tensor:
        """Return the logits (P, T, V) of each position of the responses.

        Args:
            prompt_ids_PL: L at most ``prompt_length``.
            prompt_lengths_P: tokens of each prompt; None: all of them.

        Raises:
            UserError: a prompt is too long.
        """
        self.check_prompt_length(prompt_ids_PL.shape[1])
        embedded_PLD = self.embedding[prompt_ids_PL]
        if prompt_lengths_P is not None:
            columns_L = torch.arange(prompt_ids_PL.shape[1], device=prompt_ids_PL.device)
            embedded_PLD = embedded_PLD * (columns_L < prompt_lengths_P[:, None])[..., None]
        encoded_PD = torch.einsum("pld,lde->pe", embedded_PLD, self.encode_weights[: prompt_ids_PL.shape[1]])
        decoded_PTD = torch.einsum("pd,tde->pte", encoded_PD, self.decode_weights)
        return decoded_PTD @ self.embedding.T

    def check_prompt_length(self, length: int) -> None:
        """Raise UserError for more numbers than there are encode matrices."""
        if length > self.prompt_length:
            what = f"a prompt has {length} tokens, the sorting model takes at most {self.prompt_length}"
            raise UserError(what, "model.type", _FIX)

    def save_pretrained(self, folder: str | Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write the weights as safetensors, and a config that says what they are; ``transformers`` cannot load it."""
        tensors = state_dict or self.state_dict()
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        config = {
            "model_type": "harness_sorting",
            "vocab_size": self.vocab_size,
            "embedding_size": self.embedding.shape[1],
            "prompt_length": self.prompt_length,
            "response_length": self.response_length,
        }
        (Path(folder) / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


class NumberTokenizer:
    """The token ids of ``1 0 2`` are 1, 0, 2. It has the methods of a Hugging Face tokenizer that the harness calls.

    There is no end of sequence, since a response always has all its numbers: its id is the first beyond the vocabulary.
    Nothing is ever padded either, as all prompts and responses are equally long; the id to do it with is 0.
    """

    vocab_size = eos_token_id = VOCAB_SIZE
    pad_token_id = 0

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return the numbers of a text.

        Raises:
            UserError: a word is no number of the vocabulary.
        """
        words = text.split()
        if not all(word.isdecimal() and int(word) < self.vocab_size for word in words):
            what = f"the prompt {text[:60]!r} has other words than the numbers 0 to {self.vocab_size - 1}"
            raise UserError(what, "model.type", _FIX)
        return [int(word) for word in words]

    def decode(self, token_ids: Any, **options: Any) -> str:
        """Return the numbers with blanks between them."""
        return " ".join(str(int(token)) for token in token_ids if int(token) != self.eos_token_id)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write how many numbers there are; there is nothing else to a tokenizer of numbers."""
        (Path(folder) / "numbers.json").write_text(json.dumps({"vocab_size": self.vocab_size}) + "\n", encoding="utf-8")


def sorting_policy(seed: int) -> tuple[SortingModel, NumberTokenizer]:
    """Return the untrained policy of this seed and its tokenizer."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "sorting model"))
    return SortingModel(generator=generator).eval(), NumberTokenizer()


def sorting_log_probs(model: SortingModel, request: ScoreRequest) -> Scores:
    """Score responses; results as in ``shared_prompt.response_log_probs``.

    Each prompt runs once, and no response runs at all: no token depends on the ones before it. There is no end of
    sequence to ban.
    """
    mask_BT, index_B = request.mask_BT, request.prompt_index_B
    logits_BTV = model(request.prompt_ids_PL, request.prompt_lengths_P)[index_B, : mask_BT.shape[1]]
    scores = score_tokens(
        logits_BTV[mask_BT],
        request.response_ids_BT[mask_BT],
        request.temperature,
        request.with_entropy,
        entropy_gradient=request.entropy_gradient,
    )
    return request.in_rows(scores)


@torch.no_grad()
def sorting_kl(
    model: SortingModel, other: SortingModel, prompt_ids_PL: Tensor, prompt_lengths_P: Tensor, temperature: float
) -> Tensor:
    """Return KL(model || other) at each position of the responses, summed over the vocabulary: (P, T).

    Positions are independent given the prompt. So their sum is the KL over the 125 responses, and no sampling is in it.
    In float64: near policies differ by less than float32 tells.
    """
    log_p_PTV, log_q_PTV = (
        (policy(prompt_ids_PL, prompt_lengths_P).double() / temperature).log_softmax(-1) for policy in (model, other)
    )
    return exact_kl(log_p_PTV, log_q_PTV)
