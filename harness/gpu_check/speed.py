"""How long the kernels and steps take that decide where the time of a run goes, and what would make them faster.

With a GPU the model has the width of Qwen2.5 1.5B (without its biases, which the harness' own model lacks) and as many
layers as the GPU has room to train; on a CPU all sizes are small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from harness.core.types import SamplingParams
from harness.engines.decode import CachedDecoder
from harness.engines.huggingface import TransformersBackend
from harness.engines.sampling import draw
from harness.engines.weights import build_weights
from harness.gpu_check.device import DEVICE, DTYPE, HAS_GPU, device_name, seconds, timed_ms
from harness.gpu_check.report import Report
from harness.models.config import PRESETS, ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.flops import mfu, peak_flops, training_flops, work_of
from harness.models.head import score_hidden
from harness.models.layers import avoid_cudnn_attention
from harness.models.policy import policy_log_probs
from harness.models.published import QWEN2_5_MATH_1_5B

GROUP, PROMPT = 8, 48
TOKENS = "tokens_per_s"
NOT_ON_CPU = "not measured: no GPU"
ROOM_FOR_ALL = 40e9  # bytes; a GPU with less free gets fewer layers
ROWS = (8, 64, 256, 1024) if HAS_GPU else (8, 64)
"""Decoded at a time."""
MICROBATCHES = ((1, 256), (4, 256), (1, 1024), (2, 1024)) if HAS_GPU else ((1, 16), (2, 32))
"""Groups, and response tokens of each."""
HEAD_TOKENS = 8192 if HAS_GPU else 256
HEAD_LOGITS = ((27, 25), (27, 27), (28, 27), (28, 28), (30, 30)) if HAS_GPU else ((17, 14), (17, 17))
"""Powers of two of the logits that are kept, and made at a time."""


def random_model(layers: int) -> DecoderLM:
    """A model of random weights on the device: the 1.5B shape with so many layers on a GPU, a tiny one on a CPU."""
    shape = ModelConfig(151936, 1536, 8960, layers, 12, 2, 128, 4096, rope_theta=1e6, model_type="qwen2")
    with torch.device(DEVICE):
        model = DecoderLM(shape if HAS_GPU else PRESETS["tiny"], seed=None)
        for weight in model.parameters():
            nn.init.normal_(weight, 0.0, 0.02) if weight.dim() > 1 else nn.init.ones_(weight)
    return model


def decoder_of(model: DecoderLM) -> CachedDecoder:
    """The engine's decoder with the model's weights in the type of the engine."""
    decoder = CachedDecoder(model.config, DTYPE, DEVICE)
    decoder.weights = build_weights(model.state_dict(), model.config, DTYPE, DEVICE)
    return decoder


def started(decoder: Any, rows: int) -> Tensor:
    """Prefill ``rows`` rows in groups, with room for 150 tokens; return their first tokens."""
    prompts = [[5] * PROMPT for _ in range(rows // GROUP)]
    logits: Tensor = decoder.prefill(prompts, [row // GROUP for row in range(rows)], 150)
    return logits.argmax(-1)


def microbatch(groups: int, longest: int) -> list[Tensor]:
    """Arguments of ``policy_log_probs``: groups of responses, all of that length."""
    rows = groups * GROUP
    made = (
        torch.randint(1, 250, (groups, PROMPT)),
        torch.full((groups,), PROMPT),
        torch.randint(1, 250, (rows, longest)),
        torch.ones(rows, longest, dtype=torch.bool),
        torch.arange(groups).repeat_interleave(GROUP),
    )
    return [part.to(DEVICE) for part in made]


def train(model: DecoderLM, batch: list[Tensor]) -> None:
    """Forward and back."""
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=HAS_GPU):
        log_probs, _ = policy_log_probs(model, *batch, with_entropy=True)
    log_probs.mean().backward()
    model.zero_grad(set_to_none=True)


def run(report: Report) -> None:
    """The phase ``speed``, with the attention that runs take."""
    avoid_cudnn_attention()
    all_layers = HAS_GPU and torch.cuda.mem_get_info()[0] > ROOM_FOR_ALL
    model = random_model(QWEN2_5_MATH_1_5B["num_hidden_layers"] if all_layers else 6)
    shape = model.config
    report.note("model", {"weights": shape.num_parameters, "layers": shape.num_hidden_layers, "dtype": str(DTYPE)})
    with report.part("decoding"), torch.inference_mode():
        report.note("load of weights, s", seconds(partial(decoder_of, model), repeats=3))
        decoder = decoder_of(model)
        for rows in ROWS:
            with report.part(f"decode {rows} rows"):
                report.note(f"decode {rows} rows", _decode(decoder, rows))
        with report.part("CUDA graph"):
            report.note("CUDA graph of a step, 64 rows", _graph(decoder) if HAS_GPU else NOT_ON_CPU)
        del decoder
    for groups, length in MICROBATCHES:
        name = f"microbatch {groups * GROUP} x {length}"
        with report.part(name):
            try:
                figures: dict[str, Any] | str = _microbatch(model, groups, length)
            except torch.OutOfMemoryError:
                figures = "does not fit"
            report.note(name, figures)
    for kept, piece in HEAD_LOGITS:
        with report.part(f"head, 2^{piece} logits"):
            report.note(f"head, 2^{kept} logits kept, 2^{piece} at a time", _head(shape, 2**kept, 2**piece))
    with report.part("head as shipped"):
        report.note("head as shipped", _head(shape, None, None))
    with report.part("optimizer"):
        report.note("optimizer", _optimizer(model))
    with report.part("compiled layers"):  # a compiler on a CPU would take most of the phase
        report.note("compiled layers", _compiled(model, *MICROBATCHES[-2]) if HAS_GPU else NOT_ON_CPU)
    del model
    with report.part("transformers engine"), torch.inference_mode():
        _transformers(report, shape)
    rates = [(name, found) for name, found in report.figures.items() if isinstance(found, dict) and TOKENS in found]
    report.headline = "tokens/s: " + "; ".join(f"{name} {found[TOKENS]:,.0f}" for name, found in rates)


def _draw(logits: Tensor, sampling: SamplingParams, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return draw(logits.clone(), sampling, uniforms)


def _decode(decoder: CachedDecoder, rows: int) -> dict[str, float]:
    tokens = started(decoder, rows)
    step_s = seconds(lambda: decoder.step(tokens), repeats=5, calls=20 if HAS_GPU else 3)
    logits, uniforms = torch.randn(rows, decoder.vocab_size, device=DEVICE), torch.rand(rows, device=DEVICE)
    draw_s = {top_p: seconds(partial(_draw, logits, SamplingParams(top_p=top_p), uniforms)) for top_p in (1.0, 0.9)}
    figures = {"step_ms": step_s * 1e3, "draw_ms": draw_s[1.0] * 1e3, "draw_top_p_ms": draw_s[0.9] * 1e3}
    return figures | {TOKENS: rows / (step_s + draw_s[1.0])}


def _graph(decoder: CachedDecoder) -> dict[str, float]:
    """One step captured and replayed: what is left when the host launches nothing. Each replay is of one length."""
    tokens = started(decoder, 64)
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


def _with_peak(work: Callable[[], None]) -> tuple[float, float | None]:
    """Return seconds of a call, and the most GiB that the device held."""
    if not HAS_GPU:
        return seconds(work, repeats=3), None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return seconds(work, repeats=3), torch.cuda.max_memory_allocated() / 2**30


def _microbatch(model: DecoderLM, groups: int, length: int) -> dict[str, float | None]:
    """Forward and back over ``groups`` groups whose responses are all ``length`` long."""
    step_s, peak_gib = _with_peak(partial(train, model, microbatch(groups, length)))
    flops = training_flops(model.config, work_of([(PROMPT, [length] * GROUP)] * groups))
    peak = peak_flops(device_name(), "bfloat16")
    used = None if peak is None else round(mfu(flops, step_s, peak), 3)
    return {"s": step_s, TOKENS: groups * GROUP * length / step_s, "mfu": used, "peak_gib": peak_gib}


def _head(shape: ModelConfig, kept: int | None, piece: int | None) -> dict[str, float | None]:
    """Scores of ``HEAD_TOKENS`` tokens and their gradients; so many logits kept and computed at a time."""
    hidden = torch.randn(HEAD_TOKENS, shape.hidden_size, device=DEVICE, requires_grad=True)
    matrix = torch.randn(shape.vocab_size, shape.hidden_size, device=DEVICE, requires_grad=True)
    tokens = torch.randint(0, shape.vocab_size, (HEAD_TOKENS,), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=HAS_GPU):
            log_probs, _ = score_hidden(hidden, matrix, tokens, 1.0, True, max_logits=kept, piece_logits=piece)
        log_probs.sum().backward()
        hidden.grad = matrix.grad = None

    step_s, peak_gib = _with_peak(step)
    return {"s": step_s, "peak_gib": peak_gib}


def _optimizer(model: nn.Module) -> dict[str, float]:
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-6, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    clip_s = seconds(lambda: nn.utils.clip_grad_norm_(parameters, 1.0))
    figures = {"clip_s": clip_s, "adamw_s": seconds(optimizer.step)}
    model.zero_grad(set_to_none=True)
    return figures


def _compiled(model: DecoderLM, groups: int, length: int) -> dict[str, Any]:
    """Compiled layers on three shapes, with what compiling took."""
    for layer in model.model.layers:
        layer.compile()
    first = [microbatch(groups, longest) for longest in (length, length - 8, length - 40)]
    first_ms = [timed_ms(partial(train, model, batch)) for batch in first]
    return {"first passes, ms": first_ms, **_microbatch(model, groups, length)}


def _transformers(report: Report, like: ModelConfig) -> None:
    """transformers' own model of that size."""
    shape = {key: value for key, value in QWEN2_5_MATH_1_5B.items() if key not in ("architectures", "model_type")}
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape |= {name: getattr(like, name) for name in sizes}
    with torch.device(DEVICE):
        config = AutoConfig.for_model("qwen2", **shape)
        policy = AutoModelForCausalLM.from_config(config, dtype=DTYPE, trust_remote_code=False).eval()
    for rows in ROWS[1:3]:
        backend = TransformersBackend(policy)
        tokens = started(backend, rows)
        step_s = seconds(partial(backend.step, tokens), repeats=5, calls=10 if HAS_GPU else 2)
        report.note(f"transformers decode {rows} rows", {"step_ms": step_s * 1e3, TOKENS: rows / step_s})
