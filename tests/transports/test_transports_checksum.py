"""Checksums of weights: what they cover, and what a difference says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash

from harness.core.errors import RunStopped
from harness.transports.checksum import checksum, verify

ALGORITHMS = ("xxh3_128", "wsum64")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool)


def by(algorithm, weights):
    """The fingerprint by this algorithm, through the public door: a check against something that cannot be equal."""
    with pytest.raises(RunStopped) as stopped:
        verify(weights, f"{algorithm}:0", 1, "generator")
    return str(stopped.value).partition("received ")[2].partition("received ")[2].split()[0]


def test_cpu_weights_are_hashed_with_xxh3_over_header_and_bytes():
    weights = {"w": torch.tensor([1.0, 2.0])}
    # float32 1.0 is 0x3f800000, 2.0 is 0x40000000, little-endian
    raw = b"w|torch.float32|(2,)|" + bytes.fromhex("0000803f00000040")
    assert checksum(weights) == f"xxh3_128:{xxhash.xxh3_128(raw).hexdigest()}"


def mixed(word):
    """A word or an array of them, as uint64: twice times an odd number and a shift that brings in zeros."""
    for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
        word = word * odd & (2**64 - 1) if isinstance(word, int) else word * np.uint64(odd)
        word = word ^ (word >> 31)
    return word


def summed(header, plain, weighted):
    """The fingerprint of one tensor with these two sums."""
    sums = (plain % 2**64).to_bytes(8, "little") + (weighted % 2**64).to_bytes(8, "little")
    return f"wsum64:{xxhash.xxh3_128(header + sums).hexdigest()}"


@pytest.mark.parametrize(
    ("tensor", "header", "plain", "weighted"),
    [
        # words 5 and 7 at positions 0 and 1; the sum is 12; the mixed words count once and three times
        (torch.tensor([5, 7]), b"w|torch.int64|(2,)|", 12, mixed(5) + 3 * mixed(7)),
        (torch.tensor([-1]), b"w|torch.int64|(1,)|", -1, mixed(2**64 - 1)),  # -1 is 2^64 - 1, mixed without its sign
        # the last word is filled up with zeros: 3 bytes 1, 2, 3 make 0x030201
        (torch.tensor([1, 2, 3], dtype=torch.uint8), b"w|torch.uint8|(3,)|", 0x030201, mixed(0x030201)),
    ],
)
def test_sums_by_hand(tensor, header, plain, weighted):
    assert by("wsum64", {"w": tensor}) == summed(header, plain, weighted)


def test_words_keep_their_positions_where_a_large_tensor_is_summed_in_pieces():
    # more words than one piece of 2^22; word i is i, so that the plain sum is n(n-1)/2
    n = 2**22 + 5
    words = np.arange(n, dtype=np.uint64)
    weighted = (mixed(words) * (2 * words + np.uint64(1))).sum(dtype=np.uint64)  # modulo 2^64
    assert by("wsum64", {"w": torch.arange(n)}) == summed(
        f"w|torch.int64|({n},)|".encode(), n * (n - 1) // 2, int(weighted)
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_single_bit_counts(algorithm, dtype):
    tensor = torch.arange(11).to(dtype)
    seen = {by(algorithm, {"w": tensor})}
    raw = tensor.view(torch.uint8)
    for byte in range(len(raw)):
        raw[byte] ^= 1
        seen.add(by(algorithm, {"w": tensor}))
        raw[byte] ^= 1
    assert len(seen) == 1 + len(raw)


def exchanged(distance):
    """Words that differ in their top bit alone, so far apart: two float32 to a word, the second has the top bit."""
    pairs = torch.tensor([1.0, 2.0]).repeat(distance + 1, 1)
    first, last = pairs.clone(), pairs.clone()
    first[0, 1] = last[distance, 1] = -2.0
    return first, last


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_plain_sums_would_not_see_counts(algorithm):
    pairs = {
        "exchanged": (torch.tensor([3, 4]), torch.tensor([4, 3])),
        "exchanged negatives": (torch.tensor([1.0, 2.0, -1.0, -2.0]), torch.tensor([-1.0, -2.0, 1.0, 2.0])),
        "two signs": (torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([1.0, -2.0, 1.0, -2.0])),  # 2^63 + 2^63 = 0
        **{f"top bit, {distance} apart": exchanged(distance) for distance in (1, 2, 1024)},
    }
    assert [
        name for name, (one, other) in pairs.items() if by(algorithm, {"w": one}) == by(algorithm, {"w": other})
    ] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_names_shapes_and_dtypes_count(algorithm):
    zeros = torch.zeros(4)
    alike = [
        {"w": zeros},
        {"v": zeros},
        {"w": zeros.view(2, 2)},
        {"w": zeros.to(torch.int32)},
        {"w": torch.zeros(5)},
        {"w": zeros, "x": torch.zeros(0)},
        {"w": torch.tensor(0.0)},
        {},
    ]
    assert len({by(algorithm, weights) for weights in alike}) == len(alike)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_strides_and_gradients_do_not_count(algorithm):
    matrix, vector = torch.arange(12.0).view(3, 4), torch.arange(5).to(torch.bfloat16)
    expected = by(algorithm, {"m": matrix, "v": vector})
    turned = torch.empty(4, 3).T.copy_(matrix)
    shifted = torch.arange(-1, 5).to(torch.bfloat16)[1:]  # starts in the middle of a word
    assert not turned.is_contiguous()
    assert by(algorithm, {"v": shifted, "m": turned.requires_grad_()}) == expected
    verify({"v": shifted, "m": turned}, expected, 3, "generator")
    whole = torch.arange(5.0)  # the piece begins 4 bytes in and has 16, two words
    assert by(algorithm, {"w": whole[1:]}) == by(algorithm, {"w": whole[1:].clone()})


def test_a_difference_stops_the_run_with_every_number():
    published, received = {"w": torch.zeros(4)}, {"w": torch.ones(4), "x": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(RunStopped) as stopped:
        verify(received, checksum(published), 7, "generator_1")
    assert str(stopped.value) == (
        "the weights of version 7 that generator_1 received are not the published ones: "
        f"published {checksum(published)}, received {checksum(received)} (2 tensors, 20 bytes)"
    )
