"""The loss, its advantages and the optimizer, with their rules, and which forward passes a training step needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from harness.scenario.problems import Problem, broken
from harness.scenario.sections import AtLeast0, AtLeast1, EmptyIfNull, FromList, NotNegative, Positive, Section

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

LossType = Literal["no_baseline", "reinforce_with_baseline", "naive", "unclipped", "grpo_clip"]
Delta = Literal["rewards", "centered_rewards", "normalized_rewards", "max_rewards", "max_centered_rewards"]
Beta = Annotated[float, Field(ge=0, lt=1)]
WITH_RATIO = ("grpo_clip", "unclipped")
"""Losses with a probability ratio, so that data of an older policy does not go uncorrected."""
_DELTAS_OF = {
    "no_baseline": ("rewards",),
    "reinforce_with_baseline": ("centered_rewards", "normalized_rewards"),
}


class KlSettings(Section):
    """KL divergence to a reference policy: in the loss, monitored, or both."""

    coefficient: NotNegative = 0.0
    """Weight of the KL term in the loss; 0 leaves it out."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL of a token is estimated: with d = log p - log q, k1 = d, k2 = d*d/2, k3 = exp(-d) - 1 + d."""
    reference: Literal["frozen", "reclone"] = "frozen"
    """`frozen`: the initial policy for ever; `reclone`: replaced by the current policy every `reclone_every` steps."""
    reclone_every: AtLeast1 | None = None
    """Training steps between two re-clonings; only with `reference: reclone`."""
    monitor: bool = False
    """Measure the KL to the reference and to the previous policy at each training step."""


class ImportanceSettings(Section):
    """Weights proximal / engine on the loss, truncated."""

    mode: Literal["off", "tis", "icepop", "seq-mask-tis"] = "off"
    """`tis` cuts weights at `cap`; `icepop` leaves out what is outside [floor, cap]; `seq-mask-tis` whole sequences."""
    level: Literal["token", "sequence"] = "token"
    """Whether a weight belongs to a token or to its whole sequence."""
    cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Smallest weight of the masking modes."""


class LossSettings(Section):
    """The policy-gradient loss."""

    type: LossType = "grpo_clip"
    """`naive`: -log p * delta; `unclipped`: -ratio * delta; `grpo_clip` clips the ratio; the others are naive too."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    """Mean over each response then over responses; one mean over all tokens; or sums over a constant (Dr. GRPO)."""
    constant: AtLeast1 | None = None
    """Divisor of `aggregation: constant`; null takes sampling.max_tokens."""
    cliprange: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How far the probability ratio may move from 1 before the clip acts."""
    cliprange_high: NotNegative | None = None
    """Upper clip range, where it differs from the lower one (clip-higher)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound on the ratio for negative advantages (dual clip); null for none."""
    kl: Annotated[KlSettings, EmptyIfNull] = KlSettings()
    """KL divergence to a reference policy."""
    proximal: Literal["engine", "recompute"] = "engine"
    """With lag or replay, what the ratio divides by: the engine's log-probs, or the Learner's at the step's start."""
    importance: Annotated[ImportanceSettings, EmptyIfNull] = ImportanceSettings()
    """Truncated importance sampling: correct for an engine or a policy that is not quite the Learner's."""


class AdvantageSettings(Section):
    """How rewards become advantages, within each group."""

    eps: Positive = 1e-6
    """Added to the group's standard deviation."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation; false only subtracts the mean (Dr. GRPO)."""
    delta: Delta | None = None
    """What weighs a response's loss; null: `rewards` for `loss.type: no_baseline`, else as `normalize_by_std` says."""

    def delta_for(self, loss_type: LossType) -> Delta:
        """Return the delta, for this type of loss: the one that is named, or what follows from the other settings."""
        if self.delta is not None:
            return self.delta
        if loss_type == "no_baseline":
            return "rewards"
        return "normalized_rewards" if self.normalize_by_std else "centered_rewards"


class OptimizerSettings(Section):
    """AdamW."""

    learning_rate: NotNegative = 1e-5
    """Step size, after the warm-up."""
    betas: Annotated[tuple[Beta, Beta], FromList] = (0.9, 0.95)
    """Decay of the two running averages."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive | None = 1.0
    """Gradients are scaled down to this norm; null leaves them as they are."""
    warmup_steps: AtLeast0 = 0
    """Optimizer steps over which the learning rate rises from 0."""


def old_is_engine(behaviour_is_engine: bool, proximal: str) -> bool:
    """Return whether the ratio divides by the engine's log-probs; else by the Learner's own at the start of the step.

    Args:
        behaviour_is_engine: rollouts may be of an older policy (lag or replay), so that only the engine speaks for it.
        proximal: ``engine`` or ``recompute``.
    """
    return behaviour_is_engine and proximal == "engine"


def needs_old_log_probs(behaviour_is_engine: bool, proximal: str, optimizer_steps: int, monitor_kl: bool) -> bool:
    """Return whether the Learner computes the old log-probs.

    With one optimizer step the policy's own detached ones are the same, for the ratio and for importance weights.
    Monitoring fresh rollouts needs them as its p all the same.
    """
    monitored = monitor_kl and not behaviour_is_engine
    return not old_is_engine(behaviour_is_engine, proximal) and (optimizer_steps > 1 or monitored)


def needs_reference(monitor_kl: bool, kl_coefficient: float) -> bool:
    """Return whether a reference policy is kept."""
    return monitor_kl or kl_coefficient > 0


def groups_compare(scenario: Scenario) -> Problem | None:
    """A baseline is the group's mean, and a maximum that of a group, so a group needs two rollouts."""
    loss_type = scenario.loss.type
    delta = scenario.advantage.delta_for(loss_type)
    if scenario.group_size >= 2 or delta == "rewards":
        return None
    by_loss = scenario.advantage.delta is None
    cause, value = ("loss.type", loss_type) if by_loss else ("advantage.delta", delta)
    what = f"group_size is {scenario.group_size}, must be at least 2 with {cause} {value}"
    fix = f"set group_size to 8, or {'loss.type to no_baseline' if by_loss else 'advantage.delta to rewards'}"
    return broken(what, fix, "group_size", cause)


def on_policy_loss(scenario: Scenario) -> Problem | None:
    """A loss without a probability ratio is right only for data of the current policy."""
    if scenario.loss.type in WITH_RATIO or scenario.on_policy or scenario.allow_uncorrected:
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
    what = f"advantage.delta is {delta}, must be {' or '.join(allowed)} with loss.type {loss_type}"
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
    if kl.reference == "frozen" and kl.reclone_every is not None:
        what = f"loss.kl.reclone_every is {kl.reclone_every}, must be null with loss.kl.reference frozen"
        return broken(what, "set loss.kl.reference to reclone, or leave loss.kl.reclone_every out", *keys)
    return None


def constant_is_used(scenario: Scenario) -> Problem | None:
    """A divisor that no sum is divided by would be ignored in silence."""
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


LOSS_RULES = (
    groups_compare,
    on_policy_loss,
    delta_fits_the_loss,
    delta_fits_the_normalization,
    whole_distribution,
    reclone_interval,
    constant_is_used,
    importance_has_two_policies,
    sequence_mask_weighs_tokens,
)
