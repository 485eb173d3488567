"""What a config.json says about a model's size, the bytes kept for the way back, and the share of a GPU's peak."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.core.trace import Span, Stage
from harness.core.types import RolloutGroup
from harness.learner.warm_start.lessons import lessons_of
from harness.models.config import PRESETS, ModelConfig, TransformersConfig, preset_shape, sizes_from_hf
from harness.models.decoder import DecoderLM, checkpoint_layers
from harness.models.flops import Utilisation
from harness.models.limits import MAX_LOGITS, MAX_SCORES, PIECE_LOGITS
from harness.models.make_folder import shape_config
from harness.models.policy import policy_log_probs
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.activations import Batch, kept_bytes, layer_bytes, logit_bytes
from harness.run.memory.shape import read_shape, shape_for
from harness.run.session import utilisation_of
from harness.scenario.schema import Scenario
from tests.models.batches import padded_response_log_probs
from tests.run.conftest import Load

QWEN = PUBLIC_SHAPES["qwen2.5-math-1.5b"]
NARROW = {**QWEN, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "vocab_size": 300}
LENGTHS, GROUP, RESPONSE = (20, 12), 4, 33
BATCH = Batch(rows=8, prompts=2, prompt=20, response=33)


def shape(config: dict[str, object]) -> ModelConfig:
    found = sizes_from_hf(config)
    assert found is not None
    return found


def of_transformers(config: dict[str, object]) -> ModelConfig:
    return TransformersConfig(**dataclasses.asdict(shape(config)))


def qwen(layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    values = {key: value for key, value in NARROW.items() if key not in ("model_type", "architectures")}
    return Qwen2ForCausalLM(Qwen2Config(**{**values, "num_hidden_layers": layers})).to(dtype).eval()


QWEN3 = dataclasses.replace(PRESETS["small"], model_type="qwen3")


def own(layers: int, dtype: torch.dtype = torch.float32, of: ModelConfig = PRESETS["small"]) -> nn.Module:
    return DecoderLM(dataclasses.replace(of, num_hidden_layers=layers)).to(dtype)


def bytes_kept(model: nn.Module, autocast: bool, *, padded: bool = False) -> int:
    """Bytes of the distinct tensors that autograd keeps of a forward pass, weights left out.

    ``padded``: of transformers' rows that share no prompt, which the plan counts.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, 300, (2, max(LENGTHS)), generator=generator)
    responses = torch.randint(2, 300, (2 * GROUP, RESPONSE), generator=generator)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), torch.autocast("cpu", enabled=autocast):
        (padded_response_log_probs if padded else policy_log_probs)(
            model,
            prompts,
            torch.tensor(LENGTHS),
            responses,
            torch.ones_like(responses, dtype=torch.bool),
            torch.arange(2).repeat_interleave(GROUP),
            with_entropy=True,
        )
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_a_token_of_the_public_model_by_hand() -> None:
    # float32: 4 x (6 x 1536 + 4 x 1536 + 4 x 8960) = 4 x 51,200 bytes a token and layer
    one = Batch(rows=1, prompts=1, prompt=1, response=1)
    assert layer_bytes(of_transformers(QWEN), one, 4, autocast=False) == 204_800
    # under autocast: 16 x 1536 + 2 x (5 x 1536 + 4 x 1536 + 4 x 8960) = 24,576 + 99,328
    assert layer_bytes(of_transformers(QWEN), one, 4, autocast=True) == 123_904
    # bfloat16 weights: 16 x 1536 + 2 x (4 x 1536 + 4 x 8960) = 24,576 + 83,968
    assert layer_bytes(of_transformers(QWEN), one, 2, autocast=False) == 108_544


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]
)
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (qwen, of_transformers(NARROW)),
        (own, PRESETS["small"]),
        (partial(own, of=shape(NARROW)), shape(NARROW)),
        (partial(own, of=QWEN3), QWEN3),
    ],
    ids=["transformers' qwen2", "own llama", "own qwen2", "own qwen3"],
)
def test_a_layer_keeps_what_is_planned(
    make: Callable[..., nn.Module], sizes: ModelConfig, dtype: torch.dtype, autocast: bool
) -> None:
    """The second layer's share of what autograd keeps, against the plan, to within a tenth; autocast's casts apart."""
    two, one = (bytes_kept(make(layers, dtype), autocast, padded=make is qwen) for layers in (2, 1))
    real = two - one
    planned = layer_bytes(sizes, BATCH, dtype.itemsize, autocast)
    if autocast:  # a narrow copy of each matrix
        biases = (sizes.query_size + 2 * sizes.key_size) * sizes.attention_bias
        vectors = 2 * sizes.hidden_size + biases + 2 * sizes.head_dim * sizes.head_norms
        planned += 2 * (sizes.layer_parameters - vectors)
    assert planned == pytest.approx(real, rel=0.1)


def test_rows_that_share_a_prompt_keep_less_than_is_planned() -> None:
    """Masks included: less in all layers than rows that share none, which the plan counts."""
    assert bytes_kept(qwen(2), False) < 0.9 * bytes_kept(qwen(2), False, padded=True)


@pytest.mark.parametrize(
    ("make", "sizes"), [(qwen, of_transformers(NARROW)), (own, PRESETS["small"])], ids=["qwen2", "own"]
)
def test_checkpointing_keeps_the_inputs_of_layers(make: Callable[..., nn.Module], sizes: ModelConfig) -> None:
    three, two = make(3), make(2)
    for model in (three, two):
        checkpoint_layers(model)
    real, other = (bytes_kept(model, autocast=False, padded=make is qwen) for model in (three, two))
    more, less = (
        kept_bytes(dataclasses.replace(sizes, num_hidden_layers=layers), BATCH, 4, False, True) for layers in (3, 2)
    )
    assert more - less == BATCH.tokens(sizes) * sizes.hidden_size * 4
    held = sum(LENGTHS) + 8 * 32 if make is own else BATCH.tokens(sizes)  # of these prompts, one is shorter
    assert real - other == pytest.approx(held * sizes.hidden_size * 4, rel=0.01)


def test_logits_are_bounded_by_what_is_kept_and_one_piece() -> None:
    many = Batch(rows=4, prompts=1, prompt=64, response=1024)
    kept, piece = MAX_LOGITS["cpu"] // 151936, PIECE_LOGITS["cpu"] // 151936
    assert (kept, piece) == (883, 220)  # of the 4,096 tokens
    assert logit_bytes(shape(QWEN), many, 4, autocast=False) == (883 + 220) * 151936 * 4
    assert logit_bytes(shape(QWEN), many, 4, autocast=False, on_gpu=True) == (1766 + 1766) * 151936 * 4
    few = Batch(rows=1, prompts=1, prompt=64, response=100)
    assert logit_bytes(shape(QWEN), few, 4, autocast=True) == 100 * 151936 * (4 + 4 + 2)


def test_own_attention_keeps_scores_only_where_rows_and_keys_are_few() -> None:
    def padded(batch: Batch) -> int:  # what is kept of rows, beside that of packed tokens
        packed = layer_bytes(few, dataclasses.replace(batch, rows=0, prompts=1, prompt=batch.tokens(few)), 4, False)
        return layer_bytes(few, batch, 4, False) - packed

    few = PRESETS["small"]  # 8 heads of 32, 4 of keys: scores are kept up to 64 keys
    assert padded(Batch(1, 1, 1, 64)) == 4 * (256 * 63 + 2 * 128 * 64 + 8 * 63 * 64)
    assert padded(Batch(1, 1, 2, 64)) == 4 * (2 * 256 * 63 + 2 * 256 * 65)
    rows = MAX_SCORES // (8 * 63 * 64)
    assert padded(Batch(rows, 1, 1, 64)) == rows * padded(Batch(1, 1, 1, 64))
    assert padded(Batch(rows + 1, 1, 1, 64)) == (rows + 1) * 4 * (2 * 256 * 63 + 2 * 256 * 64)


def test_tensor_ranks_share_matrices_and_what_they_keep() -> None:
    batch, tokens = Batch(8, 2, 32, 64), 2 * 32 + 8 * 63
    norms, outputs, cut = 2 * 4 * 1536, 4 * 2 * 1536, 4 * (1536 + 4 * 8960)
    queries, keys = 63, 95
    attention = 4 * (8 * (1536 * queries + 2 * 256 * keys) + 8 * 12 * queries * keys)
    for ranks in (1, 2):
        packed = tokens * (norms // ranks + outputs + cut // ranks)
        assert layer_bytes(shape(QWEN), batch, 4, False, tensor=ranks) == packed + attention // ranks


# ---- weights

LAYER, EMBEDDING = 46_797_824, 151_936 * 1536
"""q 1536 x 1536 + 1536 = 2,360,832; k and v 1536 x 256 + 256 = 393,472 each; o 1536 x 1536 = 2,359,296; MLP 3 x 1536 x
8960 = 41,287,680; norms 2 x 1536 = 3,072; together 46,797,824."""
HEADS_OF_64 = 2 * 1536 * (12 * 64 + 2 * 64) + 41_287_680 + 2 * 1536 + 2 * 64
PLAIN = LAYER - 12 * 128 - 2 * 2 * 128  # without biases of q, k and v


@pytest.mark.parametrize(
    ("config", "layer", "whole", "runs_on"),
    [
        # embeddings, tied, 233,373,696; last norm 1,536: 28 x 46,797,824 + 233,373,696 + 1,536 = 1,543,714,304, as in
        # the model's safetensors (https://huggingface.co/Qwen/Qwen2.5-Math-1.5B)
        (QWEN, LAYER, 1_543_714_304, "own"),
        (shape_config("qwen2.5-math-1.5b", layers=2, vocab_size=512), LAYER, 2 * LAYER + 512 * 1536 + 1536, "own"),
        (
            {**QWEN, "model_type": "qwen3", "head_dim": 64, "attention_bias": False, "tie_word_embeddings": False},
            HEADS_OF_64,
            28 * HEADS_OF_64 + 2 * EMBEDDING + 1536,
            "own",
        ),
        ({**QWEN, "model_type": "llama"}, PLAIN, 28 * PLAIN + EMBEDDING + 1536, "own"),
        ({**QWEN, "model_type": "llama", "attention_bias": True}, LAYER, 1_543_714_304, "transformers"),
        ({**QWEN, "rope_scaling": {"type": "yarn", "factor": 2.0}}, LAYER, 1_543_714_304, "transformers"),
    ],
    ids=["qwen2", "two layers", "qwen3", "llama", "llama with biases", "yarn"],
)
def test_weights_by_hand(config: dict[str, object], layer: int, whole: int, runs_on: str) -> None:
    of = shape(config)
    assert (of.layer_parameters, of.num_parameters, of.runs_on) == (layer, whole, runs_on)


def test_keys_and_values_of_one_token_and_a_width_of_heads_that_is_the_familys_own() -> None:
    assert shape(QWEN).key_values_per_token == 2 * 28 * 2 * 128  # keys and values, layers, heads, width: 14,336
    qwen3 = shape({**QWEN, "model_type": "qwen3", "hidden_size": 1200, "use_sliding_window": True})
    assert qwen3.head_dim == 128  # not 1200 / 12


def test_a_presets_vocabulary_is_that_of_its_tokenizer() -> None:
    for name in PRESETS:
        assert preset_shape(name).vocab_size == len(lessons_of(name).train_tokenizer()), name
        scenario = Scenario.model_validate({"model": {"type": "preset", "preset": name}})
        assert shape_for(scenario) == (preset_shape(name), "")


def test_what_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    unknown: list[dict[str, object]] = [{}, {"model_type": "gpt2"}, {"model_type": "mixtral"}]
    for config in [*unknown, {**QWEN, "hidden_size": "wide"}]:
        assert sizes_from_hf(config) is None, config
    assert read_shape(tmp_path) is None
    for text, is_known in (("no json", False), ("[1]", False), ("{}", False), (json.dumps(QWEN), True)):
        (tmp_path / "config.json").write_text(text)
        assert (read_shape(tmp_path) is not None) is is_known, text


# ---- perf/mfu of a training step

SHAPE = ModelConfig(
    vocab_size=10,
    hidden_size=4,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
    max_position_embeddings=64,
)
TRAINED = RolloutGroup(0, 3, 3, 3, (4, 1), prompt_length=3)
SPANS = [
    Span("learner", Stage.UPDATE, 0, 500, 3, 3),
    Span("learner", Stage.UPDATE, 1000, 9000, 2, 2),  # of another step
    Span("learner", Stage.OLD_LOGPROBS, 0, 7000, 3, 3),
]


@pytest.mark.parametrize("shape", [SHAPE, TransformersConfig(**dataclasses.asdict(SHAPE))], ids=["own", "transformers"])
def test_a_step_by_hand(shape: ModelConfig) -> None:
    # A layer: q and o 4 x 4 each, k and v 4 x 2 each, MLP 3 x 4 x 8: 48 + 96 = 144 numbers. 6 tokens are run, 5 scored,
    # 21 pairs (see test_memory_plan_flops). Forward and back: 6 x (6 x 2 x 144 + 5 x 10 x 4) + 12 x 2 x 4 x 21
    #   = 6 x 1,928 + 2,016 = 13,584; two passes 27,168, in 500 ns at a peak of 10^12: 27,168 / 500,000
    known = Utilisation(shape, 1e12, epochs=2)
    found = known.metrics(3, [TRAINED], SPANS)
    assert {name: metric.value for name, metric in found.items()} == {"perf/mfu": pytest.approx(0.054336)}
    assert known.metrics(3, [TRAINED, dataclasses.replace(TRAINED, prompt_length=None)], SPANS) == {}
    assert known.metrics(3, [TRAINED], SPANS[1:]) == {}  # no update
    assert Utilisation().metrics(3, [TRAINED], SPANS) == {}  # no peak


H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_gib": 80}
BFLOAT16 = "model: {precision: bfloat16}\n"


def test_the_peak_of_a_precision(load: Load) -> None:
    for text, gpus, peak in (
        (BFLOAT16, [H100, H100], 989e12),
        (BFLOAT16.replace("bfloat16", "float16"), [H100], 989e12),
        (BFLOAT16.replace("bfloat16", "float32"), [H100], 67e12),
        (BFLOAT16, [], None),
        (BFLOAT16, [H100, {"name": "NVIDIA A100-SXM4-80GB"}], None),  # of two kinds
        (BFLOAT16, [{"name": "Tesla T4"}], None),  # not known
        ("model: {type: paced}\nengine: {type: paced}\n", [H100], None),  # no weights
    ):
        found = utilisation_of(load(text + "epochs_per_batch: 4\n"), gpus)
        assert (found.peak if found.shape else None, found.epochs) == (peak, 4), (text, gpus)
