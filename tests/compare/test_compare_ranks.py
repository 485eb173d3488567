"""Which rank the others wait for and why, on made-up seconds; the lanes of a Learner's ranks as one part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.compare.experiment import gather
from harness.compare.ranks import Straggler, find_straggler
from harness.compare.remarks.time import measured_ranks
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import RankStep
from harness.report.build import document
from harness.report.files import page
from harness.report.tables import process_table, rank_table
from harness.report.trace.export import write_trace
from harness.results import RunFolder, in_pipeline_order, lane_kind, part_of
from harness.results.counters import split_source


def as_ranks(folder: Path, ranks: int, first: int, last: int) -> None:
    """Make the Learner of some training steps one of several ranks, in the rows and spans of a run."""
    of_ranks = [
        {"tokens": 500, "cost": 500.0, "computing_s": 0.5, "runnable_s": 0, "blocked_s": 0, "late_s": 0}
    ] * ranks
    for name in ("steps.jsonl", "spans.jsonl"):
        lines = []
        for row in map(json.loads, (folder / name).read_text().splitlines()):
            copies = [row]
            if row.get("kind") == "step" and first <= row["step"] <= last:
                stages = row["lanes"].pop("learner")
                row["lanes"] |= {f"learner/{rank}": stages for rank in range(ranks)}
                row["ranks"] = of_ranks
            elif row.get("lane") == "learner" and first <= row["step"] <= last:
                copies = [row | {"lane": f"learner/{rank}"} for rank in range(ranks)]
            lines += [json.dumps(copy) + "\n" for copy in copies]
        (folder / name).write_text("".join(lines))


def test_a_run_that_went_on_with_other_numbers_of_ranks_can_be_read(make_run: Callable[..., RunFolder]) -> None:
    """Two ranks for four steps, then twelve, and one process for the last ones; both halves are in the tables."""
    folder = make_run(arm="a", steps=12, settings="steps: 12\n").folder
    as_ranks(folder, 2, 0, 3)
    as_ranks(folder, 12, 4, 7)
    (experiment,), damaged = gather([folder.parent])
    assert damaged == []
    (run,) = experiment.members
    table = rank_table(experiment)
    assert table is not None
    assert [row[1:3] for row in table.rows] == [(str(rank), "500") for rank in range(12)]
    lanes = [row[1] for row in process_table(experiment).rows]
    assert lanes == ["generator", "scorer", "learner", *(f"learner/{rank}" for rank in range(12))]
    assert find_straggler(measured_ranks(experiment.members)) is None
    assert run.times is not None
    assert run.times.parts["learner"].stages_ns[Stage.UPDATE] == 500_000_000 * run.figures["measured_steps"]
    assert write_trace(folder).path.stat().st_size > 0
    assert "learner/11" in page([document(experiment, [])])


def test_lanes_come_in_the_order_of_their_numbers() -> None:
    lanes = ["learner/10", "learner/2", "generator10", "scorer", "generator2", "publisher/0"]
    assert in_pipeline_order(lanes) == ["generator2", "generator10", "scorer", "learner/2", "learner/10", "publisher/0"]


def made(
    seconds: list[float], tokens: list[int], steps: int = 12, noise: float = 0.02, seed: int = 0
) -> list[list[RankStep]]:
    """Steps in which each rank computes these seconds, give or take some noise."""
    rng = np.random.default_rng(seed)
    return [
        [
            RankStep(own, own, float(own_s * np.exp(rng.normal(0, noise))), 0.0, 0.0, 0.0)
            for own_s, own in zip(seconds, tokens, strict=True)
        ]
        for _ in range(steps)
    ]


def straggler(steps: list[list[RankStep]]) -> Straggler:
    found = find_straggler(steps)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("seconds", "tokens", "rank", "cause", "longer", "more_work"),
    [
        ([1.0, 1.3, 1.0], [500, 500, 500], 1, "slower machine", 0.3, 0.0),
        ([1.6, 1.0], [1000, 500], 0, "more work", 0.6, 1.0),  # seconds grow less than tokens
        ([1.0, 1.95], [500, 750], 1, "more work and slower machine", 0.95, 0.5),  # each alone would be named
    ],
)
def test_a_rank_with_more_to_do_or_slower_for_the_same_is_named_with_its_cause(
    seconds: list[float], tokens: list[int], rank: int, cause: str, longer: float, more_work: float
) -> None:
    found = straggler(made(seconds, tokens))
    assert (found.rank, found.cause, found.more_work) == (rank, cause, pytest.approx(more_work))
    assert found.longer == pytest.approx(longer, abs=0.03)
    assert found.slower == pytest.approx((1 + longer) / (1 + more_work) - 1, abs=0.03)


def crowded(slower: float, shares: list[float], seed: int = 0) -> list[list[RankStep]]:
    """Steps in which rank 1 has no processor for these shares of its time and computes half of that longer for it."""
    rng = np.random.default_rng(seed)
    steps = []
    for share in shares:
        own_s = float(slower * np.exp(0.5 * share + rng.normal(0, 0.02)))
        other_s = float(np.exp(rng.normal(0, 0.02)))
        steps.append(
            [RankStep(5, 5, other_s, 0.0, 0.0, 0.0), RankStep(5, 5, own_s, own_s * share / (1 - share), 0.0, 0.0)]
        )
    return steps


def test_a_rank_that_other_processes_crowd_is_no_slower_machine_and_a_slow_one_is_also_when_crowded() -> None:
    """Crowded by 0.45 on average, which makes exp(0.225) - 1 = 25%."""
    varying = [0.0, 0.5, 0.9, 0.3, 0.7, 0.1, 0.6, 0.8, 0.2, 0.4, 0.9, 0.0] * 3
    found = straggler(crowded(1.0, varying))
    assert (found.rank, found.cause) == (1, "other processes")
    assert found.longer == pytest.approx(np.expm1(0.5 * np.mean(varying)), abs=0.02)
    found = straggler(crowded(1.3, varying))
    assert (found.rank, found.cause) == (1, "slower machine")
    assert found.slower == pytest.approx(0.3, abs=0.03)
    # nothing but the usual slope tells what one that is always crowded would be alone
    assert straggler(crowded(1.3, [0.7] * 36)).cause == "other processes"


def test_a_rank_with_more_work_is_found_where_the_other_one_is_always_a_little_more_crowded() -> None:
    """A line through such steps alone may go anywhere at 0."""
    rng = np.random.default_rng(0)
    steps = [
        [
            RankStep(10, 10, float(np.exp(0.35 + rng.normal(0, 0.1))), 0.05, 0.0, 0.0),
            RankStep(5, 5, float(np.exp(rng.normal(0, 0.1))), float(rng.uniform(0.15, 0.2)), 0.0, 0.0),
        ]
        for _ in range(36)
    ]
    found = straggler(steps)
    assert (found.rank, found.cause) == (0, "more work")


def test_two_steps_that_carry_it_all_are_a_one_off() -> None:
    steps = made([1.0, 1.0], [500, 500], steps=20)
    for place in (4, 11):
        steps[place][1] = RankStep(500, 500, 4.0, 0.0, 0.0, 0.0)
    found = straggler(steps)
    assert (found.rank, found.cause, found.steps, found.all_steps) == (1, "one-off", 2, 20)


def test_nobody_is_named_for_noise_nor_for_little_nor_where_seconds_are_unknown_or_steps_few() -> None:
    assert [find_straggler(made([1.0, 1.0], [500, 500], noise=0.1, seed=seed)) for seed in range(200)] == [None] * 200
    assert find_straggler(made([1.0, 1.09], [500, 500], noise=0.001)) is None
    unknown = [[RankStep(5, 5, None, None, None, 0.0), RankStep(5, 5, None, None, None, 0.1)]] * 10
    for steps in (unknown, made([1.0, 2.0], [500, 500], steps=3), made([1.0], [500])):
        assert find_straggler(steps) is None


def test_the_part_of_a_rank_is_the_learner() -> None:
    assert [part_of(lane) for lane in ("learner/0", "learner/12", "learner", "generator1")] == [
        "learner", "learner", "learner", "generator1",
    ]  # fmt: skip
    assert lane_kind("learner/12") == "learner"
    sources = ["learner/1", "node1/learner/1", "node1/gpu0", "gpu0"]
    assert [split_source(source) for source in sources] == [
        ("", "learner/1"), ("node1/", "learner/1"), ("node1/", "gpu0"), ("", "gpu0"),
    ]  # fmt: skip


def test_a_span_of_a_group_is_one_on_each_of_its_lanes() -> None:
    now = iter(range(100))
    tracer = RecordingTracer(lambda: next(now), groups={"learner": ["learner/0", "learner/1"]})
    with tracer.span("learner", Stage.WAIT_FOR_BATCH, 2, 1):
        assert {span.lane for span in tracer.still_open()} == {"learner/0", "learner/1"}
    with tracer.span("generator", Stage.GENERATE):
        pass
    spans = tracer.drain()
    assert sorted((span.lane, span.stage.value, span.step, span.version) for span in spans) == [
        ("generator", "generate", -1, -1), ("learner/0", "wait_for_batch", 2, 1), ("learner/1", "wait_for_batch", 2, 1),
    ]  # fmt: skip


def test_a_step_in_which_the_plan_gives_the_work_to_another_rank_is_no_noise() -> None:
    """Two thirds of the tokens are rank 1's in ten steps and rank 0's in two; the seconds are tokens to the 0.6."""
    even = made([0.05, 0.05], [100, 100])
    steps = []
    for step, of_ranks in enumerate(even):
        tokens = [466, 233] if step in (4, 9) else [233, 466]
        shares = [(each / 349.5) ** 0.6 for each in tokens]
        steps.append(
            [
                RankStep(work, float(work), (rank.computing_s or 0.0) * share, 0.0, 0.0, 0.0)
                for rank, work, share in zip(of_ranks, tokens, shares, strict=True)
            ]
        )
    found = find_straggler(steps)
    assert found is not None
    assert (found.rank, found.cause) == (1, "more work")
    assert found.longer == pytest.approx(2 ** (0.6 * 8 / 12) - 1, abs=0.03)
    assert found.more_work == pytest.approx(2 ** (8 / 12) - 1)
