"""Real runs of the `tiny` preset through the command line: everything is what a user gets, only smaller.

They have the packages of the extra ``train`` alone, which promises real runs in one process.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import finish, only_run, start, wait_until
from tests.run_folders import loop_accounts

TINY = [
    "--set=model.preset=tiny",
    "--set=model.warm_start=false",
    "--set=rollout_batch_size=32",
    "--set=evaluation.prompts=16",
    "--set=evaluation.every=2",
    "--set=model.threads=1",
]


@pytest.fixture(scope="session")
def environment(
    packages_of: Callable[[str], dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The user's environment, with a cache folder of the tests' own."""
    cache = tmp_path_factory.mktemp("cache")
    return packages_of("train") | {"XDG_CACHE_HOME": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def quickstart(out: Path, environment: dict[str, str], *settings: str, **more: Any) -> subprocess.Popen[str]:
    return start("run", "quickstart", *settings, f"--out={out}", environment=environment, **more)


@pytest.fixture(scope="session")
def finished(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One quickstart on `tiny`; the results folder and what was printed."""
    out = tmp_path_factory.mktemp("finished")
    return out, finish(quickstart(out, environment, *TINY, "--set=steps=4"))[0]


def test_the_run_is_complete(finished: tuple[Path, str]) -> None:
    run = only_run(finished[0])
    assert run.status == "completed"
    assert [row.step for row in run.steps] == [0, 1, 2, 3]
    assert [row.version for row in run.evaluations] == [0, 2, 4]
    assert run.manifest.parameters is not None
    assert run.manifest.end_tokens == {"1": "<|eos|>"}
    for row in run.steps:
        assert row.metric("loss") is not None
        length = row.metric("response_length")
        assert length is not None
        assert (length.count, 1 <= length.value <= 32) == (32, True)
    accounts = loop_accounts(run)
    assert set(accounts) == {"generator", "scorer", "learner"}
    for account in accounts.values():
        assert sum(account.stages_ns.values()) + account.unattributed_ns == account.wall_ns > 0
        assert account.unattributed_ns >= 0
    weights = {path.name for path in (run.folder / "policy").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= weights
    spans = [span for span in run.spans() if not span.stage.is_wait]
    order = [span.stage.value for span in sorted(spans, key=lambda span: span.start_ns)]
    sync = ["weight_publish", "weight_transfer", "weight_load"]
    step, evaluated = ["generate", "score", "prepare_batch", "update", *sync], ["evaluate"] * 2  # Generator and Scorer
    assert order == ["startup"] * 3 + sync + evaluated + 2 * (2 * step + evaluated) + ["save_policy"]


@pytest.mark.slow
def test_the_same_seed_on_as_many_threads_repeats_everything_but_times(
    finished: tuple[Path, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Bit for bit, with responses of unlike lengths, whose rows leave the batch one after the other."""
    finish(quickstart(tmp_path, environment, *TINY, "--set=steps=4"))
    one, other = only_run(finished[0]), only_run(tmp_path)
    for name in ("groups.jsonl", "rollouts.jsonl", "policy/model.safetensors"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes(), name
    assert [_untimed(row.metrics) for row in other.steps] == [_untimed(row.metrics) for row in one.steps]
    assert {"loss", "grad_norm", "reward/total", "token_entropy"} <= _untimed(one.steps[0].metrics).keys()
    lengths = {length for shard in one.groups() for group in shard.lengths for length in group}
    assert len(lengths) > 3


def _untimed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    timed = ("perf/", "idle_ratio/", "probe/", "sync/")
    return {name: value for name, value in metrics.items() if not name.startswith(timed)}


def test_the_output_names_stages_and_rewards_and_no_file_a_user_host_or_absolute_path(
    finished: tuple[Path, str],
) -> None:
    out, printed = finished
    assert [word for word in ("generate", "update", "validation", "tokens") if word not in printed] == []
    assert min(picture.stat().st_size for picture in out.rglob("pictures/*.png")) > 10_000
    private = {f"{Path.home()}/", str(out), os.uname().nodename} - {"localhost"}
    for path in only_run(out).folder.glob("*.*"):
        if path.suffix in (".json", ".jsonl", ".yaml", ".txt"):
            text = path.read_text()
            assert [each for each in private if each in text] == [], path


@pytest.mark.slow
def test_the_saved_policy_can_be_trained_further(
    finished: tuple[Path, str], environment: dict[str, str], tmp_path: Path
) -> None:
    policy = only_run(finished[0]).folder / "policy"
    more = ["--set=steps=1", "--set=save_policy=false", "--set=model.type=folder", f"--set=model.path={policy}"]
    finish(quickstart(tmp_path, environment, *TINY[2:], *more))
    first, last = only_run(tmp_path).evaluations[0], only_run(finished[0]).evaluations[-1]
    rewards = [row.metrics["validation/reward"]["mean"] for row in (first, last)]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-9)  # the same weights, prompts and seed


@contextmanager
def endless_run(environment: dict[str, str], out: Path, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    process = quickstart(out, environment, *TINY, "--set=steps=100000", prefix=prefix)
    try:
        yield process
    finally:
        process.kill()


IGNORED = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""A shell without job control starts background jobs like this, with SIGINT ignored."""


@pytest.mark.parametrize(
    ("number", "prefix"),
    [
        pytest.param(signal.SIGINT, (), id="Ctrl-C"),
        pytest.param(signal.SIGTERM, IGNORED, id="SIGTERM in the background", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_stays_readable(
    number: signal.Signals, prefix: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    with endless_run(environment, tmp_path, prefix) as process:
        wait_until(lambda: steps_in(tmp_path) >= 3, "three steps", process=process)
        process.send_signal(number)
        errors = finish(process, 130, 300.0)[1]
    assert "what was measured so far is in" in errors
    assert "Traceback" not in errors
    run = only_run(tmp_path)
    assert (run.status, len(run.steps) >= 3) == ("interrupted", True)


def test_sigterm_before_the_run_has_begun_is_ctrl_c_too(environment: dict[str, str], tmp_path: Path) -> None:
    """As soon as the command hears it: while it imports, or loads the scenario."""
    with endless_run(environment, tmp_path) as process:
        wait_until(lambda: hears(process.pid, signal.SIGTERM), "SIGTERM is heard", process=process, pause_s=0.001)
        process.send_signal(signal.SIGTERM)
        errors = finish(process, 130, 300.0)[1]
    assert errors.splitlines()[-1].startswith("interrupted")


def hears(pid: int, number: signal.Signals) -> bool:
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (number - 1) & 1)


def steps_in(folder: Path) -> int:
    """Training steps that are on disk."""
    lines = [line for file in folder.rglob("steps.jsonl") for line in file.read_text().splitlines()]
    return sum(json.loads(line)["kind"] == "step" for line in lines)
