"""How long the kernels and steps take that decide where the time of a run goes, and what would make them faster.

With a GPU the model has the width of Qwen2.5 1.5B (without its biases, which the harness' own model lacks) and as many
layers as the GPU has room to train; on a CPU all sizes are small.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.types import SamplingParams
from harness.engines.decode import CachedDecoder
from harness.engines.huggingface import TransformersBackend
from harness.engines.sampling import draw
from harness.engines.weights import build_weights
from harness.learner.offload import Offload, PinnedTarget
from harness.models.decoder import DecoderLM
from harness.models.flops import mfu, peak_flops, training_flops, work_of
from harness.models.head import score_hidden
from harness.models.layers import avoid_cudnn_attention
from harness.models.published import QWEN2_5_MATH_1_5B
from tests.gpu_check.device import DEVICE, DTYPE, HAS_GPU, NAME, seconds, timed_ms
from tests.gpu_check.report import Report
from tests.gpu_check.training_shapes import (
    GROUP,
    PROMPT,
    microbatch,
    random_model,
    shape_of,
    train,
    transformers_model,
)

ROOM_FOR_ALL = 40e9  # bytes; a GPU with less free gets fewer layers
TOKENS = "tokens_per_s"
NOT_ON_CPU = "not measured: no GPU"

if HAS_GPU:
    LAYERS = QWEN2_5_MATH_1_5B["num_hidden_layers"] if torch.cuda.mem_get_info()[0] > ROOM_FOR_ALL else 6
    ROWS: tuple[int, ...] = (8, 64, 256, 1024)
    MICROBATCHES: tuple[tuple[int, int], ...] = ((1, 256), (4, 256), (1, 1024), (2, 1024))
    HEAD_TOKENS = 8192
    HEAD_LOGITS: tuple[tuple[int, int], ...] = ((27, 25), (27, 27), (28, 27), (28, 28), (30, 30))
else:
    LAYERS, ROWS, MICROBATCHES = 2, (8, 64), ((1, 16), (2, 32))
    HEAD_TOKENS, HEAD_LOGITS = 256, ((17, 14), (17, 17))
"""Rows decoded at a time; microbatches of (groups, response tokens); powers of two of logits kept and at a time."""
MODEL = shape_of(LAYERS)


def run(report: Report) -> None:
    """The phase ``speed``, with the attention that runs take."""
    avoid_cudnn_attention()
    model = random_model(MODEL)
    report.note("model", {"weights": MODEL.num_parameters, "layers": MODEL.num_hidden_layers, "dtype": str(DTYPE)})
    with report.part("decoding"), torch.inference_mode():
        _decoding(report, model)
    for groups, length in MICROBATCHES:
        with report.part(f"microbatch {groups * GROUP} x {length}"):
            try:
                figures: dict[str, Any] | str = _microbatch(model, groups, length)
            except torch.OutOfMemoryError:
                figures = "does not fit"
            report.note(f"microbatch {groups * GROUP} x {length}", figures)
    for kept, piece in HEAD_LOGITS:
        with report.part(f"head, 2^{piece} logits"):
            report.note(f"head, 2^{kept} logits kept, 2^{piece} at a time", _head(2**kept, 2**piece))
    with report.part("head as shipped"):
        report.note("head as shipped", _head(None, None))
    with report.part("optimizer"):
        report.note("optimizer", _optimizer(model))
    with report.part("offload"):
        report.note("offload of the weights", _offload(model) if HAS_GPU else NOT_ON_CPU)
    with report.part("compiled layers"):  # a compiler on a CPU would take most of the phase
        report.note("compiled layers", _compiled(model, *MICROBATCHES[-2]) if HAS_GPU else NOT_ON_CPU)
    del model
    with report.part("transformers engine"), torch.inference_mode():
        _transformers(report)
    rates = [(name, found) for name, found in report.figures.items() if isinstance(found, dict) and TOKENS in found]
    report.headline = "tokens/s: " + "; ".join(f"{name} {found[TOKENS]:,.0f}" for name, found in rates)


def _decoding(report: Report, model: nn.Module) -> None:
    decoder = CachedDecoder(MODEL, DTYPE, DEVICE)

    def load() -> None:
        decoder.weights = build_weights(model.state_dict(), MODEL, DTYPE, DEVICE)

    report.note("load of weights, s", seconds(load, repeats=3))
    for rows in ROWS:
        with report.part(f"decode {rows} rows"):
            report.note(f"decode {rows} rows", _decode(decoder, rows))
    with report.part("CUDA graph"):
        report.note("CUDA graph of a step, 64 rows", _graph(decoder) if HAS_GPU else NOT_ON_CPU)


def _started(decoder: Any, rows: int) -> Tensor:
    """Prefill ``rows`` rows in groups, with room for 150 tokens; return their first tokens."""
    prompts = [[5] * PROMPT for _ in range(rows // GROUP)]
    logits: Tensor = decoder.prefill(prompts, [row // GROUP for row in range(rows)], 150)
    return logits.argmax(-1)


def _draw(logits: Tensor, sampling: SamplingParams, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return draw(logits.clone(), sampling, uniforms)


def _decode(decoder: CachedDecoder, rows: int) -> dict[str, float]:
    tokens = _started(decoder, rows)
    step_s = seconds(lambda: decoder.step(tokens), repeats=5, calls=20 if HAS_GPU else 3)
    logits, uniforms = torch.randn(rows, decoder.vocab_size, device=DEVICE), torch.rand(rows, device=DEVICE)
    draw_s = {top_p: seconds(partial(_draw, logits, SamplingParams(top_p=top_p), uniforms)) for top_p in (1.0, 0.9)}
    figures = {"step_ms": step_s * 1e3, "draw_ms": draw_s[1.0] * 1e3, "draw_top_p_ms": draw_s[0.9] * 1e3}
    return figures | {TOKENS: rows / (step_s + draw_s[1.0])}


def _graph(decoder: CachedDecoder) -> dict[str, float]:
    """One step captured and replayed: what is left when the host launches nothing. Each replay is of one length."""
    tokens = _started(decoder, 64)
    eager_s = seconds(lambda: decoder.step(tokens), calls=10)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        decoder.step(tokens)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step(tokens)
    return {"eager_ms": eager_s * 1e3, "graph_ms": seconds(graph.replay, calls=20) * 1e3}


def _reset_peak() -> None:
    if HAS_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_gib() -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if HAS_GPU else None


def _microbatch(model: DecoderLM, groups: int, length: int) -> dict[str, float | None]:
    """Forward and back over ``groups`` groups whose responses are all ``length`` long."""
    batch = microbatch(groups, length, shortest=length)
    _reset_peak()
    step_s = seconds(partial(train, model, batch), repeats=3)
    flops = training_flops(model.config, work_of([(PROMPT, [length] * GROUP)] * groups))
    peak = peak_flops(NAME, "bfloat16")
    used = None if peak is None else round(mfu(flops, step_s, peak), 3)
    return {"s": step_s, TOKENS: groups * GROUP * length / step_s, "mfu": used, "peak_gib": _peak_gib()}


def _head(kept: int | None, piece: int | None) -> dict[str, float | None]:
    """Scores of ``HEAD_TOKENS`` tokens and their gradients; so many logits kept and computed at a time."""
    hidden = torch.randn(HEAD_TOKENS, MODEL.hidden_size, device=DEVICE, requires_grad=True)
    matrix = torch.randn(MODEL.vocab_size, MODEL.hidden_size, device=DEVICE, requires_grad=True)
    tokens = torch.randint(0, MODEL.vocab_size, (HEAD_TOKENS,), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=HAS_GPU):
            log_probs, _ = score_hidden(hidden, matrix, tokens, 1.0, True, max_logits=kept, piece_logits=piece)
        log_probs.sum().backward()
        hidden.grad = matrix.grad = None

    _reset_peak()
    return {"s": seconds(step, repeats=3), "peak_gib": _peak_gib()}


def _optimizer(model: nn.Module) -> dict[str, float]:
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-6, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    figures = {
        "clip_s": seconds(lambda: nn.utils.clip_grad_norm_(parameters, 1.0)),
        "adamw_s": seconds(optimizer.step),
    }
    model.zero_grad(set_to_none=True)
    return figures


def _offload(model: nn.Module) -> dict[str, float]:
    """The weights to pinned memory and back: the first time, which locks it, and again."""
    moves = Offload(["weights"], PinnedTarget())
    moves.watch("weights", model.parameters)
    figures = {"bytes": float(sum(weight.nbytes for weight in model.parameters()))}
    for name in ("first", "again"):
        figures[f"out, {name}, ms"] = timed_ms(lambda: moves.out("weights"))
        figures[f"back, {name}, ms"] = timed_ms(lambda: moves.back("weights"))
    figures["garbage collection, ms"] = timed_ms(gc.collect)
    moves.close()
    return figures


def _compiled(model: DecoderLM, groups: int, length: int) -> dict[str, Any]:
    """Compiled layers on three shapes, with what compiling took."""
    for layer in model.model.layers:
        layer.compile()
    first = [microbatch(groups, longest) for longest in (length, length - 8, length - 40)]
    first_ms = [timed_ms(partial(train, model, batch)) for batch in first]
    return {"first passes, ms": first_ms, **_microbatch(model, groups, length)}


def _transformers(report: Report) -> None:
    policy = transformers_model(MODEL)
    for rows in ROWS[1:3]:
        backend = TransformersBackend(policy)
        tokens = _started(backend, rows)
        step_s = seconds(partial(backend.step, tokens), repeats=5, calls=10 if HAS_GPU else 2)
        report.note(f"transformers decode {rows} rows", {"step_ms": step_s * 1e3, TOKENS: rows / step_s})
