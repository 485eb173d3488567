"""Parts of a user's own: the example of docs/extending.md, and what is said of parts that are none."""

from __future__ import annotations

import csv
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
import harness.testing
from harness.cli import main
from harness.core.errors import UserError
from harness.core.plugins import PluginKind, check_methods, make_plugin
from harness.core.protocols import Engine, Task, Tokenizer
from harness.core.types import Prompt
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer
from harness.results.counters import read_counters
from harness.results.manifest import MADE_OF
from harness.results.reader import load_run
from harness.results.trackers import TRACKER_PLUGIN, MetricStream
from harness.run.plugins import check_plugins, plugin_names
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.testing import ModelEngineContract, TaskContract, TrackerContract, TransportContract
from tests.run.conftest import Caps

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/own_parts"
PARTS = "docs.examples.own_parts.parts"
TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
NAMES = {
    "task.type": f"{PARTS}:Counting",
    "advantage.function": f"{PARTS}:best_only",
    "engine.type": f"{PARTS}:Remote",
    "transport.type": f"{PARTS}:FILES",
    "trackers[1]": f"{PARTS}:Csv",
    "profile.own[0]": "docs.examples.own_parts.probe:OpenFiles",
}


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where the examples are found, and leave the import path as it was."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module into the current folder and return its name; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    names: list[str] = []

    def write(body: str) -> str:
        names.append(f"own_parts_of_test_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(body)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


class TestCounting(TaskContract):
    """The example's task."""

    def make_task(self) -> Task:
        from docs.examples.own_parts.parts import Counting

        task: Task = Counting()
        return task

    def right_response(self, prompt: Prompt) -> str:
        return "." * int(prompt.ground_truth)


def spread_model(seed: int) -> DecoderLM:
    """One whose logits are spread over several units."""
    model = DecoderLM(dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), hidden_size=64))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return model.eval()


class TestRemote(ModelEngineContract):
    """The example's engine."""

    tokenizer, model, other = TOKENIZER, spread_model(0), spread_model(1)

    def make_engine_of(
        self,
        model: Any,
        tokenizer: Tokenizer,
        should_stop: Callable[[], bool] | None = None,
        max_batch: int = 256,
        ends: Sequence[int] | None = None,
    ) -> Engine:
        from docs.examples.own_parts.parts import Remote

        engine: Engine = Remote(model, tokenizer, ends, max_batch, should_stop, pause_s=0.0)
        return engine


class TestCsv(TrackerContract):
    """The example's tracker."""

    def make_tracker(self, folder: Path) -> MetricStream:
        tracker: MetricStream = make_plugin(f"{PARTS}:Csv", TRACKER_PLUGIN, {"folder": folder, "run_name": "run"}, {})
        return tracker

    def logged(self, folder: Path) -> list[tuple[int, str, dict[str, float]]]:
        rows: dict[tuple[int, str], dict[str, float]] = {}
        with (folder / "metrics.csv").open(newline="") as file:
            for step, kind, name, value in csv.reader(file):
                rows.setdefault((int(step), kind), {})[name] = float(value)
        return [(step, kind, values) for (step, kind), values in rows.items()]


@pytest.mark.slow
class TestFiles(TransportContract):
    """The example's transport, between real actors."""

    transport = f"{PARTS}:FILES"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("weights")
        cls.fields = {"options": {"folder": str(folder)}}
        yield
        assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_run_with_own_parts_alone(tmp_path: Path) -> None:
    """As Ray actors, which import them again."""
    comparison = harness.run_scenario(
        EXAMPLE / "parts.yaml", {"transport.options.folder": str(tmp_path / "weights")}, out=tmp_path / "results"
    )
    run = load_run(comparison.folder)
    assert run.manifest.status == "completed"
    assert [row.step for row in run.steps] == [0, 1, 2, 3]
    files = {key: found for key, found in run.manifest.inputs.items() if key not in MADE_OF}
    assert {key: found["name"] for key, found in files.items()} == NAMES
    assert all(len(found["sha256"] or "") == 64 for found in files.values())
    with (comparison.folder / "metrics.csv").open(newline="") as file:
        steps = [row[0] for row in csv.reader(file) if row[1:3] == ["step", "timing_s/step"]]
    assert steps == ["0", "1", "2", "3"]
    read = [row.values for row in read_counters(comparison.folder) if row.source == NAMES["profile.own[0]"]]
    assert read
    assert all(set(values) == {"open_files"} and values["open_files"] for values in read)
    assert list((tmp_path / "weights").iterdir()) == []


def test_the_example_names_a_part_of_every_kind_and_each_can_be_used() -> None:
    scenario = load_scenario(EXAMPLE / "parts.yaml")
    assert plugin_names(scenario) == NAMES
    check_plugins(scenario)


MARK = """from pathlib import Path

Path('imported').touch()


class Mine:
    def log(self, step, values):
        pass
"""


def test_validate_imports_none_unless_asked_to(module: Callable[[str], str], tmp_path: Path, capsys: Caps) -> None:
    name = module(MARK)
    Path("s.yaml").write_text(f"trackers: ['{name}:Mine']\n")
    assert main(["validate", "s.yaml"]) == 0
    assert not (tmp_path / "imported").exists()
    assert f"{name}:Mine" in capsys.readouterr().out
    assert main(["validate", "s.yaml", "--check-code"]) == 2
    assert (tmp_path / "imported").exists()


PROTOCOLS = {
    "methods": (
        "trackers: ['{}:Mine']",
        MARK,
        "log(self, step, values) cannot be called as the harness does; it has no method close",
        "def log(self, step: int, kind: str, values: Mapping[str, float]) -> None; add def close(self) -> None",
    ),
    "an option that it does not take": (
        "task: {{type: '{}:Mine', options: {{mst: 3}}}}",
        "class Mine:\n    def __init__(self, most=3):\n        pass\n",
        "'mst'",
        "options all: mst",
    ),
    "a method of another form": (
        "engine: {{type: '{}:Mine'}}",
        "class Mine:\n    def generate(self, prompts):\n        pass\n",
        "generate(self, prompts) cannot be called as the harness does; it has no method load_weights",
        "places: Sequence[int] | None = None) -> list[tuple[Completion, ...]]; add def load_weights",
    ),
    "no class": (
        "engine: {{type: '{}:Mine'}}",
        "Mine = 3\n",
        "type int",
        "Mine(model, tokenizer, **options) -> Engine",
    ),
    "another name": ("engine: {{type: '{}:Min'}}", "class Mine:\n    pass\n", "has no 'Min'", ":Mine?"),
    "a receiver of another form": (
        "transport: {{type: '{}:Mine'}}",
        "from harness.transports.catalogue import TransportKind\n"
        "from harness.transports.disk import DiskSender\n\n\n"
        "class Receiver:\n    def receive(self, handle):\n        pass\n\n\n"
        "Mine = TransportKind('mine', DiskSender, Receiver)\n",
        "receive(self, handle) cannot be called as the harness does; it has no method close",
        "arrived: list[Tensor] | None = None) -> Weights; add def close(self) -> None",
    ),
}
"""A setting and its module; and of the refusal a value and a part of the fix."""


@pytest.mark.parametrize("case", PROTOCOLS)
def test_a_part_that_is_none_is_refused_with_what_it_should_be(module: Callable[[str], str], case: str) -> None:
    setting, body, value, fix = PROTOCOLS[case]
    Path("s.yaml").write_text(setting.format(module(body)))
    with pytest.raises(UserError) as refused:
        check_plugins(load_scenario("s.yaml"))
    key = setting.partition(":")[0]
    assert refused.value.where == ("trackers" if key == "trackers" else f"{key}.type")
    assert value in refused.value.what
    assert fix in (refused.value.fix or "")


KIND = PluginKind("task", "task.type", "() -> Task", "package.module:Name", protocol=Task)


@dataclasses.dataclass
class WithAttributes:
    """A task whose reward is an attribute, and whose prompts are fields."""

    train_prompts: tuple[Prompt, ...]
    validation_prompts: tuple[Prompt, ...]
    reward: Any


class WithStatic:
    """An engine whose method needs no object."""

    @staticmethod
    def generate(prompts: Any, num_samples: int, sampling: Any, seed: int, places: Any = None) -> list[Any]:
        return []

    def load_weights(self, *weights: Any, **others: Any) -> None: ...


class Inheriting(Task):
    """Has only the protocol's own methods, which do nothing."""


def test_what_can_be_called_as_the_protocol_says_is_taken_however_it_is_made() -> None:
    check_methods(WithAttributes, Task, "a:b", KIND)
    check_methods(WithAttributes((), (), lambda response, ground_truth: {}), Task, "a:b", KIND)
    check_methods(WithStatic, Engine, "a:b", KIND)
    check_methods(WithStatic(), Engine, "a:b", KIND)
    with pytest.raises(UserError, match="no method reward"):
        check_methods(Inheriting, Task, "a:b", KIND)


LOG = """class Mine:
    def log(self, step, kind, values):
        pass

    def close(self):
        pass

"""


def test_what_making_a_part_raises_is_told_with_its_line(module: Callable[[str], str]) -> None:
    name = module(f"{LOG}    def __init__(self):\n        raise RuntimeError('no server')\n")
    with pytest.raises(UserError, match="RuntimeError: no server") as refused:
        make_plugin(f"{name}:Mine", TRACKER_PLUGIN, {}, {})
    assert refused.value.where == f"{name}.py:9"


def test_own_parts_are_settings_as_others(tmp_path: Path) -> None:
    """A type by a colon has options and the keys that all have; arms may take another; the rest is refused."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "transport: {type: nixl, progress_thread_delay_us: 0}\n"
        "arms: {theirs: {}, mine: {transport.type: 'my.parts:FAST', transport.options: {size: 3}}}\n"
    )
    theirs, mine = (variant.scenario for variant in expand(load_scenario(path)))
    assert theirs.transport.type == "nixl"
    ours = {"type": "my.parts:FAST", "verify": True, "dtype": "trained", "options": {"size": 3}}
    assert mine.transport.model_dump() == ours
    assert mine.uses_ray
    assert mine.verifies_weights
    path.write_text(
        "transport: {type: 'my-parts:FAST'}\n"
        "engine: {type: 'a.b:C', kv_cach: 3}\n"
        "transport_sweep: {transports: ['a.b:C', nixle]}\n"
    )
    with pytest.raises(UserError) as refused:
        load_scenario(path)
    said = str(refused.value).replace(str(path), "s.yaml")
    assert re.findall(r"s.yaml, line (\d)", said) == ["2", "1", "3"]
    assert [word for word in ("3 problems", "engine.kv_cach`", "'my-parts:FAST'", "'nixle'") if word not in said] == []
    assert [fix for fix in ("`engine.kv_cache`", "`package.module:NAME`", "`nixl`?") if fix not in said] == []


def test_the_page_names_every_contract_and_every_setting_and_shows_the_example() -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    assert sorted(row[1].strip(" `") for row in rows if "Contract" in row[1]) == harness.testing.__all__
    settings = {row[2].strip().split("`")[1] for row in rows if row[2].strip().startswith("`")}
    named = {key.partition("[")[0] for key in NAMES} - {"profile.own"}
    assert named | {"own", "task.reward", "loss.function"} == settings
    scenario = (EXAMPLE / "parts.yaml").read_text(encoding="utf-8")
    shown = page.split("```yaml\n")[1].split("```")[0]
    assert all(line in scenario.splitlines() for line in shown.splitlines())


def test_the_page_on_python_names_what_there_is() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"harness\.(\w+)\(", page))
    assert named == {name for name in harness.__all__ if name != "__version__"}
