"""One damaged run is left out by name; the three commands that read a folder of runs show the others."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from harness.cli import main
from harness.core.errors import UserError
from harness.results.jsonl import Free, decode_json, read_checked
from harness.results.reader import parse_settings

REFERENCE = Path(__file__).parents[2] / "results/reference"
SOUND = REFERENCE / "sync_k1-vs-sync_k2/20261125-205319/sync_k1,block=0"
MANIFEST, SETTINGS = "manifest.json", "scenario.resolved.yaml"
STEPS, SPANS, COUNTERS, ROLLOUTS = "steps.jsonl", "spans.jsonl", "counters.jsonl", "rollouts.jsonl"
READ_BY = {
    "compare": {MANIFEST, SETTINGS, STEPS, SPANS},
    "report": {MANIFEST, SETTINGS, STEPS, SPANS},
    "trace": {MANIFEST, SETTINGS, STEPS, SPANS, COUNTERS},
}
DEEP, BIG, NESTED_YAML = "[" * 100_000 + "]" * 100_000, "1" + "0" * 400, "a: " + "[" * 20_000 + "]" * 20_000
LAUGHS = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


@pytest.fixture
def _ends() -> Iterator[None]:
    """Fail where a command waits for what never comes, such as the other end of a pipe."""

    def fail(number: int, frame: FrameType | None) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


Damage = Callable[[Path], object]


def write(text: str) -> Damage:
    return lambda path: path.write_text(text)


def add(line: str) -> Damage:
    """Append a row to a file that may not be there yet."""

    def damage(path: Path) -> None:
        header = json.dumps({"kind": "header", "schema": f"harness.{path.stem}", "schema_version": 1}) + "\n"
        path.write_text((path.read_text() if path.exists() else header) + line + "\n")

    return damage


def change(*keys: str, to: str) -> Damage:
    """Put a JSON text in the place of a value of the manifest, or of the first training step."""

    def damage(path: Path) -> None:
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = next(n for n, text in enumerate(texts) if path.suffix == ".json" or '"kind":"step"' in text)
        row = holder = json.loads(texts[number])
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]] = "HERE"
        texts[number] = json.dumps(row).replace('"HERE"', to)
        path.write_text("\n".join(texts) + "\n")

    return damage


def twice(path: Path) -> None:
    """What two processes leave that wrote one after the other, a header each."""
    path.write_bytes(path.read_bytes() * 2)


def again(path: Path) -> None:
    """The rows of another run behind those of this one, under one header."""
    path.write_bytes(path.read_bytes() + path.read_bytes().partition(b"\n")[2])


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


CASES: list[tuple[str, str, Damage]] = [
    ("nested", MANIFEST, write(DEEP)),
    ("nested", STEPS, add(DEEP)),
    ("nested", SPANS, add(DEEP)),
    ("nested", COUNTERS, add(DEEP)),
    ("nested", ROLLOUTS, add(DEEP)),
    ("nested_900", MANIFEST, change("machine", "cpu", to="[" * 900 + "]" * 900)),
    ("nested", SETTINGS, write(NESTED_YAML)),
    ("hex", SETTINGS, write("steps: 0x" + "f" * 5000)),
    ("sixties", SETTINGS, write("steps: 1" + ":00" * 1000 + ".0")),
    ("aliases", SETTINGS, write(LAUGHS)),
    ("big", MANIFEST, change("startup_s", to=BIG)),
    ("big", STEPS, change("wall_s", to=BIG)),
    ("big_metric", STEPS, change("metrics", "loss", to=f'{{"mean": {BIG}, "count": 1}}')),
    ("big_count", STEPS, change("metrics", "loss", to='{"mean": 1.0, "count": 1e400}')),
    ("big_lag", STEPS, change("lags", to=f'{{"{BIG}": 1}}')),
    ("long", STEPS, change("elapsed_s", to="1e300")),
    ("before", STEPS, change("elapsed_s", to="-1e6")),
    ("long_stage", STEPS, change("stages_s", to='{"update": 1e308}')),
    ("big", SPANS, add(f'{{"lane":"learner","stage":"update","start_ns":1,"end_ns":{BIG},"step":0,"version":0}}')),
    ("big", COUNTERS, add(f'{{"kind":"counter","at_ns":{BIG},"source":"host","values":{{}}}}')),
    ("big_value", COUNTERS, add(f'{{"kind":"counter","at_ns":1,"source":"host","values":{{"load_1min":{2**63}}}}}')),
    ("null", MANIFEST, change("outcome", "replaced", to="null")),
    ("text", MANIFEST, change("outcome", "replaced", to='"x"')),
    ("list", MANIFEST, change("outcome", "replaced", to="[1]")),
    ("text_inside", MANIFEST, change("outcome", "replaced", to='{"learner": "x"}')),
    ("text_for_cores", MANIFEST, change("machine", "cores", to='"x"')),
    ("text_for_seconds", MANIFEST, change("startup_s", to='"x"')),
    ("list_for_version", MANIFEST, change("versions", to='{"torch": [1]}')),
    ("no_number", MANIFEST, change("non_finite", to='{"/startup_s": "x"}')),
    ("infinite", MANIFEST, change("startup_s", to="1e400")),
    ("sync_without_bytes", STEPS, add('{"kind":"sync"}')),
    ("no_plan", MANIFEST, change("schema_version", to="99")),
    ("two_runs", STEPS, twice),
    ("two_runs", SPANS, twice),
    ("two_runs", COUNTERS, twice),
    ("a_step_again", STEPS, again),
    *(("pipe", file, pipe) for file in (MANIFEST, STEPS, SPANS, COUNTERS, ROLLOUTS, SETTINGS)),
    *(("folder", file, folder) for file in (MANIFEST, STEPS, SPANS, SETTINGS)),
    *(("device", file, device) for file in (MANIFEST, SPANS, COUNTERS, SETTINGS)),
]


@pytest.fixture
def _not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave charts out of the page: they take seconds, and read no file."""
    monkeypatch.setattr("harness.report.document.Chart.figure", None)
    monkeypatch.setattr("harness.report.svg.page_svg", lambda figure, prefix: "")


@pytest.mark.usefixtures("_ends", "_not_drawn")
@pytest.mark.parametrize(("what", "file", "damage"), CASES, ids=[f"{what}-{file}" for what, file, _ in CASES])
def test_a_damaged_run_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, file: str, damage: Damage
) -> None:
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
    assert "s per step" in text
    assert str(tmp_path) not in text
    if file in (COUNTERS, ROLLOUTS):  # no figure rests on them
        assert main(["compare", str(experiment), "--full"]) == 0
        assert all(file in each for each in (text, capsys.readouterr().out))


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"text")
    (tmp_path / "link").symlink_to(file)
    assert read_checked(tmp_path / "link", bytes) == b"text"
    pipe(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (2**22 + 1))
    with pytest.raises(UserError, match="has 4,194,305 bytes, must have at most 4,194,304"):
        read_checked(tmp_path / "large", bytes)
    for odd in (tmp_path / "pipe", tmp_path, Path("/dev/null"), tmp_path / "nothing"):
        with pytest.raises(UserError, match=r"no regular file|Is a directory|No such file"):
            read_checked(odd, bytes)


def test_what_json_may_hold() -> None:
    text = f'[{2**63 - 1}, -{2**63 - 1}, 1e9, "x", {{"a": []}}, NaN]'
    *values, last = decode_json(text.encode(), Free)
    assert values == [2**63 - 1, 1 - 2**63, 1e9, "x", {"a": []}]
    assert math.isnan(last)


@pytest.mark.parametrize("text", [f"[{2**63}]", f"[-{BIG}]", "9" * 5000, DEEP, "[", "\udcff"])
@pytest.mark.parametrize("odd", ["", "NaN"])
def test_what_json_may_not_hold(text: str, odd: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_json((f'["{odd}", {text}]').encode(errors="surrogateescape"), Free)


def test_settings_keep_numbers_texts_and_seeds() -> None:
    longest = "0." + "0" * 10 + "123456789012345678"
    text = f"seed: 7\nrate: {longest}\nname: {'9a' * 50}\nlist: [1, [2]]\n"
    assert parse_settings(text) == {"seed": 7, "rate": float(longest), "name": "9a" * 50, "list": [1, [2]]}
