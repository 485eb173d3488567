"""Runs with many settings on at once: a folder in Qwen's architecture, a user's own loss, dynamic sampling."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from harness.core.errors import UserError
from harness.models.make_folder import make_folder
from harness.models.storage import load_policy
from harness.results import Run, ShardRow
from harness.results.manifest import MADE_OF
from harness.scenario.load import load_scenario
from tests.e2e.conftest import run_all

REWARD = """
def reward(response, ground_truth):
    return float(len(response) % 3 == 0)
"""
SCENARIO = """
task: {type: jsonl, train: FOLDER/prompts.jsonl, reward: "reward_of_e2e:reward", reward_timeout_s: null}
model: {type: folder, path: FOLDER/tiny, threads: 1, gradient_checkpointing: true, precision: float32}
engine: {precision: float32}
sampling: {max_tokens: 6}
rollout_batch_size: 24
group_size: 3
gradient_accumulation_steps: 2
steps: 4
evaluation: {every: 4, prompts: 4, examples: 1}
interleaving: run
profile: "off"
trackers: [jsonl]
"""
TRAINED = """
epochs_per_batch: 2
minibatches_per_epoch: 2
dynamic_sampling: {attempts: 2}
optimizer: {learning_rate: 0.003, schedule: cosine, warmup_ratio: 0.25}
arms:
  built_in:
    loss: {type: cispo, cliprange: 0.01, cliprange_high: 0.01, kl: {coefficient: 0.1, reference: polyak, alpha: 0.3}}
    advantage.delta: leave_one_out_rewards
  own:
    loss: {type: own, cliprange: 0.01, cliprange_high: 0.01, kl: {coefficient: 0.1, reference: polyak, alpha: 0.3}}
    loss.function: docs.examples.own_loss.losses:cispo
    advantage.delta: own
    advantage.function: docs.examples.own_loss.losses:leave_one_out
"""
Group = tuple[int, int, tuple[int, ...], tuple[float, ...]]
"""Prompt, attempt, lengths, rewards."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model, prompts and the user's module, on the import path of this process and its children."""
    made = tmp_path_factory.mktemp("own")
    make_folder("tiny-qwen2", made / "tiny", layers=1, vocab_size=512)
    (made / "reward_of_e2e.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"{number} + {number} =", "answer": str(2 * number)}) for number in range(60)]
    (made / "prompts.jsonl").write_text("\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(made))
        patch.setenv("PYTHONPATH", str(made))
        yield made


def run_in(folder: Path, out: Path, more: str, *overrides: str) -> dict[str, Run]:
    """Run the scenario with more settings; return its runs by arm."""
    (folder / "own.yaml").write_text((SCENARIO + more).replace("FOLDER", str(folder)))
    scenario = load_scenario(folder / "own.yaml", list(overrides))
    return {str(run.manifest.arm): run for run in run_all(scenario, out)}


@pytest.fixture(scope="module")
def learnt(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The two arms of ``TRAINED``."""
    return run_in(folder, tmp_path_factory.mktemp("learnt"), TRAINED)


def figures(run: Run, name: str) -> list[float]:
    """A metric of each training step that has it."""
    return [metric.value for row in run.steps if (metric := row.metric(name)) is not None]


def moved(before: Path, after: Path) -> dict[str, float]:
    """The largest change of each weight."""
    old, new = (dict(load_policy(folder)[0].named_parameters()) for folder in (before, after))
    assert old.keys() == new.keys()
    return {name: float((new[name] - old[name]).detach().abs().max()) for name in old}


def by_step(rows: Iterable[Any]) -> dict[int, list[Group]]:
    """Groups by the number of their batch."""
    found: dict[int, list[Group]] = defaultdict(list)
    for row in rows:
        attempts = row.attempts or (0,) * len(row.prompt_ids)
        found[row.step] += zip(row.prompt_ids, attempts, row.lengths, row.rewards, strict=True)
    return found


def flat(groups: Iterable[Group]) -> list[Group]:
    """Those whose rewards are all equal: their advantages are 0."""
    return [group for group in groups if len(set(group[3])) == 1]


def test_a_loss_of_ones_own_with_many_settings_learns_what_the_built_in_one_does(
    learnt: dict[str, Run], folder: Path
) -> None:
    own, built_in = learnt["own"], learnt["built_in"]
    assert set(moved(built_in.folder / "policy", own.folder / "policy").values()) == {0.0}
    assert figures(own, "own/clip_fraction") == figures(built_in, "clip_fraction")
    assert min(figures(own, "own/clip_fraction")) > 0  # the weights were bounded, so the functions had work to do
    named = {key: entry["name"] for key, entry in own.manifest.inputs.items() if key not in MADE_OF}
    assert named == {
        "task.reward": "reward_of_e2e:reward",
        "loss.function": "docs.examples.own_loss.losses:cispo",
        "advantage.function": "docs.examples.own_loss.losses:leave_one_out",
    }

    assert {row.optimizer_steps for row in own.steps} == {2 * 2}
    # 16 optimizer steps: 4 of warm-up, then half a period of the cosine over the 12 that are left
    shares = [step / 4 for step in range(4)] + [(1 + math.cos(math.pi * step / 12)) / 2 for step in range(12)]
    rates = [0.003 * sum(shares[start : start + 4]) / 4 for start in range(0, 16, 4)]
    assert figures(own, "learning_rate") == pytest.approx(rates)
    assert len(figures(own, "engine_mismatch/kl")) == 4
    assert max(map(abs, figures(own, "engine_mismatch/kl"))) < 1e-5  # each load has reached the engine
    penalty = figures(own, "kl/penalty")
    assert all(0 < value < 0.1 for value in penalty)

    assert min(moved(folder / "tiny", own.folder / "policy").values()) > 0  # every weight is trained, biases too
    assert json.loads((own.folder / "policy" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    _, tokenizer = load_policy(own.folder / "policy")
    assert tokenizer.decode(tokenizer.encode("7 + 7 = 14")) == "7 + 7 = 14"


def test_rows_of_dynamic_sampling_add_up_to_its_figures(learnt: dict[str, Run]) -> None:
    run = learnt["own"]
    shards = [row for row in run.groups() if isinstance(row, ShardRow) and row.purpose == "train"]
    on, gone = by_step(shards), by_step(run.discarded())
    for row in run.steps:
        kept, thrown = on[row.step], gone[row.step]
        assert len(kept) == 8  # 24 / 3
        assert flat(thrown) == thrown
        assert all(attempt == 2 for _, attempt, _, _ in flat(kept))  # only what the last attempt gave
        # every place that was sampled again was thrown away once for each attempt before
        assert len(thrown) == sum(attempt for _, attempt, _, _ in kept)
        assert len({prompt for prompt, *_ in (*kept, *thrown)}) == len(kept) + len(thrown)
        found = {name: metric for name in row.metrics if (metric := row.metric(name)) is not None}
        assert found["sampling/kept_groups"].value == 8
        assert found["sampling/discarded_groups"].value == len(thrown)
        assert found["sampling/generated_groups"].value == 8 + len(thrown)
        assert found["sampling/discarded_tokens"].value == sum(sum(lengths) for _, _, lengths, _ in thrown)
        assert found["zero_variance_fraction"].value == len(flat(kept)) / 8
        assert found["reward/total"].count == 3 * (8 + len(thrown))  # of all that was sampled
    ledger = run.ledger
    assert ledger is not None
    assert ledger.discarded.rollouts == 3 * sum(map(len, gone.values())) > 0
    assert (ledger.trained.rollouts, ledger.generated.rollouts) == (96, 96 + ledger.discarded.rollouts)


@pytest.mark.parametrize(
    ("overrides", "what", "fix"),
    [
        (["arms={}", "loss={type: own, function: docs.examples.own_loss.losses:cisp}"], "cisp", "losses:cispo"),
        (["model.path=no/such/folder"], "no/such/folder", "make_folder --shape qwen2.5-math-1.5b"),
        (["model.path=no/such/folder", "transport.type=nixl"], "no/such/folder", "make_folder"),
    ],
)
def test_what_is_not_there_is_refused_before_the_run_and_before_ray(
    folder: Path, tmp_path: Path, overrides: list[str], what: str, fix: str
) -> None:
    with pytest.raises(UserError) as refused:
        run_in(folder, tmp_path / "out", TRAINED, *overrides)
    assert what in str(refused.value)
    assert fix in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray")
def test_the_public_width_trains_and_serves_as_ray_actors(folder: Path, tmp_path: Path) -> None:
    """The width, heads and MLP of Qwen2.5-Math-1.5B; two of its 28 layers and 512 of its tokens."""
    make_folder("qwen2.5-math-1.5b", tmp_path / "wide", layers=2, vocab_size=512)
    text = "transport: {type: nixl, verify: true}\nplacement: {generator: {cpus: 0.5}, learner: {cpus: 0.5}}\n"
    (found,) = run_in(
        folder, tmp_path / "out", text, f"model.path={tmp_path / 'wide'}", "steps=2", "evaluation.every=2"
    ).values()
    changes = moved(tmp_path / "wide", found.folder / "policy")
    assert min(changes.values()) > 0
    # Adam's first steps move a weight by at most the learning rate, a little more when gradients keep their sign
    assert max(changes.values()) < 3 * 2 * found.setting("optimizer.learning_rate")
    assert set(figures(found, "sync/bytes")) == {4 * 94_383_616}  # float32
