"""What-if on runs that the virtual clock recorded with known costs, so that every number has its arithmetic beside it.

Recorded: generate 8 s, score 1 s, update 5 s, publish 1 s, transfer 0.5 s, load 0.25 s. A synchronous step takes
0.75 + 8 + 1 + 5 + 1 = 15.75 s. With lag 1 the Generator is critical: it loads and generates without a break, 8.75 s a
step, while the Learner needs 5 + 1. Evaluations take no time, but for the scores of the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer
from harness.loop import run_loop
from harness.results import Manifest, Run, RunFolder, ShardRow, load_run
from harness.results.frames import table_of
from harness.results.recorder import RunRecorder
from harness.scenario.lanes import lanes_of
from harness.scenario.load import resolved_yaml
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.simulate.clock import run_virtual
from harness.simulate.forecast import Estimate
from harness.simulate.machine import Contention
from harness.simulate.metrics import stage_times
from harness.simulate.whatif.answer import Answer, Gain, what_if
from harness.simulate.whatif.report import sentences, tables
from tests.simulate.conftest import MACHINE, cost, made
from tests.stand_ins.simulated_parts import (
    Fails,
    constant,
    equal_lengths,
    simulated_generator,
    simulated_learner,
    simulated_scorer,
    varying_lengths,
)

RECORDED: dict[str, Any] = {
    "name": "known",
    "steps": 14,
    "rollout_batch_size": 16,
    "group_size": 4,
    "model": {"type": "preset", "preset": "tiny"},
    "transport": {"type": "object_store"},
    "placement": {"colocated": False},
    "evaluation": {"every": 100, "prompts": 8},
    "allow_uncorrected": True,
}
SYNC_S, LAG_1_S = 15.75, 8.75
Record = Callable[..., Run]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Record a run of known costs: settings by dotted key, and seconds by name to be other than the usual ones."""

    def make(
        costs: dict[str, float] | None = None,
        lengths: Any = None,
        num_train: int = 64,
        fails: Fails = lambda item, prompt_id: False,
        **settings: Any,
    ) -> Run:
        seconds = {"generate": 8.0, "score": 1.0, "update": 5.0, "publish": 1.0, "transfer": 0.5, "load": 0.25}
        seconds |= costs or {}
        scenario = Scenario.model_validate(RECORDED | settings)
        name = f"run{len(list(tmp_path.glob('known/*')))}"
        folder = RunFolder.create(tmp_path, "known", name, None)
        folder.write_scenario(resolved_yaml(scenario))
        started = "2026-11-21T00:00:00.000Z"
        folder.write_manifest(Manifest(scenario="known", experiment=name, started_at=started, machine=MACHINE))

        async def main(tracer: RecordingTracer) -> None:
            make_lengths = lengths or equal_lengths(8)
            c = {stage: constant(value) for stage, value in seconds.items()}
            generators = [
                simulated_generator(tracer, c["generate"], constant(0.0), c["transfer"], c["load"], lane, make_lengths)
                for lane in lanes_of("generator", scenario)
            ]
            last, score = scenario.steps, c["score"]  # the last evaluation takes no time beside its weights
            scorers = [simulated_scorer(tracer, lambda step: score(step) if step < last else 0.0, fails=fails)]
            learner = simulated_learner(
                tracer,
                c["update"],
                c["publish"],
                epochs_per_batch=scenario.epochs_per_batch,
                checkpoint_s=seconds.get("checkpoint", 0.0),
                write_s=seconds.get("write", 0.0),
            )
            recorder = RunRecorder(folder, tracer)
            recorder.loop_starts([*lanes_of("generator", scenario), "scorer", "learner"])
            plan = loop_plan(scenario, num_train, 8)
            await run_loop(generators, scorers, learner, plan, tracer, recorder, checkpoints=learner)
            recorder.loop_ends()
            folder.finish("completed", outcome=recorder.outcome())

        run_virtual(main)
        return load_run(tmp_path / "known" / name)

    return make


def gains(answer: Answer) -> dict[str, float]:
    return {gain.name: gain.gain for gain in answer.gains}


# ---- checkpoints


@pytest.mark.parametrize(
    ("costs", "every", "step_s"),
    [
        ({"checkpoint": 12.0}, 1, SYNC_S + 3),  # the next batch takes 8 + 1 s meanwhile
        ({"checkpoint": 12.0}, 4, SYNC_S + 3 / 4),
        ({"checkpoint": 0.5, "write": 7.0}, 1, SYNC_S),  # written while the next batch is sampled
        ({"checkpoint": 0.5, "write": 40.0}, 1, 0.5 + 40.0),  # the next one waits until the last one is written
    ],
)
def test_checkpoints_at_another_interval(record: Record, costs: dict[str, float], every: int, step_s: float) -> None:
    settings = {"checkpoint": {"every": 2, "asynchronous": "write" in costs}}
    run = record(costs, steps=18, **settings)
    answer = what_if(run, [f"checkpoint.every={every}"], with_gains=False)
    assert answer.error == pytest.approx(0.0, abs=1e-9)
    assert answer.after.step_s == pytest.approx(step_s, rel=0.015)
    cost = answer.checkpoints
    assert cost is not None
    assert (cost.every, cost.pending_s) == pytest.approx((every, costs.get("write", 0.0)))
    if costs.get("write", 0.0) < SYNC_S:
        assert (cost.step_s, cost.blocked_s) == pytest.approx((SYNC_S, costs["checkpoint"]))
        assert cost.exposed_s == pytest.approx(max(0.0, costs["checkpoint"] - 9))


# ---- the replay of a run as it was


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_lag": 1},
        {"max_lag": 2},
        {"max_lag": 1, "replay": {"capacity": 8}},
        {"epochs_per_batch": 4},
        {"max_lag": 2, "epochs_per_batch": 4, "lag_control": "drop"},
        {"max_lag": 1, "lag_control": "in_flight"},
        {"evaluation": {"every": 3, "prompts": 8}},
        {"max_lag": 1, "evaluation": {"every": 3, "prompts": 8}},
        {"placement": {"colocated": False, "generator": {"count": 2}}},
        {"max_lag": 1, "placement": {"colocated": False, "generator": {"count": 3}}},
        {"max_lag": 1, "checkpoint": {"every": 2}, "costs": {"checkpoint": 3.0}},
        {"max_lag": 1, "checkpoint": {"every": 3, "asynchronous": True}, "costs": {"checkpoint": 1.0, "write": 20.0}},
        {"transport": {"type": "in_process"}, "placement": {"colocated": True}},
    ],
    ids=str,
)
def test_a_run_replayed_as_it_was_has_its_step_times(record: Record, settings: dict[str, Any]) -> None:
    run = record(lengths=varying_lengths(2, 20), **settings)

    answer = what_if(run, with_gains=False)

    replayed = answer.before
    assert [row.wall_s for row in replayed.rows] == pytest.approx([row.wall_s for row in run.steps], abs=1e-9)
    assert [row.lags for row in replayed.rows] == [row.lags for row in run.steps]
    assert answer.before.stages_s == pytest.approx(stage_times(table_of(run)), abs=1e-9)
    assert answer.error == pytest.approx(0, abs=1e-9)
    assert replayed.extrapolating == ()  # no call took the time of another
    assert run.ledger is not None
    for column in ("generated", "dropped", "trained", "trained_again"):
        assert getattr(replayed.ledger, column).rollouts == getattr(run.ledger, column).rollouts
    assert replayed.ledger.trained.tokens == run.ledger.trained.tokens  # of dropped rollouts no lengths are recorded


def test_a_prompt_may_be_in_a_batch_twice_and_a_group_may_fail(record: Record) -> None:
    run = record(num_train=3, fails=lambda item, prompt_id: (item.step, prompt_id) == (4, 1))

    answer = what_if(run)

    failed = 16 - len([length for row in run.groups() if _is_of(row, 4) for group in row.lengths for length in group])
    assert failed in (4, 8)  # the 4 prompts of batch 4 are drawn from 3, so the one that fails may be there twice
    assert [row.wall_s for row in answer.before.rows] == pytest.approx([row.wall_s for row in run.steps])
    assert answer.before.ledger.trained.rollouts == 14 * 16  # in its place another recorded group stands


def _is_of(row: Any, step: int) -> bool:
    return isinstance(row, ShardRow) and (row.purpose, row.step) == ("train", step)


def test_a_run_whose_replay_is_off_is_refused_unless_told_otherwise(record: Record) -> None:
    run = record()
    slow = replace(run, steps=tuple(structs.replace(row, wall_s=row.wall_s * 1.25) for row in run.steps))

    # 15.75 / (1.25 x 15.75) - 1 = -20%
    with pytest.raises(UserError, match=r"off by 20\.0% of its time, more than the bound of 3\.0%") as caught:
        what_if(slow, scales=["update=0.5"])
    assert caught.value.fix == "name another run"
    assert what_if(slow, scales=["update=0.5"], bound=0.201).error == pytest.approx(-0.2, abs=1e-9)


# ---- what a change does: another pace, another strategy, and other work

OLD = cost("old_logprobs", call=0.5)
WITHOUT_OLD = (
    cost("update", optimizer_step=0.2),
    cost("prepare_batch", call=0.01),
    *(cost(stage, response=0.01) for stage in ("generate", "score")),
    *(cost(f"weight_{stage}", call=0.1) for stage in ("publish", "transfer", "load", "verify")),
)


@pytest.mark.parametrize(
    ("recorded", "change", "step_s"),
    [
        ({}, "--scale update=0.5", 0.75 + 8 + 1 + 2.5 + 1),
        ({}, "--scale generate=2", 0.75 + 16 + 1 + 5 + 1),
        ({}, "--scale weight_transfer=0", 0.25 + 8 + 1 + 5 + 1),
        ({}, "--scale update=0.5 score=3", 0.75 + 8 + 3 + 2.5 + 1),
        ({"max_lag": 1}, "--scale update=0.5", LAG_1_S),  # hidden
        ({"max_lag": 1}, "--scale update=3", 15 + 1),  # the Learner needs more than the Generator, which waits for it
        ({}, "max_lag=1", LAG_1_S),
        ({"max_lag": 1}, "max_lag=0", SYNC_S),
        ({}, "max_lag=2", LAG_1_S),
        ({}, "replay.capacity=8", SYNC_S),
        ({}, "steps=40", SYNC_S),
        # under `drop` the Generator never waits: a batch every 8.75 s, and none is too old
        ({}, "max_lag=1 lag_control=drop", LAG_1_S),
        # weights that come in the middle of a batch are loaded beside it: a batch takes 8 s alone
        ({}, "max_lag=1 lag_control=in_flight", 8.0),
        # other work takes recorded x predicted (new) / predicted (old)
        # 4 optimizer steps for 1: 20 s of update in place of 5; the old log-probs are new: 0.5 s
        ({}, "epochs_per_batch=4", SYNC_S + 15 + 0.5),
        # one optimizer step in place of 4 takes a quarter of the recorded 4 x 5 s
        ({"epochs_per_batch": 4}, "epochs_per_batch=1", SYNC_S),
        # half the responses: 4 s of generate and 0.5 s of score; an optimizer step costs the same
        ({}, "rollout_batch_size=8", 0.75 + 4 + 0.5 + 5 + 1),
        # 2 groups of 8 in place of 4 groups of 4: as many responses, so the same time
        ({"lengths": varying_lengths(2, 20)}, "group_size=8", SYNC_S),
        # both load at once, each samples 8 of the 16 responses in 4 s, and one Scorer takes 0.5 s for each half
        ({}, "placement.generator.count=2", 0.75 + 4 + 0.5 + 0.5 + 5 + 1),
    ],
    ids=str,
)
def test_what_a_change_does(record: Record, recorded: dict[str, Any], change: str, step_s: float) -> None:
    of_stages = change.startswith("--scale ")
    settings, scales = ([], change.split()[1:]) if of_stages else (change.split(), [])
    answer = what_if(record(**recorded), settings, scales, made(*WITHOUT_OLD, OLD), with_gains=False)
    assert answer.after.step_s == pytest.approx(step_s, abs=1e-9)
    usual_s = (SYNC_S, LAG_1_S)[recorded.get("max_lag", 0)] + 5 * (recorded.get("epochs_per_batch", 1) - 1)
    assert answer.recorded_step_s == pytest.approx(usual_s, abs=1e-9)
    assert answer.after.rows[-1].step == (39 if change == "steps=40" else 13)
    if change != "steps=40":
        trained = answer.after.ledger.trained + answer.after.ledger.trained_again
        assert trained.rollouts == 14 * (8 if change == "rollout_batch_size=8" else 16)
    assert (answer.after.ledger.trained_again.rollouts > 0) == (change == "replay.capacity=8")
    assert ("generator1" in answer.after.idle) == ("generator" in change)
    old_s = answer.after.stages_s.get("old_logprobs", 0.0)
    assert old_s == pytest.approx(0.5 * (change == "epochs_per_batch=4"))


def test_ten_percent_of_each_stage_of_a_synchronous_run(record: Record) -> None:
    answer = what_if(record())

    # each takes a tenth of itself off 15.75 s
    expected = {"generate": 0.8, "update": 0.5, "score": 0.1, "weight_publish": 0.1}
    expected |= {"weight_transfer": 0.05, "weight_load": 0.025}
    assert gains(answer) == pytest.approx({name: saved_s / SYNC_S for name, saved_s in expected.items()}, abs=1e-9)
    names = [gain.name for gain in answer.gains]
    assert names == ["generate", "update", "score", "weight_publish", "weight_transfer", "weight_load"]
    # lanes: Generator 8.75 s, Learner 6 s, Scorer 1 s
    lanes = [(gain.name, gain.gain) for gain in answer.lane_gains]
    by_lane = [("generator", 0.875 / SYNC_S), ("learner", 0.6 / SYNC_S), ("scorer", 0.1 / SYNC_S)]
    assert lanes == [(name, pytest.approx(gain, abs=1e-9)) for name, gain in by_lane]


def test_ten_percent_of_a_hidden_stage_gives_nothing(record: Record) -> None:
    run = record(max_lag=1)
    answer = what_if(run)

    expected = {"generate": 0.8, "weight_transfer": 0.05, "weight_load": 0.025}
    expected |= {"update": 0.0, "score": 0.0, "weight_publish": 0.0}
    assert gains(answer) == pytest.approx({name: saved_s / LAG_1_S for name, saved_s in expected.items()}, abs=1e-9)
    said = " ".join(sentences(answer))
    assert "the generator is critical" in said
    assert "optimise generate (9.1%) first, then weight_transfer (0.6%) and weight_load (0.3%)" in said  # 0.8 / 8.75
    assert "do not bother with update, score and weight_publish" in said
    # of a changed run in which the Learner's 15 + 1 s are critical, a tenth of the update is 1.5 of 16 s
    changed = gains(what_if(run, scales=["update=3"]))
    assert (changed["update"], changed["generate"]) == pytest.approx((1.5 / 16, 0), abs=1e-9)


def test_a_run_of_which_nothing_takes_any_time(record: Record) -> None:
    stages = ("generate", "score", "update", "weight_publish", "weight_transfer", "weight_load")
    run = record()

    answer = what_if(run, scales=[f"{stage}=0" for stage in stages])

    assert answer.after.step_s == 0
    assert answer.lane_gains == ()  # no lane has a span in the measured window
    assert "no stage that is 10% faster would make a step shorter by as much as 0.1%" in list(sentences(answer))
    still = replace(run, steps=tuple(structs.replace(row, wall_s=0.0) for row in run.steps))
    with pytest.raises(UserError, match=r"the training steps of the run .* took no time"):
        what_if(still)


def test_a_simulated_run_is_no_measured_one(record: Record) -> None:
    run = record()
    answer = what_if(replace(run, manifest=replace(run.manifest, simulated="abacus")))

    assert answer.notes[0] == "the run itself was simulated (abacus): its times were predicted, not measured"
    assert tables(answer)[0].header[1] == "recorded (simulated)"


def test_calls_beyond_the_recorded_ones_are_said(record: Record) -> None:
    answer = what_if(record(), ["steps=20"])

    # 6 further steps, each with a batch, its scoring, an update, a publish and a load; the last version, 20, is
    # evaluated in place of version 14, by the Generator and the Scorer
    said = {note for note in answer.notes if "recorded" in note}
    calls = {"generate": 6, "score": 6, "update": 6, "publish": 6, "load": 6, "evaluate": 2}
    end = "were never recorded and take the time of others of this run"
    assert said == {f"{number} calls to {work} {end}" for work, number in calls.items()}


@pytest.mark.parametrize(
    ("optimizer", "otherwise"),
    [({}, False), ({"warmup_steps": 2}, False), ({"warmup_ratio": 0.1}, True), ({"schedule": "linear"}, True)],
)
def test_more_steps_train_otherwise_where_the_learning_rate_ends_with_the_run(
    record: Record, optimizer: dict[str, Any], otherwise: bool
) -> None:
    warm, long = (what_if(record(optimizer=optimizer), [f"steps={steps}"], with_gains=False).notes for steps in (1, 6))
    assert any("a policy that is trained otherwise" in note for note in long) == otherwise
    assert [any("are all warm-up" in note for note in notes) for notes in (warm, long)] == [True, False]


def test_parts_that_took_turns_move_apart(record: Record) -> None:
    """Both begin together: at 1 / 1.2 of their speed the update's 5 s take 6; 3 of the Generator's 8 s remain."""
    model = {"type": "preset", "preset": "tiny", "threads": 1}
    run = record(FREE, transport={"type": "in_process"}, placement={"colocated": True}, model=model)
    with pytest.raises(UserError, match=r"max_lag is 1, must be 0 with placement\.colocated true"):
        what_if(run, ["max_lag=1"])

    answer = what_if(run, ["max_lag=1", "placement.colocated=false"])

    assert answer.before.step_s == pytest.approx(13, abs=1e-9)
    assert answer.after.step_s == pytest.approx(8, abs=1e-9)
    assert answer.shared is not None
    row = answer.shared.rows[6]
    assert row.stages_s == pytest.approx(row.stages_s | {"update": 6, "generate": 9}, abs=1e-8)
    assert row.wall_s == pytest.approx(9, abs=1e-9)
    said = " ".join([*sentences(answer), *answer.notes])
    assert "that is with cores of its own for each part" in said
    assert "a slow-down of 0.2 is assumed" in said
    assert "what a copy of the weights for the Generator takes is not counted" in said
    together = what_if(record(FREE), ["placement.colocated=true"])
    assert together.after.step_s == pytest.approx(13, abs=1e-9)
    assert together.shared is None


def test_what_a_schedule_of_drops_throws_about_has_an_interval_or_is_not_said(record: Record) -> None:
    """Of the others one replay tells the effect of a change."""
    answer = what_if(record(steps=8, max_lag=2, epochs_per_batch=4, lag_control="drop"), scales=["update=0.5"])
    assert answer.interval is not None
    # every call of a kind takes as long as the others, so that it does not matter which of them meet
    assert (answer.interval.low, answer.interval.high) == pytest.approx((answer.ratio, answer.ratio))
    assert all((gain.low, gain.high) == pytest.approx((gain.gain, gain.gain), abs=1e-12) for gain in answer.gains)
    unsure = {"generate": (-0.02, 0.03), "score": (-0.01, 0.0005)}
    gains = tuple(Gain(name, 1.0, 0.01, *interval) for name, interval in unsure.items())
    told = list(sentences(replace(answer, gains=gains, interval=Estimate(0.98, 0.9, 1.01))))
    assert told[0].endswith("[-10.0%, +1.0%])")
    assert (
        told[1] == "whether that is faster or slower cannot be told: which batches are dropped moves a step by as much"
    )
    assert told[-2:] == [
        "what generate would give cannot be told: which batches are dropped moves a step by as much",
        "do not bother with score: 10% faster, it takes less than 0.1% off a step",
    ]
    assert what_if(record(max_lag=1), scales=["update=0.5"], with_gains=False).interval is None


def test_another_transport(record: Record) -> None:
    costs = [cost("weight_publish", {"transport": "object_store"}, call=0.1), cost("weight_load", call=0.3)]
    costs += [cost("weight_publish", {"transport": "nixl"}, call=0.2)]
    costs += [cost("weight_transfer", {"transport": "object_store"}, call=0.4)]
    costs += [cost("weight_transfer", {"transport": "nixl"}, call=0.1)]

    answer = what_if(record(), ["transport.type=nixl"], machine=made(*WITHOUT_OLD[:4], *costs))

    # publish x 2, transfer x 1/4, load as it was
    expected = {"weight_publish": 2.0, "weight_transfer": 0.125, "weight_load": 0.25}
    assert {name: answer.after.stages_s[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert answer.after.step_s == pytest.approx(0.25 + 0.125 + 8 + 1 + 5 + 2, abs=1e-9)
    assert any(note.startswith("calls take the way that they took: ") for note in answer.notes)


# ---- parts on shared cores

FREE = {"score": 0.0, "publish": 0.0, "transfer": 0.0, "load": 0.0}


def test_what_was_recorded_beside_others_gets_faster_alone_or_beside_less(record: Record) -> None:
    run = record(FREE | {"generate": 9.25, "update": 6.25}, max_lag=1)
    machine = made(
        OLD, contention=Contention(cores=2, slowdown=0.25)
    )  # two at work go at 1 / 1.25 = 0.8 of their speed

    answer = what_if(run, ["max_lag=0"], machine=machine)

    assert answer.before.step_s == pytest.approx(9.25, abs=1e-8)
    # the update's 6.25 s are 5 alone, in which 5 of the Generator's 8 s were done, and 3 remained; the last of 12
    # updates had nothing beside it, and took its 6.25 s all the same
    assert answer.after.step_s == pytest.approx(8 + 5 + 1.25 / 12, abs=1e-8)
    # 2.5 s take 3.125; by then 2.5 of the Generator's 8 s are done, 5.5 remain
    assert what_if(run, scales=["update=0.5"], machine=machine).after.step_s == pytest.approx(8.625, abs=1e-8)


# ---- runs that were measured


@pytest.mark.parametrize("name", ["sync_actors,block=00", "lag1,block=00"])
def test_a_measured_run_replays_within_the_bound(name: str) -> None:
    run = load_run(next(Path("results/reference/async_lag1").glob(f"*/{name}")))

    # what is not in the spans is the driver's own way from one event to the next, some 0.02 ms each, a dozen a step
    # of about 200 ms; with lag an evaluation may fall into another step than it did, which moves the mean
    assert abs(what_if(run, scales=["score=1"]).error) < (0.002 if name.startswith("sync") else 0.01)


# ---- what cannot be answered


@pytest.mark.parametrize(
    ("settings", "scales", "what", "fix"),
    [
        (["max_lag"], [], "'max_lag'", "--set max_lag=1"),
        (["model.preset=small"], [], "another model.preset", "change one of steps, max"),
        (["seed=3"], [], "another seed", "python -m harness simulate"),
        (["max_lagg=1"], [], "unknown key `max_lagg`", "did you mean"),
        (["group_size=5"], [], "group_size 5 does not divide rollout_batch_size 16", "1, 2, 4 or 8"),
        (["transport={type: in_process}"], [], "transport.type in_process", "between actors"),
        (["checkpoint.every=2"], [], "checkpoint", ""),
        (["epochs_per_batch=4"], [], "cpu-2-cores: another machine", "--machine NAME"),
        ([], ["update"], "a factor from 0 to 1,000,000, got 'update'", "--scale update=0.5"),
        ([], ["update=-1"], "got 'update=-1'", "--scale update=0.5"),
        ([], ["update=inf"], "got 'update=inf'", "--scale update=0.5"),
        ([], ["update=1000001"], "got 'update=1000001'", "--scale update=0.5"),
        ([], ["update=0.5", "update=2"], "--scale names update twice", "give one factor for each stage"),
        ([], ["checkpoint=0.5"], "'checkpoint' to scale; it has generate, score, update, weight_publish", "name one"),
    ],
)
def test_refusals(record: Record, settings: list[str], scales: list[str], what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        what_if(record(), settings, scales)
    assert what in caught.value.what
    assert fix in (caught.value.fix or "")


def test_what_another_amount_of_work_needs_is_asked_for(record: Record) -> None:
    run = record()
    with pytest.raises(UserError, match="by hand has no cost of old_logprobs"):
        what_if(run, ["epochs_per_batch=4"], machine=made(*WITHOUT_OLD))
    (run.folder / "groups.jsonl").unlink()
    assert what_if(run, ["max_lag=1"]).after.step_s == pytest.approx(LAG_1_S, abs=1e-9)  # needs no lengths
    with pytest.raises(UserError) as caught:
        what_if(run, ["epochs_per_batch=4"], machine=made(*WITHOUT_OLD, OLD))
    assert caught.value.where == "groups.jsonl"


def test_runs_that_cannot_be_replayed(record: Record) -> None:
    cut = record()
    for status in ("completed", "failed", "did not finish"):
        with pytest.raises(UserError, match=rf"did not get to its end \({status}\)"):
            what_if(replace(cut, tail=None, status=status))
    died = replace(cut, manifest=replace(cut.manifest, outcome=cut.manifest.outcome | {"replaced": {"generator": 2}}))
    with pytest.raises(UserError, match=r"died and were replaced \(generator 2 times\)"):
        what_if(died)
    (cut.folder / "spans.jsonl").unlink()
    with pytest.raises(UserError, match="has no spans"):
        what_if(cut)
