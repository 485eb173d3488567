"""At equal weights the engine's log-probs of the tokens it sampled are the Learner's log-probs of those tokens."""

import dataclasses

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.core.protocols import Engine
from harness.core.types import GroupData, Prompt, RolloutGroup, SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import NativeEngine, native_engine
from harness.grpo.batch import RolloutBatch, collate
from harness.learner import PolicyTrainer, TrainerOptions
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.policy import policy_log_probs
from harness.models.tokenizer import train_tokenizer
from harness.settings.optimizer import OptimizerSettings
from tests.models.batches import padded_response_log_probs

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
SHAPE = dataclasses.replace(
    PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=96, max_position_embeddings=64
)
FIELDS = {key: value for key, value in SHAPE.to_hf().items() if key not in ("architectures", "model_type")}
ENDS = {"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id, "bos_token_id": None}
PROMPTS = [[5, 6, 7], [9] * 11, [100], [30, 31, 32, 33, 34]]
GROUP_SIZE = 4
STOPS = tuple("aeiot")  # so that a random model ends its responses at many lengths
TOLERANCE = 1e-4
TEMPERATURES = [1.0, 0.7]


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """The model with logits that are spread over several units, far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return model.eval()


def sampled(engine: Engine, temperature: float) -> list[GroupData]:
    sampling = SamplingParams(temperature=temperature, top_p=1.0, min_tokens=0, max_tokens=16, stop=STOPS)
    groups = engine.generate(PROMPTS, GROUP_SIZE, sampling, seed=3)
    return [
        GroupData(Prompt("p", "g"), torch.tensor(prompt).numpy(), group)
        for prompt, group in zip(PROMPTS, groups, strict=True)
    ]


def rewarded(groups: list[GroupData]) -> list[RolloutGroup]:
    return [
        RolloutGroup(number, 0, 0, 0, tuple(len(c.token_ids) for c in group.completions), group, (0.0, 1.0, 1.0, 0.5))
        for number, group in enumerate(groups)
    ]


def batch_of(groups: list[GroupData]) -> RolloutBatch:
    """The groups padded as for training; responses of many lengths, or the test would prove little."""
    rewards = [[0.0] * GROUP_SIZE] * len(groups)
    batch = collate(groups, rewards, TOKENIZER.pad_token_id, torch.zeros(GROUP_SIZE * len(groups)))
    assert len(set(batch.prompt_lengths_P.tolist())) == 4
    assert len(set(batch.response_mask_BT.sum(1).tolist())) >= 4
    return batch


def scored_parts(batch: RolloutBatch) -> tuple[torch.Tensor, ...]:
    return (
        batch.prompt_ids_PL,
        batch.prompt_lengths_P,
        batch.response_ids_BT,
        batch.response_mask_BT,
        batch.prompt_index_B,
    )


def largest_gap(batch: RolloutBatch, log_probs_BT: torch.Tensor) -> float:
    return float((batch.engine_log_probs_BT - log_probs_BT)[batch.response_mask_BT].abs().max())


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_native_engine_and_learner_agree(temperature: float) -> None:
    model = spread(DecoderLM(SHAPE))
    engine = native_engine(model, TOKENIZER)
    assert isinstance(engine, NativeEngine)
    batch = batch_of(sampled(engine, temperature))
    with torch.no_grad():
        log_probs_BT, _ = policy_log_probs(model, *scored_parts(batch), temperature=temperature)
        elsewhere_BT, _ = policy_log_probs(model, *scored_parts(batch), temperature=temperature * 1.1)
    assert largest_gap(batch, log_probs_BT) < TOLERANCE
    assert largest_gap(batch, elsewhere_BT) > 0.1  # the bound tells temperatures 10 % apart


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_transformers_engine_and_learner_agree(temperature: float) -> None:
    torch.manual_seed(0)
    model = spread(Qwen2ForCausalLM(Qwen2Config(**FIELDS | ENDS)))
    engine = native_engine(model, TOKENIZER)
    assert isinstance(engine, HuggingFaceEngine)
    batch = batch_of(sampled(engine, temperature))
    with torch.no_grad():
        log_probs_BT, _ = padded_response_log_probs(model, *scored_parts(batch), temperature=temperature)
        elsewhere_BT, _ = padded_response_log_probs(model, *scored_parts(batch), temperature=temperature * 1.1)
    assert largest_gap(batch, log_probs_BT) < TOLERANCE
    assert largest_gap(batch, elsewhere_BT) > 0.1


@pytest.mark.parametrize("make", [lambda: DecoderLM(SHAPE), lambda: Qwen2ForCausalLM(Qwen2Config(**FIELDS | ENDS))])
def test_they_agree_within_min_tokens_where_several_tokens_end_a_response(make) -> None:
    """Both leave all end tokens out there, and neither does behind."""
    torch.manual_seed(0)
    model, ends = spread(make()), (0, 7, 200)
    sampling = SamplingParams(temperature=0.7, min_tokens=6, max_tokens=16)
    groups = [
        GroupData(Prompt("p", "g"), torch.tensor(prompt).numpy(), group)
        for prompt, group in zip(
            PROMPTS, native_engine(model, TOKENIZER, ends=ends).generate(PROMPTS, GROUP_SIZE, sampling, 3), strict=True
        )
    ]
    gaps = []
    for banned in (ends, ends[:2]):
        options = TrainerOptions(group_size=GROUP_SIZE, temperature=0.7, ban_eos_first=6)
        trainer = PolicyTrainer(model, TOKENIZER.pad_token_id, options, ends=banned)
        batch = trainer.prepare(rewarded(groups))
        trainer.compute_old_log_probs(batch)
        gaps.append(largest_gap(batch.rollouts, batch.rollouts.old_log_probs_BT))
    assert gaps[0] < TOLERANCE < gaps[1]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_after_an_update_they_agree_again_once_the_weights_are_published(temperature: float) -> None:
    """The engine's are the old policy's log-probs until it has the new weights, which is what a lag means."""
    model = spread(DecoderLM(SHAPE))
    engine = native_engine(model, TOKENIZER)
    options = TrainerOptions(
        group_size=GROUP_SIZE, temperature=temperature, optimizer=OptimizerSettings(learning_rate=0.01)
    )
    trainer = PolicyTrainer(model, TOKENIZER.pad_token_id, options)

    def gap() -> float:
        groups = sampled(engine, temperature)
        batch_of(groups)
        batch = trainer.prepare(rewarded(groups))
        trainer.compute_old_log_probs(batch)
        assert batch.rollouts.old_log_probs_BT is not None
        found = largest_gap(batch.rollouts, batch.rollouts.old_log_probs_BT)
        trainer.train(0, batch)
        return found

    assert gap() < TOLERANCE
    assert gap() > 0.1  # the Learner has moved on
    engine.load_weights(trainer.weights())
    assert gap() < TOLERANCE
