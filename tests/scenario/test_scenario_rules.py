"""Rules over several settings: each names itself, the numbers, the places and the fix; and what lies just inside."""

import pytest

from harness.core.errors import UserError
from harness.scenario.axes import expand
from harness.scenario.derived import no_gpu_error
from harness.scenario.load import load_scenario
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from tests.messages import facts


def broken(**settings):
    return broken_rules(Scenario.model_validate(settings))


VLLM_OF_2 = {"type": "vllm", "tensor_parallel": 2}
TWO_GPUS = {"device": "cuda", "colocated": False, "generator": {"gpus": 2}, "learner": {"gpus": 1}}
CASES = [
    ({"group_size": 6}, "whole_groups", "6 64 4", "1 2 4 8 60 66", ["group_size", "rollout_batch_size"]),
    ({"rollout_batch_size": 4}, "whole_groups", "8 4 4", "1 2 4 8", ["group_size", "rollout_batch_size"]),
    (
        {"minibatches_per_epoch": 3},
        "whole_minibatches",
        "3 64 1",
        "1 2 4 8 63 66",
        ["minibatches_per_epoch", "rollout_batch_size"],
    ),
    (
        # 64 rollouts / 2 minibatches = 32 in a train batch; 32 = 2 * 12 + 8
        {"minibatches_per_epoch": 2, "gradient_accumulation_steps": 12},
        "whole_microbatches",
        "12 32 8",
        "2 4 8 16 24 36",
        ["gradient_accumulation_steps", "rollout_batch_size"],
    ),
    (
        # 64 / 16 = 4 rollouts in a train batch
        {"minibatches_per_epoch": 16},
        "train_batch_holds_a_group",
        "4 64 16 8",
        "8",
        ["minibatches_per_epoch", "group_size", "rollout_batch_size"],
    ),
    ({"group_size": 1}, "groups_compare", "1 2", "8", ["group_size", "loss.type"]),
    (
        {"model": {"type": "folder", "path": "m", "dtype": "float16"}},
        "trained_weights_are_no_float16",
        "16 16 0",
        "16 32 16 16",
        ["model.dtype"],
    ),
    (
        {"engine": {"type": "vllm", "gpu_memory_utilization": 0.85}, "placement": {"device": "cpu"}},
        "one_size_of_vllms_cache",
        "0.85",
        "1",
        ["engine.gpu_memory_utilization"],
    ),
    (
        {"engine": VLLM_OF_2, "placement": {"device": "cuda"}},
        "workers_have_gpus",
        "2",
        "2",
        ["engine.tensor_parallel", "transport.type", "placement.device"],
    ),
    (
        # 2 engines x 2 workers, and 4 ranks
        {
            "engine": VLLM_OF_2,
            "placement": {
                "device": "cuda",
                "colocated": False,
                "generator": {"gpus": 1, "count": 2},
                "learner": {"gpus": 1, "ranks": 4},
            },
            "learner": {"sharding": "fsdp2"},
            "transport": {"type": "nixl"},
        },
        "workers_have_gpus",
        "1 2",
        "2 2 2 4",
        ["placement.generator.gpus", "engine.tensor_parallel"],
    ),
    (
        {"engine": VLLM_OF_2, "placement": {"generator": {"gpus": 2}}, "transport": {"type": "nixl"}},
        "workers_have_gpus",
        "2",
        "",
        ["engine.tensor_parallel", "placement.colocated"],
    ),
    (
        # 2 passes x 4 minibatches = 8 optimizer steps
        {"loss": {"type": "no_baseline"}, "epochs_per_batch": 2, "minibatches_per_epoch": 4},
        "on_policy_loss",
        "1 0 8 2 4 0 0",
        "1 1 0 0",
        ["loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity"],
    ),
    ({"max_lag": 2}, "colocated_parts_take_turns", "2 0", "0", ["max_lag", "placement.colocated"]),
    (
        {"sampling": {"min_tokens": 33}},
        "token_bounds",
        "33 32",
        "32 33",
        ["sampling.min_tokens", "sampling.max_tokens"],
    ),
    (
        {"sampling": {"top_p": 0.9}, "max_lag": 2, "placement": {"colocated": False}},
        "whole_distribution",
        "0.9 1 2",
        "1 0",
        ["sampling.top_p", "max_lag"],
    ),
    (
        {"sampling": {"top_p": 0.95}, "loss": {"kl": {"monitor": True}}},
        "whole_distribution",
        "0.95 1",
        "1",
        ["sampling.top_p", "loss.kl.monitor"],
    ),
    (
        {
            "sampling": {"top_p": 0.5},
            "max_lag": 1,
            "placement": {"colocated": False},
            "loss": {"kl": {"monitor": True}},
        },
        "whole_distribution",
        "0.5 1 1",
        "1 0",
        ["sampling.top_p", "max_lag", "loss.kl.monitor"],
    ),
    (
        {"loss": {"type": "no_baseline"}, "replay": {"capacity": 8}},
        "on_policy_loss",
        "1 0 1 1 1 0 8",
        "1 1 0 0",
        ["loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity"],
    ),
    (
        {"sampling": {"top_p": 0.5}, "replay": {"capacity": 8}},
        "whole_distribution",
        "0.5 1 8",
        "1 0",
        ["sampling.top_p", "replay.capacity"],
    ),
    (
        {"sampling": {"top_p": 0.5}, "loss": {"importance": {"mode": "tis"}}},
        "whole_distribution",
        "0.5 1",
        "1",
        ["sampling.top_p", "loss.importance.mode"],
    ),
    (
        {"evaluation": {"prompts": 257}},
        "enough_validation_prompts",
        "257 256",
        "256 257",
        ["evaluation.prompts", "task.validation_prompts"],
    ),
    (
        {"task": {"type": "arithmetic"}, "model": {"preset": "maths"}, "evaluation": {"prompts": 257}},
        "enough_validation_prompts",
        "257 256",
        "256 257",
        ["evaluation.prompts", "task.validation_prompts"],
    ),
    (
        {"task": {"type": "arithmetic"}, "model": {"preset": "tiny"}},
        "warm_start_suits_the_task",
        "",
        "",
        ["model.preset", "task.type"],
    ),
    ({"model": {"preset": "maths"}}, "warm_start_suits_the_task", "", "", ["model.preset", "task.type"]),
    (
        {"loss": {"kl": {"reference": "reclone"}}},
        "reclone_interval",
        "",
        "10",
        ["loss.kl.reference", "loss.kl.reclone_every"],
    ),
    (
        {"loss": {"kl": {"reclone_every": 5}}},
        "reclone_interval",
        "5",
        "",
        ["loss.kl.reference", "loss.kl.reclone_every"],
    ),
    ({"loss": {"constant": 16}}, "constant_is_used", "16", "", ["loss.constant", "loss.aggregation"]),
    (
        {"task": {"type": "keywords", "chat_template": True}},
        "chat_template_of_a_folder",
        "",
        "",
        ["task.chat_template", "model.type"],
    ),
    (
        {"task": {"type": "jsonl", "train": "t", "reward": "a:b", "system_prompt": "Be brief."}},
        "chat_template_of_a_folder",
        "",
        "",
        ["task.system_prompt", "task.chat_template"],
    ),
    (
        {"task": {"type": "jsonl", "train": "t", "reward": "a:b", "chat_template_kwargs": {"enable_thinking": False}}},
        "chat_template_of_a_folder",
        "",
        "",
        ["task.chat_template_kwargs", "task.chat_template"],
    ),
    (
        {
            "task": {"type": "keywords", "chat_template": True, "chat_template_kwargs": {"tokenize": False}},
            "model": {"type": "folder", "path": "m"},
        },
        "chat_template_of_a_folder",
        "",
        "",
        ["task.chat_template_kwargs"],
    ),
    (
        {"task": {"type": "maths", "train": "t", "prompt": "r1_zer0"}, "model": {"preset": "maths"}},
        "own_prompt_names_its_reward",
        "1 0",
        "r1_zero 1",
        ["task.prompt", "task.reward"],
    ),
    ({"task": {"type": "jsonl", "train": "t", "reward": []}}, "rewards_have_names", "", "", ["task.reward"]),
    (
        {"task": {"type": "jsonl", "train": "t", "reward": ["a:score", {"function": "b:score", "weight": 2}]}},
        "rewards_have_names",
        "2",
        "name",
        ["task.reward"],
    ),
    (
        {"task": {"type": "jsonl", "train": "t", "reward": [{"function": "a:b", "name": "format"}]}},
        "rewards_have_names",
        "",
        "name",
        ["task.reward"],
    ),
    (
        {"loss": {"kl": {"reference": "polyak"}}},
        "polyak_weight",
        "",
        "0.1",
        ["loss.kl.reference", "loss.kl.alpha"],
    ),
    (
        {"loss": {"kl": {"reference": "reclone", "reclone_every": 5, "alpha": 0.25}}},
        "polyak_weight",
        "0.25",
        "",
        ["loss.kl.alpha", "loss.kl.reference"],
    ),
    (
        {"loss": {"kl": {"reference": "polyak", "alpha": 0.5, "reclone_every": 5}}},
        "reclone_interval",
        "5",
        "",
        ["loss.kl.reference", "loss.kl.reclone_every"],
    ),
    (
        {"steps": 30, "optimizer": {"warmup_steps": 4, "warmup_ratio": 0.1}},
        "warmup_is_given_once",
        "4 0.1 4 30",
        "",
        ["optimizer.warmup_steps", "optimizer.warmup_ratio"],
    ),
    (
        {"optimizer": {"min_learning_rate_ratio": 0.1}},
        "minimum_is_reached",
        "0.1 0",
        "",
        ["optimizer.min_learning_rate_ratio", "optimizer.schedule"],
    ),
]


@pytest.mark.parametrize(("settings", "rule", "said", "advised", "keys"), CASES, ids=[case[1] for case in CASES])
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(settings, rule, said, advised, keys, message_is):
    (problem,) = broken(**settings)
    what, _, named = problem.what.partition(" [rule: ")
    assert (named, facts(what), facts(problem.fix)) == (f"{rule}]", said, advised)
    assert sorted(".".join(map(str, path)) for path in problem.paths) == sorted(keys)
    message_is(f"{problem.what}\n{problem.fix}")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"group_size": 2},
        {"group_size": 64},
        {"group_size": 1, "loss": {"type": "no_baseline"}},
        {"minibatches_per_epoch": 8},
        {"gradient_accumulation_steps": 64},
        {"epochs_per_batch": 8, "loss": {"type": "grpo_clip"}},
        {"epochs_per_batch": 8, "loss": {"type": "no_baseline"}, "allow_uncorrected": True},
        {"max_lag": 2, "placement": {"colocated": False}},
        {"sampling": {"min_tokens": 32}},
        {"sampling": {"pinned_lengths": [1, 31]}},
        {"sampling": {"pinned_lengths": [32, 32]}},
        {"sampling": {"top_p": 0.5}},
        {
            "sampling": {"top_p": 1.0},
            "max_lag": 2,
            "placement": {"colocated": False},
            "loss": {"kl": {"monitor": True}},
        },
        {"evaluation": {"prompts": 300}, "task": {"type": "jsonl", "train": "t", "reward": "a:b"}},
        {"evaluation": {"prompts": 4}},
        {"loss": {"kl": {"reference": "reclone", "reclone_every": 5}}},
        {"loss": {"kl": {"reference": "polyak", "alpha": 0.5}}},
        {"optimizer": {"schedule": "linear", "min_learning_rate_ratio": 0.1, "warmup_ratio": 0.1}},
        {"optimizer": {"warmup_steps": 1000}},
        {"loss": {"constant": 16, "aggregation": "constant"}},
        {"task": {"type": "arithmetic"}, "model": {"preset": "maths"}},
        {"task": {"type": "arithmetic"}, "model": {"preset": "tiny", "warm_start": False}},
        {"task": {"type": "maths", "train": "t"}, "model": {"preset": "maths"}},
        {
            "task": {"type": "maths", "train": "t", "prompt": "own.txt", "reward": "r1_zero", "chat_template": True},
            "model": {"type": "folder", "path": "m"},
        },
        {"task": {"type": "jsonl", "train": "t", "reward": ["a:b", {"function": "c:b", "name": "d"}]}},
        {"task": {"type": "jsonl", "train": "t", "reward": "a:b"}, "model": {"preset": "maths"}},
        {"engine": VLLM_OF_2, "placement": {"device": "cpu"}},
        {"engine": VLLM_OF_2, "transport": {"type": "nixl"}},
        {"engine": VLLM_OF_2, "placement": TWO_GPUS, "transport": {"type": "nixl"}},
    ],
)
def test_what_lies_just_inside_a_rule_is_accepted(settings):
    assert broken(**settings) == []


def test_several_broken_rules_are_all_reported():
    names = [
        problem.what.rsplit("[rule: ")[1] for problem in broken(group_size=5, max_lag=1, sampling={"min_tokens": 99})
    ]
    assert names == ["whole_groups]", "colocated_parts_take_turns]", "token_bounds]"]


def test_a_lagging_uncorrected_loss_is_refused():
    problems = broken(loss={"type": "reinforce_with_baseline"}, max_lag=1, placement={"colocated": False})
    assert "reinforce_with_baseline is for on-policy data only" in problems[0].what
    assert "max_lag 1" in problems[0].what


def test_loading_names_where_each_number_was_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text("steps: 1\ngroup_size: 6\n")
    with pytest.raises(UserError) as caught:
        load_scenario("s.yaml", ["rollout_batch_size=32"])
    assert "group_size 6 does not divide rollout_batch_size 32 (remainder 2)" in caught.value.what
    assert caught.value.where == "group_size: s.yaml, line 2; rollout_batch_size: --set rollout_batch_size=32"


def test_a_huge_batch_is_refused_quickly():
    assert "(remainder 1)" in broken(rollout_batch_size=10**9 - 9, group_size=10)[0].what


def test_a_scenario_made_in_python_is_held_to_the_rules():
    with pytest.raises(UserError, match="whole_groups"):
        expand(Scenario(group_size=6))


def test_a_missing_gpu_is_told_with_the_way_out():
    error = no_gpu_error()
    assert "`placement.device` is cuda" in error.what
    assert "set placement.device to cpu, or to auto" in error.fix


def test_derived_values_follow_from_the_settings():
    scenario = Scenario.model_validate(
        {
            "rollout_batch_size": 48,
            "group_size": 4,
            "minibatches_per_epoch": 3,
            "epochs_per_batch": 2,
            "gradient_accumulation_steps": 2,
            "steps": 25,
            "evaluation": {"every": 10, "prompts": 100},
        }
    )
    assert scenario.prompts_per_batch == 12  # 48 / 4
    assert scenario.train_batch_size == 16  # 48 / 3
    assert scenario.microbatch_size == 8  # 16 / 2
    assert scenario.optimizer_steps_per_batch == 6  # 2 * 3
    assert scenario.num_optimizer_steps == 150  # 25 * 6
    assert scenario.on_policy is False
    assert scenario.loss_constant == 32  # sampling.max_tokens
    assert scenario.num_evaluations == 4  # before, after 10, after 20, after 25
    assert scenario.num_rollouts == 25 * 48 + 4 * 100


@pytest.mark.parametrize(
    ("steps", "optimizer", "expected"),
    [
        (100, {}, 0),
        (100, {"warmup_steps": 30}, 30),
        (100, {"warmup_ratio": 0.07}, 7),  # 0.07 * 100 is 7.000000000000001 in floats
        (30, {"warmup_ratio": 0.05}, 2),  # 1.5, rounded up as transformers does
        (1, {"warmup_ratio": 0.05}, 1),
    ],
)
def test_a_warm_up_is_counted_in_optimizer_steps(steps, optimizer, expected):
    scenario = Scenario.model_validate({"steps": steps, "optimizer": optimizer})
    assert scenario.warmup_optimizer_steps == expected


def test_a_ratio_is_of_all_passes_and_minibatches():
    settings = {"steps": 10, "epochs_per_batch": 2, "minibatches_per_epoch": 4, "optimizer": {"warmup_ratio": 0.1}}
    assert Scenario.model_validate(settings).warmup_optimizer_steps == 8  # 0.1 * 10 * 2 * 4


def test_the_last_validation_is_not_counted_twice():
    assert Scenario.model_validate({"steps": 20, "evaluation": {"every": 10}}).num_evaluations == 3  # 0, 10, 20


def test_sampling_settings_become_the_engines_parameters():
    scenario = Scenario.model_validate({"sampling": {"top_p": 0.5, "stop": ["a"], "max_tokens": 7}})
    params = scenario.sampling.to_params()
    assert (params.temperature, params.top_p, params.min_tokens, params.max_tokens, params.stop) == (
        1.0,
        0.5,
        1,
        7,
        ("a",),
    )
