"""Tasks: prompts, held-out prompts and their reward. No torch in here."""

from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.tasks.jsonl import JsonlTask
from harness.tasks.keywords import KeywordTask, keyword_reward

__all__ = ["JsonlTask", "KeywordTask", "keyword_inclusion_reward_fn", "keyword_reward"]
