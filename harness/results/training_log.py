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
    prompts = [plain_ends(rollout.prompt, LONGEST_TEXT) for rollout in rollouts[:1]]
    lines = [f"step {step} trained on {len(rollouts)} rollouts of: {prompt}" for prompt in prompts]
    for each in rollouts:
        shown = each.log_probs[:SHOWN_LOG_PROBS]
        log_probs = " ".join(f"{round(value, 3) + 0.0:g}" for value in shown)  # + 0.0: no minus before a zero
        after = f" and {each.num_tokens - len(shown)} more" if each.num_tokens > len(shown) else ""
        facts = f"reward {each.reward:.3g}, advantage {each.advantage:.3g}, version {each.version}, log-probs"
        lines.append(f"  {facts} {log_probs}{after}: {plain(each.response, LONGEST_TEXT)}")
    return lines


def _figures(metrics: Metrics, names: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{word} {metrics[name].value:.3g}" for name, word in names if name in metrics]
