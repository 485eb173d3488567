"""Folders of a public model's shape with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.core.errors import UserError
from harness.models.chat import chat_encoder
from harness.models.decoder import DecoderLM
from harness.models.make_folder import main, make_folder, require_space
from harness.models.storage import load_policy


def test_the_folder_is_a_qwen2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "tiny-qwen2", "--layers", "2", "--chat", "-o", str(tmp_path / "model")]) == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["dtype"]) == ("qwen2", 2, "bfloat16")
    model, tokenizer = load_policy(tmp_path / "model")
    names = dict(model.named_parameters())
    assert isinstance(model, DecoderLM)
    # layer: q 96 x 96 + 96, k and v 96 x 16 + 16 each, o 96 x 96, MLP 3 x 96 x 128, norms 192; tables and a norm
    layer = (96 * 96 + 96) + 2 * (96 * 16 + 16) + 96 * 96 + 3 * 96 * 128 + 192
    count = 2 * layer + config["vocab_size"] * 96 + 96
    assert sum(weight.numel() for weight in names.values()) == count
    assert f"tiny-qwen2 with {count:,} random weights" in capsys.readouterr().out
    assert "model.layers.1.self_attn.q_proj.bias" in names
    assert "lm_head.weight" not in names  # tied
    assert tokenizer.decode(tokenizer.encode("12 + 34 = é")) == "12 + 34 = é"
    assert tokenizer.eos_token_id == config["eos_token_id"]
    assert len(tokenizer) <= 1024 < config["vocab_size"]
    written = tokenizer.decode(chat_encoder(tokenizer, "Be brief.")("Why?"))
    assert written == "[system] Be brief.\n[user] Why?\n[assistant] "


def test_the_seed_decides_about_the_weights(tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate((0, 0, 1)):
        make_folder("tiny-qwen2", tmp_path / str(number), layers=1, seed=seed)
        model, tokenizer = load_policy(tmp_path / str(number))
        assert tokenizer.chat_template is None
        weights.append(model.get_parameter("model.layers.0.mlp.up_proj.weight"))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert float(weights[0].detach().std()) == pytest.approx(0.02, rel=0.05)  # initializer_range of the public config


def test_what_cannot_be_made_is_refused_and_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--shape", "tiny-qwen2"]
    for options, message in (
        (["--shape", "qwen9"], "no shape 'qwen9'"),
        ([*tiny, "--layers", "5"], "num_hidden_layers is 5, must be from 1 to 4, as tiny-qwen2 has"),
        ([*tiny, "--layers", "0"], "num_hidden_layers is 0"),
        ([*tiny, "--seed", "-1"], "the seed is -1, must be from 0 to 9223372036854775807"),
        ([*tiny, "--seed", str(2**63)], "the seed is 9223372036854775808"),
        ([*tiny, "--vocab", "257"], "vocab_size is 257, must be at least 258"),
    ):
        assert main([*options, "-o", str(tmp_path / "model")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "model").exists()
    (tmp_path / "notes.txt").write_text("mine")
    assert main([*tiny, "--layers", "1", "-o", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(UserError, match=r"1000000\.0 GB"):  # before weights are drawn
        require_space(tmp_path / "model", 10**15)
