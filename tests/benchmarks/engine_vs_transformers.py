"""The native engine against transformers' ``generate``: same weights, same prompts, warmed, interleaved in one run.

Every round times, one after the other and each round starting with another one: a float32 matrix product, ``generate``
in float32, the native engine in float32, and in bfloat16. So all meet the same weather, and the ratios of a round hold
even where the machine is shared. Process CPU time stands beside wall time as a cross-check.

The bound is what the machine's own matrix products allow: 2 floating-point operations for each weight in a matrix and
each token, at the rate measured for a 1024 x 1024 product in the same round. It leaves out attention, sampling and the
prefill, all of which the engine's time contains. ``generate`` prefills every copy of a prompt, the engine each prompt
once.

    python tests/benchmarks/engine_vs_transformers.py --rounds 9
    python tests/benchmarks/engine_vs_transformers.py --warm-start --natural
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GEMM_SIZE, GEMM_REPEATS = 1024, 5


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time the native engine against transformers' generate on identical work.",
        epilog="example:\n  python tests/benchmarks/engine_vs_transformers.py --rounds 9 --json engine.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", default="small", help="shape of the model (default: small), with random weights")
    parser.add_argument("--model", help="a Hugging Face folder of a Llama instead")
    parser.add_argument("--warm-start", action="store_true", help="the warm-started preset instead")
    parser.add_argument("--prompts", type=int, default=8, help="prompts (default: 8)")
    parser.add_argument("--samples", type=int, default=8, help="responses to each prompt (default: 8)")
    parser.add_argument("--prompt-tokens", type=int, default=13, help="for random weights (default: 13)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each response (default: 32)")
    parser.add_argument("--natural", action="store_true", help="let responses end by themselves within --tokens")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: 9)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--json", type=Path, help="also write every timing to this file")
    return parser.parse_args()


class Work:
    """One model with its weights in three places, and one request."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from harness.core.allocator import keep_freed_memory
        from harness.core.types import SamplingParams
        from harness.engines.native import native_engine

        keep_freed_memory()  # as in runs, and for both
        self.model, self.tokenizer = _model_and_tokenizer(arguments)
        self.prompts = _prompts(arguments, self.model, self.tokenizer)
        self.samples, self.tokens = arguments.samples, arguments.tokens
        self.least = 0 if arguments.natural else arguments.tokens
        self.sampling = SamplingParams(min_tokens=self.least, max_tokens=arguments.tokens)
        ends = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self.tokenizer.pad_token_id}
        self.llama = LlamaForCausalLM(LlamaConfig.from_dict(self.model.config.to_hf(**ends))).eval()
        self.llama.load_state_dict(self.model.state_dict(), strict=False)
        self.engines = {
            precision: native_engine(self.model, self.tokenizer, precision=precision)
            for precision in ("float32", "bfloat16")
        }
        width = max(map(len, self.prompts))
        pad = self.tokenizer.pad_token_id
        self.padded = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in self.prompts])
        self.mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in self.prompts])
        self.factors = torch.randn(2, GEMM_SIZE, GEMM_SIZE)

    @property
    def matrix_weights(self) -> int:
        """Weights that take part in a matrix product: all but the norms' gains and an untied embedding table."""
        config = self.model.config
        gains = config.hidden_size * (2 * config.num_hidden_layers + 1)
        lookups = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        return config.num_parameters - gains - lookups

    def multiply(self) -> int:
        """Multiply two matrices the fastest way there is; return the floating-point operations that took."""
        from harness.models.matmul import product

        for _ in range(GEMM_REPEATS):
            product(self.factors[0], self.factors[1])
        return GEMM_REPEATS * 2 * GEMM_SIZE**3

    def generate_with_transformers(self, **options: Any) -> Any:
        """The new tokens (rows, length) of ``generate``; sampled, unless ``options`` say otherwise."""
        import torch

        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
        with torch.inference_mode():
            token_ids = self.llama.generate(
                self.padded,
                attention_mask=self.mask,
                min_new_tokens=self.least,
                max_new_tokens=self.tokens,
                **settings,
            )
        return token_ids[:, self.padded.shape[1] :]

    def transformers(self) -> int:
        """Sample with transformers; return the number of tokens, up to and with the end of sequence."""
        token_ids = self.generate_with_transformers(num_return_sequences=self.samples)
        ended = (token_ids == self.tokenizer.eos_token_id).cumsum(1)
        return int(((ended == 0) | ((ended == 1) & (token_ids == self.tokenizer.eos_token_id))).sum())

    def native(self, precision: str) -> int:
        """Sample with the engine; return the number of tokens."""
        engine = self.engines[precision]
        engine.generate(self.prompts, self.samples, self.sampling, 0)
        return engine.last_stats.sampled_tokens

    def check_greedy(self) -> None:
        """Stop unless both give the same greedy tokens in float32."""
        from harness.core.types import SamplingParams

        theirs = self.generate_with_transformers(do_sample=False, temperature=None, top_k=None, top_p=None).tolist()
        sampling = SamplingParams(temperature=0.0, min_tokens=self.least, max_tokens=self.tokens)
        for (ours,), tokens in zip(self.engines["float32"].generate(self.prompts, 1, sampling, 0), theirs, strict=True):
            if ours.token_ids.tolist() != tokens[: len(ours.token_ids)]:
                raise SystemExit(f"greedy tokens differ: {ours.token_ids.tolist()} and {tokens}")


def _model_and_tokenizer(arguments: argparse.Namespace) -> tuple[Any, Any]:
    if arguments.model:
        from harness.models.storage import load_policy

        return load_policy(arguments.model)
    if arguments.warm_start:
        from harness.learner.warm_start import warm_start_policy

        model, tokenizer, _ = warm_start_policy(arguments.preset, 0)
        return model, tokenizer
    from harness.models.config import PRESETS
    from harness.models.decoder import DecoderLM
    from harness.models.tokenizer import train_tokenizer

    return DecoderLM(PRESETS[arguments.preset]), train_tokenizer([""], 258)


def _prompts(arguments: argparse.Namespace, model: Any, tokenizer: Any) -> list[list[int]]:
    if arguments.model or arguments.warm_start:
        from harness.tasks.keywords import KeywordTask

        return [tokenizer.encode(prompt.text) for prompt in KeywordTask().train_prompts[: arguments.prompts]]
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (arguments.prompts, arguments.prompt_tokens)
    return torch.randint(2, model.config.vocab_size, shape, generator=generator).tolist()


def timed(call: Callable[[], int]) -> dict[str, float]:
    """Seconds, CPU seconds, and the number of things done."""
    start, cpu = time.perf_counter(), time.process_time()
    count = call()
    return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu, "count": count}


def measure(work: Work, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Time everything once a round, after one round that does not count."""
    calls: dict[str, Callable[[], int]] = {
        "gemm": work.multiply,
        "transformers": work.transformers,
        "float32": lambda: work.native("float32"),
        "bfloat16": lambda: work.native("bfloat16"),
    }
    names = list(calls)
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for round_number in range(rounds + 1):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            timing = timed(calls[name])
            if round_number:
                timings[name].append(timing)
    return timings


def rates(timings: list[dict[str, float]], clock: str) -> list[float]:
    """Things done a second, round by round."""
    return [timing["count"] / timing[clock] for timing in timings]


def summary(timings: dict[str, list[dict[str, float]]], matrix_weights: int) -> dict[str, Any]:
    """For each clock: median rates, and each round's ratios as [smallest, median, largest]."""
    figures: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        per_round = {name: rates(values, clock) for name, values in timings.items()}
        bound = [rate / (2 * matrix_weights) for rate in per_round["gemm"]]
        figures[clock] = {
            "tokens_per_s": {name: statistics.median(per_round[name]) for name in per_round if name != "gemm"},
            "gemm_gflops": statistics.median(per_round["gemm"]) / 1e9,
            "bound_tokens_per_s": statistics.median(bound),
            "float32_share_of_bound": _spread(per_round["float32"], bound),
            "float32_over_transformers": _spread(per_round["float32"], per_round["transformers"]),
            "bfloat16_over_transformers": _spread(per_round["bfloat16"], per_round["transformers"]),
        }
    return figures


def _spread(ours: list[float], theirs: list[float]) -> list[float]:
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    return [ratios[0], statistics.median(ratios), ratios[-1]]


def show(arguments: argparse.Namespace, work: Work, figures: dict[str, Any]) -> None:
    """Print the figures."""
    lengths = sorted(map(len, work.prompts))
    kind = "at most" if arguments.natural else "exactly"
    print(
        f"{work.model.config.num_parameters / 1e6:.2f}M parameters, {arguments.threads} thread(s): "
        f"{len(work.prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens x {arguments.samples} responses of "
        f"{kind} {arguments.tokens} tokens, {arguments.rounds} rounds"
    )
    print("greedy tokens in float32: identical")
    for clock, part in figures.items():
        print(f"\n{clock} time{'':16}tokens/s   x transformers (median, range)")
        for name, rate in part["tokens_per_s"].items():
            ratio = part.get(f"{name}_over_transformers")
            print(f"  {_LABELS[name]:22}{rate:10.0f}   {'' if ratio is None else _shown(ratio, '.2f')}")
        gemm, bound = part["gemm_gflops"], part["bound_tokens_per_s"]
        print(f"  {'float32 GEMM':22}{gemm:10.1f}   GFLOP/s, that is {bound:.0f} tokens/s")
        share = _shown([100 * value for value in part["float32_share_of_bound"]], ".0f")
        print(f"  native float32 reaches {share} % of that bound")


_LABELS = {"transformers": "transformers float32", "float32": "native float32", "bfloat16": "native bfloat16"}


def _shown(spread: list[float], form: str) -> str:
    return f"{spread[1]:{form}} ({spread[0]:{form}} to {spread[2]:{form}})"


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.set_num_threads(arguments.threads)
    work = Work(arguments)
    work.check_greedy()
    timings = measure(work, arguments.rounds)
    figures = summary(timings, work.matrix_weights)
    show(arguments, work, figures)
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if name != "json"}
        arguments.json.write_text(json.dumps({"settings": settings, "figures": figures, "timings": timings}, indent=1))


if __name__ == "__main__":
    main()
