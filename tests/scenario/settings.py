"""Scenarios by dotted keys, as in a table: ``@lag1, loss.type: cispo``."""

import re
from typing import Any

from harness.scenario.schema import Scenario
from harness.scenario.tree import parse_yaml

SHORT = {
    "@apart": "placement.colocated: false",
    "@lag1": "max_lag: 1, placement.colocated: false",
    "@paced": "model.type: paced, engine.type: paced",
    "@sorting": "task.type: sorting, model.type: sorting",
    "@vllm2": "engine.type: vllm, engine.tensor_parallel: 2",
    "@fsdp2": "learner.sharding: fsdp2, transport.type: shared_memory",
    "@deepspeed": "learner.sharding: deepspeed, transport.type: shared_memory",
    "@stream": "learner.stream: in_order, transport.type: shared_memory, placement.colocated: false, "
    "placement.generator.count: 2",
    "@halves": "placement.device: cuda, placement.generator.gpus: 0.5, placement.learner.gpus: 0.5",
    "@gpus": "placement.device: cuda, placement.colocated: false, placement.generator.gpus: 1, "
    "placement.learner.gpus: 1",
}
"""What several scenarios share."""


def scenario_of(text: str) -> Scenario:
    """Return the scenario of settings by dotted keys, separated by commas; rules are not asked."""
    data: dict[str, Any] = {}
    for key, value in parse_yaml("{" + re.sub(r"@\w+", lambda word: SHORT[word[0]], text) + "}", "here").items():
        *sections, last = key.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return Scenario.model_validate(data)
