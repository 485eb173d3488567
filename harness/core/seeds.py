"""Derived seeds: independent streams from one root, the same on every machine and in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on all parts and their order."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
