"""A small recorded run becomes observations whose units are counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.trace import Stage
from harness.models.config import PRESETS
from harness.results import RunFolder, load_run
from harness.results.rows import SyncRow
from harness.simulate.calibrate.observations import Observation, observe, observe_sweep
from harness.simulate.features import generate_features, update_features
from tests.simulate.conftest import WriteRun, shard

SETTINGS = """
name: quick
model: {preset: tiny, threads: 1, precision: bfloat16}
engine: {type: native, precision: bfloat16}
rollout_batch_size: 4
group_size: 2
steps: 2
transport: {type: object_store}
placement: {colocated: false}
"""
ACTORS = (  # (lane, stage, start and end in ms, step): the first sync, then one training step
    ("learner", Stage.WEIGHT_PUBLISH, 1000, 1020, 0),
    ("generator", Stage.WEIGHT_TRANSFER, 1030, 1035, 0),
    ("generator", Stage.WAIT_FOR_CALL, 1040, 1042, 0),
    ("generator", Stage.GENERATE, 1042, 1072, 0),
    ("generator", Stage.WAIT_FOR_CALL, 1072, 1075, 0),
    ("scorer", Stage.SCORE, 1076, 1077, 0),
    ("learner", Stage.WAIT_FOR_CALL, 1078, 1080, 0),
    ("learner", Stage.PREPARE_BATCH, 1080, 1081, 0),
    ("learner", Stage.UPDATE, 1081, 1131, 0),
    ("learner", Stage.WAIT_FOR_CALL, 1131, 1133, 0),
    ("learner", Stage.WEIGHT_PUBLISH, 1134, 1144, 1),
    ("learner", Stage.WEIGHT_VERIFY, 1144, 1146, 1),
    ("generator", Stage.WEIGHT_LOAD, 1150, 1154, 1),
    ("learner", Stage.WAIT_FOR_RECORDER, 1154, 1156, 0),
)
LENGTHS = [(3, 4), (2, 6)]
PARAMETERS = 557_696
"""Weights of `tiny`."""
IN_TURNS = SETTINGS.replace("object_store", "in_process").replace("colocated: false", "colocated: true")

Write = Callable[..., list[Observation]]


@pytest.fixture
def observed(write_run: WriteRun) -> Write:
    """Return a function that writes a run of one step with these spans and rollouts, and observes it."""

    def of(
        spans: tuple[tuple[str, Stage, float, float, int], ...] = ACTORS,
        shards: tuple[list[tuple[int, ...]], ...] = (LENGTHS,),
        settings: str = SETTINGS,
        **row: Any,
    ) -> list[Observation]:
        groups = [shard(0, lengths, (5, 7), number) for number, lengths in enumerate(shards)]
        return observe(load_run(write_run(spans, groups, settings, [row], arm="a")))

    return of


def _only(found: list[Observation], stage: str, **where: str) -> Observation:
    matching = [item for item in found if item.stage == stage and where.items() <= item.where.items()]
    assert len(matching) == 1, matching
    return matching[0]


def test_work_is_counted_by_the_rollouts_behind_it(observed: Write) -> None:
    found, groups = observed(), [(5, LENGTHS[0]), (7, LENGTHS[1])]
    tiny = replace(PRESETS["tiny"], vocab_size=1280)
    assert tiny.num_parameters == PARAMETERS
    item = _only(found, "generate")
    assert item.units == generate_features(tiny, groups, 256)
    assert item.seconds == pytest.approx(0.030)
    told = {"engine": "native", "precision": "bfloat16", "threads": "1", "device": "cpu", "placement": "actors"}
    assert (item.where, item.model, item.arm, item.step, item.others) == (told, "tiny", "a", 0, 0.0)
    assert _only(found, "update").units == update_features(tiny, groups, 4, 1, 1)
    for stage in ("prepare_batch", "score"):
        assert _only(found, stage).units == {"call": 1, "group": 2, "response": 4, "token": 15}


def test_the_first_sync_is_told_apart(observed: Write) -> None:
    first, later = [item for item in observed() if item.stage == "weight_publish"]
    gb = PARAMETERS * 4 / 1e9
    usual = {"call": 1, "tensor": 20, "gb": gb, "further_gb": 0}
    assert (first.units, later.units) == (usual | {"first": 1, "first_gb": gb}, usual | {"first": 0, "first_gb": 0})
    assert (first.seconds, later.seconds) == pytest.approx((0.020, 0.010))
    assert first.where == {"transport": "object_store"}


def test_both_ways_of_a_call_are_told_apart_and_what_they_carry_is_counted(observed: Write) -> None:
    found = observed()
    there, back = (_only(found, "call", call="generate", way=way) for way in ("there", "back"))
    assert (there.seconds, there.units) == (pytest.approx(0.002), {"call": 1, "group": 0, "response": 0})
    assert (back.seconds, back.units) == (pytest.approx(0.003), {"call": 1, "group": 2, "response": 4})
    there, back = (_only(found, "call", call="update", way=way) for way in ("there", "back"))
    assert (there.units["group"], back.units["group"]) == (2, 0)
    assert there.where["placement"] == "actors"


def test_waits_are_no_stages_but_the_recorder_is(observed: Write) -> None:
    found = observed()
    assert _only(found, "record").seconds == pytest.approx(0.002)
    syncs = {"weight_load", "weight_publish", "weight_transfer", "weight_verify"}
    assert {item.stage for item in found} == syncs | {"call", "generate", "prepare_batch", "record", "score", "update"}


@pytest.mark.parametrize("flag", ["warmup", "profiled"])
def test_steps_of_warmup_and_profilers_leave_only_the_first_sync(observed: Write, flag: str) -> None:
    left = [(item.stage.removeprefix("weight_"), item.step) for item in observed(**{flag: True})]
    assert sorted(left) == [("load", 1), ("publish", 0), ("publish", 1), ("transfer", 0), ("verify", 1)]


def test_work_at_the_same_time_is_measured_by_its_share(observed: Write) -> None:
    """Two Generators: the second works from 1052 to 1082, which is 20 of the first one's 30 ms."""
    spans = (("generator0", Stage.GENERATE, 1042, 1072, 0), ("generator1", Stage.GENERATE, 1052, 1082, 0))
    settings = SETTINGS.replace("colocated: false", "colocated: false, generator: {count: 2, cpus: 0.5}")
    found = observed(spans, (LENGTHS, [(2, 2), (2, 2)]), settings)
    first, second = (item for item in found if item.stage == "generate")
    assert (first.others, second.others) == pytest.approx((2 / 3, 2 / 3))
    assert not first.is_alone
    assert (first.units["decode_step"], second.units["decode_step"]) == (5, 1)  # shards in the order of their starts


def test_in_one_process_a_call_is_what_lies_between_two_stages(observed: Write) -> None:
    before = (
        ("learner", Stage.WEIGHT_PUBLISH, 1000, 1020, 0),
        ("generator", Stage.GENERATE, 1022, 1052, 0),
        ("scorer", Stage.SCORE, 1053, 1054, 0),
    )
    trained = (("learner", Stage.PREPARE_BATCH, 1055, 1056, 0), ("learner", Stage.UPDATE, 1057, 1107, 0))  # one call
    checkpoint = (
        ("learner", Stage.CHECKPOINT, 1021, 1023, 0),  # in pieces, beside what others do
        ("learner", Stage.CHECKPOINT, 1055, 1154, 0),
        ("learner", Stage.UPDATE, 1155, 1205, 0),
    )

    def calls(spans: tuple[tuple[str, Stage, float, float, int], ...], settings: str) -> dict[str, float]:
        found = observed((*before, *spans), settings=settings)
        return {item.where["call"]: item.seconds for item in found if item.stage == "call"}

    assert calls(trained, IN_TURNS) == pytest.approx({"generate": 0.002, "score": 0.001, "update": 0.001})
    with_checkpoints = calls(checkpoint, f"{IN_TURNS}checkpoint: {{every: 1, asynchronous: false}}\n")
    assert with_checkpoints == pytest.approx({"score": 0.001})  # a checkpoint is no part of the call behind it


def test_a_sweeps_syncs_are_observed_without_a_model(make_run: Callable[..., RunFolder]) -> None:
    run = make_run(scenario="transport_sweep", steps=0, status="completed")
    row = SyncRow("nixl", 10_000_000, 20, 1, 0, 0.06, 0.01, 0.04, 0.005, 0.004, 0.001)
    with (run.folder / "steps.jsonl").open("ab") as file:
        file.write(row.line())
    found = observe_sweep(load_run(run.folder))
    seconds = {item.stage.removeprefix("weight_"): item.seconds for item in found}
    assert seconds == {"publish": 0.01, "transfer": 0.04, "load": 0.005, "verify": 0.004}
    assert found[0].units == {"call": 1, "tensor": 20, "gb": 0.01, "further_gb": 0, "first": 1, "first_gb": 0.01}
    assert found[0].where == {"transport": "nixl"}


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_checkpoint_is_one_observation_of_what_it_held_up_and_one_of_what_was_written_beside(
    observed: Write, asynchronous: str
) -> None:
    spans = (
        *ACTORS,
        ("learner", Stage.CHECKPOINT, 1160, 1161, 1),
        ("learner", Stage.CHECKPOINT, 1163, 1173, 1),
        ("checkpoint_writer", Stage.CHECKPOINT_WRITE, 1170, 1200, 1),
        ("checkpoint_writer", Stage.CHECKPOINT_WRITE, 1175, 1180, 1),
        ("generator", Stage.GENERATE, 1160, 1300, 1),
    )
    all_found = observed(spans, settings=f"{SETTINGS}checkpoint: {{every: 1, asynchronous: {asynchronous}}}\n")
    found = [item for item in all_found if "checkpoint" in item.stage]
    assert [(item.stage, item.seconds, item.others) for item in found] == [
        ("checkpoint", pytest.approx(0.011), 0.0),
        ("checkpoint_write", pytest.approx(0.030), 0.0),
    ]
    assert found[0].where == {"asynchronous": asynchronous}
    assert found[0].units == pytest.approx({"call": 1, "gb": 3 * 4 * PARAMETERS / 1e9})  # weights and two averages
