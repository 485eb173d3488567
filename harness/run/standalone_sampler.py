"""A policy and an engine by their names, for commands that sample and do not train."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from harness.core.errors import UserError
from harness.core.protocols import Engine
from harness.engines.make import make_engine
from harness.run.devices import check_gpu_is_found, resolve_device
from harness.run.parts import never
from harness.run.policy import Policy, load
from harness.scenario.schema import Scenario
from harness.settings.base import Precision
from harness.settings.engine import NativeEngineSettings, VllmEngineSettings
from harness.settings.model import FolderModelSettings, PresetModelSettings
from harness.settings.placement import PlacementSettings

PRESET = "preset:"

EngineName = Literal["native", "vllm"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Sampler:
    """An engine with a policy's weights in it.

    Attributes:
        policy: model, tokenizer and context.
        engine: samples from it.
        device: ``cpu`` or ``cuda``.
        checksums: of the model's ``weights``, its shape (``config``) and the ``tokenizer``.
    """

    policy: Policy
    engine: Engine
    device: str
    checksums: dict[str, str]

    def close(self) -> None:
        close_engine = getattr(self.engine, "close", None)
        if close_engine is not None:
            close_engine()


def model_name(model: str) -> str:
    """Return the model's name without the folders above it: ``preset:small``, ``my-model``, ``owner/model``."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def make_sampler(
    model: str,
    engine: EngineName,
    *,
    precision: Precision = "float32",
    device: Device = "auto",
    max_batch: int = 256,
    chat: bool = False,
) -> Sampler:
    """Load a policy and put it into an engine.

    Args:
        model: ``preset:NAME``, a Hugging Face folder, or a model's name on the hub.
        engine: which engine.
        precision: of its arithmetic.
        device: where it computes; ``auto`` takes a GPU if there is one.
        max_batch: most responses decoded together.
        chat: whether prompts go through the chat template, whose turns end responses too.

    Raises:
        UserError: there is no such model, or the engine or the device cannot be had here.
        RunStopped: the preset's warm start failed.
    """
    kind = VllmEngineSettings if engine == "vllm" else NativeEngineSettings
    scenario = Scenario(
        model=_model_settings(model),
        engine=kind(precision=precision, max_batch=max_batch),
        placement=PlacementSettings(device=device),
    )
    check_gpu_is_found([scenario])
    chosen = resolve_device(scenario, scenario.placement.generator)
    policy = load(scenario, chosen, never).with_ends(chat=chat)
    checksums = _checksums(policy)
    made = make_engine(  # there is no Learner to leave memory to, or to sleep for
        scenario.engine, policy.model, policy.tokenizer, ends=policy.ends, device=chosen, should_stop=never
    )
    return Sampler(policy, made, chosen, checksums)


def _model_settings(model: str) -> PresetModelSettings | FolderModelSettings:
    if not model.startswith(PRESET):
        return FolderModelSettings(path=model)
    name: Any = model.removeprefix(PRESET)
    presets = get_args(PresetModelSettings.model_fields["preset"].annotation)
    if name not in presets:
        raise UserError(
            f"there is no preset {name!r}; the presets are {', '.join(presets)}",
            "--model",
            f"--model {PRESET}{presets[0]}, or the folder of a model",
        )
    return PresetModelSettings(preset=name)


def _checksums(policy: Policy) -> dict[str, str]:
    from harness.models.tokenizer import tokenizer_digest
    from harness.transports.checksum import checksum

    assert policy.model is not None
    config: Any = policy.model.config
    fields = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config.to_dict()
    shape = {key: value for key, value in fields.items() if key not in ("_name_or_path", "transformers_version")}
    return {
        "weights": checksum(policy.model.state_dict()),
        "config": hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode()).hexdigest()[:16],
        "tokenizer": tokenizer_digest(policy.tokenizer)[:16],
    }
