"""Checksums of weights: the proof that the tensors an engine was loaded from are the published ones.

The Learner's is taken of the published copy. A Generator's is taken right after its engine has loaded, over the tensors
that it was loaded from: it shows damage on the way and changes during the load, and not what the engine made of them.

A checksum covers names, dtypes, shapes and raw bytes, and says by which algorithm it was made: ``xxh3_128`` reads
the memory of CPU tensors in place; ``wsum64`` sums on the tensors' own device, so that weights on a GPU stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.types import PartChecksum

_CHUNK_WORDS = 1 << 22  # words summed at a time: each temporary tensor takes 32 MiB
# 2^64 / golden ratio, and the first multiplier of SplitMix64: odd, as signed integers
_ODDS = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64))


def checksum(weights: Mapping[str, Tensor]) -> str:
    """Return ``algorithm:hex`` of the weights; the mapping's order does not matter.

    ``xxh3_128`` where all tensors are on the CPU (contiguous ones are not copied), else ``wsum64``.
    """
    on_cpu = all(tensor.device.type == "cpu" for tensor in weights.values())
    return _checksum(weights, "xxh3_128" if on_cpu else "wsum64")


def verify(weights: Mapping[str, Tensor], expected: str | Sequence[PartChecksum], version: int, lane: str) -> None:
    """Compare received weights with the published checksum, or with each part's, by the algorithm that it names.

    Raises:
        RunStopped: they differ, with the ranks whose parts do; or the parts leave something out.
    """
    if isinstance(expected, str):
        _compare(weights, expected, version, f"{lane} received")
        return
    covered = sum(block.numel for part in expected for block in part.slices)
    elements = sum(tensor.numel() for tensor in weights.values())
    unknown = {block.name for part in expected for block in part.slices} - weights.keys()
    if covered != elements or unknown:
        raise RunStopped(
            f"the checksums of version {version} cover {covered} of the {elements} elements that {lane} received; "
            f"tensors that did not arrive: {', '.join(sorted(unknown)) or 'none'}"
        )
    wrong = []
    for part in expected:
        try:
            blocks = {block.name: block.of(weights[block.name]) for block in part.slices}
            _compare(blocks, part.checksum, version, f"{lane} received from rank {part.rank} of the Learner")
        except RunStopped as differs:
            wrong.append(str(differs))
    if wrong:
        raise RunStopped("; ".join(wrong))


def _compare(weights: Mapping[str, Tensor], expected: str, version: int, received_by: str) -> None:
    received = _checksum(weights, expected.partition(":")[0])
    if received == expected:
        return
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    raise RunStopped(
        f"the weights of version {version} that {received_by} are not the published ones: "
        f"published {expected}, received {received} ({len(weights)} tensors, {num_bytes} bytes)"
    )


def _checksum(weights: Mapping[str, Tensor], algorithm: str) -> str:
    add = _ALGORITHMS[algorithm]
    total = xxhash.xxh3_128()
    for name in sorted(weights):
        tensor = weights[name].detach()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        add(total, _raw_bytes(tensor))
    return f"{algorithm}:{total.hexdigest()}"


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor: its own memory where it is on this host and contiguous.

    By DLPack, since ``Tensor.numpy()`` forbids for good to resize the storage, and with it to offload the tensor.
    """
    return np.from_dlpack(_raw_bytes(tensor.detach()).cpu()).data


def _raw_bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as uint8 (bytes,), a view where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _add_bytes(total: xxhash.xxh3_128, raw: Tensor) -> None:
    total.update(bytes_of(raw))


def _add_sums(total: xxhash.xxh3_128, raw: Tensor) -> None:
    """Add two sums over the 8-byte words w_i, modulo 2^64: of w_i, and of (2i + 1) m(w_i), where m is ``_mixed``.

    One changed word always shows: in the first sum, and in the second since 2i + 1 is odd. Two words a and b that swap
    places i and j show unless (m(a) - m(b)) (i - j) is a multiple of 2^63. Where they differ in the top bit alone (the
    sign of a word's upper float32) they always show, since m(a) - m(b) is then 2 modulo 4. Anything else can go
    unnoticed, by chance: about 2^(k - 63), where 2^k divides the distance of a swap (else k = 0). That is enough for
    accidents, and no defence against a change made to go unnoticed.
    """
    plain = torch.zeros((), dtype=torch.int64, device=raw.device)
    weighted = torch.zeros((), dtype=torch.int64, device=raw.device)
    for start in range(0, raw.numel(), 8 * _CHUNK_WORDS):
        words = _words(raw[start : start + 8 * _CHUNK_WORDS])
        position = torch.arange(words.numel(), dtype=torch.int64, device=raw.device) + start // 8
        plain += words.sum()
        weighted += (_mixed(words) * (2 * position + 1)).sum()
    total.update(plain.cpu().numpy().tobytes() + weighted.cpu().numpy().tobytes())


def _mixed(words: Tensor) -> Tensor:
    """Spread what differs between words over all their bits, one to one: twice times an odd number and x ^ (x >>> 31).

    The shift brings in zeros: with the sign, x and ~x would become the same.
    """
    for odd in _ODDS:
        words = words * odd
        words ^= (words >> 31).bitwise_and_((1 << 33) - 1)
    return words


def _words(raw: Tensor) -> Tensor:
    """Bytes as int64, the last word filled up with zeros; a copy where the memory is not aligned to words."""
    gap = -raw.numel() % 8
    if gap:
        raw = torch.cat([raw, raw.new_zeros(gap)])
    elif raw.storage_offset() % 8:
        raw = raw.clone()
    return raw.view(torch.int64)


_ALGORITHMS: dict[str, Callable[[xxhash.xxh3_128, Tensor], None]] = {"xxh3_128": _add_bytes, "wsum64": _add_sums}
