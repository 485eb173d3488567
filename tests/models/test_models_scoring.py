"""Entropy with and without gradient, also where logits are minus infinity, and a token that cannot be sampled."""

import math
from dataclasses import replace

import pytest
import torch

from harness.models.decoder import DecoderLM
from harness.models.head import score_hidden
from harness.models.policy import policy_log_probs
from harness.models.scoring import TokenBan, score_tokens
from tests.models.batches import SHAPE, padded_response_log_probs

LOGITS = torch.tensor([[0.0, math.log(3.0), -math.inf], [1.0, 1.0, 1.0]])  # 1/4 3/4 0, and a third each
TOKENS = torch.tensor([1, 2])


def test_entropy_and_its_gradient_by_hand_and_finite_at_logits_of_minus_infinity():
    """H(1/4, 3/4) = 2 ln 2 - 3/4 ln 3, H(1/3 three times) = ln 3; dH / dz_v = -p_v (log p_v + H)."""
    logits = LOGITS.clone().requires_grad_()
    assert not score_tokens(logits, TOKENS, 1.0, True)[1].requires_grad
    log_probs, entropy = score_tokens(logits, TOKENS, 1.0, True, entropy_gradient=True)
    assert log_probs.tolist() == pytest.approx([math.log(3 / 4), -math.log(3)])
    by_hand = 2 * math.log(2) - 0.75 * math.log(3)
    assert entropy.tolist() == pytest.approx([by_hand, math.log(3)])
    entropy.sum().backward()
    of_first = 0.25 * (math.log(4) - by_hand)  # 0.206
    assert logits.grad[0].tolist() == pytest.approx([of_first, -of_first, 0.0])
    assert logits.grad[1].tolist() == pytest.approx([0.0] * 3, abs=1e-7)  # the uniform one is the maximum


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_entropies_and_their_gradients_are_those_of_the_definition_in_pieces_too(temperature):
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 4, generator=random, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, generator=random, dtype=torch.float64, requires_grad=True)
    tokens = torch.arange(9) % 5
    scales = torch.randn(2, 9, generator=random, dtype=torch.float64)

    def with_gradients(scores, entropy):
        total = (scores * scales[0] + entropy * scales[1]).sum()
        return scores, entropy, *torch.autograd.grad(total, (hidden, weight))

    log_p = (hidden @ weight.T / temperature).log_softmax(-1)
    expected = with_gradients(log_p.gather(1, tokens[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1))
    # at once, and in pieces of two tokens: two kept, two and room for the last one's single token, or none
    for kept, piece in ((10**6, 10**6), (20, 10), (25, 10), (0, 10)):
        how = {"entropy_gradient": True, "max_logits": kept, "piece_logits": piece}
        found = with_gradients(*score_hidden(hidden, weight, tokens, temperature, True, **how))
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted, atol=1e-12, rtol=1e-9)


def banned_by_hand(model, prompts, lengths, responses, mask, index, ban, temperature):
    """log softmax of the logits with minus infinity at the token, row by row through a plain forward pass."""
    rows = []
    for row, prompt in enumerate(index.tolist()):
        tokens = responses[row][mask[row]]
        ids = torch.cat((prompts[prompt, : lengths[prompt]], tokens))
        logits = (model(ids[None]).logits[0, lengths[prompt] - 1 : -1] / temperature).clone()
        logits[: ban.first, ban.token_ids] = -math.inf
        rows.append(logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])
    return torch.cat(rows)


@pytest.mark.parametrize("score", [policy_log_probs, padded_response_log_probs])
@pytest.mark.parametrize(("temperature", "banned"), [(1.0, (10,)), (0.7, (0, 10))])
def test_what_the_engine_banned_the_learner_leaves_out_exactly(score, temperature, banned):
    model = DecoderLM(replace(SHAPE, vocab_size=11))
    random = torch.Generator().manual_seed(1)
    prompts, lengths = torch.randint(1, 10, (2, 4), generator=random), torch.tensor([4, 2])
    responses, index = torch.randint(1, 10, (3, 5), generator=random), torch.tensor([0, 1, 1])
    mask = torch.arange(5) < torch.tensor([5, 1, 4])[:, None]
    ban = TokenBan(banned, 2)
    expected = banned_by_hand(model, prompts, lengths, responses, mask, index, ban, temperature)
    batch = (prompts, lengths, responses, mask, index)
    found, entropy = score(model, *batch, temperature=temperature, with_entropy=True, entropy_gradient=True, ban=ban)
    torch.testing.assert_close(found[mask], expected, atol=1e-5, rtol=1e-5)
    parameters = tuple(model.parameters())
    found_gradients = torch.autograd.grad(found[mask].sum(), parameters, retain_graph=True)
    for gradient, by_hand in zip(found_gradients, torch.autograd.grad(expected.sum(), parameters), strict=True):
        torch.testing.assert_close(gradient, by_hand, atol=1e-4, rtol=1e-4)
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(entropy.sum(), parameters))
    free, _ = score(model, *batch, temperature=temperature)
    gap = (found - free).abs()
    assert gap[mask & (torch.arange(5) < 2)].min() > 1e-3
    assert gap[:, 2:].max() == 0.0
