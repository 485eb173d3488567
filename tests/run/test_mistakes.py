"""What people type wrongly: each ends with 2 before anything is made, and a line of its error holds what to type."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.core.removed import INSTEAD

MISTAKES: dict[str, tuple[str, ...]] = {
    # commands and arguments
    "comapre results": ("did you mean compare?",),
    "run": ("SCENARIO", "--resume FOLDER"),
    "compare": ("compare --help",),
    "run mine --steps 5": ("--set steps=5",),
    "run mine --lr 1e-4": ("--set optimizer.learning_rate=1e-4",),
    "run mine steps=5": ("--set steps=5",),
    "bench mine --block 5": ("did you mean --blocks?",),
    "run mine --otu there": ("did you mean --out?",),
    "sweep mine --resume auto": ("leave --resume out",),
    "bench mine --status": ("python -m harness sweep mine --status",),
    "sweep mine --status --out gone": ("--out",),
    "run --resume .": ("--resume expects the folder of a run, an experiment or a sweep",),
    "run --status": ("SCENARIO",),
    # scenarios
    "run mien": ("did you mean mine?",),
    "run gone/mine.yaml": ("did you mean mine?",),
    "run ''": ("python -m harness list",),
    "run .": ("is a folder",),
    "validate notes.txt": ("python -m harness list",),
    # settings
    "run mine --set optimizer.lr=1e-4": ("`optimizer.learning_rate`",),
    "run mine --set lora.rank=8": ("no LoRA",),
    "run mine --set model=gpt2": ("model={type: folder, path: gpt2}",),
    "run mine --set transport=nixle": ("`transport.type=nixl`",),
    "run mine --set loss.type=grpo": ("grpo_clip",),
    "run two_arms.yaml --set arms.two.loss.type=no_baseline": ("error: in `two`: loss.type no_baseline",),
    # files and folders
    "run mine --out notes.txt": ("--out DIR",),
    "compare gone": ("gone", "does not exist"),
    "compare empty": ("run quickstart",),
    "report empty -o notes.txt": ("-o FILE",),
    "report empty -o gone/page.html": ("mkdir -p gone",),
    "trace empty": ("run quickstart",),
    "simulate mine --machine h100": ("did you mean h100-sxm",),
    "calibrate --out mine.yaml": ("-o mine.yaml",),
    "dataset keywords --model preset:small -n 9": ("--out",),
    "evaluate --data gone.jsonl": ("--model",),
    "import trl gone.json": ("gone.json",),
    # what the release before had: some of the table in core/removed.py
    "baseline record main mine": ("harness compare NEW --against FOLDER",),
    "compare empty --baseline arm:one": ("--baseline ARM",),
    "compare empty --pareto step_s,reward_last": ("--plots DIR",),
    "compare before.json": ("pytest-benchmark compare",),
    "schema": ("python -m harness validate --schema",),
    "bench mine --stop-at-half-width 1%": ("--set stop_at_half_width=0.01",),
    "sweep mine --attempts 0": ("up to 3 times",),
    "list --all": ("leave it out",),
    "compare empty --format json": ("--json, or --md",),
    "simulate mine --steps 3": ("--set steps=N",),
    "whatif empty --error-bound 5%": ("name another run",),
    "evaluate --device cpu": ("CUDA_VISIBLE_DEVICES",),
    # each mistake is told before another thing that lacks
    "simulate mien": ("did you mean mine?",),
    "whatif --from empty": ("whatif empty",),
    "evaluate --model preset:tiny --engine sglang": ("run as an actor of a training run",),
    "run mine --set sampling.pinned_lengths=[9,3]": ("--set sampling.pinned_lengths=[4,",),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("steps: 10\n")
    (tmp_path / "two_arms.yaml").write_text("steps: 10\narms:\n  one: {}\n  two: {epochs_per_batch: 2}\n")
    (tmp_path / "notes.txt").write_text("keep me")
    (tmp_path / "before.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_answered_with_what_to_type(typed: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    arguments = ["" if word == "''" else word for word in typed.split(" ")]
    assert main(arguments, lambda scenario, out, quiet: pytest.fail("it ran")) == 2
    out, error = capsys.readouterr()
    lines = error.splitlines()
    assert lines[0].startswith("error: ")
    assert any(all(words in line for words in MISTAKES[typed]) for line in lines), error
    assert "Traceback" not in error
    assert max(map(len, lines)) < 400
    assert (out, sorted(folder.rglob("*"))) == ("", before)
    assert (folder / "notes.txt").read_text() == "keep me"


def test_every_option_of_the_release_before_is_refused_with_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    for name, instead in INSTEAD.items():
        command, _, option = name.rpartition(" ")
        if command:
            assert main([command, option]) == 2, name
            assert instead in capsys.readouterr().err, name
