"""``python -m harness evaluate`` and ``dataset`` with a real model and the native engine."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.cli import main
from harness.learner.warm_start import initial_policy
from harness.models.storage import save_policy
from tests.e2e.conftest import finish, start, wait_until

PROMPTS = 12
WAITING = """
import time
from pathlib import Path

def score(response, ground_truth):
    while ground_truth == "5" and not Path("go").exists():
        Path("held").touch()
        time.sleep(0.01)
    parts = {"format_reward": float(len(response) % 2), "answer_reward": float("e" in response)}
    return {"reward": min(parts.values()), **parts}
"""
"""A reward function that holds up prompt 5, in the third batch, until there is a file ``go``."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained model, prompts, and a reward function."""
    made = tmp_path_factory.mktemp("evaluate")
    save_policy(*initial_policy("tiny", 0), made / "tiny")
    rows = [{"prompt": f"Say {number}.", "answer": str(number)} for number in range(PROMPTS)]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (made / "waiting.py").write_text(WAITING)
    return made


class Done(NamedTuple):
    """What a command did."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def harness(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return what carries out a command in the folder, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> Done:
        code = main(arguments)
        return Done(code, *capsys.readouterr())

    return run


def evaluate(out: str, *more: str) -> list[str]:
    fixed = ["evaluate", "--model", "tiny", "--data", "rows.jsonl", "--reward", "waiting:score", "--max-tokens", "24"]
    return [*fixed, "--batch", "2", "-o", out, *more]


def responses(folder: Path) -> bytes:
    return (folder / "responses.jsonl").read_bytes()


def untimed(folder: Path) -> dict:
    """The results without what depends on the machine's speed."""
    results = json.loads((folder / "evaluation.json").read_text())["results"]
    timed = ("generate_s", "grade_s", "tokens_per_s", "prompts_per_s")
    return {**results, "metrics": {name: value for name, value in results["metrics"].items() if name not in timed}}


def stopped_in_the_third_batch(folder: Path, out: str, number: signal.Signals, code: int) -> str:
    """Send a signal once two batches are done and the third is held up; return what was said."""
    process = start(*evaluate(out), cwd=folder)
    wait_until((folder / "held").exists, "the third batch", process=process, pause_s=0.01)
    process.send_signal(number)
    said = finish(process, code)[1]
    (folder / "held").unlink()
    return said


@pytest.mark.slow
def test_killed_and_interrupted_it_ends_as_if_nothing_had_happened(folder: Path, harness: Callable[..., Done]) -> None:
    stopped_in_the_third_batch(folder, "killed", signal.SIGKILL, -signal.SIGKILL)
    assert responses(folder / "killed").count(b"\n") == 4
    assert json.loads((folder / "killed" / "evaluation.json").read_text())["status"] == "incomplete"
    with (folder / "killed" / "responses.jsonl").open("ab") as stream:
        stream.write(b'{"prompt_id": 4, "prom')  # as where it is killed while it writes

    said = stopped_in_the_third_batch(folder, "killed", signal.SIGINT, 130)
    assert "Traceback" not in said
    assert "after 4 of 12 prompts in killed; 1 lines of an unfinished batch were dropped" in said
    assert "4 of 12 prompts are done and kept in killed" in said

    (folder / "go").touch()
    again, whole = harness(*evaluate("killed")), harness(*evaluate("whole"))
    assert (again.code, whole.code) == (0, 0)
    assert responses(folder / "killed") == responses(folder / "whole")
    assert untimed(folder / "killed") == untimed(folder / "whole")
    assert untimed(folder / "whole")["prompts"] == 12
    assert "prompts: 12 of 12" in whole.stderr
    assert "tiny on rows.jsonl: 12 prompts" in whole.stdout


def test_what_is_done_is_shown_again_and_not_done_again(folder: Path, harness: Callable[..., Done]) -> None:
    short = evaluate("short", "--limit", "4")
    first = harness(*short)
    second = harness(*short, "--json")
    assert second.stderr == "all 4 prompts are in short already\n"
    assert json.loads(second.stdout) == json.loads((folder / "short" / "evaluation.json").read_text())
    assert harness(*short).stdout == first.stdout
    third = harness(*short, "--quiet")
    assert (third.stderr, len(third.stdout.splitlines())) == ("", 1)

    other = harness(*evaluate("short", "--temperature", "0.5", "--limit", "6"))
    assert (other.code, other.stdout) == (2, "")
    assert "other settings: prompts (4 there, 6 now); temperature (1.0 there, 0.5 now)" in other.stderr


def test_nothing_kept_names_a_folder_of_this_machine(folder: Path, harness: Callable[..., Done]) -> None:
    done = harness(*evaluate(str(folder / "absolute"), "--model", str(folder / "tiny"), "--limit", "2"))
    assert done.code == 0
    kept = "".join(path.read_text() for path in (folder / "absolute").iterdir())
    assert str(folder) not in kept
    settings = json.loads((folder / "absolute" / "evaluation.json").read_text())["settings"]
    assert (settings["model"], settings["data"], settings["max_tokens"]) == ("tiny", "rows.jsonl", 24)


BAD = {
    "evaluate": [
        (["--model", "none"], "none", ""),
        (["--model", "preset:huge"], "the presets are tiny, small", ""),
        (["--max-tokens", "9999"], "9999", "set --max-tokens to at most"),
        (["--temperature", "-1"], "temperature is -1.0", "where: --temperature\n"),
        (["--temperature", "nan"], "temperature", "must be numbers"),
        (["--top-p", "0"], "top_p is 0.0, must be above 0", ""),
        (["--batch", "0"], "--batch: '0'", "at least 1"),
        (["--samples", "x"], "--samples: 'x'", "at least 1"),
        (["--data", "none.jsonl"], "none.jsonl", ""),
        (["--device", "cpu"], "'--device' is no longer offered", "CUDA_VISIBLE_DEVICES"),
        (["--format", "json"], "'--format' is no longer offered", "--json"),
    ],
    "dataset": [
        (["--keywords", "1"], "keywords_per_prompt is 1; it must be 2 to 8", "where: --keywords\n"),
        (["--max-tokens", "3"], "--max-tokens is 3, must be at least 4", "where: --max-tokens\n"),
        (["--temperature", "-1"], "temperature is -1.0", "where: --temperature\n"),
        (["--chat"], "no chat template", "where: --chat\n"),
        (["-o", "."], "must be new", "where: .\n"),
        (["--top-p", "0.9"], "'--top-p' is no longer offered", "--temperature"),
    ],
}
"""Arguments, and two parts of what is said of them."""


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(folder: Path, harness: Callable[..., Done], name: str) -> None:
    keywords = ["dataset", "keywords", "--model", "tiny", "-n", "5", "-o", "bad"]
    wrong = []
    for arguments, *parts in BAD[name]:
        done = harness(*(evaluate("bad") if name == "evaluate" else keywords), *arguments)
        said = (done.code, done.stdout, "Traceback" in done.stderr) == (2, "", False)
        if not said or not all(part in done.stderr for part in parts) or (folder / "bad").exists():
            wrong.append((arguments, done))
    assert wrong == []


def test_a_context_that_shortens_responses_is_said(folder: Path, harness: Callable[..., Done]) -> None:
    rows = [{"prompt": "Say this. " * 30, "answer": "1"}]
    (folder / "long.jsonl").write_text(json.dumps(rows[0]) + "\n")
    asked = ["--model", "tiny", "--data", "long.jsonl", "--reward", "waiting:score"]
    done = harness("evaluate", *asked, "-o", "long")
    tokens = json.loads((folder / "long" / "evaluation.json").read_text())["settings"]["max_tokens"]
    assert f"a response may have {tokens} tokens: more do not fit the context of 256\n" in done.stderr
    assert "a response may have" not in harness("evaluate", *asked, "-o", "long").stderr


def test_a_model_that_writes_no_sentences_makes_no_data_set(folder: Path, harness: Callable[..., Done]) -> None:
    short = ["--keywords", "8", "--max-tokens", "4"]  # no answer has room for all of them
    asked = ["dataset", "keywords", "--model", "tiny", *short, "-n", "5", "-o", "keywords"]
    done = harness(*asked)
    assert (done.code, done.stdout) == (1, "")
    assert "stopped: 0 of 4 train rows were found after 256 prompts" in done.stderr
    assert not (folder / "keywords").exists()
