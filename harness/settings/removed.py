"""Settings, and values of settings, that the release before this one had: refused by name for one release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSTEAD = {
    "arrivals": "leave it out: with `max_lag: 0` a run repeats itself from its seed",
    "checkpoint.hours_between_failures": "leave it out, and choose `checkpoint.every`",
    "dynamic_sampling.prompt": "leave it out: a group without spread is replaced by one of another prompt, as in DAPO",
    "engine.type=fake": "set engine.type and model.type to `paced`, which take time and sample nothing",
    "faults.dead_rank": "leave it out: it was for tests of the harness",
    "faults.hung_rank": "leave it out: it was for tests of the harness",
    "faults.learner_restarts": "set `checkpoint.every`, and go on after a failure with `run --resume auto`",
    "faults.skip_weight_loads": "leave it out: it was for tests of the harness",
    "learner.offload.folder": "leave it out: what leaves a GPU goes to the host's memory",
    "learner.reduce_dtype": "leave it out: gradients are added up over ranks in float32",
    "loss.kl.polyak_every": "leave it out: `loss.kl.reference: polyak` averages after every training step",
    "model.seed": "leave it out: the scenario's `seed` draws the initial weights",
    "model.warm_start_seed": "leave it out: the warm start's seed is 0",
    "replay.max_uses": "leave it out: `replay.max_age` bounds how often a group is drawn",
    "task.symbolic_timeout_s": "leave it out: a symbolic comparison has two seconds",
    "transport.flatten": "leave it out: tensors travel as one buffer",
    "transport.preallocate": "leave it out: NIXL receives into buffers that are reused",
    "transport.timeout_s": "leave it out: a publish waits 30 seconds for a Generator",
}
"""By dotted key, or by key and value, what to use instead."""
_DEFAULTS: dict[str, Any] = {
    "arrivals": {"record": False, "repeat": None},
    "checkpoint.hours_between_failures": None,
    "dynamic_sampling.prompt": "new",
    "faults.dead_rank": None,
    "faults.hung_rank": None,
    "faults.learner_restarts": 0,
    "faults.skip_weight_loads": [],
    "learner.offload.folder": None,
    "learner.reduce_dtype": "float32",
    "loss.kl.polyak_every": None,
    "model.seed": None,
    "model.warm_start_seed": 0,
    "replay.max_uses": None,
    "task.symbolic_timeout_s": 2.0,
    "transport.flatten": True,
    "transport.preallocate": True,
    "transport.timeout_s": 30.0,
}
"""What they were where nobody set them."""


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded scenario, in which every setting has a value, without those that went and were not set."""
    kept = dict(settings)
    for key, default in _DEFAULTS.items():
        kept = _without(kept, key.split("."), default)
    loss = kept.get("loss")
    importance = loss.get("importance") if isinstance(loss, dict) else None
    if isinstance(loss, dict) and isinstance(importance, dict) and importance.get("mode") == "off":
        used = {name: value for name, value in importance.items() if name not in ("cap", "floor")}
        kept["loss"] = {**loss, "importance": used}  # its bounds had values that only other modes read
    return kept


def _without(section: Mapping[str, Any], keys: list[str], default: Any) -> dict[str, Any]:
    kept, (first, *deeper) = dict(section), keys
    if deeper and isinstance(kept.get(first), dict):
        kept[first] = _without(kept[first], deeper, default)
    elif not deeper and first in kept and kept[first] == default:
        del kept[first]
    return kept
