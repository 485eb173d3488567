"""What vLLM asks of a process and of a machine, without importing it: environment, memory, and whether it is there."""

from __future__ import annotations

import platform
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.errors import UserError

BLOCK_SIZE = 32
"""Tokens in one block of vLLM's key/value cache. Only whole blocks of a prompt are shared between its samples."""
SPARE_ROWS = 8
"""Rows beyond ``max_batch`` that have room, for the proof of a weight sync while a batch is being sampled."""
MOST_CACHE_BYTES = 4 << 30
"""Memory for keys and values, where the scenario names none; beyond it rows wait for each other."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: starts in seconds, weights need no copy between processes
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other parts use the same cores
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first request compiles the gathering of log-probabilities for seconds
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",  # the process group of one process listens all the same: not to other machines
}
"""What vLLM and torch must read, whatever the user has set: most of it when they are first imported."""


def check_vllm_installed(find: Callable[[str], object | None] = find_spec) -> None:
    """Check that vLLM is there, without importing it.

    Args:
        find: finds a package by its name.

    Raises:
        UserError: it is not.
    """
    if find("vllm") is None:
        system = f"{platform.system()} {platform.machine()}"
        tested = sys.platform == "linux" and platform.machine() == "x86_64"
        fix = "`make install-vllm`, or set engine.type to native"
        raise UserError(
            "engine.type is vllm, and vLLM is not installed" + ("" if tested else f" (nor was it tried on {system})"),
            "engine.type",
            fix if tested else "set engine.type to native, or run on Linux on an x86-64 machine",
        )


def context_of(settings: Any, config: Any) -> int | None:
    """Return the most tokens of a prompt and its response: as the scenario says, else what the model was made for.

    Raises:
        UserError: the scenario says more than the model was made for.
    """
    asked: int | None = settings.context
    most: int | None = getattr(config, "max_position_embeddings", None)
    if asked is not None and most is not None and asked > most:
        what = f"engine.context is {asked}, must be at most {most}, what the model was made for"
        raise UserError(what, "engine.context", f"set engine.context to at most {most}, or to null")
    return asked or most


def reason_of(error: Exception) -> str:
    """Return the line of an error that says something; pydantic's first one only counts the others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        lines = lines[1:]
    return lines[0] if lines else type(error).__name__


def process_group_in_memory() -> None:
    """Make the process group that vLLM wants, of this process alone, unless there is one.

    vLLM itself would keep its store in a file of the temporary folder, which stays there when the process is killed.
    """
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]


def head_size(config: Any) -> int:
    """Return the channels of an attention head, from a model's config by the names of Hugging Face."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def kv_cache_bytes(config: Any, context: int, rows: int, itemsize: int, most: int) -> int:
    """Return the memory for keys and values, in bytes, of so many rows of full length.

    Args:
        config: of the model, by the names of Hugging Face.
        context: most tokens of a row.
        rows: rows at a time.
        itemsize: bytes of one value.
        most: bound; one row is given room all the same.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    of_token = 2 * config.num_hidden_layers * heads * head_size(config) * itemsize
    of_row = -(-context // BLOCK_SIZE) * BLOCK_SIZE * of_token
    return max(of_row, min((rows + 1) * of_row, most))


def vllm_options(model: nn.Module, settings: Any, context: int | None, device: str, sleeps: bool) -> dict[str, Any]:
    """vLLM's own settings."""
    rows = settings.max_batch + SPARE_ROWS
    options: dict[str, Any] = {
        "dtype": settings.precision,
        "max_model_len": context,
        "max_num_seqs": rows,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "async_scheduling": False,  # a step's tokens are of the weights in place when it was made
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enforce_eager": device == "cpu",
        # a prompt cut in two has vLLM set a row's random stream back, which generators on a CPU cannot
        "enable_chunked_prefill": device != "cpu",
        "block_size": BLOCK_SIZE,
        "seed": 0,
    }
    most = MOST_CACHE_BYTES if settings.kv_cache_gib is None else round(settings.kv_cache_gib * 2**30)
    itemsize = getattr(torch, settings.precision).itemsize
    options["kv_cache_memory_bytes"] = (
        most if context is None else kv_cache_bytes(model.config, context, rows, itemsize, most)
    )
    return options | ({"enable_sleep_mode": True} if sleeps and device == "cuda" else {})


@contextmanager
def as_it_was() -> Iterator[None]:
    """Put back what starting vLLM changes for the whole process: random states, and how torch takes its threads."""
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    drawn, drawn_by_numpy, drawn_by_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        torch.set_rng_state(drawn_by_torch)
