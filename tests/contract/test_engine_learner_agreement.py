"""At equal weights the engine's log-probs of the tokens it sampled are the Learner's log-probs of those tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.core.protocols import Engine
from harness.core.types import GroupData, Prompt, RolloutGroup, SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import NativeEngine, native_engine
from harness.learner import PolicyTrainer, TrainerOptions
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer
from harness.settings.optimizer import OptimizerSettings
from tests.models.batches import spread

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
SHAPE = replace(
    PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96, max_position_embeddings=64
)
FIELDS = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
ENDS = {"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id, "bos_token_id": None}
PROMPTS = [[5, 6, 7], [9] * 11, [100], [30, 31, 32, 33, 34]]
STOPS = tuple("aeiot")  # so that a random model ends its responses at many lengths
TOLERANCE = 1e-4


def sampled(engine: Engine, sampling: SamplingParams) -> list[GroupData]:
    groups = engine.generate(PROMPTS, 4, sampling, 3)
    prompts = [torch.tensor(prompt).numpy() for prompt in PROMPTS]
    return [GroupData(Prompt("p", "g"), prompt, group) for prompt, group in zip(prompts, groups, strict=True)]


def rewarded(groups: list[GroupData]) -> list[RolloutGroup]:
    return [
        RolloutGroup(number, 0, 0, 0, tuple(len(c.token_ids) for c in group.completions), group, (0.0, 1.0, 1.0, 0.5))
        for number, group in enumerate(groups)
    ]


def small_qwen2() -> torch.nn.Module:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**FIELDS | ENDS))


MODELS = pytest.mark.parametrize("make", [lambda: DecoderLM(SHAPE), small_qwen2], ids=["native", "transformers"])


def gap(trainer: PolicyTrainer, engine: Engine, sampling: SamplingParams, step: int | None = None) -> float:
    """The largest gap between the engine's log-probs and the Learner's, which goes on to train on a step's batch."""
    batch = trainer.prepare(rewarded(sampled(engine, sampling)))
    trainer.compute_old_log_probs(batch)
    of_batch = batch.rollouts
    assert len(set(of_batch.response_mask_BT.sum(1).tolist())) >= 4 or sampling.min_tokens  # or it would prove little
    assert of_batch.old_log_probs_BT is not None
    found = (of_batch.engine_log_probs_BT - of_batch.old_log_probs_BT)[of_batch.response_mask_BT].abs().max()
    if step is not None:
        trainer.train(step, batch)
    return float(found)


@MODELS
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_they_agree_at_the_temperature_and_again_once_an_update_is_published(make: Any, temperature: float) -> None:
    """The engine's are the old policy's log-probs until it has the new weights, which is what a lag means."""
    model, sampling = spread(make()), SamplingParams(temperature=temperature, max_tokens=16, stop=STOPS)
    engine = native_engine(model, TOKENIZER)
    assert isinstance(engine, NativeEngine if isinstance(model, DecoderLM) else HuggingFaceEngine)
    options = TrainerOptions(group_size=4, temperature=temperature, optimizer=OptimizerSettings(learning_rate=0.01))
    trainer = PolicyTrainer(model, TOKENIZER.pad_token_id, options)
    warmer = PolicyTrainer(model, TOKENIZER.pad_token_id, replace(options, temperature=temperature * 1.1))
    assert gap(warmer, engine, sampling) > 0.1  # the bound tells temperatures 10 % apart
    assert gap(trainer, engine, sampling, step=0) < TOLERANCE
    assert gap(trainer, engine, sampling) > 0.1  # the Learner has moved on
    engine.load_weights(trainer.weights())
    assert gap(trainer, engine, sampling) < TOLERANCE


@MODELS
def test_they_agree_within_min_tokens_where_several_tokens_end_a_response(make: Any) -> None:
    """Both leave all end tokens out there, and neither does behind."""
    model, ends = spread(make()), (0, 7, 200)
    engine, sampling = native_engine(model, TOKENIZER, ends=ends), SamplingParams(0.7, min_tokens=6, max_tokens=16)
    options = TrainerOptions(group_size=4, temperature=0.7, ban_eos_first=6)
    gaps = [
        gap(PolicyTrainer(model, TOKENIZER.pad_token_id, options, ends=banned), engine, sampling)
        for banned in (ends, ends[:2])
    ]
    assert gaps[0] < TOLERANCE < gaps[1]
