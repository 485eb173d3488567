"""The run folder: what is in the files, when, and what happens where they cannot be written."""

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from threading import Barrier

import pytest

from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import ExampleRollout, Metric, Purpose
from harness.results import Manifest, RolloutRow, RunFolder, Scrubber, StepRow, experiment_name, store_metrics
from harness.results.anonymous import safe_name
from harness.results.writer import begin_experiment

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
MANIFEST = Manifest(scenario="quickstart", experiment="20261120-120000", started_at="2026-11-20T12:00:00.000Z")


@pytest.fixture
def create(tmp_path, scrubber):
    """Return a function that starts a run of ``quickstart`` at 12:00:00, at a time that stands at 12:01:30."""
    now = NOON + timedelta(seconds=90)
    with ExitStack() as opened:

        def start(root=tmp_path, variant=None):
            run = RunFolder.create(root, "quickstart", "20261120-120000", variant, scrubber=scrubber, clock=lambda: now)
            return opened.enter_context(run)

        yield start


def _step(step):
    return StepRow(step, step + 1, 1, 1, 1, {}, metrics=store_metrics({"loss": Metric(0.5, count=64)}))


def test_a_new_folder_holds_headers_and_no_rows_and_an_existing_one_is_never_overwritten(tmp_path, create):
    run = create()
    experiment = tmp_path / "quickstart" / "20261120-120000"
    assert run.folder == experiment
    files = {path.name: path.read_text() for path in run.folder.iterdir()}
    header = '{"kind":"header","schema":"harness.NAME","schema_version":1}\n'
    names = ("spans", "steps", "rollouts")
    assert files == {f"{name}.jsonl": header.replace("NAME", name) for name in names} | {"log.txt": ""}
    folders = [create(variant=variant).folder for variant in ("k1", "k4,seed=1")]  # arms lie side by side
    assert folders == [experiment / "k1", experiment / "k4,seed=1"]
    before = (run.folder / "steps.jsonl").read_bytes()
    with pytest.raises(UserError) as caught:
        create()
    assert (caught.value.where, (run.folder / "steps.jsonl").read_bytes()) == (str(run.folder), before)


def test_experiments_that_begin_in_the_same_second_keep_apart(tmp_path):
    together = Barrier(8)

    def begin(_):
        together.wait()
        return begin_experiment(tmp_path, "quickstart", None)

    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(begin, range(8)))
    assert len({name for _, name in begun}) == 8
    assert {run.folder for run, _ in begun} == {tmp_path / "quickstart" / name for _, name in begun}
    for run, _ in begun:
        run.close()


def test_rows_reach_the_disk_at_the_flush(create):
    run = create()
    run.append_spans([Span('the "lane"', Stage.UPDATE, 5, 1_000_000_007, 3, -1)])
    run.append(_step(0))
    rollout = ExampleRollout("Say \u2028hi", "hi \ud800", "hi", 1.0, 2, "stop", 4)
    run.append(RolloutRow.of(rollout, Purpose.EVALUATE))
    run.log("step 0 done; reading /home/ann/models/qwen on annbox")
    assert [len((run.folder / name).read_bytes().splitlines()) for name in ("spans.jsonl", "steps.jsonl")] == [1, 1]
    run.flush()
    spans, steps, rollouts = (
        [json.loads(line) for line in (run.folder / f"{name}.jsonl").read_text().splitlines()[1:]]
        for name in ("spans", "steps", "rollouts")
    )
    assert spans == [
        {"lane": 'the "lane"', "stage": "update", "start_ns": 5, "end_ns": 1000000007, "step": 3, "version": -1}
    ]
    row = {"kind": "step", "step": 0, "version": 1, "wall_s": 1, "elapsed_s": 1, "optimizer_steps": 1, "lanes": {}}
    assert steps == [row | {"metrics": {"loss": {"mean": 0.5, "count": 64}}}]
    row = {"kind": "rollout", "purpose": "evaluate", "version": 4, "prompt": "Say \u2028hi", "response": "hi \ud800"}
    assert rollouts == [row | {"ground_truth": "hi", "reward": 1.0, "num_tokens": 2, "finish_reason": "stop"}]
    line = "2026-11-20T12:01:30.000Z step 0 done; reading ~/models/qwen on <host>\n"
    assert (run.folder / "log.txt").read_text() == line


def test_finishing_says_how_it_ended_and_how_long_it_took(create):
    run = create()

    def manifest():
        return dict(json.loads((run.folder / "manifest.json").read_text()))

    run.write_manifest(MANIFEST)
    assert manifest()["status"] == "running"
    run.append(_step(0))
    run.finish("completed", None, {"final_reward": 0.6})
    expected = {"schema": "harness.manifest", "schema_version": 1, "status": "completed"}
    expected |= {"outcome": {"final_reward": 0.6}, "finished_at": "2026-11-20T12:01:30.000Z"}
    expected |= {"duration_s": 90.0}  # from 12:00:00
    assert {key: value for key, value in manifest().items() if key in expected} == expected
    assert len((run.folder / "steps.jsonl").read_text().splitlines()) == 2
    written = {"log.txt", "manifest.json", "rollouts.jsonl", "spans.jsonl", "steps.jsonl"}
    assert {path.name for path in run.folder.iterdir()} == written


def test_no_file_names_a_person_a_host_or_a_folder_of_theirs(make_run):
    error = "RuntimeError in /home/ann/harness/harness/run/experiment.py on annbox: /data/ann/weights.bin is gone, ann"
    run = make_run(
        status="failed",
        error=error,
        point={"model.path": "/home/ann/models/qwen"},
        settings="model: {path: /home/ann/models/qwen}\n",
    )
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["error"] == (
        "RuntimeError in ./harness/run/experiment.py on <host>: <path>/weights.bin is gone, <user>"
    )
    assert manifest["point"] == {"model.path": "~/models/qwen"}
    assert (run.folder / "scenario.resolved.yaml").read_text() == "model: {path: ~/models/qwen}\n"
    assert run.folder.name == "model.path=~-models-qwen"
    for path in run.folder.iterdir():
        text = path.read_text()
        assert not [word for word in ("/home", "/data", "annbox", "ann,") if word in text], path.name


def test_experiment_names_are_utc_and_free(tmp_path):
    one_hour_east = datetime(2026, 11, 20, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    names = []
    for _ in range(3):
        names.append(experiment_name(tmp_path, "quickstart", one_hour_east))
        (tmp_path / "quickstart" / names[-1]).mkdir(parents=True)
    assert names == ["20261120-120000", "20261120-120000-2", "20261120-120000-3"]


def test_a_results_folder_that_cannot_be_written_to_is_refused(tmp_path, create):
    (tmp_path / "results").write_text("not a folder")
    with pytest.raises(UserError, match=f"'{tmp_path}/results/quickstart/"):
        create(tmp_path / "results")
    if os.geteuid():  # root may write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="Permission denied"):
            create(tmp_path / "other")


@contextmanager
def _files_limited_to(size):
    """Have the system refuse to let any file grow beyond ``size`` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_and_leaves_whole_lines(create):
    run = create()
    run.append(_step(0))
    run.flush()
    whole = (run.folder / "steps.jsonl").read_bytes()
    run.append(_step(1))
    with _files_limited_to(len(whole) + 50), pytest.raises(UserError) as caught:
        run.flush()
    assert caught.value.what == f"cannot write results to '{run.folder}': File too large"
    assert caught.value.where == str(run.folder)
    assert (run.folder / "steps.jsonl").read_bytes() == whole
    run.append(_step(2))
    run.flush()  # there is room again
    steps = [json.loads(line).get("step") for line in (run.folder / "steps.jsonl").read_text().splitlines()]
    assert steps == [None, 0, 2]


def test_a_manifest_is_replaced_whole_or_not_at_all(create):
    run = create()
    run.write_manifest(MANIFEST)
    before = (run.folder / "manifest.json").read_bytes()
    with _files_limited_to(100), pytest.raises(UserError, match="cannot write results"):
        run.finish("failed", "out of disk")
    assert (run.folder / "manifest.json").read_bytes() == before
    assert not list(run.folder.glob(".*"))


# ---- nothing saved names a person, a host or a folder outside the project

ANN = Scrubber(home="/home/ann", cwd="/home/ann/harness", host="annbox.example.org", user="ann")


def test_text_loses_paths_and_names():
    for text, expected in (
        ("no such file: /home/ann/harness/scenarios/x.yaml", "no such file: ./scenarios/x.yaml"),
        ("in /home/ann/harness", "in ."),
        ("'/home/ann/models/qwen' has no weights", "'~/models/qwen' has no weights"),
        ("/home/annabel/x is not ann's", "<path>/x is not <user>'s"),
        ('File "/usr/lib/python3.11/asyncio/tasks.py", line 3', 'File "<path>/tasks.py", line 3'),
        ("path=/data/sets/math.jsonl,", "path=<path>/math.jsonl,"),
        ("lost annbox.example.org and annbox", "lost <host> and <host>"),
        ("node (IP: 192.0.2.2, ID: 79e6) at 10.0.0.12:6379.", "node (IP: <address>, ID: 79e6) at <address>:6379."),
        ("ann's annual plan", "<user>'s annual plan"),
        *((text, text) for text in (
            "127.0.0.1:8265, 0.0.0.0, 1.2.3 and v1.2.3.4 stay", "https://example.org/a/b stays",
            "reward/total at 3 tokens/s, and/or 1/2", "./results/a and ~/x/y stay",
        )),
    ):  # fmt: skip
        assert ANN.text(text) == expected
    root = Scrubber(home="/root", cwd="/", host="localhost", user="root")  # which name nobody
    text = "the root of the seeds, at localhost, in /root/x"
    assert root.text(text) == text.replace("/root/x", "~/x")


def test_paths_alone_keep_words_that_look_like_the_user():
    # a scenario must stay the same scenario, whatever its user is called
    assert Scrubber("/home/small", "/work", "box", "small").paths("preset: small\npath: /home/small/m\n") == (
        "preset: small\npath: ~/m\n"
    )


def test_names_become_one_folder_name():
    for name, expected in (
        ("k4,seed=1", "k4,seed=1"),
        ("task.train=data/my set.jsonl", "task.train=data-my-set.jsonl"),
        ("../..", "..-.."),
        ("..", "_.."),
        ("", "_"),
        ("größe", "gr-e"),
    ):
        assert safe_name(name) == expected
