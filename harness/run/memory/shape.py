"""The sizes of a scenario's model, for plans and forecasts: nothing is loaded or fetched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from harness.core.regular_files import read_regular
from harness.models.config import MOST_CONFIG_BYTES, ModelConfig, preset_shape, sizes_from_hf
from harness.models.published import PUBLISHED
from harness.scenario.schema import Scenario


def shape_for(scenario: Scenario) -> tuple[ModelConfig | None, str]:
    """Return the sizes of the scenario's model, or None and why they are not known."""
    settings: Any = scenario.model
    if scenario.transport_sweep is not None:
        return None, "a transport sweep trains no model"
    if settings.type == "preset":
        return preset_shape(settings.preset), ""
    if settings.type != "folder":
        return None, f"model.type {settings.type} has next to no weights"
    folder = _folder(settings.path)
    if folder is None and settings.path in PUBLISHED:
        return sizes_from_hf(PUBLISHED[settings.path]), ""
    if folder is None:
        return None, f"{settings.path} is not on this machine yet, and the plan reads its config.json"
    shape = read_shape(folder)
    return shape, "" if shape else f"the config.json of {settings.path} is of no family that the plan knows"


def read_shape(folder: Path) -> ModelConfig | None:
    """Return the sizes of the model in a folder; None without a readable ``config.json`` of a known family."""
    try:
        config = json.loads(read_regular(folder / "config.json", MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return sizes_from_hf(config) if isinstance(config, dict) else None


def _folder(name: str) -> Path | None:
    """The folder of that name, or where the hub's cache keeps a model of that name."""
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder
    if name.startswith((".", "/", "~")):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(name, "config.json")
    except (ModuleNotFoundError, ValueError):  # without the extra `train`; no name that the hub could have
        return None
    return Path(config).parent if isinstance(config, str) else None
