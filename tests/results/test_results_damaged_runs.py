"""Damage of a run folder is refused with its place; the three commands that read a folder of runs show the others."""

import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.results import load_run
from harness.results.counters import read_counters
from harness.results.jsonl import Free, decode_json, read_checked
from harness.results.reader import parse_settings

REFERENCE = Path(__file__).parents[2] / "results/reference"
SOUND = REFERENCE / "sync_k1-vs-sync_k2/20261125-205319/sync_k1,block=0"
MANIFEST, SETTINGS = "manifest.json", "scenario.resolved.yaml"
STEPS, SPANS, GROUPS = "steps.jsonl", "spans.jsonl", "groups.jsonl"
COUNTERS, ROLLOUTS = "counters.jsonl", "rollouts.jsonl"
READ_BY = {
    "compare": {MANIFEST, SETTINGS, STEPS, SPANS},
    "report": {MANIFEST, SETTINGS, STEPS, SPANS},
    "trace": {MANIFEST, SETTINGS, STEPS, SPANS, COUNTERS},
}
DEEP, BIG, NESTED_YAML = "[" * 100_000 + "]" * 100_000, "1" + "0" * 400, "a: " + "[" * 20_000 + "]" * 20_000
LAUGHS = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


@pytest.fixture(autouse=True)
def _ends():
    """Fail where a command waits for what never comes, such as the other end of a pipe."""

    def fail(number, frame):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def header(name, version=1):
    return json.dumps({"kind": "header", "schema": f"harness.{name}", "schema_version": version})


def write(text):
    return lambda path: path.write_text(text)


def third(row, **changes):
    """Put a row in the place of the third line, or with ``changes`` put them into that line."""

    def damage(path):
        lines = path.read_text().splitlines() if path.exists() else [header(path.stem), '{"kind":"weather"}', "", ""]
        lines[2] = json.dumps(json.loads(row or lines[2]) | changes) if changes else row
        path.write_text("\n".join(lines) + "\n")

    return damage


def change(*keys, to):
    """Put a JSON text in the place of a value of the manifest, or of the first training step."""

    def damage(path):
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = next(n for n, text in enumerate(texts) if path.suffix == ".json" or '"kind":"step"' in text)
        row = holder = json.loads(texts[number])
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]] = "HERE"
        texts[number] = json.dumps(row).replace('"HERE"', to)
        path.write_text("\n".join(texts) + "\n")

    return damage


def twice(path):
    """What two processes leave that wrote one after the other, a header each."""
    path.write_bytes(path.read_bytes() * 2)


def again(path):
    """The rows of another run behind those of this one, under one header."""
    path.write_bytes(path.read_bytes() + path.read_bytes().partition(b"\n")[2])


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


def device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


SPAN = '{"lane":"learner","stage":"update","start_ns":1,"end_ns":2,"step":0,"version":0}'
COUNTER = '{"kind":"counter","at_ns":1,"source":"host","values":{}}'
SHARD = '{"kind":"shard","purpose":"train","step":0,"shard":0,"prompt_ids":[1],"prompt_tokens":[4],"rewards":[[1.0]]}'
DAMAGE = {
    MANIFEST: [
        *((write(text), "") for text in ("", "{", "null", "[]", DEEP)),
        (change("machine", "cpu", to="[" * 900 + "]" * 900), ""),
        (change("startup_s", to=BIG), ""),
        (change("startup_s", to="1e400"), ""),
        (change("startup_s", to='"x"'), "$.startup_s"),
        (change("started_at", to="5"), "$.started_at"),
        (change("started_at", to='"yesterday"'), "yesterday"),
        (change("started_at", to='"2026-11-20T12:00:00"'), "2026-11-20T12:00:00"),  # no time zone
        (change("seed", to="true"), "$.seed"),
        (change("status", to='"asleep"'), "asleep"),
        (change("schema", to='"other"'), "harness.manifest"),
        (change("schema_version", to="99"), "99"),
        (change("machine", "cores", to='"x"'), "cores"),
        (change("versions", to='{"torch": [1]}'), ""),
        (change("non_finite", to='{"/startup_s": "x"}'), ""),
        *((change("outcome", "replaced", to=text), "replaced") for text in ("null", '"x"', "[1]", '{"learner": "x"}')),
        (change("outcome", "ledger", to='{"rollouts": "x"}'), "outcome.ledger"),
    ],
    SETTINGS: [
        *((write(text), "") for text in (NESTED_YAML, LAUGHS, "steps: 0x" + "f" * 5000)),
        (write("steps: 1" + ":00" * 1000 + ".0"), ""),
    ],
    STEPS: [
        *((third(text), "line 3") for text in ('{"kind":"step","ste', DEEP, '{"kind":"sync"}')),
        (third('{"kind":"step","step":1}'), "line 3: Object missing required field `version`"),
        (third('{"kind":"tail","wall_s":1,"elapsed_s":1,"lanes":[]}'), "$.lanes"),
        (third("", version_changes=[[0.5, "a"]]), "$.version_changes[0]"),
        (third("", lags={"old": 3}), "$.lags"),
        (change("wall_s", to=BIG), ""),
        (change("metrics", "loss", to=f'{{"mean": {BIG}, "count": 1}}'), ""),
        (change("metrics", "loss", to='{"mean": 1.0, "count": 1e400}'), ""),
        (change("lags", to=f'{{"{BIG}": 1}}'), ""),
        (change("elapsed_s", to="1e300"), ""),
        (change("elapsed_s", to="-1e6"), ""),
        (change("stages_s", to='{"update": 1e308}'), ""),
        (twice, ""),
        (again, "step 0 "),
    ],
    SPANS: [
        *((third(text), "line 3") for text in ('{"lane":"learner"', '{"lane":"learner"},{"lane":"learner"}', DEEP)),
        (third(SPAN, stage=""), "stage"),
        (third(SPAN, end_ns=True), "$.end_ns"),
        (third(SPAN, end_ns=10**400), "line 3"),
        (twice, ""),
    ],
    GROUPS: [
        (third('{"kind":"batch","step":0,"groups":[[0]]}'), "$.groups[0]"),
        (third(SHARD, versions=[[0, 0]], lengths=[]), "0 items for 1 groups"),
        *((third(text), "line 3") for text in (DEEP, f'{{"kind":"batch","step":{BIG},"groups":[]}}')),
    ],
    COUNTERS: [
        (third(COUNTER, at_ns=1.5), "$.at_ns"),
        (third(COUNTER, values={"a": True}), "$.values[...]"),
        (third(COUNTER, values={"load_1min": 2**63}), "line 3"),
        *((third(text), "line 3") for text in (DEEP, COUNTER.replace("1", BIG, 1))),
        (twice, ""),
    ],
    ROLLOUTS: [(third(DEEP), "line 3"), (write(header("rollouts", 2) + "\n"), " 2;"), (write("{}\n{}\n"), "line 1")],
}


def read_all(run):
    read = load_run(run)
    assert read.settings.keys() | {*read.replaced} | {read.ledger}
    for rows in (read.spans, read.groups, read.rollouts):
        rows()
    read_counters(run)


@pytest.mark.parametrize("file", DAMAGE)
def test_damage_is_refused_with_its_file_and_line(tmp_path, file):
    def refused(damage, problem):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        damage(shutil.copytree(SOUND, run) / file)
        try:
            read_all(run)
        except UserError as error:
            return problem in error.what and str(run / file) in str(error.where)
        return False

    assert [number for number, each in enumerate(DAMAGE[file]) if not refused(*each)] == []


@pytest.fixture
def _not_drawn(monkeypatch):
    """Leave charts out of the page: they take seconds, and read no file."""
    monkeypatch.setattr("harness.report.document.Chart.figure", None)
    monkeypatch.setattr("harness.report.svg.page_svg", lambda figure, prefix: "")


CASES = [
    (MANIFEST, change("outcome", "replaced", to="null")),
    (SETTINGS, write(NESTED_YAML)),
    *((file, third(DEEP)) for file in (STEPS, SPANS, COUNTERS, ROLLOUTS)),
    (STEPS, change("elapsed_s", to="1e300")),
    *((file, pipe) for file in (MANIFEST, STEPS, SPANS, COUNTERS, ROLLOUTS, SETTINGS)),
    *((file, folder) for file in (MANIFEST, SPANS)),
    *((file, device) for file in (MANIFEST, COUNTERS)),
]


@pytest.mark.usefixtures("_not_drawn")
@pytest.mark.parametrize(("file", "damage"), CASES)
def test_a_damaged_run_is_left_out_by_name(tmp_path, capsys, file, damage):
    experiment = tmp_path / "results" / "sync_k1-vs-sync_k2" / "20261125-205319"
    for name in ("sound", "damaged"):
        shutil.copytree(SOUND, experiment / name)
    damage(experiment / "damaged" / file)
    page, trace = tmp_path / "report.html", tmp_path / "t.json.gz"
    commands = {"compare": [], "report": ["-o", str(page)], "trace": ["-o", str(trace)]}
    for command, options in commands.items():
        assert main([command, str(experiment), *options]) == 0
        said = capsys.readouterr()
        warnings = [line for line in said.err.splitlines() if line.startswith("warning: ")]
        named = [str(experiment / "damaged") in line for line in warnings]
        assert named == ([True] if file in READ_BY[command] else []), (command, warnings)
        if command == "report" and named:
            assert '<p class="caution">damaged: ' in page.read_text()
        told = {"compare": "s per step", "report": "report: ", "trace": "1 run," if named else "2 runs,"}
        assert told[command] in said.out
    text = page.read_text()
    assert ("s per step" in text, str(tmp_path) in text) == (True, False)
    if file in (COUNTERS, ROLLOUTS):  # no figure rests on them
        assert main(["compare", str(experiment), "--full"]) == 0
        assert all(file in each for each in (text, capsys.readouterr().out))


def test_only_regular_files_are_read(tmp_path):
    (file := tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(file)
    assert read_checked(tmp_path / "link", bytes) == b"text"
    pipe(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (2**22 + 1))
    with pytest.raises(UserError, match="has 4,194,305 bytes, must have at most 4,194,304"):
        read_checked(tmp_path / "large", bytes)
    for odd in (tmp_path / "pipe", tmp_path, Path("/dev/null"), tmp_path / "nothing"):
        with pytest.raises(UserError):
            read_checked(odd, bytes)


def test_what_json_may_hold_and_what_not():
    text = f'[{2**63 - 1}, -{2**63 - 1}, 1e9, "x", {{"a": []}}, NaN]'
    *values, last = decode_json(text.encode(), Free)
    assert (values, math.isnan(last)) == ([2**63 - 1, 1 - 2**63, 1e9, "x", {"a": []}], True)
    for text in (f"[{2**63}]", f"[-{BIG}]", "9" * 5000, DEEP, "[", "\udcff"):
        for odd in ("", "NaN"):
            with pytest.raises((ValueError, RecursionError)):
                decode_json((f'["{odd}", {text}]').encode(errors="surrogateescape"), Free)


def test_settings_keep_numbers_texts_and_seeds():
    longest = "0." + "0" * 10 + "123456789012345678"
    text = f"seed: 7\nrate: {longest}\nname: {'9a' * 50}\nlist: [1, [2]]\n"
    assert parse_settings(text) == {"seed": 7, "rate": float(longest), "name": "9a" * 50, "list": [1, [2]]}
