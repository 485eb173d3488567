"""The rows of a transport sweep: one for each timed weight sync, in ``steps.jsonl``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KIND = "sync"


@dataclass(frozen=True, slots=True)
class SyncRow:
    """One weight sync.

    Attributes:
        num_bytes, tensors: of the weights.
        receivers: Generators that loaded them; times of the slowest one.
        repeat: 0 was not counted, since it sets connections up and touches fresh memory.
        total_s: from the start of the publish until the weights are in tensors of the slowest receiver's own, without
            verification. Where a transport delivers into the receiver's own memory, ``load_s`` is not part of it.
        publish_s, transfer_s, load_s: the stages; between them lie the calls from process to process.
        verify_s: the checksums on both sides.
        plain_copy_s: one copy of as many bytes in warm memory, right after it.
    """

    transport: str
    num_bytes: int
    tensors: int
    receivers: int
    repeat: int
    total_s: float
    publish_s: float
    transfer_s: float
    load_s: float
    verify_s: float
    plain_copy_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the row."""
        return {"kind": KIND} | asdict(self)
