"""A vLLM of two workers: it samples as one does, new weights reach both, and its processes end with their Generator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from harness.core.errors import RunStopped, UserError
from harness.core.types import SamplingParams
from harness.engines.vllm import vllm_engine
from harness.models.decoder import DecoderLM
from harness.scenario.load import load_scenario
from harness.settings.engine import VllmEngineSettings
from tests.e2e.conftest import ended, run_all, wait_until
from tests.e2e.test_vllm import BOUND, SHAPE, SMALL, TOKENIZER, mismatches

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (make install-vllm)"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray"),
    pytest.mark.slow,  # each worker is a process that imports vLLM
]
PROMPTS = [[5, 6, 7], [9] * 11, [100], list(range(30, 70))]
GREEDY = SamplingParams(temperature=0.0, min_tokens=12, max_tokens=12)


def a_model(seed: int) -> DecoderLM:
    """A model whose logits are spread over several units."""
    model = DecoderLM(SHAPE, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return model


def log_probs(model: DecoderLM, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Those of the response's tokens (T,), of one pass over all of it."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def start(model: DecoderLM, workers: int, **options: Any) -> Any:
    settings = VllmEngineSettings(max_batch=8, context=64, tensor_parallel=workers)
    return vllm_engine(settings, model, TOKENIZER, **options)


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Its processes that have a model: another one is Python's own, which watches over shared memory."""
    return [child for child in process.children() if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture
def two() -> Iterator[Any]:
    engine = start(a_model(0), 2)
    yield engine
    engine.close()


def test_two_workers_sample_as_one_does_and_take_new_weights(two: Any) -> None:
    old, new = a_model(0), a_model(1)
    me = psutil.Process()
    workers = workers_of(me)
    assert len(workers) == 2
    one = start(old, 1)
    for temperature in (0.0, 1.0):
        sampling = replace(GREEDY, temperature=temperature)
        ours, theirs = (each.generate(PROMPTS, 2, sampling, seed=3) for each in (two, one))
        for left, right in zip(ours, theirs, strict=True):
            for a, b in zip(left, right, strict=True):
                assert a.token_ids.tolist() == b.token_ids.tolist()
                assert abs(a.log_probs - b.log_probs).max() < BOUND
    responses = [group[0].token_ids.tolist() for group in two.generate(PROMPTS, 1, GREEDY, seed=0)]
    before = two.score(PROMPTS, responses)
    two.load_weights(dict(new.named_parameters()), version=1)
    after = two.score(PROMPTS, responses)
    for prompt, response, was, now in zip(PROMPTS, responses, before, after, strict=True):
        assert (torch.from_numpy(was) - log_probs(old, prompt, response)).abs().max() < BOUND
        assert (torch.from_numpy(now) - log_probs(new, prompt, response)).abs().max() < BOUND
        assert abs(was - now).max() > 0.1
    # half of each matrix is the other worker's: one that had kept its old half would be far off
    listening = [
        connection.laddr.ip
        for process in (me, *workers)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) <= {"127.0.0.1"}
    one.close()
    two.close()
    assert psutil.wait_procs(workers, timeout=30)[1] == []


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(two: Any) -> None:
    before = two.score(PROMPTS[:1], [[8, 9]])[0]
    with pytest.raises(ValueError, match="missing"):
        two.load_weights(dict([*a_model(1).named_parameters()][1:]), 1)
    assert (two.version, two.score(PROMPTS[:1], [[8, 9]])[0].tolist()) == (0, before.tolist())
    (worker, _) = workers_of(psutil.Process())
    worker.kill()
    worker.wait(10)
    with pytest.raises(RunStopped, match="one of vLLM's 2 workers has ended"):
        two.score(PROMPTS, [[8, 9]] * len(PROMPTS))


def test_heads_that_do_not_divide_are_vllms_to_refuse_too() -> None:
    """Where nothing was checked before: the tiny preset has 2 key/value heads and 4 of queries."""
    with pytest.raises(UserError, match="vLLM did not start"):
        start(a_model(0), 3)
    assert psutil.wait_procs(workers_of(psutil.Process()), timeout=30)[1] == []


STARTED = """
import os, signal
import psutil
from tests.e2e.test_vllm_workers import a_model, start, workers_of

if __name__ == "__main__":
    engine = start(a_model(0), 2)
    assert len(engine.score([[5]], [[6, 7]])[0]) == 2
    workers = [child.pid for child in workers_of(psutil.Process())]
    maps = [line for pid in (os.getpid(), *workers) for line in open(f"/proc/{pid}/maps")]
    print(*workers, *{line.split()[5] for line in maps if "/dev/shm/" in line}, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_generator_leaves_no_worker_and_no_file_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", STARTED], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    first, second, *shared = done.stdout.splitlines()[-1].split()
    assert len(shared) >= 3  # a queue to the workers, and one back from each
    assert [path for path in shared if os.path.exists(path)] == []
    wait_until(lambda: ended([int(first), int(second)]), "both workers ended", 30)
    assert [path.name for path in tmp_path.iterdir() if "vllm" in path.name] == []


def test_a_run_with_two_workers_proves_each_weight_sync(tmp_path: Path) -> None:
    """As a Ray actor, beside a Learner of two FSDP2 ranks."""
    settings = [
        *(*SMALL, "steps=2", "engine.tensor_parallel=2"),
        *("placement.learner={ranks: 2, cpus: 0.5}", "learner.sharding=fsdp2"),
    ]
    (run,) = run_all(load_scenario("vllm_sync", settings), tmp_path)
    assert [value is not None and 0 < value < BOUND for value in mismatches(run)] == [True, True]
