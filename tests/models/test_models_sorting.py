"""The sorting model against loops, its log-probs, its tokenizer, and what is saved of it."""

import json
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from harness.core.errors import UserError
from harness.grpo.kl import kl_estimate
from harness.models.policy import exact_policy_kl, policy_log_probs
from harness.models.sorting import NumberTokenizer, SortingModel, sorting_policy
from harness.models.storage import load_policy, save_policy

PROMPTS = torch.tensor([[1, 0, 2], [3, 2, 4]])


def logits_by_loops(model, prompt):
    """Go through all indices, in float64; rows are response positions, columns tokens."""
    emb, enc, dec = (t.double().tolist() for t in (model.embedding, model.encode_weights, model.decode_weights))
    size = range(len(emb[0]))
    encoded = [
        sum(emb[token][d0] * enc[place][d0][e] for place, token in enumerate(prompt) for d0 in size) for e in size
    ]
    decoded = [[sum(encoded[e] * matrix[e][d] for e in size) for d in size] for matrix in dec]
    return [[sum(row[d] * vector[d] for d in size) for vector in emb] for row in decoded]


def test_logits_are_those_of_the_loops_and_a_shorter_prompt_leaves_out_the_later_matrices():
    model, _ = sorting_policy(3)
    assert model(PROMPTS).shape == (2, 3, 5)
    short = model(torch.tensor([[1, 0, 4]]), torch.tensor([2]))
    for prompt, logits_TV in zip([*PROMPTS.tolist(), [1, 0]], [*model(PROMPTS), short[0]], strict=True):
        torch.testing.assert_close(logits_TV, torch.tensor(logits_by_loops(model, prompt)), atol=1e-4, rtol=1e-4)


def test_the_size_is_the_sources():
    # embedding 5 x 10, and 3 encode and 3 decode matrices of 10 x 10: 50 + 600
    assert sum(parameter.numel() for parameter in sorting_policy(0)[0].parameters()) == 650
    assert [name for name, _ in SortingModel().named_parameters()] == ["embedding", "encode_weights", "decode_weights"]


def test_initial_weights_depend_on_the_seed_and_have_the_sources_spread():
    first, again, other = (sorting_policy(seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first.encode_weights, again.encode_weights)
    assert not torch.equal(first.encode_weights, other.encode_weights)
    wide = SortingModel(400, 100, 3, 3, torch.Generator().manual_seed(0))
    # 40,000 and 30,000 numbers: the standard error of a standard deviation is 1 / sqrt(2 n), 0.4% here
    assert float(wide.embedding.detach().std()) == pytest.approx(1.0, rel=0.02)
    assert float(wide.encode_weights.detach().std()) == pytest.approx(0.1, rel=0.02)


def batch():
    """Four responses: two to each prompt, of 3, 3, 2 and 1 tokens."""
    responses = torch.tensor([[0, 1, 2], [4, 4, 4], [2, 3, 0], [1, 0, 0]])
    mask = torch.arange(3) < torch.tensor([3, 3, 2, 1])[:, None]
    return PROMPTS, torch.tensor([3, 3]), responses, mask, torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_and_entropy_are_those_of_each_position_alone(temperature):
    model, _ = sorting_policy(1)
    prompts, lengths, responses, mask, index = batch()
    with torch.no_grad():
        log_probs_BT, entropy_BT = policy_log_probs(
            model, prompts, lengths, responses, mask, index, temperature=temperature, with_entropy=True
        )
    for row, position in product(range(4), range(3)):
        logits = torch.tensor(logits_by_loops(model, PROMPTS[index[row]].tolist())[position], dtype=torch.float64)
        logs = (logits / temperature).log_softmax(-1)
        counts = float(mask[row, position])
        wanted = float(logs[responses[row, position]]), float(-(logs.exp() * logs).sum())
        found = float(log_probs_BT[row, position]), float(entropy_BT[row, position])
        assert found == pytest.approx((counts * wanted[0], counts * wanted[1]), abs=1e-3)


def test_the_tokenizer_of_numbers_and_what_is_refused():
    tokenizer = NumberTokenizer()
    assert tokenizer.encode("1 0 2") == [1, 0, 2]
    assert tokenizer.decode(torch.tensor([4, 3, 3])) == "4 3 3"
    assert len(tokenizer) == tokenizer.eos_token_id == 5
    for text in ("1 5", "1 apple", "1 ²"):
        with pytest.raises(UserError, match="0 to 4"):
            tokenizer.encode(text)
    with pytest.raises(UserError, match=r"4 tokens.* at most 3"):
        sorting_policy(0)[0](torch.tensor([[1, 2, 3, 4]]))


def test_what_is_saved_holds_the_weights_and_says_what_they_are(tmp_path):
    model, tokenizer = sorting_policy(0)
    save_policy(model, tokenizer, tmp_path / "policy")
    saved, weights = load_file(tmp_path / "policy" / "model.safetensors"), model.state_dict()
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())
    config = json.loads((tmp_path / "policy" / "config.json").read_text())
    sizes = {"vocab_size": 5, "embedding_size": 10, "prompt_length": 3, "response_length": 3}
    assert config == {"model_type": "harness_sorting", **sizes}
    with pytest.raises(UserError):  # it is no language model, and says so before anything is loaded
        load_policy(tmp_path / "policy")


RESPONSES = torch.tensor(list(product(range(5), repeat=3)))
"""All 125."""


def policies_apart(step: float) -> tuple[SortingModel, SortingModel]:
    """A policy, and another one a step away from it in a direction that is always the same."""
    policy, _ = sorting_policy(0)
    other, _ = sorting_policy(0)
    direction = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += step * torch.randn(parameter.shape, generator=direction)
    return policy.double(), other.double()


def log_probs_of_responses(model: SortingModel, temperature: float = 1.0) -> torch.Tensor:
    """Of each token of every response to each prompt: (2, 125, 3)."""
    log_probs_PTV = (model(PROMPTS) / temperature).log_softmax(-1).detach()
    return torch.stack([log_probs_TV[range(3), RESPONSES] for log_probs_TV in log_probs_PTV])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_exact_kl_is_the_sum_over_all_125_responses(temperature):
    """And so is the expectation of k1 and k3, summed over the positions; that of k2 is another."""
    policy, other = policies_apart(0.1)
    lengths_P, index_B, mask_BT = torch.tensor([3, 3]), torch.tensor([1, 0, 1]), torch.ones(3, 3, dtype=torch.bool)
    found_BT = exact_policy_kl(policy, other, PROMPTS, lengths_P, mask_BT, index_B, temperature=temperature)
    log_p, log_q = (log_probs_of_responses(model, temperature) for model in (policy, other))
    probability_PR = log_p.sum(-1).exp()
    assert probability_PR.sum(1).tolist() == pytest.approx([1.0, 1.0])
    expected_P = (probability_PR * (log_p - log_q).sum(-1)).sum(1)
    assert found_BT.sum(1).tolist() == pytest.approx(expected_P[index_B].tolist(), rel=1e-9)
    for estimator, is_exact in (("k1", True), ("k2", False), ("k3", True)):
        mean_P = (probability_PR * kl_estimate(log_p, log_q, estimator).sum(-1)).sum(1)
        assert (mean_P.tolist() == pytest.approx(expected_P.tolist(), rel=1e-9)) is is_exact


def test_exact_kl_is_0_between_equal_policies_and_offered_by_no_other_model():
    policy, _ = policies_apart(0.0)
    arguments = (PROMPTS, torch.tensor([3, 3]), torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 1]))
    assert exact_policy_kl(policy, policy, *arguments).abs().max() == 0.0
    assert exact_policy_kl(torch.nn.Linear(1, 1), policy, *arguments) is None
