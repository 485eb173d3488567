"""How far ratios may move where nobody says so. A range holds for ratios of one kind only."""

from __future__ import annotations


def usual_clip_range(loss_type: object, ratio_level: object) -> tuple[float, float]:
    """Return how far the ratio of a loss may fall below 1 and rise above it.

    0.2 and 0.2 for ratios of tokens (PPO, arXiv:1707.06347, table 3). 0.0003 and 0.0004 for those of whole responses,
    which are geometric means and so lie much closer to 1 (GSPO, arXiv:2507.18071, section 5.1). CISPO's are weights:
    no lower bound (arXiv:2506.13585), and at most 5, as TRL recommends (ScaleRL).
    """
    if loss_type == "cispo":
        return 1.0, 4.0
    return (3e-4, 4e-4) if (loss_type, ratio_level) == ("grpo_clip", "sequence") else (0.2, 0.2)
