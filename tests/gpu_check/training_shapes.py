"""What repeats hide: batches of ever new lengths, weights that another process reads, decoding beside training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from harness.engines.decode import CachedDecoder
from harness.engines.huggingface import TransformersBackend
from harness.engines.weights import build_weights
from harness.models.config import PRESETS, ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.flat_layout import BucketLayout
from harness.models.layers import attention_kernels, avoid_cudnn_attention
from harness.models.policy import policy_log_probs
from harness.models.published import QWEN2_5_MATH_1_5B
from harness.transports.buffers import CopiedWeights
from harness.transports.checksum import checksum
from tests.gpu_check.device import DEVICE, DTYPE, HAS_GPU, timed_ms
from tests.gpu_check.report import Report, Skipped

GROUP, PROMPT = 8, 48
LENGTHS = tuple(range(200, 232, 4)) if HAS_GPU else (10, 14)
"""Longest response of each microbatch: each is new to the kernels."""
TOKENS = 12 if HAS_GPU else 2


def shape_of(layers: int) -> ModelConfig:
    """The 1.5B shape with so many layers, without its biases, on a GPU; a tiny one on a CPU."""
    shape = ModelConfig(151936, 1536, 8960, layers, 12, 2, 128, 4096, rope_theta=1e6, model_type="qwen2")
    return shape if HAS_GPU else PRESETS["tiny"]


def random_model(shape: ModelConfig) -> DecoderLM:
    """A model of random weights on the device."""
    with torch.device(DEVICE):
        model = DecoderLM(shape, seed=None)
        for weight in model.parameters():
            nn.init.normal_(weight, 0.0, 0.02) if weight.dim() > 1 else nn.init.ones_(weight)
    return model


def transformers_model(like: ModelConfig) -> nn.Module:
    """transformers' own model of that size on the device."""
    shape = {key: value for key, value in QWEN2_5_MATH_1_5B.items() if key not in ("architectures", "model_type")}
    shape |= {name: getattr(like, name) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    shape |= {name: getattr(like, name) for name in ("num_hidden_layers", "num_attention_heads")}
    with torch.device(DEVICE):
        config = AutoConfig.for_model("qwen2", **shape)
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=DTYPE, trust_remote_code=False).eval()
    return model


def microbatch(groups: int, longest: int, shortest: int | None = None) -> list[torch.Tensor]:
    """Arguments of ``policy_log_probs``: groups of responses, down to half of the longest if no shortest is given."""
    rows = groups * GROUP
    lengths = torch.randint(longest // 2 if shortest is None else shortest, longest + 1, (rows,))
    lengths[0] = longest
    made = (
        torch.randint(1, 250, (groups, PROMPT)),
        torch.full((groups,), PROMPT),
        torch.randint(1, 250, (rows, longest)),
        torch.arange(longest) < lengths[:, None],
        torch.arange(groups).repeat_interleave(GROUP),
    )
    return [part.to(DEVICE) for part in made]


def train(model: DecoderLM, batch: list[torch.Tensor]) -> None:
    """Forward and back."""
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=HAS_GPU):
        log_probs, _ = policy_log_probs(model, *batch, with_entropy=True)
    log_probs.mean().backward()
    model.zero_grad(set_to_none=True)


def shapes(report: Report) -> None:
    """Microbatches and decoded tokens whose shapes are new each time, by attention with cuDNN and without."""
    model, policy, slowest = random_model(shape_of(4)), transformers_model(shape_of(4)), dict[str, float]()
    for with_cudnn in (True, False):
        if with_cudnn:
            torch.backends.cuda.enable_cudnn_sdp(True)
        else:
            avoid_cudnn_attention()
        kernels = ", ".join(attention_kernels())
        batches = [microbatch(4, longest) for longest in LENGTHS]
        train(model, microbatch(4, LENGTHS[0] - 4))
        new, again = ([timed_ms(partial(train, model, batch)) for batch in batches] for _ in range(2))
        report.note(f"microbatch, ms, by {kernels}", {"new shape": new, "seen before": again})
        with torch.inference_mode():
            backend = TransformersBackend(policy)
            rows = [row // 32 for row in range(64)]
            tokens = backend.prefill([[5] * 20, [6] * 17], rows, 64).argmax(-1)
            backend.step(tokens)
            steps = [timed_ms(partial(backend.step, tokens)) for _ in range(TOKENS)]
        report.note(f"token of transformers, 64 rows, ms, by {kernels}", steps)
        slowest["with cuDNN" if with_cudnn else "without"] = median(steps)
    report.headline = "; ".join(f"a token of transformers {name} {ms:.3g} ms" for name, ms in slowest.items())


def _reader(pipe: Any, layout: BucketLayout) -> None:
    """The other process: the checksum of the weights that it is handed, and a copy in the engine's type."""
    views = layout.views(pipe.recv())
    first_ms, again_ms = (timed_ms(lambda: pipe.send(checksum(views))) for _ in range(2))
    load_ms = timed_ms(lambda: {name: view.to(DTYPE) for name, view in views.items()})
    pipe.send({"checksum, first, ms": first_ms, "checksum, ms": again_ms, "load, ms": load_ms})
    pipe.recv()


def pair(report: Report) -> None:
    """Weights that another process reads in place: on a GPU by CUDA IPC, on a CPU by shared memory; no Ray."""
    model = random_model(shape_of(28))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    layout = BucketLayout.of(weights)
    copied = CopiedWeights(weights, layout)
    first_ms = timed_ms(lambda: copied.fill(weights, 0))
    publish_ms = timed_ms(lambda: copied.fill(weights, 1), calls=3)
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_reader, args=(there, layout))
    process.start()
    there.close()  # the reader's end alone: its death ends a wait
    try:
        here.send(copied.tensor)
        wrong = sum(here.recv() != checksum(copied.views) for _ in range(2))
        figures = here.recv()
        here.send("done")
    except EOFError:
        raise RuntimeError("the reading process ended before it answered") from None
    finally:
        process.join(30)
        process.kill()
    report.check("checksums that differ between two processes", wrong, 0)
    report.note("weights", {"bytes": layout.num_bytes, "publish, first, ms": first_ms, "publish, ms": publish_ms})
    report.note("in the other process", figures)
    report.headline = f"{layout.num_bytes / 1e9:.3g} GB: publish {publish_ms:.3g} ms, load {figures['load, ms']:.3g} ms"


def overlap(report: Report) -> None:
    """Decoding beside training in one process, a thread and a CUDA stream each, with and without stream priority."""
    if not HAS_GPU:
        raise Skipped("no GPU: there is no stream to share")
    model = random_model(shape_of(28))
    decoder = CachedDecoder(model.config, DTYPE, DEVICE)
    batch = microbatch(2, 256)
    with torch.inference_mode():
        decoder.weights = build_weights(model.state_dict(), model.config, DTYPE, DEVICE)
        tokens = decoder.prefill([[5] * PROMPT] * 8, [row // 8 for row in range(64)], 150).argmax(-1)
        decoder.step(tokens)
        report.note("decode alone, ms", timed_ms(lambda: decoder.step(tokens), calls=20))
    train(model, batch)
    report.note("train alone, ms", timed_ms(lambda: train(model, batch), calls=3))
    told = []
    for priority in (0, -1):
        decode_ms, train_ms = _side_by_side(decoder, tokens, lambda: train(model, batch), priority)
        report.note(f"side by side, priority {priority}", {"decode, ms": decode_ms, "train, ms": train_ms})
        told.append(f"priority {priority}: token {decode_ms:.3g} ms, microbatch {train_ms:.3g} ms")
    report.headline = "; ".join(told)


def _side_by_side(
    decoder: CachedDecoder, tokens: torch.Tensor, learn: Callable[[], None], priority: int
) -> tuple[float, float]:
    """Median milliseconds of a decoded token, whose stream has the priority, and of a training pass meanwhile."""
    stop, passes, steps = threading.Event(), list[float](), list[float]()

    def on_stream(stream: torch.cuda.Stream, work: Callable[[], object]) -> float:
        with torch.cuda.stream(stream):
            start = time.perf_counter()
            work()
            stream.synchronize()
        return (time.perf_counter() - start) * 1e3

    def learner() -> None:
        stream = torch.cuda.Stream()
        while not stop.is_set():
            passes.append(on_stream(stream, learn))

    thread = threading.Thread(target=learner)
    thread.start()
    try:
        stream = torch.cuda.Stream(priority=priority)
        time.sleep(1.0)  # until it trains at its pace
        with torch.inference_mode():
            steps += [on_stream(stream, lambda: decoder.step(tokens)) for _ in range(30)]
    finally:
        stop.set()
        thread.join()
    return median(steps), median(passes)
