"""Under which circumstances a scenario's stages run: what a machine profile's costs must agree with.

stage                               circumstances
----------------------------------  -------------------------------------------------
generate                            engine, precision, threads, device, placement
score                               task
old_logprobs, reference_logprobs,   precision, threads, device, placement
  update
weight_publish, weight_transfer     transport
weight_load                         engine, precision
weight_verify                       part (``learner`` or ``generator``), transport
call                                call (``CALLS``), way (``there`` or ``back``), placement, transport
prepare_batch, checkpoint, record   none
"""

from __future__ import annotations

from typing import Any, Literal

from harness.scenario import PartSettings, Scenario
from harness.scenario.loop_plan import threads_on

CALLS = ("generate", "score", "update", "publish", "load", "checkpoint")
"""Methods of a part, as ``call`` names them."""

Placement = Literal["actors", "in_process"]
Way = Literal["there", "back"]


def circumstances(scenario: Scenario, stage: str, cores: int, has_gpu: bool) -> dict[str, str]:
    """Return what a stage's cost depends on beside its units; see the table above.

    Args:
        scenario: resolved.
        stage: a stage's name, ``call`` or ``record``. ``part``, ``call`` and ``way`` are the caller's to add.
        cores: of the machine, by which a part without a number of threads gets its share.
        has_gpu: whether the machine has one.
    """
    match stage:
        case "generate":
            return _engine(scenario) | _computing(scenario, scenario.placement.generator, cores, has_gpu)
        case "score":
            return {"task": scenario.task.type}
        case "old_logprobs" | "reference_logprobs" | "update":
            model: Any = scenario.model
            precision = {"precision": str(getattr(model, "precision", "float32"))}
            return precision | _computing(scenario, scenario.placement.learner, cores, has_gpu)
        case "weight_publish" | "weight_transfer" | "weight_verify":
            return {"transport": transport_of(scenario)}
        case "weight_load":
            return _engine(scenario)
        case "call":
            return {"placement": placement_of(scenario), "transport": transport_of(scenario)}
    return {}


def placement_of(scenario: Scenario) -> Placement:
    """Return whether the parts are Ray actors or threads of one process."""
    return "actors" if scenario.uses_ray else "in_process"


def transport_of(scenario: Scenario) -> str:
    """Return the transport's name; in one process, whether parts that do not take turns get a copy of the weights."""
    name: str = scenario.transport.type
    return "in_process_copy" if name == "in_process" and not scenario.placement.colocated else name


def model_name(scenario: Scenario) -> str:
    """Return the name under which a profile keeps what it knows of this model alone: the preset's or the folder's."""
    model: Any = scenario.model
    named = getattr(model, "preset", None) or getattr(model, "path", None) or model.type
    return str(named).rstrip("/").rsplit("/", 1)[-1]


def _engine(scenario: Scenario) -> dict[str, str]:
    engine: Any = scenario.engine
    return {"engine": engine.type, "precision": str(getattr(engine, "precision", "float32"))}


def _computing(scenario: Scenario, part: PartSettings, cores: int, has_gpu: bool) -> dict[str, str]:
    threads, device = str(threads_on(cores, scenario, part)), scenario.device_of(part, has_gpu)
    return {"threads": threads, "device": device, "placement": placement_of(scenario)}
