"""Policies on disk: what is written, and what is refused on reading."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
import subprocess
import sys
import weakref
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from harness.core.errors import UserError
from harness.models import storage
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["a red apple"], 260)
SHAPE = dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), num_hidden_layers=1)
IDS = torch.arange(24).view(2, 12)


@pytest.fixture
def folder(tmp_path):
    """A saved policy, to be damaged."""
    save_policy(DecoderLM(SHAPE), TOKENIZER, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_what_is_saved(tmp_path, tied):
    model = DecoderLM(dataclasses.replace(SHAPE, tie_word_embeddings=tied), seed=5)
    save_policy(model, TOKENIZER, tmp_path / "new" / "policy")
    llama, loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "new" / "policy", output_loading_info=True, trust_remote_code=False
    )
    assert type(llama) is LlamaForCausalLM
    assert [value for key, value in loaded.items() if "keys" in key and value] == []
    torch.testing.assert_close(llama(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new" / "policy", trust_remote_code=False)
    assert tokenizer.encode("a red apple") == TOKENIZER.encode("a red apple")
    assert (llama.generation_config.eos_token_id, llama.generation_config.pad_token_id) == (1, 0)


def test_only_whole_files_and_no_pickle_are_left(folder):
    save_policy(DecoderLM(SHAPE, seed=1), TOKENIZER, folder)  # over the first
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]
    saved = load_file(folder / "model.safetensors")
    for name, weight in DecoderLM(SHAPE, seed=1).state_dict().items():
        assert torch.equal(saved[name], weight), name


def test_nothing_saved_names_a_path(folder):
    for path in folder.glob("*.json"):
        assert str(folder.parent) not in path.read_text(), path.name


def test_other_files_in_the_folder_stay_but_no_older_weights(folder):
    (folder / "notes.txt").write_text("mine")
    for stale in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (folder / stale).write_text("from a larger model")
    save_policy(DecoderLM(SHAPE), TOKENIZER, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert [path.name for path in folder.glob("model*")] == ["model.safetensors"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot save the policy: (Not a directory|File exists)"):
        save_policy(DecoderLM(SHAPE), TOKENIZER, tmp_path / "file")


def files_in(folder):
    """Contents of every file below, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def no_file_beyond(num_bytes):
    """No file may grow beyond a limit, which a library meets as it meets a full disk: a write that fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("earlier", [False, True], ids=["a new folder", "over an earlier save"])
# 260 tokens x width x 2 bytes: weights above 33 KB and above 2 KB; tokenizer.json has 5.7 KB
@pytest.mark.parametrize("width", [64, 4], ids=["weights too large", "only the tokenizer too large"])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_written(tmp_path, earlier, width):
    policy = tmp_path / "policy"
    if earlier:
        save_policy(DecoderLM(SHAPE), TOKENIZER, policy)
    before = files_in(tmp_path)
    narrow = {"hidden_size": width, "intermediate_size": width, "head_dim": width}
    model = DecoderLM(dataclasses.replace(SHAPE, **narrow, num_attention_heads=1, num_key_value_heads=1))
    with pytest.raises(UserError) as refused, no_file_beyond(4500):
        save_policy(model.to(torch.bfloat16), TOKENIZER, policy)
    assert refused.value.what.startswith("cannot save the policy: ")
    assert "File too large (os error 27)" in refused.value.what  # EFBIG
    assert refused.value.where == str(policy)
    assert refused.value.fix == "free space on that disk, or choose another folder"
    assert files_in(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == (["policy"] if earlier else [])


def test_an_error_that_is_not_the_disks_is_not_called_one(tmp_path):
    with pytest.raises(AttributeError, match="save_pretrained"):
        save_policy(torch.nn.Linear(1, 1), TOKENIZER, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def test_type_of_the_weights_is_kept_on_disk_and_chosen_on_loading(tmp_path):
    save_policy(DecoderLM(SHAPE).to(torch.bfloat16), TOKENIZER, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_file(tmp_path / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    for dtype in (torch.float32, torch.bfloat16):
        model, _ = load_policy(tmp_path, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_weights_are_loaded_one_at_a_time_in_their_type_where_they_go(tmp_path, monkeypatch):
    """No second copy in main memory: each tensor of the file is gone before the next one is read."""
    save_policy(DecoderLM(SHAPE).to(torch.bfloat16), TOKENIZER, tmp_path)
    alive, filled = [], []

    def remember(name, tensor, file):
        assert [before() for before in alive if before() is not None] == []
        alive[:] = [weakref.ref(tensor)]
        filled.append((name, tensor.dtype))

    monkeypatch.setattr(storage, "_require_finite", remember)
    model, _ = load_policy(tmp_path, dtype=torch.float32)
    assert filled == [(name, torch.bfloat16) for name in model.state_dict()]
    assert all(parameter.dtype == torch.float32 and parameter.requires_grad for parameter in model.parameters())


def test_sharded_weights_are_read(tmp_path):
    llama = LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf())).eval()
    llama.save_pretrained(tmp_path, max_shard_size="200KB")
    TOKENIZER.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    model, _ = load_policy(tmp_path)
    assert isinstance(model, DecoderLM)
    torch.testing.assert_close(model(IDS).logits, llama(IDS).logits, rtol=1e-5, atol=1e-5)


def test_a_llama_the_own_model_cannot_run_is_left_to_transformers(tmp_path):
    config = LlamaConfig.from_dict(SHAPE.to_hf())
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    model, _ = load_policy(tmp_path)
    assert type(model) is LlamaForCausalLM
    assert not model.training


def test_a_missing_folder_is_refused():
    with pytest.raises(UserError, match=r"no model folder \./no/such/folder"):
        load_policy("./no/such/folder")


def test_a_file_is_refused(folder):
    with pytest.raises(UserError, match="is a file, must be a folder"):
        load_policy(folder / "config.json")


def test_a_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json in the model folder"):
        load_policy(folder)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "holds no object")])
def test_a_damaged_config_is_refused(folder, text, message):
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        load_policy(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights in the model folder: config.json but no \*.safetensors"):
        load_policy(folder)


def test_pickled_weights_are_refused_with_the_reason(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only pickled weights \(pytorch_model.bin\).*loading a pickle can run any"):
        load_policy(folder)


def test_missing_and_misshapen_tensors_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    norm = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"the weights lack model.norm.weight \(128,\)"):
        load_policy(folder)
    save_file(weights | {"model.norm.weight": norm[:5].clone()}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.norm.weight is \(5,\), config.json asks for \(128,\)"):
        load_policy(folder)


GATE = "model.layers.0.mlp.gate_proj.weight"


def with_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize("runs_it", ["own", "transformers"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda weights: weights[GATE].view(-1)[3:5].fill_(torch.nan), f"{GATE} has 2 of 49152 numbers that are NaN"),
        (lambda weights: weights["model.norm.weight"][:1].fill_(-torch.inf), "model.norm.weight has 1 of 128 numbers"),
        (
            lambda weights: weights.update({GATE: weights[GATE].int()}),
            f"{GATE} is of type I32, must be one of F64, F32",
        ),
        (
            lambda weights: weights.update({GATE.replace("0", "1"): weights[GATE].clone()}),
            "hold 1 tensors that config.json has no place for, model.layers.1.mlp.gate_proj.weight among them",
        ),
    ],
)
def test_weights_that_would_be_taken_in_silence_are_named(folder, runs_it, change, what):
    with_weights(folder, change)
    if runs_it == "transformers":
        with_config(folder, rope_parameters=DYNAMIC)
    with pytest.raises(UserError) as caught:
        load_policy(folder)
    assert what in caught.value.what
    assert caught.value.where.startswith(str(folder))


@pytest.mark.parametrize("runs_it", ["own", "transformers"])
@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("num_hidden_layers", 0, 1000),
        ("num_hidden_layers", -1, 1000),
        ("num_hidden_layers", 10**6, 1000),
        ("hidden_size", 10**9, 2**24),
        ("vocab_size", 10**400, 2**24),
        ("max_position_embeddings", -1, 2**31),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_it_is_built(folder, runs_it, name, value, most):
    with_config(folder, **{name: value}, **({"rope_parameters": DYNAMIC} if runs_it == "transformers" else {}))
    with pytest.raises(UserError, match=f"{name} is .*, must be from 1 to {most}"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("index", "what"),
    [
        ("{}", "has no weight_map from tensors to files"),
        ("[]", "holds no object"),
        ("xx", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"weight_map": {"a": 3}}', "has no weight_map from tensors to files"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "names 'passwd', which is no safetensors file of this folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "names 'gone.safetensors', which is no safetensors file"),
    ],
)
def test_an_index_of_weights_names_files_of_its_folder(folder, index, what):
    os.rename(folder / "model.safetensors", folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError) as caught:
        load_policy(folder)
    assert what in caught.value.what
    assert caught.value.where == str(folder / "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_pipes_in_a_model_folder_are_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match="is no regular file") as caught:
        load_policy(folder)
    assert caught.value.where == str(folder / name)


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 2500, "a\0b", "~nobody/model", "\udcff"])
def test_names_that_no_folder_can_have_are_refused(path):
    with pytest.raises(UserError) as caught:
        load_policy(path)
    assert caught.value.what.startswith(("no model folder", "no folder"))


def test_damaged_weights_are_refused(folder):
    (folder / "model.safetensors").write_bytes(b"\x10\x00\x00\x00")
    with pytest.raises(UserError, match=r"cannot read model\.safetensors"):
        load_policy(folder)


def test_a_folder_without_tokenizer_is_refused(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match="no usable tokenizer in the model folder"):
        load_policy(folder)


def test_a_tokenizer_larger_than_the_model_is_refused(folder):
    train_tokenizer(["a red apple on a big table and a green one"] * 2, 290).save_pretrained(folder)
    with pytest.raises(UserError, match=r"the tokenizer has 2\d\d tokens, the model's vocab_size is 260"):
        load_policy(folder)


def test_a_hub_name_without_network_is_one_clear_error(tmp_path):
    script = """
from harness.core.errors import UserError
from harness.models.storage import load_policy
try:
    load_policy("nobody/no-such-model")
except UserError as error:
    print(error)
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("no folder nobody/no-such-model, and the Hugging Face hub did not give a model")
    assert "fix:   check the name and the network" in done.stdout
    assert "Traceback" not in done.stderr


OWN_CODE = """
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
Path({marker!r}).touch()
class OwnConfig(PretrainedConfig):
    model_type = "own"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


OWN_TOKENIZER = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
OWN_MODEL = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}


@pytest.mark.parametrize(
    ("name", "own"),
    [("tokenizer_config.json", OWN_TOKENIZER), ("config.json", {"model_type": "own", "auto_map": OWN_MODEL})],
)
def test_code_in_a_model_folder_never_runs_whatever_is_typed(folder, tmp_path, monkeypatch, name, own):
    """transformers would ask on the terminal, and run the code on a y."""
    marker = tmp_path / "it_ran"
    (folder / "own.py").write_text(OWN_CODE.format(marker=str(marker)))
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | own))
    typed = io.StringIO("y\n" * 4)
    monkeypatch.setattr(sys, "stdin", typed)
    with pytest.raises(UserError) as refused:
        load_policy(folder)
    assert str(refused.value).splitlines() == [
        "the model folder wants to run code of its own (auto_map in its JSON files), which is never done",
        f"  where: {folder}",
        "  fix:   give a model whose classes transformers has itself",
    ]
    assert typed.read() == "y\n" * 4
    assert not marker.exists()
