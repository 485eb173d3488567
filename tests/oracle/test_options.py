"""Each option of each trainer: equal where it was equal, and faults that are planted are found with a small batch."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.oracle.ask import Implementation, Limits, command_of
from harness.oracle.comparison import cells_of, compared
from harness.oracle.environments import PEERS, interpreter
from harness.oracle.options import OPTIONS, step_of, usual_batch
from harness.oracle.ours import ours
from harness.oracle.page import Found, found, options_table, page
from harness.oracle.step import Header, LossOptions, Step
from tests.oracle.test_oracle import fake

ENVIRONMENTS = Path(os.environ.get("ORACLE_ENVIRONMENTS", Path(__file__).parents[2]))
"""Where ``.venv-NAME`` are."""
PEERS_FOLDER = Path(__file__).parents[2] / "harness" / "oracle" / "peers"
TABLE = Path(__file__).with_name("table.json")
BY_NAME = {option.name: option for option in OPTIONS}
FAULTS = {
    "the deviation without the mean": (
        "deviation of the group",
        "(scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)",
        "scores[i] / (id2std[index[i]] + epsilon)",
        (2, 1),
    ),
    "the mask ignored in a denominator": (
        "mean of responses' means",
        "seq_mask = torch.sum(loss_mask, dim=-1)  # per-sequence",
        "seq_mask = torch.sum(torch.ones_like(loss_mask), dim=-1)  # per-sequence",
        (2, 2),
    ),
    "the clip on the wrong side": (
        "clip higher",
        "ratio, 1 - cliprange_low, 1 + cliprange_high",
        "ratio, 1 - cliprange_high, 1 + cliprange_low",
        (2, 1),
    ),
}
"""Planted in verl's ``core_algos``: the option that shows it, what is replaced, and the shape of the smallest batch."""
PLANT = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader

class Planted(SourceFileLoader):
    def path_stats(self, path):
        raise OSError  # no cached bytecode

    def get_data(self, path):
        text = super().get_data(path).decode()
        assert OLD in text
        return text.replace(OLD, NEW).encode()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "verl.trainer.ppo.core_algos":
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Planted(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder())
"""


def peer(name: str, folder: Path = PEERS_FOLDER) -> Implementation:
    python = interpreter(name, ENVIRONMENTS)
    if python is None:
        pytest.skip(f"there is no .venv-{name}, nor has this environment the package")
    return Implementation(command_of(name, python, folder), Limits())


def test_each_option_has_a_step_of_its_own() -> None:
    """Its loss or its advantages are those of no other option, but where splits change nothing, which is the point."""
    batch, losses, weights = usual_batch(), dict[str, float](), dict[str, tuple[float, ...]]()
    for option in OPTIONS:
        own = ours(step_of(option, batch))
        if option.asks == "loss":
            losses[option.name] = round(own.loss, 9)
        else:
            assert own.advantages is not None
            weights[option.name] = tuple(own.advantages.tolist())
    assert len(set(weights.values())) == len(weights) == 6
    assert set(weights["equal rewards"]) == {0.0}
    split = {name for name in losses if any(word in name for word in ("microbatches", "ranks", "packed"))}
    for name in split:
        whole = "mean of responses' means" if "means" in name else "mean over tokens"
        assert losses.pop(name) == losses[whole]
    assert len(set(losses.values())) == len(losses) == 22


def test_a_search_finds_what_the_usual_batch_does_not_show(tmp_path: Path) -> None:
    """A fake that loses the gradient of tokens with a ratio above 100, which the usual batch has none of: equal there;
    the smallest batch is one group of two responses of one token."""
    change = "gradient[ratio[mask] > 100] = 0; matched['gradient'] = gradient.tolist()"
    option, batch = BY_NAME["mean over tokens"], usual_batch()
    with Implementation(fake(tmp_path, change), Limits()) as implementation:
        (cell,) = cells_of(implementation, option, step_of(option, batch))
        assert (cell.status, cell.searched) == ("equal", 1)
        (cell,) = compared(implementation, option, batch, 12)
    assert (cell.status, cell.gap) == ("differs", pytest.approx(1))
    assert cell.searched > 12
    assert cell.smallest is not None
    tensors = cell.smallest.tensors
    assert tensors["mask"].shape == (2, 1)
    ratios = (tensors["log_probs"] - tensors["old_log_probs"]).exp()
    assert ratios.max() > 100
    with Implementation(fake(tmp_path), Limits()) as implementation:
        (cell,) = compared(implementation, option, batch, 8)
    assert (cell.status, cell.searched, cell.smallest) == ("equal", 9, None)


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    """A fake that agrees, but for half of an advantage."""
    about = {
        "package": "fake",
        "version": "1.0",
        "because": [{"option": "equal rewards", "why": "Halved", "at": "a.py:3"}],
    }
    command = fake(tmp_path, "values = [0.5 + value for value in values]")
    text = Path(command[1]).read_text().replace('{"package": "fake", "version": "1.0"}', repr(about))
    Path(command[1]).write_text(text.replace('assert header["loss"]["aggregation"] == "token_mean"', ""))
    with Implementation(command, Limits()) as implementation:
        result = found(implementation, 0)
    assert isinstance(result, Found), result
    (cell,) = result.cells("equal rewards")
    assert (cell.status, cell.gap) == ("differs", pytest.approx(0.5))
    table, _ = options_table({"fake": result, "other": "exit code 1: no module"})
    assert dict(row for row in table.rows)["equal rewards"] == "5e-01"
    written = page({"fake": result, "other": "exit code 1: no module"}, 0, "a command")
    assert "| equal rewards | `no signal: exactly 0` | differs 5e-01, [" in written
    assert "Halved (`a.py:3`)" in written
    assert "- other: exit code 1: no module" in written


def table_of(name: str) -> dict[str, str]:
    with peer(name) as implementation:
        result = found(implementation, 0)
    assert isinstance(result, Found), result
    lines = {"version": result.about.version}
    for option, cells in result.rows:
        lines |= {f"{option.name} {cell.of}".strip(): cell.status for cell in cells}
        assert result.why(option.name) or all(cell.status != "differs" for cell in cells), f"{option.name}: why?"
    stale = [each.option for each in result.about.because if "without the line" in each.at]
    assert stale == []
    return lines


def changed(name: str, update: bool) -> dict[str, tuple[str | None, str | None]]:
    """Return what of a trainer's table is other than it was, and write it down if that is asked."""
    known, today = json.loads(TABLE.read_text()), table_of(name)
    if update:
        TABLE.write_text(json.dumps(known | {name: today}, indent=1, sort_keys=True) + "\n")
        return {}
    before = known.get(name, {})
    return {key: (before.get(key), today.get(key)) for key in before | today if before.get(key) != today.get(key)}


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: make install PARTS=peers")
def test_trl_means_what_it_meant(request: pytest.FixtureRequest) -> None:
    assert changed("trl", request.config.getoption("--update-golden")) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_trainer_means_what_it_meant(name: str, request: pytest.FixtureRequest) -> None:
    """What changed is named, with what it was and what it is; ``--update-golden`` writes it down."""
    assert changed(name, request.config.getoption("--update-golden")) == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_the_smallest_batch(tmp_path: Path, fault: str) -> None:
    option, old, new, shape = FAULTS[fault]
    folder = Path(shutil.copytree(PEERS_FOLDER, tmp_path / "peers"))
    with (folder / "__init__.py").open("a") as file:
        file.write(PLANT.replace("OLD", repr(old)).replace("NEW", repr(new)))
    with peer("verl", folder) as planted:
        cells = compared(planted, BY_NAME[option], usual_batch(), 200)
    assert {cell.status for cell in cells if cell.of != "advantages, grpo_vectorized"} <= {"differs", "no counterpart"}
    (cell,) = [cell for cell in cells if cell.smallest is not None]
    assert tuple(cell.smallest.tensors["mask"].shape) == shape


EQUAL = {
    "trl": [0],
    "verl": [117, 177],
    "skyrl": [117],
    "areal": [0, 0],
    "openrlhf": [138],
    "trinity": [117, 117],
    "swift": [0],
}
"""Of 400 groups of equal rewards so many have an advantage above 0.01, by each function of a trainer."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_groups_of_equal_rewards_get_advantages_elsewhere(name: str) -> None:
    """Rewards 0.01 to 1.00 in groups of 4, 8, 16 and 32, by the rounding of float32 means. Here all are 0."""
    counts: list[int] = []
    with peer(name) as implementation:
        for size in (4, 8, 16, 32):
            rewards = (torch.arange(1, 101, dtype=torch.float64) / 100).repeat_interleave(size)
            group, rows = torch.arange(100).repeat_interleave(size), torch.arange(100 * size)
            ones = torch.ones(100 * size, 1, dtype=torch.float64)
            tensors = dict.fromkeys(("log_probs", "old_log_probs"), -ones) | {"mask": ones}
            tensors |= {"rewards": rewards, "group": group, "rows": rows, "advantages": torch.zeros_like(rewards)}
            step = Step(header=Header(loss=LossOptions(aggregation="token_mean")), tensors=tensors)
            own = ours(step).advantages
            assert own is not None
            assert float(own.abs().max()) == 0
            answer = implementation.ask(step)
            assert not isinstance(answer, str), answer
            found = []
            for each in answer.advantages:
                if each.values is not None:
                    largest = torch.zeros(100, dtype=torch.float64)
                    largest.scatter_reduce_(0, group, torch.tensor(each.values, dtype=torch.float64).abs(), "amax")
                    found.append(int((largest > 0.01).sum()))
            counts = [sum(pair) for pair in zip(counts or [0] * len(found), found, strict=True)]
    assert counts == EQUAL[name]


@pytest.mark.slow
def test_trinity_adds_microbatches_that_it_does_not_divide() -> None:
    """The gradient grows with the microbatches, and turns, where each is a mean over its own tokens."""
    option, batch, longer = BY_NAME["microbatches"], usual_batch(), []
    with peer("trinity") as implementation:
        for number in (1, 2, 4, 8):
            step = step_of(replace(option, header=replace(option.header, microbatches=number)), batch)
            answer, own = implementation.ask(step), ours(step).gradient
            assert not isinstance(answer, str), answer
            made = torch.tensor(answer.losses[0].gradient, dtype=torch.float64)
            longer.append(float(made.norm() / own.norm()))
    assert longer == pytest.approx([1, 2.081, 4.312, 9.328], rel=1e-3)
