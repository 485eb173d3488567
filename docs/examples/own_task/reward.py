"""A reward of one's own: credit for each wanted word, and none at all for a sentence that does not end."""

import re


def score(response: str, ground_truth: str) -> dict[str, float]:
    """Return the share of the wanted words that occur in the response, or 0 without a full stop at the end."""
    wanted = ground_truth.split()
    written = re.findall("[a-z]+", response.lower())
    answer = sum(word in written for word in wanted) / len(wanted)
    ended = 1.0 if response.endswith(".") else 0.0
    return {"reward": answer * ended, "format_reward": ended, "answer_reward": answer}
