"""Long rollouts, a 100M model and a vocabulary of 152k on a CPU: engine and Learner against transformers and vLLM.

Four cases, float32, one thread, random weights, forced lengths. Sampling: the native engine, transformers' ``generate``
and, where it is installed, vLLM. Training: forward and backward of one batch on the own code, and with transformers'
model over padded rows with logits of the response tokens, which is how TRL computes them. Every round times each
contestant once, in turns, and a float32 matrix product, whose rate is the bound. MFU is the share of that rate: 2
floating-point operations for each weight of a matrix and each token that has to go through it (6 in training), prompts
once for their group, the output matrix for response tokens only; attention's own products are left out. So a contestant
that runs a prompt once for each response has the lower MFU for it. Memory is the peak resident size of a process.

    OMP_NUM_THREADS=1 python tests/benchmarks/long_and_large.py --rounds 3 --markdown docs/measured/long_and_large.md
    OMP_NUM_THREADS=1 python tests/benchmarks/long_and_large.py --cases 100m --rounds 2
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.models.config import PRESETS, ModelConfig

GEMM_SIZE, GEMM_REPEATS = 1024, 5
Work = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and a batch: ``prompts`` of ``prompt_tokens`` with ``samples`` responses of ``tokens`` each."""

    config: ModelConfig
    prompts: int
    samples: int
    prompt_tokens: int
    tokens: int

    @property
    def sampled(self) -> int:
        """Response tokens."""
        return self.prompts * self.samples * self.tokens

    @property
    def operations(self) -> int:
        """Products' floating-point operations of one pass over the batch."""
        config = self.config
        tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
        layers = config.num_parameters - tables
        through_layers = self.prompts * self.prompt_tokens + self.prompts * self.samples * (self.tokens - 1)
        return 2 * (layers * through_layers + config.vocab_size * config.hidden_size * self.sampled)


SMALL = dataclasses.replace(PRESETS["small"], max_position_embeddings=4096)
CASES = {
    "512": Case(SMALL, 4, 4, 32, 512),
    "2048": Case(SMALL, 2, 2, 32, 2048),
    "100m": Case(ModelConfig(32_000, 768, 2048, 12, 12, 4, 64, 256), 4, 4, 32, 64),
    "152k": Case(dataclasses.replace(SMALL, vocab_size=151_936), 4, 4, 32, 64),
}
NAMES = {
    "512": "3M parameters, 16 x 512 tokens",
    "2048": "3M parameters, 4 x 2,048 tokens",
    "100m": "100M parameters, 16 x 64 tokens",
    "152k": "vocabulary of 151,936, width 256, 16 x 64 tokens",
}
SAMPLING, TRAINING = ("native", "transformers", "vllm"), ("own", "padded")


class Contest:
    """The model of a case, and each contestant as something to call, made when it is asked for."""

    def __init__(self, case: Case) -> None:
        import torch

        from harness.core.allocator import keep_freed_memory
        from harness.models.decoder import DecoderLM
        from harness.models.tokenizer import train_tokenizer

        keep_freed_memory()  # as in runs, and for every contestant
        self.case, self.model, self.tokenizer = case, DecoderLM(case.config), train_tokenizer([""], 258)
        generator = torch.Generator().manual_seed(0)
        self.prompts_PL = torch.randint(5, 250, (case.prompts, case.prompt_tokens), generator=generator)
        rows = case.prompts * case.samples
        self.responses_BT = torch.randint(5, 250, (rows, case.tokens), generator=generator)

    def of_transformers(self) -> Any:
        """Return transformers' model with the same weights."""
        from transformers import LlamaConfig, LlamaForCausalLM

        ends = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self.tokenizer.pad_token_id}
        theirs: Any = LlamaForCausalLM(LlamaConfig.from_dict(self.case.config.to_hf(**ends))).eval()
        theirs.load_state_dict(self.model.state_dict(), strict=False)
        return theirs

    def work(self, contestant: str) -> Work:
        """Return one pass of a contestant over the batch."""
        return {
            "native": self._native,
            "transformers": self._generate,
            "vllm": self._vllm,
            "own": self._own,
            "padded": self._padded,
        }[contestant]()

    def _engine_work(self, engine: Any) -> Work:
        from harness.core.types import SamplingParams

        tokens, prompts = self.case.tokens, self.prompts_PL.tolist()
        sampling = SamplingParams(max_tokens=tokens, pinned_lengths=(tokens, tokens))
        return lambda: engine.generate(prompts, self.case.samples, sampling, 0)

    def _native(self) -> Work:
        from harness.engines.native import native_engine

        return self._engine_work(native_engine(self.model, self.tokenizer))

    def _vllm(self) -> Work:
        from harness.engines.vllm import vllm_engine
        from harness.settings.engine import VllmEngineSettings

        rows = self.case.prompts * self.case.samples
        settings = VllmEngineSettings(precision="float32", max_batch=rows)
        return self._engine_work(vllm_engine(settings, self.model, self.tokenizer))

    def _generate(self) -> Work:
        import torch

        theirs, tokens = self.of_transformers(), self.case.tokens
        options = {"do_sample": True, "top_k": 0, "num_return_sequences": self.case.samples}

        def work() -> object:
            with torch.inference_mode():
                mask = torch.ones_like(self.prompts_PL)
                return theirs.generate(
                    self.prompts_PL, attention_mask=mask, min_new_tokens=tokens, max_new_tokens=tokens, **options
                )

        return work

    def _own(self) -> Work:
        import torch

        from harness.models.policy import policy_log_probs

        case, mask_BT = self.case, torch.ones_like(self.responses_BT, dtype=torch.bool)
        lengths_P = torch.full((case.prompts,), case.prompt_tokens)
        index_B = torch.arange(case.prompts).repeat_interleave(case.samples)

        def work() -> object:
            self.model.zero_grad()
            log_probs_BT, _ = policy_log_probs(
                self.model, self.prompts_PL, lengths_P, self.responses_BT, mask_BT, index_B
            )
            return (-log_probs_BT.mean()).backward()

        return work

    def _padded(self) -> Work:
        import torch

        theirs = self.of_transformers()
        rows = torch.cat((self.prompts_PL.repeat_interleave(self.case.samples, 0), self.responses_BT), dim=1)

        def work() -> object:
            theirs.zero_grad()
            logits = theirs(input_ids=rows, use_cache=False, logits_to_keep=self.case.tokens + 1).logits[:, :-1]
            log_probs_BT = logits.log_softmax(-1).gather(-1, self.responses_BT[..., None])
            return (-log_probs_BT.mean()).backward()

        return work


def gemm_rate() -> float:
    """Return the floating-point operations a second of the fastest float32 product there is, by CPU time."""
    import torch

    from harness.models.matmul import product

    factors = torch.randn(2, GEMM_SIZE, GEMM_SIZE)
    begin = time.process_time()
    for _ in range(GEMM_REPEATS):
        product(factors[0], factors[1])
    return GEMM_REPEATS * 2 * GEMM_SIZE**3 / (time.process_time() - begin)


def measure_speed(name: str, rounds: int, contestants: list[str]) -> dict[str, Any]:
    """Return for each contestant the CPU seconds of each round, and the product's rate in each."""
    contest = Contest(CASES[name])
    works = {contestant: contest.work(contestant) for contestant in contestants}
    taken: dict[str, list[float]] = {contestant: [] for contestant in works}
    gemm: list[float] = []
    for number in range(rounds + 1):  # the first warms up
        gemm.append(gemm_rate())
        turn = number % len(works)
        for contestant in contestants[turn:] + contestants[:turn]:
            begin = time.process_time()
            works[contestant]()
            taken[contestant].append(time.process_time() - begin)
    return {"gemm": gemm[1:], "seconds": {contestant: seconds[1:] for contestant, seconds in taken.items()}}


def measure_memory(name: str, contestant: str) -> dict[str, Any]:
    """Return the peak resident size of this process after one pass of one contestant."""
    Contest(CASES[name]).work(contestant)()
    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def in_child(*arguments: str) -> dict[str, Any]:
    """Run this program with these arguments in a process of its own; return what it prints last."""
    command = [sys.executable, str(Path(__file__)), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def rows_of(name: str, rounds: int) -> list[str]:
    """Return the table's rows of a case."""
    case, lines = CASES[name], []
    sampling = [found for found in SAMPLING if found != "vllm" or importlib.util.find_spec("vllm") is not None]
    for kind, contestants, passes in (("sampling", sampling, 1), ("training", list(TRAINING), 3)):
        found = in_child("--child", name, "--rounds", str(rounds), "--contestants", *contestants)
        ours = found["seconds"][contestants[0]]
        for contestant in contestants:
            seconds = found["seconds"][contestant]
            mfu = [
                passes * case.operations / (second * rate) for second, rate in zip(seconds, found["gemm"], strict=True)
            ]
            ratios = sorted(theirs / mine for theirs, mine in zip(seconds, ours, strict=True))
            peak = in_child("--child", name, "--memory", "--contestants", contestant)["peak_bytes"]
            behind = "1" if contestant == contestants[0] else f"{statistics.median(ratios):.2f}"
            if contestant != contestants[0]:
                behind += f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            lines.append(
                f"| {NAMES[name]} | {kind} | {contestant} | {case.sampled / statistics.median(seconds):,.0f} "
                f"| {100 * statistics.median(mfu):.0f}% | {behind} | {peak / 2**30:.2f} |"
            )
            print(lines[-1], flush=True)
    return lines


HEAD = (
    "| case | work | who | response tokens/s | MFU | times our seconds: median (range) | peak GiB |\n"
    "|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(
        description="Time engine and Learner on long rollouts and large models, against transformers and vLLM.",
        epilog="example:\n  OMP_NUM_THREADS=1 python tests/benchmarks/long_and_large.py --cases 512 --rounds 2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="(default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default: 3)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--child", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--contestants", nargs="+", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        import torch

        torch.set_num_threads(1)
        if arguments.memory:
            print(json.dumps(measure_memory(arguments.child, arguments.contestants[0])))
        else:
            print(json.dumps(measure_speed(arguments.child, arguments.rounds, arguments.contestants)))
        return
    print(HEAD, flush=True)
    lines = [line for name in arguments.cases for line in rows_of(name, arguments.rounds)]
    if arguments.markdown is not None:
        cases = "" if arguments.cases == list(CASES) else f" --cases {' '.join(arguments.cases)}"
        title = (
            "# Long rollouts and larger models on one core\n\nMade by `OMP_NUM_THREADS=1 python "
            f"tests/benchmarks/long_and_large.py --rounds {arguments.rounds}{cases}` on"
            f" {platform.machine()};\nfloat32, one"
            " thread, CPU seconds. What MFU counts stands at the head of the script.\n\n"
        )
        arguments.markdown.write_text(f"{title}{HEAD}\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
