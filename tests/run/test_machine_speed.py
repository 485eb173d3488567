"""The speed probe does the same work each time and reports medians."""

import itertools

from harness.run.machine_speed import ROUNDS, measure_speed


def test_it_reports_the_median_of_each_kind_of_work() -> None:
    # a clock whose n-th reading is n squared: work n (counted from 0) lasts (2n + 1)^2 - (2n)^2 = 4n + 1
    readings = (float(number * number) for number in itertools.count())
    found = measure_speed(lambda: next(readings))
    kinds = ["python", "numpy", "copy"]
    times = {kind: [4.0 * (3 * round_ + place) + 1 for round_ in range(ROUNDS)] for place, kind in enumerate(kinds)}
    assert found == {kind: sorted(values)[ROUNDS // 2] for kind, values in times.items()}


def test_real_work_takes_time() -> None:
    assert all(seconds > 0 for seconds in measure_speed().values())
