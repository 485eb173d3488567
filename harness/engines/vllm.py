"""vLLM in the Generator's process: an engine of another maker, whose weights are replaced in place at each sync.

It imports vLLM only when an engine is made. Written for and run with vLLM 0.32 on CPUs. What it does on a GPU follows
vLLM's sources and has not been run.

How new weights get in: a transport of the harness brings them into this process, and ``load_weights`` of vLLM's model
copies them over its parameters. On a CPU, vLLM would have packed each matrix into a handle of oneDNN's that nothing can
write to; with tied embeddings its own ``reload_weights`` then leaves the old output projection in place without a word.
So oneDNN is switched off before the engine starts (``vllm_worker``).

With several workers (``engine.tensor_parallel``) the scheduler stays in this process, and the model is cut over
processes of vLLM's. They read whole tensors from a file in memory, and each copies its slices (``vllm_weights``).
"""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.private_dir import PrivateDir
from harness.core.protocols import Tokenizer
from harness.core.seeds import derive_seed
from harness.core.types import Completion, SamplingParams
from harness.engines.limits import check_request, check_scored
from harness.engines.response_rows import ResponseRow, to_completions
from harness.engines.rng import stream_rows
from harness.engines.stop_strings import StopStrings
from harness.engines.vllm_machine import (
    as_it_was,
    check_vllm_installed,
    classes_as_they_were,
    context_of,
    environment,
    head_size,
    meeting_place,
    process_group_in_memory,
    reason_of,
    vllm_options,
    workers_meet,
)
from harness.engines.vllm_memory import ALONE, Neighbours
from harness.engines.vllm_requests import Requests, into_scores, lengths_of, row_options
from harness.engines.vllm_weights import first_values, in_memory_file, packed_away, put, put_file
from harness.engines.weights import check_names_and_shapes
from harness.models.ends import GENERATION, end_tokens
from harness.models.storage import save_policy


def vllm_engine(
    settings: Any,
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
        settings: see ``VllmEngineSettings``.
        model, tokenizer: the policy: a ``DecoderLM`` or a model of transformers.
        device: ``cpu`` or ``cuda``.
        neighbours: what else the memory plan puts on the engine's GPU.
        ends, sleeps, should_stop: see ``VllmEngine``; on a CPU none sleeps.

    Raises:
        UserError: vLLM is not installed, cannot be imported here, does not fit onto the GPU, or cannot serve the model.
    """
    check_vllm_installed()
    context = context_of(settings, model.config)
    options = vllm_options(model, settings, context, device, sleeps, neighbours=neighbours)
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


class VllmEngine:
    """Samples from the weights that a vLLM in this process holds.

    Log-probabilities are those of the distribution a token was drawn from: after temperature and top-p, and without the
    end tokens among the first ``min_tokens`` tokens (vLLM's ``processed_logprobs``). At temperature 0 they are
    those of temperature 1.

    Weights may be loaded on one thread while ``generate`` runs on another: they go in between two steps, and keys and
    values cached by the older ones are computed anew. ``Completion.versions`` says which weights sampled each token.

    Attributes:
        context_length: most tokens a prompt and its response may have together.

    Args:
        llm: vLLM's ``LLM``.
        model: the policy, whose names and shapes each load must have; it is not kept.
        ends: tokens that end a response; None: those that policy and tokenizer name.
        max_batch: most rows sampled at a time.
        workers: that the model is cut over; more than 1 are processes of their own.
        sleeps: give the GPU's memory back after each ``generate``, until the next load or call.
        should_stop: polled before every step; true ends ``generate`` with ``Interrupted``.
    """

    def __init__(
        self,
        llm: Any,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        ends: Sequence[int] | None = None,
        max_batch: int = 256,
        workers: int = 1,
        sleeps: bool = False,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}, must be at least 1")
        self._llm, self._tokenizer, self._max_batch, self._workers = llm, tokenizer, max_batch, workers
        self._sleeps, self._should_stop = sleeps, should_stop
        self._ends = end_tokens(model, tokenizer) if ends is None else ends
        self._requests = Requests(llm.llm_engine)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        stored = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._second_names = stored | _tied_head(self._shapes)
        self._vocab_size: int = llm.model_config.get_vocab_size()
        self.context_length: int = llm.model_config.max_model_len
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
        """Version of the weights in place."""
        return self._requests.version

    def load_weights(self, weights: Mapping[str, Tensor], version: int = 0) -> None:
        """Copy these weights over the engine's own, between two steps of a ``generate`` that runs on another thread.

        An engine that sleeps between calls stays awake afterwards, for the ``generate`` to come.

        Args:
            weights: by the names of the policy's parameters; buffers and the second name of a tied weight may be among
                them.
            version: of the weights.

        Raises:
            ValueError: one is missing, misshapen or unknown; the old weights stay.
            RunStopped: vLLM did not take them all, or kept what it had cached with the old ones; or a worker is gone.
        """
        check_names_and_shapes(weights, self._shapes, self._second_names)
        wanted = {name: weights[name].detach() for name in self._shapes}
        with self._awake(then="stay"), self._requests.paused() as engine:
            if left := self._put(wanted):
                raise RunStopped(f"vLLM left its {left[0]} (and {len(left) - 1} more) as it was when weights came")
            if not engine.reset_prefix_cache(reset_running_requests=True):
                raise RunStopped("vLLM would not forget the keys and values that the old weights made")
            self._requests.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_samples: int,
        sampling: SamplingParams,
        seed: int,
        places: Sequence[int] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample ``num_samples`` responses to each prompt of token ids; arguments as in ``core.protocols.Engine``.

        Raises:
            UserError: bad sampling parameters, or a prompt that is empty, unknown to the model or too long.
            Interrupted: ``should_stop`` said so.
            Diverged: the model's logits are not numbers.
            RunStopped: vLLM lost a request or a worker.
        """
        check_request(prompts, num_samples, sampling, self._vocab_size, self.context_length)
        started_with = self.version
        order = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(num_samples)]
        streams = dict(zip(order, stream_rows(order, places), strict=True))
        lengths = lengths_of(streams, sampling, seed)
        stops = StopStrings(self._tokenizer, sampling.stop, sampling.min_tokens, self._ends, self._vocab_size)
        rows = [ResponseRow(row, sampling, stops) for row in order]

        def add(row: ResponseRow) -> str:
            own_seed, length = derive_seed(seed, *streams[row.row]), lengths.get(row.row)
            params = _sampling_params(**row_options(sampling, own_seed, ends=stops.ends, length=length))
            return self._requests.add(prompts[row.row[0]], params, row)

        with self._awake(then="sleep"):
            self._run(rows, add, sampling.max_tokens)
        return to_completions(rows, len(prompts), started_with, self._tokenizer)

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
                    take = into_scores(scored, number, len(prompt), response)
                    params = _sampling_params(max_tokens=1, prompt_logprobs=0)
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

    def _run(self, rows: Sequence[ResponseRow], add: Callable[[ResponseRow], str], max_tokens: int) -> None:
        """Have every row sampled, ``max_batch`` at a time; ``add`` requests one and returns its name."""
        waiting, under_way, steps = deque(rows), dict[str, ResponseRow](), 0
        try:
            while waiting or under_way:
                if self._should_stop is not None and self._should_stop():
                    raise Interrupted(f"sampling was stopped after {steps} steps of at most {max_tokens}")
                while waiting and len(under_way) < self._max_batch:
                    row = waiting.popleft()
                    under_way[add(row)] = row
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


def _sampling_params(**options: Any) -> Any:
    """vLLM's parameters of a request that says what is new after each step, as token ids alone."""
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    return VllmParams(ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA, **options)


def settle_worker(worker: Any) -> None:
    """Leave Ctrl-C to the process that the worker belongs to, which ends it, and names of shared memory to nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer

    if frozen := gc.get_freeze_count():  # what vLLM has frozen is not listed
        gc.unfreeze()
    _drop_names(each for each in gc.get_objects() if type(each) is ShmRingBuffer)
    if frozen:
        gc.freeze()


def _drop_names(buffers: Iterable[Any]) -> None:
    """Take the names off vLLM's queues in shared memory, once all have mapped them.

    They would stay where processes are killed; Ray kills those below an actor, Python's watch over such names too.
    """
    for buffer in buffers:
        if buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False


def _tied_head(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The output projection's name where the embeddings stand for it."""
    embedding = shapes.get("model.embed_tokens.weight")
    return {} if embedding is None else {"lm_head.weight": embedding}


def _start(folder: Path, options: Mapping[str, Any], device: str, head_dim: int) -> Any:
    """Start vLLM on a policy's folder.

    Raises:
        UserError: it cannot be imported here, or cannot serve this model.
    """
    os.environ.update(environment(device) | {"VLLM_RPC_BASE_PATH": str(meeting_place())})
    try:
        with as_it_was():
            return _start_as_told(folder, options, device, head_dim)
    except Exception as error:  # of a worker, vLLM raises no narrower one
        raise UserError(
            f"vLLM did not start: {reason_of(error)}",
            "engine.type: vllm",
            "set engine.type to native, or see docs/engines.md",
        ) from error


def _check_head_size(head_dim: int) -> None:
    """Refuse heads that vLLM's attention on CPUs would give up on at the first request.

    Raises:
        RuntimeError: with the sizes that it has.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if head_dim not in sizes:
        raise RuntimeError(
            f"the model has attention heads of {head_dim} channels; on CPUs vLLM serves {', '.join(map(str, sizes))}"
        )


def _start_as_told(folder: Path, options: Mapping[str, Any], device: str, head_dim: int) -> Any:
    from vllm import LLM
    from vllm.platforms import current_platform

    if current_platform.device_type != device:  # it would compute there all the same
        raise RuntimeError(f"this build of it computes on {current_platform.device_type}, not on {device}")
    workers: int = options.get("tensor_parallel_size", 1)
    if device == "cpu":
        _check_head_size(head_dim)
        if workers == 1:
            process_group_in_memory()
    with workers_meet(workers):
        llm = LLM(model=str(folder), trust_remote_code=False, **options)
    if workers > 1:
        llm.collective_rpc(settle_worker)
        _drop_names([llm.llm_engine.model_executor.rpc_broadcast_mq.buffer])
    for empty in llm.apply_model(packed_away):
        if empty:
            raise RuntimeError(f"it has packed {empty[0]} away, where new weights cannot reach it")
    return llm
