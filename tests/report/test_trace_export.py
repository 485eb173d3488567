"""``python -m harness trace``: what a trace file holds, read back by a strict reader."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Span, Stage
from harness.report.trace.export import run_names, write_trace
from harness.results import Manifest, Run, RunFolder, Scrubber, StepRow, load_run
from harness.results.counters import CounterRow
from harness.results.recorder import RunRecorder
from harness.results.rows import VersionChange
from tests.stand_ins.trace_reader import ReadTrace, read_trace

Make = Callable[..., RunFolder]
SECOND = 1_000_000_000
REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def written(folder: Path, path: Path) -> ReadTrace:
    write_trace(folder, path)
    return read_trace(path)


def spans_of(trace: ReadTrace, process: str) -> Counter[tuple[str, str, int, int]]:
    """Return (lane, stage, start, end) of what the trace shows of a run's lanes."""
    lanes = [item for item in trace.slices if item.track[0] == process and item.track[1] != "training steps"]
    shown = [item for item in lanes if not item.is_instant]
    return Counter((item.track[1].split(",")[0], item.name, item.start_ns, item.end_ns) for item in shown)


def saved_spans(folder: Path) -> Counter[tuple[str, str, int, int]]:
    return Counter((item.lane, item.stage.value, item.start_ns, item.end_ns) for item in load_run(folder).spans())


def test_a_experiment_is_one_file_with_every_span_of_every_run(lagged: Path, tmp_path: Path) -> None:
    trace = written(lagged, tmp_path / "t.json.gz")

    runs = [track[0] for track in trace.tracks if len(track) == 1]
    assert runs == ["lag1, seed 0", "lag1, seed 1", "lag3, seed 0", "lag3, seed 1"]
    for name in runs:
        folder = lagged / name.replace(", seed ", ",seed=")
        assert spans_of(trace, name) == saved_spans(folder)


def a_run(number: int, arm: str, seed: int, block: int | None = None) -> Run:
    started = "2026-11-21T12:00:00.000Z"
    named = {"scenario": "own", "experiment": "20261121-120000", "started_at": started, "position": number}
    return Run(Path(f"run{number}"), Manifest(arm=arm, seed=seed, block=block, **named), "completed", (), (), None)


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([("k1", 0), ("k10", 0), ("k2", 0)], ["k1", "k10", "k2"]),  # the order of the scenario
        ([("k1", 0), ("k1", 1)], ["k1, seed 0", "k1, seed 1"]),
        (
            [("a", 7, 0), ("b", 7, 0), ("a", 8, 1), ("b", 8, 1)],
            ["a, block 0", "a, block 1", "b, block 0", "b, block 1"],
        ),
    ],
)
def test_each_run_has_a_name_of_its_own(runs: list[tuple[str, int]], names: list[str]) -> None:
    assert [name for name, _ in run_names([a_run(number, *run) for number, run in enumerate(runs)])] == names


def test_tracks_stand_in_the_order_of_the_work(make_lagged_run: Make, tmp_path: Path) -> None:
    run = make_lagged_run(steps=2)

    trace = written(run.folder, tmp_path / "t.json.gz")

    assert [track[1] for track, unit in trace.tracks.items() if len(track) == 2 and unit is None] == [
        "training steps",
        "generator",
        "scorer",
        "learner",
    ]
    held = {track[1]: unit for track, unit in trace.tracks.items() if track[-1].endswith(" holds")}
    assert held == {"generator holds": "version", "learner holds": "version"}


def test_spans_carry_what_they_are(make_lagged_run: Make, tmp_path: Path) -> None:
    trace = written(make_lagged_run(steps=2).folder, tmp_path / "t.json.gz")

    # of several with one name the last one: of step 1
    facts = {(item.track[1], item.name): (item.categories[0], item.arguments) for item in trace.slices}
    assert facts["generator", "startup"] == ("startup", {})
    assert facts["generator", "generate"] == ("stage", {"step": 1, "version": 1})
    assert facts["scorer", "wait_for_rollouts"] == ("wait", {"step": 1, "version": 1})


def test_versions_are_instants_on_their_lane_and_counters_beside_each_other(
    make_lagged_run: Make, tmp_path: Path
) -> None:
    """The loop starts at 2 s. Each step the load ends after 20 + 2 + 10 ms, in the first step five times as much."""
    trace = written(make_lagged_run(steps=2).folder, tmp_path / "t.json.gz")

    instants = [(item.track[1], item.name, item.start_ns) for item in trace.slices if "version" in item.categories]
    held: dict[str, list[tuple[int, float]]] = {}
    for item in trace.samples:
        held.setdefault(item.track[1], []).append((item.at_ns, item.value))

    assert [item for item in instants if item[0] == "generator"] == [
        ("generator", "version 0", 2 * SECOND + 160_000_000),
        ("generator", "version 1", 3 * SECOND + 32_000_000),
    ]
    assert held["generator holds"] == [(2 * SECOND + 160_000_000, 0), (3 * SECOND + 32_000_000, 1)]
    assert [value for _, value in held["learner holds"]] == [1, 2]


def test_metrics_stand_over_their_steps(make_lagged_run: Make, tmp_path: Path) -> None:
    trace = written(make_lagged_run(steps=3, lag=(1, 1)).folder, tmp_path / "t.json.gz")

    lag = [(item.at_ns, item.value) for item in trace.samples if item.track[1] == "off_policy/mean"]

    # one step a second from 2 s on; nothing can be behind before there is an older version
    assert lag == [(2 * SECOND, 0.0), (3 * SECOND, 1.0), (4 * SECOND, 1.0)]
    assert {unit for track, unit in trace.tracks.items() if track[1:] == ("off_policy/mean",)} == {"versions"}


def test_the_same_run_gives_the_same_bytes_wherever_it_stands(make_lagged_run: Make, tmp_path: Path) -> None:
    folder = make_lagged_run(steps=3).folder
    elsewhere = tmp_path / "copy" / folder.name
    elsewhere.mkdir(parents=True)
    for name in ("manifest.json", "steps.jsonl", "spans.jsonl", "scenario.resolved.yaml"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    files = [tmp_path / name for name in ("a.json.gz", "b.json.gz", "c.json.gz")]

    for source, path in zip((folder, folder, elsewhere), files, strict=True):
        write_trace(source, path)

    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An own run: weights that cross a batch, a death, one warm-up and one profiled step, counters."""
    scrubber = Scrubber("/home/ann", "/home/ann/harness", "annbox", "ann")
    with RunFolder.create(tmp_path / "results", "own", "20261121-120000", None, scrubber=scrubber) as run:
        started = "2026-11-21T12:00:00.000Z"
        run.write_manifest(Manifest(scenario="own", experiment="20261121-120000", started_at=started))
        run.append_spans(
            [
                Span("generator", Stage.STARTUP, 0, 10, -1, -1),
                Span("generator", Stage.GENERATE, 20, 60, 0, 0),
                Span("generator", Stage.WEIGHT_LOAD, 30, 40, 1, 1),  # within
                Span("generator", Stage.WEIGHT_LOAD, 50, 70, 2, 2),  # crosses its end
                Span("generator", Stage.GENERATE, 60, 90, 1, 1),
            ]
        )
        died = (VersionChange(45e-9, "generator", -1),)
        common = {"optimizer_steps": 1, "lanes": {}, "metrics": {"loss": {"mean": 0.5, "count": 4}}}
        run.append(StepRow(step=0, version=1, wall_s=50e-9, elapsed_s=50e-9, warmup=True, **common))
        row = StepRow(step=1, version=2, wall_s=30e-9, elapsed_s=80e-9, profiled=True, version_changes=died, **common)
        run.append(row, CounterRow(25, "host", {"load_1min": 1.5}))
        run.flush()
    return run.folder


def test_what_crosses_a_batch_stands_on_a_track_below_its_lane(folder: Path, tmp_path: Path) -> None:
    trace = written(folder, tmp_path / "t.json.gz")

    lanes = sorted(
        (item.start_ns, item.end_ns, item.track[1]) for item in trace.slices if item.track[1].startswith("generator")
    )
    assert lanes == [
        (0, 10, "generator"),
        (20, 60, "generator"),
        (30, 40, "generator"),
        (50, 70, "generator, crossing"),
        (55, 55, "generator"),  # the death, 45 ns after the loop's start at 10
        (60, 90, "generator"),
    ]


def test_deaths_warm_up_and_profiled_steps_are_marked(folder: Path, tmp_path: Path) -> None:
    trace = written(folder, tmp_path / "t.json.gz")

    assert [item.name for item in trace.slices if item.categories == ("death",)] == ["died; replaced"]
    marks = {(item.name, item.start_ns): item.categories[1:] for item in trace.slices if not item.is_instant}
    assert marks == {
        ("startup", 0): (),
        ("step 0, warmup", 10): ("warmup",),
        ("step 1, profiled", 60): ("profiled",),
        ("generate", 20): ("warmup",),  # the step of a span is the one in whose window it ends; the first goes to 60
        ("weight_load", 30): ("warmup",),
        ("weight_load", 50): ("profiled",),
        ("generate", 60): ("profiled",),
    }


def test_deaths_come_from_the_log_with_their_reason_and_once(tmp_path: Path) -> None:
    """Written by the recorder, on a clock set by hand: the loop starts at 2 s."""
    now = [2 * SECOND]
    tracer = RecordingTracer(lambda: now[0])
    with RunFolder.create(tmp_path / "results", "own", "20261121-120000", None) as run:
        started = "2026-11-21T12:00:00.000Z"
        run.write_manifest(Manifest(scenario="own", experiment="20261121-120000", started_at=started))
        recorder = RunRecorder(run, tracer)
        recorder.loop_starts(["generator", "scorer"])
        recorder.on_version("generator", 0)
        now[0] = 3 * SECOND
        recorder.on_replaced("generator", "signal 9")
        now[0] = 4 * SECOND
        recorder.on_replaced("scorer", "out (of memory)")
        recorder.loop_ends()
        run.flush()

    trace = written(run.folder, tmp_path / "t.json.gz")

    deaths = [(item.track[1], item.start_ns, item.arguments) for item in trace.slices if item.categories == ("death",)]
    assert deaths == [
        ("generator", 3 * SECOND, {"reason": "signal 9"}),
        ("scorer", 4 * SECOND, {"reason": "out (of memory)"}),
    ]
    held = [(item.at_ns, item.value) for item in trace.samples if item.track[1] == "generator holds"]
    assert held == [(2 * SECOND, 0), (3 * SECOND, -1)]


def test_counters_are_tracks_of_their_source(folder: Path, tmp_path: Path) -> None:
    trace = written(folder, tmp_path / "t.json.gz")

    assert [item[1:] for item in trace.samples if item.track[1] == "host: load_1min"] == [(25, 1.5)]


@pytest.mark.parametrize("experiment", ["paced_overlap", "async_lag1"])
def test_the_reference_runs_make_sound_traces(experiment: str, tmp_path: Path) -> None:
    trace = written(REFERENCE / experiment, tmp_path / "t.json.gz")

    shown: Counter[tuple[str, str, int, int]] = Counter()
    for name in (track[0] for track in trace.tracks if len(track) == 1):
        shown += spans_of(trace, name)
    saved: Counter[tuple[str, str, int, int]] = Counter()
    for path in (REFERENCE / experiment).glob("*/*/spans.jsonl"):
        saved += saved_spans(path.parent)
    assert shown == saved


def test_every_rollout_and_every_version_of_a_reference_run_has_its_arrow(tmp_path: Path) -> None:
    """At lag 0 each of n batches is scored and trained on, and each of versions 0 to n is published and taken."""
    (folder,) = (REFERENCE / "async_lag1").glob("*/sync_actors,block=00")
    steps = len(load_run(folder).steps)

    chains = list(written(folder, tmp_path / "t.json.gz").arrows.values())

    rollouts = [chain for chain in chains if chain[0].name == "generate"]
    assert [[item.name for item in chain] for chain in rollouts] == [["generate", "score", "update"]] * steps
    assert [{item.arguments["step"] for item in chain} for chain in rollouts] == [{step} for step in range(steps)]
    weights = [chain for chain in chains if chain[0].name != "generate"]
    versions = [[item.arguments["version"] for item in chain if item.name != "update"] for chain in weights]
    assert versions == [[version] * 4 for version in range(steps + 1)]
    updates = [chain[0].arguments["step"] for chain in weights if chain[0].name == "update"]
    assert updates == list(range(steps))
    names = {tuple(item.name for item in chain if item.name != "update") for chain in weights}
    way = ("weight_publish", "weight_transfer", "weight_load")
    assert names == {(*way, "generate"), (*way, "evaluate")}


@pytest.mark.parametrize(("lag_control", "reaches_update"), [("wait", True), ("in_flight", True), ("drop", False)])
def test_under_drop_no_arrow_claims_which_update_took_a_batch(
    make_lagged_run: Make, tmp_path: Path, lag_control: str, reaches_update: bool
) -> None:
    run = make_lagged_run(steps=3, settings=f"lag_control: {lag_control}\n")

    chains = written(run.folder, tmp_path / "t.json.gz").arrows.values()

    batches = [[item.name for item in chain] for chain in chains if chain[0].name == "generate"]
    assert batches
    assert all(("update" in chain) == reaches_update for chain in batches)


def test_the_command_says_what_it_wrote(
    make_lagged_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_lagged_run(steps=2).folder

    assert main(["trace", str(folder)]) == 0

    output = capsys.readouterr().out
    assert f"trace: {folder / 'trace.json.gz'}" in output
    assert "1 run, 2 training steps" in output
    assert "MB per 100 steps" in output
    first = (folder / "trace.json.gz").read_bytes()
    read_trace(folder / "trace.json.gz")

    assert main(["trace", str(folder)]) == 0
    assert "trace.json.gz (in place of an earlier one)" in capsys.readouterr().out
    assert (folder / "trace.json.gz").read_bytes() == first


@pytest.mark.parametrize("name", ["mine.json", "mine.json.gz"])
def test_what_is_no_trace_is_not_replaced(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder, mine = make_run(steps=1).folder, tmp_path / name
    mine.write_text('{"mine": 1}', encoding="utf-8")

    assert main(["trace", str(folder), "-o", str(mine)]) == 2

    assert f"{name}' is there already, and is no trace of this command" in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == '{"mine": 1}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' does not exist"),
        ([".", "-o", "trace.pftrace"], "its name must end in .json.gz or .json"),
        (["."], "holds 2 experiments; a trace shows one"),
        (["own", "-o", "blocked/t.json.gz"], "there is no folder 'blocked' for the trace"),
    ],
)
def test_bad_input_is_said_in_a_line_with_what_to_do(
    make_run: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    make_run(scenario="own", steps=1)
    make_run(scenario="other", steps=1)
    monkeypatch.chdir(tmp_path / "results")
    Path("blocked").write_text("a file, not a folder", encoding="utf-8")

    assert main(["trace", *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert "fix:" in error or arguments == ["nowhere"]


def test_a_damaged_run_is_left_out_and_named(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(arm="k1", steps=1)
    broken = make_run(arm="k2", steps=1).folder
    (broken / "manifest.json").write_text("{", encoding="utf-8")

    assert main(["trace", str(broken.parent), "-o", str(tmp_path / "t.json.gz")]) == 0

    assert "warning: left out" in capsys.readouterr().err
    assert [track for track in read_trace(tmp_path / "t.json.gz").tracks if len(track) == 1] == [("k1",)]


def test_a_failure_leaves_the_trace_that_was_there(make_run: Make, tmp_path: Path) -> None:
    """The second run's spans are damaged, which is found when half of the file is written."""
    first = make_run(arm="k1", steps=1).folder
    second = make_run(arm="k2", steps=1).folder
    path = tmp_path / "t.json.gz"
    before = write_trace(first.parent, path)
    with (second / "spans.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"lane":"scorer","stage":"score","start_ns":9,"end_ns":3,"step":0,"version":0}\n')

    with pytest.raises(UserError, match="'score' of 'scorer' goes from 9 to 3 ns"):
        write_trace(second, path)

    assert path.stat().st_size == before.num_bytes
    assert sorted(item.name for item in tmp_path.iterdir()) == ["results", "t.json.gz"]
    after = write_trace(first.parent, path)
    assert (after.runs, [item.folder for item in after.left_out]) == (before.runs[:1], [second])


def test_a_run_without_spans_shows_its_steps(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(steps=2, startup_s=2.0).folder
    (folder / "spans.jsonl").unlink()

    trace = written(folder, tmp_path / "t.json.gz")

    names = [(item.name, item.start_ns) for item in trace.slices if item.categories == ("step",)]
    assert names == [("step 0", 2 * SECOND), ("step 1", 3 * SECOND)]


def test_names_from_files_are_made_plain(make_run: Make, tmp_path: Path) -> None:
    """A lone surrogate cannot be written as UTF-8, and a terminal command must not reach a terminal."""
    folder = make_run(steps=1).folder
    with (folder / "spans.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"lane":"a\\ud800\\u001b[31m","stage":"score","start_ns":1,"end_ns":3,"step":0,"version":0}\n')

    trace = written(folder, tmp_path / "t.json.gz")

    assert r"a\ud800\x1b[31m" in {track[1] for track in trace.tracks if len(track) == 2}


def test_the_command_loads_neither_torch_nor_ray(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(steps=1).folder
    code = (
        "import sys; from harness.cli import main; "
        f"code = main(['trace', {str(folder)!r}]); "
        "print(code, sorted({'torch', 'ray', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)

    assert done.stdout.splitlines()[-1] == "0 []"
