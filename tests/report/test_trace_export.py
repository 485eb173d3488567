"""``python -m harness trace``: what a trace file holds, read back by a strict reader."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.report.trace.export import run_names, write_trace
from harness.results import Manifest, RunFolder, Scrubber, StepRow, load_run
from harness.results.counters import CounterRow
from harness.results.rows import VersionChange
from tests.stand_ins.trace_reader import ReadTrace, read_trace

Make = Callable[..., RunFolder]
SECOND = 1_000_000_000
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
ABOUT: dict[str, Any] = {"scenario": "own", "experiment": "20261121-120000", "started_at": "2026-11-21T12:00:00.000Z"}


def written(folder: Path, path: Path) -> ReadTrace:
    write_trace(folder, path)
    return read_trace(path)


def held_by(trace: ReadTrace, process: str) -> list[tuple[int, float]]:
    return [(item.at_ns, item.value) for item in trace.samples if item.track[1] == f"{process} holds"]


@pytest.mark.parametrize("experiment", ["paced_overlap", "async_lag1"])
def test_an_experiment_is_one_file_with_every_span_of_every_run(experiment: str, tmp_path: Path) -> None:
    trace = written(REFERENCE / experiment, tmp_path / "t.json.gz")

    shown = Counter(
        (item.track[1].split(",")[0], item.name, item.start_ns, item.end_ns)
        for item in trace.slices
        if item.track[1] != "training steps" and not item.is_instant
    )
    folders = [path.parent for path in (REFERENCE / experiment).glob("*/*/spans.jsonl")]
    spans = [span for folder in folders for span in load_run(folder).spans()]
    assert shown == Counter((span.lane, span.stage.value, span.start_ns, span.end_ns) for span in spans)
    assert len(folders) > 1


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([("k1", 0), ("k10", 0), ("k2", 0)], ["k1", "k10", "k2"]),  # the order of the scenario
        ([("k1", 0), ("k1", 1)], ["k1, seed 0", "k1, seed 1"]),
        ([("a", 7, 0), ("b", 7, 0), ("a", 8, 1)], ["a, block 0", "a, block 1", "b, block 0"]),
    ],
)
def test_each_run_has_a_name_of_its_own(runs: list[tuple[Any, ...]], names: list[str]) -> None:
    named = [dict(zip(("arm", "seed", "block"), run, strict=False)) for run in runs]
    manifests = [Manifest(position=place, **ABOUT, **facts) for place, facts in enumerate(named)]
    assert [name for name, _ in run_names(manifests)] == names


def test_a_run_from_top_to_bottom(make_lagged_run: Make, tmp_path: Path) -> None:
    """The loop starts at 2 s. Each step the load ends after 20 + 2 + 10 ms, in the first step five times as much."""
    trace = written(make_lagged_run(steps=3, lag=(1, 1)).folder, tmp_path / "t.json.gz")

    tracks = {track[1]: unit for track, unit in trace.tracks.items() if len(track) == 2}
    assert list(tracks)[:4] == ["training steps", "generator", "scorer", "learner"]
    assert (tracks["generator holds"], tracks["learner holds"]) == ("version", "version")
    # of several with one name the last one: of step 2
    facts = {(item.track[1], item.name): (item.categories[0], item.arguments) for item in trace.slices}
    assert facts["generator", "startup"] == ("startup", {})
    assert facts["generator", "generate"] == ("stage", {"step": 2, "version": 2})
    assert facts["scorer", "wait_for_rollouts"] == ("wait", {"step": 2, "version": 2})
    assert held_by(trace, "generator")[:2] == [(2 * SECOND + 160_000_000, 0), (3 * SECOND + 32_000_000, 1)]
    assert [value for _, value in held_by(trace, "learner")] == [1, 2, 3]
    lag = [(item.at_ns, item.value) for item in trace.samples if item.track[1] == "off_policy/mean"]
    # one step a second from 2 s on; nothing can be behind before there is an older version
    assert lag == [(2 * SECOND, 0.0), (3 * SECOND, 1.0), (4 * SECOND, 1.0)]


def test_the_same_run_gives_the_same_bytes_wherever_it_stands(make_lagged_run: Make, tmp_path: Path) -> None:
    folder = make_lagged_run(steps=3).folder
    elsewhere = shutil.copytree(folder, tmp_path / "copy" / folder.name)
    one, two = (write_trace(source, tmp_path / f"{source.parent.name}.json.gz") for source in (folder, elsewhere))
    assert one.path.read_bytes() == two.path.read_bytes()


def test_crossings_marks_deaths_and_counters_of_a_run(tmp_path: Path) -> None:
    """Weights that cross a batch, a death that only a row tells of, one warm-up and one profiled step."""
    scrubber = Scrubber("/home/ann", "/home/ann/harness", "annbox", "ann")
    with RunFolder.create(tmp_path / "results", "own", ABOUT["experiment"], None, scrubber=scrubber) as run:
        run.write_manifest(Manifest(**ABOUT))
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
        common: dict[str, Any] = {"optimizer_steps": 1, "lanes": {}, "metrics": {}}
        run.append(StepRow(step=0, version=1, wall_s=50e-9, elapsed_s=50e-9, warmup=True, **common))
        row = StepRow(step=1, version=2, wall_s=30e-9, elapsed_s=80e-9, profiled=True, version_changes=died, **common)
        run.append(row, CounterRow(25, "host", {"load_1min": 1.5}))
        run.flush()

    trace = written(run.folder, tmp_path / "t.json.gz")

    shown = sorted((item.start_ns, item.end_ns, item.track[1], item.name, item.categories) for item in trace.slices)
    assert shown == [
        (0, 0, "training steps", "own: did not finish", ("run",)),
        (0, 10, "generator", "startup", ("startup",)),
        (10, 60, "training steps", "step 0, warmup", ("step", "warmup")),
        # the step of a span is the one in whose window it ends; the first goes to 60
        (20, 60, "generator", "generate", ("stage", "warmup")),
        (30, 40, "generator", "weight_load", ("stage", "warmup")),
        (50, 70, "generator, crossing", "weight_load", ("stage", "profiled")),
        (55, 55, "generator", "died; replaced", ("death",)),  # 45 ns after the loop's start at 10
        (60, 90, "generator", "generate", ("stage", "profiled")),
        (60, 90, "training steps", "step 1, profiled", ("step", "profiled")),
    ]
    assert [item[1:] for item in trace.samples if item.track[1] == "host: load_1min"] == [(25, 1.5)]


@pytest.mark.parametrize(("lag_control", "reaches_update"), [("wait", True), ("in_flight", True), ("drop", False)])
def test_under_drop_no_arrow_claims_which_update_took_a_batch(
    make_lagged_run: Make, tmp_path: Path, lag_control: str, reaches_update: bool
) -> None:
    run = make_lagged_run(steps=3, settings=f"lag_control: {lag_control}\n")

    chains = written(run.folder, tmp_path / "t.json.gz").arrows.values()

    ends = {chain[-1].name for chain in chains if chain[0].name == "generate"}
    assert ends == ({"update"} if reaches_update else {"score"})


def test_the_command_tells_what_it_wrote(make_lagged_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_lagged_run(steps=2).folder / "trace.json.gz"

    assert main(["trace", str(path.parent)]) == 0

    output = capsys.readouterr().out
    assert f"trace: {path}\n1 run, 2 training steps" in output
    trace = read_trace(path)
    slices = sum(not item.is_instant for item in trace.slices)
    size = path.stat().st_size
    written = f"{size} bytes" if size < 1000 else f"{size / 1e3:,.0f} kB"  # a small file is no 0.00 MB
    assert (
        f"{slices:,} slices, {len(trace.arrows):,} arrows, {len(trace.samples):,} counter values; {written}" in output
    )


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["nowhere"], ["'nowhere' does not exist"]),
        ([".", "-o", "trace.pftrace"], ["its name must end in .json.gz or .json", "fix:   -o trace.json.gz"]),
        (["."], ["holds 3 experiments; a trace shows one", "fix:   python -m harness trace own/"]),
        (["empty"], ["neither spans nor training steps", "fix:"]),
        (["own", "-o", "blocked/t.json.gz"], ["there is no folder 'blocked' for the trace", "fix:"]),
        *((["own", "-o", name], [f"'{name}' is there already, and is no trace"]) for name in ("a.json", "b.json.gz")),
    ],
)
def test_bad_input_is_one_message_with_what_to_do(
    make_run: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    messages: list[str],
) -> None:
    """Of three experiments the fix names the newest one that trained; files of others stay as they are."""
    make_run(scenario="other", steps=1, started_at="2026-11-19T12:00:00.000Z")
    make_run(scenario="own", steps=1)
    empty = make_run(scenario="empty", steps=0, started_at="2026-11-22T12:00:00.000Z").folder
    (empty / "spans.jsonl").unlink()
    monkeypatch.chdir(tmp_path / "results")
    others = [Path(name) for name in ("blocked", "a.json", "b.json.gz")]
    for path in others:
        path.write_text('{"mine": 1}', encoding="utf-8")

    assert main(["trace", *arguments]) == 2

    error = capsys.readouterr().err
    assert all(message in error for message in messages)
    assert {path.read_text(encoding="utf-8") for path in others} == {'{"mine": 1}'}


def test_a_failure_leaves_the_trace_that_was_there(make_run: Make, tmp_path: Path) -> None:
    """The second run's spans are damaged, which shows when half of the file is written."""
    first = make_run(arm="k1", steps=1).folder
    second = make_run(arm="k2", steps=1).folder
    path = tmp_path / "t.json.gz"
    before = write_trace(first.parent, path)
    content = path.read_bytes()
    with (second / "spans.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"lane":"scorer","stage":"score","start_ns":9,"end_ns":3,"step":0,"version":0}\n')

    with pytest.raises(UserError, match="'score' of 'scorer' goes from 9 to 3 ns"):
        write_trace(second, path)

    assert path.read_bytes() == content
    assert sorted(item.name for item in tmp_path.iterdir()) == ["results", "t.json.gz"]
    after = write_trace(first.parent, path)
    assert (after.runs, [item.folder for item in after.left_out]) == (before.runs[:1], [second])


def test_a_run_without_spans_shows_its_steps(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(steps=2, startup_s=2.0).folder
    (folder / "spans.jsonl").unlink()

    trace = written(folder, tmp_path / "t.json.gz")

    names = [(item.name, item.start_ns) for item in trace.slices if item.categories == ("step",)]
    assert names == [("step 0", 2 * SECOND), ("step 1", 3 * SECOND)]
