"""What a config.json says about a model's size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.learner.warm_start.lessons import lessons_of
from harness.models.config import PRESETS, preset_shape, sizes_from_hf
from harness.models.make_folder import shape_config
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.shape import read_shape, shape_for
from harness.scenario.schema import Scenario

QWEN = PUBLIC_SHAPES["qwen2.5-math-1.5b"]


def test_the_public_model_has_as_many_weights_as_are_published() -> None:
    # Layer: q 1536 x 1536 + 1536 = 2,360,832; k and v 1536 x 256 + 256 = 393,472 each; o 1536 x 1536 = 2,359,296;
    # MLP 3 x 1536 x 8960 = 41,287,680; norms 2 x 1536 = 3,072; together 46,797,824. Embeddings, tied, 151936 x 1536 =
    # 233,373,696; last norm 1,536. 28 x 46,797,824 + 233,373,696 + 1,536 = 1,543,714,304, as in the model's
    # safetensors (https://huggingface.co/Qwen/Qwen2.5-Math-1.5B).
    shape = sizes_from_hf(QWEN)
    assert shape is not None
    assert shape.layer_parameters == 46_797_824
    assert shape.num_parameters == 1_543_714_304
    assert shape.runs_on == "own"


def test_keys_and_values_of_one_token() -> None:
    shape = sizes_from_hf(QWEN)
    assert shape is not None
    assert shape.key_values_per_token == 2 * 28 * 2 * 128  # keys and values, layers, heads, width: 14,336


def test_fewer_layers_and_a_smaller_vocabulary() -> None:
    shape = sizes_from_hf(shape_config("qwen2.5-math-1.5b", layers=2, vocab_size=512))
    assert shape is not None
    assert shape.num_parameters == 2 * 46_797_824 + 512 * 1536 + 1536


@pytest.mark.parametrize("name", PRESETS)
def test_own_models_are_counted_as_they_count_themselves(name: str) -> None:
    assert PRESETS[name].num_parameters == PRESETS[name].num_parameters
    read = sizes_from_hf(PRESETS[name].to_hf())
    assert read == PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_vocabulary_is_that_of_its_tokenizer(name: str) -> None:
    assert preset_shape(name).vocab_size == len(lessons_of(name).train_tokenizer())
    scenario = Scenario.model_validate({"model": {"type": "preset", "preset": name}})
    assert shape_for(scenario) == (preset_shape(name), "")


def test_norms_of_heads_and_a_head_width_of_its_own() -> None:
    config = {**QWEN, "model_type": "qwen3", "head_dim": 64, "attention_bias": False, "tie_word_embeddings": False}
    shape = sizes_from_hf(config)
    assert shape is not None
    attention = 2 * 1536 * (12 * 64 + 2 * 64)
    assert shape.layer_parameters == attention + 41_287_680 + 2 * 1536 + 2 * 64
    assert shape.num_parameters == 28 * shape.layer_parameters + 2 * 151936 * 1536 + 1536


def test_what_transformers_alone_runs_is_known_by_its_sizes() -> None:
    llama = {**QWEN, "model_type": "llama"}
    plain, biased = sizes_from_hf(llama), sizes_from_hf({**llama, "attention_bias": True})
    stretched = sizes_from_hf({**QWEN, "rope_scaling": {"type": "yarn", "factor": 2.0}})
    assert plain is not None
    assert biased is not None
    assert stretched is not None
    assert (plain.runs_on, biased.runs_on, stretched.runs_on) == ("own", "transformers", "transformers")
    assert biased.layer_parameters - plain.layer_parameters == 12 * 128 + 2 * 2 * 128
    assert stretched.num_parameters == 1_543_714_304
    qwen3 = sizes_from_hf({**QWEN, "model_type": "qwen3", "hidden_size": 1200, "use_sliding_window": True})
    assert qwen3 is not None
    assert qwen3.head_dim == 128  # not 1200 / 12: the family's own


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "gpt2"}, {"model_type": "mixtral"}, {**QWEN, "hidden_size": "wide"}]
)
def test_what_is_not_known_is_not_guessed(config: dict[str, object]) -> None:
    assert sizes_from_hf(config) is None


@pytest.mark.parametrize("text", ["no json", "[1]", "{}"])
def test_a_folder_without_a_usable_config_has_no_shape(tmp_path: Path, text: str) -> None:
    assert read_shape(tmp_path) is None
    (tmp_path / "config.json").write_text(text)
    assert read_shape(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    assert read_shape(tmp_path) is not None
