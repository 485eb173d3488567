"""The shape of the own model and its translation to a Llama config."""

from __future__ import annotations

import dataclasses

import pytest
from transformers import LlamaConfig

from harness.core.errors import UserError
from harness.models.config import PRESETS, ModelConfig, RopeScaling
from harness.models.published import PUBLISHED


def llama(**changes):
    """A Llama config.json with 4 query heads on 2 key heads of 16."""
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    others = {"model_type": "llama", "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
    return {**sizes, **heads, **others, **changes}


def test_transformers_reads_the_same_shape_and_back_it_is_exact():
    for name, preset in PRESETS.items():
        read = LlamaConfig.from_dict(preset.to_hf(eos_token_id=1, pad_token_id=0))
        assert read.rope_parameters == {"rope_type": "default", "rope_theta": preset.rope_theta}, name
        for field in {field.name for field in dataclasses.fields(preset)} - {"rope_scaling", "rope_theta"}:
            assert getattr(read, field) == getattr(preset, field), (name, field)
        assert (read.eos_token_id, read.pad_token_id, read.bos_token_id) == (1, 0, None)
    for name, shape in {**PRESETS, **{name: ModelConfig.from_hf(config) for name, config in PUBLISHED.items()}}.items():
        assert ModelConfig.from_hf(shape.to_hf()) == shape, name
        assert name in PRESETS or (shape.model_type, shape.attention_bias, shape.head_norms) == ("qwen2", True, False)


def test_number_of_parameters():
    sizes = {name: preset.num_parameters for name, preset in PRESETS.items()}
    assert sizes == {
        # layer: q and o 2*128*128, k and v 2*64*128, SwiGLU 3*384*128, two norms 2*128 = 196,864; twice, and the
        # embeddings 512*128 and the last norm 128
        "tiny": 2 * 196_864 + 65_536 + 128,
        # layer: 2*256*256 + 2*128*256 + 3*768*256 + 2*256 = 786,944
        "small": 4 * 786_944 + 1024 * 256 + 256,
        # layer: 4*512*512 + 3*1344*512 + 2*512 = 3,113,984; embeddings and output apart
        "course": 4 * 3_113_984 + 2 * 1024 * 512 + 512,
        # layer: 4*128*128 + 3*512*128 + 2*128 = 262,400
        "maths": 3 * 262_400 + 1024 * 128 + 128,
    }
    course = PRESETS["course"]  # the source's
    assert (course.num_attention_heads, course.max_position_embeddings, course.rope_theta) == (16, 256, 10000.0)


def test_optional_fields_take_llamas_defaults():
    config = llama(head_dim=None)
    del config["num_key_value_heads"], config["rms_norm_eps"], config["max_position_embeddings"]
    shape = ModelConfig.from_hf(config)
    assert (shape.head_dim, shape.num_key_value_heads) == (64 // 4, 4)
    assert (shape.rms_norm_eps, shape.rope_theta, shape.max_position_embeddings) == (1e-6, 10000.0, 2048)
    assert shape.tie_word_embeddings is False


LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
"""https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json"""


def test_rope_bases_and_scalings_are_read_in_both_spellings():
    scaling = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    read = ModelConfig.from_hf(llama(rope_parameters=LLAMA3))
    assert read == ModelConfig.from_hf(llama(rope_theta=5e5, rope_scaling=scaling))
    assert (read.rope_theta, read.rope_scaling) == (5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    linear = ModelConfig.from_hf(llama(rope_scaling={"type": "linear", "factor": 2.0}))
    assert linear.rope_scaling == RopeScaling("linear", 2.0)
    default = ModelConfig.from_hf(llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5}))
    assert (default.rope_theta, default.rope_scaling) == (5e5, None)


def test_what_the_own_model_cannot_run_is_refused_by_name():
    for change, named in (
        ({"model_type": "gemma2"}, "model_type is 'gemma2'"),
        ({"model_type": "mistral"}, "sliding_window is 4096"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512}, "sliding_window is 512"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias is True"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "linear"}}, "factor of the rope scaling linear is None"),
        ({"rope_parameters": LLAMA3 | {"factor": 0}}, "factor of the rope scaling llama3 is 0"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}}, "is not below high_freq_factor 4.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"vocab_size": None}, "vocab_size is None, must be an integer"),
        ({"hidden_size": "64"}, "hidden_size is '64', must be an integer"),
        ({"rms_norm_eps": [1]}, "a value is of the wrong kind"),
    ):
        with pytest.raises(UserError) as caught:
            ModelConfig.from_hf(llama(**change), where="folder/config.json")
        assert named in caught.value.what
        assert (caught.value.where, bool(caught.value.fix)) == ("folder/config.json", True), named


def test_impossible_shapes_are_refused():
    for change, named in (
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, must be from 1 to 1000"),
    ):
        with pytest.raises(UserError, match=named):
            dataclasses.replace(PRESETS["tiny"], **change)
