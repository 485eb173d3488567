"""The saved state of several ranks: gone on from bit for bit, and read by other numbers of ranks that cut otherwise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from harness.core.checkpoints import Checkpoint, begin, commit, newest_whole
from harness.core.errors import UserError
from harness.core.types import Metrics
from harness.learner import PolicyTrainer
from harness.learner.checkpoint import LearnerState
from harness.learner.ranks import FsdpRanks
from harness.models.decoder import DecoderLM, decoder_without_weights
from tests.learner.test_checkpoint import BATCHES, RICH, all_of, assert_same
from tests.learner.test_ranks import MODES, SHAPE, whole
from tests.learner.tiny_training import changed, train_on
from tests.rank_pool import RankPool

OPTIONS = changed(RICH, minibatches_per_epoch=1, gradient_accumulation_steps=2, optimizer__max_grad_norm=0.5)
STOP, END = 2, 3


def new_trainer(mode: str) -> PolicyTrainer:
    """A trainer of this rank; of mode ``one``, of the only process."""
    if mode == "one":
        return PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, OPTIONS)
    model = DecoderLM(SHAPE, seed=1) if dist.get_rank() == 0 else decoder_without_weights(SHAPE)
    return PolicyTrainer(model, 0, OPTIONS, ranks=FsdpRanks(*MODES[mode]))


def everything(trainer: PolicyTrainer) -> dict[str, Any]:
    """All that was learnt, whole; a collective."""
    return {name: whole(value) if isinstance(value, Tensor) else value for name, value in all_of(trainer).items()}


def go_on(trainer: PolicyTrainer, mode: str) -> Metrics:
    data_rank = None if mode == "one" else trainer.ranks.data_rank
    return train_on(trainer, BATCHES[STOP:END], data_rank, first_step=STOP)


def save(trainer: PolicyTrainer, folder: Path, *, asynchronous: bool) -> Path:
    """Save from all ranks, as the loop has them do it; return the checkpoint's folder."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="gloo")
    state = LearnerState(trainer, rank, ranks, group)
    draft = begin(folder, STOP) if rank == 0 else folder / f"step_{STOP}.tmp"
    dist.barrier()
    state.save(draft, {"version": STOP}, asynchronous=asynchronous)
    written = state.finish()
    files: list[Any] = [None] * ranks
    dist.all_gather_object(files, written.files)
    if rank == 0:
        commit(draft, [file for of_rank in files for file in of_rank], 2)
    dist.barrier()
    return folder / f"step_{STOP}"


def save_and_go_on(rank: int, mode: str, folder: Path) -> list[Any]:
    """Return what was saved; then metrics and all, of the one that was never saved and of one that went on."""
    trainer = new_trainer(mode)
    train_on(trainer, BATCHES[:STOP], trainer.ranks.data_rank)
    at_save = everything(trainer)
    saved = save(trainer, folder, asynchronous=True)
    resumed = new_trainer(mode)
    numbers = LearnerState(resumed, rank, dist.get_world_size()).load(saved)
    assert numbers["version"] == STOP
    return [at_save, everything(resumed), *((go_on(each, mode), everything(each)) for each in (trainer, resumed))]


def load_and_go_on(rank: int, mode: str, saved: Path, into: Path) -> list[Any]:
    """Load, save again, and go on; return what was loaded, metrics, and all in the end."""
    trainer = new_trainer(mode)
    LearnerState(trainer, rank, dist.get_world_size()).load(saved)
    loaded = everything(trainer)
    save(trainer, into, asynchronous=False)
    return [loaded, go_on(trainer, mode), everything(trainer)]


def by_name(saved: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on how ranks are cut: ranks tell of their own rows."""
    return {name: value for name, value in saved.items() if name != "last good"}


def assert_close(trainer: PolicyTrainer, found: dict[str, Any]) -> None:
    """The weights of one process are those of ranks, whose sums run in another order."""
    for name, weight in trainer.weights().items():
        torch.testing.assert_close(weight, found[f"policy {name}"], rtol=0, atol=1e-4, msg=name)


def elements_in(folder: Path) -> dict[str, int]:
    """How many elements of each tensor the files of a folder hold together."""
    pieces = [load_file(file).items() for file in folder.glob("*.safetensors")]
    return dict(sum((Counter({name: tensor.numel() for name, tensor in each}) for each in pieces), Counter()))


@pytest.mark.parametrize(
    "mode", [mode if mode == "fsdp2" else pytest.param(mode, marks=pytest.mark.slow) for mode in MODES]
)
def test_ranks_go_on_bit_for_bit_and_one_process_reads_what_they_wrote(
    mode: str, rank_pool: RankPool, tmp_path: Path
) -> None:
    ranks = MODES[mode][1].ranks
    found = rank_pool.run(ranks, save_and_go_on, mode, tmp_path)
    for at_save, loaded, (wanted_metrics, wanted), (metrics, resumed) in found:
        assert_same(by_name(loaded), by_name(at_save))
        assert metrics == wanted_metrics
        assert_same(by_name(resumed), by_name(wanted))
    checkpoint, refused = newest_whole(tmp_path)
    assert isinstance(checkpoint, Checkpoint)
    assert refused == ()
    assert len(checkpoint.files) == ranks + 1
    alone = new_trainer("one")
    LearnerState(alone).load(checkpoint.folder)
    assert_same(everything(alone), found[0][0])
    draft = begin(tmp_path / "alone", STOP)
    LearnerState(alone).save(draft, {})
    assert elements_in(checkpoint.folder) == elements_in(draft)  # each is written once
    metrics = go_on(alone, "one")
    assert metrics["grad_norm"].value == pytest.approx(found[0][2][0]["grad_norm"].value, rel=1e-3)
    assert_close(alone, found[0][2][1])


@pytest.mark.parametrize(
    "modes",
    [
        ["fsdp2", "ddp", "tp"],
        pytest.param(["fsdp2 x tp", "fsdp2 on 3", "hsdp", "tp", "ddp x tp", "ddp"], marks=pytest.mark.slow),
    ],
)
def test_ranks_of_any_kind_and_number_read_what_others_wrote(
    modes: list[str], rank_pool: RankPool, tmp_path: Path
) -> None:
    """Each mode reads what the one before it wrote, and writes it again: nothing of it changes."""
    trainer = new_trainer("one")
    train_on(trainer, BATCHES[:STOP])
    wanted = everything(trainer)
    state, draft = LearnerState(trainer), begin(tmp_path / "0", STOP)
    state.save(draft, {})
    saved = commit(draft, state.finish().files, 1).folder
    metrics = go_on(trainer, "one")
    for number, mode in enumerate(modes, 1):
        found = rank_pool.run(MODES[mode][1].ranks, load_and_go_on, mode, saved, tmp_path / str(number))
        for loaded, of_rank, in_the_end in found:
            assert_same(loaded, wanted)
            assert of_rank["loss"].value == pytest.approx(metrics["loss"].value, abs=1e-6), mode
            assert_close(trainer, in_the_end)
        checkpoint, refused = newest_whole(tmp_path / str(number))
        assert checkpoint is not None
        assert refused == ()
        saved = checkpoint.folder
    alone = new_trainer("one")
    LearnerState(alone).load(saved)
    assert_same(everything(alone), wanted)


def test_files_of_one_rank_alone_are_refused_with_both_numbers(rank_pool: RankPool, tmp_path: Path) -> None:
    """As when a file of rank 0 stands for the whole, which no manifest of ours would say."""
    saved = rank_pool.run(2, save_at_once, tmp_path)[0]
    file = saved / "learner.json"
    file.write_text(file.read_text().replace('"ranks": 2', '"ranks": 1'))
    with pytest.raises(UserError, match=r"of the \d+ elements of .*; it was saved by 1 ranks and is loaded by 1"):
        LearnerState(new_trainer("one")).load(saved)


def save_at_once(rank: int, folder: Path) -> Path:
    return save(new_trainer("fsdp2"), folder, asynchronous=False)
