"""Policies on disk: what is written, and what is refused on reading."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
import sys
import weakref
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

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


def test_only_whole_files_and_no_pickle_are_left_and_no_older_weights(folder):
    for kept in ("notes.txt", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (folder / kept).write_text("mine")
    save_policy(DecoderLM(SHAPE, seed=1), TOKENIZER, folder)  # over the first
    written = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*written, "notes.txt"])
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]
    assert all(str(folder.parent) not in path.read_text() for path in folder.glob("*.json"))
    saved = load_file(folder / "model.safetensors")
    for name, weight in DecoderLM(SHAPE, seed=1).state_dict().items():
        assert torch.equal(saved[name], weight), name


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
    too_large = r"cannot save the policy: .*File too large \(os error 27\)"  # EFBIG
    with pytest.raises(UserError, match=too_large) as refused, no_file_beyond(4500):
        save_policy(model.to(torch.bfloat16), TOKENIZER, policy)
    assert refused.value.where == str(policy)
    assert "free space" in refused.value.fix
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


def changed(folder, name="config.json", **changes):
    """Change values of a JSON file of a folder."""
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def damaged(name, content=None):
    """Take a file of the folder away, or put other bytes in its place."""
    return lambda folder: (folder / name).unlink() if content is None else (folder / name).write_bytes(content)


def lacks_its_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged("config.json"), r"no config\.json"),
        (damaged("config.json", b"{"), "is not JSON"),
        (damaged("config.json", b"[]"), "holds no object"),
        (damaged("model.safetensors"), r"no weights.* no \*\.safetensors"),
        (damaged("model.safetensors", b"\x10\x00\x00\x00"), r"cannot read model\.safetensors"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
         r"only pickled weights \(pytorch_model\.bin\)"),
        (lacks_its_tokenizer, "no usable tokenizer"),
        (train_tokenizer(["a red apple on a big table and a green one"] * 2, 290).save_pretrained,
         r"the tokenizer has 2\d\d tokens, the model's vocab_size is 260"),
    ],
)  # fmt: skip
def test_a_folder_that_lacks_a_part_or_has_a_damaged_one_is_refused(folder, change, message):
    change(folder)
    with pytest.raises(UserError, match=message):
        load_policy(folder)


@pytest.mark.parametrize("path", ["./no/such/folder", "x" * 5000, "a/" * 2500, "a\0b", "~nobody/model", "\udcff"])
def test_names_that_no_folder_has_are_refused(path):
    with pytest.raises(UserError, match=r"^no (model )?folder"):
        load_policy(path)


def test_missing_and_misshapen_tensors_are_named(folder):
    with pytest.raises(UserError, match="is a file, must be a folder"):
        load_policy(folder / "config.json")
    weights = load_file(folder / "model.safetensors")
    norm = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.norm.weight \(128,\)"):
        load_policy(folder)
    save_file(weights | {"model.norm.weight": norm[:5].clone()}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.norm.weight is \(5,\), config.json asks for \(128,\)"):
        load_policy(folder)


GATE, OTHER_GATE = (f"model.layers.{layer}.mlp.gate_proj.weight" for layer in (0, 1))


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
        (lambda weights: weights.update({OTHER_GATE: weights[GATE].clone()}), f"hold 1 tensors .* {OTHER_GATE}"),
    ],
)
def test_weights_that_would_be_taken_in_silence_are_named(folder, runs_it, change, what):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if runs_it == "transformers":
        changed(folder, rope_parameters=DYNAMIC)
    with pytest.raises(UserError, match=what) as caught:
        load_policy(folder)
    assert caught.value.where.startswith(str(folder))


@pytest.mark.parametrize("runs_it", ["own", "transformers"])
def test_sizes_that_no_model_has_are_refused_before_it_is_built(folder, runs_it):
    dynamic = {"rope_parameters": DYNAMIC} if runs_it == "transformers" else {}
    before = (folder / "config.json").read_text()
    for name, value, most in (
        ("num_hidden_layers", 0, 1000),
        ("num_hidden_layers", 1001, 1000),
        ("hidden_size", 2**24 + 1, 2**24),
        ("vocab_size", 10**400, 2**24),
        ("max_position_embeddings", -1, 2**31),
    ):
        (folder / "config.json").write_text(before)
        changed(folder, **dynamic, **{name: value})
        with pytest.raises(UserError, match=f"{name} is .*, must be from 1 to {most}"):
            load_policy(folder)


def test_an_index_of_weights_names_files_of_its_folder(folder):
    os.rename(folder / "model.safetensors", folder / "model-1.safetensors")
    place = folder / "model.safetensors.index.json"
    for index, what in (
        ("{}", "has no weight_map from tensors to files"),
        ("[]", "holds no object"),
        ("xx", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"weight_map": {"a": 3}}', "has no weight_map from tensors to files"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "names 'passwd', which is no safetensors file of this folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "names 'gone.safetensors', which is no safetensors file"),
    ):
        place.write_text(index)
        with pytest.raises(UserError) as caught:
            load_policy(folder)
        assert what in caught.value.what, index[:40]
        assert caught.value.where == str(place)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_pipes_in_a_model_folder_are_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match="is no regular file") as caught:
        load_policy(folder)
    assert caught.value.where == str(folder / name)


def test_a_hub_name_without_network_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no folder nobody/no-such-model") as refused:
        load_policy("nobody/no-such-model")
    assert "check the name and the network" in refused.value.fix


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
    changed(folder, name, **own)
    typed = io.StringIO("y\n" * 4)
    monkeypatch.setattr(sys, "stdin", typed)
    with pytest.raises(UserError, match=r"run code of its own \(auto_map") as refused:
        load_policy(folder)
    assert refused.value.where == str(folder)
    assert typed.read() == "y\n" * 4
    assert not marker.exists()
