"""What every policy must do, whichever model stands behind it: score, learn, save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.models.policy import policy_log_probs
from harness.models.storage import load_policy, save_policy

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Prompts (P, L), their lengths (P,), responses (B, T), their mask (B, T), and the prompt of each response (B,)."""


def prompts_and_responses(vocab_size: int) -> Batch:
    """Return two prompts of 5 and 3 tokens, and responses of 4, 0, 2 and 1 tokens to prompts 1, 0, 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    prompts_PL = torch.randint(2, vocab_size, (2, 5), generator=generator)
    responses_BT = torch.randint(2, vocab_size, (4, 4), generator=generator)
    mask_BT = torch.arange(4) < torch.tensor([4, 0, 2, 1])[:, None]
    return prompts_PL, torch.tensor([5, 3]), responses_BT, mask_BT, torch.tensor([1, 0, 0, 1])


def by_definition(model: nn.Module, batch: Batch, temperature: float) -> Tensor:
    """Return log softmax(logits / temperature) of each unpadded row (B, T)."""
    prompts_PL, lengths_P, responses_BT, mask_BT, index_B = batch
    out_BT = torch.zeros(mask_BT.shape)
    for row, prompt in enumerate(index_B.tolist()):
        length, count = int(lengths_P[prompt]), int(mask_BT[row].sum())
        ids = torch.cat((prompts_PL[prompt, :length], responses_BT[row, :count]))
        logits = model(input_ids=ids[None]).logits[0, length - 1 : length - 1 + count]
        scored = (logits / temperature).log_softmax(-1)
        out_BT[row, :count] = scored.gather(-1, responses_BT[row, :count, None])[:, 0]
    return out_BT


class PolicyContract:
    """Contract of a policy. Say in a subclass in which folder the model is, as ``model.path`` would.

    Its logits should be spread over several units, so that the numbers of these tests say something.
    """

    folder: Path

    @pytest.fixture
    def policy(self) -> tuple[nn.Module, Any]:
        """The model and its tokenizer, as a run loads them."""
        return load_policy(self.folder)

    def test_it_is_loaded_to_be_trained_in_float32(self, policy: tuple[nn.Module, Any]) -> None:
        """With a tokenizer that gives back what it is given."""
        model, tokenizer = policy
        assert not model.training
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert tokenizer.decode(tokenizer.encode("an apple")) == "an apple"

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_scores_equal_the_definition(self, policy: tuple[nn.Module, Any], temperature: float) -> None:
        """Prompts shared, rows padded and all."""
        model, tokenizer = policy
        batch = prompts_and_responses(len(tokenizer))
        with torch.no_grad():
            expected = by_definition(model, batch, temperature)
            log_probs, entropy = policy_log_probs(model, *batch, temperature=temperature, with_entropy=True)
        assert entropy is not None
        assert expected.abs().max() > 3
        torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=2e-5)
        mask_BT = batch[3]
        assert torch.equal(log_probs[~mask_BT], torch.zeros(9))
        assert torch.equal(entropy[~mask_BT], torch.zeros(9))
        assert ((entropy[mask_BT] > 0) & (entropy[mask_BT] < torch.tensor(float(len(tokenizer))).log())).all()

    def test_a_gradient_step_makes_the_responses_likelier(self, policy: tuple[nn.Module, Any]) -> None:
        """And every parameter has a gradient."""
        model, tokenizer = policy
        batch = prompts_and_responses(len(tokenizer))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        before, _ = policy_log_probs(model, *batch)
        torch.autograd.backward(-before.sum())
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
        optimizer.step()
        after, _ = policy_log_probs(model, *batch)
        assert after.sum() > before.sum()

    def test_saved_again_it_is_the_same_policy(self, policy: tuple[nn.Module, Any], tmp_path: Path) -> None:
        """In safetensors alone."""
        model, tokenizer = policy
        save_policy(model, tokenizer, tmp_path / "again")
        again, _ = load_policy(tmp_path / "again")
        weights = again.state_dict()
        for name, weight in model.state_dict().items():
            assert torch.equal(weights[name], weight), name
        assert not list((tmp_path / "again").glob("*.bin"))

    @pytest.mark.parametrize(("narrow", "gap"), [(torch.bfloat16, 0.25), (torch.float16, 0.03)])
    def test_autocast_scores_stay_near_float32(
        self, policy: tuple[nn.Module, Any], narrow: torch.dtype, gap: float
    ) -> None:
        """Log-probs stay float32."""
        model, tokenizer = policy
        batch = prompts_and_responses(len(tokenizer))
        with torch.no_grad():
            expected, _ = policy_log_probs(model, *batch)
            with torch.autocast("cpu", narrow):
                log_probs, _ = policy_log_probs(model, *batch)
        assert log_probs.dtype == torch.float32
        assert (log_probs - expected).abs().max() < gap
