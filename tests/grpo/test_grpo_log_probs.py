"""Log-probabilities and entropies: numbers by hand, numerics, temperature, memory."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness.core.errors import UserError
from harness.grpo import compute_entropy, get_response_log_probs
from harness.grpo.log_probs import entropy_of, log_softmax, select

LOGITS = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]]])  # (1, 2, 2): probabilities 1/2, 1/2 and 3/4, 1/4
LABELS = torch.tensor([[1, 0]])


def model(input_ids):
    assert input_ids.tolist() == [[2, 3]]
    return SimpleNamespace(logits=LOGITS)


@pytest.mark.parametrize(
    ("temperature", "second", "entropy"),
    [
        (1.0, 3 / 4, [0.6931472, 0.5623351]),  # ln 2, and -(3/4 ln 3/4 + 1/4 ln 1/4) = 0.2157616 + 0.3465736
        # ln 3 / 0.5 = ln 9: probabilities 9/10, 1/10; entropy 0.9 ln(10/9) + 0.1 ln 10 = 0.0948245 + 0.2302585
        (0.5, 0.9, [0.6931472, 0.3250830]),
    ],
)
def test_log_probs_and_entropy_by_hand(temperature, second, entropy):
    result = get_response_log_probs(model, torch.tensor([[2, 3]]), LABELS, True, temperature=temperature)
    assert result["log_probs"].tolist() == [pytest.approx([math.log(1 / 2), math.log(second)])]
    assert result["token_entropy"].tolist() == [pytest.approx(entropy)]
    plain = get_response_log_probs(model, torch.tensor([[2, 3]]), LABELS, temperature=temperature)
    assert list(plain) == ["log_probs"]
    assert torch.equal(plain["log_probs"], result["log_probs"])
    assert compute_entropy(LOGITS / temperature).tolist() == [pytest.approx(entropy)]


def test_a_token_that_cannot_be_sampled_adds_nothing_to_value_or_gradient():
    logits = torch.tensor([1.0, 2.0, -math.inf], requires_grad=True)
    kept = torch.tensor([1.0, 2.0], requires_grad=True)
    entropy, expected = compute_entropy(logits), compute_entropy(kept)
    assert compute_entropy(torch.tensor([1e30, 0.0])).item() == 0.0
    assert entropy.item() == pytest.approx(expected.item())
    (gradient,) = torch.autograd.grad(entropy, logits)
    (expected_gradient,) = torch.autograd.grad(expected, kept)
    assert gradient.tolist() == pytest.approx([*expected_gradient.tolist(), 0.0])


def test_entropy_gradient_is_that_of_the_definition():
    logits = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(compute_entropy(logits).sum(), logits)
    log_p = logits.log_softmax(-1)
    (expected,) = torch.autograd.grad(-(log_p.exp() * log_p).sum(), logits)
    assert torch.allclose(gradient, expected, rtol=0, atol=1e-12)


def test_a_transformers_model_and_padding():
    """The log-prob of a whole sequence is the one the model's own loss gives; padding on the right changes nothing."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    llama = LlamaForCausalLM(config).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    padded = torch.tensor([[3, 1, 4, 1, 5, 9, 0, 0]])
    with torch.no_grad():
        mean_loss = llama(ids, labels=ids).loss.item()
        log_probs = get_response_log_probs(llama, ids[:, :-1], ids[:, 1:])["log_probs"]
        log_probs_padded = get_response_log_probs(llama, padded[:, :-1], padded[:, 1:])["log_probs"]
    assert log_probs.mean().item() == pytest.approx(-mean_loss, abs=1e-6)
    assert log_probs_padded[:, :5].tolist() == [pytest.approx(log_probs[0].tolist(), abs=1e-6)]


def test_half_precision_logits_are_normalised_in_float32():
    logits = torch.zeros(1, 1, 50_257, dtype=torch.bfloat16)
    result = get_response_log_probs(
        lambda ids: SimpleNamespace(logits=logits), LABELS[:, :1], torch.zeros(1, 1, dtype=torch.long), True
    )
    assert result["log_probs"].dtype == result["token_entropy"].dtype == torch.float32
    assert result["log_probs"].item() == pytest.approx(-math.log(50_257), rel=1e-6)
    assert result["token_entropy"].item() == pytest.approx(math.log(50_257), rel=1e-6)


def kept_for_backward(compute):
    """Return how many tensors of the vocabulary's size the backward pass of ``compute(logits)`` keeps."""
    logits = torch.randn(4, 8, 100, generator=torch.Generator().manual_seed(2)).requires_grad_()
    kept = set()

    def pack(tensor):
        if tensor.numel() >= logits.numel():
            kept.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute(logits)  # alive until the count is taken, and with it what it keeps
    count = len(kept)
    del result
    return count


def test_one_tensor_of_the_vocabulary_s_size_is_kept_for_backward():
    labels = torch.zeros(4, 8, dtype=torch.long)

    def with_entropy(logits):
        log_probs = log_softmax(logits)
        return select(log_probs, labels), entropy_of(log_probs)

    assert kept_for_backward(lambda logits: select(log_softmax(logits), labels)) == 1
    assert kept_for_backward(with_entropy) == 1
    assert kept_for_backward(compute_entropy) == 1


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_bad_temperature_is_refused(temperature):
    with pytest.raises(UserError, match=f"temperature is {temperature}, it must be above 0"):
        log_softmax(LOGITS, temperature)


def test_labels_of_another_shape_are_refused():
    with pytest.raises(UserError, match=r"need labels \(1, 2\), got \(1, 3\)"):
        select(LOGITS, torch.zeros(1, 3, dtype=torch.long))
