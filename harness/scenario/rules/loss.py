"""Rules of the batch, the loss, the advantages and the optimizer."""

from __future__ import annotations

from harness.core.rewards import SIGNAL_WITHOUT_SPREAD
from harness.scenario.rules.rule import Rule, any_of, given, must, only_with, together, value_of, written
from harness.scenario.schema import Scenario
from harness.settings.loss import CLIP_RANGE, CLIPPED, LEAST_FOR_TOKENS, WITH_RATIO

_DELTAS_OF = {
    "no_baseline": "rewards",
    "reinforce_with_baseline": (
        "one of centered_rewards, normalized_rewards, leave_one_out_rewards, batch_normalized_rewards, "
        "batch_whitened_rewards"
    ),
}
_OF_WHOLE_DISTRIBUTION = {
    "max_lag": 0,
    "replay.capacity": 0,
    "loss.importance.mode": "off",
    "loss.kl.monitor": False,
}
"""What compares the engine's log-probs with the Learner's, or the Learner's with each other, and how it is left out."""


def _whole(name: str, part: str, whole: str, total_of: str) -> Rule:
    """Return the rule that a total is a multiple of a setting."""

    def breaks(scenario: Scenario) -> dict[str, object] | None:
        size, total = getattr(scenario, part), getattr(scenario, total_of)
        remainder = total % size
        if remainder == 0:
            return None
        divisors = [number for number in range(1, min(total, 4096) + 1) if total % number == 0]
        near = sorted(sorted(divisors, key=lambda number: abs(number - size))[:4])
        wholes = [number for number in (total - remainder, total - remainder + size) if number > 0]
        return {"remainder": remainder, "near": any_of(near), "wholes": any_of(wholes)}

    what = f"{part} {{{part}}} does not divide {whole} {{{total_of}}} (remainder {{remainder}})"
    return Rule(name, breaks, what, f"set {part} to {{near}}, or make {whole} {{wholes}}", ("rollout_batch_size",))


def _delta(scenario: Scenario) -> dict[str, object]:
    """Return the setting that says what weighs a response's loss."""
    if scenario.advantage.delta is None:
        return {"cause": f"loss.type {scenario.loss.type}", "without": "loss.type to no_baseline"}
    return {"cause": f"advantage.delta {scenario.advantage.delta}", "without": "advantage.delta to rewards"}


def _delta_name(scenario: Scenario) -> str:
    return scenario.advantage.delta_for(scenario.loss.type)


def _truncated_and_compared(scenario: Scenario) -> object:
    compared = {key: off for key, off in _OF_WHOLE_DISTRIBUTION.items() if value_of(scenario, key) != off}
    return (
        scenario.sampling.top_p != 1
        and compared
        and {
            "compared": " and ".join(f"{key} {written(value_of(scenario, key))}" for key in compared),
            "ways_out": " and ".join(f"{key} to {written(off)}" for key, off in compared.items()),
        }
    )


def _range_of_tokens(scenario: Scenario) -> object:
    loss = scenario.loss
    wide = [name for name in CLIP_RANGE if (getattr(loss, name) or 0) >= LEAST_FOR_TOKENS]
    if loss.type != "grpo_clip" or loss.ratio_level == "token" or not wide:
        return None
    return {"name": wide[0], "value": getattr(loss, wide[0]), "least": LEAST_FOR_TOKENS}


RULES = (
    _whole("whole_groups", "group_size", "rollout_batch_size", "rollout_batch_size"),
    _whole("whole_minibatches", "minibatches_per_epoch", "rollout_batch_size", "rollout_batch_size"),
    _whole("whole_microbatches", "gradient_accumulation_steps", "train batch", "train_batch_size"),
    Rule(
        "train_batch_holds_a_group",
        lambda s: (
            s.train_batch_size < s.group_size <= s.rollout_batch_size and {"most": s.rollout_batch_size // s.group_size}
        ),
        "the train batch has {train_batch_size} rollouts (rollout_batch_size {rollout_batch_size} / "
        "minibatches_per_epoch {minibatches_per_epoch}), must be at least group_size {group_size}",
        "set minibatches_per_epoch to at most {most}",
    ),
    must(
        "endpoint_is_measured",
        "endpoint",
        None,
        "transport_sweep set",
        why=", which neither trains nor has arms to decide between",
    ),
    must(
        "endpoint_is_measured",
        "endpoint",
        "seconds_per_step or reward_at_rollouts",
        "transport.type in_process",
        "transport.type to another one, such as shared_memory",
        ", which moves no weights",
    ),
    must(
        "endpoint_is_measured",
        "endpoint",
        "seconds_per_step or weight_sync_seconds",
        "lag_control drop",
        "lag_control to wait",
        ", which generates rollouts that are never used",
    ),
    Rule(
        "groups_compare",
        lambda s: s.group_size < 2 and _delta_name(s) not in ("rewards", "own") and _delta(s),
        "group_size is {group_size}, must be at least 2 with {cause}",
        "set group_size to 8, or {without}",
    ),
    Rule(
        "on_policy_loss",
        lambda s: s.loss.type not in (*WITH_RATIO, "own") and not (s.on_policy or s.allow_uncorrected),
        "loss.type {loss.type} is for on-policy data only (1 optimizer step a batch, max_lag 0, no replay), got "
        "{optimizer_steps_per_batch} optimizer steps a batch (epochs_per_batch {epochs_per_batch} x "
        "minibatches_per_epoch {minibatches_per_epoch}), max_lag {max_lag} and replay.capacity {replay.capacity}",
        "set loss.type to grpo_clip, or these four to 1, 1, 0 and 0; allow_uncorrected: true runs it all the same",
    ),
    Rule(
        "delta_fits_the_loss",
        lambda s: (
            s.advantage.delta
            and s.loss.type in _DELTAS_OF
            and s.advantage.delta not in _DELTAS_OF[s.loss.type].removeprefix("one of ").split(", ")
            and {"allowed": _DELTAS_OF[s.loss.type]}
        ),
        "advantage.delta is {advantage.delta}, must be {allowed} with loss.type {loss.type}",
        "set loss.type to naive, which is the same loss for any delta, or leave advantage.delta out",
    ),
    must(
        "delta_fits_the_normalization",
        "advantage.normalize_by_std",
        None,
        "advantage.delta not null or centered_rewards",
        "advantage.delta to centered_rewards",
        ", which says by itself what is divided",
    ),
    Rule(
        "whole_distribution",
        _truncated_and_compared,
        "sampling.top_p is {sampling.top_p}, must be 1 with {compared}: the engine samples from the truncated "
        "distribution, the Learner's log-probs are of the whole one, so ratios and KL would be wrong",
        "set sampling.top_p to 1, or {ways_out}",
    ),
    *together("reclone_interval", "loss.kl.reclone_every", "10", "loss.kl.reference", "reclone"),
    *together("polyak_weight", "loss.kl.alpha", "0.1", "loss.kl.reference", "polyak"),
    only_with("constant_is_used", "loss.constant", "loss.aggregation", "constant"),
    Rule(
        "importance_has_two_policies",
        lambda s: s.loss.importance.mode != "off" and s.loss.proximal == "engine" and s.behaviour_is_older,
        "loss.importance.mode is {loss.importance.mode}, which with max_lag {max_lag} and replay.capacity "
        "{replay.capacity} does nothing while loss.proximal is engine",
        "set loss.proximal to recompute, or loss.importance.mode to off",
    ),
    must(
        "sequence_mask_weighs_tokens",
        "loss.importance.level",
        "token",
        "loss.importance.mode seq-mask-tis",
        "loss.importance.mode to tis or icepop",
    ),
    Rule(
        "k1_has_no_gradient",
        lambda s: s.loss.kl.estimator == "k1" and s.loss.kl.coefficient and not s.loss.kl.weighted_by_ratio,
        "loss.kl.estimator is k1 with loss.kl.coefficient {loss.kl.coefficient}: its expected gradient is 0, so that "
        "it would add noise to the loss and hold nothing back",
        "set loss.kl.estimator to k3 or k2, or loss.kl.weighted_by_ratio to true",
        ("loss.kl.weighted_by_ratio",),
    ),
    must(
        "kl_weight_is_used",
        "loss.kl.weighted_by_ratio",
        None,
        "loss.kl.coefficient 0",
        "loss.kl.coefficient to 0.01",
        ": there is no KL in the loss",
    ),
    Rule(
        "proximal_is_another_policy",
        lambda s: s.loss.proximal != "engine" and not s.behaviour_is_older,
        "loss.proximal is recompute with max_lag {max_lag} and replay.capacity {replay.capacity}, where the Learner's "
        "own log-probs are taken in any case",
        "leave loss.proximal out, or set max_lag or replay.capacity",
    ),
    Rule(
        "importance_bounds_are_used",
        lambda s: (
            s.loss.importance.mode == "off"
            and given(s, "loss.importance.level", "loss.importance.cap", "loss.importance.floor")
        ),
        "{given} {are} set with loss.importance.mode off",
        "set loss.importance.mode to tis, or leave {given} out",
    ),
    Rule(
        "importance_bounds_are_used",
        lambda s: s.loss.importance.mode == "tis" and given(s, "loss.importance.floor"),
        "{given} {are} set with loss.importance.mode tis",
        "set loss.importance.mode to icepop, or leave {given} out",
    ),
    only_with("ratio_level_is_used", "loss.ratio_level", "loss.type", *WITH_RATIO, why=", which has no such ratio"),
    Rule(
        "clip_range_is_used",
        lambda s: s.loss.type not in CLIPPED and given(s, *(f"loss.{name}" for name in CLIP_RANGE)),
        "{given} {are} set with loss.type {loss.type}, which clips nothing",
        f"set loss.type to {any_of(CLIPPED)}, or {{given}} to null",
    ),
    Rule(  # the ratio of a whole response is a mean and stays within about 0.001 of 1
        "clip_range_is_of_the_ratio",
        _range_of_tokens,
        "loss.{name} is {value} with loss.ratio_level sequence, must be below {least}: a mean over a response's tokens "
        "never comes so far, so that nothing would be clipped",
        "leave loss.{name} out, which takes GSPO's own (0.0003 and 0.0004), or set loss.type to unclipped",
    ),
    only_with("dual_clip_is_used", "loss.dual_clip", "loss.type", "grpo_clip"),
    must(
        "dual_clip_is_used",
        "loss.dual_clip",
        None,
        "advantage.delta max_rewards or max_centered_rewards",
        "advantage.delta to null",
        ": it bounds negative advantages, of which there are none",
    ),
    *together("own_loss_is_named", "loss.function", "package.module:function", "loss.type", "own"),
    *together("own_advantage_is_named", "advantage.function", "package.module:function", "advantage.delta", "own"),
    must(
        "truncation_says_something",
        "loss.mask_truncated",
        None,
        "sampling.pinned_lengths not null",
        "sampling.pinned_lengths to null",
        ", which cuts every response",
    ),
    Rule(
        "ban_has_an_engine",
        lambda s: s.loss.ban_eos and s.sampling.min_tokens == 0 and s.sampling.pinned_lengths is None,
        "loss.ban_eos is true, and sampling.min_tokens is 0: the engine can end a response at any token",
        "set sampling.min_tokens to 1 or more, or leave loss.ban_eos out",
    ),
    Rule(
        "warmup_is_given_once",
        lambda s: s.optimizer.warmup_steps and s.optimizer.warmup_ratio,
        "optimizer.warmup_steps is {optimizer.warmup_steps} and optimizer.warmup_ratio is {optimizer.warmup_ratio}, "
        "which is {warmup_optimizer_steps} of {num_optimizer_steps} optimizer steps",
        "leave one of the two out",
    ),
    only_with("minimum_is_reached", "optimizer.min_learning_rate_ratio", "optimizer.schedule", "cosine", "linear"),
    Rule(
        "rate_is_reached",
        lambda s: s.optimizer.schedule != "constant" and s.warmup_optimizer_steps >= s.num_optimizer_steps,
        "optimizer.schedule is {optimizer.schedule}, and the warm-up takes {warmup_optimizer_steps} of "
        "{num_optimizer_steps} optimizer steps: nothing is left to fall",
        "shorten the warm-up, raise steps, or leave optimizer.schedule out",
        ("optimizer.warmup_steps", "steps"),
    ),
    Rule(
        "discarded_groups_teach_nothing",
        lambda s: s.dynamic_sampling.attempts and s.group_size < 2,
        "group_size is {group_size} with dynamic_sampling: one reward is always equal to itself",
        "set group_size to 2 or more",
    ),
    Rule(
        "discarded_groups_teach_nothing",
        lambda s: s.dynamic_sampling.attempts and _delta_name(s) in SIGNAL_WITHOUT_SPREAD and _delta(s),
        "dynamic_sampling with {cause}, where groups of equal rewards have an advantage and are worth keeping",
        "set advantage.delta to another one, such as centered_rewards, or dynamic_sampling.attempts to 0",
    ),
    Rule(
        "rollouts_are_equal",
        lambda s: s.dynamic_sampling.attempts and s.endpoint == "reward_at_rollouts",
        "endpoint is {endpoint} with dynamic_sampling, which generates rollouts that are never used",
        "set endpoint to seconds_per_step, or dynamic_sampling.attempts to 0",
    ),
)
