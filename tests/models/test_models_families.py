"""Folders of today's families: who runs them, and whether their log-probs are those of transformers' own attention."""

# mypy: disable-error-code="operator, union-attr, dict-item"
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from harness.core.errors import UserError
from harness.core.types import SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import native_engine
from harness.engines.stop_strings import decode_text
from harness.engines.vllm_options import context_of
from harness.models.config import PRESETS, context_length
from harness.models.decoder import DecoderLM
from harness.models.ends import end_tokens, padding_token
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer
from harness.settings.engine import VllmEngineSettings
from tests.models.families import FAMILIES, PROBE, eager, gap, make, measure, reference_log_probs, reopen

BOUND = 1e-5
"""The issue's, of log-probs in float32."""
OWN = {"Llama 2", "Llama 3.2", "Llama 3.2 of transformers 5", "Llama, linear", "Llama, tied, another head in the file"}
OWN |= {"Mistral v0.3", "Qwen2.5", "Qwen3"}
OTHER_HEAD = "ignore:config.json ties the output matrix"


FolderOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """A family's folder, made once it is asked for."""
    folders = tmp_path_factory.mktemp("families")
    return lambda name: folders / name if (folders / name).exists() else make(name, folders / name)


@pytest.mark.filterwarnings(OTHER_HEAD)
@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_are_those_of_the_reference_attention_and_a_saved_folder_is_what_came(
    name: str, folder_of: FolderOf
) -> None:
    folder = folder_of(name)
    found = measure(folder)
    assert found.own == (name in OWN)
    assert max(found.engine, found.scoring) < BOUND
    assert found.gradients < (1e-4 if name == "Qwen3-Next" else BOUND)
    assert found.saved == 0
    before, after = (
        AutoTokenizer.from_pretrained(path, trust_remote_code=False) for path in (folder, folder / "saved")
    )
    text = PROBE + " 12 + 34" + "".join(FAMILIES[name].specials)
    assert before.encode(text) == after.encode(text)
    assert before.decode(before.encode(text)) == after.decode(after.encode(text))
    assert_saved_as_it_came(found.own, folder)


def assert_saved_as_it_came(own: bool, folder: Path) -> None:
    """Ends, beginning, padding, sampling defaults; of a model of transformers all but the type and who wrote it."""
    (came, saved), generation = (
        [json.loads((path / file).read_text()) for path in (folder, folder / "saved")]
        for file in ("config.json", "generation_config.json")
    )
    assert generation[0] == generation[1]
    tokens = ("eos_token_id", "bos_token_id", "pad_token_id")
    assert {key: saved.get(key) for key in tokens} == {key: came.get(key) for key in tokens}
    if not own:
        kinds = [key for key in ("dtype", "torch_dtype") if key in saved]
        assert {saved.pop(kind) for kind in kinds} == {"float32"}
        assert saved.pop("transformers_version")
        assert saved == {key: value for key, value in came.items() if key not in (*kinds, "transformers_version")}


@pytest.mark.parametrize("own", [True, False])
def test_of_two_output_matrices_the_files_own_is_taken_and_said(own: bool, tmp_path: Path) -> None:
    folder = make("Llama, tied, another head in the file", tmp_path / "tied")
    config = json.loads((folder / "config.json").read_text())
    if not own:
        config["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="ties the output matrix"):
        model, tokenizer = load_policy(folder)
    assert isinstance(model, DecoderLM) == own
    names = [name for name, _ in model.named_parameters()]
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(names)
    save_policy(model, tokenizer, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is False
    rows = [[5, 6, 7]], [list(range(30, 50))]
    with torch.no_grad():
        assert gap(*(reference_log_probs(eager(path), *rows) for path in (folder, tmp_path / "saved"))) == 0
    again, _ = load_policy(tmp_path / "saved")  # says nothing
    assert [name for name, _ in again.named_parameters()] == names
    if own:
        with pytest.warns(UserWarning, match="ties the output matrix"):
            empty, _ = load_policy(folder, "meta")
        assert [name for name, _ in empty.named_parameters()] == names


def test_tokens_beyond_the_vocabulary_are_refused_in_prompts_and_pad_nothing(folder_of: FolderOf) -> None:
    model, tokenizer = load_policy(folder_of("Gemma 3 (1b)"))
    image = tokenizer.convert_tokens_to_ids("<image_soft_token>")
    assert image == model.config.vocab_size
    engine = HuggingFaceEngine(model, tokenizer)
    prompts = [tokenizer.encode("What is that?"), tokenizer.encode("What is <image_soft_token>?")]
    with pytest.raises(UserError, match=f"0 to {image - 1}") as refused:
        engine.generate(prompts, 1, SamplingParams(max_tokens=2), 0)
    assert refused.value.where == "prompt 1 of the request"
    assert "without added tokens" in refused.value.fix
    model, tokenizer = load_policy(folder_of("Llama, linear"))
    assert tokenizer.convert_tokens_to_ids("[PAD]") == tokenizer.pad_token_id == model.config.vocab_size
    assert padding_token(model, tokenizer) == 0


def test_an_end_token_beyond_the_vocabulary_is_refused_where_no_config_names_another(tmp_path: Path) -> None:
    folder = make("Llama, linear", tmp_path / "model")
    for name, of_file in (("tokenizer_config", {"eos_token": "[PAD]"}), ("config", {"eos_token_id": None})):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | of_file))
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": 3}))
    assert end_tokens(*load_policy(folder)) == (3,)
    (folder / "generation_config.json").unlink()
    with pytest.raises(UserError, match=r"no.* end-of-sequence token that the model knows"):
        load_policy(folder)


def test_tokens_that_the_tokenizer_does_not_have_are_sampled_and_have_no_text(folder_of: FolderOf) -> None:
    """As the log-probs, which are over the whole vocabulary in engine and Learner; published rows are never likely."""
    for name, engine_of in (("Qwen2.5", native_engine), ("OLMo 2", HuggingFaceEngine)):
        model, tokenizer = load_policy(folder_of(name))
        first = len(tokenizer)
        assert model.config.vocab_size == first + FAMILIES[name].padding_rows
        assert decode_text(tokenizer, [first, first + 3]) == ""
        assert decode_text(tokenizer, [*tokenizer.encode("a cat"), first]) == "a cat"
        groups = engine_of(model, tokenizer).generate([[5, 6, 7]], 32, SamplingParams(max_tokens=16), 0)
        assert any((one.token_ids >= first).any() for one in groups[0])


def test_a_context_ends_where_its_positions_would_turn_otherwise(folder_of: FolderOf) -> None:
    """transformers turns all rows of a batch as its longest one: a row's log-probs would depend on the others."""
    model, tokenizer = load_policy(folder_of("Phi-4-mini"))
    rows, longer = [list(range(2, 22))], [list(range(2, 70))]
    assert model.config.max_position_embeddings == 512
    assert context_length(model.config) == 64
    assert context_of(VllmEngineSettings(), model.config) == 64
    engine = HuggingFaceEngine(model, tokenizer)
    assert engine.context_length == 64
    with pytest.raises(UserError, match="the model's context holds 64"):
        engine.generate(longer, 1, SamplingParams(max_tokens=2), 0)
    with torch.no_grad():
        alone = model(torch.tensor(rows)).logits
        beside = model(torch.tensor([rows[0] + [0] * 48, longer[0]])).logits[:1, :20]
    assert float((alone - beside).abs().max()) > 0.1  # what the bound is for
    assert context_length(eager(folder_of("Qwen2 with YaRN")).config) == 512
    assert context_length(PRESETS["tiny"]) == 256


def test_a_tokenizer_of_the_harness_is_saved_under_a_name_that_transformers_4_knows(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([PROBE], 270)
    save_policy(DecoderLM(PRESETS["tiny"]), tokenizer, tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not {"extra_special_tokens", "backend", "is_local", "local_files_only"} & set(saved)
    assert AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False).encode(PROBE) == tokenizer.encode(PROBE)


@pytest.fixture(scope="module")
def transformers_4(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment of its own, with the last transformers of version 4."""
    folder = tmp_path_factory.mktemp("transformers_4")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    wanted = [f"torch=={torch.__version__.partition('+')[0]}", "transformers==4.57.*"]
    subprocess.run([folder / "bin" / "pip", "install", "-q", *wanted], check=True)
    return str(folder / "bin" / "python")


@pytest.mark.slow  # installs torch and transformers a second time
@pytest.mark.filterwarnings(OTHER_HEAD)
def test_transformers_4_opens_saved_folders_with_the_same_log_probs(
    folder_of: FolderOf, transformers_4: str, tmp_path: Path
) -> None:
    saved = [folder_of(name) / "saved" for name in FAMILIES]
    for folder in saved:
        if not folder.exists():
            save_policy(*load_policy(folder.parent), folder)
    by_4 = reopen(saved, transformers_4, tmp_path / "by_4.pt")
    by_5 = reopen(saved, sys.executable, tmp_path / "by_5.pt")
    assert {path: found["error"] for path, found in by_4.items() if "error" in found} == {}
    for path, found in by_4.items():
        assert found["ids"] == by_5[path]["ids"], path
        assert float((found["log_probs"] - by_5[path]["log_probs"]).abs().max()) < BOUND, path
