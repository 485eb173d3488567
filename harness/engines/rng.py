"""A random stream for each row of a batch, which depends on the request's seed and the row alone. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]
"""32-bit words, each in the lower half of a uint64 so that a product of two fits."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox-4x32-10: four random 32-bit words for each counter.

    A keyed bijection of the counter, so any word of any stream can be had without the ones before it. Salmon, Moraes,
    Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c2 = product1 >> _HALF ^ c1 ^ np.uint64(k0), product0 >> _HALF ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & _LOW, product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) % 2**32, (k1 + _WEYL[1]) % 2**32
    return c0, c1, c2, c3


def row_uniforms(seed: int, rows: Sequence[tuple[int, int]], max_tokens: int) -> npt.NDArray[np.float32]:
    """Uniform multiples of 2^-24 in [0, 1), (max_tokens, R): column r is the stream of ``rows[r]``.

    A row is (the prompt's place in the rollout batch, sample index). Its stream is Philox under the seed's low 64 bits
    as key, with the two in the counter: it depends on nothing else, and a larger ``max_tokens`` only extends it.
    """
    prompts_R, samples_R = np.array(rows, dtype=np.uint64).T
    blocks_N1 = np.arange(-(-max_tokens // 4), dtype=np.uint64)[:, None]
    zeros_NR = np.zeros((len(blocks_N1), len(rows)), dtype=np.uint64)
    counter = (blocks_N1 + zeros_NR, samples_R + zeros_NR, prompts_R + zeros_NR, zeros_NR)
    words_N4R = np.stack(philox(counter, (seed % 2**32, (seed >> 32) % 2**32)), axis=1)
    words_TR = words_N4R.reshape(-1, len(rows))[:max_tokens]
    return (words_TR >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


def stream_rows(rows: Sequence[tuple[int, int]], places: Sequence[int] | None) -> Sequence[tuple[int, int]]:
    """Return rows by the place of their prompt in the rollout batch, which their streams depend on.

    Args:
        rows: (index of the prompt in the request, sample index).
        places: of the request's prompts in the batch; None counts from 0.
    """
    return rows if places is None else [(places[prompt], sample) for prompt, sample in rows]


def pinned_lengths(seed: int, rows: Sequence[tuple[int, int]], bounds: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return a length for each row, (R,), uniform over ``bounds`` (both included) to within 2^-32 of its size.

    A row's length depends on the seed and the row alone, and shares no random word with ``row_uniforms``.
    """
    shortest, longest = bounds
    prompts_R, samples_R = np.array(rows, dtype=np.uint64).T
    zeros_R = np.zeros(len(rows), dtype=np.uint64)
    words_R, *_ = philox((zeros_R, samples_R, prompts_R, zeros_R + np.uint64(1)), (seed % 2**32, (seed >> 32) % 2**32))
    return shortest + (words_R * np.uint64(longest - shortest + 1) >> _HALF).astype(np.int64)
