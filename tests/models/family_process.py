"""One family in a process of its own: in vLLM against the reference attention, or a run and an evaluation of it.

    python -m tests.models.family_process vllm "Gemma 2" FOLDER OUT.json
    python -m tests.models.family_process run "Gemma 2" FOLDER OUT.json [vllm]

FOLDER is made where it is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from harness.core.errors import UserError
from harness.core.types import SamplingParams
from harness.models.storage import load_policy, save_policy
from tests.models.families import SAMPLES, TOKENS, eager, gap, make, prompts_of, reference_log_probs

TRAINED = ("Llama 3.2", "Qwen3", "Mistral v0.1", "Gemma 2", "Gemma 3 (1b)", "Granite")
"""Families that are trained and evaluated, in both engines."""
ROOT = Path(__file__).parents[2]
PROMPT_ROWS = [{"prompt": f"What is {n} and {n}?", "answer": str(2 * n)} for n in range(20)]
REWARDS = """
def by_length(response, ground_truth):
    value = len(response) % 7 / 6
    return {"reward": value, "format_reward": 1.0, "answer_reward": value}
"""
SCENARIO = """
task: {type: jsonl, train: prompts.jsonl, reward: "family_rewards:by_length", reward_timeout_s: null}
model: {type: folder, path: FOLDER, threads: 1}
engine: {type: ENGINE, mismatch_bound: 0.0001}
sampling: {max_tokens: 8}
rollout_batch_size: 8
group_size: 4
steps: 3
optimizer: {learning_rate: 0.001}
evaluation: {every: 3, prompts: 4, examples: 1}
profile: "off"
trackers: []
"""


def in_process(*arguments: str | Path) -> dict[str, Any]:
    """Run this file as a process; return what it found, or ``failed`` with the end of what it printed.

    Args:
        arguments: of the command line; the fourth is the file that it writes, which is read where it is there already.
    """
    out = Path(arguments[3])
    if not out.exists():
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.models.family_process", *map(str, arguments)]
        done = subprocess.run(command, env=environment, cwd=out.parent, capture_output=True, text=True)
        if not out.exists():
            return {"failed": (done.stdout + done.stderr)[-600:]}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def in_vllm(folder: Path) -> dict[str, Any]:
    """Return the gaps of vLLM's log-probs, sampled and scored, before and after it is handed other weights."""
    from harness.engines.vllm import vllm_engine
    from harness.settings.engine import VllmEngineSettings

    model, tokenizer = load_policy(folder)
    as_loaded: Any = model
    prompts = prompts_of(
        as_loaded.get_input_embeddings().weight.shape[0]
        if hasattr(model, "get_input_embeddings")
        else as_loaded.config.vocab_size
    )
    of_rows = [prompt for prompt in prompts for _ in range(SAMPLES)]
    settings = VllmEngineSettings(precision="float32", max_batch=16, kv_cache_gib=0.05)
    try:
        engine = vllm_engine(settings, model, tokenizer)
    except UserError as error:
        return {"refused": error.what}

    def gaps(of: Path) -> float:
        groups = engine.generate(prompts, SAMPLES, SamplingParams(max_tokens=TOKENS), 0)
        sampled = [completion for group in groups for completion in group]
        responses = [one.token_ids.tolist() for one in sampled]
        with torch.no_grad():
            expected = reference_log_probs(eager(of), of_rows, responses)
        return max(gap([one.log_probs for one in sampled], expected), gap(engine.score(of_rows, responses), expected))

    with closing(engine):
        found = {"vllm": gaps(folder)}
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator))
        engine.load_weights(dict(model.named_parameters()), 1)
        save_policy(model, tokenizer, folder / "moved")
        return found | {"vllm_after_sync": gaps(folder / "moved")}


def run(folder: Path, work: Path, engine: str) -> dict[str, Any]:
    """Train three steps and evaluate what was saved; return the gap of engine and Learner, and who moved."""
    from harness.results import find_runs
    from harness.run.experiment import run_scenario
    from harness.scenario.load import load_scenario

    work.mkdir(parents=True)
    (work / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPT_ROWS))
    (work / "family_rewards.py").write_text(REWARDS)
    (work / "family.yaml").write_text(SCENARIO.replace("FOLDER", str(folder)).replace("ENGINE", engine))
    os.chdir(work)
    sys.path.insert(0, str(work))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(work), str(ROOT)])
    try:
        code = run_scenario(load_scenario(work / "family.yaml"), work / "out", quiet=True, show=lambda folder: None)
    except UserError as error:
        return {"refused": error.what}
    (trained,), _ = find_runs(work / "out")
    gaps = [metric.value for row in trained.steps if (metric := row.metric("engine_mismatch/max"))]
    policy = trained.folder / "policy"
    before, after = (dict(load_policy(each)[0].named_parameters()) for each in (folder, policy))
    still = [name for name in before if torch.equal(before[name], after[name])]
    command = [sys.executable, "-m", "harness", "evaluate", "--model", policy, "--data", work / "prompts.jsonl"]
    command += ["--task", "own", "--reward", "family_rewards:by_length", "--engine", engine, "--samples", "2"]
    command += ["--max-tokens", "8", "--quiet", "--out", work / "evaluated"]
    evaluated = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    said = (evaluated.stdout.strip() or evaluated.stderr.strip()).splitlines()
    return {
        "exit": code,
        "steps": len(trained.steps),
        "mismatch": max(gaps, default=None),
        "evaluations": [row.version for row in trained.evaluations],
        "still": still,
        "evaluate_exit": evaluated.returncode,
        "evaluate_said": said[-1].split(". results:")[0] if said else "",
    }


if __name__ == "__main__":
    what, name, folder, out, *engine = sys.argv[1:]
    path = Path(folder)
    if not path.exists():
        make(name, path)
    results = in_vllm(path) if what == "vllm" else run(path, Path(out).with_suffix(""), *(engine or ["native"]))
    Path(out).write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads would wait
