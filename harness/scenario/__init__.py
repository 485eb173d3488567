"""Scenarios: the YAML a person writes, checked and expanded into the runs it asks for. Imports no torch.

Start with ``schema``: the scenario, and the rules that bind it. Its sections stand with their rules in
``task_and_model``, ``loss`` and ``distributed``. ``load`` reads a file, ``axes`` makes its runs, ``loop_plan``
what the loop is told. ``yaml_files`` and ``check`` are for every YAML that people write.
"""

from harness.core.named_files import SCENARIOS
from harness.scenario.axes import Variant, changes_of, expand, identical_arms
from harness.scenario.distributed import (
    PartSettings,
    PlacementSettings,
    TransportName,
    TransportSweepSettings,
    no_gpu_error,
)
from harness.scenario.load import load_scenario, load_side_by_side, resolved_yaml, scenario_hash
from harness.scenario.loss import AdvantageSettings, LossSettings
from harness.scenario.schema import Scenario, broken_rules, json_schema
from harness.scenario.task_and_model import (
    FakeEngineSettings,
    FolderModelSettings,
    JsonlTaskSettings,
    NativeEngineSettings,
    PresetModelSettings,
    VllmEngineSettings,
)

__all__ = [
    "SCENARIOS",
    "AdvantageSettings",
    "FakeEngineSettings",
    "FolderModelSettings",
    "JsonlTaskSettings",
    "LossSettings",
    "NativeEngineSettings",
    "PartSettings",
    "PlacementSettings",
    "PresetModelSettings",
    "Scenario",
    "TransportName",
    "TransportSweepSettings",
    "Variant",
    "VllmEngineSettings",
    "broken_rules",
    "changes_of",
    "expand",
    "identical_arms",
    "json_schema",
    "load_scenario",
    "load_side_by_side",
    "no_gpu_error",
    "resolved_yaml",
    "scenario_hash",
]
