"""Rules over several settings: each names itself, the numbers, the places and the fix; and what lies just inside."""

import pytest

from harness.core.errors import UserError
from harness.scenario import Scenario, broken_rules, expand, load_scenario, no_gpu_error


def broken(**settings):
    return broken_rules(Scenario.model_validate(settings))


TRUNCATED = (
    "the engine samples from the truncated distribution, the Learner's log-probs are of the whole one, so ratios and "
    "KL would be wrong"
)
CASES = [
    (
        {"group_size": 6},
        "group_size 6 does not divide rollout_batch_size 64 (remainder 4) [rule: whole_groups]",
        "set group_size to 1, 2, 4 or 8, or make rollout_batch_size 60 or 66",
        ["group_size", "rollout_batch_size"],
    ),
    (
        {"rollout_batch_size": 4},
        "group_size 8 does not divide rollout_batch_size 4 (remainder 4) [rule: whole_groups]",
        "set group_size to 1, 2 or 4, or make rollout_batch_size 8",
        ["group_size", "rollout_batch_size"],
    ),
    (
        {"minibatches_per_epoch": 3},
        "minibatches_per_epoch 3 does not divide rollout_batch_size 64 (remainder 1) [rule: whole_minibatches]",
        "set minibatches_per_epoch to 1, 2, 4 or 8, or make rollout_batch_size 63 or 66",
        ["minibatches_per_epoch", "rollout_batch_size"],
    ),
    (
        # 64 rollouts / 2 minibatches = 32 in a train batch; 32 = 2 * 12 + 8
        {"minibatches_per_epoch": 2, "gradient_accumulation_steps": 12},
        "gradient_accumulation_steps 12 does not divide train batch 32 (remainder 8) [rule: whole_microbatches]",
        "set gradient_accumulation_steps to 2, 4, 8 or 16, or make train batch 24 or 36",
        ["gradient_accumulation_steps", "rollout_batch_size"],
    ),
    (
        # 64 / 16 = 4 rollouts in a train batch
        {"minibatches_per_epoch": 16},
        "the train batch has 4 rollouts (rollout_batch_size 64 / minibatches_per_epoch 16), must be at least "
        "group_size 8 [rule: train_batch_holds_a_group]",
        "set minibatches_per_epoch to at most 8",
        ["minibatches_per_epoch", "group_size", "rollout_batch_size"],
    ),
    (
        {"group_size": 1},
        "group_size is 1, must be at least 2 with loss.type grpo_clip [rule: groups_compare]",
        "set group_size to 8, or loss.type to no_baseline",
        ["group_size", "loss.type"],
    ),
    (
        # 2 passes x 4 minibatches = 8 optimizer steps
        {"loss": {"type": "no_baseline"}, "epochs_per_batch": 2, "minibatches_per_epoch": 4},
        "loss.type no_baseline is for on-policy data only (1 optimizer step a batch, max_lag 0, no replay), got 8 "
        "optimizer steps a batch (epochs_per_batch 2 x minibatches_per_epoch 4), max_lag 0 and replay.capacity 0 "
        "[rule: on_policy_loss]",
        "set loss.type to grpo_clip, or these four to 1, 1, 0 and 0; allow_uncorrected: true runs it all the same",
        ["loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity"],
    ),
    (
        {"max_lag": 2},
        "max_lag is 2, must be 0 with placement.colocated true [rule: colocated_parts_take_turns]",
        "set max_lag to 0, or placement.colocated to false",
        ["max_lag", "placement.colocated"],
    ),
    (
        {"sampling": {"min_tokens": 33}},
        "sampling.min_tokens is 33, must be at most sampling.max_tokens 32 [rule: token_bounds]",
        "set sampling.min_tokens to at most 32, or sampling.max_tokens to at least 33",
        ["sampling.min_tokens", "sampling.max_tokens"],
    ),
    (
        {"sampling": {"top_p": 0.9}, "max_lag": 2, "placement": {"colocated": False}},
        f"sampling.top_p is 0.9, must be 1 with max_lag 2: {TRUNCATED} [rule: whole_distribution]",
        "set sampling.top_p to 1, or max_lag to 0",
        ["sampling.top_p", "max_lag"],
    ),
    (
        {"sampling": {"top_p": 0.95}, "loss": {"kl": {"monitor": True}}},
        f"sampling.top_p is 0.95, must be 1 with loss.kl.monitor true: {TRUNCATED} [rule: whole_distribution]",
        "set sampling.top_p to 1, or loss.kl.monitor to false",
        ["sampling.top_p", "loss.kl.monitor"],
    ),
    (
        {
            "sampling": {"top_p": 0.5},
            "max_lag": 1,
            "placement": {"colocated": False},
            "loss": {"kl": {"monitor": True}},
        },
        f"sampling.top_p is 0.5, must be 1 with max_lag 1 and loss.kl.monitor true: {TRUNCATED} "
        "[rule: whole_distribution]",
        "set sampling.top_p to 1, or max_lag to 0 and loss.kl.monitor to false",
        ["sampling.top_p", "max_lag", "loss.kl.monitor"],
    ),
    (
        {"loss": {"type": "no_baseline"}, "replay": {"capacity": 8}},
        "loss.type no_baseline is for on-policy data only (1 optimizer step a batch, max_lag 0, no replay), got 1 "
        "optimizer steps a batch (epochs_per_batch 1 x minibatches_per_epoch 1), max_lag 0 and replay.capacity 8 "
        "[rule: on_policy_loss]",
        "set loss.type to grpo_clip, or these four to 1, 1, 0 and 0; allow_uncorrected: true runs it all the same",
        ["loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity"],
    ),
    (
        {"sampling": {"top_p": 0.5}, "replay": {"capacity": 8}},
        f"sampling.top_p is 0.5, must be 1 with replay.capacity 8: {TRUNCATED} [rule: whole_distribution]",
        "set sampling.top_p to 1, or replay.capacity to 0",
        ["sampling.top_p", "replay.capacity"],
    ),
    (
        {"sampling": {"top_p": 0.5}, "loss": {"importance": {"mode": "tis"}}},
        f"sampling.top_p is 0.5, must be 1 with loss.importance.mode tis: {TRUNCATED} [rule: whole_distribution]",
        "set sampling.top_p to 1, or loss.importance.mode to off",
        ["sampling.top_p", "loss.importance.mode"],
    ),
    (
        {"evaluation": {"prompts": 257}},
        "evaluation.prompts is 257, must be at most task.validation_prompts 256 [rule: enough_validation_prompts]",
        "set evaluation.prompts to at most 256, or task.validation_prompts to at least 257",
        ["evaluation.prompts", "task.validation_prompts"],
    ),
    (
        {"task": {"type": "arithmetic"}, "model": {"preset": "maths"}, "evaluation": {"prompts": 257}},
        "evaluation.prompts is 257, must be at most task.validation_prompts 256 [rule: enough_validation_prompts]",
        "set evaluation.prompts to at most 256, or task.validation_prompts to at least 257",
        ["evaluation.prompts", "task.validation_prompts"],
    ),
    (
        {"task": {"type": "arithmetic"}, "model": {"preset": "tiny"}},
        "the warm start of model.preset tiny teaches to use given words, and task.type is arithmetic "
        "[rule: warm_start_suits_the_task]",
        "set model.preset to maths, or model.warm_start to false",
        ["model.preset", "task.type"],
    ),
    (
        {"model": {"preset": "maths"}},
        "the warm start of model.preset maths teaches arithmetic, and task.type is keywords "
        "[rule: warm_start_suits_the_task]",
        "set model.preset to small, or model.warm_start to false",
        ["model.preset", "task.type"],
    ),
    (
        {"evaluation": {"prompts": 3}},
        "evaluation.examples is 4, must be at most evaluation.prompts 3 [rule: examples_are_evaluated]",
        "set evaluation.examples to at most 3",
        ["evaluation.examples", "evaluation.prompts"],
    ),
    (
        {"loss": {"kl": {"reference": "reclone"}}},
        "loss.kl.reference is reclone, and loss.kl.reclone_every is null [rule: reclone_interval]",
        "set loss.kl.reclone_every to 10",
        ["loss.kl.reference", "loss.kl.reclone_every"],
    ),
    (
        {"loss": {"kl": {"reclone_every": 5}}},
        "loss.kl.reclone_every is 5, must be null with loss.kl.reference frozen [rule: reclone_interval]",
        "set loss.kl.reference to reclone, or leave loss.kl.reclone_every out",
        ["loss.kl.reference", "loss.kl.reclone_every"],
    ),
    (
        {"loss": {"constant": 16}},
        "loss.constant is 16, must be null with loss.aggregation sequence_mean [rule: constant_is_used]",
        "set loss.aggregation to constant, or leave loss.constant out",
        ["loss.constant", "loss.aggregation"],
    ),
]


@pytest.mark.parametrize(("settings", "what", "fix", "keys"), CASES)
def test_a_broken_rule_says_its_name_numbers_fix_and_keys(settings, what, fix, keys):
    problems = broken(**settings)
    assert [problem.what for problem in problems] == [what]
    assert problems[0].fix == fix
    assert [".".join(map(str, path)) for path in problems[0].paths] == keys


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
        {"loss": {"constant": 16, "aggregation": "constant"}},
        {"task": {"type": "arithmetic"}, "model": {"preset": "maths"}},
        {"task": {"type": "arithmetic"}, "model": {"preset": "tiny", "warm_start": False}},
        {"task": {"type": "maths", "train": "t"}, "model": {"preset": "maths"}},
        {"task": {"type": "jsonl", "train": "t", "reward": "a:b"}, "model": {"preset": "maths"}},
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
    assert "(remainder 1)" in broken(rollout_batch_size=10**15 + 1, group_size=10)[0].what


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
    assert scenario.on_policy is False
    assert scenario.loss_constant == 32  # sampling.max_tokens
    assert scenario.num_evaluations == 4  # before, after 10, after 20, after 25
    assert scenario.num_rollouts == 25 * 48 + 4 * 100


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
