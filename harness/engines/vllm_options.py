"""What vLLM is told: environment, settings, and how much memory to take. The memory plan asks here too. No torch."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.core.errors import UserError
from harness.core.extras import how_to_install
from harness.models.config import context_length
from harness.settings.engine import VllmEngineSettings

if TYPE_CHECKING:
    from torch import nn

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
_ON_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other parts use the same cores
    "TORCHDYNAMO_DISABLE": "1",  # else the first request compiles the gathering of log-probabilities for seconds
}
_ON_GPU = {"TORCHDYNAMO_DISABLE": "0"}  # compiled, with CUDA graphs; with "1" vLLM does not even start
BLOCK_SIZE = 32
"""Tokens in one block of vLLM's key/value cache. Only whole blocks of a prompt are shared between its samples."""
SPARE_ROWS = 8
"""Rows beyond ``max_batch`` that have room, for the proof of a weight sync while a batch is being sampled."""
MOST_CACHE_BYTES = 4 << 30
"""Memory for keys and values on a CPU, where the scenario names none; beyond it rows wait for each other."""
CACHE_SHARE = 0.5
"""The same on a GPU, as a share of what is left there: arms side by side and other programs are not known here."""
WORKSPACE_BYTES = 2 << 30
"""What vLLM takes on a GPU beside weights, keys and values: activations of its longest step, logits, CUDA graphs. An
assumption: no GPU was to be had to measure it."""


def environment(device: str) -> dict[str, str]:
    """Return the variables that vLLM and torch must read, whatever the user has set: most when first imported.

    ``TORCHDYNAMO_DISABLE`` is read at each ``torch.compile`` (torch 2.13, ``_dynamo.eval_frame.optimize``), so it holds
    in a process that imported torch under another value. Only functions that vLLM's modules compile as they are
    imported keep the value of that moment.
    """
    return _ENVIRONMENT | (_ON_GPU if device == "cuda" else _ON_CPU)


def check_vllm_installed(find: Callable[[str], object | None] = find_spec) -> None:
    """Check that vLLM is there, without importing it.

    Raises:
        UserError: it is not.
    """
    if find("vllm") is not None:
        return
    tested = sys.platform == "linux" and platform.machine() == "x86_64"
    untested = "" if tested else f" (nor was it tried on {platform.system()} {platform.machine()})"
    raise UserError(
        f"engine.type is vllm, and vLLM is not installed{untested}",
        "engine.type",
        f"{how_to_install('vllm')}, or set engine.type to native"
        if tested
        else "set engine.type to native, or run on Linux on an x86-64 machine",
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


def context_of(settings: VllmEngineSettings, config: Any) -> int | None:
    """Return the most tokens of a prompt and its response: as the scenario says, else what the model was made for.

    Raises:
        UserError: the scenario says more than the model was made for, or rows in which vLLM computes otherwise.
    """
    asked, most = settings.context, context_length(config)
    if asked is not None and most is not None and asked > most:
        what = f"engine.context is {asked}, must be at most {most}, what the model was made for"
        raise UserError(what, "engine.context", f"set engine.context to at most {most}, or to null")
    context = asked or most
    window = getattr(config, "sliding_window", None)
    if getattr(config, "model_type", None) in _WIDER_WINDOWS and window and (context is None or context > window):
        what = f"vLLM lets a {config.model_type} see one token more than its window of {window}, transformers does not"
        raise UserError(what, "engine.context", f"set engine.context to at most {window}, or engine.type to native")
    return context


def head_size(config: Any) -> int:
    """Return the channels of an attention head, from a model's config by the names of Hugging Face."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def vllm_options(
    model: nn.Module,
    settings: VllmEngineSettings,
    context: int | None,
    device: str,
    sleeps: bool,
    *,
    neighbours: Neighbours | None = None,
    gpu_memory: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """Return vLLM's own settings.

    Args:
        context: most tokens of a row; None leaves it to vLLM.
        sleeps: give the GPU's memory back between two calls.
        neighbours: what else the plan puts on the engine's GPU.
        gpu_memory: bytes of the GPU that are free, and all that it has.

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
    workers, itemsize = settings.tensor_parallel, 4 if settings.precision == "float32" else 2
    if workers > 1:  # by name: in a Ray actor vLLM would have Ray start them
        options |= {"tensor_parallel_size": workers, "distributed_executor_backend": "mp"}
    config: Any = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    of_token = 2 * config.num_hidden_layers * heads * head_size(config) * itemsize
    cache = cache_of(settings, of_token, context)
    if device == "cpu":
        check_no_share(settings.gpu_memory_utilization)
        options["worker_cls"] = "harness.engines.vllm_worker.plain_cpu_worker"
        return options | {"kv_cache_memory_bytes": cache.num_bytes(MOST_CACHE_BYTES // workers)}
    weights = sum(parameter.numel() for parameter in model.parameters()) * itemsize // workers
    options |= gpu_share(cache, weights, neighbours or ALONE, *gpu_memory)
    return options | ({"enable_sleep_mode": True} if sleeps else {})


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of vLLM.

    Attributes:
        of_token: bytes of one token, in each worker.
        context: most tokens of a row; None where nobody says.
        max_batch: rows sampled at a time.
        asked_gib: GiB that the scenario names for each worker (its share of ``engine.kv_cache_gib``), or None.
        asked_share: of the GPU's memory for all of vLLM (``engine.gpu_memory_utilization``), or None.
    """

    of_token: int
    context: int | None
    max_batch: int
    asked_gib: float | None = None
    asked_share: float | None = None

    @property
    def of_row(self) -> int:
        """Bytes of one row of full length, in whole blocks: vLLM does not start with less."""
        return -(-(self.context or 0) // BLOCK_SIZE) * BLOCK_SIZE * self.of_token

    def num_bytes(self, room: int | None) -> int:
        """Return the bytes to take: what all rows of full length need, bounded by what the scenario names, else by
        ``room`` (None: not bounded), and one row at least."""
        most = room if self.asked_gib is None else round(self.asked_gib * 2**30)
        if self.context is None:
            return most or 0
        needed = (self.max_batch + SPARE_ROWS + 1) * self.of_row
        return max(self.of_row, needed if most is None else min(needed, most))


def cache_of(settings: VllmEngineSettings, of_token: int, context: int | None) -> Cache:
    """Return what each of the engine's workers keeps: the heads are dealt out, so all have the same part of each token.

    Args:
        of_token: bytes of one token in all workers together.
        context: most tokens of a row; None where nobody says.
    """
    workers, gib = settings.tensor_parallel, settings.kv_cache_gib
    share = settings.gpu_memory_utilization
    return Cache(of_token // workers, context, settings.max_batch, gib and gib / workers, share)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the memory plan puts on a vLLM's GPU beside it.

    Attributes:
        num_bytes: of everything but the vLLMs themselves, at its most.
        engines: vLLMs on the GPU, this one included.
    """

    num_bytes: int = 0
    engines: int = 1


ALONE = Neighbours()


def gpu_share(cache: Cache, weights: int, neighbours: Neighbours, free: int, total: int) -> dict[str, Any]:
    """Return vLLM's settings of memory on a GPU: the size of its cache, and ``gpu_memory_utilization``.

    Where the scenario names the share, vLLM itself measures what it needs to work in, and gives the rest of the share
    to keys and values.

    At its start vLLM 0.32 refuses a GPU of which less than that share is free (``v1/worker/utils.py``,
    ``request_memory``), also where the cache's size is given; then the share has no other effect
    (``v1/worker/gpu_worker.py``, ``determine_available_memory``). So it is what this vLLM needs, not the 0.92 that vLLM
    takes by itself. What the plan gives to the neighbours stays theirs; what is taken already counts as theirs.

    Args:
        cache: keys and values.
        weights: bytes of the engine's weights there.
        neighbours: what else the plan puts there.
        free: bytes of the GPU that nobody has taken yet.
        total: all its bytes.

    Raises:
        UserError: weights, workspace and keys and values do not fit.
    """
    room = min(free, (total - neighbours.num_bytes) // neighbours.engines)
    fixed = weights + WORKSPACE_BYTES
    if cache.asked_share is not None:
        _check_share(cache.asked_share, fixed + cache.of_row, room, total)
        return {"gpu_memory_utilization": cache.asked_share}
    keys_and_values = cache.num_bytes(max(0, int(CACHE_SHARE * (room - fixed))))
    needed = fixed + keys_and_values
    if needed > room:
        vllms = f", for {neighbours.engines} vLLMs" if neighbours.engines > 1 else ""
        raise UserError(
            f"vLLM needs {_gib(needed)} of the GPU ({_gib(weights)} for weights, {_gib(keys_and_values)} for keys and "
            f"values, {_gib(WORKSPACE_BYTES)} to work in), and {_gib(max(0, room))} are left for it: of "
            f"{_gib(total)} {_gib(free)} are free, and the memory plan gives {_gib(neighbours.num_bytes)} to the other "
            f"parts{vllms}",
            "engine.type: vllm",
            "give Generator and Learner a GPU each (placement.colocated: false, gpus: 1 for both), lower "
            "engine.context or engine.kv_cache_gib, or set engine.precision or model.dtype to bfloat16",
        )
    return {"kv_cache_memory_bytes": keys_and_values, "gpu_memory_utilization": (needed - 1) / total}


def _check_share(share: float, least: int, room: int, total: int) -> None:
    """Check that there is room for this share of the GPU, and that it is enough for weights and one response."""
    if least <= share * total <= room:
        return
    taken = f"engine.gpu_memory_utilization {share:g} is {_gib(int(share * total))} of the GPU's {_gib(total)}"
    if share * total > room:
        what = f"{taken}, and {_gib(max(0, room))} are left for it beside the other parts"
        fix = f"set it to at most {max(0.0, int(100 * room / total) / 100):g}, or give the Generator a GPU of its own"
    else:
        what = f"{taken}, and weights, workspace and one full response need {_gib(least)}"
        fix = f"set it to at least {min(1.0, -(-100 * least // total) / 100):g}, or lower engine.context"
    raise UserError(what, "engine.gpu_memory_utilization", fix)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
