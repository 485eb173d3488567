"""Whether plans fit, what is said where they do not, and what runs really held beside their plan."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.compare.experiment import gather
from harness.core.errors import UserError
from harness.core.named_files import SCENARIOS
from harness.core.trace import RecordingTracer, Stage
from harness.models.config import PRESETS
from harness.probes.memory import DeviceFigure, Peak, StageMemory
from harness.report.tables import outcome_table
from harness.results import Run
from harness.run.experiment import run_scenario
from harness.run.memory.check import check_memory, memory_line, memory_table, planned_bytes, planned_of_lanes
from harness.run.memory.fit import FreeMemory, Shortage, free_main_memory, gib, needs, require_fit, shortages
from harness.run.memory.generator import CUDA_BYTES
from harness.run.memory.plan import PROCESS_BYTES, make_plan, object_store_bytes, stored_weights
from harness.run.memory.table import MemoryPlan
from harness.run.parts import RunningParts
from harness.run.preflight import check_before_start, free_memory
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from tests.run.conftest import QUIET, Caps, Load, run, runs_in, unseen
from tests.run.test_memory_plan import ACTORS, DDP, FSDP, GIB, LONG, NIXL, OWN, PADDED, QWEN, P, plan, scenario, sizes
from tests.stand_ins.fake_nvml import NOT_SUPPORTED, FakeDevice, FakeNvml, Memory, NVMLError
from tests.stand_ins.simulated_parts import SimulatedParts, build_simulated_parts

CHECKPOINTED = "gradient_checkpointing: true"
SMALL = "model: {type: preset, preset: small}\n"


def refused(plans: list[MemoryPlan], free: FreeMemory) -> tuple[str, str]:
    with pytest.raises(UserError) as error:
        require_fit(plans, free)
    return error.value.what, str(error.value.fix)


def small(load: Load, text: str, *, has_gpu: bool = False) -> MemoryPlan:
    return make_plan(load(SMALL + text), PRESETS["small"], has_gpu=has_gpu)


def test_the_refusal_says_need_free_largest_part_and_what_changes_it() -> None:
    what, fix = refused([plan(LONG, PADDED)], FreeMemory(60 * GIB))
    assert "60.0 GiB are free; the largest part is 366.1 GiB for activations" in what  # 28 x 64 x 1071 x 204,800 bytes
    assert fix == (
        "raise gradient_accumulation_steps (now 1), or set model.gradient_checkpointing to true, or lower "
        "sampling.max_tokens (now 1024), or take a smaller model or a machine with more memory"
    )
    text = LONG.replace("max_batch: 64", "max_batch: 1") + "gradient_accumulation_steps: 64\n"
    what, fix = refused([plan(text, PADDED, CHECKPOINTED)], FreeMemory(GIB))
    assert "for optimizer" in what  # settings that cannot change further are not named
    assert fix == "set model.dtype to bfloat16, or take a smaller model or a machine with more memory"
    what, fix = refused([plan(DDP)], FreeMemory(needs([plan(FSDP)])["main memory"]))
    assert "for optimizer" in what
    assert fix.startswith("set learner.sharding to fsdp2, or set model.dtype to bfloat16")


def test_the_part_is_the_largest_in_the_memory_that_is_short() -> None:
    """Main memory holds the Generator alone: more microbatches would save on the GPU, where there is free."""
    text = LONG.replace("1024", "64") + "gradient_accumulation_steps: 16\n" + NIXL
    one = plan(text + "placement: {learner: {gpus: 1}}\n", PADDED, has_gpu=True)
    what, fix = refused([one], FreeMemory(one.total("cpu") - 2**20, (200 * GIB,)))
    assert "largest part is 5.8 GiB for received weights" in what
    assert "gradient_accumulation_steps" not in fix


def test_parts_share_a_gpu_by_what_they_reserve() -> None:
    def shared(share: str, colocated: str = "colocated: false, ") -> list[MemoryPlan]:
        of = f"placement: {{device: cuda, {colocated}generator: {{gpus: {share}}}, learner: {{gpus: {share}}}}}\n"
        return [plan(LONG + "gradient_accumulation_steps: 16\n" + NIXL + of, PADDED, CHECKPOINTED, has_gpu=True)]

    halves, whole = shared("0.5"), shared("1")
    learner, generator = (each.peak for each in halves[0].processes[:2])
    both, fits_each = learner + generator, FreeMemory(64 * GIB, (learner, generator))
    assert sizes(halves[0], "learner")["CUDA"] == CUDA_BYTES
    assert shortages(whole, fits_each) == shortages(halves, FreeMemory(64 * GIB, (both,))) == []
    assert shortages(halves, fits_each) == [Shortage("GPU 0", both, learner)]
    assert shortages(halves, FreeMemory(64 * GIB, (both - 1,))) == [Shortage("GPU 0", both, both - 1)]
    assert shortages(whole, FreeMemory(64 * GIB, (learner,))) == [Shortage("GPU 1", generator, 0)]
    # Ray gives each a part of one and the same
    assert shortages(shared("1", ""), fits_each) == [Shortage("GPU 0", both, learner)]


def test_a_learner_on_a_gpu_and_a_generator_on_a_cpu_are_planned_each_where_it_is() -> None:
    text = LONG + "gradient_accumulation_steps: 64\n" + NIXL + "placement: {learner: {gpus: 1}}\n"
    made = plan(text, PADDED, has_gpu=True)
    devices = {process.name: process.device for process in made.processes}
    assert devices == {"learner": "cuda"} | dict.fromkeys(
        ("generator", "scorer", "ray and driver", "host of the learner"), "cpu"
    )
    learner, generator, *others = made.processes
    assert (sizes(learner)["optimizer"], sizes(generator)["engine weights"]) == (2 * 4 * P, 2 * P)
    main, peak = generator.peak + sum(process.peak for process in others), learner.peak
    assert shortages([made], FreeMemory(main, (peak,))) == []
    assert shortages([made], FreeMemory(main - 1, (peak,))) == [Shortage("main memory", main, main - 1)]
    assert shortages([made], FreeMemory(main, (peak - 1,))) == [Shortage("GPU 0", peak, peak - 1)]
    assert shortages([made], FreeMemory(main, (None,))) == []  # how much is free there is not known


def test_arms_side_by_side_add_up_but_for_the_libraries(load: Load) -> None:
    one = small(load, "steps: 2\n")
    need = 2 * one.total("cpu") - PROCESS_BYTES
    assert not shortages([one] * 2, FreeMemory(need))
    assert shortages([one] * 2, FreeMemory(need - 1))
    on_gpu = small(load, "placement: {device: cuda}\nsave_policy: false\n", has_gpu=True)
    (run, host) = on_gpu.processes
    assert not shortages([on_gpu] * 2, FreeMemory(host.peak, (2 * run.peak,)))  # the first GPU of one process
    short = FreeMemory(host.peak, (2 * run.peak - 1, 80 * GIB))
    assert shortages([on_gpu] * 2, short) == [Shortage("GPU 0", 2 * run.peak, 2 * run.peak - 1)]


def test_arms_that_fit_one_by_one_are_told_to_run_so(load: Load) -> None:
    one = small(load, ACTORS)
    need = one.total("cpu")
    _, fix = refused([one] * 5, FreeMemory(need))
    assert "set interleaving to run" in fix
    assert f"the largest needs about {gib(need)}" in fix
    assert "set interleaving to run" not in refused([one] * 5, FreeMemory(GIB))[1]


# ---- before a run


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The setting of a folder of the public model with a window, without weights: none are read."""
    (tmp_path / "qwen").mkdir()
    config = QWEN | {"use_sliding_window": True, "sliding_window": 4096}
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(config))
    return f"model: {{type: folder, path: {tmp_path / 'qwen'}}}\n"


def test_the_line_before_a_run_and_the_table(load: Load, model: str, tmp_path: Path) -> None:
    text = model + LONG.replace("1024", "64") + "gradient_accumulation_steps: 64\n"
    line = check_memory([load(text)], FreeMemory(64 * GIB))
    # optimizer 8 x 1,543,714,304 = 12,349,714,432 bytes, policy and gradients half of that
    assert line.startswith("memory plan: about ")
    assert line.endswith("of 64.0 GiB free (largest: optimizer 11.5 GiB, policy 5.8 GiB, gradients 5.8 GiB)")
    head, process, *lines = memory_table(load(model + LONG), has_gpu=False)
    assert re.findall(r"[\d,]*\d", head) == ["1,543,714,304", "28", "48"]
    assert process == "run (main memory)"
    assert "  optimizer                          11.5 GiB" in lines
    assert "  gradients                           5.8 GiB  while training" in lines
    most, together, largest = lines[-3:]
    assert most.startswith("  at most ")
    assert together.startswith("together: main memory 4")
    assert "activations, 366.1 GiB; for less, raise gradient_accumulation_steps (now 1)" in largest
    with pytest.raises(UserError, match=r"of main memory, and 60\.0 GiB are free"):
        check_before_start([expand(load(model + LONG))], free=FreeMemory(60 * GIB))
    (tmp_path / "qwen" / "config.json").write_text('{"model_type": "mamba"}')
    assert "of no family" in check_memory([load(text)], FreeMemory(1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model: {type: folder, path: Qwen/Qwen2.5-Math-1.5B}\n", "Qwen/Qwen2.5-Math-1.5B is not on this machine"),
        ("extends: transport_sweep\n", "transport sweep"),
        ("model: {type: paced}\nengine: {type: paced}\n", "model.type paced"),
    ],
)
def test_what_cannot_be_planned_is_said_and_let_through(load: Load, text: str, reason: str) -> None:
    said = check_memory([load(text)], FreeMemory(1))
    assert said.startswith("memory plan: none, ")
    assert reason in said


def test_no_shipped_scenario_is_refused_on_a_machine_of_24_gib() -> None:
    """12 GiB are in use, arms that take turns stand side by side, and scenarios that ask for GPUs have two."""
    for path in SCENARIOS.files():
        shipped = load_scenario(path)
        if shipped.transport_sweep is not None:
            continue  # it trains nothing
        variants = [variant for variant in expand(shipped) if not (variant.block or variant.scenario.command)]
        points = [list(group) for _, group in itertools.groupby(variants, key=lambda variant: variant.point)]
        for gpus in ((), (80 * GIB, 80 * GIB)):
            lines = list[str]()
            check_before_start(points, lines.append, FreeMemory(12 * GIB, gpus))
            same = any("have the same settings" in line for line in lines)
            assert same == (path.stem == "noise"), path.stem  # a copy on purpose
            rest = [line for line in lines if not line.startswith(("bfloat16", "float16", "note: "))]  # by the CPU
            assert {line.partition(":")[0] for line in rest} == {"memory plan"}, path.stem


def test_what_is_compared_is_the_free_memory_of_the_visible_gpus(load: Load) -> None:
    assert free_memory().main > 0
    nvml = FakeNvml([FakeDevice(script={"memory": [Memory(80 * GIB, 74 * GIB)]}), FakeDevice()])
    assert free_memory(nvml).gpus == (6 * GIB, 70 * GIB)
    free = free_memory(FakeNvml([FakeDevice(script={"memory": [NVMLError(NOT_SUPPORTED)]})]))
    assert (free.gpus, free.has_gpu) == ((None,), True)  # is planned for and bounds nothing
    planned = planned_bytes([load("steps: 1\n")], has_gpu=True)
    assert planned["gpu"] > 0
    said = check_memory([load("steps: 1\n")], FreeMemory(16 * GIB, free.gpus))
    assert (
        f"about {gib(planned['main'])} of 16.0 GiB free, and {gib(planned['gpu'])} on GPUs of an unknown size" in said
    )


def test_a_cgroup_bounds_what_is_free(tmp_path: Path) -> None:
    free = free_main_memory(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert free_main_memory(tmp_path) == pytest.approx(free, rel=0.5)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 120\nactive_file 30\n")
    assert free_main_memory(tmp_path) == 1000 - 700 + 120 + 30


# ---- Ray's object store


def test_the_object_store_holds_the_weights() -> None:
    for weights, free, shared, expected in (
        (0, 20 * GIB, 12 * GIB, 6 * GIB),  # Ray's 30% of what is available
        (0, 100 * GIB, 10 * GIB, round(9.5 * GIB)),  # stays in /dev/shm
        (0, 100 * GIB, 2**26, 10**10),  # which in a container may be next to nothing: then Ray takes files
        (0, 2**27, GIB, 75 * 2**20),  # Ray refuses less
        (6 * 10**9, 8 * GIB, 16 * GIB, 6 * 10**9 + 2**28),  # 30% would be 2.4 GiB, and the rest would go to a disk
        (100 * 2**20, 32 * GIB, GIB // 2, round(0.95 * GIB / 2)),  # the weights fit into a small /dev/shm
        (24 * 2**20, 32 * GIB, 2**26, 10**10),  # and do not: Ray takes a file, and says so
    ):
        assert object_store_bytes(weights, free, shared) == expected


def test_weights_that_main_memory_cannot_hold_are_refused() -> None:
    with pytest.raises(UserError, match=r"5\.59 GiB of weights in Ray's object store.* 5\.00 GiB of main memory"):
        object_store_bytes(6 * 10**9, 5 * GIB, 64 * GIB)


def test_the_weights_in_the_object_store_are_two_versions_of_those_it_passes() -> None:
    for kind, dtype, expected in (
        ("object_store_numpy", "float32", 2 * P * 4),
        ("object_store", "bfloat16", 2 * P * 2),
        ("nixl", "float32", 0),
    ):
        assert stored_weights(scenario(f"transport: {{type: {kind}}}\n", f"dtype: {dtype}"), OWN) == expected
    assert stored_weights(load_scenario("transport_sweep_gpu"), None) == 2 * 3 * 10**9


# ---- what runs really held

TWO_STEPS = f"steps: 2\nevaluation: {{every: 2, prompts: 4}}\n{QUIET}"
ARMS = TWO_STEPS + "arms:\n  k1: {epochs_per_batch: 1}\n  k4: {epochs_per_batch: 4}\n"
Build = Callable[..., RunningParts]


def memory_of(run: Run) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = run.manifest.outcome["memory"]
    return found


def said(
    trial: Scenario, out: Path, capsys: pytest.CaptureFixture[str], build: Build = build_simulated_parts
) -> tuple[dict[str, Run], list[str]]:
    """Run a scenario; return its runs by folder name, and what was said of their memory."""
    run_scenario(trial, out, False, build, unseen)
    return runs_in(out), [line for line in capsys.readouterr().err.splitlines() if "memory: " in line]


def test_every_run_says_what_was_planned_and_what_it_held(load: Load, tmp_path: Path, capsys: Caps) -> None:
    runs, lines = said(load(TWO_STEPS), tmp_path / "out", capsys)
    (one,) = runs.values()
    main = memory_of(one)["main"]
    assert main["planned_bytes"] == planned_bytes([load(TWO_STEPS)], False)["main"]
    assert main["peak_bytes"] > 50 * 2**20  # this process at least
    assert main["processes"] >= 1
    assert lines == [memory_line(memory_of(one))]
    assert f": planned {gib(main['planned_bytes'])}, peak {gib(main['peak_bytes'])} (main memory," in lines[0]
    assert lines[0] in (one.folder / "log.txt").read_text()
    _, (line,) = said(load_scenario("sorting", ["steps=2"]), tmp_path / "unplanned", capsys)
    assert re.fullmatch(r"memory: peak \d+\.\d+ GiB \(main memory, \d+ process(es)?\)", line)


@pytest.mark.parametrize("turns", ["step", "run"])
def test_what_arms_are_set_against(turns: str, load: Load, tmp_path: Path, capsys: Caps) -> None:
    trial = load(f"interleaving: {turns}\n{ARMS}")
    runs, lines = said(trial, tmp_path / "out", capsys)
    scenarios = {variant.name: variant.scenario for variant in expand(trial)}
    together = planned_bytes([*scenarios.values()], False)["main"]
    alone = {name: planned_bytes([each], False)["main"] for name, each in scenarios.items()}
    assert together > max(alone.values())
    planned = {name: memory_of(each)["main"]["planned_bytes"] for name, each in runs.items()}
    assert planned == (alone if turns == "run" else dict.fromkeys(alone, together))
    assert sorted(line.split(": ")[0] for line in lines) == (["k1", "k4"] if turns == "run" else ["memory"])
    told = list[str]()
    check_before_start([expand(trial)], told.append, FreeMemory(64 * GIB))
    needed = together if turns == "step" else max(alone.values())
    assert [line.startswith(f"memory plan: about {gib(needed)} of ") for line in told] == [True]


def on_gpus(*peaks: tuple[Stage, int, int, int]) -> Build:
    """A builder of parts whose processes held so much of their GPUs: stage, pid, GiB allocated, GiB reserved."""

    def build(trial: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        class OnGpus(SimulatedParts):
            def drain_device_figures(self) -> list[DeviceFigure]:
                offset = trial.epochs_per_batch  # arms have processes of their own
                return [
                    StageMemory(stage, offset + pid, Peak(allocated * GIB, reserved * GIB))
                    for stage, pid, allocated, reserved in peaks
                ]

        return OnGpus(**vars(build_simulated_parts(trial, tracer, should_stop)))

    return build


def test_gpus_hold_the_sum_of_what_each_process_held_at_most(load: Load, tmp_path: Path) -> None:
    build = on_gpus((Stage.UPDATE, 10, 3, 4), (Stage.WEIGHT_PUBLISH, 10, 2, 4), (Stage.GENERATE, 20, 5, 6))
    trial = load(TWO_STEPS + "placement: {device: cuda}\n")
    (one,) = run(trial, tmp_path / "out", build).values()
    planned = planned_bytes([trial], True)["gpu"]
    assert planned > 0
    held = {"peak_bytes": 8 * GIB, "reserved_bytes": 10 * GIB, "processes": 2, "planned_bytes": planned}
    assert memory_of(one)["gpu"] == held
    assert one.steps[0].metrics["memory/allocated_bytes/update"] == {"max": 3 * GIB, "count": 1}
    assert f"planned {gib(planned)}, peak 8.0 GiB, 10.0 GiB reserved (GPU memory, 2 p" in memory_line(memory_of(one))
    arms = run(load(ARMS + "placement: {device: cuda}\n"), tmp_path / "arms", on_gpus((Stage.UPDATE, 10, 3, 4)))
    assert max(memory_of(each)["gpu"]["peak_bytes"] for each in arms.values()) == 6 * GIB  # arms on one GPU add up


def test_the_plan_of_lanes_is_that_of_their_processes(load: Load, model: str) -> None:
    trial = load(model + FSDP)
    own = planned_of_lanes(trial, has_gpu=False)
    processes = make_plan(trial, PADDED).processes
    assert own == {("main", lane): each.own_peak for each in processes for lane in each.lanes}
    assert {lane for _, lane in own} == {"learner/0", "learner/1", "generator", "scorer"}


def test_the_comparison_shows_it_and_reads_runs_without_it(load: Load, tmp_path: Path) -> None:
    runs = run(load(ARMS), tmp_path / "out")
    old = runs["k1"].folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(old.read_text())
    main = manifest["outcome"].pop("memory")["main"]
    old.write_text(json.dumps(manifest))
    (experiment,), damaged = gather([tmp_path / "out"])
    rows = {row[0]: row[1:] for row in outcome_table(experiment).rows}
    assert (damaged, rows["main memory, planned, GiB"][0]) == ([], "-")
    assert float(rows["main memory, planned, GiB"][1]) == pytest.approx(main["planned_bytes"] / GIB, rel=0.01)
    assert float(rows["main memory, peak, GiB"][1]) > 0
    assert "GPU memory, peak, GiB" not in rows
