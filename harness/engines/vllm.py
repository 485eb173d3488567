"""vLLM in the Generator's process: an engine of another maker, whose weights are replaced in place at each sync.

It imports vLLM only when an engine is made. Written for and run with vLLM 0.32 on CPUs. What it does on a GPU follows
vLLM's sources and has not been run.

How new weights get in: a transport of the harness brings them into this process, and ``load_weights`` of vLLM's model
copies them over its parameters. On a CPU, vLLM would have packed each matrix into a handle of oneDNN's that nothing can
write to; with tied embeddings its own ``reload_weights`` then leaves the old output projection in place without a word.
So oneDNN is switched off before the engine starts (``vllm_worker``).

With several workers (``engine.tensor_parallel``) the scheduler stays in this process, and the model is cut over
processes of vLLM's. They read whole tensors from a file in memory, and each copies its slices.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.private_dir import PrivateDir
from harness.core.protocols import Tokenizer
from harness.core.types import SamplingParams
from harness.engines.limits import check_scored
from harness.engines.serving import ResponseRow, ServingEngine
from harness.engines.vllm_options import (
    ALONE,
    Neighbours,
    check_vllm_installed,
    context_of,
    environment,
    head_size,
    vllm_options,
)
from harness.engines.vllm_worker import (
    drop_names,
    first_values,
    in_memory_file,
    packed_away,
    put,
    put_file,
    settle_worker,
)
from harness.models.ends import GENERATION
from harness.models.storage import save_policy
from harness.settings.engine import VllmEngineSettings

Sink = Callable[[Any, int], None]
"""Takes what vLLM says of one request after a step, and the version of the weights that made the step."""

_NUMBERS = itertools.count()
_SHARED_MEMORY = Path("/dev/shm")
_LONGEST_FOLDER = 107 - 37 - len("/vllm-") - 16


def vllm_engine(
    settings: VllmEngineSettings,
    model: nn.Module,
    tokenizer: Any,
    *,
    ends: Sequence[int] | None = None,
    device: str = "cpu",
    sleeps: bool = False,
    neighbours: Neighbours = ALONE,
    should_stop: Callable[[], bool] | None = None,
) -> VllmEngine:
    """Start a vLLM in this process with a copy of the policy's weights.

    The policy is written into a private temporary folder, from which vLLM reads it, and which is removed again.

    Args:
        model, tokenizer: the policy: a ``DecoderLM`` or a model of transformers.
        neighbours: what else the memory plan puts on the engine's GPU.
        ends, sleeps, should_stop: of ``VllmEngine``; on a CPU none sleeps.

    Raises:
        UserError: vLLM is not installed, cannot be imported here, does not fit onto the GPU, or cannot serve the model.
    """
    check_vllm_installed()
    context, gpu_memory = context_of(settings, model.config), (0, 0)
    if device == "cuda":
        gpu_memory = torch.cuda.mem_get_info()
    options = vllm_options(model, settings, context, device, sleeps, neighbours=neighbours, gpu_memory=gpu_memory)
    with PrivateDir() as scratch:
        folder = scratch / "policy"
        save_policy(model, tokenizer, folder)
        (folder / GENERATION).write_text("{}", encoding="utf-8")  # vLLM would ban its end tokens beside a request's
        with classes_as_they_were(model):
            llm = _start(folder, options, device, head_size(model.config))
    engine = VllmEngine(
        llm,
        model,
        tokenizer,
        ends=ends,
        max_batch=settings.max_batch,
        workers=settings.tensor_parallel,
        sleeps=sleeps and device == "cuda",
        should_stop=should_stop,
    )
    engine.require_replaceable(model)
    return engine


class VllmEngine(ServingEngine):
    """Samples from the weights that a vLLM in this process holds.

    Log-probabilities are those of the distribution a token was drawn from: after temperature and top-p, and without the
    end tokens among the first ``min_tokens`` tokens (vLLM's ``processed_logprobs``). At temperature 0 they are
    those of temperature 1.

    Weights may be loaded on one thread while ``generate`` runs on another: they go in between two steps, and keys and
    values cached by the older ones are computed anew. ``Completion.versions`` says which weights sampled each token.

    Args:
        llm: vLLM's ``LLM``.
        workers: that the model is cut over; more than 1 are processes of their own.
        sleeps: give the GPU's memory back after each ``generate``, until the next load or call.
        model, tokenizer, options: of ``ServingEngine``.
    """

    def __init__(
        self,
        llm: Any,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        workers: int = 1,
        sleeps: bool = False,
        **options: Any,
    ) -> None:
        vocab_size, context = llm.model_config.get_vocab_size(), llm.model_config.max_model_len
        super().__init__(model, tokenizer, vocab_size=vocab_size, context_length=context, **options)
        if embedding := self._shapes.get("model.embed_tokens.weight"):
            self._second_names.setdefault("lm_head.weight", embedding)  # where the embeddings stand for it
        self._llm, self._workers, self._sleeps = llm, workers, sleeps
        self._requests = Requests(llm.llm_engine)
        _ALIVE.add(self)

    def require_replaceable(self, model: nn.Module) -> None:
        """Refuse a model whose weights vLLM keeps in another order than it loads them in, as experts on CPUs.

        New weights would be written over them as they are, and what is sampled from would be neither. To see it, the
        weights that the engine has are loaded once more.

        Raises:
            UserError: naming the weight.
        """
        before: list[dict[str, Tensor]] = self._llm.apply_model(first_values)
        self._put({name: weight.detach() for name, weight in model.named_parameters()})
        for was, now in zip(before, self._llm.apply_model(first_values), strict=True):
            for name, values in now.items():
                if not torch.equal(values, was[name]):
                    self.close()
                    raise UserError(
                        f"vLLM keeps {name} in an order of its own, where new weights cannot be written",
                        "engine.type: vllm",
                        "set engine.type to native",
                    )

    @property
    def version(self) -> int:
        return self._requests.version

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        """Copy these weights over the engine's own, between two steps of a ``generate`` that runs on another thread.

        An engine that sleeps between calls stays awake afterwards, for the ``generate`` to come.

        Raises:
            ValueError: one is missing, misshapen or unknown; the old weights stay.
            RunStopped: vLLM did not take them all, or kept what it had cached with the old ones; or a worker is gone.
        """
        wanted = self._known(weights)
        with self._awake(then="stay"), self._requests.paused() as engine:
            if left := self._put(wanted):
                raise RunStopped(f"vLLM left its {left[0]} (and {len(left) - 1} more) as it was when weights came")
            if not engine.reset_prefix_cache(reset_running_requests=True):
                raise RunStopped("vLLM would not forget the keys and values that the old weights made")
            self._requests.version = version

    def score(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the log-probabilities of each response's tokens: vLLM runs both as one prompt and samples a token."""
        check_scored(prompts, responses, self._vocab_size, self.context_length, room=1)
        scored: dict[int, npt.NDArray[np.float32]] = {}
        names: list[str] = []
        with self._awake(then="as before"):
            try:
                for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
                    take = partial(take_scores, scored, number, len(prompt), response)
                    params = _sampling_params({"max_tokens": 1, "prompt_logprobs": 0})
                    names.append(self._requests.add([*prompt, *response], params, take))
                while len(scored) < len(prompts):
                    if not self._requests.step() and len(scored) < len(prompts):
                        raise RunStopped(f"vLLM has scored {len(scored)} of {len(prompts)} responses, and no more come")
            finally:
                self._requests.drop(names)
        return [scored[number] for number in range(len(prompts))]

    def close(self) -> None:
        """Give the engine back. Memory is freed when the last one of the process is closed.

        All vLLMs of a process share its groups of processes, which end with the first one that ends.
        """
        if self not in _ALIVE:
            return
        _ALIVE.remove(self)
        _CLOSED.append(self._llm)
        if not _ALIVE:
            while _CLOSED:
                _CLOSED.pop().llm_engine.engine_core.shutdown()

    def _put(self, weights: Mapping[str, Tensor]) -> list[str]:
        """Have every worker take the weights; return the names of parameters that none of them went to."""
        if self._workers == 1:
            (left,) = self._llm.apply_model(lambda module: put(module, weights.items()))
            return list(left)
        with in_memory_file(weights) as file:
            return sorted({name for left in self._llm.apply_model(partial(put_file, file=file)) for name in left})

    def _sample(self, rows: Sequence[ResponseRow], sampling: SamplingParams) -> None:
        waiting, under_way, steps = deque(rows), dict[str, ResponseRow](), 0
        with self._awake(then="sleep"):
            try:
                while waiting or under_way:
                    if self._should_stop is not None and self._should_stop():
                        raise Interrupted(f"sampling was stopped after {steps} steps of at most {sampling.max_tokens}")
                    while waiting and len(under_way) < self._max_batch:
                        row = waiting.popleft()
                        params = _sampling_params(row_options(row, sampling))
                        under_way[self._requests.add(row.prompt, params, partial(take_output, row))] = row
                    goes_on = self._requests.step()
                    steps += 1
                    ended = {name: row for name, row in under_way.items() if row.is_done}
                    if not goes_on and len(ended) < len(under_way):
                        raise RunStopped(f"vLLM has lost {len(under_way) - len(ended)} of {len(under_way)} responses")
                    self._requests.drop([name for name, row in ended.items() if row.was_cut])
                    for name in ended:
                        del under_way[name]
            finally:
                self._requests.drop(list(under_way))

    @contextmanager
    def _awake(self, then: Literal["stay", "sleep", "as before"]) -> Iterator[None]:
        """Have the engine's memory in place for the block, where it is given back between two calls.

        Args:
            then: what the engine does after the block. After an error in one that would have it stay awake: as before.

        Raises:
            RunStopped: the block failed since a worker has ended.
        """
        goes_to_sleep = False
        try:
            try:
                if self._sleeps:
                    slept: bool = self._llm.llm_engine.is_sleeping()
                    if slept:
                        self._llm.wake_up()
                    goes_to_sleep = slept or then == "sleep"
                yield
                goes_to_sleep = goes_to_sleep and then != "stay"
            finally:
                if goes_to_sleep:
                    self._llm.sleep(level=1)  # keeps the weights in the host's memory
        except (RuntimeError, AssertionError) as error:  # the latter of vLLM's own, once it has shut itself down
            if self._workers > 1 and self._llm.llm_engine.model_executor.is_failed:
                raise RunStopped(f"one of vLLM's {self._workers} workers has ended") from error
            raise


_ALIVE: set[VllmEngine] = set()
_CLOSED: list[Any] = []
"""Closed ones that must outlive the others."""


class Requests:
    """The requests in a vLLM, which any thread may take one step further; what comes out goes to whoever asked.

    Attributes:
        version: of the weights in place.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._turnstile, self._lock = threading.Lock(), threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self.version = 0

    @contextmanager
    def paused(self) -> Iterator[Any]:
        """Hold all requests between two steps. Whoever waits here comes before the next step, even of a busy thread."""
        with self._turnstile, self._lock:
            yield self._engine

    def add(self, token_ids: Sequence[int], params: Any, sink: Sink) -> str:
        """Add a request; return its name."""
        name = f"{next(_NUMBERS)}"
        with self.paused() as engine:
            engine.add_request(name, {"type": "token", "prompt_token_ids": [int(token) for token in token_ids]}, params)
            self._sinks[name] = sink
        return name

    def step(self) -> bool:
        """Take all requests one step further; return whether there were any: another thread may have ended the last."""
        with self.paused() as engine:
            if not engine.has_unfinished_requests():
                return False
            for output in engine.step():
                sink = self._sinks.get(output.request_id)
                if output.finished:
                    self._sinks.pop(output.request_id, None)
                if sink is not None:
                    sink(output, self.version)
            return True

    def drop(self, names: Sequence[str]) -> None:
        """End requests that nobody needs any more."""
        alive = [name for name in names if self._sinks.pop(name, None) is not None]
        if alive:
            with self.paused() as engine:
                engine.abort_request(alive)


def row_options(row: ResponseRow, sampling: SamplingParams) -> dict[str, Any]:
    """Return what vLLM's ``SamplingParams`` is told of one row."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
        "min_tokens": row.min_tokens,
        "max_tokens": row.max_tokens,
        "stop_token_ids": list(row.stops.ends),
        "seed": row.seed,
        "logprobs": 0,
    }


def _sampling_params(options: Mapping[str, Any]) -> Any:
    """vLLM's parameters of a request that says what is new after each step, as token ids alone."""
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    return VllmParams(ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA, **options)


def take_output(row: ResponseRow, output: Any, version: int) -> None:
    """Put what vLLM newly sampled of a row into it.

    Raises:
        RunStopped: vLLM gave the request up.
    """
    sampled = output.outputs[0]
    if sampled.finish_reason not in (None, "stop", "length"):
        raise RunStopped(f"vLLM ended a response by itself, of prompt {row.row[0]}: {sampled.finish_reason}")
    of_tokens = zip(sampled.logprobs, sampled.token_ids, strict=True)
    log_probs = [of_token[token].logprob for of_token, token in of_tokens]
    row.take(sampled.token_ids, log_probs, version, sampled.finish_reason)


def take_scores(
    scored: dict[int, npt.NDArray[np.float32]],
    number: int,
    prompt_length: int,
    response: Sequence[int],
    output: Any,
    version: int,
) -> None:
    """Put the log-probabilities (T,) of a response into ``scored`` under its number."""
    if output.finished:
        of_tokens = zip(output.prompt_logprobs[prompt_length:], response, strict=True)
        log_probs = [of_token[token].logprob for of_token, token in of_tokens]
        scored[number] = np.array(log_probs, dtype=np.float32)


def _start(folder: Path, options: Mapping[str, Any], device: str, head_dim: int) -> Any:
    """Start vLLM on a policy's folder.

    Raises:
        UserError: it cannot be imported here, or cannot serve this model.
    """
    os.environ.update(environment(device) | {"VLLM_RPC_BASE_PATH": str(meeting_place())})
    try:
        with _process_as_it_was():
            return _start_as_told(folder, options, device, head_dim)
    except Exception as error:  # of a worker, vLLM raises no narrower one
        raise UserError(
            f"vLLM did not start: {reason_of(error)}",
            "engine.type: vllm",
            "set engine.type to native, or see docs/engines.md",
        ) from error


def _start_as_told(folder: Path, options: Mapping[str, Any], device: str, head_dim: int) -> Any:
    from vllm import LLM
    from vllm.platforms import current_platform

    if current_platform.device_type != device:  # it would compute there all the same
        raise RuntimeError(f"this build of it computes on {current_platform.device_type}, not on {device}")
    workers: int = options.get("tensor_parallel_size", 1)
    if device == "cpu":
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        sizes = CPUAttentionBackend.get_supported_head_sizes()
        if head_dim not in sizes:  # it would give up at the first request
            served = ", ".join(map(str, sizes))
            raise RuntimeError(f"the model has attention heads of {head_dim} channels; on CPUs vLLM serves {served}")
        if workers == 1 and not torch.distributed.is_initialized():
            # else vLLM keeps the group's store in a file of the temporary folder, which stays when it is killed
            store = torch.distributed.HashStore()  # type: ignore[attr-defined]
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    with workers_meet(workers):
        llm = LLM(model=str(folder), trust_remote_code=False, **options)
    if workers > 1:
        llm.collective_rpc(settle_worker)
        drop_names([llm.llm_engine.model_executor.rpc_broadcast_mq.buffer])
    for empty in llm.apply_model(packed_away):
        if empty:
            raise RuntimeError(f"it has packed {empty[0]} away, where new weights cannot reach it")
    return llm


def reason_of(error: Exception) -> str:
    """Return the line of an error that says something; pydantic's first one only counts the others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        lines = lines[1:]
    return lines[0] if lines else type(error).__name__


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
    """Have workers that start in the block share this process' threads, and leave no file of theirs behind it.

    Sockets and the store of the process group have names in a folder, and memory in which workers add up has names that
    begin with the store's. What is connected, or mapped, needs no name any more.
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
        del os.environ["OMP_NUM_THREADS"]
        if threads is not None:
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
def _process_as_it_was() -> Iterator[None]:
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
