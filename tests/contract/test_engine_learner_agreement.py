"""At equal weights the engine's log-probs of the tokens it sampled are the Learner's log-probs of those tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.protocols import Engine
from harness.core.types import GroupData, Prompt, RolloutGroup, SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import NativeEngine
from harness.learner import PolicyTrainer, TrainerOptions
from harness.settings.optimizer import OptimizerSettings
from tests.contract.test_engine_contract import NATIVE, PROMPTS, QWEN2, TOKENIZER, Case, make_model

STOPS = tuple("aeiot")  # so that a random model ends its responses at many lengths
CASES = pytest.mark.parametrize(
    ("case", "kind"), [(NATIVE, NativeEngine), (QWEN2, HuggingFaceEngine)], ids=["native", "transformers"]
)


def gap(trainer: PolicyTrainer, engine: Engine, sampling: SamplingParams, step: int | None = None) -> float:
    """The largest gap between the engine's log-probs and the Learner's, which goes on to train on a step's batch."""
    made = []
    for number, (prompt, group) in enumerate(zip(PROMPTS, engine.generate(PROMPTS, 4, sampling, 3), strict=True)):
        data = GroupData(Prompt("p", "g"), torch.tensor(prompt).numpy(), group)
        lengths = tuple(len(completion.token_ids) for completion in group)
        made.append(RolloutGroup(number, 0, 0, 0, lengths, data, (0.0, 1.0, 1.0, 0.5)))
        assert len(set(lengths)) > 1 or sampling.min_tokens  # or it would prove little
    batch = trainer.prepare(tuple(made))
    trainer.compute_old_log_probs(batch)
    of_batch = batch.rollouts
    assert of_batch.old_log_probs_BT is not None
    found = (of_batch.engine_log_probs_BT - of_batch.old_log_probs_BT)[of_batch.response_mask_BT].abs().max()
    if step is not None:
        trainer.train(step, batch)
    return float(found)


@CASES
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_they_agree_at_the_temperature_and_again_once_an_update_is_published(
    case: Case, kind: type, temperature: float
) -> None:
    """The engine's are the old policy's log-probs until it has the new weights, which is what a lag means."""
    model, sampling = make_model(case), SamplingParams(temperature=temperature, max_tokens=16, stop=STOPS)
    engine = case.engine(model)
    assert isinstance(engine, kind)
    options = TrainerOptions(group_size=4, temperature=temperature, optimizer=OptimizerSettings(learning_rate=0.01))
    trainer = PolicyTrainer(model, TOKENIZER.pad_token_id, options)
    warmer = PolicyTrainer(model, TOKENIZER.pad_token_id, replace(options, temperature=temperature * 1.1))
    assert gap(warmer, engine, sampling) > 0.1  # the bound tells temperatures 10 % apart
    assert gap(trainer, engine, sampling, step=0) < case.tolerance
    assert gap(trainer, engine, sampling) > 0.1  # the Learner has moved on
    engine.load_weights(trainer.weights())
    assert gap(trainer, engine, sampling) < case.tolerance


@CASES
def test_they_agree_within_min_tokens_where_several_tokens_end_a_response(case: Case, kind: type) -> None:
    """Both leave all end tokens out there, and neither does behind."""
    model, ends = make_model(case), (0, 7, 200)
    engine, sampling = case.engine(model, ends=ends), SamplingParams(temperature=0.7, min_tokens=6, max_tokens=16)
    options = TrainerOptions(group_size=4, temperature=0.7, ban_eos_first=6)
    gaps = [
        gap(PolicyTrainer(model, TOKENIZER.pad_token_id, options, ends=banned), engine, sampling)
        for banned in (ends, ends[:2])
    ]
    assert gaps[0] < case.tolerance < gaps[1]
