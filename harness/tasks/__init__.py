"""Tasks: prompts for training and validation, and the rewards of responses. No torch.

May import scenario and what stands below it. Start with ``jsonl`` (your own prompts and reward) or ``keywords``;
``maths`` verifies answers, ``scoring`` calls a reward function that may fail, hang or take its process with it.
"""

from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.tasks.jsonl import JsonlTask
from harness.tasks.keywords import KeywordTask, keyword_reward

__all__ = ["JsonlTask", "KeywordTask", "keyword_inclusion_reward_fn", "keyword_reward"]
