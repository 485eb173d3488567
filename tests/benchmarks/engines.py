"""The native engine against transformers' ``generate`` and vLLM: same weights, prompts and lengths, in turns.

The bound is what the machine's fastest float32 product allows: 2 floating-point operations for each weight in a matrix
and each token, at the rate of a 1024 x 1024 product in the same round. It leaves out attention, sampling and the
prefill, which all times contain. ``generate`` prefills every copy of a prompt, the engine each prompt once.
Before the clock starts, all give the same greedy tokens in float32, or nothing is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any

from harness.report.document import Table
from tests.benchmarks.runner import Took, in_turns, parser, publish, spread

EXAMPLE = "OMP_NUM_THREADS=1 python -m tests.benchmarks.engines --warm-start --rounds 9"
GEMM_SIZE, GEMM_REPEATS, PROMPTS, SAMPLES, PROMPT_TOKENS = 1024, 5, 8, 8, 13
PRECISIONS = ("float32", "bfloat16")


def llama_of(model: Any, tokenizer: Any) -> Any:
    """Return transformers' model with the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    llama = LlamaForCausalLM(LlamaConfig.from_dict(model.config.to_hf(**ends))).eval()
    llama.load_state_dict(model.state_dict(), strict=False)
    return llama


class Work:
    """One model with its weights in every engine, and one request."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from harness.core.allocator import keep_freed_memory
        from harness.core.types import SamplingParams
        from harness.engines.native import native_engine

        keep_freed_memory()  # as in runs, and for all
        self.tokens = options.tokens
        self.model, self.tokenizer, self.prompts = model_and_prompts(options)
        self.least = 0 if options.natural else options.tokens
        self.sampling = SamplingParams(min_tokens=self.least, max_tokens=options.tokens)
        self.llama = llama_of(self.model, self.tokenizer)
        self.engines: dict[str, Any] = {
            f"native {precision}": native_engine(self.model, self.tokenizer, precision=precision)  # type: ignore[arg-type]
            for precision in PRECISIONS
        }
        if options.vllm:
            from harness.engines.vllm import vllm_engine
            from harness.settings.engine import VllmEngineSettings

            settings = VllmEngineSettings(precision="float32", max_batch=PROMPTS * SAMPLES)
            self.engines["vLLM float32"] = vllm_engine(settings, self.model, self.tokenizer)
        width, pad = max(map(len, self.prompts)), self.tokenizer.pad_token_id
        self.padded = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in self.prompts])
        self.mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in self.prompts])
        self.factors = torch.randn(2, GEMM_SIZE, GEMM_SIZE)

    @property
    def matrix_weights(self) -> int:
        """Weights that take part in a matrix product: all but the norms' gains and an untied embedding table."""
        config = self.model.config
        lookups = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        return int(config.num_parameters - config.hidden_size * (2 * config.num_hidden_layers + 1) - lookups)

    def arms(self) -> dict[str, Callable[[], int]]:
        """Return what takes turns, each returning its tokens; the product, its floating-point operations."""
        native = {name: lambda engine=engine: self.sampled(engine) for name, engine in self.engines.items()}
        return {"product": self.multiply, "transformers float32": self.transformers} | native

    def multiply(self) -> int:
        from harness.models.matmul import product

        for _ in range(GEMM_REPEATS):
            product(self.factors[0], self.factors[1])
        return GEMM_REPEATS * 2 * GEMM_SIZE**3

    def generate(self, **options: Any) -> Any:
        """Return the new tokens of transformers, shape [rows, length]."""
        import torch

        lengths = {"min_new_tokens": self.least, "max_new_tokens": self.tokens}
        with torch.inference_mode():
            token_ids = self.llama.generate(self.padded, attention_mask=self.mask, **lengths, **options)
        return token_ids[:, self.padded.shape[1] :]

    def transformers(self) -> int:
        token_ids = self.generate(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=SAMPLES)
        ends = token_ids == self.tokenizer.eos_token_id
        return int((ends.cumsum(1) - ends.long() == 0).sum())  # up to and with the first end

    def sampled(self, engine: Any) -> int:
        groups = engine.generate(self.prompts, SAMPLES, self.sampling, 0)
        return sum(len(row.token_ids) for group in groups for row in group)

    def check_greedy(self) -> None:
        """Stop unless all give the same greedy tokens in float32."""
        from harness.core.types import SamplingParams

        theirs = self.generate(do_sample=False, temperature=None, top_k=None, top_p=None).tolist()
        sampling = SamplingParams(temperature=0.0, min_tokens=self.least, max_tokens=self.tokens)
        for name, engine in self.engines.items():
            for (row,), tokens in zip(engine.generate(self.prompts, 1, sampling, 0), theirs, strict=True):
                ours = row.token_ids.tolist()
                if name.endswith("float32") and ours != tokens[: len(ours)]:
                    raise SystemExit(f"greedy tokens of {name} differ: {ours} and {tokens}")


def model_and_prompts(options: argparse.Namespace) -> tuple[Any, Any, list[list[int]]]:
    """Return the model, its tokenizer, and prompts: of the keyword task, or of random tokens for random weights."""
    import torch

    if options.warm_start:
        from harness.learner.warm_start import warm_start_policy
        from harness.tasks.keywords import KeywordTask

        model, tokenizer, _ = warm_start_policy("small", 0)
        return model, tokenizer, [tokenizer.encode(prompt.text) for prompt in KeywordTask().train_prompts[:PROMPTS]]
    from harness.models.config import PRESETS, ModelConfig
    from harness.models.decoder import DecoderLM
    from harness.models.tokenizer import train_tokenizer

    large = ModelConfig(32_000, 768, 2048, 12, 12, 4, 64, 256)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(5, 250, (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()
    model = DecoderLM(PRESETS["small"] if options.model == "small" else large)
    return model, train_tokenizer([""], 258), prompts


def table(timings: dict[str, list[Took]], clock: str, matrix_weights: int) -> Table:
    """Return tokens a second by a clock, over transformers' and over the product's bound, round by round."""
    rates = {name: [took.count / getattr(took, clock) for took in of] for name, of in timings.items()}
    bound = [rate / (2 * matrix_weights) for rate in rates.pop("product")]
    theirs = rates["transformers float32"]
    rows = []
    for name, of in (*rates.items(), ("float32 product", bound)):
        over = (spread(a / b for a, b in zip(of, other, strict=True)) for other in (theirs, bound))
        rows.append((name, f"{statistics.median(of):,.0f}", *over))
    title = {"wall_s": "Seconds on the wall", "cpu_s": "CPU seconds"}[clock]
    return Table(
        title, ("who", "tokens/s", "times transformers (range)", "of the product's bound (range)"), tuple(rows)
    )


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--model", choices=("small", "100m"), default="small", help="shape, with random weights (small)")
    made.add_argument("--warm-start", action="store_true", help="the warm-started preset `small` instead")
    made.add_argument("--vllm", action="store_true", help="vLLM too")
    made.add_argument("--tokens", type=int, default=32, help="tokens of each response (32)")
    made.add_argument("--natural", action="store_true", help="let responses end by themselves within --tokens")
    made.add_argument("--rounds", type=int, default=9, help="timed rounds (9)")
    made.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    options = made.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    work = Work(options)
    work.check_greedy()
    timings = in_turns(work.arms(), options.rounds)
    for engine in work.engines.values():
        getattr(engine, "close", lambda: None)()
    tables = [table(timings, clock, work.matrix_weights) for clock in ("wall_s", "cpu_s")]
    publish("Sampling on the same work", tables, options, parameters=work.model.config.num_parameters, timings=timings)


if __name__ == "__main__":
    main()
