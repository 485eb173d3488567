"""Scenarios: the YAML a person writes, checked and expanded into the runs it asks for. Imports no torch."""

from harness.scenario.axes import Variant, expand
from harness.scenario.dump import resolved_yaml, scenario_hash
from harness.scenario.engine_sections import FakeEngineSettings, NativeEngineSettings, PacedEngineSettings
from harness.scenario.load import find_scenario, load_scenario, scenario_files, scenario_folders
from harness.scenario.model_sections import FolderModelSettings, PacedModelSettings, PresetModelSettings
from harness.scenario.rules import broken_rules, no_gpu_error
from harness.scenario.schema import (
    EngineSettings,
    ModelSettings,
    Scenario,
    TaskSettings,
    TransportSettings,
    json_schema,
)
from harness.scenario.sections import (
    AdvantageSettings,
    EvaluationSettings,
    KlSettings,
    LossSettings,
    OptimizerSettings,
    PartSettings,
    PlacementSettings,
    SamplingSettings,
)
from harness.scenario.side_by_side import load_side_by_side
from harness.scenario.task_sections import JsonlTaskSettings, KeywordsTaskSettings
from harness.scenario.transport_sections import InProcessTransportSettings, TransportSweepSettings

__all__ = [
    "AdvantageSettings",
    "EngineSettings",
    "EvaluationSettings",
    "FakeEngineSettings",
    "FolderModelSettings",
    "InProcessTransportSettings",
    "JsonlTaskSettings",
    "KeywordsTaskSettings",
    "KlSettings",
    "LossSettings",
    "ModelSettings",
    "NativeEngineSettings",
    "OptimizerSettings",
    "PacedEngineSettings",
    "PacedModelSettings",
    "PartSettings",
    "PlacementSettings",
    "PresetModelSettings",
    "SamplingSettings",
    "Scenario",
    "TaskSettings",
    "TransportSettings",
    "TransportSweepSettings",
    "Variant",
    "broken_rules",
    "expand",
    "find_scenario",
    "json_schema",
    "load_scenario",
    "load_side_by_side",
    "no_gpu_error",
    "resolved_yaml",
    "scenario_files",
    "scenario_folders",
    "scenario_hash",
]
