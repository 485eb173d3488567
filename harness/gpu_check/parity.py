"""Every branch that only a GPU takes, against the CPU: differences with their bounds.

On a CPU the same comparisons run, with the kernels of a GPU asked for where an argument can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from harness.core.types import Completion, GroupData, Prompt, RolloutGroup, SamplingParams
from harness.engines.native import Precision, native_engine
from harness.engines.sampling import draw
from harness.gpu_check.device import DEVICE, HAS_GPU, device_name
from harness.gpu_check.report import Report
from harness.learner import PolicyTrainer, TrainerOptions
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.flat_layout import BucketLayout
from harness.models.head import score_hidden
from harness.models.layers import attention, avoid_cudnn_attention, bias_from, rms_norm
from harness.models.policy import policy_log_probs
from harness.models.published import TINY_QWEN2
from harness.models.tokenizer import train_tokenizer
from harness.run.builders import EXACT_BOUND
from harness.transports.buffers import CopiedWeights
from harness.transports.checksum import checksum, verify

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
SHAPE = replace(PRESETS["tiny"], vocab_size=len(TOKENIZER))
PROMPTS = [[5, 6, 7, 8], [9, 10], [11] * 7]
VOCABULARY = 151_936
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Norm of the difference over that of the reference: some roundings of the type, which are 6e-8 and 4e-3."""
GRADIENT = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
LOG_PROBS: dict[Precision, float] = {"float32": EXACT_BOUND, "bfloat16": 0.2}
"""Largest gap of a token between two ways of computing its log-probability, in nats."""
LOADS = 5


def run(report: Report) -> None:
    """The phase ``parity``."""
    avoid_cudnn_attention()
    parts = [_operators, _train_step, _draws, _in_flight_loads, _checksums, _published_copies]
    parts += [partial(_engine_and_learner, make, precision) for make in MODELS for precision in LOG_PROBS]
    for part in parts:
        torch.manual_seed(0)
        with report.part(getattr(part, "func", part).__name__.strip("_")):
            part(report)
    checked = sum(isinstance(figure, dict) and "bound" in figure for figure in report.figures.values())
    report.headline = f"{checked} differences on {device_name()}, all within their bounds"


def relative(found: Tensor, reference: Tensor) -> float:
    """Return the norm of the difference over that of the reference."""
    found, reference = (tensor.detach().double().cpu() for tensor in (found, reference))
    return float((found - reference).norm() / reference.norm())


def _compare(report: Report, name: str, work: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """Compare what ``work`` returns, and its gradient by each input, with the CPU's in float64."""

    def with_gradients(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        given = [tensor.to(device, dtype, copy=True).requires_grad_() for tensor in rounded]
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
            out = work(*given)
        generator = torch.Generator().manual_seed(0)
        (out * torch.randn(out.shape, generator=generator).to(out)).sum().backward()
        return [out, *(tensor.grad for tensor in given if tensor.grad is not None)]

    for dtype in RELATIVE:
        rounded = [tensor.to(dtype) for tensor in inputs]
        found, wanted = with_gradients(DEVICE, dtype), with_gradients(torch.device("cpu"), torch.float64)
        gaps = [relative(*pair) for pair in zip(found, wanted, strict=True)]
        report.check(f"{name}, {dtype}", gaps[0], RELATIVE[dtype])
        report.check(f"{name}, gradient, {dtype}", max(gaps[1:]), GRADIENT[dtype])


def _operators(report: Report) -> None:
    """Norm, attention and head. A CPU takes the fused kernel of attention only above ``max_scores``."""
    _compare(report, "rms norm", lambda x, weight: rms_norm(x, weight, 1e-5), [torch.randn(64, 256), torch.rand(256)])
    q, k, v = torch.randn(3, 9, 4, 32), torch.randn(3, 9, 2, 32), torch.randn(3, 9, 2, 32)
    allowed = torch.rand(3, 9, 9) < 0.7
    allowed[:, :, 0] = True  # no query without a key

    def attend(bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = None if bias is None else bias.to(q.device)
        return attention(q, k, v, bias, max_scores=2**24 if q.dtype is torch.float64 else 0)

    for name, bias in (("masked", bias_from(allowed)), ("causal", None)):
        _compare(report, f"{name} attention", partial(attend, bias), [q, k, v])
    tokens = torch.randint(0, 5000, (300,))

    def score(most: int, hidden: Tensor, matrix: Tensor) -> Tensor:
        return score_hidden(
            hidden, matrix, tokens.to(hidden.device), 1.0, True, max_logits=2 * most, piece_logits=most
        )[0]

    for name, most in (("whole", 2**24), ("in pieces", 2**19)):
        _compare(report, f"head, {name}", partial(score, most), [torch.randn(300, 64), torch.randn(5000, 64) * 0.2])


Model = TypeVar("Model", bound=nn.Module)


def _own_model() -> DecoderLM:
    return _spread(DecoderLM(SHAPE, seed=1))


def _transformers_model() -> nn.Module:
    torch.manual_seed(1)
    shape = {key: value for key, value in TINY_QWEN2.items() if key not in ("architectures", "model_type")}
    config = AutoConfig.for_model("qwen2", **shape | {"vocab_size": 280})
    return _spread(AutoModelForCausalLM.from_config(config, trust_remote_code=False))


MODELS: dict[Callable[[], nn.Module], str] = {_own_model: "own model", _transformers_model: "transformers' model"}
"""Each call makes the same model, on the CPU."""


def _spread(model: Model) -> Model:
    """The model with logits far from uniform: else all that it computes would look alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


def _train_step(report: Report) -> None:
    """Log-probabilities, entropies and the gradient by every weight, for prompts and responses of several lengths."""
    mask = torch.arange(10) < torch.tensor([10, 6, 10, 1, 9, 3])[:, None]
    prompts, responses = torch.randint(2, SHAPE.vocab_size, (3, 7)), torch.randint(2, SHAPE.vocab_size, (6, 10))
    batch = [prompts, torch.tensor([7, 4, 2]), responses, mask, torch.tensor([0, 0, 1, 1, 2, 2])]

    def step(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        model = _own_model().to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
            log_probs, entropies = policy_log_probs(model, *(part.to(device) for part in batch), with_entropy=True)
        log_probs.sum().backward()
        assert entropies is not None
        return [log_probs, entropies, *(weight.grad for weight in model.parameters() if weight.grad is not None)]

    wanted = step(torch.device("cpu"), torch.float32)
    for dtype in RELATIVE:
        gaps = [relative(*pair) for pair in zip(step(DEVICE, dtype), wanted, strict=True)]
        report.check(f"train step, log-probs and entropies, {dtype}", max(gaps[:2]), RELATIVE[dtype])
        report.check(f"train step, gradients, {dtype}", max(gaps[2:]), GRADIENT[dtype])


def _draws(report: Report) -> None:
    """Draws at the edges of [0, 1) too; a token of probability 0 would have the log-probability -inf."""
    repeats, bad = 200 if HAS_GPU else 1, 0
    for rows in (1, 2, 64):
        for top_p in (1.0, 0.9):
            for repeat in range(repeats):
                logits, uniforms = torch.randn(rows, VOCABULARY, device=DEVICE) * 4, torch.rand(rows, device=DEVICE)
                uniforms[repeat % rows] = 0.0 if repeat % 2 else 1 - 2**-24
                _, log_probs = draw(logits, SamplingParams(top_p=top_p), uniforms, banned=(repeat,))
                bad += int((~log_probs.isfinite()).sum())
    report.note("draws", 2 * 67 * repeats)
    report.check("draws of probability 0", bad, 0)


def _in_flight_loads(report: Report) -> None:
    """New weights while another thread decodes: no token from weights older than those of the token before."""
    model, asked, loaded, polls = _own_model().to(DEVICE), threading.Semaphore(0), threading.Event(), 0

    def before_each_token() -> bool:
        nonlocal polls
        polls += 1
        if polls % 10 == 0:
            asked.release()
        if polls == 10 * LOADS + 20:
            loaded.wait(60)
        return False

    def load() -> None:
        for version in range(1, LOADS + 1):
            if asked.acquire(timeout=60):
                engine.load_weights(model.state_dict(), version)
        loaded.set()

    engine = native_engine(model, TOKENIZER, precision="bfloat16", device=DEVICE, should_stop=before_each_token)
    loader = threading.Thread(target=load)
    loader.start()
    groups = engine.generate(PROMPTS, 4, SamplingParams(min_tokens=90, max_tokens=90), 3)
    loader.join()
    rows = [[] if row.versions is None else row.versions.tolist() for group in groups for row in group]
    report.note("versions seen in flight", sorted({version for row in rows for version in row}))
    report.check("rows that miss the last version", sum(row[-1:] != [LOADS] for row in rows), 0)
    report.check("tokens of older weights than before", sum(b < a for row in rows for a, b in pairwise(row)), 0)


def _weights() -> dict[str, Tensor]:
    return {name: tensor.detach().to(DEVICE) for name, tensor in _own_model().named_parameters()}


def _checksums(report: Report) -> None:
    """The checksum that the device makes of weights is the CPU's; ``verify`` raises where it is not."""
    weights = _weights()
    published = checksum(weights)
    verify({name: tensor.cpu() for name, tensor in weights.items()}, published, 1, "the CPU")
    next(iter(weights.values())).view(-1)[0] += 1.0
    report.check("changed weights with the old checksum", int(checksum(weights) == published), 0)


def _published_copies(report: Report) -> None:
    """A published copy keeps its numbers when the weights change."""
    weights, before = _weights(), _weights()
    copied = CopiedWeights(weights, BucketLayout.of(weights))
    copied.fill(weights, 0)
    for tensor in weights.values():
        tensor.zero_()
    wrong = sum(not torch.equal(copied.views[name], tensor) for name, tensor in before.items())
    report.check("tensors that a copy holds wrongly", wrong, 0)


def _engine_and_learner(make: Callable[[], nn.Module], precision: Precision, report: Report) -> None:
    """The engine's log-probs against the Learner's and the CPU's, and a training step against the CPU's in float32."""
    name, model, on_cpu = f"{MODELS[make]}, {precision}", make().to(DEVICE), make()
    engine = native_engine(model, TOKENIZER, precision=precision, device=DEVICE)
    options = TrainerOptions(group_size=4, precision=precision)
    learner = PolicyTrainer(model, TOKENIZER.pad_token_id, options)
    sampled = engine.generate(PROMPTS, 4, SamplingParams(max_tokens=24), 7)
    report.check(f"engine against Learner, {name}", _gap(learner.log_probs_of, sampled), LOG_PROBS[precision])
    given = native_engine(on_cpu, TOKENIZER).generate(PROMPTS, 4, SamplingParams(max_tokens=24, stop=("a", "e")), 7)
    report.check(f"engine against the CPU's, {name}", _gap(engine.score, given), LOG_PROBS[precision])
    report.check(f"Learner against the CPU's engine, {name}", _gap(learner.log_probs_of, given), LOG_PROBS[precision])
    trainers = (learner, PolicyTrainer(on_cpu, TOKENIZER.pad_token_id, replace(options, precision="float32")))
    groups = [_group(number, completions) for number, completions in enumerate(given)]
    found, wanted = (trainer.train(0, trainer.prepare(groups))["grad_norm"].value for trainer in trainers)
    bound = GRADIENT[getattr(torch, precision)]
    report.check(f"gradient norm against the CPU's, {name}", abs(found / wanted - 1), bound)


def _gap(score: Callable[..., list[np.ndarray]], groups: Sequence[tuple[Completion, ...]]) -> float:
    """Largest gap between the log-probs that came with the tokens and those that ``score`` gives them."""
    rows = [(np.array(prompt), row) for prompt, group in zip(PROMPTS, groups, strict=True) for row in group]
    found = score([prompt for prompt, _ in rows], [row.token_ids for _, row in rows])
    return max(float(np.abs(row.log_probs - theirs).max()) for (_, row), theirs in zip(rows, found, strict=True))


def _group(number: int, completions: tuple[Completion, ...]) -> RolloutGroup:
    data = GroupData(Prompt("p", "g"), np.array(PROMPTS[number]), completions)
    lengths = tuple(len(row.token_ids) for row in completions)
    return RolloutGroup(number, 0, 0, 0, lengths, data, (0.0, 1.0, 1.0, 0.5))
