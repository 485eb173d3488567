"""At equal weights the engine's log-probs of the tokens it sampled are the Learner's log-probs of those tokens."""

import dataclasses
from collections.abc import Callable
from typing import Any

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
from harness.models.scoring import Scores
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


def sampled(engine: Engine, sampling: SamplingParams) -> list[GroupData]:
    groups = engine.generate(PROMPTS, GROUP_SIZE, sampling, 3)
    prompts = [torch.tensor(prompt).numpy() for prompt in PROMPTS]
    return [GroupData(Prompt("p", "g"), prompt, group) for prompt, group in zip(prompts, groups, strict=True)]


def stopping(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=16, stop=STOPS)


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


def gap_at(model: torch.nn.Module, score: Callable[..., Scores], batch: RolloutBatch, temperature: float) -> float:
    """The largest gap between the engine's log-probs and the model's at a temperature."""
    parts = batch.prompt_ids_PL, batch.prompt_lengths_P, batch.response_ids_BT, batch.response_mask_BT
    with torch.no_grad():
        log_probs_BT, _ = score(model, *parts, batch.prompt_index_B, temperature=temperature)
    return largest_gap(batch, log_probs_BT)


def small_qwen2() -> torch.nn.Module:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**FIELDS | ENDS))


def largest_gap(batch: RolloutBatch, log_probs_BT: torch.Tensor) -> float:
    return float((batch.engine_log_probs_BT - log_probs_BT)[batch.response_mask_BT].abs().max())


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    ("make", "kind", "score"),
    [
        (lambda: DecoderLM(SHAPE), NativeEngine, policy_log_probs),
        (small_qwen2, HuggingFaceEngine, padded_response_log_probs),
    ],
    ids=["native", "transformers"],
)
def test_engine_and_learner_agree(make: Any, kind: type, score: Any, temperature: float) -> None:
    model = spread(make())
    engine = native_engine(model, TOKENIZER)
    assert isinstance(engine, kind)
    batch = batch_of(sampled(engine, stopping(temperature)))
    assert gap_at(model, score, batch, temperature) < TOLERANCE
    assert gap_at(model, score, batch, temperature * 1.1) > 0.1  # the bound tells temperatures 10 % apart


@pytest.mark.parametrize("make", [lambda: DecoderLM(SHAPE), small_qwen2], ids=["native", "transformers"])
def test_they_agree_within_min_tokens_where_several_tokens_end_a_response(make: Any) -> None:
    """Both leave all end tokens out there, and neither does behind."""
    model, ends = spread(make()), (0, 7, 200)
    sampling = SamplingParams(temperature=0.7, min_tokens=6, max_tokens=16)
    groups = sampled(native_engine(model, TOKENIZER, ends=ends), sampling)
    gaps = []
    for banned in (ends, ends[:2]):
        options = TrainerOptions(group_size=GROUP_SIZE, temperature=0.7, ban_eos_first=6)
        trainer = PolicyTrainer(model, TOKENIZER.pad_token_id, options, ends=banned)
        batch = trainer.prepare(rewarded(groups))
        trainer.compute_old_log_probs(batch)
        gaps.append(largest_gap(batch.rollouts, batch.rollouts.old_log_probs_BT))
    assert gaps[0] < TOLERANCE < gaps[1]


def test_after_an_update_they_agree_again_once_the_weights_are_published() -> None:
    """The engine's are the old policy's log-probs until it has the new weights, which is what a lag means."""
    model = spread(DecoderLM(SHAPE))
    engine = native_engine(model, TOKENIZER)
    optimizer = OptimizerSettings(learning_rate=0.01)
    trainer = PolicyTrainer(
        model, TOKENIZER.pad_token_id, TrainerOptions(group_size=GROUP_SIZE, temperature=0.7, optimizer=optimizer)
    )

    def gap() -> float:
        groups = sampled(engine, stopping(0.7))
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
