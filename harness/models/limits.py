"""How much a pass with gradients may keep or compute at a time. No torch: plans of memory read it too."""

from __future__ import annotations

MAX_LOGITS = {"cpu": 2**27, "cuda": 2**28}
"""Most logits kept for the way back, tokens x vocabulary: 512 MiB in float32, on a GPU 1 GiB."""
PIECE_LOGITS = {"cpu": 2**25, "cuda": 2**28}
"""Most logits computed at a time. A CPU's caches want few; on a GPU each piece reads and writes the gradient of the
output matrix once more: 8,192 tokens of 151,936 take 111 ms with the CPU's numbers, 63 with these (H100)."""
MAX_SCORES = 2**24
"""Most attention scores that the plain kernel keeps of a layer, 64 MiB in float32; see ``layers.attention``."""


def keeps_scores(scores: int, keys: int, head_dim: int, max_scores: int = MAX_SCORES) -> bool:
    """Whether attention on a CPU takes the kernel that keeps its scores; see ``layers.attention``."""
    return keys <= 2 * head_dim and scores <= max_scores
