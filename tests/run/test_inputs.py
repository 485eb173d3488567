"""A run goes on with what it began with: other data, templates, tokenizers, weights or rewards are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from harness.cli import main
from harness.core.checkpoints import begin, commit, newest_whole, write_file
from harness.core.errors import UserError
from harness.core.types import Prompt
from harness.learner.warm_start import initial_policy
from harness.loop.state_files import KeptBatch, read_files
from harness.models.chat import on_date
from harness.models.storage import load_tokenizer, save_policy
from harness.results import load_run
from harness.results.manifest import CHAT_DATE, MADE_OF, PROMPT_TEMPLATE, Input
from harness.results.segments import RECORDED
from harness.results.writer import KEPT_STEPS
from harness.run.continuation import find_resume, find_unfinished
from harness.run.inputs import InputsNow, check_inputs, inputs_of
from harness.run.policy import Policy
from harness.scenario.load import load_scenario
from tests.run.conftest import Caps
from tests.run.test_resume_run import go_on, run_with_copy, standing_in

DATED = (
    "{{ 'Today is ' + strftime_now('%d %b %Y') + '. ' }}"
    "{% for turn in messages %}[{{ turn.role }} says {{ turn.content }}]{% endfor %}"
)
REWARD = "def by_length(response, row):\n    return float(len(response) % 4) + row['bonus']\n"
JSONL = """
task: {type: jsonl, train: data/train.jsonl, validation: data/held_out.jsonl, chat_template: true,
       reward: [{function: "rewards_of_resume:by_length", takes: row}], reward_timeout_s: null}
"""
MATHS = "task: {type: maths, train: data/maths.jsonl, prompt: data/ask.txt, reward: question_only}\n"
REST = """
model: {type: folder, path: model, precision: float32, threads: 1}
engine: {precision: float32}
sampling: {max_tokens: 4}
steps: 4
rollout_batch_size: 4
group_size: 2
evaluation: {every: 4, prompts: 1}
checkpoint: {every: 2, keep_steps: [3]}
save_policy: false
profile: "off"
trackers: []
"""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change_rows(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = read_rows(path)
    change(rows)
    write_rows(path, rows)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a reward and a model, whose template writes today's date."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data").mkdir()
    (folder / "rewards_of_resume.py").write_text(REWARD)
    rows = [{"prompt": f"Write {number}", "answer": str(number), "bonus": number % 2} for number in range(6)]
    write_rows(folder / "data" / "train.jsonl", rows[:4])
    write_rows(folder / "data" / "held_out.jsonl", rows[4:])
    write_rows(folder / "data" / "maths.jsonl", [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in range(6)])
    (folder / "data" / "ask.txt").write_text("Q: {question}\n")
    model, tokenizer = initial_policy("tiny", 0)
    tokenizer.chat_template = DATED
    save_policy(model, tokenizer, folder / "model")
    (folder / "chat.yaml").write_text(JSONL + REST)
    (folder / "maths.yaml").write_text(MATHS + REST)
    return folder


@pytest.fixture(scope="module")
def left(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a kill behind a checkpoint has left of a run of each scenario."""
    out = tmp_path_factory.mktemp("left")
    with standing_in(project), on_date(date(2026, 1, 31)):
        return {name: run_with_copy(load_scenario(f"{name}.yaml"), out / name, 3)[1] for name in ("chat", "maths")}


@pytest.fixture
def here(project: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the project that a test may change, as the current folder."""
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    with standing_in(folder):
        yield folder


def other_template(here: Path) -> None:
    (here / "model" / "chat_template.jinja").write_text(DATED.replace("says", "said"))


def other_tokenizer(here: Path) -> None:
    file = here / "model" / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    file.write_text(json.dumps(content))


def other_weights(here: Path) -> None:
    file = here / "model" / "model.safetensors"
    weights = load_file(file)
    first = next(iter(weights))
    save_file(weights | {first: weights[first] * 1.5}, file, metadata={"format": "pt"})


def other_config(here: Path) -> None:
    file = here / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 0.5}))


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def in_data(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    return lambda here: change_rows(here / "data" / name, change)


CHANGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    # what is named, and how it becomes another; what of a prompt counts has a test of its own below
    "train_prompts": ("chat", in_data("train.jsonl", lambda rows: rows[1].update(answer="x"))),
    "train_prompts (4 rows) (3 rows)": ("chat", in_data("train.jsonl", lambda rows: rows.pop())),
    "validation_prompts": ("chat", in_data("held_out.jsonl", lambda rows: rows[0].update(answer="x"))),
    "chat_template": ("chat", other_template),
    "tokenizer": ("chat", other_tokenizer),
    "start_weights": ("chat", other_weights),
    "model_config": ("chat", other_config),
    "task.reward": ("chat", lambda here: edit(here / "rewards_of_resume.py", "% 4", "% 5")),
    "prompt_template": ("maths", lambda here: edit(here / "data" / "ask.txt", "Q:", "A:")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_does_not_go_on_with_other_inputs(
    what: str, left: dict[str, Path], here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, change = CHANGES[what]
    folder = Path(shutil.copytree(left[scenario], tmp_path / "a" / "run"))
    assert find_resume(folder, load_scenario(f"{scenario}.yaml")).checkpoint.step == 2  # it would go on
    change(here)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["run", f"{scenario}.yaml", "--resume", str(folder), "--quiet"]) == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    said, was = capsys.readouterr().err, load_run(folder).manifest.inputs
    name, *rows = what.split(" ", 1)
    (name,) = [each for each in was if each.startswith(name)]
    told = said.partition(name)[2].partition(";")[0]
    digests = re.findall(r"\b[0-9a-f]{64}\b", told)
    assert (digests[0], len(set(digests))) == (was[name]["sha256"], 2)
    assert not rows or re.findall(r"\(\d rows\)", told) == re.findall(r"\(\d rows\)", rows[0])
    assert len(was) == len([*MADE_OF, CHAT_DATE, "own"]) - (1 if scenario == "chat" else 3)


def test_auto_begins_anew_where_inputs_are_others_and_says_which(left: dict[str, Path], here: Path) -> None:
    shutil.copytree(left["chat"], here / "results" / "chat" / "a")
    assert find_unfinished(here / "results", load_scenario("chat.yaml"))[0] == here / "results" / "chat" / "a"
    other_weights(here)
    folder, why_not = find_unfinished(here / "results", load_scenario("chat.yaml"))
    assert folder is None
    assert "start_weights, whose SHA-256 was" in why_not


def test_a_moved_run_with_moved_data_goes_on_and_keeps_its_date(
    left: dict[str, Path], here: Path, tmp_path: Path
) -> None:
    """The data get another layout on disk, the weights another order, the tokenizer other white space."""
    folder = Path(shutil.copytree(left["chat"], tmp_path / "elsewhere" / "my run" / "20260101-000000"))
    (here / "data").rename(here / "moved")
    change_rows(here / "moved" / "train.jsonl", lambda rows: rows.__setitem__(0, dict(reversed(rows[0].items()))))
    (here / "model").rename(here / "moved" / "model")
    file = here / "moved" / "model" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7))
    file = here / "moved" / "model" / "model.safetensors"
    weights = load_file(file)
    save_file(dict(reversed(weights.items())), file, metadata={"format": "pt", "note": "saved again"})
    paths = ("task.train=moved/train.jsonl", "task.validation=moved/held_out.jsonl", "model.path=moved/model")
    with on_date(date(2030, 12, 24)):
        go_on(folder, load_scenario("chat.yaml", paths))
    run = load_run(folder)
    assert (run.status, [row.step for row in run.steps]) == ("completed", [0, 1, 2, 3])
    assert run.manifest.segments[0].was["model.path"] == "model"
    assert run.manifest.inputs[CHAT_DATE]["name"] == "2026-01-31"
    assert find_resume(folder, load_scenario("chat.yaml", (*paths, "steps=6"))).recorded.inputs == run.manifest.inputs
    last, tokenizer = read_files(folder / KEPT_STEPS / "step_3", KeptBatch), load_tokenizer(here / "moved" / "model")
    asked = [tokenizer.decode([int(token) for token in group.data.prompt_token_ids]) for group in last.groups]
    assert all(text.startswith("Today is 31 Jan 2026. [user says Write ") for text in asked)


def test_a_run_from_before_the_record_goes_on(left: dict[str, Path], here: Path, tmp_path: Path, capsys: Caps) -> None:
    folder = Path(shutil.copytree(left["chat"], tmp_path / "old" / "20260101-000000"))
    as_before_the_record(folder)
    change_rows(here / "data" / "train.jsonl", lambda rows: rows[0].update(answer="x"))
    with pytest.raises(UserError, match=r"task\.train \(was"):  # what a path holds is not known
        find_resume(folder, load_scenario("chat.yaml", ["task.train=data/held_out.jsonl", "task.validation=null"]))
    assert find_resume(folder, load_scenario("chat.yaml")).date == date.fromisoformat(started(folder)[:10])
    go_on(folder, load_scenario("chat.yaml"))
    assert capsys.readouterr().err.count("could not be compared") == 1
    assert load_run(folder).manifest.inputs["train_prompts"]["rows"] == 4  # of now
    edit(here / "rewards_of_resume.py", "% 4", "% 5")
    as_before_the_record(folder)
    with pytest.raises(UserError, match="rewards_of_resume:by_length, whose SHA-256 was"):
        find_resume(folder, load_scenario("chat.yaml", ["steps=8"]))


def started(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["started_at"])


def as_before_the_record(folder: Path) -> None:
    """Write manifest and checkpoint as they were before they had inputs."""
    manifest = json.loads((folder / "manifest.json").read_text())
    inputs = manifest.pop("inputs")
    functions = {name: each for name, each in inputs.items() if name.startswith("task.")}
    template = inputs.get(PROMPT_TEMPLATE)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"functions": functions, "prompt_template": template}))
    checkpoint, _ = newest_whole(folder / "checkpoints")
    assert checkpoint is not None
    recorded = json.loads((checkpoint.folder / RECORDED).read_text())
    del recorded["inputs"]
    draft = begin(folder / "checkpoints", checkpoint.step)
    files = []
    for name in checkpoint.files:
        content = (checkpoint.folder / name).read_bytes()
        files.append(write_file(draft, name, [json.dumps(recorded).encode() if name == RECORDED else content]))
    commit(draft, files, 1)


def test_a_checkpoint_has_the_inputs_too(left: dict[str, Path], here: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(left["maths"], tmp_path / "run" / "20260101-000000"))
    found = find_resume(folder, load_scenario("maths.yaml"))
    assert found.recorded.inputs == found.manifest.inputs
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"inputs": {}}))
    other_weights(here)
    with pytest.raises(UserError, match="start_weights"):
        find_resume(folder, load_scenario("maths.yaml"))


def test_prompts_of_any_values_have_one_digest_in_every_process() -> None:
    class Own:
        pass

    scenario, policy = load_scenario("quickstart", ["model.warm_start=false"]), Policy(None, None, None)

    def digest(*prompts: Prompt) -> str | None:
        task: Any = SimpleNamespace(train_prompts=prompts, validation_prompts=())
        return inputs_of(scenario, task, policy)["train_prompts"]["sha256"]

    def of_row(row: object) -> str | None:
        return digest(Prompt("a", "b", row={"row": row}))

    assert of_row(Own()) == of_row(Own())  # an address in memory is no part of it
    assert of_row({1: 2, "a": 3}) == of_row({1: 2, "a": 3})
    assert len({of_row(row) for row in (1, 2, "1", [1], {"1": 1}, None, {(1, 2): 3, "a": 1})}) == 7
    assert of_row({3, 1, 2}) == of_row({2, 3, 1})
    one, other, answer = Prompt("a", "b"), Prompt("c", "b"), Prompt("a", "d")
    assert len({digest(*each) for each in ((one,), (other,), (answer,), (one, other), (other, one))}) == 5


def test_only_what_computes_is_compared() -> None:
    scenario = load_scenario("quickstart", ["trackers=[]"])
    recorded: dict[str, Input] = {
        "train_prompts": InputsNow().of(scenario)["train_prompts"],
        "trackers[0]": {"sha256": "a" * 64, "name": "mine:Tracker"},
        "a later input": {"sha256": "b" * 64},
    }
    check_inputs(recorded, InputsNow(), scenario, Path("run"))
    with pytest.raises(UserError, match="train_prompts"):
        check_inputs(recorded | {"train_prompts": {"sha256": "c" * 64, "rows": 1}}, InputsNow(), scenario, Path("run"))
