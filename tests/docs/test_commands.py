"""Every command that README and docs show can be typed, and those that read committed runs are run for real.

Commands that train are carried up to where the first run would begin, with their scenario and settings. Words in
capitals (``RUN``, ``DIR``) stand for something of the reader's, so such commands are parsed only.
"""

import re
import shutil
from glob import glob
from pathlib import Path

import pytest

from harness.cli import COMMANDS, command_parser, main
from harness.core.errors import UserError
from harness.results import find_run_folders
from tests.docs.pages import FENCE, PAGES, ROOT, Shown, blocks, shown_commands

COMMANDS_SHOWN = shown_commands()
REFERENCE = ROOT / "results" / "reference"
READERS = ("validate", "list", "compare", "report", "trace", "whatif", "simulate", "import")
"""Commands that neither train nor measure: they are run."""
UNTIL_THE_RUN = ("run", "bench", "sweep")
"""Commands that begin runs: they are carried out up to there."""
OF_A_GATE = (0, 1, 3, 4)
STAND_INS = {
    "logs/gsm8k.jsonl": None,
    "export.jsonl": None,
    "train.log": None,
    "wandb_export.csv": None,
    "a.jsonl": "tests/data/importers/verl_colocated.jsonl",
    "b.jsonl": "tests/data/importers/verl_split.jsonl",
    "checkpoints/trainer_state.json": "tests/data/importers/trl_1.16_trainer_state.json",
    "kineto.json.gz": "tests/data/traces/torch.json",
    "timeline.json": "tests/data/traces/ray.json",
    "trainer_state.json": "tests/data/importers/trl_1.16_trainer_state.json",
}
"""Files that the reader has, and what of ours stands in for them; None where nothing does."""
SCENARIOS = {"old": "sync_k1", "new": "sync_k2", "base": "sync_k1", "change": "sync_k2"}


def is_placeholder(word: str) -> bool:
    """Return whether a word, or its value, stands for something of the reader's, as absolute paths do too."""
    return re.fullmatch(r"([a-z_.-]+=)?[A-Z][A-Z_]*|\.\.\.|\.|/.*|.*\.sqlite", word) is not None


def by_kind() -> dict[str, list[Shown]]:
    """Return what a test does with each command: parse it, begin it, run it."""
    found: dict[str, list[Shown]] = {"parsed": [], "begun": [], "run": []}
    for shown in COMMANDS_SHOWN:
        words = shown.harness
        if words is None or not words:
            continue
        kind = "parsed"
        if shown.whole and not any(map(is_placeholder, words)) and words[0] in COMMANDS:
            missing = any(STAND_INS.get(word, word) is None for word in words)
            if words[0] in UNTIL_THE_RUN:
                kind = "parsed" if "--resume" in words else "begun"
            elif words[0] in READERS and not missing:
                kind = "run"
        found[kind].append(shown)
    return found


KINDS = by_kind()


def is_slow(shown: Shown) -> bool:
    """Return whether it takes more than some seconds."""
    words = shown.harness
    return words[0] in ("simulate", "whatif") or bool({"--plots", "--all", "course", "sorting_grid"} & set(words))


def once(shown: list[Shown]) -> list[Shown]:
    """Return the first of those that type the same, whole or as a part."""
    firsts = {(each.harness or each.words, each.whole): each for each in reversed(shown)}
    return list(reversed(firsts.values()))


def test_commands_of_each_kind_are_found():
    assert len(KINDS["run"]) > 30
    assert len(KINDS["begun"]) > 30
    assert set(COMMANDS) - {shown.harness[0] for shown in COMMANDS_SHOWN if shown.harness} == set()


def why_not_taken(shown: Shown, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the parser says against a command; empty where it takes it."""
    name, *typed = shown.harness
    if name in ("--help", "--version", "COMMAND"):
        return ""  # of the program itself
    if name not in COMMANDS:
        return "no such command"
    try:
        command_parser(name).parse_args(["1" if word == "N" else word for word in typed])
    except (SystemExit, UserError) as stop:
        if getattr(stop, "code", 2) == 0:
            return ""  # --help
        said = str(stop) + capsys.readouterr().err
        known = {option for action in command_parser(name)._actions for option in action.option_strings}
        unknown = [word for word in typed if word.startswith("--") and word not in known]
        # a sentence may leave out what it is not about
        return "" if not shown.whole and "required: " in said and not unknown else said
    return ""


def test_the_harness_takes_what_is_shown(capsys):
    ours = once([shown for shown in COMMANDS_SHOWN if shown.harness])
    assert {str(shown): said for shown in ours if (said := why_not_taken(shown, capsys))} == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as a reader's, with results, and files of the names that the pages use."""
    home = tmp_path_factory.mktemp("reader")
    shutil.copytree(REFERENCE, home / "results" / "reference")
    for name in ("docs", "tests"):
        (home / name).symlink_to(ROOT / name)
    for name, ours in STAND_INS.items():
        if ours:
            (home / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / ours, home / name)
    shutil.copytree(ROOT / "scenarios", home / "scenarios")
    for name, ours in SCENARIOS.items():
        (home / "scenarios" / f"{name}.yaml").write_text(f"extends: {ours}\n")
    (home / "mine.yaml").write_text(blocks("scenarios.md", "yaml")[0])
    shutil.copytree(REFERENCE / "sync_k1-vs-sync_k2", home / "baseline" / "noise")
    (home / "my_package").mkdir()
    for words in (shown.words for shown in COMMANDS_SHOWN):
        for word in words:
            named = re.match(r"results/(?!reference|simulated)(\w+)(/\d{8}-\d{6})?", word)
            if named and not (home / named[0]).exists():
                same = REFERENCE / named[0].removeprefix("results/")
                one = REFERENCE / "sync_k1-vs-sync_k2"
                one = next(one.iterdir()) if named[2] else one
                if named[2] and named[1] in ("recorded", "quickstart"):  # one run, with spans
                    one = next(iter(find_run_folders(REFERENCE / "async_lag1")))
                shutil.copytree(same if same.is_dir() else one, home / named[0])
    return home


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go there, onto a terminal of 80 columns."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")


SOME_OR_SLOW = pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])


@SOME_OR_SLOW
def test_what_trains_is_ready_to_begin(slow, folder, monkeypatch):
    in_folder(folder, monkeypatch)
    failed = {}
    for shown in once(KINDS["begun"]):
        if is_slow(shown) != slow:
            continue
        begun, words = [], list(shown.harness)
        words += ["--status"] if words[0] == "sweep" and "--status" not in words else []
        code = main(words, run_scenario=lambda scenario, out, quiet, begun=begun: begun.append(scenario) or 0)
        if (code, len(begun)) != (0, words[0] in ("run", "bench") and "--dry-run" not in words):
            failed[str(shown)] = code, begun
    assert failed == {}


@SOME_OR_SLOW
def test_what_reads_runs(slow, folder, monkeypatch, capsys):
    in_folder(folder, monkeypatch)
    before, failed = set((folder / "results").iterdir()), {}
    for shown in once(KINDS["run"]):
        if is_slow(shown) != slow:
            continue
        words = [each for word in shown.harness for each in (glob(word) if "*" in word else [word])]
        if words[0] == "simulate" and "--machine" in words:  # the same question of fewer worlds
            short = ["--set", "steps=2"] if {"--ask", "--sweep"} & set(words) else []
            words += ["--draws", "1" if "gpus" in words else "2", "--quiet", *short]
        capsys.readouterr()
        code, said = main(words), capsys.readouterr()
        for made in set((folder / "results").iterdir()) - before:  # the newest experiment stays the same one
            shutil.rmtree(made) if made.is_dir() else made.unlink()
        silent = words[0] != "simulate" and not said.out + said.err
        if silent or code not in (OF_A_GATE if "--fail-on" in words else (0,)):
            failed[str(shown)] = code, said.err
    assert [f"{shown}: {said}" for shown, (_, said) in failed.items()] == []


def consoles() -> list:
    """Return each command of a ``console`` block that reads committed runs, with what the page shows of its output."""
    found = []
    for page in PAGES:
        for block in FENCE.finditer(page.read_text(encoding="utf-8")):
            if block[2] != "console":
                continue
            for part in re.split(r"^\$ ", block[3], flags=re.MULTILINE)[1:]:
                typed, _, output = part.partition("\n")
                words = typed.removeprefix("python -m harness ").removeprefix("grpo-harness ").split("  #")[0].split()
                if words[0] in ("validate", "compare", "whatif", "trace"):
                    found.append(pytest.param(words, output, id=f"{page.name}: {typed}", marks=pytest.mark.slow))
    return found


@pytest.mark.parametrize(("words", "output"), consoles())
def test_what_a_page_says_that_a_command_prints(words, output, folder, monkeypatch, capsys):
    in_folder(folder, monkeypatch)
    assert main(words) == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shown = [" ".join(line.split()) for line in output.splitlines() if line.strip() not in ("", "...")]
    assert shown
    assert [line for line in shown if line not in printed] == []


def test_make_has_what_is_shown():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    variables = set(re.findall(r"\$\((?:or \$\()?([A-Z]+)\b", makefile))
    for shown in (shown for shown in COMMANDS_SHOWN if shown.words[0] == "make"):
        assert {word for word in shown.words[1:] if "=" not in word} <= targets, str(shown)
        assert {word.partition("=")[0] for word in shown.words[1:] if "=" in word} <= variables, str(shown)
    assert set(re.findall(r"-m harness ([a-z][\w-]*)", makefile)) <= set(COMMANDS)


def test_scripts_are_there_with_their_options():
    for shown in COMMANDS_SHOWN:
        words = shown.words
        if words[0] not in ("python", "pytest") or shown.harness is not None:
            continue
        files = [word for word in words if word.endswith(".py")]
        if words[:2] == ("python", "-m") and words[2].startswith(("tests.", "harness.")):
            path = ROOT.joinpath(*words[2].split("."))
            files.append(next(str(each) for each in (path.with_suffix(".py"), path / "__main__.py") if each.is_file()))
            # what programs share is in the runner
            text = Path(files[-1]).read_text() + (ROOT / "tests/benchmarks/runner.py").read_text()
            unknown = [word for word in words if word.startswith("--") and f'"{word.split("=")[0]}"' not in text]
            assert unknown == [], str(shown)
        assert [file for file in files if not (ROOT / file).exists()] == [], str(shown)
