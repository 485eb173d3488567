"""The rewards of one group, from a function that may fail.

A reward function is somebody's code and reads what a model wrote. It may raise, hang or take its process with it, and
any of these costs its group and nothing else. ``DirectRewards`` calls it in this process, ``TimedRewards`` in one that
is killed when a group takes too long.
"""

from harness.tasks.scoring.group import DirectRewards, GroupRewards, Reward, RewardFailed
from harness.tasks.scoring.timed import TimedRewards

__all__ = ["DirectRewards", "GroupRewards", "Reward", "RewardFailed", "TimedRewards"]
