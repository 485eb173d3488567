"""Training: the policy with its optimizer and reference policy, and the supervised warm start of the presets.

May import transports and what stands below them. Start with ``trainer``, which takes its learning rates from
``optimizer``, its KL from ``reference`` and its rows from ``scenario.batch_plan``; ``paced`` takes its place where only
time matters. ``warm_start`` teaches a preset its first words, once, and keeps the weights.
"""

from harness.learner.trainer import PolicyTrainer, PreparedBatch, TrainerOptions

__all__ = ["PolicyTrainer", "PreparedBatch", "TrainerOptions"]
