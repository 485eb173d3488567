"""The names, argument orders and defaults that outside test suites bind to."""

import inspect

import harness.grpo as grpo

CLIP = "*, cliprange_high=None, dual_clip=None"
LOSS = "loss_type, raw_rewards=None, advantages=None, old_log_probs=None, cliprange=None"
INTERFACE = {
    "compute_group_normalized_rewards": (
        "reward_fn, rollout_responses, repeated_ground_truths, group_size, advantage_eps, normalize_by_std"
    ),
    "compute_naive_policy_gradient_loss": "raw_rewards_or_advantages, policy_log_probs",
    "compute_grpo_clip_loss": f"advantages, policy_log_probs, old_log_probs, cliprange, {CLIP}",
    "compute_policy_gradient_loss": f"policy_log_probs, {LOSS}, {CLIP}",
    "masked_mean": "tensor, mask, dim=None",
    "masked_normalize": "tensor, mask, normalize_constant=1.0, dim=None",
    "grpo_microbatch_train_step": f"policy_log_probs, response_mask, gradient_accumulation_steps, {LOSS}, {CLIP}",
    "tokenize_prompt_and_output": "prompt_strs, output_strs, tokenizer, *, prompt_special_tokens=False",
    "compute_entropy": "logits",
    "keyword_inclusion_reward_fn": "response, keywords",
    "get_response_log_probs": "model, input_ids, labels, return_token_entropy=False, *, temperature=1.0",
}


def test_signatures_are_the_published_ones():
    found = {}
    for name in INTERFACE:
        parameters = inspect.signature(getattr(grpo, name)).parameters.values()
        untyped = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        found[name] = str(inspect.Signature(untyped))[1:-1]
    assert found == INTERFACE


def test_all_lists_the_interface_in_order_and_every_name_exists():
    assert set(INTERFACE) <= set(grpo.__all__)
    assert grpo.__all__ == sorted(grpo.__all__)
    assert [name for name in grpo.__all__ if not hasattr(grpo, name)] == []
