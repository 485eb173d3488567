"""Rules of the loss and its deltas, and what stands for what where nothing is named."""

import pytest

from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.settings.loss import AdvantageSettings

SORTING = {"task": {"type": "sorting"}, "model": {"type": "sorting"}}


def broken(**settings):
    return broken_rules(Scenario.model_validate(settings))


def with_delta(loss_type, delta, **advantage):
    return {"loss": {"type": loss_type}, "advantage": {"delta": delta, **advantage}}


@pytest.mark.parametrize(
    ("settings", "what", "fix", "keys"),
    [
        (
            with_delta("no_baseline", "max_rewards"),
            "advantage.delta is max_rewards, must be rewards with loss.type no_baseline [rule: delta_fits_the_loss]",
            "set loss.type to naive, which is the same loss for any delta, or leave advantage.delta out",
            ["advantage.delta", "loss.type"],
        ),
        (
            with_delta("reinforce_with_baseline", "rewards"),
            "advantage.delta is rewards, must be one of centered_rewards, normalized_rewards, leave_one_out_rewards, "
            "batch_normalized_rewards, batch_whitened_rewards with loss.type reinforce_with_baseline [rule: "
            "delta_fits_the_loss]",
            "set loss.type to naive, which is the same loss for any delta, or leave advantage.delta out",
            ["advantage.delta", "loss.type"],
        ),
        (
            with_delta("grpo_clip", "normalized_rewards", normalize_by_std=False),
            "advantage.normalize_by_std is false, must be true with advantage.delta normalized_rewards, "
            "which says by itself what is divided [rule: delta_fits_the_normalization]",
            "set advantage.delta to centered_rewards, or leave advantage.normalize_by_std out",
            ["advantage.normalize_by_std", "advantage.delta"],
        ),
        (
            with_delta("naive", "max_centered_rewards") | {"group_size": 1},
            "group_size is 1, must be at least 2 with advantage.delta max_centered_rewards [rule: groups_compare]",
            "set group_size to 8, or advantage.delta to rewards",
            ["group_size", "advantage.delta"],
        ),
        (
            {"loss": {"type": "naive"}, "epochs_per_batch": 10},
            "loss.type naive is for on-policy data only (1 optimizer step a batch, max_lag 0, no replay), got 10 "
            "optimizer steps a batch (epochs_per_batch 10 x minibatches_per_epoch 1), max_lag 0 and replay.capacity 0 "
            "[rule: on_policy_loss]",
            "set loss.type to grpo_clip, or these four to 1, 1, 0 and 0; allow_uncorrected: true runs it all the same",
            ["loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity"],
        ),
        (
            {"task": {"type": "sorting"}},
            "task.type is sorting and model.type is preset: the sorting task and its model go together [rule: "
            "sorting_goes_together]",
            "set both to sorting, or neither",
            ["task.type", "model.type"],
        ),
        (
            {"model": {"type": "sorting"}},
            "task.type is keywords and model.type is sorting: the sorting task and its model go together [rule: "
            "sorting_goes_together]",
            "set both to sorting, or neither",
            ["task.type", "model.type"],
        ),
        (
            {**SORTING, "engine": {"type": "vllm"}},
            "engine.type is vllm, must be native with model.type sorting, which is no language model [rule: "
            "sorting_engine]",
            "set engine.type to native",
            ["engine.type", "model.type"],
        ),
    ],
)
def test_a_broken_rule_says_its_name_values_fix_and_keys(settings, what, fix, keys):
    (problem,) = [problem for problem in broken(**settings) if problem.what == what] or broken(**settings)[:1]
    assert problem.what == what
    assert problem.fix == fix
    assert sorted(".".join(map(str, path)) for path in problem.paths) == sorted(keys)


def own(path="losses:mine", **loss):
    return {"loss": {"type": "own", "function": path, **loss}}


@pytest.mark.parametrize(
    ("settings", "rule", "keys"),
    [
        (
            {"loss": {"kl": {"estimator": "k1", "coefficient": 0.1}}},
            "k1_has_no_gradient",
            "loss.kl.estimator loss.kl.coefficient loss.kl.weighted_by_ratio",
        ),
        (
            {"loss": {"kl": {"weighted_by_ratio": True}}},
            "kl_weight_is_used",
            "loss.kl.weighted_by_ratio loss.kl.coefficient",
        ),
        (
            {"loss": {"type": "naive", "ratio_level": "sequence"}},
            "ratio_level_is_used",
            "loss.ratio_level loss.type",
        ),
        (own(ratio_level="sequence"), "ratio_level_is_used", "loss.ratio_level loss.type"),
        ({"loss": {"type": "cispo", "dual_clip": 3.0}}, "dual_clip_is_used", "loss.dual_clip loss.type"),
        (
            {"loss": {"dual_clip": 3.0}, "advantage": {"delta": "max_rewards"}},
            "dual_clip_is_used",
            "loss.dual_clip advantage.delta",
        ),
        (
            {"loss": {"type": "unclipped", "cliprange": 0.2, "cliprange_high": 0.3}},
            "clip_range_is_used",
            "loss.cliprange loss.cliprange_high loss.type",
        ),
        ({"loss": {"type": "naive", "cliprange_high": 0.3}}, "clip_range_is_used", "loss.cliprange_high loss.type"),
        (
            {"loss": {"ratio_level": "sequence", "cliprange": 0.1}},
            "clip_range_is_of_the_ratio",
            "loss.cliprange loss.ratio_level",
        ),
        (
            {"loss": {"ratio_level": "sequence", "cliprange": 0.01, "cliprange_high": 0.28}},
            "clip_range_is_of_the_ratio",
            "loss.cliprange_high loss.ratio_level",
        ),
        (
            {"loss": {"importance": {"level": "sequence", "cap": 3.0}}},
            "importance_bounds_are_used",
            "loss.importance.level loss.importance.cap loss.importance.mode",
        ),
        (
            {"loss": {"importance": {"mode": "tis", "floor": 0.5}}},
            "importance_bounds_are_used",
            "loss.importance.floor loss.importance.mode",
        ),
        (
            {"loss": {"proximal": "recompute"}},
            "proximal_is_another_policy",
            "loss.proximal max_lag replay.capacity",
        ),
        (
            {"optimizer": {"schedule": "cosine", "warmup_steps": 60}},
            "rate_is_reached",
            "optimizer.schedule optimizer.warmup_steps steps",
        ),
        (
            {"sampling": {"pinned_lengths": [4, 8], "stop": ["."]}},
            "pinned_lengths_end_responses",
            "sampling.stop sampling.pinned_lengths",
        ),
        (
            {"sampling": {"pinned_lengths": [4, 8], "min_tokens": 8}},
            "pinned_lengths_end_responses",
            "sampling.min_tokens sampling.pinned_lengths",
        ),
        (
            {"checkpoint": {"asynchronous": True, "keep": 3}},
            "checkpoints_are_made",
            "checkpoint.keep checkpoint.asynchronous checkpoint.every",
        ),
        (
            {
                "task": {
                    "type": "jsonl",
                    "train": "a.jsonl",
                    "validation": "b.jsonl",
                    "validation_fraction": 0.2,
                    "reward": "rewards:length",
                }
            },
            "held_out_once",
            "task.validation_fraction task.validation",
        ),
        ({"loss": {"type": "own"}}, "own_loss_is_named", "loss.type loss.function"),
        ({"loss": {"function": "losses:mine"}}, "own_loss_is_named", "loss.function loss.type"),
        ({"advantage": {"delta": "own"}}, "own_advantage_is_named", "advantage.delta advantage.function"),
        ({"advantage": {"function": "losses:mine"}}, "own_advantage_is_named", "advantage.function advantage.delta"),
        (
            {"loss": {"mask_truncated": True}, "sampling": {"pinned_lengths": [4, 8]}},
            "truncation_says_something",
            "loss.mask_truncated sampling.pinned_lengths",
        ),
        (
            {"loss": {"ban_eos": True}, "sampling": {"min_tokens": 0}},
            "ban_has_an_engine",
            "loss.ban_eos sampling.min_tokens",
        ),
        (
            with_delta("naive", "leave_one_out_rewards") | {"group_size": 1},
            "groups_compare",
            "group_size advantage.delta",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(settings, rule, keys, message_is):
    (problem,) = broken(**settings)
    assert problem.what.endswith(f"[rule: {rule}]")
    assert " ".join(".".join(map(str, path)) for path in problem.paths) == keys
    message_is(f"{problem.what}\n{problem.fix}")


@pytest.mark.parametrize(
    "settings",
    [
        own(),
        own() | {"epochs_per_batch": 4, "group_size": 1, "advantage": {"delta": "own", "function": "losses:mine"}},
        {"loss": {"type": "cispo", "ratio_level": "sequence"}, "max_lag": 1, "placement": {"colocated": False}},
        {"loss": {"kl": {"estimator": "k1", "coefficient": 0.1, "weighted_by_ratio": True}}},
        {"loss": {"kl": {"estimator": "k1", "monitor": True}}},
        {"loss": {"ban_eos": True}, "sampling": {"min_tokens": 0, "pinned_lengths": [4, 8]}},
        {"loss": {"mask_truncated": True, "entropy_coefficient": 0.1}},
        with_delta("reinforce_with_baseline", "leave_one_out_rewards"),
        with_delta("reinforce_with_baseline", "batch_normalized_rewards"),
        with_delta("no_baseline", "rewards"),
        with_delta("reinforce_with_baseline", "centered_rewards"),
        with_delta("reinforce_with_baseline", "centered_rewards", normalize_by_std=False),
        with_delta("naive", "max_rewards"),
        with_delta("grpo_clip", "rewards") | {"group_size": 1},
        {"loss": {"type": "unclipped"}, "epochs_per_batch": 10},
        {"loss": {"type": "unclipped"}, "max_lag": 1, "placement": {"colocated": False}},
        {"loss": {"type": "naive"}, "epochs_per_batch": 10, "allow_uncorrected": True},
        {"optimizer": {"max_grad_norm": None}},
        {"replay": {"capacity": 16, "max_age": 1}},
        {"checkpoint": {"asynchronous": True, "keep": 3, "every": 5}},
        {"optimizer": {"schedule": "cosine", "warmup_steps": 59}},
        {"loss": {"ratio_level": "sequence", "cliprange": 0.09}},
        {"loss": {"ratio_level": "sequence", "type": "cispo", "cliprange": 0.5}},
        own(cliprange=0.3),
        {"loss": {"importance": {"mode": "seq-mask-tis", "floor": 0.8, "cap": 1.2}}},
        SORTING,
        {"task": {"type": "sorting"}, "model": {"type": "paced"}, "engine": {"type": "paced"}},
    ],
)
def test_what_lies_just_inside_a_rule_is_accepted(settings):
    assert broken(**settings) == []


@pytest.mark.parametrize(
    ("advantage", "loss_type", "delta"),
    [
        ({}, "grpo_clip", "normalized_rewards"),
        ({}, "naive", "normalized_rewards"),
        ({}, "no_baseline", "rewards"),
        ({"normalize_by_std": False}, "unclipped", "centered_rewards"),
        ({"normalize_by_std": False}, "no_baseline", "rewards"),
        ({"delta": "max_rewards"}, "grpo_clip", "max_rewards"),
        ({"delta": "centered_rewards"}, "grpo_clip", "centered_rewards"),
    ],
)
def test_the_delta_that_is_not_named_follows(advantage, loss_type, delta):
    assert AdvantageSettings(**advantage).delta_for(loss_type) == delta


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [({}, 1), ({"min_tokens": 4}, 4), ({"pinned_lengths": [2, 8], "max_tokens": 20}, 20)],
)
def test_the_end_is_banned_where_the_engine_bans_it(sampling, tokens):
    assert Scenario.model_validate({"sampling": sampling}).banned_eos_tokens == 0
    assert Scenario.model_validate({"sampling": sampling, "loss": {"ban_eos": True}}).banned_eos_tokens == tokens


def test_the_sorting_grid_is_every_combination_ten_times():
    scenarios = [variant.scenario for variant in expand(load_scenario("sorting_grid"))]
    combinations = {(s.task.reward, s.advantage.delta, s.loss.type) for s in scenarios}
    assert (len(scenarios), len(combinations)) == (300, 5 * 3 * 2)
    assert {s.seed for s in scenarios} == set(range(10))
    # the source's 100 epochs of 10 inner steps on 3 prompts with 10 responses each, Adam without clipping
    assert {(s.steps, s.epochs_per_batch, s.prompts_per_batch, s.group_size) for s in scenarios} == {(100, 10, 3, 10)}
    assert {(s.optimizer.learning_rate, s.optimizer.betas, s.optimizer.max_grad_norm) for s in scenarios} == {
        (1e-3, (0.9, 0.999), None)
    }
