"""What vLLM asks of a process and of a machine, without importing it: environment, memory, and whether it is there."""

from __future__ import annotations

import os
import platform
import random
import secrets
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.core.errors import UserError
from harness.core.extras import how_to_install
from harness.engines.vllm_memory import ALONE, BLOCK_SIZE, MOST_CACHE_BYTES, SPARE_ROWS, Neighbours, cache_of, gpu_share
from harness.models.config import context_length

_WIDER_WINDOWS = ("cohere2",)
"""Model types whose windows vLLM 0.32 makes a token wider than transformers 5 does."""
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: starts in seconds, weights need no copy between processes
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",  # a process group listens, that of one process too: not to other machines
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks for an address that other machines reach
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy the locks of threads
}
_SHARED_MEMORY = Path("/dev/shm")
_LONGEST_FOLDER = 107 - 37 - len("/vllm-") - 16
_ON_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other parts use the same cores
    "TORCHDYNAMO_DISABLE": "1",  # else the first request compiles the gathering of log-probabilities for seconds
}
_ON_GPU = {"TORCHDYNAMO_DISABLE": "0"}  # compiled, with CUDA graphs; with "1" vLLM does not even start


def environment(device: str) -> dict[str, str]:
    """Return the variables that vLLM and torch must read, whatever the user has set: most when first imported.

    ``TORCHDYNAMO_DISABLE`` is read at each ``torch.compile`` (torch 2.13, ``_dynamo.eval_frame.optimize``), so the
    value given here holds in a process that imported torch under another one. Only functions that vLLM's modules
    compile as they are imported keep the value of that moment.

    Args:
        device: ``cpu`` or ``cuda``, where the engine computes.
    """
    return _ENVIRONMENT | (_ON_GPU if device == "cuda" else _ON_CPU)


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
        fix = f"{how_to_install('vllm')}, or set engine.type to native"
        raise UserError(
            "engine.type is vllm, and vLLM is not installed" + ("" if tested else f" (nor was it tried on {system})"),
            "engine.type",
            fix if tested else "set engine.type to native, or run on Linux on an x86-64 machine",
        )


def check_no_share(share: float | None) -> None:
    """Refuse a share of a GPU's memory for an engine that computes on a CPU.

    Raises:
        UserError: a share is asked for.
    """
    if share is not None:
        raise UserError(
            f"engine.gpu_memory_utilization is {share:g}, and vLLM would compute on a CPU here",
            "engine.gpu_memory_utilization",
            "leave it out; engine.kv_cache_gib says how much memory keys and values get on a CPU",
        )


def context_of(settings: Any, config: Any) -> int | None:
    """Return the most tokens of a prompt and its response: as the scenario says, else what the model was made for.

    Raises:
        UserError: the scenario says more than the model was made for, or rows in which vLLM computes otherwise.
    """
    asked: int | None = settings.context
    most = context_length(config)
    if asked is not None and most is not None and asked > most:
        what = f"engine.context is {asked}, must be at most {most}, what the model was made for"
        raise UserError(what, "engine.context", f"set engine.context to at most {most}, or to null")
    context = asked or most
    window = getattr(config, "sliding_window", None)
    if getattr(config, "model_type", None) in _WIDER_WINDOWS and window and (context is None or context > window):
        what = f"vLLM lets a {config.model_type} see one token more than its window of {window}, transformers does not"
        raise UserError(what, "engine.context", f"set engine.context to at most {window}, or engine.type to native")
    return context


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


def vllm_options(
    model: nn.Module,
    settings: Any,
    context: int | None,
    device: str,
    sleeps: bool,
    *,
    neighbours: Neighbours = ALONE,
    gpu_memory: Callable[[], tuple[int, int]] = torch.cuda.mem_get_info,
) -> dict[str, Any]:
    """Return vLLM's own settings.

    Args:
        model: the policy.
        settings: see ``VllmEngineSettings``.
        context: most tokens of a row; None leaves it to vLLM.
        device: ``cpu`` or ``cuda``.
        sleeps: give the GPU's memory back between two calls.
        neighbours: what else the plan puts on the engine's GPU.
        gpu_memory: returns the bytes of the GPU that are free, and all that it has.

    Raises:
        UserError: it does not fit onto the GPU; or a share of a GPU is asked for on a CPU.
    """
    options: dict[str, Any] = {
        "dtype": settings.precision,
        "max_model_len": context,
        "max_num_seqs": settings.max_batch + SPARE_ROWS,
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
    workers, itemsize = settings.tensor_parallel, getattr(torch, settings.precision).itemsize
    if workers > 1:  # by name: in a Ray actor vLLM would have Ray start them
        options |= {"tensor_parallel_size": workers, "distributed_executor_backend": "mp"}
    config: Any = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    of_token = 2 * config.num_hidden_layers * heads * head_size(config) * itemsize
    cache = cache_of(settings, of_token, context)
    if device == "cpu":
        check_no_share(settings.gpu_memory_utilization)
        options["worker_cls"] = "harness.engines.vllm_worker.PlainWorker"
        return options | {"kv_cache_memory_bytes": cache.num_bytes(MOST_CACHE_BYTES // workers)}
    weights = sum(parameter.numel() for parameter in model.parameters()) * itemsize // workers
    options |= gpu_share(cache, weights, neighbours, *gpu_memory())
    return options | ({"enable_sleep_mode": True} if sleeps else {})


@cache
def meeting_place() -> Path:
    """Return where workers and this process find each other while a vLLM starts: a folder that is made for that long.

    vLLM keeps the first name that it is told, whichever of the process' engines it is for. A socket's name has 107
    letters at most, of which vLLM takes 37.
    """
    folder = tempfile.gettempdir()
    return Path("/tmp" if len(folder) > _LONGEST_FOLDER else folder, f"vllm-{secrets.token_hex(8)}")


@contextmanager
def workers_meet(workers: int) -> Iterator[None]:
    """Have what starts in the block share this process' threads, and leave no file of theirs behind it.

    Sockets and the store of the process group have names in a folder, and memory in which workers add up has names that
    begin with the store's. What is connected, or mapped, needs no name any more.

    Args:
        workers: processes that start; with 1 there are none, and nothing is done.
    """
    if workers == 1:
        yield
        return
    kept, threads, place = tempfile.tempdir, os.environ.get("OMP_NUM_THREADS"), meeting_place()
    place.mkdir(mode=0o700)
    os.environ["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // workers))
    tempfile.tempdir = str(place)
    try:
        yield
    finally:
        tempfile.tempdir = kept
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads
        for store in place.glob("vllm_dist_*"):
            for shared in _SHARED_MEMORY.glob(f"{store.name}-*"):  # stays where a worker is killed
                shared.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def classes_as_they_were(model: nn.Module) -> Iterator[None]:
    """Let other models of the policy's classes be made and run in this process, after a vLLM has started on them.

    A family that vLLM has no code for it builds of transformers' own classes. It changes these: their instances then
    ask for vLLM's config, and for whether they are compiled, which the Learner's own model cannot say.
    """
    classes: set[Any] = {type(module) for module in model.modules()}
    made_by = {kind: kind.__init__ for kind in classes}
    try:
        yield
    finally:
        for kind, make in made_by.items():
            if kind.__init__ is not make:
                kind.__init__ = make
                kind.do_not_compile = True


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
