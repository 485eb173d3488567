"""What stands around actors: where they are put, their output, clock and environment, their deaths, and Ray's start."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from ray._private import services
from ray.cluster_utils import Cluster
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayError, RaySystemError, RayTaskError

from harness.core.errors import RunStopped, UserError
from harness.core.marked_processes import MARKS, end_marked, with_mark
from harness.core.trace import Span, Stage, Tracer
from harness.run.actors.deaths import cause_of_death, ends_the_run, own_error
from harness.run.actors.part import PartActor, ProcessSetup, Replacements, arrival, calls_under_way, clock_offset_ns
from harness.run.actors.parts import environment_of
from harness.run.actors.placement import Placement, could_fit
from harness.run.actors.session import ProcessLogs, RaySession, process_environment
from harness.run.needs import Layout, ResourceRequest, layouts
from harness.scenario.schema import Scenario

# ---- deaths, in the words of Ray 2.60

PLACE = "\tclass_name: A\n\tactor_id: 9f03\n\tpid: 25228\n\tnamespace: 4620\n\tip: 192.0.2.7\n"
DEAD = f"The actor died unexpectedly before finishing this task.\n{PLACE}The actor is dead because "
EXIT = f"{DEAD}its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
CAUSES = "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ..."
LOW = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (ID: f7cb) was "
    "22.80GB used / 23.54GB limit (0.968564)\nOOM kill reason: Memory usage exceeded"
)
NOT_SET_UP = (
    "The actor died because of an error raised in its creation task, \x1b[36mray::B.__init__()\x1b[39m (pid=2)\n"
    '  File "deaths.py", line 19, in __init__\n    raise ValueError("bad thing")\nValueError: bad thing'
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RayActorError("9f03", f"{EXIT}Worker unexpectedly exits with a connection error code 2. {CAUSES}"), "killed"),
        (RayActorError("9f03", f"{EXIT}Worker exits unexpectedly. Worker exits with an exit code 3."), "exit code 3"),
        (RayActorError("9f03", f"{DEAD}it was killed by `ray.kill`."), "Ray ended it"),
        (RayActorError("9f03", NOT_SET_UP), "ValueError: bad thing"),
        (RayActorError("9f03", f"{DEAD}its node has died."), "its node has died"),
        (RayActorError("9f03", "The actor experienced an error before finishing this task."), "RayActorError"),
        (OutOfMemoryError(LOW), "22.80GB of 23.54GB"),
    ],
    ids=["killed", "sys.exit", "ray.kill", "constructor", "another reason", "no reason", "memory"],
)
def test_a_death_is_told_in_a_few_words(error: RayError, words: str) -> None:
    said = cause_of_death(error)
    assert words in said
    assert len(said) < 90
    assert "\n" not in said


def own(cause: Exception) -> BaseException:
    """What becomes of an error that Ray raises in the driver when a method has raised ``cause``."""
    stack = f'Traceback (most recent call last):\n  File "part.py", line 7, in update\n{type(cause).__name__}: {cause}'
    return own_error(RayTaskError("update", stack, cause).as_instanceof_cause())


def test_errors_of_a_method_come_back_as_ours_were_and_others_with_their_stack() -> None:
    for ours in (RunStopped("the loss is nan"), UserError("what", "where", "fix"), torch.OutOfMemoryError("full")):
        assert own(ours) is ours
    bug, gone = own(TypeError("no such operand")), own(RaySystemError("The transfer failed for object 00ff.\nmore"))
    assert isinstance(bug, RunStopped)
    assert isinstance(gone, RunStopped)
    first, *stack = str(bug).splitlines()
    assert first.endswith("TypeError: no such operand")
    assert '  File "part.py", line 7, in update' in stack
    (line,) = str(gone).splitlines()
    assert line.endswith("The transfer failed for object 00ff.")


def test_what_ray_raises_in_a_block_ends_the_run() -> None:
    for error, words in ((ActorDiedError(), "ActorDiedError"), (RaySystemError("first\nlast"), "last")):
        with pytest.raises(RunStopped, match=f"^no connection: {words}$"), ends_the_run("no connection"):
            raise error


def test_one_replacement_too_many_ends_the_run() -> None:
    replacements = Replacements(2)
    replacements.count("generator", "killed")
    replacements.count("scorer", "killed")
    with pytest.raises(RunStopped, match=r"generator died \(crashed\), and faults\.max_replacements 2 "):
        replacements.count("generator", "crashed")
    assert replacements.made == 2


# ---- places

ONE, BIG = {"CPU": 1.0}, {"CPU": 3.0}
GPU = {"CPU": 1.0, "GPU": 0.5}
TWO_SMALL = [{"CPU": 2.0, "memory": 1e9}, {"CPU": 2.0}]
ONE_LARGE = [{"CPU": 4.0, "GPU": 1.0}]


@pytest.mark.parametrize(
    ("bundles", "strategy", "nodes", "fits"),
    [
        ([ONE, ONE], "PACK", ONE_LARGE, True),
        ([ONE] * 4, "SPREAD", TWO_SMALL, True),
        ([ONE] * 5, "PACK", TWO_SMALL, False),  # more than all nodes have
        ([BIG], "PACK", TWO_SMALL, False),  # more than any node has
        ([ONE] * 3, "STRICT_PACK", TWO_SMALL, False),  # no node has it all
        ([ONE] * 3, "STRICT_PACK", [*TWO_SMALL, *ONE_LARGE], True),
        ([ONE, ONE], "STRICT_SPREAD", TWO_SMALL, True),
        ([ONE, ONE], "STRICT_SPREAD", ONE_LARGE, False),
        ([GPU, GPU], "PACK", ONE_LARGE, True),
        ([GPU] * 3, "PACK", ONE_LARGE, False),  # three halves of a GPU
        ([GPU], "PACK", TWO_SMALL, False),
    ],
)
def test_what_could_fit(
    bundles: list[dict[str, float]], strategy: str, nodes: list[dict[str, float]], fits: bool
) -> None:
    assert could_fit(bundles, strategy, nodes) is fits


REQUESTS = [ResourceRequest(f"learner/{rank}", 2.0, 1.0) for rank in range(3)] + [
    ResourceRequest("generator", 1.0, 0.5),
    ResourceRequest("scorer", 0.0, 0.0),
]


def test_ranks_stand_on_nodes_of_their_own_or_each_part_has_a_bundle() -> None:
    """Ray refuses a bundle with a zero: a part without a GPU names none, one that asks for nothing has none."""
    uneven, rest = layouts(REQUESTS, False, "PACK", (2, 1))
    of_nodes = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}]
    assert uneven == Layout(of_nodes, "STRICT_SPREAD", {"learner/0": 0, "learner/1": 0, "learner/2": 1})
    assert rest == Layout([{"CPU": 1.0, "GPU": 0.5}], "PACK", {"generator": 0})
    bundles = [{"CPU": 2.0, "GPU": 1.0}] * 3 + [{"CPU": 1.0, "GPU": 0.5}]
    lanes = {"learner/0": 0, "learner/1": 1, "learner/2": 2, "generator": 3}
    assert layouts(REQUESTS, False, "SPREAD") == [Layout(bundles, "SPREAD", lanes)]
    assert ResourceRequest("learner", 1.5, 0.0).bundle == {"CPU": 1.5}


def test_colocated_parts_share_what_all_ranks_ask_for_and_those_on_gpus_have_one_each() -> None:
    lanes = {"learner/0": 0, "learner/1": 0, "learner/2": 0, "generator": 0, "scorer": 0}
    on_cpus = [replace(request, gpus=0.0) for request in REQUESTS]
    assert layouts(on_cpus, True, "PACK") == [Layout([{"CPU": 6.0}], "PACK", lanes)]
    alone = [ResourceRequest("learner", 2.0, 1.0), ResourceRequest("generator", 1.0, 0.5)]
    assert layouts(alone, True, "PACK") == [Layout([{"CPU": 2.0, "GPU": 1.0}], "PACK", {"learner": 0, "generator": 0})]
    generators = [ResourceRequest(f"generator{number}", 3.0, 1.0) for number in range(4)]
    dealt = {f"generator{number}": number % 3 for number in range(4)}
    lanes = {"learner/0": 0, "learner/1": 1, "learner/2": 2, **dealt, "scorer": 0}
    made = layouts([*REQUESTS[:3], *generators, REQUESTS[-1]], True, "PACK")
    assert made == [Layout([{"CPU": 3.0, "GPU": 1.0}] * 3, "PACK", lanes)]


@pytest.mark.slow
def test_ray_puts_colocated_ranks_on_different_gpus() -> None:
    """GPUs by name alone: Ray counts as many as it is told."""
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False)
    try:
        ranks = [ResourceRequest(f"learner/{rank}", 1.0, 1.0) for rank in range(2)]
        placement = Placement(
            [*ranks, ResourceRequest("generator", 1.0, 1.0), ResourceRequest("scorer", 0.0, 0.0)], True, "PACK"
        )
        of_gpus = ray.remote(GpusOf)
        actors = [
            of_gpus.options(**placement.options(lane)).remote() for lane in ("learner/0", "learner/1", "generator")
        ]
        first, second, generator = ray.get([actor.ids.remote() for actor in actors])
        assert (len(first), len(second)) == (1, 1)
        assert first != second
        assert generator == first
        placement.close()
    finally:
        ray.shutdown()


class GpusOf:
    def ids(self) -> list[int]:
        return list(ray.get_gpu_ids())


@pytest.mark.slow
def test_uneven_nodes_of_a_real_cluster() -> None:
    """Nodes of one machine: each has a raylet of its own."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=4)
        cluster.add_node(num_cpus=4)
        ray.init(address=cluster.address)
        ranks = [ResourceRequest(f"learner/{rank}", 2.0, 0.0) for rank in range(3)]
        placement = Placement([*ranks, ResourceRequest("generator", 1.0, 0.0)], False, "PACK", (2, 1))
        node_of = ray.remote(lambda: ray.get_runtime_context().get_node_id())
        first, second, third = ray.get([node_of.options(**placement.options(rank.lane)).remote() for rank in ranks])
        assert first == second != third
        with pytest.raises(UserError):
            Placement(ranks, False, "PACK", (3,))  # no node has 6 CPUs
        placement.close()
    finally:
        ray.shutdown()
        cluster.shutdown()


# ---- processes


def test_lines_of_all_processes_come_once_and_whole_and_of_no_other_run(tmp_path: Path) -> None:
    logs, others, elsewhere = ProcessLogs(tmp_path), ProcessLogs(tmp_path), ProcessLogs(None)
    learner, generator, other = logs.file_for("learner"), logs.file_for("generator"), others.file_for("learner")
    assert learner is not None
    assert generator is not None
    assert ([learner.name, generator.name], other != learner) == (["0-learner.log", "1-generator.log"], True)
    learner.write_bytes(b"agent made\nhalf a li")
    generator.write_bytes("caf\u00e9 \xff\n".encode("latin-1"))
    assert others.new_lines() == []
    assert logs.new_lines() == ["learner: agent made", "generator: caf\ufffd \ufffd"]
    assert logs.new_lines() == []
    with open(learner, "ab") as file:
        file.write(b"ne\nlast\n")
    assert logs.new_lines() == ["learner: half a line", "learner: last"]
    assert (elsewhere.file_for("learner"), elsewhere.new_lines()) == (None, [])  # output stays with Ray


def test_the_clock_of_another_machine_is_read_at_the_shortest_round_trip() -> None:
    """Three readings with round trips of 100, 20 and 60: the second counts, taken half-way between 220 and 240."""
    ours: Iterator[int] = iter([100, 200, 220, 240, 300, 360])
    far: Iterator[int] = iter([5_000, 1_230, 9_000])
    assert clock_offset_ns(lambda: next(far), readings=3, now_ns=lambda: next(ours)) == 1_230 - 230


def test_an_actor_keeps_its_connections_on_one_interface_and_its_threads_to_itself() -> None:
    environment = process_environment(3, "lo")
    assert {environment[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"3"}
    interfaces = ("UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert {environment[name] for name in interfaces} == {"lo"}


def test_a_machine_without_the_working_folder_is_named(tmp_path: Path) -> None:
    def never(tracer: Tracer) -> object:
        raise AssertionError("nothing is made where the folder is missing")

    process = PartActor(ProcessSetup("generator1", 1, None, tmp_path / "project", ()))
    with pytest.raises(UserError, match="generator1 was placed on a machine without the working folder") as refused:
        process.build(never)
    assert refused.value.where == str(tmp_path / "project")


def test_a_call_waits_at_both_ends_of_the_work_and_not_in_between() -> None:
    work = [Span("learner", Stage.PREPARE_BATCH, 150, 160, 3, 3), Span("learner", Stage.UPDATE, 162, 200, 3, 3)]
    assert list(calls_under_way("learner", work, 100, 230)) == [
        Span("learner", Stage.WAIT_FOR_CALL, 100, 150, 3, 3),
        Span("learner", Stage.WAIT_FOR_CALL, 200, 230, 3, 3),
    ]


def test_a_call_without_work_is_all_on_its_way_and_tensors_sent_along_are_none() -> None:
    assert list(calls_under_way("learner", [], 100, 230)) == [Span("learner", Stage.WAIT_FOR_CALL, 100, 230, -1, -1)]
    received = [Span("generator", stage, 180, 190, 4, 4) for stage in (Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD)]
    way = arrival(received, 100)
    assert way == Span("generator", Stage.WEIGHT_TRANSFER, 100, 180, 4, 4)  # begins with the call
    assert list(calls_under_way("generator", [way, *received], 100, 190)) == []


def test_a_rank_that_holds_a_piece_of_the_model_gives_freed_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]:
        monkeypatch.delenv(name)  # the user's own setting stands
    pieces: dict[str, object] = {"sharding": "fsdp2", "mesh": {"tensor": 2}}
    for ranks, learner, threshold in (
        (1, {}, 2**28),
        (2, {"sharding": "ddp"}, 2**28),
        (2, {"sharding": "fsdp2"}, 2**20),
        (2, pieces, 2**20),
        (2, {"sharding": "deepspeed"}, 2**20),
    ):
        placement = {"placement": {"learner": {"ranks": ranks}}, "transport": {"type": "shared_memory"}}
        scenario = Scenario.model_validate({**placement, "learner": learner})
        lanes = ("learner/1" if ranks > 1 else "learner", "generator")
        mapped = [int(environment_of(scenario, lane, 1, "cpu")["MALLOC_MMAP_THRESHOLD_"]) for lane in lanes]
        assert mapped == [threshold, 2**28], learner


# ---- a start of Ray that is interrupted or fails leaves nothing: no process, no folder, no patch, no mark


class Start:
    """Stands for ``ray.init``: starts a process as Ray starts its own, and then ends as it is told."""

    def __init__(self, end: BaseException) -> None:
        self.end, self.processes, self.groups = end, list[subprocess.Popen[bytes]](), list[int]()

    def __call__(self, **options: Any) -> None:
        assert options["address"] == "local"
        self.processes.append(services.ConsolePopen(["sleep", "600"]))
        self.groups.append(os.getsid(self.processes[-1].pid))
        if isinstance(self.end, KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # never comes to this
        raise self.end


@pytest.fixture(name="folders")
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.delenv(MARKS, raising=False)
    return tmp_path


@pytest.mark.parametrize(("end", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("full"), UserError)])
def test_a_start_that_ends_early_leaves_nothing(
    end: BaseException, raised: type[BaseException], folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, start = services.ConsolePopen, Start(end)
    monkeypatch.setattr(ray, "init", start)
    handlers = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(raised):
            RaySession(cpus=1)
    finally:
        signal.signal(signal.SIGTERM, handlers)
    (process,) = start.processes
    assert start.groups == [process.pid] != [os.getsid(0)]  # no signals of the command's group reach Ray's processes
    assert process.wait(30) == -signal.SIGKILL
    assert (list(folders.iterdir()), services.ConsolePopen, os.environ.get(MARKS)) == ([], popen, None)


def test_a_process_that_has_just_been_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen once on a busy machine: between its old program and its new one, a process shows no environment."""
    environment, mark = with_mark(os.environ)
    process = subprocess.Popen(["sleep", "600"], env=environment)
    read, looks = psutil.Process.environ, list[int]()

    def environ(self: psutil.Process) -> dict[str, str]:
        looks.append(self.pid)
        return {} if self.pid == process.pid and looks.count(self.pid) < 4 else read(self)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    end_marked(mark)
    assert process.wait(30) == -signal.SIGKILL
