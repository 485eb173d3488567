"""GRPO in plain torch: advantages, losses, KL estimates, aggregation. No Ray, no probes, no I/O.

The functions named ``compute_*``, ``masked_*``, ``grpo_microbatch_train_step``, ``tokenize_prompt_and_output`` and
``get_response_log_probs`` are a public interface with fixed names and argument orders. The rest is the core that the
Learner calls.
"""

from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.grpo.advantages import (
    Delta,
    RewardFn,
    compute_group_normalized_rewards,
    deltas_per_group,
    group_advantages,
    group_deltas,
)
from harness.grpo.aggregate import Aggregation, Denominator, loss_denominator, weighted_sum
from harness.grpo.batch import RolloutBatch, collate
from harness.grpo.importance import ImportanceLevel, ImportanceMode, ImportanceOptions, importance_weights
from harness.grpo.kl import KlEstimator, exact_kl, kl_estimate, kl_tallies
from harness.grpo.log_probs import compute_entropy, get_response_log_probs, log_probs_and_entropy, log_probs_from_logits
from harness.grpo.loss import LossOptions, surrogate_loss
from harness.grpo.masking import masked_mean, masked_normalize, zero_masked
from harness.grpo.policy_gradient import (
    LossType,
    compute_cispo_loss,
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    compute_unclipped_loss,
    grpo_microbatch_train_step,
)
from harness.grpo.ratio import RatioLevel, sequence_ratio, token_ratio
from harness.grpo.tally import Tally, max_tally, mean_tally, to_metrics
from harness.grpo.tokenization import tokenize_prompt_and_output

__all__ = [
    "Aggregation",
    "Delta",
    "Denominator",
    "ImportanceLevel",
    "ImportanceMode",
    "ImportanceOptions",
    "KlEstimator",
    "LossOptions",
    "LossType",
    "RatioLevel",
    "RewardFn",
    "RolloutBatch",
    "Tally",
    "collate",
    "compute_cispo_loss",
    "compute_entropy",
    "compute_group_normalized_rewards",
    "compute_grpo_clip_loss",
    "compute_naive_policy_gradient_loss",
    "compute_policy_gradient_loss",
    "compute_unclipped_loss",
    "deltas_per_group",
    "exact_kl",
    "get_response_log_probs",
    "group_advantages",
    "group_deltas",
    "grpo_microbatch_train_step",
    "importance_weights",
    "keyword_inclusion_reward_fn",
    "kl_estimate",
    "kl_tallies",
    "log_probs_and_entropy",
    "log_probs_from_logits",
    "loss_denominator",
    "masked_mean",
    "masked_normalize",
    "max_tally",
    "mean_tally",
    "sequence_ratio",
    "surrogate_loss",
    "to_metrics",
    "token_ratio",
    "tokenize_prompt_and_output",
    "weighted_sum",
    "zero_masked",
]
