"""Who imports what, seen from fresh interpreters. The layers themselves are import-linter's, in `make check`."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "ray", "transformers", "vllm"}
PICTURES = {"pandas", "seaborn", "matplotlib"}
COMPARING = HEAVY | PICTURES | {"jinja2", "scipy.stats", "scipy.optimize"}
TRACKED = """from harness.results import EvaluationRow
from harness.results.trackers import open_streams
streams = open_streams(["jsonl"], Path("OUT"), "run")
streams.on_row(EvaluationRow(0, 0, 0.0, {}))
streams.close()"""
GRADED = """from harness.tasks.maths import AnswerGrader
grader = AnswerGrader(600.0)
assert grader("0.5", "1/2") and grader("x+1", "1+x")
grader.close()"""
LIGHT = """import harness.loop, harness.run.memory, harness.results.recorder, harness.tasks.jsonl
import harness.tasks.keywords, harness.simulate.parts, harness.simulate.machine, harness.simulate.calibrate.command
import harness.simulate.calibrate.quality, harness.simulate.whatif.command, harness.simulate.whatif.report
import harness.gpu_check.runner"""
RUN = "results/reference/sync_k/20261125-210813/k1"
CHAINS: dict[str, list[tuple[str, set[str]]]] = {
    "what is compared, without settings": [
        ("import harness", {*HEAVY, *PICTURES, "pydantic", "numpy", "msgspec"}),
        (
            "import harness.gpu_check.command, harness.gpu_check.wheels",
            {"numpy", "rich", "pandas", "pydantic", "msgspec"},
        ),
        ("import harness.compare.stats, harness.compare", COMPARING | {"pydantic", "scipy", "rich"}),
        ("harness.compare_runs", {*HEAVY, *PICTURES, "scipy", "pytest"}),
        (f"trace {RUN} -o OUT/trace.json", COMPARING | {"pydantic", "scipy"}),
        ("compare results/reference/rdt_nixl", COMPARING | {"pydantic"}),
        ("report results/reference/rdt_nixl -o OUT/report.html", HEAVY | {"pydantic"}),
    ],
    "what is measured and recorded": [
        ("import harness.probes.sampler", {*HEAVY, *PICTURES, "numpy", "pydantic", "psutil", "pynvml", "scipy"}),
        ("from harness.probes.provenance import package_versions\npackage_versions(('torch',))", HEAVY),
        (TRACKED, {*HEAVY, "numpy", "tensorboardX", "wandb", "mlflow"}),
        ("import trl tests/data/importers/trl_vllm.jsonl --out OUT", HEAVY | {"pydantic", "scipy", "tensorboardX"}),
    ],
    "what is planned and simulated": [
        ("import harness.scenario.load, harness.cli", {*HEAVY, *PICTURES, "numpy", "rich"}),
        ("compare results/reference/sync_k", COMPARING),  # of one run each, for which a command is proposed
        (LIGHT, HEAVY | PICTURES),
        (GRADED, {*HEAVY, "sympy", "math_verify"}),
    ],
    "the maths": [
        ("import harness.grpo", {"ray", "transformers", "vllm", "pydantic", "pandas", "harness.core.trace"}),
        ("import harness.engines.paced, harness.learner.paced", {"transformers", "ray", "vllm"}),
    ],
}
"""Of each interpreter: statements or commands one after the other, and what must not be loaded after each."""
PROGRAM = """
import contextlib, io, json, sys
from pathlib import Path

loaded = []
for line in json.load(sys.stdin):
    if line.partition(" ")[0] in ("compare", "trace", "report") or " --out " in line:
        from harness import cli
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(line.split()) == 0, line
    else:
        exec(line)
    loaded.append(sorted(sys.modules))
print(json.dumps(loaded))
"""


@pytest.mark.parametrize("chain", CHAINS)
def test_what_must_not_be_loaded_is_not(chain: str, tmp_path: Path) -> None:
    lines = [line.replace("OUT", str(tmp_path)) for line, _ in CHAINS[chain]]
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=json.dumps(lines), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = [set(names) for names in json.loads(done.stdout)]
    assert {"harness", "json"} <= loaded[-1]
    found = [(line, never & names) for (line, never), names in zip(CHAINS[chain], loaded, strict=True) if never & names]
    assert found == []


@cache
def imports_of(path: Path) -> set[str]:
    """Return the top-level names of every import statement in a file, wherever in it they stand."""
    return set(re.findall(r"^ *(?:import|from) (\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))


def files_importing(name: str) -> list[str]:
    """Return the files of the package with an import statement for ``name``."""
    files = sorted((ROOT / "harness").rglob("*.py"))
    return [path.relative_to(ROOT).as_posix() for path in files if name in imports_of(path)]


def test_the_loop_uses_no_thread_and_no_wall_clock() -> None:
    imported = set().union(*(imports_of(path) for path in (ROOT / "harness/loop").glob("*.py")))
    assert "asyncio" in imported
    assert imported & {"threading", "time", "concurrent", "multiprocessing"} == set()


def test_pictures_are_drawn_in_the_report_alone() -> None:
    drawing = {path for library in PICTURES for path in files_importing(library)}
    elsewhere = {path for path in drawing if not path.startswith("harness/report/")}
    frames = (
        "results/frames",
        "results/importers/convert",
        "results/importers/logs",
        "compare/experiment",
        "simulate/calibrate/effects",
        "simulate/sweep",
    )
    assert elsewhere == {f"harness/{name}.py" for name in frames}


LOADING = re.compile(r"\b(LLM|AsyncLLM|pipeline|Engine|from_pretrained|from_config)\b")


def loads_of_models(tree: ast.AST) -> list[ast.Call]:
    """Return the calls that transformers, vLLM or SGLang answer by loading what a model folder names."""

    def is_load(called: ast.expr) -> bool:
        if isinstance(called, ast.Name):
            return called.id in ("LLM", "AsyncLLM", "pipeline")
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return False
        owner, name = called.value.id, called.attr
        is_auto = owner.startswith("Auto") and name in ("from_pretrained", "from_config")
        return is_auto or (owner, name) == ("sglang", "Engine")

    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_load(node.func)]


def test_every_load_of_a_model_refuses_the_folders_own_code() -> None:
    files = [path for name in ("harness", "tests") for path in sorted((ROOT / name).rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    loads = {path: loads_of_models(ast.parse(text)) for path, text in texts.items() if LOADING.search(text)}
    assert sum(map(len, loads.values())) >= 5
    trusting = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, calls in loads.items()
        for call in calls
        if not any(
            word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant) and word.value.value is False
            for word in call.keywords
        )
    ]
    assert trusting == []
