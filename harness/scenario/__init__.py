"""Scenarios: the YAML a person writes, checked and expanded into the runs it asks for. Imports no torch.

Start with ``schema``: a scenario, composed of ``harness.settings``. ``derived`` has what follows from it, ``rules``
what it may not combine. ``load`` reads a file, ``axes`` makes its runs.
"""

from harness.core.named_files import SCENARIOS
from harness.scenario.axes import Variant, changes_of, expand, identical_arms
from harness.scenario.derived import no_gpu_error
from harness.scenario.load import load_scenario, load_side_by_side, resolved_yaml, scenario_hash
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario, json_schema
from harness.settings.engine import FakeEngineSettings, NativeEngineSettings, VllmEngineSettings
from harness.settings.loss import AdvantageSettings, LossSettings
from harness.settings.model import FolderModelSettings, PresetModelSettings
from harness.settings.placement import PartSettings, PlacementSettings
from harness.settings.task import JsonlTaskSettings
from harness.settings.transport import TransportName, TransportSweepSettings

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
