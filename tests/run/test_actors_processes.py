"""What stands around an actor: its output in the run's log, another machine's clock, its environment."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.core.trace import Span, Stage, Tracer
from harness.run.actors.part import PartActor, ProcessSetup, arrival, calls_under_way, clock_offset_ns
from harness.run.actors.parts import environment_of
from harness.run.actors.session import ProcessLogs, process_environment
from harness.scenario.schema import Scenario


def test_lines_of_all_processes_come_once_and_whole(tmp_path: Path) -> None:
    logs = ProcessLogs(tmp_path)
    learner, generator = logs.file_for("learner"), logs.file_for("generator")
    assert learner is not None
    assert generator is not None
    assert [path.name for path in (learner, generator)] == ["0-learner.log", "1-generator.log"]
    learner.write_bytes(b"agent made\nhalf a li")
    generator.write_bytes("caf\u00e9 \xff\n".encode("latin-1"))
    assert logs.new_lines() == ["learner: agent made", "generator: caf\ufffd \ufffd"]
    assert logs.new_lines() == []
    with open(learner, "ab") as file:
        file.write(b"ne\nlast\n")
    assert logs.new_lines() == ["learner: half a line", "learner: last"]


def test_two_runs_in_one_folder_do_not_read_each_other(tmp_path: Path) -> None:
    first, second = ProcessLogs(tmp_path), ProcessLogs(tmp_path)
    one, other = first.file_for("learner"), second.file_for("learner")
    assert one is not None
    assert other is not None
    assert one != other
    one.write_text("of the first\n")
    assert second.new_lines() == []
    assert first.new_lines() == ["learner: of the first"]


def test_output_stays_with_ray_where_actors_may_be_elsewhere() -> None:
    logs = ProcessLogs(None)
    assert logs.file_for("learner") is None
    assert logs.new_lines() == []


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
    with pytest.raises(UserError) as refused:
        process.build(never)
    assert (
        refused.value.what
        == "generator1 was placed on a machine without the working folder (No such file or directory)"
    )
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


@pytest.mark.parametrize(
    ("ranks", "learner", "keeps"),
    [
        (1, {}, True),
        (2, {"sharding": "ddp"}, True),
        (2, {"sharding": "fsdp2"}, False),
        (2, {"sharding": "fsdp2", "mesh": {"tensor": 2}}, False),
        (2, {"sharding": "deepspeed"}, False),
    ],
)
def test_a_rank_that_holds_a_piece_of_the_model_gives_freed_memory_back(
    ranks: int, learner: dict[str, object], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]:
        monkeypatch.delenv(name)  # the user's own setting stands
    placement = {"placement": {"learner": {"ranks": ranks}}, "transport": {"type": "shared_memory"}}
    scenario = Scenario.model_validate({**placement, "learner": learner})
    of_learner = environment_of(scenario, "learner/1" if ranks > 1 else "learner", 1, "cpu")
    of_generator = environment_of(scenario, "generator", 1, "cpu")
    mapped, kept = (int(found["MALLOC_MMAP_THRESHOLD_"]) for found in (of_learner, of_generator))
    assert (mapped, kept) == (2**28 if keeps else 2**20, 2**28)
