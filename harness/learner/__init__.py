"""What the Learner holds: the policy, its optimizer and the reference policy."""

from harness.learner.trainer import PolicyTrainer, PreparedBatch, TrainerOptions

__all__ = ["PolicyTrainer", "PreparedBatch", "TrainerOptions"]
