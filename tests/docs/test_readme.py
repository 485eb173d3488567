"""What the pages say of stages, scenarios and files is so."""

import re
import subprocess
from typing import get_args

import yaml

from harness.core.trace import Stage
from harness.results.occupancy import NEAREST_FIRST
from harness.scenario.axes import expand
from harness.scenario.keys import dotted_keys
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.settings.transport import TransportName
from tests.docs.pages import ROOT, blocks

DOCS = ROOT / "docs"


def test_the_scenario_and_the_task_shown_load(tmp_path):
    whole, section = blocks("scenarios.md", "yaml")[:2]
    (tmp_path / "mine.yaml").write_text(whole)
    variants = expand(load_scenario(tmp_path / "mine.yaml"))
    # 2 arms x 3 seeds; the group size is the arm's
    assert [variant.scenario.group_size for variant in variants] == [4, 16, 4, 16, 4, 16]
    assert [variant.scenario.seed for variant in variants] == [0, 0, 1, 1, 2, 2]
    task = Scenario.model_validate(yaml.safe_load(section)).task
    assert (task.type, task.train, task.reward) == ("jsonl", "prompts.jsonl", "my_package.my_module:my_reward")


def test_every_stage_is_explained_once():
    page = (DOCS / "stages.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert [named.count(stage.value) for stage in Stage] == [1] * len(Stage)


def test_every_transport_is_explained_once():
    page = (DOCS / "distributed.md").read_text(encoding="utf-8")
    table = page.partition("| `transport.type` |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(get_args(TransportName))


def test_the_order_of_the_critical_path_is_the_tables():
    """The page names the weight stages by the first and the last of them."""
    page = (DOCS / "report.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"nearest to the next\s+batch: (.*?)\.\n", page, flags=re.DOTALL)
    named = re.findall(r"`([a-z_]+)`", told)
    weights = [stage.value for stage in NEAREST_FIRST if stage.value.startswith("weight_")]
    assert named == [stage.value for stage in NEAREST_FIRST if stage.value not in weights[1:-1]]


def test_what_runs_in_ci_is_what_contributors_are_told_to_run():
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    told = "\n".join(blocks("contributing.md", "bash"))
    assert [line for line in script if line.startswith("make") and line not in told] == []


def test_citation_and_package_are_of_one_version():
    from harness import __version__

    cited = yaml.safe_load((DOCS / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], cited["license"]) == (__version__, "Apache-2.0")


def test_the_workflow_types_what_make_and_the_harness_have():
    from harness.cli import COMMANDS, command_parser

    jobs = yaml.safe_load((DOCS / "examples" / "ci" / "performance_gate.yml").read_text(encoding="utf-8"))["jobs"]
    typed = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    ours = [words.split("-m harness ")[1].split() for words in typed if "-m harness" in words]
    assert [words[0] for words in ours] == ["bench", "compare", "report"]
    for name, *arguments in ours:
        assert name in COMMANDS
        command_parser(name).parse_args(arguments)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {words.split()[1] for words in typed if words.startswith("make ")} <= targets


def test_the_examples_that_nobody_could_run_here_are_whole():
    """The Slurm script is bash, sets settings that there are, and the Dockerfiles copy files that there are."""
    script = DOCS / "examples" / "slurm" / "ray_cluster.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    settings = re.findall(r"--set ([\w.]+)=", script.read_text())
    assert settings == ["placement.address", "placement.interface", "placement.strategy"]
    assert set(settings) <= set(dotted_keys(Scenario))
    for name in ("cpu", "cuda"):
        lines = (DOCS / "examples" / "containers" / f"{name}.Dockerfile").read_text().splitlines()
        copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
        assert {"harness", "scenarios", "profiles", "pyproject.toml"} <= set(copied)
        assert [word for word in copied if not (ROOT / word).exists()] == []
