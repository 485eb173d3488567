"""Checksums of weights: the proof that what was loaded is what was published.

A fingerprint covers names, dtypes, shapes and raw bytes, and says by which algorithm it was made: ``xxh3_128`` reads
the memory of CPU tensors in place; ``wsum64`` sums on the tensors' own device, so that weights on a GPU stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import xxhash
from torch import Tensor

from harness.errors import RunStopped

_CHUNK_WORDS = 1 << 22  # words summed at a time: bounds the temporary memory to 64 MiB
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, odd, as a signed integer


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return ``algorithm:hex`` of the weights; the mapping's order does not matter.

    ``xxh3_128`` where all tensors are on the CPU (contiguous ones are not copied), else ``wsum64``.
    """
    on_cpu = all(tensor.device.type == "cpu" for tensor in weights.values())
    return _fingerprint(weights, "xxh3_128" if on_cpu else "wsum64")


def verify(weights: Mapping[str, Tensor], expected: str, version: int, lane: str) -> None:
    """Compare loaded weights with the published fingerprint, by the algorithm that it names.

    Raises:
        RunStopped: they differ.
    """
    loaded = _fingerprint(weights, expected.partition(":")[0])
    if loaded == expected:
        return
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    raise RunStopped(
        f"the weights of version {version} that {lane} received are not the published ones: "
        f"published {expected}, received {loaded} ({len(weights)} tensors, {num_bytes} bytes)"
    )


def _fingerprint(weights: Mapping[str, Tensor], algorithm: str) -> str:
    add = _ALGORITHMS[algorithm]
    total = xxhash.xxh3_128()
    for name in sorted(weights):
        tensor = weights[name].detach()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        add(total, _raw_bytes(tensor))
    return f"{algorithm}:{total.hexdigest()}"


def _raw_bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as uint8 (bytes,), a view where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _add_bytes(total: xxhash.xxh3_128, raw: Tensor) -> None:
    total.update(raw.cpu().numpy().data)


def _add_sums(total: xxhash.xxh3_128, raw: Tensor) -> None:
    """Add the sum of the 8-byte words and the sum of the words times odd, position-dependent weights, modulo 2^64.

    An odd weight is invertible modulo 2^64, so one changed word always changes the second sum; two swapped words
    change it too, since their weights differ.
    """
    plain = torch.zeros((), dtype=torch.int64, device=raw.device)
    weighted = torch.zeros((), dtype=torch.int64, device=raw.device)
    for start in range(0, raw.numel(), 8 * _CHUNK_WORDS):
        words = _words(raw[start : start + 8 * _CHUNK_WORDS])
        position = torch.arange(words.numel(), dtype=torch.int64, device=raw.device) + start // 8
        plain += words.sum()
        weighted += (words * ((2 * position + 1) * _ODD)).sum()
    total.update(plain.cpu().numpy().tobytes() + weighted.cpu().numpy().tobytes())


def _words(raw: Tensor) -> Tensor:
    """Bytes as int64, the last word filled up with zeros; a copy where the memory is not aligned to words."""
    gap = -raw.numel() % 8
    if gap:
        raw = torch.cat([raw, raw.new_zeros(gap)])
    elif raw.storage_offset() % 8:
        raw = raw.clone()
    return raw.view(torch.int64)


_ALGORITHMS: dict[str, Callable[[xxhash.xxh3_128, Tensor], None]] = {"xxh3_128": _add_bytes, "wsum64": _add_sums}
