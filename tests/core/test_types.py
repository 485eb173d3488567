"""Metrics combine by their own reduction; derived seeds are stable."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.core.seeds import derive_seed
from harness.core.types import Metric, combine_metrics


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=9),
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=9),
)
def test_combining_equals_concatenating(left: list[int], right: list[int]) -> None:
    def metric(values: list[int], reduction: str) -> Metric:
        value = {"mean": sum(values) / len(values), "sum": sum(values), "max": max(values), "min": min(values)}[
            reduction
        ]
        return Metric(value, reduction, len(values))  # type: ignore[arg-type]

    for reduction in ("mean", "sum", "max", "min"):
        combined = metric(left, reduction).combine(metric(right, reduction))
        whole = metric(left + right, reduction)
        assert combined.value == pytest.approx(whole.value, abs=1e-9)
        assert combined.count == whole.count


def test_different_reductions_do_not_mix() -> None:
    with pytest.raises(ValueError, match="cannot combine a mean with a sum"):
        Metric(1.0).combine(Metric(1.0, "sum"))


def test_metric_dicts_combine_name_by_name() -> None:
    parts = [{"loss": Metric(1.0, count=3), "tokens": Metric(5.0, "sum")}, {"loss": Metric(5.0, count=1)}]
    assert combine_metrics(parts) == {"loss": Metric(2.0, count=4), "tokens": Metric(5.0, "sum")}  # (1*3 + 5) / 4


def test_derived_seeds_depend_on_every_part_and_never_change() -> None:
    assert derive_seed(0, "train", 1, 2) == derive_seed(0, "train", 1, 2)
    seeds = {derive_seed(*parts) for parts in [(0, 1, 2), (0, 2, 1), (0, 12), (1, 2), (0, "1", 2, 0)]}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_user_errors_say_where_and_how_to_fix_and_survive_pickling() -> None:
    error = UserError("group_size 7 does not divide 64", "quickstart.yaml:4", "use 8")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "group_size 7 does not divide 64\n  where: quickstart.yaml:4\n  fix:   use 8"
    assert isinstance(copy, ValueError)
