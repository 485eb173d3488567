"""Parts of a reward: one that reads the whole row, one that compares the responses of a group, one written for TRL."""

from typing import Any


def copied(response: str, row: dict[str, Any]) -> float:
    """Return 1 for a response that repeats its prompt."""
    return float(row["prompt"] in response)


def unlike_the_others(responses: list[str], ground_truth: str) -> list[float]:
    """Return for each response the share of the others in its group that differ from it."""
    others = max(len(responses) - 1, 1)
    return [sum(other != response for other in responses) / others for response in responses]


def shortness(completions: list[str], **columns: list[Any]) -> list[float]:
    """Return 1 for no words and less for many: a reward function as TRL calls it."""
    return [1 / (1 + len(completion.split())) for completion in completions]


def as_trl(responses: list[str], row: dict[str, Any]) -> list[float]:
    """Call a function of TRL's signature: every field of the row as a list, and the prompts as ``prompts``."""
    columns = {name: [value] * len(responses) for name, value in row.items()}
    return shortness(prompts=columns.pop("prompt"), completions=responses, **columns)
