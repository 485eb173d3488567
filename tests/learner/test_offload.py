"""Offload: the same bits as without it, what is where in each phase, and the order of what happens."""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.trace import InterruptingTracer, NullTracer, RecordingTracer, Stage
from harness.core.types import Metrics, RolloutGroup
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.make import make_offload
from harness.learner.offload import FileTarget, Offload, movable, pinned_memory
from harness.learner.ranks import FsdpRanks, Ranks
from harness.models.decoder import DecoderLM, decoder_without_weights
from harness.run.workers import LearnerWorker
from harness.scenario.schema import Scenario
from harness.settings.learner import Held, Phase, is_resident
from harness.transports.checksum import bytes_of, checksum
from harness.transports.in_process import InProcessTransport
from tests.learner.test_ranks import EVERY_MODE, MODES, RICH, SHAPE, whole
from tests.learner.tiny_training import CONFIG, groups, train_on
from tests.rank_pool import RankPool

EVERYTHING: tuple[Held, ...] = get_args(Held)
Result = tuple[dict[str, Tensor], list[dict[str, Tensor]], Metrics, Metrics]
"""Weights of the policy; those of the reference and the previous one; metrics of training and of moving."""


def train(
    options: TrainerOptions, kinds: Collection[Held], ranks: Ranks, batches: Sequence[tuple[RolloutGroup, ...]]
) -> Result:
    """Train as the worker does, with everything away between two training steps."""
    place = FileTarget()
    first = getattr(ranks, "rank", 0) == 0
    model = DecoderLM(SHAPE, seed=1) if first else decoder_without_weights(SHAPE)
    trainer = PolicyTrainer(model, 0, options, ranks=ranks, offload=Offload(kinds, place))
    metrics: Metrics = {}
    for batch in batches:
        trainer.offload.between_steps()
        metrics = train_on(trainer, [batch], ranks.data_rank)
    weights = {name: whole(tensor) for name, tensor in trainer.weights().items()}
    trainer.offload.back("reference")
    frozen = [policy for policy in (trainer._reference_scoring, trainer.previous) if policy is not None]
    others = [{name: whole(tensor) for name, tensor in policy.named_parameters()} for policy in frozen]
    moved = trainer.offload.metrics()
    trainer.offload.close()
    return weights, others, metrics, moved


def train_rank(rank: int, mode: str, options: TrainerOptions, kinds: Collection[Held], batches: Any) -> Result:
    ranks = FsdpRanks(*MODES[mode], keeps_buckets="gradients" in kinds)
    ranks.rank = rank  # type: ignore[attr-defined]
    return train(options, kinds, ranks, batches)


def same_bits(found: Result, wanted: Result) -> None:
    assert found[0].keys() == wanted[0].keys()
    assert all(torch.equal(found[0][name], wanted[0][name]) for name in wanted[0])
    assert len(found[1]) == len(wanted[1])
    for of_found, of_wanted in zip(found[1], wanted[1], strict=True):
        assert all(torch.equal(of_found[name], of_wanted[name]) for name in of_wanted)
    assert found[2] == wanted[2]


BATCHES = [groups(seed) for seed in range(2)]


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_ranks_train_the_same_bits_with_everything_away_between_steps(mode: str, rank_pool: RankPool) -> None:
    ranks = MODES[mode][1].ranks
    wanted = rank_pool.run(ranks, train_rank, mode, RICH, (), BATCHES)
    found = rank_pool.run(ranks, train_rank, mode, RICH, EVERYTHING, BATCHES)
    for of_found, of_wanted in zip(found, wanted, strict=True):
        same_bits(of_found, of_wanted)
        assert of_found[3]["offload/moved_bytes"].value > 0


def test_one_process_trains_the_same_bits_with_each_switch() -> None:
    wanted = train(RICH, (), Ranks(), BATCHES)
    for kinds in (*[(held,) for held in EVERYTHING], EVERYTHING):
        same_bits(train(RICH, kinds, Ranks(), BATCHES), wanted)


def holding(tensor: Tensor, place: Any) -> Offload:
    """What moves one tensor as the weights."""
    offload = Offload(["weights"], place)
    offload.watch("weights", lambda: [tensor])
    return offload


class Counted:
    """A device of the test: bytes in the place of memory, and what happens in the order in which it does."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}
        self.events: list[str] = []

    def keep(self, number: int, memory: Tensor) -> None:
        self.kept[number] = memory.clone()
        self.events.append(f"keep {len(memory)}")

    def fetch(self, number: int, memory: Tensor) -> None:
        memory.copy_(self.kept[number])
        self.events.append(f"fetch {len(memory)}")

    def settle(self) -> None:
        self.events.append("settle")

    def give_back(self) -> None:
        self.events.append("give back")

    def resident_bytes(self) -> int:
        return 77

    def close(self) -> None:
        self.kept.clear()


def test_memory_is_given_away_when_the_copies_are_made_and_each_storage_goes_once() -> None:
    """What has no contents is freed and not copied."""
    place, weight, buffer = Counted(), torch.arange(6.0), torch.ones(8)
    offload = Offload(["weights", "gradients"], place)
    offload.watch("weights", lambda: [weight, weight[2:].view(2, 2), torch.ones(3, dtype=torch.int64)])
    offload.watch("optimizer", lambda: [weight])  # not asked for
    offload.watch("gradients", lambda: [buffer], has_contents=False)
    offload.out("optimizer")
    offload.out("gradients")
    assert (buffer.untyped_storage().nbytes(), place.kept) == (0, {})
    offload.back("gradients")
    assert buffer.untyped_storage().nbytes() == 32
    place.events.clear()
    offload.between_steps()
    offload.out("weights")
    assert weight.untyped_storage().nbytes() == 0
    offload.back("weights")
    offload.back("weights")
    assert weight.tolist() == [0, 1, 2, 3, 4, 5]
    assert place.events == ["keep 24", "keep 24", "settle", "give back", "fetch 24", "fetch 24", "settle"]
    moved = {name: (metric.value, metric.reduction) for name, metric in offload.metrics().items()}
    assert moved == {
        "offload/moved_bytes": (48, "sum"),
        "offload/returned_bytes": (48, "sum"),
        "offload/resident_bytes": (77, "max"),
    }
    assert offload.metrics()["offload/moved_bytes"].value == 0


def test_a_file_takes_memory_off_the_process() -> None:
    size = 48 * 2**20
    place, weight = FileTarget(), torch.ones(size // 4)
    offload = holding(weight, place)
    before = place.resident_bytes()
    offload.out("weights")
    away = place.resident_bytes()
    offload.back("weights")
    assert min(before, place.resident_bytes()) - away > 0.9 * size
    assert torch.equal(weight, torch.ones(size // 4))
    offload.close()


def test_weights_can_be_moved_when_their_bytes_were_read_and_where_the_memory_is_not_torchs_own() -> None:
    """Read for a checksum or a checkpoint: ``Tensor.numpy()`` would forbid for good to resize the storage."""
    read, foreign = torch.arange(4.0), torch.from_numpy(np.arange(4.0))
    assert np.frombuffer(bytes_of(read), np.float32).tolist() == [0, 1, 2, 3]
    checksum({"weight": read})
    movable([foreign])
    for weight in (read, foreign):
        offload = holding(weight, Counted())
        offload.out("weights")
        assert weight.untyped_storage().nbytes() == 0
        offload.back("weights")
        assert weight.tolist() == [0, 1, 2, 3]


class Watching(PolicyTrainer):
    """Notes what is on the device while it computes: by phase, the kinds that are."""

    seen: dict[Phase, set[Held]]

    def look(self, phase: Phase) -> None:
        assert self._reference_scoring is not None
        weights = next(self.model.parameters())
        reference = next(self._reference_scoring.parameters())
        here: dict[Held, bool] = {
            "weights": weights.untyped_storage().nbytes() > 0,
            "reference": reference.untyped_storage().nbytes() > 0,
            "optimizer": any(state.untyped_storage().nbytes() for state in self._optimizer_state()),
        }
        self.seen.setdefault(phase, set()).update(held for held, is_here in here.items() if is_here)

    def compute_old_log_probs(self, batch: Any) -> None:
        super().compute_old_log_probs(batch)
        self.look("old_logprobs")

    def compute_reference_log_probs(self, batch: Any) -> None:
        super().compute_reference_log_probs(batch)
        self.look("reference_logprobs")

    def _gradients(self, *arguments: Any) -> Any:
        self.look("gradients")
        return super()._gradients(*arguments)


@pytest.mark.parametrize("leaving", [frozenset(), frozenset(["optimizer"]), frozenset(EVERYTHING)])
def test_what_is_on_the_device_in_each_phase_is_what_the_memory_plan_is_told(leaving: frozenset[Held]) -> None:
    offload = Offload(leaving, Counted())
    trainer = Watching(DecoderLM(SHAPE, seed=1), 0, RICH, offload=offload)
    worker = LearnerWorker(trainer, InProcessTransport(snapshot=True), tracer=NullTracer(), offload=offload)
    worker.publish_weights(0, frozenset())
    for step in range(2):
        trainer.seen = {}
        worker.update(step, groups(step))
        worker.publish_weights(step + 1, frozenset())
        trainer.look("sampling")
    assert set(trainer.seen) == {"old_logprobs", "reference_logprobs", "gradients", "sampling"}
    for phase, seen in trainer.seen.items():
        told = {held for held in EVERYTHING if held != "gradients" and is_resident(held, phase, leaving)}
        assert seen == told, phase


def test_the_learner_is_away_before_the_engine_wakes_and_comes_back_after_it_sleeps() -> None:
    """One training step of a colocated Learner, stage by stage; the engine has the weights as they were published."""
    tracer = RecordingTracer(count(0, 10).__next__)
    lane = InterruptingTracer(tracer)
    offload = Offload(EVERYTHING, Counted(), lane)
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(RICH, minibatches_per_epoch=1), offload=offload)
    worker = LearnerWorker(trainer, InProcessTransport(snapshot=True), tracer=lane, offload=offload)

    def stages() -> list[str]:
        spans = tracer.drain()
        assert all(one.end_ns < other.start_ns for one, other in pairwise(spans))
        return [f"{span.stage} {span.step}" for span in spans]

    for version in range(2):
        wanted = {name: tensor.detach().clone() for name, tensor in trainer.weights().items()}
        weights, _ = worker.publish_weights(version, frozenset()).payload
        published = stages()
        assert version == 1 or published == ["weight_publish 0", "offload -1", "offload -1"]
        assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
        result = worker.update(version, groups(version))
        assert {"offload/moved_bytes", "offload/resident_bytes"} <= result.metrics.keys()
        updated = stages()
    one_pass = ["update 1", "onload 1", "update 1", "offload 1"]
    assert updated == [
        "prepare_batch 1",
        "onload 1",
        "old_logprobs 1",
        "onload 1",
        "reference_logprobs 1",
        "offload 1",
        *one_pass,  # the previous policy is replaced
        *one_pass * 2,  # two optimizer steps
        *one_pass,  # the reference follows
        "update 1",
    ]


def test_a_rank_moves_its_memory_in_its_own_lane() -> None:
    """Where it moved in another one, the stage around it would count the same seconds."""
    learner = {"sharding": "fsdp2", "offload": {"weights": True}}
    ranks = {"transport": {"type": "shared_memory"}, "placement": {"learner": {"ranks": 2}}}
    recorder, tensor = RecordingTracer(lambda: 0), torch.ones(8)
    offload, tracer = make_offload(Scenario.model_validate({**ranks, "learner": learner}), recorder, "cpu", "learner/1")
    offload.watch("weights", lambda: [tensor])
    with tracer.span("learner/1", Stage.UPDATE, 3, 3):
        offload.out("weights")
    offload.close()
    found = [(span.lane, span.stage, span.step) for span in recorder.drain()]
    assert found == [("learner/1", stage, 3) for stage in (Stage.UPDATE, Stage.OFFLOAD, Stage.UPDATE)]


class Cudart:
    """``torch.cuda.cudart()`` without a device; ``answer`` is what locking returns."""

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.locked = answer, dict[int, int]()

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if self.answer == 0:
            self.locked[address] = num_bytes
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_memory_is_locked_to_the_byte_and_unlocked_when_it_goes() -> None:
    cudart = Cudart()
    memory = pinned_memory(1_000_001, cudart)
    assert cudart.locked == {memory.data_ptr(): 1_000_001}
    del memory
    gc.collect()
    assert cudart.locked == {}
    with pytest.raises(RunStopped, match="1,000 bytes"):
        pinned_memory(1_000, Cudart(answer=2))
