"""Checksums of weights: what they cover, and what a difference says."""

from __future__ import annotations

import pytest
import torch
import xxhash

from harness.errors import RunStopped
from harness.transports.fingerprint import fingerprint, verify

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
    assert fingerprint(weights) == f"xxh3_128:{xxhash.xxh3_128(raw).hexdigest()}"


def test_sums_by_hand():
    # words 5 and 7 at positions 0 and 1; the sum is 12; weights are 1*c and 3*c, the weighted sum is (5 + 21)c mod 2^64
    c = 0x9E3779B97F4A7C15
    sums = (12).to_bytes(8, "little") + (26 * c % 2**64).to_bytes(8, "little")
    expected = xxhash.xxh3_128(b"w|torch.int64|(2,)|" + sums).hexdigest()
    assert by("wsum64", {"w": torch.tensor([5, 7])}) == f"wsum64:{expected}"


def test_the_last_word_is_filled_up_with_zeros():
    # 3 bytes 1, 2, 3 make the word 0x030201
    c = 0x9E3779B97F4A7C15
    sums = (0x030201).to_bytes(8, "little") + (0x030201 * c % 2**64).to_bytes(8, "little")
    expected = xxhash.xxh3_128(b"w|torch.uint8|(3,)|" + sums).hexdigest()
    assert by("wsum64", {"w": torch.tensor([1, 2, 3], dtype=torch.uint8)}) == f"wsum64:{expected}"


def test_words_keep_their_positions_where_a_large_tensor_is_summed_in_pieces():
    # more words than one piece of 2^22; word i is i: the sum is n(n-1)/2, and that of i(2i+1) is
    # 2 n(n-1)(2n-1)/6 + n(n-1)/2
    n, c = 2**22 + 5, 0x9E3779B97F4A7C15
    plain = n * (n - 1) // 2
    weighted = c * (n * (n - 1) * (2 * n - 1) // 3 + plain)
    sums = plain.to_bytes(8, "little") + (weighted % 2**64).to_bytes(8, "little")
    expected = xxhash.xxh3_128(f"w|torch.int64|({n},)|".encode() + sums).hexdigest()
    assert by("wsum64", {"w": torch.arange(n)}) == f"wsum64:{expected}"


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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_exchanged_elements_count(algorithm):
    assert by(algorithm, {"w": torch.tensor([3, 4])}) != by(algorithm, {"w": torch.tensor([4, 3])})


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


def test_equal_weights_pass_by_the_algorithm_named():
    weights = {"w": torch.arange(9.0)}
    for algorithm in ALGORITHMS:
        verify(weights, by(algorithm, weights), 3, "generator")


def test_a_difference_stops_the_run_with_every_number():
    published, received = {"w": torch.zeros(4)}, {"w": torch.ones(4), "x": torch.zeros(2, dtype=torch.bfloat16)}
    with pytest.raises(RunStopped) as stopped:
        verify(received, fingerprint(published), 7, "generator_1")
    assert str(stopped.value) == (
        "the weights of version 7 that generator_1 received are not the published ones: "
        f"published {fingerprint(published)}, received {fingerprint(received)} (2 tensors, 20 bytes)"
    )
