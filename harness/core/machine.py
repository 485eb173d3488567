"""What tells one kind of machine from another; no names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def processor_fields(proc: Path = Path("/proc")) -> dict[str, str]:
    """Return what the kernel says of the processor, by its own names for it: of several cores, of the first one."""
    try:
        text = (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in text.splitlines()):
        if value.strip():
            fields.setdefault(key.strip(), " ".join(value.split()))
    return fields


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return 12 hex digits that depend on these facts only, and lead back to none."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
