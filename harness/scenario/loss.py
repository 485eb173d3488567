"""The loss, its advantages and the optimizer, with their rules, and which forward passes a training step needs."""

from __future__ import annotations

from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario
from harness.settings.loss import CLIP_RANGE, CLIPPED, LEAST_FOR_TOKENS, WITH_RATIO

_CORRECTED = (*WITH_RATIO, "own")
_DELTAS_OF = {
    "no_baseline": ("rewards",),
    "reinforce_with_baseline": (
        "centered_rewards",
        "normalized_rewards",
        "leave_one_out_rewards",
        "batch_normalized_rewards",
        "batch_whitened_rewards",
    ),
}


def groups_compare(scenario: Scenario) -> Problem | None:
    """A baseline is the group's mean, and a maximum that of a group, so a group needs two rollouts."""
    loss_type = scenario.loss.type
    delta = scenario.advantage.delta_for(loss_type)
    if scenario.group_size >= 2 or delta in ("rewards", "own"):
        return None
    by_loss = scenario.advantage.delta is None
    cause, value = ("loss.type", loss_type) if by_loss else ("advantage.delta", delta)
    what = f"group_size is {scenario.group_size}, must be at least 2 with {cause} {value}"
    fix = f"set group_size to 8, or {'loss.type to no_baseline' if by_loss else 'advantage.delta to rewards'}"
    return broken(what, fix, "group_size", cause)


def on_policy_loss(scenario: Scenario) -> Problem | None:
    """A loss without a probability ratio is right only for data of the current policy."""
    if scenario.loss.type in _CORRECTED or scenario.on_policy or scenario.allow_uncorrected:
        return None
    what = (
        f"loss.type {scenario.loss.type} is for on-policy data only (1 optimizer step a batch, max_lag 0, no replay), "
        f"got {scenario.optimizer_steps_per_batch} optimizer steps a batch (epochs_per_batch "
        f"{scenario.epochs_per_batch} x minibatches_per_epoch {scenario.minibatches_per_epoch}), max_lag "
        f"{scenario.max_lag} and replay.capacity {scenario.replay.capacity}"
    )
    fix = "set loss.type to grpo_clip, or these four to 1, 1, 0 and 0; allow_uncorrected: true runs it all the same"
    keys = ("loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity")
    return broken(what, fix, *keys)


def delta_fits_the_loss(scenario: Scenario) -> Problem | None:
    """Two types of loss name a delta already; ``naive`` is the same loss without one."""
    delta, loss_type = scenario.advantage.delta, scenario.loss.type
    allowed = _DELTAS_OF.get(loss_type)
    if delta is None or allowed is None or delta in allowed:
        return None
    one_of = "one of " if len(allowed) > 1 else ""
    what = f"advantage.delta is {delta}, must be {one_of}{', '.join(allowed)} with loss.type {loss_type}"
    fix = "set loss.type to naive, which is the same loss for any delta, or leave advantage.delta out"
    return broken(what, fix, "advantage.delta", "loss.type")


def delta_fits_the_normalization(scenario: Scenario) -> Problem | None:
    """A delta that is named says by itself whether it is divided by the standard deviation."""
    delta = scenario.advantage.delta
    if delta is None or scenario.advantage.normalize_by_std or delta == "centered_rewards":
        return None
    what = f"advantage.normalize_by_std is false with advantage.delta {delta}, which says by itself what is divided"
    fix = "leave advantage.normalize_by_std out, or set advantage.delta to centered_rewards"
    return broken(what, fix, "advantage.normalize_by_std", "advantage.delta")


def whole_distribution(scenario: Scenario) -> Problem | None:
    """Ratios and KL compare log-probs of one kind, and the Learner's are always of the whole distribution."""
    top_p, lag, monitor = scenario.sampling.top_p, scenario.max_lag, scenario.loss.kl.monitor
    capacity, mode = scenario.replay.capacity, scenario.loss.importance.mode
    causes = [("max_lag", f"max_lag {lag}", "max_lag to 0")] if lag > 0 else []
    causes += [("replay.capacity", f"replay.capacity {capacity}", "replay.capacity to 0")] if capacity > 0 else []
    weights = "loss.importance.mode"
    causes += [(weights, f"{weights} {mode}", f"{weights} to off")] if mode != "off" else []
    causes += [("loss.kl.monitor", "loss.kl.monitor true", "loss.kl.monitor to false")] if monitor else []
    if top_p == 1 or not causes:
        return None
    keys, given, ways_out = zip(*causes, strict=True)
    what = (
        f"sampling.top_p is {top_p}, must be 1 with {' and '.join(given)}: the engine samples from the truncated "
        "distribution, the Learner's log-probs are of the whole one, so ratios and KL would be wrong"
    )
    fix = f"set sampling.top_p to 1, or {' and '.join(ways_out)}"
    return broken(what, fix, "sampling.top_p", *keys)


def reclone_interval(scenario: Scenario) -> Problem | None:
    """A re-cloned reference has an interval, a frozen one has none."""
    kl = scenario.loss.kl
    keys = "loss.kl.reference", "loss.kl.reclone_every"
    if kl.reference == "reclone" and kl.reclone_every is None:
        what = "loss.kl.reference is reclone, and loss.kl.reclone_every is null"
        return broken(what, "set loss.kl.reclone_every to 10", *keys)
    if kl.reference != "reclone" and kl.reclone_every is not None:
        what = f"loss.kl.reclone_every is {kl.reclone_every}, must be null with loss.kl.reference {kl.reference}"
        return broken(what, "set loss.kl.reference to reclone, or leave loss.kl.reclone_every out", *keys)
    return None


def polyak_weight(scenario: Scenario) -> Problem | None:
    """Only a Polyak average has a weight."""
    kl = scenario.loss.kl
    if kl.reference == "polyak" and kl.alpha is None:
        what = "loss.kl.reference is polyak, and loss.kl.alpha is null"
        return broken(what, "set loss.kl.alpha to 0.1", "loss.kl.reference", "loss.kl.alpha")
    if kl.reference == "polyak" or kl.alpha is None:
        return None
    what = f"loss.kl.alpha is {kl.alpha:g}, must be null with loss.kl.reference {kl.reference}"
    return broken(
        what, "set loss.kl.reference to polyak, or leave loss.kl.alpha out", "loss.kl.alpha", "loss.kl.reference"
    )


def warmup_is_given_once(scenario: Scenario) -> Problem | None:
    """A warm-up is a number of optimizer steps or a share of them."""
    steps, ratio = scenario.optimizer.warmup_steps, scenario.optimizer.warmup_ratio
    if steps == 0 or ratio == 0:
        return None
    what = (
        f"optimizer.warmup_steps is {steps} and optimizer.warmup_ratio is {ratio:g}, which is "
        f"{scenario.warmup_optimizer_steps} of {scenario.num_optimizer_steps} optimizer steps"
    )
    return broken(what, "leave one of the two out", "optimizer.warmup_steps", "optimizer.warmup_ratio")


def rate_is_reached(scenario: Scenario) -> Problem | None:
    """A learning rate that is still rising when the run ends never comes to its schedule."""
    warmup, all_steps = scenario.warmup_optimizer_steps, scenario.num_optimizer_steps
    if scenario.optimizer.schedule == "constant" or warmup < all_steps:
        return None
    what = (
        f"optimizer.schedule is {scenario.optimizer.schedule}, and the warm-up takes {warmup} of {all_steps} optimizer "
        "steps: nothing is left to fall"
    )
    fix = "shorten the warm-up, raise steps, or leave optimizer.schedule out"
    return broken(what, fix, "optimizer.schedule", "optimizer.warmup_steps", "steps")


def minimum_is_reached(scenario: Scenario) -> Problem | None:
    """A learning rate that does not fall has no minimum."""
    minimum = scenario.optimizer.min_learning_rate_ratio
    if minimum == 0 or scenario.optimizer.schedule != "constant":
        return None
    what = f"optimizer.min_learning_rate_ratio is {minimum:g}, must be 0 with optimizer.schedule constant"
    fix = "set optimizer.schedule to cosine or linear, or leave optimizer.min_learning_rate_ratio out"
    return broken(what, fix, "optimizer.min_learning_rate_ratio", "optimizer.schedule")


def constant_is_used(scenario: Scenario) -> Problem | None:
    """A divisor that no sum is divided by would be ignored silently."""
    loss = scenario.loss
    if loss.constant is None or loss.aggregation == "constant":
        return None
    what = f"loss.constant is {loss.constant}, must be null with loss.aggregation {loss.aggregation}"
    fix = "set loss.aggregation to constant, or leave loss.constant out"
    return broken(what, fix, "loss.constant", "loss.aggregation")


def importance_has_two_policies(scenario: Scenario) -> Problem | None:
    """The weight is proximal / engine; where the engine's log-probs are the proximal ones, it is always 1."""
    loss = scenario.loss
    if loss.importance.mode == "off" or loss.proximal == "recompute" or not scenario.behaviour_is_older:
        return None
    what = (
        f"loss.importance.mode is {loss.importance.mode}, which with max_lag {scenario.max_lag} and replay.capacity "
        f"{scenario.replay.capacity} does nothing while loss.proximal is engine"
    )
    fix = "set loss.proximal to recompute, or loss.importance.mode to off"
    return broken(what, fix, "loss.importance.mode", "loss.proximal")


def sequence_mask_weighs_tokens(scenario: Scenario) -> Problem | None:
    """``seq-mask-tis`` masks whole sequences and weighs single tokens, by its definition."""
    importance = scenario.loss.importance
    if importance.mode != "seq-mask-tis" or importance.level == "token":
        return None
    what = "loss.importance.level is sequence, must be token with loss.importance.mode seq-mask-tis"
    fix = "set loss.importance.level to token, or loss.importance.mode to tis or icepop"
    return broken(what, fix, "loss.importance.level", "loss.importance.mode")


def k1_has_no_gradient(scenario: Scenario) -> Problem | None:
    """The expected gradient of k1 on tokens of the policy itself is 0: as a penalty it adds noise and nothing else."""
    kl = scenario.loss.kl
    if kl.estimator != "k1" or kl.coefficient == 0 or kl.weighted_by_ratio:
        return None
    what = (
        f"loss.kl.estimator is k1 with loss.kl.coefficient {kl.coefficient:g}: its expected gradient is 0, so that it "
        "would add noise to the loss and hold nothing back"
    )
    fix = "set loss.kl.estimator to k3 or k2, or loss.kl.weighted_by_ratio to true"
    return broken(what, fix, "loss.kl.estimator", "loss.kl.coefficient", "loss.kl.weighted_by_ratio")


def kl_weight_is_used(scenario: Scenario) -> Problem | None:
    """Without a KL term there is nothing to multiply by the ratio."""
    kl = scenario.loss.kl
    if not kl.weighted_by_ratio or kl.coefficient > 0:
        return None
    what = "loss.kl.weighted_by_ratio is true, and loss.kl.coefficient is 0: there is no KL in the loss"
    fix = "set loss.kl.coefficient to 0.01, or leave loss.kl.weighted_by_ratio out"
    return broken(what, fix, "loss.kl.weighted_by_ratio", "loss.kl.coefficient")


def ratio_level_is_used(scenario: Scenario) -> Problem | None:
    """A loss without a ratio of its own would ignore its level silently."""
    loss = scenario.loss
    if loss.ratio_level == "token" or loss.type in WITH_RATIO:
        return None
    what = f"loss.ratio_level is {loss.ratio_level}, must be token with loss.type {loss.type}, which has no such ratio"
    fix = f"set loss.type to {', '.join(WITH_RATIO[:-1])} or {WITH_RATIO[-1]}, or leave loss.ratio_level out"
    return broken(what, fix, "loss.ratio_level", "loss.type")


def clip_range_is_used(scenario: Scenario) -> Problem | None:
    """A loss that clips nothing would ignore a range silently."""
    loss = scenario.loss
    given = [f"loss.{name}" for name in CLIP_RANGE if getattr(loss, name) is not None]
    if loss.type in CLIPPED or not given:
        return None
    what = (
        f"{' and '.join(given)} {'are' if len(given) > 1 else 'is'} set with loss.type {loss.type}, which clips nothing"
    )
    fix = f"set loss.type to {', '.join(CLIPPED[:-1])} or {CLIPPED[-1]}, or {' and '.join(given)} to null"
    return broken(what, fix, *given, "loss.type")


def clip_range_is_of_the_ratio(scenario: Scenario) -> Problem | None:
    """The ratio of a whole response is a mean and stays within about 0.001 of 1: no range for tokens is ever left."""
    loss = scenario.loss
    if loss.type != "grpo_clip" or loss.ratio_level == "token":
        return None
    for name in CLIP_RANGE:
        value = getattr(loss, name)
        if value is not None and value >= LEAST_FOR_TOKENS:
            what = (
                f"loss.{name} is {value:g} with loss.ratio_level sequence, must be below {LEAST_FOR_TOKENS:g}: a mean "
                "over a response's tokens never comes so far, so that nothing would be clipped"
            )
            fix = f"leave loss.{name} out, which takes GSPO's own (0.0003 and 0.0004), or set loss.type to unclipped"
            return broken(what, fix, f"loss.{name}", "loss.ratio_level")
    return None


def importance_bounds_are_used(scenario: Scenario) -> Problem | None:
    """Without weights there is nothing to bound, and ``tis`` has no lower bound."""
    importance = scenario.loss.importance
    if importance.mode not in ("off", "tis"):
        return None
    names = ("level", "cap", "floor") if importance.mode == "off" else ("floor",)
    given = [name for name in names if getattr(importance, name) not in (None, "token")]
    if not given:
        return None
    keys = [f"loss.importance.{name}" for name in given]
    what = f"{' and '.join(keys)} {'are' if len(keys) > 1 else 'is'} set with loss.importance.mode {importance.mode}"
    other = "tis" if importance.mode == "off" else "icepop"
    fix = f"set loss.importance.mode to {other}, or leave {' and '.join(keys)} out"
    return broken(what, fix, *keys, "loss.importance.mode")


def proximal_is_another_policy(scenario: Scenario) -> Problem | None:
    """Rollouts of the step's own policy have its log-probs, whichever name they go by."""
    if scenario.loss.proximal == "engine" or scenario.behaviour_is_older:
        return None
    what = (
        f"loss.proximal is recompute with max_lag {scenario.max_lag} and replay.capacity {scenario.replay.capacity}, "
        "where the Learner's own log-probs are taken in any case"
    )
    fix = "leave loss.proximal out, or set max_lag or replay.capacity"
    return broken(what, fix, "loss.proximal", "max_lag", "replay.capacity")


def dual_clip_is_used(scenario: Scenario) -> Problem | None:
    """The second clip is one of the clipped ratio's objective."""
    loss, delta = scenario.loss, scenario.advantage.delta
    if loss.dual_clip is None:
        return None
    if loss.type != "grpo_clip":
        what = f"loss.dual_clip is {loss.dual_clip:g}, must be null with loss.type {loss.type}"
        return broken(what, "set loss.type to grpo_clip, or leave loss.dual_clip out", "loss.dual_clip", "loss.type")
    if delta not in ("max_rewards", "max_centered_rewards"):
        return None
    what = (
        f"loss.dual_clip is {loss.dual_clip:g} with advantage.delta {delta}: it bounds negative advantages, of which "
    )
    fix = "leave loss.dual_clip out, or advantage.delta"
    return broken(f"{what}there are none", fix, "loss.dual_clip", "advantage.delta")


def own_loss_is_named(scenario: Scenario) -> Problem | None:
    """``type: own`` and ``function`` go together."""
    loss = scenario.loss
    if (loss.type == "own") == (loss.function is not None):
        return None
    what = f"loss.type is {loss.type} and loss.function is {loss.function or 'null'}: your own loss needs both"
    fix = "set loss.type to own and loss.function to package.module:function, or leave loss.function out"
    return broken(what, fix, "loss.type", "loss.function")


def own_advantage_is_named(scenario: Scenario) -> Problem | None:
    """``delta: own`` and ``function`` go together."""
    advantage = scenario.advantage
    if (advantage.delta == "own") == (advantage.function is not None):
        return None
    delta, function = advantage.delta or "null", advantage.function or "null"
    what = f"advantage.delta is {delta} and advantage.function is {function}: your own advantage needs both"
    fix = "set advantage.delta to own and advantage.function to package.module:function, or leave both out"
    return broken(what, fix, "advantage.delta", "advantage.function")


def truncation_says_something(scenario: Scenario) -> Problem | None:
    """With pinned lengths every response is cut, so none would be left to learn from."""
    pinned = scenario.sampling.pinned_lengths
    if not scenario.loss.mask_truncated or pinned is None:
        return None
    what = f"loss.mask_truncated is true, and sampling.pinned_lengths {list(pinned)} cuts every response"
    fix = "leave one of the two out"
    return broken(what, fix, "loss.mask_truncated", "sampling.pinned_lengths")


def ban_has_an_engine(scenario: Scenario) -> Problem | None:
    """The Learner leaves out what the engine left out; where that is nothing, the setting would do nothing."""
    sampling = scenario.sampling
    if not scenario.loss.ban_eos or sampling.min_tokens > 0 or sampling.pinned_lengths is not None:
        return None
    what = "loss.ban_eos is true, and sampling.min_tokens is 0: the engine can end a response at any token"
    fix = "set sampling.min_tokens to 1 or more, or leave loss.ban_eos out"
    return broken(what, fix, "loss.ban_eos", "sampling.min_tokens")


LOSS_RULES = (
    groups_compare,
    on_policy_loss,
    delta_fits_the_loss,
    delta_fits_the_normalization,
    whole_distribution,
    reclone_interval,
    polyak_weight,
    constant_is_used,
    importance_has_two_policies,
    sequence_mask_weighs_tokens,
    k1_has_no_gradient,
    kl_weight_is_used,
    proximal_is_another_policy,
    importance_bounds_are_used,
    ratio_level_is_used,
    clip_range_is_used,
    clip_range_is_of_the_ratio,
    dual_clip_is_used,
    own_loss_is_named,
    own_advantage_is_named,
    truncation_says_something,
    ban_has_an_engine,
    warmup_is_given_once,
    minimum_is_reached,
    rate_is_reached,
)
