"""Settings of other trainers become scenarios that load, and back; nothing is lost without being said."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from harness.cli import main
from harness.core.errors import UserError
from harness.grpo.aggregate import loss_denominator
from harness.grpo.loss import surrogate_loss
from harness.grpo.tokens import TokenBatch
from harness.oracle.settings.command import TABLES, scenario_text
from harness.oracle.settings.reading import UNREAD, read_settings
from harness.oracle.settings.translating import effective, nested, scenario_of, to_ours, to_theirs
from harness.oracle.step import Header, LossOptions, Step
from harness.run.with_trl import grpo_settings
from harness.scenario.load import load_scenario

ENVIRONMENTS = Path(os.environ.get("ORACLE_ENVIRONMENTS", Path(__file__).parents[2]))
"""Where ``.venv-trl`` and ``.venv-verl`` are."""
ACTOR = "actor_rollout_ref.actor."
OPTIM, CORRECTION, SAMPLING = f"{ACTOR}optim.", "algorithm.rollout_correction.", "orchestrator.train.sampling."
VLLM = "vllm_importance_sampling_"
DRAWN = {
    "trl": {
        "loss_type": ["dapo", "grpo", "dr_grpo", "luspo", "bnpo", "cispo", "sapo"], "max_completion_length": [64, 512],
        "epsilon": [0.1, 0.2, 3e-4], "epsilon_high": [None, 0.28, 5.0], "delta": [None, 1.1, 4.0],
        "importance_sampling_level": ["token", "sequence"], "beta": [0.0, 0.04],
        "use_bias_correction_kl": [True, False], "sync_ref_model": [True, False],
        "scale_rewards": ["group", "batch", "none", True, False], "entropy_coef": [0.0, 0.01],
        "mask_truncated_completions": [True, False], "use_vllm": [True, False], f"{VLLM}correction": [True, False],
        f"{VLLM}mode": ["sequence_mask", "token_mask", "token_truncate", "sequence_truncate"],
        f"{VLLM}clip_min": [None, 0.5], f"{VLLM}clip_max": [None, 3.0, 0.5], "num_generations": [4, 8],
        "num_iterations": [1, 2], "per_device_train_batch_size": [1, 8], "gradient_accumulation_steps": [1, 2, 6],
        "steps_per_generation": [None, 4], "max_steps": [-1, 100], "top_p": [1.0, 0.9],
        "lr_scheduler_type": ["linear", "cosine", "constant", "constant_with_warmup", "polynomial"],
        "warmup_steps": [0, 0.1, 3, 1000], "max_grad_norm": [1.0, 0.0], "bf16": [None, True, False],
        "model_name_or_path": [None, "Qwen/Qwen3-4B"],
    },
    "verl": {
        f"{ACTOR}policy_loss.loss_mode": ["vanilla", "gspo", "cispo", "gpg", "dppo_tv", "bypass_mode"],
        f"{ACTOR}loss_agg_mode": ["seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum"],
        f"{ACTOR}loss_scale_factor": [None, 100], f"{ACTOR}clip_ratio": [0.2, 0.1],
        f"{ACTOR}clip_ratio_low": [None, 0.2, 3e-4, 10], f"{ACTOR}clip_ratio_high": [None, 0.28, 4e-4],
        f"{ACTOR}clip_ratio_c": [3.0, 10.0], f"{ACTOR}use_kl_loss": [True, False], f"{ACTOR}kl_loss_coef": [0.1, 0.0],
        f"{ACTOR}kl_loss_type": ["low_var_kl", "k2", "k1", "abs", "k3+"], f"{ACTOR}entropy_coeff": [0, 0.01],
        "algorithm.use_kl_in_reward": [True, False], f"{CORRECTION}rollout_is": [None, "token", "sequence"],
        f"{CORRECTION}rollout_is_threshold": [2.0, "0.5_5.0", "3.0", 0.5], f"{CORRECTION}rollout_rs": [None, "k1"],
        "algorithm.adv_estimator": ["gae", "grpo", "rloo", "reinforce_plus_plus_baseline", "opo"],
        "algorithm.norm_adv_by_std_in_grpo": [True, False], "data.train_batch_size": [64, 96],
        f"{ACTOR}ppo_mini_batch_size": [32, 64], "actor_rollout_ref.rollout.n": [1, 8],
        f"{ACTOR}ppo_epochs": [1, 2], f"{ACTOR}shuffle": [True, False], "trainer.total_training_steps": [None, 50],
        "actor_rollout_ref.rollout.top_p": [1, 0.95], "actor_rollout_ref.rollout.name": ["vllm", "sglang"],
        f"{OPTIM}lr_scheduler_type": ["constant", "cosine"], f"{OPTIM}lr_warmup_steps": [-1, 10],
        f"{OPTIM}lr_warmup_steps_ratio": [0.0, 0.1], f"{OPTIM}min_lr_ratio": [0.0, 0.1, None],
    },
    "open-instruct": {
        "loss_fn": ["dapo", "cispo"], "clip_lower": [0.2, 0.1], "clip_higher": [0.272, 0.2],
        "loss_denominator": ["token", 6400], "beta": [0.0, 0.05], "kl_estimator": [0, 1, 2, 3],
        "load_ref_policy": [True, False], "ref_policy_update_freq": [None, 1], "use_rho_correction": [True, False],
        "use_vllm_logprobs": [True, False], "rho_clamp_upper_bound": [0.0, 2.0], "rho_mask_lower_bound": [0.0, 0.5],
        "rho_mask_upper_bound": [0.0, 5.0], "rho_mask_sequence_level": [True, False],
        "advantage_normalization_type": ["centered", "standard"], "filter_zero_std_samples": [True, False],
        "num_samples_per_prompt_rollout": [1, 8], "num_unique_prompts_rollout": [8, 32], "num_mini_batches": [1, 4],
        "num_epochs": [1, 2], "total_episodes": [10, 10_000], "async_steps": [1, 4], "inflight_updates": [True, False],
        "vllm_top_p": [1.0, 0.9], "max_grad_norm": [None, 1.0], "warmup_ratio": [0.0, 0.1],
        "lr_scheduler_type": ["linear", "constant", "cosine", "constant_with_warmup"],
    },
    "prime-rl": {
        "trainer.loss.type": ["default", "ipo", "custom"], "trainer.loss.dppo_mask_low": [0.2, 1.0],
        "trainer.loss.kl_tau": [0.0, 1e-3], "orchestrator.algo.type": ["grpo", "max_rl", "opd"],
        "orchestrator.batch_size": [128, 512], "orchestrator.group_size": [1, 16],
        "orchestrator.max_off_policy_steps": [0, 8], "max_steps": [None, 20], "trainer.optim.max_norm": [1.0, 0.0],
        f"{SAMPLING}max_completion_tokens": [None, 128], "trainer.scheduler.type": ["constant", "linear", "cosine"],
    },
}  # fmt: skip
"""Values that keys of the loss and step are drawn from."""
WHOLE = {
    "trl": {},
    "verl": {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.n": 8,
        f"{ACTOR}ppo_mini_batch_size": 32,
    },
    "open-instruct": {"filter_zero_std_samples": False},
    "prime-rl": {
        "trainer.loss.dppo_mask_low": 1.0,
        "trainer.loss.dppo_mask_high": 1.0,
        "trainer.loss.kl_tau": 0.0,
        "orchestrator.train.filter_zero_advantages": False,
        "orchestrator.group_size": 16,
    },
}
"""Settings by which the loss of each trainer has a counterpart in full."""


def drawn(name: str, number: int) -> dict:
    """Draw about a fourth of the keys."""
    generator = random.Random(f"{name} {number}")
    keys = {key: generator.choice(values) for key, values in DRAWN[name].items() if generator.random() < 0.25}
    return WHOLE[name] | keys


@pytest.mark.parametrize("name", TABLES)
def test_drawn_settings_make_scenarios_and_come_back(name: str) -> None:
    """Every drawn set makes a scenario, or one that its own check refuses; where nothing of the loss is lost, the
    settings come back."""
    table, whole, refused = TABLES[name], 0, []
    for number in range(100):
        translated = to_ours(table, theirs := drawn(name, number), "drawn")
        assert translated.unknown == []
        try:
            scenario = scenario_of(translated.ours, "drawn")
        except UserError as error:
            refused.append(str(error))
            continue
        if any(each.loss for each in translated.lost):
            continue
        whole += 1
        again, lost = to_theirs(table, scenario)
        assert [each for each in lost if each.loss] == [], theirs
        assert effective(scenario_of(to_ours(table, again, "back").ours, "back")) == effective(scenario), theirs
    assert whole > 20
    rules = ("[rule: ", "importance.cap")  # of settings together; a cap of 0.5
    assert [error for error in refused if not any(rule in error for rule in rules)] == []


def test_defaults_are_written_out() -> None:
    """An empty file has the loss of the trainer's defaults; ours has ``sequence_mean``."""
    expected = {
        "trl": {"clip": (0.2, 0.2), "dual_clip": None, "delta": "normalized_rewards", "eps": 1e-4},
        "verl": {"clip": (0.2, 0.2), "dual_clip": 3.0, "delta": "normalized_rewards", "eps": 1e-6},
        "open-instruct": {"clip": (0.2, 0.272), "dual_clip": None, "delta": "centered_rewards"},
        "prime-rl": {"clip": (None, None), "dual_clip": None, "delta": "centered_rewards"},
    }
    for name, table in TABLES.items():
        translated = to_ours(table, WHOLE[name], "empty")
        made = effective(scenario_of(translated.ours, "empty"))
        found = {
            "clip": (made["loss.cliprange"], made["loss.cliprange_high"]),
            "dual_clip": made["loss.dual_clip"],
            "delta": made["advantage.delta"],
            "eps": made["advantage.eps"],
        }
        assert {key: found[key] for key in expected[name]} == expected[name]
        assert made["loss.aggregation"] == "token_mean"
        assert {"loss.type", "loss.aggregation", "advantage.delta"} <= set(translated.ours)
        assert all("(default)" in translated.origin[key] for key in ("loss.aggregation", "optimizer.learning_rate"))


def test_what_has_no_counterpart_is_named() -> None:
    """Of each settings, what is named, and whether the loss differs by it."""
    for name, settings, what, of_loss in (
        ("trl", {"loss_type": "sapo"}, "loss_type 'sapo'", True),
        ("trl", {"loss_type": "cispo", "epsilon_high": 0.3}, "epsilon_high 0.3", True),  # of the weight itself
        ("trl", {"delta": 1.1}, "delta 1.1", True),
        ("trl", {"top_k": 50}, "top_k 50", False),
        ("verl", {"algorithm.use_kl_in_reward": True}, "algorithm.use_kl_in_reward True", True),
        ("verl", {f"{ACTOR}clip_ratio": 0.1}, f"{ACTOR}clip_ratio 0.1", False),  # is not read
        ("verl", {f"{ACTOR}policy_loss.loss_mode": "dppo_tv"}, f"{ACTOR}policy_loss.loss_mode 'dppo_tv'", True),
        ("open-instruct", {"advantage_normalization_type": "standard"}, "advantage_normalization_type 'st", True),
        ("open-instruct", {"mask_truncated_completions": True}, "mask_truncated_completions True", True),
        ("prime-rl", {"trainer.loss.kl_tau": 0.01}, "trainer.loss.kl_tau 0.01", True),
    ):
        found = [each for each in to_ours(TABLES[name], WHOLE[name] | settings, "x").lost if what in each.what]
        assert [each.loss for each in found] == [of_loss], what
        assert found[0].why


def test_what_is_refused_here_is_printed_with_the_reason(tmp_path: Path) -> None:
    """Groups of one, which verl has by default; GSPO with the clip range of single tokens."""
    for name, text, rule in (
        ("verl", f"algorithm.adv_estimator: grpo\n{ACTOR}ppo_epochs: 1\n", "groups_compare"),
        ("trl", "importance_sampling_level: sequence\n", "clip_range_is_of_the_ratio"),
    ):
        path, made = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
        path.write_text(text)
        made.write_text(printed := scenario_text(TABLES[name], path))
        assert f"[rule: {rule}]" in printed.partition("\ndescription:")[0]
        with pytest.raises(UserError, match=rule):
            load_scenario(made)


def test_a_loss_without_a_word_elsewhere_is_lost_as_a_whole(tmp_path: Path) -> None:
    """No key of it is written; what can be said of the step is."""
    path = tmp_path / "ours.yaml"
    path.write_text("loss:\n  aggregation: prompt_mean\ngroup_size: 4\n")
    for name, loss, group in (("trl", "loss_type", "num_generations"), ("verl", f"{ACTOR}policy_loss.loss_mode", ".n")):
        theirs, lost = to_theirs(TABLES[name], load_scenario(path))
        assert loss not in theirs
        assert [value for key, value in theirs.items() if key.endswith(group)] == [4]
        assert [each.what for each in lost if each.loss and "advantage" not in each.what] == ["the loss"]


def test_what_a_trainer_takes_for_a_scenario_may_be_refused_here(tmp_path: Path) -> None:
    """open-instruct always has a lag, with which top_p must be 1 here."""
    path = tmp_path / "ours.yaml"
    path.write_text("sampling:\n  top_p: 0.9\nloss:\n  aggregation: token_mean\n")
    theirs, lost = to_theirs(TABLES["open-instruct"], load_scenario(path))
    assert theirs["vllm_top_p"] == 0.9
    assert {each.what for each in lost if each.loss} == {"advantage.delta 'normalized_rewards'", "max_lag 0"}


def test_a_trl_batch_is_counted_in_rollouts_and_optimizer_steps() -> None:
    """2 rollouts x 4 parts an optimizer step, 16 parts a generation, of groups of 8: 32 rollouts in 4 steps."""
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 16}
    ours = to_ours(TABLES["trl"], settings | {"num_iterations": 3, "max_steps": 24}, "x").ours
    expected = {"rollout_batch_size": 32, "minibatches_per_epoch": 4, "gradient_accumulation_steps": 4, "steps": 2}
    assert {key: ours[key] for key in expected} == expected
    small = to_ours(TABLES["trl"], {"per_device_train_batch_size": 1, "num_generations": 8}, "x").ours
    assert (small["rollout_batch_size"], small["group_size"]) == (8, 8)  # eight processes, the fewest


def test_the_arm_of_vs_trl_has_the_same_words() -> None:
    """``harness.run.with_trl`` has its own for the settings that it follows."""
    scenario = load_scenario("vs_trl", ["arms={}"])
    expected, (theirs, lost) = grpo_settings(scenario), to_theirs(TABLES["trl"], scenario)
    other_words = {"lr_scheduler_type", "epsilon_high"}  # constant with a warm-up of 0 steps; null, which is epsilon
    shared = set(expected) & set(theirs) - other_words
    assert len(shared) > 15
    assert {key: theirs[key] for key in shared} == {key: expected[key] for key in shared}
    assert [each for each in lost if each.loss] == []


SCRIPT = """
#!/usr/bin/env bash
set -x
clip_high=${CLIP_HIGH:-0.28}  # a comment
tokens=$((1024 * 7 + 1024))
n=$(nproc)
extra=(
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
)
python3 prepare.py --local_dir data
python3 -m verl.trainer.main_ppo --config-name=ppo \\
    algorithm.adv_estimator=grpo data.max_response_length=${tokens} actor_rollout_ref.rollout.n=8 \\
    +actor_rollout_ref.actor.clip_ratio_high=$clip_high data.train_files="$HOME/x.parquet" \\
    actor_rollout_ref.actor.ppo_epochs=$n actor_rollout_ref.actor.no_such=1 trainer.logger='["console"]' \\
    "${extra[@]}" $@
"""


def test_a_script_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT + f"    data.x=$(touch {tmp_path}/ran) data.y=`touch {tmp_path}/ran`\n")
    read = read_settings(path, flags=False)
    assert read["data.max_response_length"] == 8192
    assert read[f"{ACTOR}clip_ratio_high"] == 0.28
    assert read[f"{ACTOR}loss_agg_mode"] == "seq-mean-token-mean"
    assert read["trainer.logger"] == ["console"]
    assert read[f"{ACTOR}ppo_epochs"] == UNREAD
    assert not (tmp_path / "ran").exists()
    translated = to_ours(TABLES["verl"], read, "x")
    assert translated.unknown == [f"{ACTOR}no_such"]
    assert [each.what for each in translated.lost if each.loss] == [f"{ACTOR}ppo_epochs"]
    assert translated.ours["epochs_per_batch"] == 1
    path.write_text("uv run mason.py --gpus 8 -- source x && uv run grpo_fast.py --beta 0.0 --inflight_updates "
                    "--clip_higher=0.3 --dataset_mixer_list a 1.0 --mask-truncated-completions False")  # fmt: skip
    assert read_settings(path) == {
        "beta": 0.0,
        "inflight_updates": True,
        "clip_higher": 0.3,
        "dataset_mixer_list": ["a", 1.0],
        "mask_truncated_completions": False,
    }


def test_nested_and_dotted_yaml_and_parts_of_toml_are_read_alike(tmp_path: Path) -> None:
    nested_file, dotted = tmp_path / "nested.yaml", tmp_path / "dotted.yaml"
    nested_file.write_text(yaml.safe_dump(nested({f"{ACTOR}clip_ratio_c": 5.0, "data.train_batch_size": 8})))
    dotted.write_text(f"{ACTOR}clip_ratio_c: 5.0\ndata.train_batch_size: 8\n")
    assert read_settings(nested_file) == read_settings(dotted)
    for word, expected in (("yes", True), ("off", False), ("true", True)):  # booleans to YAML 1.1, texts to 1.2
        dotted.write_text(f"mask_truncated_completions: {word}\n")
        assert to_ours(TABLES["trl"], read_settings(dotted), "x").ours["loss.mask_truncated"] is expected
    whole, part = tmp_path / "rl.toml", tmp_path / "orch.toml"
    whole.write_text("[orchestrator]\ngroup_size = 4\n[[orchestrator.train.source]]\nname = 'x'\ngroup_size = 2\n")
    part.write_text("group_size = 4\n[[train.source]]\nname = 'x'\ngroup_size = 2\n")
    for path in (whole, part):
        translated = to_ours(TABLES["prime-rl"], read_settings(path), "x")
        assert translated.ours["group_size"] == 4
        assert [key.removeprefix("orchestrator.") for key in translated.unknown] == ["train.source.0.group_size"]


BAD = {
    "list.yaml": "- 1",
    "broken.yaml": "a: [1",
    "twice.yaml": "epsilon: 0.1\nepsilon: 0.2",
    "word.yaml": "epsilon: wide",
    "list_of.yaml": "num_generations: [8]",
    "mode.yaml": "use_vllm: true\nvllm_importance_sampling_mode: sometimes",
    "infinite.yaml": "max_steps: .inf",
    "deep.yaml": "[" * 100,
    "broken.toml": "a = ",
    "quote.sh": "python train.py --a 'b",
    "nothing.sh": "echo hello",
    "latin.yaml": None,
}


def test_bad_files_get_one_error(tmp_path: Path) -> None:
    for name, text in BAD.items():
        path = tmp_path / name
        path.write_bytes(b"a: \xff" if text is None else text.encode())
        with pytest.raises(UserError):
            scenario_text(TABLES["trl"], path)
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UserError):
            scenario_text(TABLES["trl"], path)
    good = tmp_path / "good.yaml"
    good.write_text("epsilon: 0.3\n")
    for words in (
        ["--settings", "nobody"],
        ["--settings", "trl", "--step", "3"],
        ["--settings", "trl", "--settings-for", "trl"],
        ["--settings", "trl", "--set", "steps=1"],
        ["--settings-for", "trl"],
    ):
        assert main(["oracle", str(good), *words]) == 2, words


@pytest.mark.parametrize("name", TABLES)
def test_what_is_printed_is_a_file_of_the_other_side(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scenario's settings of a trainer are a file of that trainer, which is a scenario with the same loss again."""
    made = tmp_path / "made.yaml"
    made.write_text(
        yaml.safe_dump({"loss": {"aggregation": "token_mean", "cliprange": 0.3}, "optimizer": {"betas": [0.9, 0.99]}})
    )
    assert main(["oracle", str(made), "--settings-for", name]) == 0
    theirs = tmp_path / f"theirs.{ {'yaml': 'yaml', 'toml': 'toml'}.get(TABLES[name].style, 'sh') }"
    theirs.write_text(capsys.readouterr().out)
    again, lost = to_theirs(TABLES[name], load_scenario(made))
    read = read_settings(theirs, TABLES[name].style != "hydra")
    assert {key: read.get(key) for key in again} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in again.items()
    }
    assert main(["oracle", str(theirs), "--settings", name]) == 0
    back = tmp_path / "back.yaml"
    back.write_text(capsys.readouterr().out)
    before, after = (effective(load_scenario(path)) for path in (made, back))
    different = {key for key in before if before[key] != after[key] and not key.startswith(("model.", "engine."))}
    said = {each.what.split()[0] for each in lost}
    assert different <= said
    assert "loss.aggregation" not in different


WITH_KL = {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": 0.3}
ASKED = {
    "trl": [
        {},
        {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.3},
        {"loss_type": "dr_grpo", "delta": 1.5, "max_completion_length": 40},
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": False},
        {"loss_type": "cispo", "epsilon_high": 1.5},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.08},
        {"loss_type": "dapo", "beta": 0.2},
        {"loss_type": "dapo", "use_vllm": True},
        {"loss_type": "grpo", "use_vllm": True, f"{VLLM}mode": "token_mask", f"{VLLM}clip_min": 0.7,
         f"{VLLM}clip_max": 1.4},
        {"loss_type": "grpo", "use_vllm": True, f"{VLLM}mode": "token_truncate", f"{VLLM}clip_max": 1.2},
        {"loss_type": "grpo", "use_vllm": True, f"{VLLM}mode": "sequence_truncate", f"{VLLM}clip_max": 1.2},
    ],
    "verl": [
        {},
        {f"{ACTOR}loss_agg_mode": "seq-mean-token-mean", f"{ACTOR}clip_ratio_c": 1.4},
        {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum", f"{ACTOR}clip_ratio_low": 0.1, f"{ACTOR}clip_ratio_high": 0.3},
        {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": 40},
        {f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}clip_ratio_low": 0.05, f"{ACTOR}clip_ratio_high": 0.08,
         f"{ACTOR}loss_agg_mode": "seq-mean-token-mean"},
        {f"{ACTOR}policy_loss.loss_mode": "cispo", f"{ACTOR}clip_ratio_low": 10, f"{ACTOR}clip_ratio_high": 0.2},
        {f"{ACTOR}policy_loss.loss_mode": "gpg"},
        WITH_KL,
        {**WITH_KL, f"{ACTOR}kl_loss_type": "k2", f"{ACTOR}loss_agg_mode": "seq-mean-token-mean"},
        {**WITH_KL, f"{ACTOR}kl_loss_type": "k3+"},
        {f"{CORRECTION}rollout_is": "token", f"{CORRECTION}rollout_is_threshold": 1.2},
        {f"{CORRECTION}rollout_is": "sequence"},
        {f"{CORRECTION}rollout_is": "token", f"{CORRECTION}rollout_is_threshold": "0.7_1.4"},
    ],
}  # fmt: skip
"""Settings whose loss has a counterpart in full."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_the_translated_loss_has_the_gradient_of_theirs(tmp_path: Path, name: str) -> None:
    """Off-policy rows of 2 to 24 tokens; gradients with respect to log-probs, in float64; our weights are float32."""
    python = ENVIRONMENTS / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python}")
    torch.manual_seed(1)
    lengths = torch.tensor([24, 3, 10, 17, 5, 24, 8, 2, 12, 20, 6])  # none of 0, which verl leaves out
    mask_BT = torch.arange(24)[None] < lengths[:, None]
    old_BT, noise_BT = -torch.rand(11, 24, dtype=torch.float64) * 3, torch.randn(3, 11, 24, dtype=torch.float64)
    log_probs = {
        "old_log_probs": old_BT,
        "engine_log_probs": old_BT + noise_BT[1] * 0.1,
        "reference_log_probs": old_BT + noise_BT[2] * 0.5,
    }
    advantages = torch.randn(11, dtype=torch.float64)
    rollouts = {
        "rewards": advantages.clone(),
        "advantages": advantages,
        "group": torch.zeros(11),
        "rows": torch.arange(11),
    }
    tensors = {"log_probs": old_BT + noise_BT[0] * 0.3, "mask": mask_BT, **log_probs, **rollouts}
    step, given, out = (tmp_path / file for file in ("step.safetensors", "in.json", "out.json"))
    Step(header=Header(loss=LossOptions(aggregation="token_mean")), tensors=tensors).write(step)
    given.write_text(json.dumps(ASKED[name]))
    script = Path(__file__).with_name("their_losses.py")
    command = [python, "-I", script, name, step, given, out]
    subprocess.run(command, check=True, timeout=300, env={"CUDA_VISIBLE_DEVICES": ""})
    for settings, theirs in zip(ASKED[name], json.loads(out.read_text()), strict=True):
        translated = to_ours(TABLES[name], WHOLE[name] | settings, "asked")
        assert [each for each in translated.lost if each.loss] == [], settings
        loss = scenario_of(translated.ours, "asked").loss
        current = tensors["log_probs"].clone().requires_grad_(True)
        tokens = TokenBatch(current, mask_BT, advantages=advantages[:, None], **log_probs)
        denominator = loss_denominator(mask_BT, loss.aggregation, loss.constant)
        value, _ = surrogate_loss(tokens, denominator.token_weights(mask_BT), loss)
        (gradient,) = torch.autograd.grad(value, current)
        gap = (gradient - torch.tensor(theirs, dtype=torch.float64))[mask_BT].abs().max()
        assert gradient.abs().max() > 1e-3
        assert gap < 1e-8, (settings, float(gap))


@pytest.mark.slow
def test_the_defaults_are_those_of_the_installed_trainers() -> None:
    """A canary: what a new release changes is named by its key."""
    found: dict[str, dict] = {}
    if (python := ENVIRONMENTS / ".venv-trl" / "bin" / "python").exists():
        names = "from trl import GRPOConfig as C, ModelConfig as M; import dataclasses, json"
        printed = "print(json.dumps({f.name: f.default for c in (M, C) for f in dataclasses.fields(c)}, default=str))"
        run = subprocess.run([python, "-I", "-c", f"{names}; {printed}"], capture_output=True, check=True, timeout=300)
        found["trl"] = json.loads(run.stdout.splitlines()[-1])
    folder = ENVIRONMENTS / ".venv-verl" / "lib"
    for path in folder.glob("python*/site-packages/verl/trainer/config/_generated_ppo_trainer.yaml"):
        found["verl"] = read_settings(path)
    if not found:
        pytest.skip(f"neither .venv-trl nor .venv-verl is in {ENVIRONMENTS}")
    older = {"warmup_ratio", "lr_scheduler_kwargs.min_lr_rate"}
    ours = {"actor_rollout_ref.rollout.name", "reward_model.reward_kwargs.overlong_buffer_cfg.enable"}
    for name, theirs in found.items():
        defaults = {key: value for key, value in TABLES[name].defaults.items() if key not in older | ours}
        assert {key: theirs.get(key, "no such key") for key in defaults} == defaults | (
            {"algorithm.rollout_correction.rollout_is_threshold": 2.0} if name == "verl" else {}
        )
