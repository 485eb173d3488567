"""GRPO in plain torch: advantages, losses, KL estimates, aggregation. No Ray, no probes, no I/O.

These names have fixed signatures. What the Learner calls besides is imported from its file.
"""

from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.grpo.advantages import compute_group_normalized_rewards
from harness.grpo.log_probs import compute_entropy, get_response_log_probs
from harness.grpo.masking import masked_mean, masked_normalize
from harness.grpo.policy_gradient import (
    compute_cispo_loss,
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    compute_unclipped_loss,
    grpo_microbatch_train_step,
)
from harness.grpo.tokenization import tokenize_prompt_and_output

__all__ = [
    "compute_cispo_loss",
    "compute_entropy",
    "compute_group_normalized_rewards",
    "compute_grpo_clip_loss",
    "compute_naive_policy_gradient_loss",
    "compute_policy_gradient_loss",
    "compute_unclipped_loss",
    "get_response_log_probs",
    "grpo_microbatch_train_step",
    "keyword_inclusion_reward_fn",
    "masked_mean",
    "masked_normalize",
    "tokenize_prompt_and_output",
]
