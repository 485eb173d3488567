"""The spans of a simulated run come in the order, with the steps and the versions, in which those of real ones came."""

import json
from pathlib import Path

import pytest

from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.simulate.machine import Contention, Device, MachineProfile, StageCost
from harness.simulate.simulated_run import simulate_run

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "simulator" / "span_order.json").read_text())["arms"]

# about what the stages took in these runs, in seconds
SECONDS = {
    "generate": 0.1,
    "score": 0.0005,
    "prepare_batch": 0.001,
    "old_logprobs": 0.075,
    "reference_logprobs": 0.05,
    "update": 0.2,
    "weight_publish": 0.015,
    "weight_transfer": 0.01,
    "weight_load": 0.009,
    "weight_verify": 0.001,
    "record": 0.0015,
}


def machine():
    stages = [StageCost(stage=stage, seconds={"call": seconds}) for stage, seconds in SECONDS.items()]
    stages.append(StageCost(stage="call", where={"placement": "actors"}, seconds={"call": 0.002}))
    return MachineProfile(
        name="about right",
        made="2026-11-21",
        device=Device(name="made up"),
        sources=("by hand",),
        contention=Contention(cores=2, slowdown=0.2),
        stages=tuple(stages),
    )


@pytest.mark.parametrize("arm", RECORDED)
def test_spans_come_in_the_order_of_a_recorded_run(arm):
    found = next(variant.scenario for variant in expand(load_scenario("calibration")) if variant.arm == arm)
    sampling = found.sampling.model_copy(update={"pinned_lengths": (8, 13)})
    run = simulate_run(found.model_copy(update={"sampling": sampling, "steps": 6}), machine())
    spans = [[span.lane, span.stage.value, span.step, span.version] for span in run.spans]
    assert spans[: len(RECORDED[arm])] == RECORDED[arm]
