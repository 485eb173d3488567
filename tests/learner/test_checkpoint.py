"""A Learner that goes on from its saved state ends where one that never stopped does, bit for bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from harness.core import checkpoints
from harness.core.checkpoints import begin, commit, newest_whole
from harness.core.errors import UserError
from harness.core.trace import NullTracer
from harness.core.types import Metrics
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.checkpoint import LearnerState
from harness.learner.optimizer import Schedule
from harness.learner.paced import PacedTrainer
from harness.models.decoder import DecoderLM
from harness.run.workers import LearnerWorker
from tests.learner.tiny_training import CONFIG, OPTIONS, changed, groups, train_on

RICH = changed(
    OPTIONS,
    loss__type="grpo_clip",
    loss__kl__coefficient=0.05,
    loss__kl__monitor=True,
    loss__kl__reference="polyak",
    loss__kl__alpha=0.3,
    epochs_per_batch=2,
    minibatches_per_epoch=2,
    schedule=Schedule("cosine", warmup_steps=3, optimizer_steps=80),
    optimizer__weight_decay=0.1,
)
FROZEN = changed(RICH, loss__kl__reference="frozen")
CASES: dict[str, tuple[TrainerOptions, torch.dtype, int, int]] = {  # stopped after so many steps, of so many
    "before the first step": (RICH, torch.float32, 0, 2),
    "plain": (OPTIONS, torch.float32, 2, 4),
    "rich": (RICH, torch.float32, 3, 6),
    "frozen": (FROZEN, torch.float32, 2, 4),
    "float16": (changed(RICH, precision="float16", optimizer__learning_rate=0.001), torch.float32, 2, 4),
    "bfloat16 weights": (RICH, torch.bfloat16, 1, 3),
}
BATCHES = [groups(seed) for seed in range(6)]


def new_trainer(options: TrainerOptions, dtype: torch.dtype = torch.float32, seed: int = 1) -> PolicyTrainer:
    return PolicyTrainer(DecoderLM(CONFIG, seed=seed).to(dtype), 0, options)


def all_of(trainer: PolicyTrainer) -> dict[str, Any]:
    """Everything that a trainer has learnt, found by other means than a save finds it."""
    found: dict[str, Any] = {f"policy {name}": weight for name, weight in trainer.weights().items()}
    for number, kept in enumerate(trainer.optimizer.state_dict()["state"].values()):
        found |= {f"optimizer {number} {key}": value for key, value in kept.items()}
    if trainer.reference is not None:
        found |= {f"reference {name}": weight for name, weight in trainer.reference.model.named_parameters()}
        found |= {f"average {name}": weight for name, weight in trainer.reference.averages.items()}
    if trainer.previous is not None:
        found |= {f"previous {name}": weight for name, weight in trainer.previous.named_parameters()}
    found |= {f"scale {key}": value for key, value in trainer.loss_scale.state_dict().items()}
    return found | {"last good": trainer.last_good}


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value) if isinstance(value, Tensor) else found[name] == value, name


def saved(trainer: PolicyTrainer, folder: Path, step: int, **how: Any) -> Path:
    """Train so many steps, save and commit; return the folder of the checkpoint."""
    if step:
        train_on(trainer, BATCHES[:step])
    state, draft = LearnerState(trainer), begin(folder, step)
    state.save(draft, {"step": step}, **how)
    return commit(draft, state.finish().files, keep=2).folder


@pytest.mark.parametrize("case", CASES)
def test_the_steps_are_those_of_a_trainer_that_was_saved_and_another_that_went_on(case: str, tmp_path: Path) -> None:
    """The reference follows in every second step, so that the stop is in the middle of its interval too."""
    options, dtype, stop, steps = CASES[case]
    whole = new_trainer(options, dtype)
    wanted: Metrics = train_on(whole, BATCHES[:steps])
    trainer = new_trainer(options, dtype)
    folder = saved(trainer, tmp_path, stop, asynchronous=stop == 3)
    resumed = new_trainer(options, dtype)
    assert LearnerState(resumed).load(folder)["step"] == stop
    assert_same(all_of(resumed), all_of(trainer))
    assert train_on(resumed, BATCHES[stop:steps], first_step=stop) == wanted
    assert_same(all_of(resumed), all_of(whole))


def test_every_file_is_what_others_read_too(tmp_path: Path) -> None:
    trainer = new_trainer(RICH, torch.bfloat16)
    file = saved(trainer, tmp_path, 3) / "learner_rank_0.safetensors"
    found = load_file(file)
    roles = {"policy", "previous", "reference", "optimizer.exp_avg", "optimizer.exp_avg_sq", "optimizer.step"}
    assert {name.partition("/")[0] for name in found} == roles
    for name, weight in trainer.weights().items():
        assert torch.equal(found[f"policy/{name}"], weight)
        assert found[f"reference/{name}"].dtype == torch.float32  # averages; the parameters are their rounding
        assert int(found[f"optimizer.step/{name}"]) == 3 * 2 * 2
    with safe_open(file, "pt") as opened:
        assert sorted(opened.metadata()) == ["frozen", "slices"]


def test_a_save_has_the_state_at_the_call_while_training_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    """The thread writes only when two more steps were trained, and the same memory takes the next snapshot."""
    go, write = threading.Event(), checkpoints.write_file

    def later(*arguments: Any) -> Any:
        assert go.wait(60)
        return write(*arguments)

    monkeypatch.setattr("harness.learner.checkpoint.write_file", later)
    trainer = new_trainer(RICH)
    state, memory = LearnerState(trainer), []
    for step in (2, 4):
        train_on(trainer, BATCHES[step - 2 : step], first_step=step - 2)
        at_call = {name: weight.detach().clone() for name, weight in trainer.weights().items()}
        draft = begin(tmp_path, step)
        go.clear()
        state.save(draft, {}, asynchronous=True)
        train_on(trainer, BATCHES[step : step + 2], first_step=step)
        assert state.finish(wait=False) is None
        assert list(draft.iterdir()) == []
        with pytest.raises(RuntimeError, match="under way"):
            state.save(draft, {}, asynchronous=True)
        go.set()
        written = state.finish()
        assert state.finish() is None
        found = load_file(commit(draft, written.files, 2).folder / "learner_rank_0.safetensors")
        assert all(torch.equal(found[f"policy/{name}"], weight) for name, weight in at_call.items())
        assert not torch.equal(at_call["model.norm.weight"], trainer.weights()["model.norm.weight"])
        memory.append(state._copy)
    assert memory[0] is memory[1] is not None


def test_an_error_of_the_thread_is_raised_by_the_next_call_and_the_next_save_is_whole(tmp_path: Path) -> None:
    state, draft = LearnerState(new_trainer(RICH)), begin(tmp_path, 1)
    (draft / "learner_rank_0.safetensors").touch()
    state.save(draft, {}, asynchronous=True)
    with pytest.raises(FileExistsError):
        state.finish()
    with pytest.raises(FileExistsError):
        state.save(draft, {})
    draft = begin(tmp_path, 1)
    state.save(draft, {})
    commit(draft, state.finish().files, 1)
    assert newest_whole(tmp_path)[1] == ()


def test_another_learner_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Shapes and types are named, both."""
    rich, plain = (saved(new_trainer(options), tmp_path / name, 2) for options, name in ((FROZEN, "1"), (OPTIONS, "2")))
    plain_policy = changed(OPTIONS, loss__kl__monitor=False)
    wider = PolicyTrainer(DecoderLM(replace(CONFIG, vocab_size=19), seed=1), 0, OPTIONS)
    for folder, other, said in (
        (rich, new_trainer(FROZEN, seed=2), "initial policy"),
        (rich, new_trainer(FROZEN, torch.bfloat16), "initial policy"),
        (rich, new_trainer(plain_policy, torch.bfloat16), "previous/"),
        (rich, new_trainer(changed(FROZEN, loss__kl__monitor=False), seed=1), "previous/"),
        (rich, new_trainer(RICH), "lacks .* reference/"),
        (rich, new_trainer(replace(FROZEN, precision="float16")), "loss scale"),
        (plain, new_trainer(OPTIONS, torch.bfloat16), r"float32 \(17, 16\), .* torch.bfloat16 \(17, 16\)"),
        (plain, wider, r"float32 \(17, 16\), .* torch.float32 \(19, 16\)"),
    ):
        before = {name: value.clone() if isinstance(value, Tensor) else value for name, value in all_of(other).items()}
        with pytest.raises(UserError, match=said):
            LearnerState(other).load(folder)
        assert_same(all_of(other), before)


def test_the_worker_saves_its_version_and_the_rows_that_prove_a_sync(tmp_path: Path) -> None:
    rows = [(np.array([3, 4]), np.array([5])), (np.array([1]), np.array([2, 6]))]

    def worker(trainer: Any, first: Any = None) -> LearnerWorker:
        return LearnerWorker(trainer, None, tracer=NullTracer(), first_probe=first)  # type: ignore[arg-type]

    one, other = (worker(new_trainer(OPTIONS), rows) for _ in range(2))
    one.update(0, BATCHES[0])
    proof = one._proof(1)
    draft = begin(tmp_path, 1)
    assert one.save_state(draft, 1, asynchronous=True) >= 0
    (written,) = one.finish_save() or ()
    assert other.load_state(commit(draft, written.files, 1).folder) == 1
    found = other._proof(1)
    assert proof is not None is not found
    for ours, theirs in zip((*found.prompts, *found.log_probs), (*proof.prompts, *proof.log_probs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(UserError, match="PacedTrainer"):
        worker(PacedTrainer(0.0, 0.01, 2, OPTIONS)).save_state(draft, 1)


def test_an_optimizer_of_flat_pieces_is_refused(tmp_path: Path) -> None:
    """DeepSpeed's ZeRO steps pieces of its own, in which the parameters lie behind one another."""
    trainer = new_trainer(OPTIONS)
    trainer.optimizer = torch.optim.AdamW([torch.zeros(100, requires_grad=True)])
    with pytest.raises(UserError, match="DeepSpeed"):
        LearnerState(trainer).save(tmp_path, {})
