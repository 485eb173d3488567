"""What a recorded program leaves: a run like any other, whatever becomes of the program."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from harness import record
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.record import recording
from harness.record.format import EVENTS, RECORDING
from harness.results import load_run

MS = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by itself by nothing: ``clock(n)`` moves it by n milliseconds."""
    now = [5 * MS]
    monkeypatch.setattr(recording, "_now", lambda: now[0])

    def move(milliseconds):
        now[0] += milliseconds * MS

    return move


def spans_of(folder):
    return [(s.lane, s.stage.value, s.start_ns // MS, s.end_ns // MS, s.step) for s in load_run(folder).spans()]


def test_each_instant_counts_for_the_span_that_began_last(tmp_path, clock):
    """Two steps: a span within another, one of a name of the user's own, a rest that nobody owns."""
    with record.run(tmp_path / "a", arm="slow", trainer="mine"):
        clock(100)  # start-up
        for step in (0, 1):
            with record.step(step):
                with record.span("generate", tokens=7, note="fine"):
                    clock(30)
                with record.span("update"):
                    clock(5)
                    with record.span("my stage"):
                        clock(10)
                    clock(2)
                clock(3)
                record.count(tokens=40, rollouts=4)
                record.count(tokens=40, rollouts=4)
                record.metrics({"reward": step / 2, "loss": 9})
                record.metrics({"loss": 1.5})
            clock(50)  # between two steps: in the row of the next one
    run = load_run(tmp_path / "a")
    assert (run.status, run.manifest.arm, run.manifest.startup_s) == ("completed", "slow", 0.1)
    assert [(row.step, row.wall_s, row.elapsed_s) for row in run.steps] == [(0, 0.05, 0.05), (1, 0.1, 0.15)]
    assert run.steps[0].lanes == {"learner": {"generate": 0.03, "update": 0.007, "my stage": 0.01}}
    assert (run.tail.wall_s, run.tail.elapsed_s) == (0, 0.15)  # leaving the program is no part of training
    metrics = {name: run.steps[1].metric(name) for name in ("reward", "loss", "response_tokens", "response_length")}
    values = {name: (each.value, each.reduction, each.count) for name, each in metrics.items()}
    assert values == {
        "reward": (0.5, "mean", 1), "loss": (1.5, "mean", 1), "response_tokens": (80, "sum", 1),
        "response_length": (10, "mean", 8),
    }  # fmt: skip
    assert spans_of(tmp_path / "a")[:4] == [
        ("learner", "startup", 0, 100, -1), ("learner", "generate", 100, 130, 0),
        ("learner", "my stage", 135, 145, 0), ("learner", "update", 130, 147, 0),
    ]  # fmt: skip


def test_without_the_end_of_a_step_it_lasts_until_the_next_begins(tmp_path, clock):
    with record.run(tmp_path / "a"):
        for step in (3, 4):
            record.step(step)
            clock(20)
        clock(7)
    assert [(row.step, row.wall_s) for row in load_run(tmp_path / "a").steps] == [(3, 0.02), (4, 0.027)]


def test_threads_and_processes_are_lanes_on_one_clock(tmp_path):
    for method in ("fork", "spawn"):
        folder = tmp_path / method
        with record.run(folder):
            record.step(0)
            thread = threading.Thread(target=_generate)
            process = multiprocessing.get_context(method).Process(target=_score, name="scorer")
            with record.span("update"):
                for each in (thread, process):
                    each.start()
                for each in (thread, process):
                    each.join()
        found = {(span.lane, span.stage): span for span in load_run(folder).spans() if span.stage is not Stage.STARTUP}
        assert found.keys() == {("learner", "update"), ("generator0", "generate"), ("scorer", "score")}
        outer = found["learner", "update"]
        assert all(outer.start_ns <= span.start_ns <= span.end_ns <= outer.end_ns for span in found.values())


def _generate():
    record.lane("generator0")
    with record.span("generate"):
        pass


def _score():
    with record.span("score"):
        pass


def test_steps_are_those_of_rank_0_and_what_is_counted_of_all(tmp_path):
    """Rank 1 begins, ends and is named first; it counts its own rollouts, and its metrics are not the run's."""
    with record.run(tmp_path / "a"):
        for rank in (1, 0):
            process = multiprocessing.get_context("fork").Process(target=_rank, args=(rank,))
            process.start()
            process.join()
    run = load_run(tmp_path / "a")
    assert Counter((span.lane, span.stage.value) for span in run.spans()) == {
        (f"learner/{rank}", stage): spans for rank in (0, 1) for stage, spans in (("startup", 1), ("update", 2))
    }
    for row in run.steps:
        names = ("rank", "response_tokens", "counted/rollouts", "response_length")
        assert [row.metric(name).value for name in names] == [0, 8 + 9, 2, 8.5]
    updates = [span for span in run.spans() if (span.lane, span.stage) == ("learner/0", Stage.UPDATE)]
    for row, span in zip(run.steps, updates, strict=True):
        end_s = run.manifest.startup_s + row.elapsed_s
        assert end_s - row.wall_s <= span.start_ns / 1e9 + 1e-3
        assert span.end_ns / 1e9 <= end_s + 1e-3


def _rank(rank):
    record.lane(f"learner/{rank}")
    for step in range(2):
        with record.step(step), record.span("update"):
            record.count(tokens=8 + rank, rollouts=1)
            record.metrics({"rank": rank})


def test_many_threads_lose_no_line_while_the_file_grows(tmp_path):
    """Eight threads, one pair after another, so that later ones get the ids of ended ones."""
    lanes, spans, interval = 8, 2000, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with record.run(tmp_path / "a"):
            record.step(0)
            for first in range(0, lanes, 2):
                threads = [
                    threading.Thread(target=_many, args=(spans,), name=f"worker {first + each}") for each in (0, 1)
                ]
                for each in threads:
                    each.start()
                for each in threads:
                    each.join()
    finally:
        sys.setswitchinterval(interval)
    run = load_run(tmp_path / "a")
    of_lane = Counter(span.lane for span in run.spans() if span.stage.value == "work")
    assert of_lane == {f"worker {number}": spans for number in range(lanes)}
    assert run.manifest.outcome["recorded"]["damaged"] == 0


def _many(spans):
    for number in range(spans):
        with record.span("work", number=number):
            pass


def test_a_signal_while_the_file_grows_neither_hangs_nor_loses_a_line(tmp_path, monkeypatch):
    """Its handler records too, in the midst of the growing, and grows the file itself."""
    take = os.posix_fallocate

    def and_record(*args):
        monkeypatch.setattr(os, "posix_fallocate", take)
        for _ in range(2000):
            with record.span("score"):
                pass
        take(*args)

    with record.run(tmp_path / "a"):
        record.step(0)
        monkeypatch.setattr(os, "posix_fallocate", and_record)
        _many(2000)
    found = Counter(span.stage.value for span in load_run(tmp_path / "a").spans())
    assert (found["work"], found["score"]) == (2000, 2000)


KILLED = """
import sys
from harness import record
with record.run(sys.argv[1], arm="a"):
    for step in range(10**6):
        record.step(step)
        with record.span("update", number=step):
            with record.span("generate"):
                pass
        print(step, flush=True)
"""


def test_a_kill_loses_the_open_spans_and_nothing_else(tmp_path):
    """Twenty programs, each killed after a number of steps that it has told of; the first ones before they tell any."""
    for number in range(20):
        folder = tmp_path / str(number)
        program = subprocess.Popen([sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE, text=True)
        told = -1
        for _ in range(1 + 37 * number):
            told = int(program.stdout.readline())
        program.send_signal(signal.SIGKILL)
        with program:
            told = max([told, *map(int, program.stdout.read().split())])
        assert program.returncode == -signal.SIGKILL
        run = load_run(folder)
        assert (run.status, run.manifest.error) == ("failed", "the program was killed")
        whole = [span.step for span in run.spans() if span.stage is Stage.UPDATE]
        assert whole in ([*range(told + 1)], [*range(told + 2)])  # one more where it died before it told of it
        assert len(run.steps) - len(whole) in (0, 1)


def test_how_a_program_ends_is_told(tmp_path):
    for error, status in ((ValueError, "failed"), (KeyboardInterrupt, "interrupted")):
        with pytest.raises(error):
            _fail(tmp_path / status, error)
        manifest = load_run(tmp_path / status).manifest
        assert (manifest.status, manifest.error) == (status, error.__name__)


def _fail(folder, error):
    with record.run(folder):
        record.step(0)
        raise error("a secret")


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path, monkeypatch, capsys):
    with record.run(tmp_path / "a"):
        record.step(0)
        monkeypatch.setattr(os, "posix_fallocate", _no_space)
        for _ in count():
            with record.span("update", text="x" * 100):
                pass
            if recording._current._file.lost:
                break
    assert "No space" in capsys.readouterr().err
    assert len(load_run(tmp_path / "a").steps) == 1


def _no_space(*_):
    raise OSError(28, "No space left on device")


def test_nothing_is_written_that_names_a_person_or_opens_a_door(tmp_path, monkeypatch):
    home, host = os.path.expanduser("~"), os.uname().nodename
    monkeypatch.setenv("MY_TOKEN", "hf_" + "Q" * 34)
    monkeypatch.setattr(
        sys, "argv", ["/srv/people/train.py", "--lr=1e-6", "--key", "sk-" + "Z" * 40, "trainer.n=8", "a b"]
    )
    secrets = ["hf_" + "Q" * 34, "sk-" + "Z" * 40, f"{home}/models/x", f"node.{host}.internal", "a@b.org", "10.1.2.3"]
    with record.run(tmp_path / "a"):
        record.step(0)
        for secret in secrets:
            with record.span(secret, value=secret, where=Path(secret)):
                pass
        record.metrics({"token hf_" + "Q" * 34: 1})
        values = {
            "rows": 3,
            "name": "bf16",
            "share": 0.25,
            "none": float("nan"),
            "big": float("inf"),
            "many": [secrets],
        }
        with record.span("update", on=True, **values):
            pass
        record.metrics({"loss": float("nan"), "reward": 2})
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert [secret for secret in (*secrets, "/srv/people") if secret in written] == []
    facts = json.loads((tmp_path / "a" / RECORDING).read_text())
    assert facts["arguments"] == ["--lr", "--key", "trainer.n"]
    assert "MY_TOKEN" in facts["environment"]
    assert '{"on":true,"rows":3,"name":"bf16","share":0.25,"none":null,"big":null,"many":"list"}' in written
    run = load_run(tmp_path / "a")  # what is no number of JSON's costs no other
    assert (run.manifest.outcome["recorded"]["damaged"], run.steps[0].metric("reward").value) == (0, 2)
    assert Stage.UPDATE in {span.stage for span in run.spans()}


def test_outside_of_a_recording_calls_do_nothing(tmp_path):
    record.step(0)
    record.count(tokens=1)
    record.metrics({"a": 1})
    record.lane("x")
    with record.span("update") as span:
        assert span is not None
    assert record.span("twice")(lambda value: 2 * value)(4) == 8


def test_what_cannot_be_recorded_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(record.RecordingError, match="never overwritten"), record.run(tmp_path / "full"):
        pass
    with pytest.raises(record.RecordingError, match="cannot record into"), record.run(tmp_path / "full" / "x" / "y"):
        pass
    with record.run(tmp_path / "a"):
        with pytest.raises(record.RecordingError, match="recorded already"), record.run(tmp_path / "b"):
            pass
        record.step(4)
        for wrong in (4, 3, -1, 5.5, "6"):
            with pytest.raises(record.RecordingError, match="above the one before, 4"):
                record.step(wrong)
        with pytest.raises(UserError, match="still being recorded"):
            load_run(tmp_path / "a")
    with record.run(tmp_path / "none"), record.span("update"):
        pass
    with pytest.raises(UserError, match="no training step"):
        load_run(tmp_path / "none")


def test_damaged_events_are_left_out_and_counted(tmp_path, clock):
    with record.run(tmp_path / "a"):
        record.step(0)
        with record.span("update"):
            clock(10)
    (file,) = (tmp_path / "a" / EVENTS).iterdir()
    sound = file.read_text().splitlines()
    damage = [
        *("nonsense", "7", '["span","learner"]', '["span","learner","update",9,1,0]', '["span","l","u",1e400,2,0]'),
        *('["span","learner","update",99999999999999999999,2,0]', '["metrics",0,{"a":"b"}]', '["step"]'),
        *('["profiled"]', '["counters",9,"host",{"load_1min":"x"},{}]', '["counters",1,"host",{},{}]', '["counters"]'),
    ]
    file.write_text("\n".join([*sound[:2], *damage, *sound[2:]]) + '\n["span","learner","cut')
    run = load_run(tmp_path / "a")
    assert run.manifest.outcome["recorded"]["damaged"] == len(damage)
    assert [span for span in run.spans() if span.stage is Stage.UPDATE] == [
        Span("learner", Stage.UPDATE, 0, 10 * MS, 0, -1)
    ]


def test_it_takes_the_standard_library_alone():
    loaded = "import sys; before = set(sys.modules); import harness.record; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", loaded], capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names <= sys.stdlib_module_names | {"harness"}
    assert {name for name in done.stdout.split() if name.startswith("harness.")} == {
        "harness.record", "harness.record.event_file", "harness.record.format", "harness.record.private",
        "harness.record.recording",
    }  # fmt: skip
