"""Which passes of the model a training step needs beside the update: one rule for training and for simulating it."""

from __future__ import annotations


def old_is_engine(behaviour_is_engine: bool, proximal: str) -> bool:
    """Return whether the ratio divides by the engine's log-probs; else by the Learner's own at the start of the step.

    Args:
        behaviour_is_engine: rollouts may be of an older policy (lag or replay), so that only the engine speaks for it.
        proximal: ``engine`` or ``recompute``.
    """
    return behaviour_is_engine and proximal == "engine"


def needs_old_log_probs(behaviour_is_engine: bool, proximal: str, optimizer_steps: int, monitor_kl: bool) -> bool:
    """Return whether the Learner computes the old log-probs.

    With one optimizer step the policy's own detached ones are the same, for the ratio and for importance weights.
    Monitoring fresh rollouts needs them as its p all the same.
    """
    monitored = monitor_kl and not behaviour_is_engine
    return not old_is_engine(behaviour_is_engine, proximal) and (optimizer_steps > 1 or monitored)


def needs_reference(monitor_kl: bool, kl_coefficient: float) -> bool:
    """Return whether a reference policy is kept."""
    return monitor_kl or kl_coefficient > 0
