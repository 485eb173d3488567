"""Sweeps: axes as typed, knees by hand, points that cannot be, and the files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from harness.core.errors import UserError
from harness.scenario.load import load_scenario
from harness.simulate.knee import advice, find_knee, smallest_good
from harness.simulate.machine import load_machine
from harness.simulate.points import Axis, Question, answers, axis_of, points_of, read_axes, read_axis, steady
from harness.simulate.sweep import Sweep, draws_for, run_sweep
from tests.simulate.conftest import ABACUS

SMALL = (
    "rollout_batch_size=16", "group_size=4", "sampling.pinned_lengths=[11, 11]", "transport.type=shared_memory",
    "placement.colocated=false",
)  # fmt: skip


def question(*changes: str, draws: int = 2) -> Question:
    return Question(steady(load_scenario("sync_k1", [*SMALL, *changes]), 4), load_machine(ABACUS), draws, 0)


def test_axes_are_ranges_or_lists() -> None:
    assert read_axis("generators=1..4") == Axis("placement.generator.count", (1, 2, 3, 4))
    assert [len(axis.values) for axis in read_axes(["seed=1..20000", "lag=0"])] == [20_000, 1]  # the most
    assert read_axis("lag=0,2") == Axis("max_lag", (0, 2))
    assert read_axis("transport.type=nixl, disk") == Axis("transport.type", ("nixl", "disk"))
    assert read_axis("optimizer.learning_rate=1e-5,0.1").values == (1e-5, 0.1)
    points = [tuple(point.items()) for point in points_of(read_axes(["lag=0,1", "ranks=1,2"]))]
    assert points == [(("max_lag", lag), ("placement.learner.ranks", ranks)) for lag in (0, 1) for ranks in (1, 2)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["lag"], "'lag' is no axis"),
        (["lag="], "'lag=' is no axis"),
        (["lag=4..1"], "lag=4..1"),
        (["lag=1,1"], "lag=1,1"),
        (["lag=0,1", "max_lag=2"], "max_lag is swept twice"),
        (["seed=1..20001"], "20,001 values, must be at most 20,000"),
        (["seed=1..20", "steps=1..1001"], "20,020 points, must be at most 20,000"),
    ],
)
def test_what_is_no_axis_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_axes(texts)


def test_ready_made_questions_look_into_scenario_and_profile() -> None:
    scenario, machine = load_scenario("sync_k1", list(SMALL)), load_machine(ABACUS)
    assert axis_of("generators", scenario, machine).values == (1, 2, 3, 4)  # a batch has 16 / 4 prompts
    assert axis_of("lag", scenario, machine) == Axis("max_lag", (0, 1, 2, 3, 4))
    assert axis_of("transport", scenario, machine) == Axis("transport.type", ("shared_memory", "disk"))
    measured = axis_of("transport", scenario, load_machine("cpu-2-cores")).values
    assert {"shared_memory", "nixl", "disk"} <= set(measured)
    assert not {"in_process", "in_process_copy"} & set(measured)
    no_transports = machine.model_copy(update={"stages": machine.stages[:6]})
    with pytest.raises(UserError, match="knows no transport"):
        axis_of("transport", scenario, no_transports)


def test_data_sheets_do_not_tell_transports_apart_and_say_what_would() -> None:
    for name in ("a100-80gb", "b200-sxm", "h100-sxm", "h200-sxm", "l40s", "rtx-4090"):
        with pytest.raises(UserError, match="one cost of a weight sync for all transports") as caught:
            axis_of("transport", load_scenario("sizing_1_5b"), load_machine(name))
        assert "run transport_sweep_gpu;" in str(caught.value.fix)
    sweep = load_scenario("transport_sweep_gpu").transport_sweep
    assert sweep is not None
    assert "cuda_ipc" in sweep.transports


def test_few_points_have_more_draws() -> None:
    assert [draws_for([Axis("seed", tuple(range(points)))]) for points in (150, 151)] == [19, 7]


AXIS = Axis("placement.generator.count", (1, 2, 3, 4))


def test_the_knee_is_the_smallest_value_within_five_percent_of_the_best() -> None:
    assert smallest_good(np.array([[50.0], [94.9], [95.0], [100.0]])) == [2]
    rates = [(99.0, 100.0, 97.0), (100.0, 102.0, 98.0), (96.0, 98.0, 97.0), (50.0, 52.0, 48.0)]
    knee = find_knee([4, 3, 2, 1], rates, AXIS)
    # medians 50, 97, 100, 99: 97 is within 5% of 100
    assert (knee.value, knee.best, knee.at_end) == (2, (3, 100.0), False)
    assert knee.throughput.value == 97.0
    # draw by draw: 50/96, 52/98, 48/97, median 50/96; and 100/96, 102/98, 98/97, median 102/98
    beside = [each and (each.value, each.ratio.value) for each in (knee.less, knee.more)]
    assert beside == [(1, pytest.approx(50 / 96)), (3, pytest.approx(102 / 98))]
    assert knee.between == (2, 2)
    said = advice(knee, AXIS, "lag 1")
    parts = ("With lag 1: take generators 2", "97.0 tokens", "less (1): -47.9%", "more (3): +4.1%")
    assert all(part in said for part in parts)  # 50 / 96 - 1 and 102 / 98 - 1


def test_the_range_of_choices_ends_at_values_of_the_axis() -> None:
    # of 29 draws one has its best at 1 and one at 64: nine in ten are interpolated to lie between 4.5 and 36
    low, middle, high = ([10.0] * 29 for _ in range(3))
    low[0] = high[28] = 90.0
    middle[1:28] = [90.0] * 27
    assert find_knee([1, 8, 64], [low, middle, high], Axis("placement.generator.count", (1, 8, 64))).between == (1, 64)


def test_a_value_is_judged_against_the_best_of_the_same_world() -> None:
    # By the medians, 40, 60 and 60, 2 would be enough; but in two of the three worlds it has 0.6 and 0.9 of what 3 has,
    # shares of 0.6, 0.9 and 1 with the median 0.9.
    knee = find_knee([1, 2, 3], [(30.0, 40.0, 60.0), (36.0, 90.0, 60.0), (60.0, 100.0, 60.0)], AXIS)
    assert (knee.value, knee.best) == (3, (3, 60.0))
    assert knee.less is not None
    assert knee.less.ratio.value == pytest.approx(0.9)


def test_the_ends_of_an_axis_have_one_neighbour_and_say_so() -> None:
    knee = find_knee([1, 2, 3], [(value * 10.0, value * 10.0) for value in (1, 2, 3)], AXIS)
    assert (knee.value, knee.more, knee.at_end) == (3, None, True)
    assert "beyond 3 there may be more to gain" in advice(knee, AXIS, "")
    flat = find_knee([1, 2], [(10.0,), (10.0,)], AXIS)
    assert (flat.value, flat.less) == (1, None)
    assert "may be more" not in advice(flat, AXIS, "")


def test_names_have_no_order_so_the_best_is_taken() -> None:
    axis = Axis("transport.type", ("disk", "nixl", "gloo"))
    knee = find_knee(axis.values, [(50.0,), (100.0,), (80.0,)], axis)
    said = advice(knee, axis, "")
    assert all(part in said for part in ("take transport nixl (100 tokens", "gloo: -20.0%", "disk: -50.0%"))


def test_a_point_that_cannot_be_is_told_and_the_others_go_on() -> None:
    points = [{"group_size": 4}, {"group_size": 5}, {"transport.type": "gloo"}]
    points += [{"placement.learner.ranks": 2, "sharding": "ddp"}, {"gpus": 4, "learner_share": 1}]
    found = answers(question(), points, processes=1)
    assert [answer.found is None for answer in found] == [False, True, True, True, True]
    problems = ("does not divide", "weight_publish", "exchange of the mode ddp, all_reduce", "no rank or no Generator")
    for answer, problem in zip(found[1:], problems, strict=True):
        assert problem in answer.problem


def test_processes_give_what_one_process_gives() -> None:
    points = [{"max_lag": lag, "seed": seed} for lag in (0, 1) for seed in range(14)]  # enough for processes to pay
    heard: list[int] = []
    apart = answers(question(draws=1), points, processes=2, heard=lambda: heard.append(1))
    assert apart == answers(question(draws=1), points, processes=1)
    assert len(heard) == len(points)


def test_a_sweep_ends_in_files_a_picture_and_what_to_choose(tmp_path: Path) -> None:
    axes = [Axis("epochs_per_batch", (1, 2)), Axis("transport.type", ("shared_memory", "disk", "gloo"))]
    sweep = Sweep("toy", question(), axes, "python -m harness simulate toy --machine abacus", "of today")
    output = Console(width=120, record=True, file=io.StringIO())
    swept = run_sweep(sweep, tmp_path, 1, True, output, Console(file=io.StringIO()))
    points, table, picture = swept.files
    header, *rows = [json.loads(line) for line in points.read_text().splitlines()]
    assert header["command"] == "python -m harness simulate toy --machine abacus"
    assert (header["simulated"], header["machine"], header["draws"]) == (True, "abacus", 2)
    # 11 tokens: 0.1 + 0.05 + 0.01 + 0.2 k + publish 0.02 or 0.22 + 0.01 + 0.03, and old log-probs 0.03 where k > 1
    seconds = {(row["at"]["epochs_per_batch"], row["at"]["transport.type"]): row.get("step_s") for row in rows}
    assert seconds[1, "shared_memory"]["value"] == pytest.approx(0.42, abs=1e-9)
    assert seconds[2, "disk"]["value"] == pytest.approx(0.85, abs=1e-9)
    assert seconds[1, "gloo"] is None
    lines = list(csv.DictReader(table.read_text().splitlines()))
    assert len(lines) == 6
    assert float(lines[0]["step_s"]) == pytest.approx(0.42)
    assert "no cost of weight_publish" in lines[2]["problem"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = " ".join(output.export_text().split())
    assert said.startswith("of today")  # what seconds rest on
    # 0.42 s against 0.65 s for the same tokens: -35.4%
    for part in ("With transport shared_memory: take epochs_per_batch 1", "more (2): -35.4%", "left out: 2 points"):
        assert part in said


def test_a_sweep_of_which_nothing_can_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    sweep = Sweep("toy", question(), [Axis("transport.type", ("gloo",))], "")
    with pytest.raises(UserError, match="none of the 1 points"):
        run_sweep(sweep, tmp_path, 1, True, Console(quiet=True), Console(quiet=True))
    assert list(tmp_path.iterdir()) == []
