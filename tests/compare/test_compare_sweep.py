"""A transport sweep: medians, shares, fitted costs and the winner by size, from times made up by known costs."""

import pytest
from msgspec import structs

from harness.compare.sync_costs import SyncCost, fastest_by_size, sync_costs, sync_points, sync_sentences
from harness.results.rows import SyncRow

COSTS = {"gloo": (0.004, 30e-6, 0.8e-9), "nixl": (0.002, 10e-6, 1.2e-9)}  # fixed, per tensor, per byte


def row(transport: str, megabytes: float, tensors: int, repeat: int, factor: float = 1.0) -> SyncRow:
    fixed, per_tensor, per_byte = COSTS[transport]
    num_bytes = round(megabytes * 1e6)
    total = factor * (fixed + per_tensor * tensors + per_byte * num_bytes)
    copy_s = num_bytes * 0.2e-9
    return SyncRow(transport, num_bytes, tensors, 1, repeat, total, 0.001, total - 0.002, 0.001, 0.5, copy_s)


def rows() -> list[SyncRow]:
    factors = (100.0, 1.0, 0.9, 1.3)  # the first is not counted; the median of the others is 1.0
    return [
        row(name, size, tensors, repeat, factor)
        for name in COSTS
        for size in (1, 10, 100)
        for tensors in (1, 200)
        for repeat, factor in enumerate(factors)
    ]


def test_a_point_is_the_median_of_the_counted_syncs() -> None:
    (point,) = [p for p in sync_points(rows()) if (p.transport, p.num_bytes, p.tensors) == ("nixl", 10_000_000, 1)]
    whole = 0.002 + 10e-6 + 10e6 * 1.2e-9  # 0.01401
    assert (point.repeats, point.receivers) == (3, 1)
    assert point.median_s == pytest.approx(whole)
    assert point.low_s == pytest.approx(whole * (0.9 + 0.2 * 0.1))  # a fifth of the way from 0.9 to 1.0
    assert point.high_s == pytest.approx(whole * (1.0 + 0.8 * 0.3))  # four fifths of the way from 1.0 to 1.3
    assert point.share_of_copy == pytest.approx(0.002 / whole)  # a plain copy of 10 MB takes 2 ms
    assert (point.publish_s, point.load_s, point.verify_s) == (0.001, 0.001, 0.5)


def test_transports_come_in_the_order_of_their_largest_times() -> None:
    # at 100 MB in 200 tensors: gloo 4 + 6 + 80 = 90 ms, nixl 2 + 2 + 120 = 124 ms
    assert list(dict.fromkeys(point.transport for point in sync_points(rows()))) == ["gloo", "nixl"]


def test_the_fit_finds_the_costs_that_made_the_times() -> None:
    for cost in sync_costs(sync_points(rows())):
        fixed, per_tensor, per_byte = COSTS[cost.transport]
        assert cost.fixed_s == pytest.approx(fixed, rel=1e-6)
        assert cost.per_tensor_s == pytest.approx(per_tensor, rel=1e-6)
        assert cost.per_byte_s == pytest.approx(per_byte, rel=1e-6)
        assert cost.worst < 1e-9


def test_no_fitted_cost_is_negative_and_what_was_not_varied_is_left_out() -> None:
    falling = [structs.replace(row("nixl", size, 1, 1), total_s=seconds) for size, seconds in ((1, 0.010), (10, 0.009))]
    (cost,) = sync_costs(sync_points(falling))
    assert (cost.per_tensor_s, cost.per_byte_s) == (0.0, 0.0)
    # relative least squares of a constant c: c = sum(1/s) / sum(1/s^2) = (100 + 111.1) / (10000 + 12345.7)
    assert cost.fixed_s == pytest.approx((100 + 1000 / 9) / (10000 + 1e6 / 81))
    assert cost.worst == pytest.approx(1 - cost.fixed_s / 0.010)


def test_the_winner_changes_where_the_fitted_lines_cross() -> None:
    costs = [SyncCost(name, 1, *numbers, 0.0) for name, numbers in COSTS.items()]
    found = fastest_by_size(costs, 1e6, 1e8, tensors=1)
    # nixl 0.00201 + 1.2e-9 b against gloo 0.00403 + 0.8e-9 b: equal at b = 0.00202 / 0.4e-9 = 5.05 MB
    assert [name for _, name in found] == ["nixl", "gloo"]
    assert found[0][0] == 1e6
    assert 5.05e6 <= found[1][0] <= 5.05e6 * 1e2 ** (1 / 200)


def test_sentences_name_the_fastest_its_share_and_the_crossover() -> None:
    points = sync_points(rows())
    said = sync_sentences(points, sync_costs(points))
    # 100 MB in one tensor: gloo 84.03 ms, plain copy 20 ms: 24%; nixl 122.01 ms: 16%
    assert said == [
        "At 100 MB gloo is the fastest: 84.0 ms from publish to the receiver's own tensors, 24% of the bandwidth of a "
        "plain copy in memory (nixl 16%).",
        "By the fitted costs the fastest is nixl for the smallest weights, from 5.13 MB on gloo.",
    ]


def test_a_sentence_against_the_object_store_says_which_form() -> None:
    COSTS["object_store"] = (0.01, 0.0, 3e-9)
    try:
        points = sync_points([row(name, 100, 1, 1) for name in ("gloo", "object_store")])
    finally:
        del COSTS["object_store"]
    # 84.03 ms against 310 ms
    assert sync_sentences(points, [])[1] == (
        "Times at 100 MB relative to Ray's object store given torch tensors, Ray's default (object_store): gloo 0.27."
    )
