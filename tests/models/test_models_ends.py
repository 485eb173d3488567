"""Which tokens end a response, and that a saved folder ends, begins, pads and samples as the one it came from."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from harness.core.errors import UserError
from harness.models.chat import turn_end
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.ends import end_tokens, texts_of
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer

TURNS = ("<|im_start|>", "<|im_end|>", "<|eot|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_tokenizer(template=CHATML):
    tokenizer = train_tokenizer(["a red apple"], 260)
    tokenizer.add_special_tokens({"additional_special_tokens": list(TURNS)})
    tokenizer.chat_template = template
    return tokenizer


TOKENIZER = chat_tokenizer()
EOS, PAD = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id
IM_START, IM_END, EOT = TOKENIZER.convert_tokens_to_ids(list(TURNS))
SHAPE = dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), num_hidden_layers=1)
SMALL = {"vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
MODELS = {
    "own decoder": lambda: DecoderLM(SHAPE),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, num_attention_heads=2, num_key_value_heads=2)),
}
SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


def write(folder, name, change, drop=()):
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content = {key: value for key, value in (content | change).items() if key not in drop}
    path.write_text(json.dumps(content))


def read(folder, name):
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends") / "policy"
    save_policy(MODELS[request.param](), TOKENIZER, folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A folder to be changed, whose configs say nothing of generation yet."""
    copy = tmp_path / "policy"
    copy.mkdir()
    for file in saved.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    write(copy, "config.json", {}, drop=("bos_token_id", "eos_token_id", "pad_token_id"))
    (copy / "generation_config.json").unlink(missing_ok=True)
    return copy


def test_tokenizer_and_both_configs_name_end_tokens(folder):
    """What no file names is none: transformers' own config of Granite has 2 where the file has nothing."""
    assert end_tokens(*load_policy(folder)) == (EOS,)
    for config, generation, expected in (
        (None, None, [EOS]),
        (IM_END, None, [EOS, IM_END]),
        (None, IM_END, [EOS, IM_END]),
        (EOT, [IM_END, EOS], [EOS, IM_END, EOT]),
        ([EOS, EOT], [EOT], [EOS, EOT]),
        ([], [], [EOS]),
        (len(TOKENIZER), [-1, 128009], [EOS]),  # no response can hold them
    ):
        write(folder, "config.json", {"eos_token_id": config})
        write(folder, "generation_config.json", {"eos_token_id": generation})
        assert list(end_tokens(*load_policy(folder))) == expected, (config, generation)


def test_ends_of_another_kind_are_refused_by_name(folder):
    for value in ("<|im_end|>", 2.0, True, [2, None]):
        write(folder, "generation_config.json", {"eos_token_id": value})
        with pytest.raises(UserError, match=r"eos_token_id is .*, must be a token id") as refused:
            load_policy(folder)
        assert refused.value.where == "generation_config.json"


def test_a_tokenizer_without_one_may_leave_it_to_the_configs(folder):
    write(folder, "tokenizer_config.json", {}, drop=("eos_token",))
    with pytest.raises(UserError, match="end-of-sequence"):
        load_policy(folder)
    write(folder, "config.json", {"eos_token_id": [EOT]})
    assert end_tokens(*load_policy(folder)) == (EOT,)


@pytest.mark.parametrize(
    ("ids", "generation"),
    [
        (
            {"bos_token_id": IM_START, "eos_token_id": [IM_END, EOS], "pad_token_id": None},
            {"do_sample": True} | SAMPLING,
        ),
        ({"eos_token_id": EOS}, {"eos_token_id": [EOT, EOS], "bos_token_id": 0, "max_new_tokens": 9}),
        ({"eos_token_id": None, "pad_token_id": EOT}, SAMPLING),  # without do_sample, which transformers will not save
        ({}, {"do_sample": False, "num_return_sequences": 3}),  # nor load
        ({"bos_token_id": None}, None),
    ],
)
def test_a_saved_folder_says_what_the_one_it_came_from_says(folder, tmp_path, ids, generation):
    write(folder, "config.json", ids)
    if generation is not None:
        write(folder, "generation_config.json", generation)
    write(folder, "tokenizer_config.json", {}, drop=("pad_token",))
    model, tokenizer = load_policy(folder)
    assert tokenizer.pad_token_id is None
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    for target in (tmp_path / "first", tmp_path / "again"):
        gathered = dict(model.state_dict()) if target.name == "again" else None  # as of a model that is cut over ranks
        save_policy(model, tokenizer, target, gathered)
        config = read(target, "config.json")
        assert {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config} == ids
        assert (target / "generation_config.json").exists() == (generation is not None)
        assert generation is None or read(target, "generation_config.json") == generation
        assert read(target, "tokenizer_config.json").get("pad_token") is None
        first, (model, tokenizer) = model, load_policy(target)
        assert end_tokens(model, tokenizer) == end_tokens(first, tokenizer)


def test_a_policy_from_no_folder_names_its_tokenizers_ends(tmp_path):
    save_policy(DecoderLM(SHAPE), TOKENIZER, tmp_path / "policy")
    generation = read(tmp_path / "policy", "generation_config.json")
    assert generation == {"eos_token_id": EOS, "pad_token_id": PAD, "do_sample": True}
    assert end_tokens(DecoderLM(SHAPE), TOKENIZER) == (EOS,)
    assert texts_of([IM_END, EOS], TOKENIZER) == {str(IM_END): "<|im_end|>", str(EOS): "<|eos|>"}


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, IM_END),
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content }}<|eot|>{% endfor %}", EOT),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %} {{ eos_token }}"
         "{% endif %}{% endfor %}", EOS),
        ("{% for m in messages %}<|im_start|>{{ m.content | trim }}\n<|eot|><|im_end|>{% endfor %}", EOT),
        ("{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>{% endfor %}", IM_END),
        ("{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n{% endfor %}", None),  # ends with text
        ("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}", None),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}", None),
        ("{{ raise_exception('no') }}", None),
        (None, None),
    ],
)  # fmt: skip
def test_the_token_behind_an_assistants_turn(template, end):
    assert turn_end(chat_tokenizer(template)) == end
