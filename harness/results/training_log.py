"""The lines that a person reads of a run's training: one for each step and evaluation, and some rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness.core.terminal_text import plain, plain_ends
from harness.core.types import ExampleRollout, Metrics

STEP_FIGURES: Final = (
    ("reward/total", "reward"),
    ("loss", "loss"),
    ("response_length", "length"),
    ("kl/reference_k3", "KL to the reference"),
    ("kl/penalty", "KL penalty"),
    ("grad_norm", "gradient norm"),
    ("clip_fraction", "clip fraction"),
    ("learning_rate", "learning rate"),
)
"""Metrics of a step's line, in this order, and what they are called there."""
EVALUATION_FIGURES: Final = (("validation/reward", "reward"), ("validation/response_length", "length"))
LONGEST_TEXT = 300
"""Characters of a prompt or response in the log."""
SHOWN_LOG_PROBS = 16
"""Log-probabilities of a rollout in the log; ``rollouts.jsonl`` has more of them."""


def step_line(step: int, metrics: Metrics, seconds: float) -> str:
    """Return the line of a training step: the figures of it that are known, and its seconds."""
    return f"step {step}: {', '.join([*_figures(metrics, STEP_FIGURES), f'{seconds:.3g} s'])}"


def evaluation_line(version: int, metrics: Metrics) -> str:
    """Return the line of an evaluation."""
    return f"validation of policy version {version}: {', '.join(_figures(metrics, EVALUATION_FIGURES))}"


def rollout_lines(step: int, rollouts: Sequence[ExampleRollout]) -> list[str]:
    """Return the lines of rollouts of one group that a step trained on: the prompt, then each of them.

    Texts are cut, and so are log-probabilities; control characters are written out.
    """
    if not rollouts:
        return []
    prompt = f"step {step} trained on {len(rollouts)} rollouts of: {plain_ends(rollouts[0].prompt, LONGEST_TEXT)}"
    return [prompt, *map(_rollout_line, rollouts)]


def _rollout_line(rollout: ExampleRollout) -> str:
    shown = rollout.log_probs[:SHOWN_LOG_PROBS]
    log_probs = " ".join(f"{round(value, 3) + 0.0:g}" for value in shown)  # + 0.0: no minus before a zero
    more = rollout.num_tokens - len(shown)
    after = f" and {more} more" if more > 0 else ""
    return (
        f"  reward {rollout.reward:.3g}, advantage {rollout.advantage:.3g}, version {rollout.version}, "
        f"log-probs {log_probs}{after}: {plain(rollout.response, LONGEST_TEXT)}"
    )


def _figures(metrics: Metrics, names: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{word} {metrics[name].value:.3g}" for name, word in names if name in metrics]
