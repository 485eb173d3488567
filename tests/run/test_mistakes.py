"""What people type wrongly: each ends with 2 before anything is made, and a line of its error holds what to type."""

from pathlib import Path

import pytest

from harness.cli import main

MISTAKES: dict[str, tuple[str, ...]] = {
    # commands and arguments
    "runn mine": ("did you mean run?",),
    "comapre results": ("did you mean compare?",),
    "run": ("SCENARIO", "--resume FOLDER"),
    "compare": ("compare --help",),
    "run mine --steps 5": ("--set steps=5",),
    "run mine --lr 1e-4": ("--set optimizer.learning_rate=1e-4",),
    "run mine --set steps 5": ("--set steps=5",),
    "run mine steps=5": ("--set steps=5",),
    "bench mine --block 5": ("did you mean --blocks?",),
    "bench mine --blocks many": ("--blocks", "'many'"),
    "run mine --otu there": ("did you mean --out?",),
    "run mine --quiet -v": ("--quiet", "not allowed"),
    "sweep mine --resume auto": ("leave --resume out",),
    "bench mine --status": ("python -m harness sweep mine --status",),
    "sweep mine --status --out gone": ("--out",),
    "run --resume .": ("--resume expects the folder of a run, an experiment or a sweep",),
    "run --status": ("SCENARIO",),
    "run mine --dry-run --resume auto": ("--dry-run", "not allowed"),
    # scenarios
    "run mien": ("did you mean mine?",),
    "run gone/mine.yaml": ("did you mean mine?",),
    "run ''": ("python -m harness list",),
    "run .": ("is a folder",),
    "validate notes.txt": ("python -m harness list",),
    # settings
    "run mine --set stepps=3": ("did you mean `steps`?",),
    "run mine --set optimizer.lr=1e-4": ("`optimizer.learning_rate`",),
    "run mine --set lora.rank=8": ("no LoRA",),
    "run mine --set model=gpt2": ("model={type: folder, path: gpt2}",),
    "run mine --set transport=nixle": ("`transport.type=nixl`",),
    "run mine --set loss.type=grpo": ("grpo_clip",),
    "run mine --set steps=many": ("steps", "whole number"),
    "validate broken.yaml": ("broken.yaml, line 2, column 1",),
    "validate on_policy.yaml": ("on_policy.yaml, line 2",),
    "run two_arms.yaml --set arms.two.loss.type=no_baseline": ("error: in `two`: loss.type no_baseline",),
    "bench mine --blocks 0": ("`blocks` is 0, must be at least 1",),
    "bench mine --set stop_at_half_width=x": ("`stop_at_half_width` is text 'x'",),
    "run mine --set save_policy=yes": ("write true or false",),
    "run mine --set group_size=6": ("group_size 6 does not divide",),
    "run mine --set placement.learner.ranks=2": ("placement.learner.ranks",),
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
    "import tlr log.json": ("trl",),
    # what the release before had
    "baseline record main mine": ("harness compare NEW --against FOLDER",),
    "compare empty --save-baseline main": ("harness compare NEW --against FOLDER",),
    "compare empty --baseline stored:main": ("harness compare NEW --against FOLDER",),
    "compare empty --baseline arm:one": ("--baseline ARM",),
    "compare empty --pareto step_s,reward_last": ("--plots DIR",),
    "compare before.json": ("pytest-benchmark compare",),
    "schema": ("python -m harness validate --schema",),
    "bench mine --stop-at-half-width 1%": ("--set stop_at_half_width=0.01",),
    "sweep mine --attempts 0": ("up to 3 times",),
    "sweep mine --retry-failed": ("run --resume FOLDER",),
    "sweep mine --fresh": ("--out DIR",),
    "list --all": ("leave it out",),
    "compare empty --format json": ("--json, or --md",),
    "report empty --out page.html": ("-o FILE",),
    "trace empty --json": ("leave it out",),
    "recompute empty --step 1 --json": ("the exit code",),
    "import trl log.json -o there": ("--out DIR",),
    "calibrate --results there": ("--out DIR",),
    "calibrate --precision bfloat16": ("--set model.precision=bfloat16 --set engine.precision=bfloat16",),
    "calibrate --exclude-model tiny": ("--from FOLDER FOLDER",),
    "calibrate --description mine": ("`description` in the profile",),
    "simulate mine --steps 3": ("--set steps=N",),
    "simulate mine --model 7b": ("--sweep model=1.5b,7b",),
    "simulate mine --generators 2": ("--set placement.generator.count=N",),
    "simulate mine --allow-other-versions": ("--allow versions",),
    "simulate mine --no-run": ("--out DIR",),
    "simulate mine --processes 2": ("all cores",),
    "simulate mine --seed 2": ("harness.simulate_scenario",),
    "whatif empty --error-bound 5%": ("name another run",),
    "whatif empty -o a.png": ("--out DIR",),
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
    (tmp_path / "broken.yaml").write_text("steps: [3\n")
    (tmp_path / "on_policy.yaml").write_text("loss: {type: no_baseline}\nepochs_per_batch: 2\n")
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
