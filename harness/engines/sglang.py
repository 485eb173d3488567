"""SGLang as the engine. Run with SGLang 0.5.23 on a CPU; on a GPU not yet.

The calls are those of SGLang's offline ``Engine`` (``python/sglang/srt/entrypoints/engine.py`` in sgl-project/sglang):
``async_generate``, ``generate``, ``update_weights_from_tensor``, ``shutdown``. The model runs in a process that SGLang
starts; weights go to it as handles of shared memory, or of CUDA memory. Its limits: docs/sglang.md.

What its log-probabilities are (``python/sglang/srt/layers/sampler.py``): log softmax(logits / temperature), of the
whole distribution also where ``top_p`` cuts it, so ``top_p`` below 1 is refused here. The ban on the end tokens is
part of the logits. Those of given tokens (``input_token_logprobs``) are at temperature 1 whatever the request says.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.private_dir import PrivateDir
from harness.core.protocols import Tokenizer
from harness.core.types import SamplingParams
from harness.engines.limits import check_scored
from harness.engines.serving import ResponseRow, ServingEngine
from harness.models.config import context_length
from harness.models.ends import GENERATION
from harness.models.storage import save_policy
from harness.settings.engine import SglangEngineSettings

POLL_S = 0.05
"""Seconds between two looks at the stop signal while SGLang samples."""
_RAW_LOG_PROBS = ("SGLANG_RETURN_ORIGINAL_LOGPROB", "RETURN_ORIGINAL_LOGPROB")
"""Environment variables that make SGLang report log-probabilities from before the temperature."""


def sglang_engine(
    settings: SglangEngineSettings,
    model: nn.Module,
    tokenizer: Any,
    *,
    ends: Sequence[int] | None = None,
    device: str = "cuda",
    should_stop: Callable[[], bool] | None = None,
) -> SglangEngine:
    """Start SGLang with a copy of the policy's weights.

    Args:
        model, tokenizer: the policy: a ``DecoderLM`` or a model of transformers.
        device: ``cuda``, or ``cpu``, where its seeds have no effect.
        ends, should_stop: of ``ServingEngine``.

    Raises:
        UserError: SGLang is not installed, or it cannot serve the model.
    """
    check_sglang_usable()
    with PrivateDir() as scratch:
        folder = scratch / "policy"
        save_policy(model, tokenizer, folder)
        (folder / GENERATION).write_text("{}", encoding="utf-8")  # end tokens are those of each request
        engine = _start(engine_options(folder, settings, device))
    return SglangEngine(
        engine,
        model,
        tokenizer,
        ends=ends,
        max_batch=settings.max_batch,
        device=device,
        should_stop=should_stop,
    )


def check_sglang_usable(environment: Mapping[str, str] = os.environ) -> None:
    """Check that SGLang can be started, without importing it.

    Raises:
        UserError: it is not installed, or the environment changes what its log-probabilities are.
    """
    for name in _RAW_LOG_PROBS:
        if environment.get(name, "").lower() in ("1", "true", "yes", "y"):
            what = f"{name} is set: SGLang would report log-probabilities from before the temperature"
            raise UserError(what, "environment", f"unset {name}")
    if find_spec("sglang") is None:
        what = "engine.type is sglang, and SGLang is not installed"
        raise UserError(what, "engine.type", "install it as docs/sglang.md says, or set engine.type to native or vllm")


def engine_options(folder: Path, settings: SglangEngineSettings, device: str) -> dict[str, Any]:
    """Return what SGLang's ``Engine`` is told.

    Seeds of requests count only with deterministic inference, which also makes a row independent of its batch. Of the
    attention kernels that support it, only Triton's computes in float32, and none of them runs on a CPU.
    """
    options: dict[str, Any] = {
        "model_path": str(folder),
        "device": device,
        "dtype": settings.precision,
        "max_running_requests": settings.max_batch,
        "mem_fraction_static": settings.memory_fraction,
        "random_seed": 0,
        "log_level": "error",
    }
    if device == "cpu":
        return options | {"attention_backend": "torch_native", "sampling_backend": "pytorch"}
    options["enable_deterministic_inference"] = True
    return options | ({"attention_backend": "triton"} if settings.precision == "float32" else {})


def _start(options: Mapping[str, Any]) -> Any:
    if options["device"] == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"  # read when it is imported, and by the processes that it starts
    try:
        import sglang

        return sglang.Engine(trust_remote_code=False, **options)
    except (ImportError, OSError, RuntimeError, ValueError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"SGLang did not start: {reason}", "engine.type: sglang", "set engine.type to native, or see docs/sglang.md"
        ) from error


class SglangEngine(ServingEngine):
    """Samples from the weights that SGLang's processes hold.

    One set of weights serves a whole ``generate``: loading waits until a call on another thread has ended.

    Args:
        engine: SGLang's ``Engine``.
        device: where weights are put before they are handed over.
        model, tokenizer, options: of ``ServingEngine``.
    """

    def __init__(
        self, engine: Any, model: nn.Module, tokenizer: Tokenizer, *, device: str = "cuda", **options: Any
    ) -> None:
        config: Any = model.config
        context = context_length(config)
        super().__init__(model, tokenizer, vocab_size=config.vocab_size, context_length=context, **options)
        self._engine, self._device, self._lock = engine, device, threading.Lock()

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        """Hand these weights to SGLang, and have it forget what it cached with the old ones; no version is told.

        Raises:
            ValueError: one is missing, misshapen or unknown; the old weights stay.
            RunStopped: SGLang did not take them.
        """
        known = self._known(weights)
        with self._lock:
            # SGLang moves what it is given into memory that it shares, so it gets copies
            tensors = [(name, tensor.to(self._device, copy=True)) for name, tensor in known.items()]
            _require_taken(self._engine.begin_weight_update())
            _require_taken(self._engine.update_weights_from_tensor(tensors, flush_cache=True))
            _require_taken(self._engine.end_weight_update())

    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return log-probabilities at temperature 1; SGLang runs prompt and response as one prompt.

        It waits for a ``generate`` that is under way.
        """
        check_scored(prompts, responses, self._vocab_size, self.context_length, room=1)
        joined = [[*map(int, prompt), *map(int, response)] for prompt, response in zip(prompts, responses, strict=True)]
        with self._lock:
            answers = self._engine.generate(
                input_ids=joined,
                sampling_params={"max_new_tokens": 1, "temperature": 1.0},
                return_logprob=True,
                logprob_start_len=[len(prompt) - 1 for prompt in prompts],
            )
        return [scored_tokens(answer, response) for answer, response in zip(answers, responses, strict=True)]

    def close(self) -> None:
        """End SGLang's processes. It ends every child of this process, which is therefore an actor of its own."""
        self._engine.shutdown()

    def _sample(self, rows: Sequence[ResponseRow], sampling: SamplingParams) -> None:
        if sampling.top_p < 1 and sampling.temperature > 0:
            raise UserError(
                f"top_p is {sampling.top_p} with engine.type sglang, whose log-probabilities are of the whole "
                "distribution",
                "sampling.top_p",
                "set sampling.top_p to 1, or engine.type to native or vllm",
            )
        with self._lock:
            for first in range(0, len(rows), self._max_batch):
                part = rows[first : first + self._max_batch]
                answers = self._engine.loop.run_until_complete(self._ask(part, sampling))
                for row, answer in zip(part, answers, strict=True):
                    take_answer(row, answer)

    async def _ask(self, rows: Sequence[ResponseRow], sampling: SamplingParams) -> list[dict[str, Any]]:
        inputs, params = [list(map(int, row.prompt)) for row in rows], [row_options(row, sampling) for row in rows]
        call = self._engine.async_generate(input_ids=inputs, sampling_params=params, return_logprob=True)
        task = asyncio.ensure_future(call)
        while not task.done():
            await asyncio.wait({task}, timeout=POLL_S)
            if self._should_stop is not None and self._should_stop():
                self._engine.tokenizer_manager.abort_request(abort_all=True)
                await asyncio.wait({task})
                raise Interrupted(f"sampling of at most {sampling.max_tokens} tokens a response was stopped")
        answers: list[dict[str, Any]] = task.result()
        return answers


def row_options(row: ResponseRow, sampling: SamplingParams) -> dict[str, Any]:
    """Return SGLang's sampling parameters of one row.

    Stop strings are handed over so that SGLang stops there, unless they are to be ignored at first, which it cannot;
    ``ResponseRow`` finds them in any case. A row of pinned length never draws an end token.
    """
    options: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_new_tokens": row.max_tokens,
        "min_new_tokens": row.min_tokens,
        "sampling_seed": row.seed % 2**31,
        "stop_token_ids": list(row.stops.ends),
        "skip_special_tokens": True,
    }
    stops_itself = row.stops.texts and not row.is_pinned and sampling.min_tokens <= 1
    return options | ({"stop": list(row.stops.texts)} if stops_itself else {})


def take_answer(row: ResponseRow, answer: Mapping[str, Any]) -> None:
    """Put one answer of SGLang's into its row.

    Raises:
        RunStopped: SGLang gave the request up, or reported no log-probabilities.
    """
    meta = answer["meta_info"]
    finish = meta["finish_reason"] or {}
    if finish.get("type") not in ("stop", "length"):
        raise RunStopped(f"SGLang gave the request of prompt {row.row[0]} up: {finish.get('message') or finish}")
    tokens = meta.get("output_token_logprobs")
    if not tokens:
        raise RunStopped("SGLang reported no log-probabilities (meta_info.output_token_logprobs)")
    row.take([token for _, token, *_ in tokens], [log_prob for log_prob, *_ in tokens], 0, finish["type"])


def scored_tokens(answer: Mapping[str, Any], response: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the log-probabilities of a response's tokens, (T,), out of those of the whole input.

    Raises:
        RunStopped: SGLang's tokens are not those asked for.
    """
    tokens = answer["meta_info"].get("input_token_logprobs") or []
    last = tokens[len(tokens) - len(response) :] if response else []
    is_right = [token for _, token, *_ in last] == [int(token) for token in response]
    if not is_right or any(entry[0] is None for entry in last):
        raise RunStopped("SGLang scored other tokens than it was asked to (meta_info.input_token_logprobs)")
    return np.array([log_prob for log_prob, *_ in last], dtype=np.float32)


def _require_taken(answer: Any) -> None:
    taken, message = answer if isinstance(answer, tuple) else (bool(answer), "")
    if not taken:
        raise RunStopped(f"SGLang did not take the weights: {message or 'no reason given'}")
