"""The shape of the model that a scenario names, where it can be known without loading anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.models.config import PUBLISHED, preset_shape
from harness.models.shape import Shape, read_shape, shape_of, shape_of_own
from harness.scenario import Scenario


def shape_for(scenario: Scenario) -> tuple[Shape | None, str]:
    """Return the shape of the scenario's model, or None and why it is not known."""
    settings: Any = scenario.model
    if scenario.transport_sweep is not None:
        return None, "a transport sweep trains no model"
    if settings.type == "preset":
        return shape_of_own(preset_shape(settings.preset)), ""
    if settings.type != "folder":
        return None, f"model.type {settings.type} has next to no weights"
    folder = _folder(settings.path)
    if folder is None and settings.path in PUBLISHED:
        return shape_of(PUBLISHED[settings.path]), ""
    if folder is None:
        return None, f"{settings.path} is not on this machine yet, and the plan reads its config.json"
    shape = read_shape(folder)
    return shape, "" if shape else f"the config.json of {settings.path} is of no family that the plan knows"


def _folder(name: str) -> Path | None:
    """The folder of that name, or where the hub's cache keeps a model of that name; nothing is fetched."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")):
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name that the hub could have
        return None
    return Path(found).parent if isinstance(found, str) else None
