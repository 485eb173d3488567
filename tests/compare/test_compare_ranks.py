"""Which rank the others wait for and why, on made-up seconds; the lanes of a Learner's ranks as one part."""

import json
from dataclasses import replace

import numpy as np
import pytest

from harness.compare.experiment import gather
from harness.compare.ranks import find_straggler
from harness.compare.remarks.time import measured_ranks
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import RankStep
from harness.report.build import document
from harness.report.files import page
from harness.report.tables import process_table, rank_table
from harness.report.trace.export import write_trace
from harness.results import in_pipeline_order, lane_kind, part_of
from harness.results.counters import split_source


def as_ranks(folder, ranks, first, last):
    """Make the Learner of some training steps one of several ranks, in the rows and spans of a run."""
    known = {"tokens": 500, "cost": 500.0, "computing_s": 0.5, "runnable_s": 0, "blocked_s": 0, "late_s": 0}
    for name in ("steps.jsonl", "spans.jsonl"):
        rows = []
        for row in map(json.loads, (folder / name).read_text().splitlines()):
            copies = [row]
            if first <= row.get("step", -1) <= last and row.get("kind") == "step":
                stages = row["lanes"].pop("learner")
                row |= {
                    "lanes": row["lanes"] | {f"learner/{n}": stages for n in range(ranks)},
                    "ranks": [known] * ranks,
                }
            elif first <= row.get("step", -1) <= last and row.get("lane") == "learner":
                copies = [row | {"lane": f"learner/{rank}"} for rank in range(ranks)]
            rows += copies
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_that_went_on_with_other_numbers_of_ranks_can_be_read(make_run):
    """Two ranks for four steps, then twelve, and one process for the last ones; both halves are in the tables."""
    folder = make_run(arm="a", steps=12, settings="steps: 12\n").folder
    as_ranks(folder, 2, 0, 3)
    as_ranks(folder, 12, 4, 7)
    (experiment,), _ = gather([folder.parent])
    (run,) = experiment.members
    table = rank_table(experiment)
    assert [row[1:3] for row in table.rows] == [(str(rank), "500") for rank in range(12)]
    lanes = [row[1] for row in process_table(experiment).rows]
    assert lanes == ["generator", "scorer", "learner", *(f"learner/{rank}" for rank in range(12))]
    assert find_straggler(measured_ranks(experiment.members)) is None
    assert run.times.parts["learner"].stages_ns[Stage.UPDATE] == 500_000_000 * run.figures["measured_steps"]
    assert write_trace(folder).path.stat().st_size > 0
    assert "learner/11" in page([document(experiment, [])])


def steps_of(seconds, tokens, steps=12, noise=0.02, seed=0):
    """Steps in which each rank computes these seconds, give or take some noise."""
    noisy = np.exp(np.random.default_rng(seed).normal(0, noise, (steps, len(seconds)))) * seconds
    return [
        [RankStep(own, own, float(own_s), 0.0, 0.0, 0.0) for own_s, own in zip(row, tokens, strict=True)]
        for row in noisy
    ]


@pytest.mark.parametrize(
    ("seconds", "tokens", "rank", "cause", "longer", "more_work"),
    [
        ([1.0, 1.3, 1.0], [500, 500, 500], 1, "slower machine", 0.3, 0.0),
        ([1.6, 1.0], [1000, 500], 0, "more work", 0.6, 1.0),  # seconds grow less than tokens
        ([1.0, 1.95], [500, 750], 1, "more work and slower machine", 0.95, 0.5),  # each alone would be named
    ],
)
def test_a_rank_with_more_to_do_or_slower_for_the_same_is_named_with_its_cause(
    seconds, tokens, rank, cause, longer, more_work
):
    found = find_straggler(steps_of(seconds, tokens))
    assert (found.rank, found.cause, found.more_work) == (rank, cause, pytest.approx(more_work))
    assert found.longer == pytest.approx(longer, abs=0.03)
    assert found.slower == pytest.approx((1 + longer) / (1 + more_work) - 1, abs=0.03)


def crowded(slower, shares):
    """Steps in which rank 1 has no processor for these shares of its time and computes half of that longer for it."""
    made = steps_of([1.0, slower], [5, 5], len(shares))
    return [
        [one, replace(other, computing_s=own_s, runnable_s=own_s * share / (1 - share))]
        for (one, other), share in zip(made, shares, strict=True)
        for own_s in [float((other.computing_s or 0.0) * np.exp(0.5 * share))]
    ]


def test_a_rank_that_other_processes_crowd_is_no_slower_machine_and_a_slow_one_is_also_when_crowded():
    """Crowded by 0.45 on average, which makes exp(0.225) - 1 = 25%."""
    varying = [0.0, 0.5, 0.9, 0.3, 0.7, 0.1, 0.6, 0.8, 0.2, 0.4, 0.9, 0.0] * 3
    found = find_straggler(crowded(1.0, varying))
    assert (found.rank, found.cause) == (1, "other processes")
    assert found.longer == pytest.approx(np.expm1(0.5 * np.mean(varying)), abs=0.02)
    found = find_straggler(crowded(1.3, varying))
    assert (found.rank, found.cause) == (1, "slower machine")
    assert found.slower == pytest.approx(0.3, abs=0.03)
    # nothing but the usual slope tells what one that is always crowded would be alone
    assert find_straggler(crowded(1.3, [0.7] * 36)).cause == "other processes"


def test_a_rank_with_more_work_is_found_where_the_other_one_is_always_a_little_more_crowded():
    """A line through such steps alone may go anywhere at 0."""
    rng = np.random.default_rng(0)
    steps = [
        [
            RankStep(10, 10, float(np.exp(0.35 + rng.normal(0, 0.1))), 0.05, 0.0, 0.0),
            RankStep(5, 5, float(np.exp(rng.normal(0, 0.1))), float(rng.uniform(0.15, 0.2)), 0.0, 0.0),
        ]
        for _ in range(36)
    ]
    found = find_straggler(steps)
    assert (found.rank, found.cause) == (0, "more work")


def test_two_steps_that_carry_it_all_are_a_one_off():
    steps = steps_of([1.0, 1.0], [500, 500], steps=20)
    for place in (4, 11):
        steps[place][1] = RankStep(500, 500, 4.0, 0.0, 0.0, 0.0)
    found = find_straggler(steps)
    assert (found.rank, found.cause, found.steps, found.all_steps) == (1, "one-off", 2, 20)


def test_nobody_is_named_for_noise_nor_for_little_nor_where_seconds_are_unknown_or_steps_few():
    noise = (steps_of([1.0, 1.0], [500, 500], noise=0.1, seed=seed) for seed in range(200))
    little = steps_of([1.0, 1.09], [500, 500], noise=0.001)
    unknown = [[RankStep(5, 5, None, None, None, 0.0), RankStep(5, 5, None, None, None, 0.1)]] * 10
    few, alone = steps_of([1.0, 2.0], [500, 500], steps=3), steps_of([1.0], [500])
    assert [steps for steps in (*noise, little, unknown, few, alone) if find_straggler(steps) is not None] == []


def test_lanes_come_in_the_order_of_their_numbers_and_the_part_of_a_rank_is_the_learner():
    lanes = ["learner/10", "learner/2", "generator10", "scorer", "generator2", "publisher/0"]
    assert in_pipeline_order(lanes) == ["generator2", "generator10", "scorer", "learner/2", "learner/10", "publisher/0"]
    parts = {"learner/0": "learner", "learner/12": "learner", "learner": "learner", "generator1": "generator1"}
    assert {lane: part_of(lane) for lane in parts} == parts
    assert lane_kind("learner/12") == "learner"
    sources = {"learner/1": "", "node1/learner/1": "node1/", "node1/gpu0": "node1/", "gpu0": ""}
    for source, machine in sources.items():
        assert split_source(source) == (machine, source.removeprefix(machine))


def test_a_span_of_a_group_is_one_on_each_of_its_lanes():
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


def test_a_step_in_which_the_plan_gives_the_work_to_another_rank_is_no_noise():
    """Two thirds of the tokens are rank 1's in ten steps and rank 0's in two; the seconds are tokens to the 0.6."""
    steps = []
    for step, of_ranks in enumerate(steps_of([0.05, 0.05], [100, 100])):
        tokens = [466, 233] if step in (4, 9) else [233, 466]
        steps.append([
            RankStep(work, work, (rank.computing_s or 0.0) * (work / 349.5) ** 0.6, 0.0, 0.0, 0.0)
            for rank, work in zip(of_ranks, tokens, strict=True)
        ])  # fmt: skip
    found = find_straggler(steps)
    assert (found.rank, found.cause) == (1, "more work")
    assert found.longer == pytest.approx(2 ** (0.6 * 8 / 12) - 1, abs=0.03)
    assert found.more_work == pytest.approx(2 ** (8 / 12) - 1)
