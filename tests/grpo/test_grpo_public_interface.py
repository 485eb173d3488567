"""The names, argument orders and defaults that outside test suites bind to."""

import inspect

import pytest

import harness.grpo as grpo

EMPTY = inspect.Parameter.empty
CLIP_EXTRAS = {"cliprange_high": None, "dual_clip": None}

# name -> (positional arguments with their defaults, keyword-only extras of ours with their defaults)
INTERFACE = {
    "compute_group_normalized_rewards": (
        {
            "reward_fn": EMPTY,
            "rollout_responses": EMPTY,
            "repeated_ground_truths": EMPTY,
            "group_size": EMPTY,
            "advantage_eps": EMPTY,
            "normalize_by_std": EMPTY,
        },
        {},
    ),
    "compute_naive_policy_gradient_loss": ({"raw_rewards_or_advantages": EMPTY, "policy_log_probs": EMPTY}, {}),
    "compute_grpo_clip_loss": (
        {"advantages": EMPTY, "policy_log_probs": EMPTY, "old_log_probs": EMPTY, "cliprange": EMPTY},
        CLIP_EXTRAS,
    ),
    "compute_policy_gradient_loss": (
        {
            "policy_log_probs": EMPTY,
            "loss_type": EMPTY,
            "raw_rewards": None,
            "advantages": None,
            "old_log_probs": None,
            "cliprange": None,
        },
        CLIP_EXTRAS,
    ),
    "masked_mean": ({"tensor": EMPTY, "mask": EMPTY, "dim": None}, {}),
    "masked_normalize": ({"tensor": EMPTY, "mask": EMPTY, "normalize_constant": 1.0, "dim": None}, {}),
    "grpo_microbatch_train_step": (
        {
            "policy_log_probs": EMPTY,
            "response_mask": EMPTY,
            "gradient_accumulation_steps": EMPTY,
            "loss_type": EMPTY,
            "raw_rewards": None,
            "advantages": None,
            "old_log_probs": None,
            "cliprange": None,
        },
        CLIP_EXTRAS,
    ),
    "tokenize_prompt_and_output": (
        {"prompt_strs": EMPTY, "output_strs": EMPTY, "tokenizer": EMPTY},
        {"prompt_special_tokens": False},
    ),
    "compute_entropy": ({"logits": EMPTY}, {}),
    "keyword_inclusion_reward_fn": ({"response": EMPTY, "keywords": EMPTY}, {}),
    "get_response_log_probs": (
        {"model": EMPTY, "input_ids": EMPTY, "labels": EMPTY, "return_token_entropy": False},
        {"temperature": 1.0},
    ),
}


@pytest.mark.parametrize("name", INTERFACE)
def test_signature_is_the_published_one(name):
    positional, extras = INTERFACE[name]
    parameters = inspect.signature(getattr(grpo, name)).parameters.values()
    by_position = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
    by_keyword = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert list(by_position.items()) == list(positional.items())
    assert by_keyword == extras
    assert len(by_position) + len(by_keyword) == len(parameters)


def test_all_lists_the_interface_in_order_and_every_name_exists():
    assert set(INTERFACE) <= set(grpo.__all__)
    assert grpo.__all__ == sorted(grpo.__all__)
    assert [name for name in grpo.__all__ if not hasattr(grpo, name)] == []
