"""Timers of a trainer's own, as functions and as classes, with ``with`` and ``async with``: spans and steps."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType

import pytest

from harness import record
from harness.record.format import EVENTS
from harness.record.seams import Seam, missing, shims, wrap_all
from harness.record.timers import Names, begin_step, decorator, entered, left, logged, telling, timer
from harness.results import load_run

NAMES = Names({"gen": "generate", "*_offload": "offload", "main": ""}, step="step", number="global_step")
STEPPING = Names({"rollout": "generate"}, step="rollout", number="global_step")


@contextmanager
def timed(key, name):
    yield name


@asynccontextmanager
async def timed_async(name):
    yield name


class Timer:
    def __init__(self, message):
        self.message = message

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return False


def module_with(**members):
    module = ModuleType("shipped")
    module.__dict__.update(members)
    return module


def events_of(folder, *kinds):
    lines = [line for path in (folder / EVENTS).iterdir() for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event[0] in kinds]


def told(folder):
    """What was written of spans and steps: a span's name and step, a step's number."""
    found = events_of(folder, "span", "step", "end of step")
    return [(event[2], event[5]) if event[0] == "span" else (event[0], event[1]) for event in found]


class Loop:
    global_step = 6

    def run(self, make):
        for self.global_step in (7, 9):
            with make("step"):
                with make("gen"):
                    pass
                with make("mine"), make("actor_offload"), make("main"):
                    pass

    async def run_async(self, make):
        for self.global_step in (7, 9):
            async with make("step"):
                async with make("gen"):
                    await asyncio.sleep(0)
                async with make("mine"), make("actor_offload"), make("main"):
                    await asyncio.sleep(0)


ALL = [
    *(("step", 7), ("generate", 7), ("offload", 7), ("mine", 7), ("end of step", 7)),
    *(("step", 9), ("generate", 9), ("offload", 9), ("mine", 9), ("end of step", 9)),
]


def test_functions_and_classes_tell_the_same(tmp_path):
    shipped = module_with(timed=timed, timed_async=timed_async, Timer=type("Timer", (Timer,), dict(Timer.__dict__)))
    pairs = {"enter": entered(NAMES, "message"), "exit": left}
    seams = [Seam("timed", timer(NAMES, "name")), Seam("timed_async", timer(NAMES, "name"))]
    seams += [Seam(f"Timer.__{a}{edge}__", wrap) for a in ("", "a") for edge, wrap in pairs.items()]
    wrap_all(shipped, dict.fromkeys(seams, "theirs"))
    ways = {
        "function": lambda: Loop().run(lambda name: shipped.timed("key", name=name)),
        "class": lambda: Loop().run(shipped.Timer),
        "async function": lambda: asyncio.run(Loop().run_async(shipped.timed_async)),
        "async class": lambda: asyncio.run(Loop().run_async(shipped.Timer)),
    }
    for name, way in ways.items():
        with record.run(tmp_path / name):
            way()
        assert told(tmp_path / name) == ALL, name


def test_a_timer_that_is_left_by_an_error_is_recorded_and_raises_it(tmp_path):
    shipped = module_with(timed=timed)
    wrap_all(shipped, {Seam("timed", timer(NAMES, "name")): "theirs"})

    def fail():
        with shipped.timed("key", "step"), shipped.timed("key", "gen"):
            raise KeyError("theirs")

    with record.run(tmp_path / "a"), pytest.raises(KeyError, match="theirs"):
        fail()
    assert told(tmp_path / "a") == [("step", 0), ("generate", 0), ("end of step", 0)]


def test_a_step_whose_timer_is_a_stage_lasts_until_the_next(tmp_path):
    shipped = module_with(timed=timed)
    wrap_all(shipped, {Seam("timed", timer(STEPPING, "name")): "theirs"})

    def train():
        for global_step in range(2):
            batch = [global_step]
            with shipped.timed("key", "rollout"):
                pass
            assert batch == [global_step]  # looking for the number leaves the variables as they are

    with record.run(tmp_path / "a"):
        train()
    assert told(tmp_path / "a") == [("step", 0), ("generate", 0), ("step", 1), ("generate", 1)]


global_step = 4


def test_at_the_top_of_a_program_its_variables_stay(tmp_path):
    """Where the timer is used outside of any function, the frame's variables are the module's own."""
    shipped = module_with(timed=timed)
    wrap_all(shipped, {Seam("timed", timer(NAMES, "name")): "theirs"})
    program = compile("with timed('key', 'step'): kept = 5", "program", "exec")
    variables = {"timed": shipped.timed, "global_step": 4}
    with record.run(tmp_path / "a"):
        exec(program, variables)
    assert (variables["kept"], variables["global_step"]) == (5, 4)
    assert told(tmp_path / "a") == [("step", 4), ("end of step", 4)]


def test_numbers_of_steps(tmp_path):
    """None counts on; the same again goes on with the step; a lower one, of a second training, counts on too."""
    with record.run(tmp_path / "a"):
        for number in (None, 5, 5, None, 2, "7"):
            with begin_step(number):
                pass
    steps = [event[1] for event in events_of(tmp_path / "a", "step")]
    assert steps == [0, 5, 6, 7, 8]
    assert [event[1] for event in events_of(tmp_path / "a", "end of step")] == [0, 5, 5, 6, 7, 8]
    with begin_step(3):  # nothing is being recorded
        pass


def test_the_loop_is_the_learner_and_a_rank_of_several_its_own(tmp_path, monkeypatch):
    for name, rank, lane in (("one", None, "learner"), ("several", "3", "learner/3")):
        if rank:
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("WORLD_SIZE", "4")
        with record.run(tmp_path / name, lane="TaskRunner"), begin_step(0), record.span("update"):
            pass
        assert [event[1] for event in events_of(tmp_path / name, "span")] == [lane]


def test_decorated_functions_and_async_ones(tmp_path):
    shipped = module_with(scope=lambda function: function)
    wrap_all(shipped, {Seam("scope", decorator(NAMES)): "theirs"})

    @shipped.scope
    async def gen():
        with record.span("inner"):
            await asyncio.sleep(0)
        return 3

    @shipped.scope
    def main():
        return asyncio.run(gen())

    with record.run(tmp_path / "a"):
        record.step(0)
        assert main() == 3
    assert told(tmp_path / "a") == [("step", 0), ("inner", 0), ("generate", 0)]  # and none of main


def test_what_is_logged_and_counted(tmp_path):
    """Figures that are numbers, under long names too; a function whose arguments are others is told by name."""

    def log(self, data, step):
        return data

    async def train(batch):
        return len(batch)

    shipped = module_with(log=log, train=train, other=train)
    counts = Seam("train", telling(lambda batch: record.count(rollouts=len(batch), tokens=sum(batch))))
    figures = Seam("log", logged("data", lambda data: record.count(seen=data["reward"])))
    unlike = Seam("other", telling(lambda batch: batch.rows))
    wrap_all(shipped, dict.fromkeys((counts, figures, unlike), "theirs"))
    with record.run(tmp_path / "a"), record.step(0):
        assert asyncio.run(shipped.train([2, 3])) == 2
        assert asyncio.run(shipped.other([2, 3])) == 2
        data = {"reward": 1.5, "response_length_non_aborted/clip_ratio": 2, "bad": float("nan"), "text": "no"}
        assert shipped.log(None, data, step=0) is data
    (row,) = load_run(tmp_path / "a").steps
    names = ("reward", "response_length_non_aborted/clip_ratio", "response_tokens", "counted/rollouts", "counted/seen")
    assert [row.metric(name).value for name in names] == [1.5, 2, 5, 2, 1.5]
    assert row.metric("bad") is None
    assert [event[2] for event in events_of(tmp_path / "a", "seam") if not event[3]] == [
        f"{train.__module__}.{train.__qualname__}: arguments"
    ]


def test_a_place_is_missing_once_none_of_those_instead_of_it_is_there(tmp_path):
    seams = {f"{module}.{seam.place}": seam for module, own in shims()["trinity"].seams.items() for seam in own}
    assert missing("trinity", dict.fromkeys(seams, True)) == []
    monitors = [place for place in seams if ".monitor." in place]
    with_one = {place: place not in monitors[1:] for place in seams}
    assert missing("trinity", with_one) == []
    assert missing("trinity", dict.fromkeys(seams, True) | dict.fromkeys(monitors, False)) == monitors
    never_imported = {place: True for place in seams if place not in monitors}
    assert missing("trinity", never_imported) == monitors
    assert missing("", never_imported) == []  # no trainer was named, so none can lack what it never imported
    wrap_all(shipped := module_with(), {Seam("timed", timer(NAMES, "name")): "theirs"})
    assert not hasattr(shipped, "timed")


def test_an_argument_of_another_name_is_a_missing_place(tmp_path):
    shipped = module_with(timed=timed)
    with record.run(tmp_path / "a"):
        wrap_all(shipped, {Seam("timed", timer(NAMES, "label")): "theirs"})
    assert shipped.timed is timed
    assert [event[1:] for event in events_of(tmp_path / "a", "seam")] == [["theirs", "shipped.timed", False]]
