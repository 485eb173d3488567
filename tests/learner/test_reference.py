"""The reference policy against series by hand: what it averages, when, and what KL is measured against."""

import pytest
import torch
from torch import nn

from harness.learner import PolicyTrainer
from harness.learner.reference import ReferencePolicy, frozen_copy
from harness.models.decoder import DecoderLM
from harness.settings.loss import KlSettings
from tests.learner.tiny_training import CONFIG, OPTIONS, changed, groups


def followed(updates: KlSettings, values: list[float], dtype: torch.dtype = torch.float32) -> list[float]:
    """The reference of a policy of one weight that starts at 0, after each training step, which takes it to a value."""
    policy = nn.ParameterDict({"weight": nn.Parameter(torch.tensor([0.0], dtype=dtype))})
    reference, found = ReferencePolicy(frozen_copy(policy), updates), []
    for step, value in enumerate(values):
        nn.init.constant_(policy["weight"], value)
        reference.follow(policy, step)
        weight = reference.model.get_parameter("weight")
        assert weight.dtype == dtype
        found.append(float(weight))
    return found


def test_the_reference_after_each_training_step() -> None:
    for updates, expected in (
        (KlSettings(reference="frozen"), [0, 0, 0, 0, 0]),
        (KlSettings(reference="reclone", reclone_every=1), [1, 2, 4, 8, 16]),
        (KlSettings(reference="reclone", reclone_every=2), [0, 2, 2, 8, 8]),
        # 0.5 * 0 + 0.5 * 1, 0.25 + 1, 0.625 + 2, 1.3125 + 4, 2.65625 + 8
        (KlSettings(reference="polyak", alpha=0.5), [0.5, 1.25, 2.625, 5.3125, 10.65625]),
    ):
        assert followed(updates, [1, 2, 4, 8, 16]) == expected, updates


def test_a_bfloat16_policy_is_averaged_in_float32() -> None:
    """0.99^n of the way is left after n steps of 0.01. In bfloat16 the average stays where a hundredth of what is left
    is less than half of its spacing, 2^-8 between 0.5 and 1: no later than at 1 - 0.2 = 0.8."""
    found = followed(KlSettings(reference="polyak", alpha=0.01), [1.0] * 500, torch.bfloat16)
    assert found[-1] == pytest.approx(1 - 0.99**500, abs=2**-9)  # 0.9934, where the spacing is 2^-8


def test_tied_weights_move_once_and_parameters_are_paired_by_name() -> None:
    """Output and embedding are one matrix; averaged under both names it would move by three quarters, not a half."""
    half = KlSettings(reference="polyak", alpha=0.5)
    pair = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "output": nn.Linear(3, 5, bias=False)})
    pair["output"].weight = pair["embedding"].weight
    for model in (DecoderLM(CONFIG, seed=1), pair):
        start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        reference = ReferencePolicy(frozen_copy(model), half)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        reference.follow(model, 0)
        assert len(list(reference.model.parameters())) == len(start)
        for name, parameter in reference.model.named_parameters():
            torch.testing.assert_close(parameter, start[name] + 0.5)
    before, turned = (
        nn.ParameterDict({name: nn.Parameter(torch.tensor([value])) for name, value in values})
        for values in ([("a", 1.0), ("b", 10.0)], [("b", 20.0), ("a", 3.0)])
    )
    reference = ReferencePolicy(frozen_copy(before), half)
    reference.follow(turned, 0)
    assert {name: float(parameter) for name, parameter in reference.model.named_parameters()} == {"a": 2.0, "b": 15.0}


def test_kl_is_measured_against_the_average() -> None:
    """With alpha 0.25 the reference of step 2 is 0.5625 of policy 0, 0.1875 of policy 1 and 0.25 of policy 2."""
    options = changed(OPTIONS, loss__kl__monitor=True, loss__kl__reference="polyak", loss__kl__alpha=0.25)
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, options)
    policies = []
    for step in range(3):
        policies.append({name: tensor.detach().clone() for name, tensor in trainer.weights().items()})
        batch = trainer.prepare(groups(seed=step))
        trainer.compute_old_log_probs(batch)
        trainer.compute_reference_log_probs(batch)
        metrics = trainer.train(step, batch)
    first, second, third = policies
    averaged = DecoderLM(CONFIG, seed=1)
    by_hand = {name: 0.5625 * first[name] + 0.1875 * second[name] + 0.25 * third[name] for name in first}
    averaged.load_state_dict(by_hand, strict=False)
    expected = trainer.prepare(groups(seed=2))
    PolicyTrainer(averaged, 0, options).compute_old_log_probs(expected)
    found, wanted_BT = batch.rollouts, expected.rollouts.old_log_probs_BT
    torch.testing.assert_close(found.reference_log_probs_BT, wanted_BT, atol=1e-5, rtol=0)
    gap = (found.old_log_probs_BT - wanted_BT)[found.response_mask_BT].mean()
    assert abs(float(gap)) > 1e-3
    assert metrics["kl/reference_k1"].value == pytest.approx(float(gap), abs=1e-5)
