"""The engine of a scenario's section. What an engine needs is imported when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from harness.core.plugins import PluginKind, make_plugin
from harness.core.protocols import Engine
from harness.engines.vllm_options import ALONE, Neighbours
from harness.settings.engine import (
    EngineSettings,
    NativeEngineSettings,
    PacedEngineSettings,
    PluginEngineSettings,
    SglangEngineSettings,
    VllmEngineSettings,
)

if TYPE_CHECKING:
    from torch import nn

ENGINE_PLUGIN = PluginKind(
    "engine",
    "engine.type",
    "(model, tokenizer, **options) -> Engine",
    "docs.examples.own_parts.parts:Remote",
    arguments=("model", "tokenizer", "ends", "device", "precision", "max_batch", "should_stop"),
    protocol=Engine,
)
"""Made with those of these arguments that it names, and the scenario's ``engine.options``."""


def make_engine(
    settings: EngineSettings,
    model: nn.Module | None,
    tokenizer: Any,
    *,
    ends: Sequence[int],
    device: str,
    should_stop: Callable[[], bool],
    prompts_per_batch: int = 1,
    sleeps: bool = False,
    neighbours: Neighbours = ALONE,
) -> Engine:
    """Return an engine with a copy of a policy's weights.

    Args:
        model, tokenizer: the policy; no model for a paced engine.
        ends: tokens that end a response.
        prompts_per_batch: of the run, by which a paced engine divides its seconds.
        sleeps, neighbours: of vLLM, see ``vllm_engine``.

    Raises:
        UserError: it cannot be had here.
    """
    given: dict[str, Any] = {"ends": ends, "device": device, "should_stop": should_stop}
    match settings:
        case PacedEngineSettings():
            from harness.engines.paced import PacedEngine

            return PacedEngine(settings.generate_s, settings.spread, prompts_per_batch, should_stop=should_stop)
        case PluginEngineSettings():
            given |= {"model": model, "tokenizer": tokenizer} | settings.model_dump(include={"precision", "max_batch"})
            engine: Engine = make_plugin(settings.type, ENGINE_PLUGIN, given, settings.options)
            return engine
    assert model is not None
    match settings:
        case NativeEngineSettings():
            from harness.engines.native import native_engine

            chosen = settings.model_dump(include={"precision", "kv_cache", "max_batch"})
            return native_engine(model, tokenizer, **chosen, **given)
        case VllmEngineSettings():
            from harness.engines.vllm import vllm_engine

            return vllm_engine(settings, model, tokenizer, sleeps=sleeps, neighbours=neighbours, **given)
        case SglangEngineSettings():
            from harness.engines.sglang import sglang_engine

            return sglang_engine(settings, model, tokenizer, **given)
        case _:
            assert_never(settings)
