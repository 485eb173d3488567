"""Llama, Mistral, Qwen2 and Qwen3 on the own code against transformers: do they agree, and what does it save?

Two tables. Parity, at small widths with wide weights: the largest difference of logits, of log-probabilities and of
the gradients of a training batch (shared prompts packed, against padded rows), and greedy tokens that differ. Speed, on
two layers of Qwen2.5-1.5B's shape with random weights: a training pass and a generation on the own code, and on
transformers' over padded rows. With ``--rows`` another: a training pass of transformers' code over padded rows, over
those that ``cheapest_layout`` chooses, and over one row for each group. Rounds take turns, so all meet the same
weather; CPU seconds of the process.

    python tests/benchmarks/model_families.py --rounds 5 --markdown docs/measured/model_families.md
    python tests/benchmarks/model_families.py --rounds 5 --rows
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from harness.core.types import SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import native_engine
from harness.models.config import PRESETS, ModelConfig, RopeScaling, shape_config
from harness.models.decoder import DecoderLM
from harness.models.policy import padded_response_log_probs, policy_log_probs, score_rows, why_padded
from harness.models.products import use_fast_products
from harness.models.shared_rows import Layout, cheapest_layout, lay_out, shared_rows
from harness.models.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer([""], 258)
SMALL = ModelConfig(258, 96, 160, 3, 6, 2, 16, 512, rope_theta=1e6, tie_word_embeddings=False)
FAMILIES = {
    "Llama 3.1": dataclasses.replace(SMALL, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
    "Llama 3.2, tied": dataclasses.replace(
        SMALL, rope_scaling=RopeScaling("llama3", 32.0, 1.0, 4.0, 64), tie_word_embeddings=True
    ),
    "Mistral": dataclasses.replace(SMALL, model_type="mistral"),
    "Qwen2.5": dataclasses.replace(SMALL, model_type="qwen2"),
    "Qwen2.5, tied": dataclasses.replace(SMALL, model_type="qwen2", tie_word_embeddings=True),
    "Qwen3": dataclasses.replace(SMALL, model_type="qwen3"),
    "Qwen3, tied": dataclasses.replace(SMALL, model_type="qwen3", tie_word_embeddings=True),
}
PROMPTS, SAMPLES, PROMPT_TOKENS, TOKENS = 2, 8, 48, 32
ROWS = {"1.5B, 2 layers": [(256, 64), (16, 32)], "small preset": [(256, 64), (16, 32), (16, 512), (512, 512)]}
"""Models, and tokens of the prompt and of each of its 8 responses."""


def of_transformers(model: DecoderLM) -> nn.Module:
    """Return transformers' model with the same weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    ends = {"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}
    values = {name: value for name, value in model.config.to_hf(**ends).items() if name != "model_type"}
    config = AutoConfig.for_model(model.config.model_type, **values)
    theirs: nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
    theirs.load_state_dict(model.state_dict(), strict=False)
    return theirs


def make_batch(vocab_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return prompts, their lengths, responses of unlike lengths, their mask, and each row's prompt."""
    generator = torch.Generator().manual_seed(0)
    prompts_PL = torch.randint(2, vocab_size, (PROMPTS, PROMPT_TOKENS), generator=generator)
    rows = PROMPTS * SAMPLES
    responses_BT = torch.randint(2, vocab_size, (rows, TOKENS), generator=generator)
    lengths_B = torch.randint(TOKENS // 2, TOKENS + 1, (rows,), generator=generator)
    mask_BT = torch.arange(TOKENS) < lengths_B[:, None]
    lengths_P = torch.tensor([PROMPT_TOKENS, PROMPT_TOKENS - 7])
    return prompts_PL, lengths_P, responses_BT, mask_BT, torch.arange(PROMPTS).repeat_interleave(SAMPLES)


def parity(config: ModelConfig) -> tuple[float, float, float, int]:
    """Return the largest differences of logits, log-probs and gradients (relative), and greedy tokens that differ."""
    model = DecoderLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    theirs, batch = of_transformers(model), make_batch(config.vocab_size)
    ids = torch.randint(2, config.vocab_size, (2, 400), generator=generator)
    with torch.no_grad():
        logits = float((model(ids).logits - theirs(ids).logits).abs().max())
    ours_BT, _ = policy_log_probs(model, *batch)
    theirs_BT, _ = padded_response_log_probs(theirs, *batch)
    for log_probs_BT in (ours_BT, theirs_BT):
        (-log_probs_BT.mean()).backward()
    of_theirs = dict(theirs.named_parameters())
    gradients = max(
        float((p.grad - of_theirs[name].grad).norm() / of_theirs[name].grad.norm())  # type: ignore[operator, union-attr]
        for name, p in model.named_parameters()
    )
    prompts = [row.tolist() for row in batch[0]]
    greedy = SamplingParams(temperature=0.0, min_tokens=TOKENS, max_tokens=TOKENS)
    engines = (native_engine(model, TOKENIZER), HuggingFaceEngine(copy.deepcopy(theirs), TOKENIZER))
    ours, reference = (engine.generate(prompts, 1, greedy, 0) for engine in engines)
    unlike = sum(
        int((mine.token_ids != other.token_ids).sum()) for (mine,), (other,) in zip(ours, reference, strict=True)
    )
    return logits, float((ours_BT - theirs_BT).detach().abs().max()), gradients, unlike


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that ``work`` takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def speed(rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return for a training pass and a generation the seconds of every round: own code, and transformers'."""
    config = ModelConfig.from_hf(shape_config("qwen2.5-math-1.5b", layers=2, vocab_size=512))
    model = DecoderLM(config)
    theirs, batch = of_transformers(model), make_batch(config.vocab_size)
    use_fast_products(theirs)  # as the models get that run through transformers
    sampling = SamplingParams(min_tokens=TOKENS, max_tokens=TOKENS)
    prompts = [row.tolist() for row in batch[0]]

    def train(policy: nn.Module, log_probs: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        policy.zero_grad()
        log_probs_BT, _ = log_probs(policy, *batch)
        (-log_probs_BT.mean()).backward()

    engines = (native_engine(model, TOKENIZER), HuggingFaceEngine(copy.deepcopy(theirs), TOKENIZER))
    works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "training pass": (
            lambda: train(model, policy_log_probs),
            lambda: train(theirs, padded_response_log_probs),
        ),
        "generation": (
            lambda: engines[0].generate(prompts, SAMPLES, sampling, 0),
            lambda: engines[1].generate(prompts, SAMPLES, sampling, 0),
        ),
    }
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in works}
    for number in range(rounds + 1):  # the first warms up
        for name, pair in works.items():
            for which in (0, 1) if number % 2 else (1, 0):
                found = seconds(pair[which])
                if number:
                    taken[name][which].append(found)
    return taken


def speed_of_rows(rounds: int) -> str:
    """Return the table of rows in Markdown."""
    lines = [
        "| model | prompt + 8 responses | padded rows, s | as chosen, s | times as fast, median (quartiles) | chosen "
        "| one row, s |",
        "|---|---|---|---|---|---|---|",
    ]
    configs = {
        "1.5B, 2 layers": ModelConfig.from_hf(shape_config("qwen2.5-math-1.5b", layers=2, vocab_size=512)),
        "small preset": dataclasses.replace(PRESETS["small"], vocab_size=512, max_position_embeddings=8192),
    }
    for name, config in configs.items():
        model = of_transformers(DecoderLM(config))
        use_fast_products(model)
        assert not why_padded(model)
        for prompt, response in ROWS[name]:
            lines.append(f"| {name} | {prompt} + 8 x {response} | {_rows_of(model, prompt, response, rounds)} |")
    return "\n".join(lines) + "\n"


def _rows_of(model: nn.Module, prompt: int, response: int, rounds: int) -> str:
    generator = torch.Generator().manual_seed(0)
    prompts_PL = torch.randint(2, 512, (1, prompt), generator=generator)
    responses_BT = torch.randint(2, 512, (8, response), generator=generator)
    mask_BT, index_B = torch.ones_like(responses_BT, dtype=torch.bool), torch.zeros(8, dtype=torch.long)
    batch = prompts_PL, torch.tensor([prompt]), responses_BT, mask_BT, index_B
    whole = lay_out([prompt], [response] * 8, [0] * 8, per_row=8)

    def in_one_row(policy: nn.Module, *_: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = shared_rows(*batch, layout=whole, dtype=torch.float32)
        return score_rows(policy, rows, responses_BT, mask_BT)

    def train(log_probs: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        model.zero_grad()
        log_probs_BT, _ = log_probs(model, *batch)
        (-log_probs_BT.mean()).backward()

    ways = padded_response_log_probs, policy_log_probs, in_one_row
    taken: list[list[float]] = [[], [], []]
    for number in range(rounds + 1):  # the first warms up
        for which in (0, 1, 2) if number % 2 else (2, 1, 0):
            found = seconds(lambda way=ways[which]: train(way))  # type: ignore[misc]
            if number:
                taken[which].append(found)
    low, middle, high = statistics.quantiles([b / a for b, a in zip(taken[0], taken[1], strict=True)], n=4)
    layout: Layout | None = cheapest_layout(batch[1], mask_BT, index_B, model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    chosen = "padded" if layout is None else f"{len(layout.prompt_R)} of {layout.width} tokens"
    padded, as_chosen, one_row = (statistics.median(times) for times in taken)
    return f"{padded:.2f} | {as_chosen:.2f} | {middle:.2f} ({low:.2f} to {high:.2f}) | {chosen} | {one_row:.2f}"


def tables(rounds: int) -> str:
    """Return the tables in Markdown."""
    lines = [
        "| family | logits | log-probs | gradients, relative | greedy tokens that differ |",
        "|---|---|---|---|---|",
    ]
    for name, config in FAMILIES.items():
        logits, log_probs, gradients, unlike = parity(config)
        lines.append(f"| {name} | {logits:.1e} | {log_probs:.1e} | {gradients:.1e} | {unlike} of {PROMPTS * TOKENS} |")
    lines += [
        "",
        "| work | own code, s | transformers' path, s | times as fast, median (quartiles) |",
        "|---|---|---|---|",
    ]
    for name, (own, theirs) in speed(rounds).items():
        low, middle, high = statistics.quantiles([b / a for a, b in zip(own, theirs, strict=True)], n=4)
        lines.append(
            f"| {name} | {statistics.median(own):.2f} | {statistics.median(theirs):.2f} "
            f"| {middle:.2f} ({low:.2f} to {high:.2f}) |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables, and write them where that is asked for."""
    parser = argparse.ArgumentParser(
        description="Compare the own model with transformers': agreement and speed, and its own rows of tokens.",
        epilog="example:\n  python tests/benchmarks/model_families.py --rounds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, from 2 (default: 5)")
    parser.add_argument("--rows", action="store_true", help="rows of transformers' code instead of the own model")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the two tables to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = speed_of_rows(arguments.rounds) if arguments.rows else tables(arguments.rounds)
    print(text)
    if arguments.markdown is not None and not arguments.rows:
        head = (
            "# The own model's families against transformers\n\n"
            f"Made by `python tests/benchmarks/model_families.py --rounds {arguments.rounds}`, torch"
            f" {torch.__version__}, one thread of {platform.machine()}, float32.\n{PROMPTS} prompts of up to"
            f" {PROMPT_TOKENS} tokens, {SAMPLES} responses to each, of {TOKENS // 2} to {TOKENS} tokens in training and"
            f" {TOKENS} in generation.\n\n"
        )
        arguments.markdown.write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    main()
