"""``python -m harness trace``: what a trace file holds, read back by a strict reader."""

import json
import math
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Slice, TraceWriter, Track
from harness.report.trace.export import run_names, write_trace
from harness.report.trace.tracks import arrows, chains, counter_tracks, metric_tracks, step_windows, steps_track
from harness.results import EvaluationRow, Manifest, Run, RunFolder, StepRow, TailRow, load_run
from harness.results.counters import CounterRow
from harness.results.frames import table_of
from harness.results.rows import VersionChange
from tests.stand_ins.trace_reader import read_trace

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
ABOUT = {"scenario": "own", "experiment": "20261121-120000", "started_at": "2026-11-21T12:00:00.000Z"}


def written(folder, path):
    write_trace(folder, path)
    return read_trace(path)


@pytest.mark.parametrize("experiment", ["paced_overlap", "async_lag1"])
def test_an_experiment_is_one_file_with_every_span_of_every_run(experiment, tmp_path):
    shown = Counter(
        (item.track[1].split(",")[0], item.name, item.start_ns, item.end_ns)
        for item in written(REFERENCE / experiment, tmp_path / "t.json.gz").slices
        if item.track[1] != "training steps" and not item.is_instant
    )
    folders = [path.parent for path in (REFERENCE / experiment).glob("*/*/spans.jsonl")]
    spans = [span for folder in folders for span in load_run(folder).spans()]
    assert shown == Counter((span.lane, span.stage.value, span.start_ns, span.end_ns) for span in spans)
    assert len(folders) > 1


def test_each_run_has_a_name_of_its_own():
    cases = [
        ([("k1", 0), ("k10", 0), ("k2", 0)], ["k1", "k10", "k2"]),  # the order of the scenario
        ([("k1", 0), ("k1", 1)], ["k1, seed 0", "k1, seed 1"]),
        ([("a", 7, 0), ("b", 7, 0), ("a", 8, 1)], ["a, block 0", "a, block 1", "b, block 0"]),
    ]
    for runs, names in cases:
        named = [dict(zip(("arm", "seed", "block"), run, strict=False)) for run in runs]
        manifests = [Manifest(position=place, **ABOUT, **facts) for place, facts in enumerate(named)]
        assert [name for name, _ in run_names(manifests)] == names


def test_a_run_from_top_to_bottom(make_lagged_run, tmp_path):
    """The loop starts at 2 s. Each step the load ends after 20 + 2 + 10 ms, in the first step five times as much."""
    folder = make_lagged_run(steps=3, lag=(1, 1)).folder
    trace = written(folder, tmp_path / "t.json.gz")
    tracks = {track[1]: unit for track, unit in trace.tracks.items() if len(track) == 2}
    assert list(tracks)[:4] == ["training steps", "generator", "scorer", "learner"]
    assert (tracks["generator holds"], tracks["learner holds"]) == ("version", "version")
    # of several with one name the last one: of step 2
    facts = {(item.track[1], item.name): (item.categories[0], item.arguments) for item in trace.slices}
    assert facts["generator", "startup"] == ("startup", {})
    assert facts["generator", "generate"] == ("stage", {"step": 2, "version": 2})
    assert facts["scorer", "wait_for_rollouts"] == ("wait", {"step": 2, "version": 2})
    samples = {track: [(item.at_ns / 1e9, item.value) for item in trace.samples if item.track[1] == track]
               for track in ("generator holds", "learner holds", "off_policy/mean")}  # fmt: skip
    assert samples["generator holds"][:2] == [(2.160, 0), (3.032, 1)]
    assert [value for _, value in samples["learner holds"]] == [1, 2, 3]
    # one step a second from 2 s on; nothing can be behind before there is an older version
    assert samples["off_policy/mean"] == [(2, 0.0), (3, 1.0), (4, 1.0)]
    elsewhere = shutil.copytree(folder, tmp_path / "copy" / folder.name)  # which gives the same bytes
    assert write_trace(elsewhere, tmp_path / "u.json.gz").path.read_bytes() == (tmp_path / "t.json.gz").read_bytes()


def test_crossings_marks_deaths_and_counters_of_a_run(tmp_path, scrubber):
    """Weights that cross a batch, a death that only a row tells of, one warm-up and one profiled step."""
    with RunFolder.create(tmp_path / "results", "own", ABOUT["experiment"], None, scrubber=scrubber) as run:
        run.write_manifest(Manifest(**ABOUT))
        run.append_spans([
            Span("generator", Stage.STARTUP, 0, 10, -1, -1),
            Span("generator", Stage.GENERATE, 20, 60, 0, 0),
            Span("generator", Stage.WEIGHT_LOAD, 30, 40, 1, 1),  # within
            Span("generator", Stage.WEIGHT_LOAD, 50, 70, 2, 2),  # crosses its end
            Span("generator", Stage.GENERATE, 60, 90, 1, 1),
        ])  # fmt: skip
        died = (VersionChange(45e-9, "generator", -1),)
        run.append(StepRow(0, 1, 50e-9, 50e-9, 1, {}, warmup=True, metrics={}))
        run.append(StepRow(1, 2, 30e-9, 80e-9, 1, {}, profiled=True, version_changes=died, metrics={}))
        run.append(CounterRow(25, "host", {"load_1min": 1.5}))
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


@pytest.mark.parametrize(("lag_control", "end"), [("wait", "update"), ("in_flight", "update"), ("drop", "score")])
def test_under_drop_no_arrow_claims_which_update_took_a_batch(make_lagged_run, tmp_path, lag_control, end):
    run = make_lagged_run(steps=3, settings=f"lag_control: {lag_control}\n")
    chains = written(run.folder, tmp_path / "t.json.gz").arrows.values()
    assert {chain[-1].name for chain in chains if chain[0].name == "generate"} == {end}


def test_bad_input_is_one_message_with_what_to_do(make_run, tmp_path, monkeypatch, capsys):
    """Of three experiments the fix names the newest one that trained; files of others stay as they are."""
    make_run(scenario="other", steps=1, started_at="2026-11-19T12:00:00.000Z")
    make_run(scenario="own", steps=1)
    empty = make_run(scenario="empty", steps=0, started_at="2026-11-22T12:00:00.000Z").folder
    (empty / "spans.jsonl").unlink()
    monkeypatch.chdir(tmp_path / "results")
    others = [Path(name) for name in ("blocked", "a.json", "b.json.gz")]
    for path in others:
        path.write_text('{"mine": 1}', encoding="utf-8")
    for arguments, messages in (
        ("nowhere", ["'nowhere' does not exist"]),
        (". -o trace.pftrace", [".json.gz or .json", "fix:   -o trace.json.gz"]),
        (".", ["3 experiments", "fix:   python -m harness trace own/"]),
        ("empty", ["neither spans nor", "fix:"]),
        ("own -o blocked/t.json.gz", ["'blocked'", "fix:"]),
        *((f"own -o {name}", [f"'{name}' is there already"]) for name in ("a.json", "b.json.gz")),
    ):
        assert main(["trace", *arguments.split()]) == 2
        error = capsys.readouterr().err
        assert [message for message in messages if message not in error] == []
    assert {path.read_text(encoding="utf-8") for path in others} == {'{"mine": 1}'}


def test_a_failure_leaves_the_trace_that_was_there(make_run, tmp_path):
    """The second run's spans are damaged, which shows when half of the file is written."""
    first, second = (make_run(arm=arm, steps=1).folder for arm in ("k1", "k2"))
    path = tmp_path / "t.json.gz"
    before = write_trace(first.parent, path)
    content = path.read_bytes()
    with (second / "spans.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"lane":"scorer","stage":"score","start_ns":9,"end_ns":3,"step":0,"version":0}\n')
    with pytest.raises(UserError, match=r"'score' of 'scorer'.* 9 to 3 ns"):
        write_trace(second, path)
    assert path.read_bytes() == content
    assert sorted(item.name for item in tmp_path.iterdir()) == ["results", "t.json.gz"]
    after = write_trace(first.parent, path)
    assert (after.runs, [item.folder for item in after.left_out]) == (before.runs[:1], [second])


def test_a_run_without_spans_shows_its_steps(make_run, tmp_path):
    folder = make_run(steps=2, startup_s=2.0).folder
    (folder / "spans.jsonl").unlink()
    trace = written(folder, tmp_path / "t.json.gz")
    names = [(item.name, item.start_ns / 1e9) for item in trace.slices if item.categories == ("step",)]
    assert names == [("step 0", 2), ("step 1", 3)]


# ---- tracks as Chrome's JSON


def a_slice(start_ns, end_ns, name="work"):
    return Slice(start_ns, end_ns, name, "stage")


def as_file(path, *tracks, process="run"):
    with path.open("wb") as stream, TraceWriter(stream) as writer:
        writer.write(process, tracks)
    return read_trace(path)


def test_a_trace_is_what_the_format_asks_for(tmp_path):
    outer = Slice(1, 2_000_001, "outer", "stage,warmup", {"step": 3}, (("rollouts", 1, "s"),))
    inner = Slice(1, 1501, "inner", "wait", {}, (("rollouts", 1, "f"),))
    learner = Track("learner", [inner, outer], flags=[Slice(1501, 1501, "now", "version")])
    path = tmp_path / "t.json"

    with path.open("wb") as stream, TraceWriter(stream) as writer:
        writer.write("run", [learner, Track("speed", samples=[(7, 0.5)], unit="tokens/s")])

    place, arrow_facts = {"pid": 1, "tid": 2}, {"name": "rollouts", "cat": "arrow", "id": (1 << 32) + 1, "bp": "e"}
    assert json.loads(path.read_bytes()) == {
        "displayTimeUnit": "ns",
        "traceEvents": [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "run"}},
            {"ph": "M", "pid": 1, "name": "process_sort_index", "args": {"sort_index": 1}},
            {"ph": "M", **place, "name": "thread_name", "args": {"name": "learner"}},
            {"ph": "M", **place, "name": "thread_sort_index", "args": {"sort_index": 0}},
            {"ph": "B", **place, "ts": 0.001, "name": "outer", "cat": "stage,warmup", "args": {"step": 3}},
            {"ph": "s", **place, "ts": 0.001, **arrow_facts},  # before the next begin: it is the outer slice's
            {"ph": "B", **place, "ts": 0.001, "name": "inner", "cat": "wait"},
            {"ph": "f", **place, "ts": 0.001, **arrow_facts},
            {"ph": "E", **place, "ts": 1.501},
            {"ph": "E", **place, "ts": 2000.001},
            {"ph": "i", **place, "ts": 1.501, "name": "now", "cat": "version", "s": "t"},
            {"ph": "C", "pid": 1, "ts": 0.007, "name": "speed", "args": {"tokens/s": 0.5}},
        ],
    }
    assert [writer.counts[phase] for phase in "BiCf"] == [2, 1, 1, 1]


def test_a_nanosecond_is_kept_over_a_hundred_days(tmp_path):
    for at_ns in (1, 999, 1_000_001, 86_400_123_456_789, 100 * 86_400_000_000_000 + 1):
        track = Track("learner", [a_slice(at_ns, at_ns + 1)])
        assert [item[2:4] for item in as_file(tmp_path / "t.json", track).slices] == [(at_ns, at_ns + 1)]


def test_any_set_of_slices_comes_back_from_its_rows(tmp_path):
    """One slice may end where the next one begins, and they may be more than are written at once."""
    for seed in range(50):
        numbers = random.Random(seed)
        starts = [numbers.randrange(40) for _ in range(1000 if seed == 0 else 30)]
        slices = [a_slice(start, start + numbers.randrange(12), f"s{number}") for number, start in enumerate(starts)]
        trace = as_file(tmp_path / "t.json", Track("learner", slices))
        assert Counter(item[1:4] for item in trace.slices) == Counter((item.name, *item[:2]) for item in slices), seed


def test_text_of_a_run_is_plain_and_not_too_long(tmp_path):
    track = Track("la\x1bne", [Slice(0, 1, "na\nme", "stage", {"wh\u202ey": "x" * 500})])
    (item,) = as_file(tmp_path / "t.json", track, process="r\ud800un").slices
    assert item[:2] == ((r"r\ud800un", r"la\x1bne"), r"na\nme")
    assert {name: len(value) for name, value in item.arguments.items()} == {r"wh\u202ey": 400}


# ---- the tracks: training steps, metrics, counters, arrows from span to span

SECOND = 1_000_000_000
LOOP_NS = 2 * SECOND


def row(step, elapsed_s, wall_s=1.0, **more):
    return StepRow(step, step + 1, wall_s, elapsed_s, 1, {}, {}, **({"metrics": {}} | more))


def a_table(*rows, evaluations=(), tail=None):
    manifest = Manifest(scenario="own", experiment="today", started_at="2026-11-21T12:00:00.000Z", simulated="abacus")
    return table_of(Run(Path("own"), manifest, "completed", rows, evaluations, tail))


def test_windows_follow_each_other_whatever_the_rounding():
    # 1/3 + 1/3 is not 2/3 - 1/3 + 1/3 in nanoseconds; the second row claims to begin 2 ns before the first one ends
    table = a_table(row(0, 0.333333333, 0.333333333), row(1, 0.666666667, 0.333333336), row(2, 1.5, 0.5))
    edges = [(0, 333_333_333), (333_333_333, 666_666_667), (1_000_000_000, 1_500_000_000)]  # another arm's turn between
    assert step_windows(table, LOOP_NS) == [(LOOP_NS + start, LOOP_NS + end, "") for start, end in edges]


def test_the_track_of_steps_names_what_is_not_finite_and_marks_evaluations():
    odd = {"loss": {"mean": math.nan, "count": 4}, "grad_norm": {"mean": 1.5}}
    rows = row(0, 1.0), row(1, 2.0, metrics=odd)
    evaluated = {"validation/reward": {"mean": 0.5, "count": 8}, "validation/odd": {"mean": math.inf}}
    table = a_table(*rows, evaluations=(EvaluationRow(2, 2, 2.25, evaluated),), tail=TailRow(0.5, 2.5, {}, {}))
    track = steps_track(table, step_windows(table, LOOP_NS), LOOP_NS)
    odd_step = {"step": 1, "version": 2, "not_finite": "loss nan"}
    assert track.slices == [
        Slice(2 * SECOND, 3 * SECOND, "step 0", "step", {"step": 0, "version": 1}),
        Slice(3 * SECOND, 4 * SECOND, "step 1", "step", odd_step),
        Slice(4_000_000_000, 4_500_000_000, "after the last step", "step"),
    ]
    of_run, evaluation = track.flags
    assert of_run[:4] == (0, 0, "own: completed", "run")
    about = {"scenario": "own", "experiment": "today", "seed": 0}
    assert {name: value for name, value in of_run.arguments.items() if name != "simulated"} == about
    assert "abacus" in str(of_run.arguments["simulated"])
    at_ns, scores = 4_250_000_000, {"version": 2, "validation/reward": 0.5}
    assert evaluation == Slice(at_ns, at_ns, "evaluated version 2", "evaluation", scores)


def test_a_metric_stands_over_its_step_and_gaps_are_left_out():
    table = a_table(
        row(0, 1.0, metrics={"loss": {"mean": 0.5, "count": 4}}),
        row(1, 2.0, metrics={"loss": {"mean": math.inf, "count": 4}, "perf/throughput_total": {"mean": 9.0}}),
        row(2, 3.0, metrics={"loss": {"mean": 0.25, "count": 4}, "off_policy/mean": {"mean": 1.5, "count": 4}}),
    )
    assert [(track.name, track.samples) for track in metric_tracks(table, step_windows(table, LOOP_NS))] == [
        ("loss", [(2 * SECOND, 0.5), (4 * SECOND, 0.25)]),
        ("off_policy/mean", [(4 * SECOND, 1.5)]),
        ("perf/throughput_total", [(3 * SECOND, 9.0)]),
    ]


def test_gauges_are_shown_as_read_and_growing_counters_by_their_growth():
    """Growth is not taken across a turn of another arm, in which the sampler was held, nor across a fresh start."""
    rows = [CounterRow(at * SECOND, "sampler", {"held": number}) for at, number in ((0, 0), (1, 1), (9, 0))]
    busy = ((0, 10.0), (1, 12.0), (9, 90.0), (10, 91.0), (11, 1.0))
    rows += [CounterRow(at * SECOND, "host", {"cpu_busy_s": value}) for at, value in busy]
    rows += [CounterRow(at * SECOND, "learner", {"rss_bytes": number}) for at, number in ((0, 100), (2, 300))]
    tracks = counter_tracks(sorted(rows, key=lambda row: row.at_ns))
    shown = {track.name: (track.unit, track.samples) for track in tracks}
    assert shown["host: cpu_busy_s per second"] == ("s/s", [(0, 2.0), (9 * SECOND, 1.0)])
    assert shown["learner: rss_bytes"] == ("bytes", [(0, 100), (2 * SECOND, 300)])


def test_what_was_not_read_has_a_reason_and_no_zero():
    rows = [
        CounterRow(5, "gpu0", {"utilisation": None, "power_w": 70.0}, {"utilisation": "MIG is on"}),
        CounterRow(9, "gpu0", {"utilisation": None, "power_w": None}, {"utilisation": "MIG is on", "power_w": "lost"}),
    ]
    missing, power = counter_tracks(rows)
    assert (power.name, power.unit, power.samples) == ("gpu0: power_w", "W", [(5, 70.0)])
    reasons = {"power_w": "lost", "utilisation": "MIG is on"}
    assert (missing.name, missing.flags) == ("counters of gpu0", [Slice(5, 5, "not read", "missing", reasons)])


def spans(text):
    """Return spans written as ``lane stage start end step version``."""
    words = (each.split() for each in text.split("|"))
    return [Span(lane, Stage(stage), *map(int, numbers)) for lane, stage, *numbers in words]


ONE_STEP = spans(
    "learner weight_publish 0 2 0 0 | generator weight_transfer 2 3 0 0 | generator weight_load 3 4 0 0 |"
    "generator generate 5 9 0 0 | scorer score 9 10 0 0 | learner update 11 19 0 0 |"
    "learner weight_publish 20 22 1 1 | generator weight_transfer 22 23 1 1 | generator weight_load 23 24 1 1 |"
    "generator evaluate 24 30 1 1"
)
ITS_CHAINS = {"rollouts": [[3, 4, 5]], "weights": [[0, 2, 3], [5, 6, 8, 9]]}


def linked(spans):
    found = {}
    for name, chain in chains(spans, True):
        found.setdefault(name, []).append(chain)
    return found


def test_a_step_of_a_synchronous_run_is_one_story_whatever_the_order_of_the_file():
    assert linked(ONE_STEP) == ITS_CHAINS
    order = random.Random(0).sample(range(len(ONE_STEP)), len(ONE_STEP))
    shuffled = linked([ONE_STEP[place] for place in order])
    assert {name: [[order[at] for at in chain] for chain in found] for name, found in shuffled.items()} == ITS_CHAINS


def test_arrows_are_numbered_and_each_begins_and_ends_once():
    found = arrows(ONE_STEP, True)
    assert {place: {f"{name} {phase}" for name, _, phase in stops} for place, stops in found.items()} == {
        0: {"weights s"},
        2: {"weights t"},
        3: {"weights f", "rollouts s"},  # the way of version 0 ends here, the rollouts begin here
        4: {"rollouts t"},
        5: {"rollouts f", "weights s"},
        6: {"weights t"},
        8: {"weights t"},
        9: {"weights f"},
    }
    assert {number for stops in found.values() for _, number, _ in stops} == {1, 2, 3}


CASES = {
    "shards of a step are scored in the order in which they end": (
        "generator0 generate 0 9 4 4 | generator1 generate 0 5 4 4 |"
        "scorer score 10 11 4 4 | scorer score 11 12 4 4 | learner update 12 20 4 4",
        {"rollouts": [[1, 2, 4], [0, 3, 4]]},
    ),
    "of attempts on parts that died the last one counts": (
        "generator generate 0 4 0 0 | generator generate 6 9 0 0 | scorer score 10 11 0 0",
        {"rollouts": [[1, 2]]},
    ),
    "rollouts that nobody scored": ("generator generate 0 4 0 0", {}),
    "scores of rollouts that nobody generated": ("scorer score 0 4 0 0", {}),
    "each Generator takes a version along its own arrow, to the first use of it": (
        "learner update 0 10 2 2 | learner weight_publish 11 12 3 3 | generator1 weight_load 13 14 3 3 |"
        "generator0 weight_load 15 16 3 3 | generator0 generate 17 20 4 3 | generator0 generate 21 25 5 3",
        {"weights": [[0, 1, 2], [0, 1, 3, 4]]},
    ),
    "weights that arrive during a batch lead to the next one": (
        "learner weight_publish 0 1 1 1 | generator generate 0 10 1 0 |"
        "generator weight_load 4 5 1 1 | generator generate 11 20 2 1",
        {"weights": [[0, 2, 3]]},
    ),
    "a version that nobody took": ("learner update 0 10 2 2 | learner weight_publish 11 12 3 3", {"weights": [[0, 1]]}),
    "an arrow has two ends": ("learner weight_publish 11 12 3 3", {}),
    "an arrow leads forward in time: no load as the publish begins, as on a virtual clock, no score before its batch": (
        "learner update 0 10 0 0 | learner weight_publish 10 10 1 1 | generator weight_load 10 10 1 1 |"
        "generator generate 11 12 1 1 | scorer score 5 6 1 1",
        {"weights": [[0, 1, 3]]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_arrows(case):
    text, expected = CASES[case]
    assert linked(spans(text)) == expected
